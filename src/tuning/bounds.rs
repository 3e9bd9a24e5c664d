//! Bounds of candidates on a GPU: no plan that may be chosen is far slower than plain CSR with
//! equal work for all threads, `csr(balanced)`, whose time does not depend on the row lengths.
//!
//! The rule uses lower bounds that are exact from the row-length histogram: the longest chain of
//! loads of one thread, the number of threads, atomic additions. It does not apply to matrices of
//! fewer than 10⁵ entries, whose products are all short.

use crate::ScalarKind;
use crate::analysis::Analysis;
use crate::device::DeviceSpec;
use crate::formats::Plan;

/// Largest allowed bound of a candidate, in times of `csr(balanced)`.
const MOST: f64 = 2.0;

/// Smallest number of entries for which the rule applies.
const FEWEST: u64 = 100_000;

/// Time of `csr(balanced)` on an H200: the least time in µs, and the bytes per µs.
const LEAST_US: f64 = 2.5;
const BYTES_PER_US: f64 = 3.5e6;

/// Lower bound of the time of a plan's product over the time of `csr(balanced)`, if it exceeds
/// [`MOST`].
pub(super) fn excess(
    plan: &Plan,
    analysis: &Analysis,
    scalar: ScalarKind,
    device: &DeviceSpec,
) -> Option<f64> {
    let rows = &analysis.rows;
    if device.gpu.is_none() || rows.nnz < FEWEST {
        return None;
    }
    let entries = rows.nnz * (size_of::<u32>() + scalar.size()) as u64;
    let others = rows.nrows * (size_of::<u32>() + scalar.size()) + rows.ncols * scalar.size();
    let balanced = LEAST_US + (entries + others as u64) as f64 / BYTES_PER_US;
    let ratio = plan.floor_us(analysis) / balanced;
    (ratio > MOST).then_some(ratio)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::GpuSpec;
    use crate::matrix::CsrMatrix;

    fn gpu() -> DeviceSpec {
        let gpu = GpuSpec { l2_bytes: 60 << 20, memory_bytes: 1 << 37, driver: "13.0".to_owned() };
        DeviceSpec {
            name: "test".to_owned(),
            instructions: "sm_90".to_owned(),
            threads: 132,
            gpu: Some(gpu),
        }
    }

    /// Short rows of 5 entries and one row of `long` entries.
    fn analysis(rows: usize, long: usize) -> Analysis {
        let lengths = std::iter::repeat_n(5, rows).chain([long]);
        let row_ptr: Vec<usize> = std::iter::once(0)
            .chain(lengths.scan(0, |end, len| {
                *end += len;
                Some(*end)
            }))
            .collect();
        let ncols = long.max(5);
        let cols = row_ptr.windows(2).flat_map(|pair| 0..(pair[1] - pair[0]) as u32).collect();
        let nnz = row_ptr[rows + 1];
        let a = CsrMatrix::try_new(rows + 1, ncols, row_ptr, cols, vec![1.0f32; nnz]).unwrap();
        Analysis::of(a.view())
    }

    fn refused(plan: &str, analysis: &Analysis, device: &DeviceSpec) -> bool {
        excess(&plan.parse().unwrap(), analysis, ScalarKind::F32, device).is_some()
    }

    #[test]
    fn one_long_row_excludes_plans_that_process_it_serially() {
        let long = analysis(40_000, 20_000);
        for plan in [
            "csr(scalar)",
            "csr(vector:8)",
            "csr(vector:32)",
            "ell",
            "jds(diagonals)",
            "sell(c:32,sigma:512)",
        ] {
            assert!(refused(plan, &long, &gpu()), "{plan}");
        }
        let sliced = "sell(c:32,sigma:512,index:packed,long:64)";
        for plan in ["csr(balanced)", "coo", "hyb(width:5)", sliced] {
            assert!(!refused(plan, &long, &gpu()), "{plan}");
        }
        assert!(refused("sell(c:32,sigma:512,index:packed)", &analysis(1_000_000, 16_000), &gpu()));
    }

    #[test]
    fn even_rows_exclude_only_idle_threads_and_atomics() {
        let even = analysis(4_000_000, 5);
        for plan in ["csr(scalar)", "csr(vector:2)", "ell", "sell(c:32,sigma:1,index:packed)"] {
            assert!(!refused(plan, &even, &gpu()), "{plan}");
        }
        assert!(refused("csr(vector:32)", &even, &gpu()) && refused("coo(atomic)", &even, &gpu()));
    }

    #[test]
    fn small_matrices_and_the_cpu_are_not_held_to_it() {
        let cpu = DeviceSpec { gpu: None, ..gpu() };
        assert!(!refused("csr(scalar)", &analysis(40_000, 20_000), &cpu));
        assert!(!refused("csr(scalar)", &analysis(100, 20_000), &gpu()));
    }
}
