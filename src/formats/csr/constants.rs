//! Constants of the kernels of CSR. `build.rs` writes them to the header
//! `constants.cuh`, in the namespace `csr`.

/// Entries of a row that a lane of a GPU loads together. Few, since rows are short and their lanes
/// share them; a launch overlaps with the previous one only if no lane has more.
pub(super) const LANE_ENTRIES: u64 = 4;
