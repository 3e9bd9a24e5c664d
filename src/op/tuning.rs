//! Methods of choosing a plan.

use crate::Plan;

/// Method that finds a plan.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Tuning {
    /// Prediction by the cost model and a profile. Nothing is timed: the same matrix, profile and
    /// settings give the same plan.
    Predict,
    /// Prediction, checked on the matrix itself with at most 30 products plus 2 % of the
    /// [`expected_calls`](crate::SparseOpBuilder::expected_calls), and never more than 10 % of
    /// them: the kernel of plain CSR with the least predicted time and `csr(balanced)` are timed,
    /// and others that may be faster; another plan is packed if its expected improvement pays for
    /// it, and the fastest stays. On a CPU the check takes no longer than its products would,
    /// packing included except of the predicted plan and the one that stays, unless the expected
    /// improvement is several times the cost.
    ///
    /// As [`Predict`](Self::Predict) if fewer than 120 products are expected, for a matrix of fewer
    /// than 4096 entries, with [`deterministic`](crate::SparseOpBuilder::deterministic), on the CPU
    /// in a thread of a rayon pool, and if plain CSR and the predicted plan together take more than
    /// half of the memory. Plans within 2 % of the fastest are ranked by their predictions, but
    /// times vary from run to run, and the choice may vary with them.
    #[default]
    Check,
    /// Calibration: a timing run of the candidates that are predicted to be fastest, on the matrix
    /// itself.
    ///
    /// If [`expected_calls`](crate::SparseOpBuilder::expected_calls) is set, the timing run only
    /// takes place if as many products are expected to pay for it, unless
    /// [`Calibration::always`](crate::tuning::calibrate::Calibration::always) is set. Its
    /// measurements vary from run to run, and the choice between equally fast plans may vary with
    /// them.
    Calibrate,
    /// A given plan.
    Fixed(Plan),
}
