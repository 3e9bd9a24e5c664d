//! Bounds of candidates on a GPU: no plan that may be chosen is far slower than plain CSR with
//! equal work for all threads, `csr(balanced)`, whose time does not depend on the row lengths.
//!
//! The rule compares estimates of both times ([`Plan::estimate_us`]) from exact quantities:
//! bytes, slots and rows, and the longest chain of loads of one thread. The estimates are fitted to
//! 113 matrices in f32 and f64 on an H200; of 4800 products those within the rule took at most 2.2
//! times as long as `csr(balanced)`, and the fastest plan of a matrix was excluded on four, by at
//! most 4 %. The rule does not apply to matrices of fewer than 10⁵ entries: their products are
//! short.

use crate::ScalarKind;
use crate::analysis::Analysis;
use crate::device::DeviceSpec;
use crate::formats::{Plan, csr};

/// Largest allowed estimate of a candidate, over that of `csr(balanced)`. Measured times are to
/// differ by a factor of 2 at most. Both estimates have errors, so that their limit is lower.
const MAX: f64 = 1.4;

/// Smallest number of entries for which the rule applies.
const MIN: u64 = 100_000;

/// Estimated time of a plan's SpMV over that of `csr(balanced)`, if it exceeds [`MAX`].
pub(super) fn excess(
    plan: &Plan,
    analysis: &Analysis,
    scalar: ScalarKind,
    device: &DeviceSpec,
) -> Option<f64> {
    if device.gpu.is_none() || analysis.rows.nnz < MIN {
        return None;
    }
    let estimate = |plan: &Plan| plan.estimate_us(analysis, &plan.work(analysis, scalar));
    let ratio = estimate(plan) / estimate(&Plan::Csr(csr::CsrPlan::Balanced));
    (ratio > MAX).then_some(ratio)
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
        analysis_of(std::iter::repeat_n(5, rows).chain([long]))
    }

    /// Rows of these lengths.
    fn analysis_of(lengths: impl Iterator<Item = usize> + Clone) -> Analysis {
        let (nrows, ncols) = (lengths.clone().count(), lengths.clone().max().unwrap());
        let row_ptr: Vec<usize> = std::iter::once(0)
            .chain(lengths.scan(0, |end, len| {
                *end += len;
                Some(*end)
            }))
            .collect();
        let cols = row_ptr.windows(2).flat_map(|pair| 0..(pair[1] - pair[0]) as u32).collect();
        let nnz = row_ptr[nrows];
        let a = CsrMatrix::try_new(nrows, ncols, row_ptr, cols, vec![1.0f32; nnz]).unwrap();
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
        assert!(!refused("csr(balanced)", &long, &gpu()));
        // Long rows and a second launch are much of a short product, and little of a long one.
        let large = analysis(4_000_000, 20_000);
        for plan in ["psell(sigma:512,split:64)", "hyb(width:5)"] {
            assert!(refused(plan, &long, &gpu()) && !refused(plan, &large, &gpu()), "{plan}");
        }
        // So are the row indices of COO, unless rows are long.
        let few = analysis(1, 4_000_000);
        assert!(refused("coo", &large, &gpu()) && !refused("coo", &few, &gpu()));
        // A row of a slice that all warps of a block share.
        assert!(refused("psell(sigma:512)", &analysis(1_000_000, 8_000), &gpu()));
    }

    #[test]
    fn even_rows_exclude_only_idle_threads_and_atomics() {
        let even = analysis(4_000_000, 5);
        for plan in ["csr(scalar)", "csr(vector:2)", "ell", "psell(sigma:1)"] {
            assert!(!refused(plan, &even, &gpu()), "{plan}");
        }
        assert!(refused("csr(vector:32)", &even, &gpu()) && refused("coo(atomic)", &even, &gpu()));
    }

    #[test]
    fn even_rows_of_many_entries_exclude_lanes_that_read_apart() {
        let dense = analysis_of(std::iter::repeat_n(2200, 2300));
        for plan in ["csr(vector:32)", "csr(balanced)"] {
            assert!(!refused(plan, &dense, &gpu()), "{plan}");
        }
        assert!(refused("csr(vector:8)", &dense, &gpu()) && refused("ell", &dense, &gpu()));
    }

    #[test]
    fn small_matrices_and_the_cpu_are_not_held_to_it() {
        let cpu = DeviceSpec { gpu: None, ..gpu() };
        assert!(!refused("csr(scalar)", &analysis(40_000, 20_000), &cpu));
        assert!(!refused("csr(scalar)", &analysis(100, 20_000), &gpu()));
    }
}
