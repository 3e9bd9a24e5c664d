//! Candidates for the effective cache size of a profile.

use sparseop::device::DeviceSpec;

/// Candidates for the effective cache size, in bytes, ascending. Of those with the least held-out
/// regret the middle one is chosen; on a GPU over products larger than all candidates. Products
/// within a few of these sizes vary more between two tunings than the candidates differ, and
/// choices by them would slow down large products. On an H200, whose L2 has 63 MB, fits to all
/// classes chose equally well for large products with any size of 64 MB or more. Collections for a
/// CPU have few products that large: by those alone 64 MB was chosen on Zen 4 cores, with a held-
/// out mean regret of 1.075; with 8 MB it was 1.06.
const CACHES: [f64; 10] = [1e6, 2e6, 4e6, 8e6, 16e6, 32e6, 64e6, 96e6, 128e6, 192e6];

/// Candidates of [`CACHES`] for a device: on a CPU all but the last three; on a GPU, whose L2 and
/// collections of matrices are larger, those no smaller than its L2. On an H200, fits with 1 and 32
/// MB chose equally well on the matrices of the fit. For stencils with few values, which were not
/// among them, they chose plans that took 1.4 and 1.3 times as long as others.
pub(crate) fn caches(device: &DeviceSpec) -> &'static [f64] {
    match &device.gpu {
        None => &CACHES[..CACHES.len() - 3],
        Some(gpu) => {
            let small = CACHES.partition_point(|&bytes| bytes < gpu.l2_bytes as f64);
            &CACHES[small.min(CACHES.len() - 1)..]
        }
    }
}
