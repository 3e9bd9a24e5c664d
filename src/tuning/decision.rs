//! The choice of a plan as plain data: request, candidates, verdicts.

use super::cost::{Term, WorkTerms};
use super::lookup::Origin;
use super::prediction::Prediction;
use super::profile::{Fit, Profile};
use super::scale::Scale;
use crate::error::printable;
use crate::formats::{Plan, Work};
use crate::{Precision, ScalarKind};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::sync::Arc;

/// Relative difference up to which predicted times are ties, and measured times of a check. No
/// prediction is more accurate.
pub const TIE_BAND: f64 = 0.02;

/// Relative difference up to which measured times of a calibration are ties. A predicted plan is
/// not changed for less.
pub(super) const TIMING_BAND: f64 = 0.01;

/// Inputs of the choice besides the matrix and the device.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Number of products over which preparation is amortised.
    pub expected_calls: u64,
    /// Largest allowed size of the packed matrix, in bytes.
    pub memory_limit: u64,
    /// Scalar type of the matrix.
    pub scalar: ScalarKind,
    /// True if only plans with bitwise reproducible products may be chosen.
    pub deterministic: bool,
    /// True if values are to be replaced later. Plans may then rely on no property of the values
    /// except the precision they are rounded to.
    pub updatable: bool,
    /// Precision that the values were rounded to, if any.
    pub value_precision: Option<Precision>,
}

/// A candidate of the choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The plan.
    pub plan: Plan,
    /// Work of a product.
    pub work: Work,
    /// Work terms that the prediction is computed from.
    pub work_terms: WorkTerms,
    /// Predicted time; `None` if the profile has no coefficients for the kernel.
    pub prediction: Option<Prediction>,
    /// Verdict on the candidate.
    pub verdict: Verdict,
}

/// Verdict on a candidate.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// The candidate was chosen.
    Chosen,
    /// About as fast as the chosen plan, within [`TIE_BAND`], but later in the order of choice.
    Tied,
    /// Slower than the chosen plan.
    Slower {
        /// Time over that of the chosen plan, preparation included.
        ratio: f64,
        /// Largest part of the difference.
        because: Cause,
    },
    /// The packed matrix exceeds the memory limit.
    TooLarge {
        /// Memory limit, in bytes.
        limit: u64,
    },
    /// Its products block the host and cannot be captured in a graph, or use more launches than
    /// necessary. Such a plan is chosen only on request.
    OnRequest,
    /// Its time exceeds that of plain CSR with equal work for all threads by too much.
    OutOfBounds {
        /// Time over that of `csr(balanced)`.
        ratio: f64,
        /// Rule that it does not keep.
        by: ExcludedBy,
    },
    /// Its result bits may differ between products, and reproducible bits were requested.
    NotDeterministic,
    /// The profile has no coefficients for its kernel.
    Unknown,
    /// Outcome of a check or a calibration that it did not win.
    Timed(TimingOutcome),
}

impl Verdict {
    /// True for a candidate that may win a timing run.
    pub(crate) fn may_be_timed(&self) -> bool {
        matches!(
            self,
            Self::Tied | Self::Slower { .. } | Self::OutOfBounds { by: ExcludedBy::Prediction, .. }
        )
    }
}

/// Rule that excludes slow candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExcludedBy {
    /// An estimate from the row lengths.
    Estimate,
    /// The prediction of the profile.
    Prediction,
}

/// Main reason why a plan is slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// More time for one term of the cost model.
    Term(Term),
    /// Work that cannot be shared among threads.
    Imbalance,
    /// Preparation that the expected number of products does not amortise.
    Preparation,
    /// More time for the same work.
    Kernel,
    /// A correction factor: similar plans took longer than the sum of terms predicts.
    Correction,
    /// A less certain prediction, so that the expected time is longer.
    Uncertainty,
}

impl Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Term(term) => write!(f, "more time for {}", term.describe()),
            Self::Imbalance => {
                f.write_str("load imbalance: one thread has the longest row or slice")
            }
            Self::Kernel => f.write_str("slower kernel for the same work"),
            Self::Correction => f.write_str("correction factor measured on similar matrices"),
            Self::Uncertainty => f.write_str("less certain prediction"),
            Self::Preparation => f.write_str("preparation not amortised by the expected products"),
        }
    }
}

/// The chosen plan and all inputs of the choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The chosen plan.
    pub plan: Plan,
    /// True if the plan was given and not chosen.
    pub fixed: bool,
    /// Basis of the choice: predictions or timing runs.
    pub basis: Basis,
    /// Result of the lookup in the decision store; `None` if there was no lookup.
    pub store: Option<String>,
    /// Every candidate, best first.
    pub candidates: Vec<Candidate>,
    /// The request.
    pub request: Request,
    /// Profile of the predictions, as measured.
    pub profile: Arc<Profile>,
    /// Source of the profile.
    pub origin: Origin,
    /// Fit of the profile to the device.
    pub fit: Fit,
    /// Scale factors applied to the times of the profile.
    pub scale: Scale,
    /// Defects of profiles with a higher precedence, one line each.
    pub warnings: Vec<String>,
    /// Choice of the CPU, or of a plan that needs less memory, after the preferred GPU failed, with
    /// the reason; `None` if there was no such GPU or no failure.
    pub fallback: Option<String>,
}

impl Decision {
    /// Timing run that the choice is based on, performed now or loaded from the store, if any.
    #[doc(hidden)]
    pub fn timing_run(&self) -> Option<&TimingRun> {
        match &self.basis {
            Basis::Checked { timing_run, .. }
            | Basis::Timed(timing_run)
            | Basis::Stored { timing_run, .. } => Some(timing_run),
            Basis::Predicted | Basis::Unpaid { .. } => None,
        }
    }

    /// The chosen plan as a candidate.
    pub fn chosen(&self) -> Option<&Candidate> {
        self.candidates.iter().find(|c| c.plan == self.plan)
    }
}

/// Basis of a choice.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Basis {
    /// Predictions.
    Predicted,
    /// Predictions: a timing run was requested, but the expected number of products does not
    /// amortise it.
    Unpaid {
        /// Expected saving of the timing run, in seconds.
        gain: f64,
        /// Predicted cost of the timing run, in seconds.
        cost: f64,
    },
    /// A check of the prediction with few products.
    Checked {
        /// The measurements.
        timing_run: TimingRun,
        /// Number of products.
        products: u64,
        /// Largest number of products.
        limit: u64,
    },
    /// A timing run.
    Timed(TimingRun),
    /// A stored result of an earlier timing run.
    Stored {
        /// The earlier timing run.
        timing_run: TimingRun,
        /// Age, in seconds.
        age: u64,
    },
}

/// Result of a timing run of the shortlist.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimingRun {
    /// The winner.
    pub winner: Plan,
    /// True if caches were cold.
    pub cold: bool,
    /// The shortlist in the order of predicted times. The first is the plan that would be chosen
    /// without the timing run.
    pub timed_plans: Vec<TimedPlan>,
    /// Number of groups that were timed together; more than one if the packed matrices do not fit
    /// into memory at the same time.
    pub groups: usize,
    /// Seconds of the whole timing run, without packing the winner.
    pub seconds: f64,
    /// Seconds of packing the other plans; part of `seconds`.
    pub packing: f64,
    /// Peak size of the packed matrices, in bytes.
    pub held_bytes: u64,
    /// True if more rounds would not change the result.
    pub decided: bool,
}

/// One plan of a timing run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimedPlan {
    /// The plan.
    pub plan: Plan,
    /// Seconds of packing and of the copy to the device.
    pub prepare: Option<f64>,
    /// Seconds of a product: the median of all rounds, or the fastest batch of a check.
    pub product: Option<f64>,
    /// Median absolute deviation over the median, of two rounds and more.
    pub spread: Option<f64>,
    /// Number of recorded rounds.
    pub rounds: usize,
    /// Outcome of the timing run for this plan.
    pub outcome: TimingOutcome,
}

/// Outcome of a timing run for one plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TimingOutcome {
    /// The winner.
    Won,
    /// Not distinguishable from the winner of its group.
    Tied {
        /// Time over that of the winner; a calibration adds the share of the preparation.
        ratio: f64,
    },
    /// Slower than the winner of its group.
    Slower {
        /// Time over that of the winner; a calibration adds the share of the preparation.
        ratio: f64,
        /// True if the plan was eliminated before the end of the timing run.
        early: bool,
    },
    /// The time limit was reached before a comparison was possible.
    Undecided,
    /// Packing or a product failed.
    Failed {
        /// The reason.
        reason: String,
    },
    /// More memory than a plan may take beside the fastest so far.
    NoRoom {
        /// Required bytes.
        needed: u64,
        /// Largest number of bytes.
        left: u64,
    },
    /// Packing would have exceeded the time limit.
    NoTime,
    /// The expected gain over the fastest measured plan does not amortise packing.
    Unpaid {
        /// Expected saving over the expected products, in seconds.
        gain: f64,
        /// Predicted cost, in seconds.
        cost: f64,
    },
}

impl Display for TimingOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Won => f.write_str("measured fastest"),
            Self::Tied { ratio } if (ratio - 1.0).abs() <= TIMING_BAND => {
                write!(f, "measured {ratio:.3} times as long: a tie")
            }
            Self::Tied { ratio } => write!(f, "measured {ratio:.2} times as long, not significant"),
            Self::Slower { ratio, early } => {
                write!(
                    f,
                    "measured {ratio:.2} times as long{}",
                    if *early { ", eliminated early" } else { "" }
                )
            }
            Self::Undecided => f.write_str("undecided: the times vary more than they differ"),
            // The reason may be that of a stored timing run.
            Self::Failed { reason } => write!(f, "failed: {}", printable(reason)),
            Self::NoRoom { needed, left } => {
                write!(f, "not timed: needs {needed} bytes, and may take {left}")
            }
            Self::NoTime => f.write_str("not timed: packing would exceed the time limit"),
            Self::Unpaid { .. } => {
                f.write_str("not packed: the expected products do not amortise it")
            }
        }
    }
}

impl TimingRun {
    /// The outcome, in words.
    pub fn outcome(&self) -> &'static str {
        if self.decided {
            "decided"
        } else {
            "undecided: the fastest differ by less than their times vary"
        }
    }

    /// Entry of a plan, if it is on the shortlist.
    pub fn timed_plan(&self, plan: &Plan) -> Option<&TimedPlan> {
        self.timed_plans.iter().find(|timed_plan| timed_plan.plan == *plan)
    }

    /// Sort key of a plan: its measured time, or infinity if it was not measured.
    pub(crate) fn rank(&self, plan: &Plan) -> f64 {
        self.timed_plan(plan).and_then(|timed_plan| timed_plan.product).unwrap_or(f64::INFINITY)
    }

    /// Number of plans whose products were timed.
    pub fn timed(&self) -> usize {
        self.timed_plans.iter().filter(|timed_plan| timed_plan.product.is_some()).count()
    }

    /// The plan that would be chosen without the timing run.
    pub fn predicted(&self) -> &Plan {
        self.timed_plans.first().map_or(&self.winner, |timed_plan| &timed_plan.plan)
    }

    /// Largest number of rounds of any plan.
    pub fn rounds(&self) -> usize {
        self.timed_plans.iter().map(|timed_plan| timed_plan.rounds).max().unwrap_or(0)
    }
}
