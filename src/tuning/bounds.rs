//! Bounds of candidates on a GPU: no plan that may be chosen is far slower than plain CSR with
//! equal work for all threads, `csr(balanced)`, whose time does not depend on the row lengths.
//!
//! Two rules, for matrices of at least 10⁵ entries; the products of smaller ones are short:
//!
//! - The estimate of a plan ([`Plan::estimate_us`]) over that of `csr(balanced)` is at most
//!   [`MAX_ESTIMATE`]. Rows, slots and the critical path of an estimate are exact, by the histogram
//!   of the row lengths; the bytes of packed SELL, tiles and cache blocks are those of a sample. No
//!   wrong prediction gets past this rule.
//! - The prediction of the profile, which knows the caches, over that of `csr(balanced)` is at most
//!   [`MAX_PREDICTION`], while that plan may be chosen. A plan beyond it can still win a timing
//!   run.
//!
//! In the records of an H200 on 2026-11-27, whose profile is fitted to their random structures:
//! none of 900 candidates on real matrices takes more than twice as long as `csr(balanced)`, and 29
//! of 15,000 on random structures do. The fastest plan is beyond the rules for 14 of 2,006 matrices
//! and types, by at most 9 %.

use super::decision::{Candidate, ExcludedBy, Verdict};
use crate::ScalarKind;
use crate::analysis::Analysis;
use crate::device::DeviceSpec;
use crate::formats::{Plan, Work, csr};

/// Largest estimate of a candidate, over that of `csr(balanced)`.
const MAX_ESTIMATE: f64 = 2.0;

/// Largest prediction of a candidate, over that of `csr(balanced)`. Measured times are to differ
/// by a factor of 2 at most; both predictions have errors.
const MAX_PREDICTION: f64 = 1.3;

/// Smallest number of entries for which the rules apply.
const MIN: u64 = 100_000;

/// The plan that others are compared with.
const BALANCED: Plan = Plan::Csr(csr::CsrPlan::Balanced);

/// True if the rules apply to a matrix of `nnz` entries on a device.
fn is_bounded(nnz: u64, device: &DeviceSpec) -> bool {
    device.gpu.is_some() && nnz >= MIN
}

/// Estimated time of the SpMV of a plan with this work over that of `csr(balanced)`, if it exceeds
/// [`MAX_ESTIMATE`].
pub(super) fn excess(
    plan: &Plan,
    work: &Work,
    analysis: &Analysis,
    scalar: ScalarKind,
    device: &DeviceSpec,
) -> Option<f64> {
    if !is_bounded(analysis.rows.nnz, device) {
        return None;
    }
    let balanced = BALANCED.estimate_us(analysis, &BALANCED.work(analysis, scalar));
    let ratio = plan.estimate_us(analysis, work) / balanced;
    (ratio > MAX_ESTIMATE).then_some(ratio)
}

/// Excludes candidates that are predicted to take more than [`MAX_PREDICTION`] times as long as
/// `csr(balanced)`, also with the preparation for `calls` products, if that plan may be chosen.
pub(super) fn exclude_predicted(
    candidates: &mut [Candidate],
    calls: u64,
    nnz: u64,
    device: &DeviceSpec,
) {
    let may_be_chosen = |c: &Candidate| c.verdict == Verdict::Tied;
    let balanced = candidates.iter().find(|c| c.plan == BALANCED && may_be_chosen(c));
    let balanced = balanced.and_then(|c| c.prediction).filter(|_| is_bounded(nnz, device));
    let Some(balanced) = balanced else { return };
    for candidate in candidates.iter_mut().filter(|c| may_be_chosen(c)) {
        let Some(prediction) = candidate.prediction else { continue };
        let ratio = prediction.product() / balanced.product();
        let is_slower = prediction.amortised(calls) > balanced.amortised(calls);
        if ratio > MAX_PREDICTION && is_slower {
            candidate.verdict = Verdict::OutOfBounds { ratio, by: ExcludedBy::Prediction };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::GpuSpec;
    use crate::matrix::{CsrMatrix, gallery};
    use crate::tuning::cost::{Coefficients, Term};
    use crate::tuning::decision::Request;
    use crate::tuning::prediction::Prediction;
    use crate::tuning::profile::Profile;
    use crate::tuning::select::select;
    use std::sync::Arc;

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
        let plan: Plan = plan.parse().unwrap();
        let work = plan.work(analysis, ScalarKind::F32);
        excess(&plan, &work, analysis, ScalarKind::F32, device).is_some()
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
        // A second launch is much of a short product, and little of a long one.
        let large = analysis(4_000_000, 20_000);
        assert!(refused("hyb(width:5)", &long, &gpu()));
        assert!(!refused("hyb(width:5)", &large, &gpu()));
        // So are the row indices of COO.
        assert!(refused("coo", &long, &gpu()) && !refused("coo", &large, &gpu()));
        // A row of a slice that all warps of a block share.
        assert!(refused("psell(sigma:512)", &analysis(1_000_000, 8_000), &gpu()));
    }

    #[test]
    fn even_rows_exclude_only_idle_threads() {
        let even = analysis(4_000_000, 5);
        for plan in ["csr(scalar)", "csr(vector:2)", "ell", "psell(sigma:1)"] {
            assert!(!refused(plan, &even, &gpu()), "{plan}");
        }
        assert!(refused("csr(vector:32)", &even, &gpu()));
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
    fn slow_predictions_are_excluded_while_csr_balanced_may_be_chosen() {
        let candidate = |plan: &str, nanoseconds: f64, verdict| {
            let mut terms = [0.0; Term::COUNT];
            terms[Term::Call as usize] = nanoseconds;
            let (c, work) =
                (Coefficients { call: 1.0, ..Coefficients::default() }, Work::default());
            let prediction = Prediction::new(&c, &work, &terms, &gpu());
            // Tables of chunks are prepared.
            let prepare = if plan == "csr(balanced)" { 1000.0 } else { 0.0 };
            Candidate {
                plan: plan.parse().unwrap(),
                work,
                work_terms: terms,
                prediction: Some(Prediction { prepare, ..prediction }),
                verdict,
            }
        };
        let verdicts = |calls, nnz, balanced: Verdict| {
            let mut candidates = [
                candidate("csr(balanced)", 100.0, balanced),
                candidate("csr(vector:4)", 129.0, Verdict::Tied),
                candidate("csr(vector:8)", 131.0, Verdict::Tied),
                candidate("coo", 500.0, Verdict::OnRequest),
            ];
            exclude_predicted(&mut candidates, calls, nnz, &gpu());
            candidates.map(|c| c.verdict)
        };
        let excluded = Verdict::OutOfBounds { ratio: 1.31, by: ExcludedBy::Prediction };
        let expected = [Verdict::Tied, Verdict::Tied, excluded, Verdict::OnRequest];
        assert_eq!(verdicts(1000, MIN, Verdict::Tied), expected);
        assert!(expected[2].may_be_timed());
        assert!(!Verdict::OutOfBounds { ratio: 2.1, by: ExcludedBy::Estimate }.may_be_timed());
        // Small matrices are not held to it, few products that do not pay for the preparation of
        // the other plan, and those for which nothing would be left.
        assert!(verdicts(1000, MIN - 1, Verdict::Tied)[2] == Verdict::Tied);
        assert!(verdicts(10, MIN, Verdict::Tied)[2] == Verdict::Tied);
        assert!(verdicts(1000, MIN, Verdict::TooLarge { limit: 1 })[2] == Verdict::Tied);
    }

    #[test]
    fn no_gpu_candidate_is_predicted_to_be_far_slower_than_csr_balanced() {
        let text = include_str!("../../models/nvidia-h200.ron");
        let profile = Arc::new(Profile::parse("h200", text).unwrap());
        let mut excluded = 0;
        for spec in ["fem3d,n=24", "webbase,rows=100k"] {
            let a = spec.parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
            let analysis = Analysis::of(a.view());
            let request = Request::new(&analysis, ScalarKind::F32, u64::MAX);
            let decision = select(&analysis, &profile.device, profile.clone(), request).unwrap();
            let product = |c: &Candidate| c.prediction.unwrap().product();
            let is_balanced = |c: &&Candidate| c.plan.to_string() == "csr(balanced)";
            let balanced = product(decision.candidates.iter().find(is_balanced).unwrap());
            for c in &decision.candidates {
                match c.verdict {
                    Verdict::OutOfBounds { by: ExcludedBy::Prediction, .. } => excluded += 1,
                    Verdict::Tied | Verdict::Slower { .. } => {
                        assert!(product(c) <= 1.3 * balanced, "{spec}: {}", c.plan);
                    }
                    _ => {}
                }
            }
        }
        assert!(excluded > 0);
    }

    #[test]
    fn small_matrices_and_the_cpu_are_not_held_to_it() {
        let cpu = DeviceSpec { gpu: None, ..gpu() };
        assert!(!refused("csr(scalar)", &analysis(40_000, 20_000), &cpu));
        assert!(!refused("csr(scalar)", &analysis(100, 20_000), &gpu()));
    }

    #[test]
    fn warps_of_a_few_long_rows_among_empty_ones_are_excluded() {
        let every = |period: usize| {
            analysis_of((0..400_000).map(move |row| if row % period == 3 { 20 } else { 0 }))
        };
        for plan in ["csr(scalar)", "csr(vector:2)"] {
            assert!(refused(plan, &every(10), &gpu()), "{plan}");
            assert!(!refused(plan, &every(4), &gpu()), "{plan}");
        }
        // In an order by length the warps with entries have them in all rows.
        let ordered = (0..400_000).map(|row| if row < 40_000 { 20 } else { 0 });
        assert!(!refused("csr(scalar)", &analysis_of(ordered), &gpu()));
    }
}
