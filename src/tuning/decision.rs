//! The choice of a plan as plain data: request, candidates, verdicts.

use super::cost::{Amounts, Prediction, Term};
use super::lookup::Origin;
use super::profile::{Fit, Profile};
use super::scale::Scale;
use crate::formats::{Plan, Traffic};
use crate::{Precision, ScalarKind};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::sync::Arc;

/// Predictions closer than this are ties: no prediction is better than that, and two runs must choose the same plan.
pub const TIE_BAND: f64 = 0.02;

/// Measured times closer than this are ties: a predicted plan is not changed for less.
pub(super) const RACE_BAND: f64 = 0.01;

/// What the choice depends on beside the matrix and the device.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Products over which preparation is amortised.
    pub expected_calls: u64,
    /// Bytes the packed matrix may take.
    pub memory_limit: u64,
    /// The scalar of the matrix.
    pub scalar: ScalarKind,
    /// Whether only plans whose bits repeat may be chosen.
    pub deterministic: bool,
    /// Whether values are to be replaced later: plans may then rely on nothing about them but the
    /// precision that they are rounded to.
    pub updatable: bool,
    /// What the values were rounded to.
    pub value_precision: Option<Precision>,
}

/// A plan that was considered.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The plan.
    pub plan: Plan,
    /// What its product reads and does.
    pub traffic: Traffic,
    /// The amounts the prediction is made from.
    pub amounts: Amounts,
    /// What it is predicted to take; none when the profile has no coefficients for its kernel.
    pub prediction: Option<Prediction>,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of a candidate.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// It was chosen.
    Chosen,
    /// As fast within [`TIE_BAND`], but behind in the fixed order.
    Tied,
    /// Slower: so many times the time of the chosen plan, mostly for this reason.
    Slower {
        /// Time over that of the chosen plan, preparation included.
        ratio: f64,
        /// Where most of the difference comes from.
        because: Cause,
    },
    /// It would take more memory than allowed.
    TooLarge {
        /// Bytes allowed.
        limit: u64,
    },
    /// Its products wait, and cannot be captured in a graph, or are launched in more pieces than they need: it has to be asked for.
    OnRequest,
    /// A lower bound of its product's time, from the row lengths, is so many times what plain CSR takes with
    /// equal work for all.
    OutOfBounds {
        /// The bound over the time of `csr(balanced)`.
        ratio: f64,
    },
    /// Its bits may differ from product to product, and were asked to repeat.
    NotDeterministic,
    /// The profile knows nothing of its kernel.
    Unknown,
    /// It took part in a race that it did not win.
    Raced(Outcome),
}

/// Where a loser loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// More of one term.
    Term(Term),
    /// A piece of work that cannot be shared.
    Imbalance,
    /// Preparation that so few products do not pay for.
    Preparation,
    /// More time for the same amounts.
    Kernel,
    /// Plans like it took longer than their amounts say.
    Experience,
}

impl Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Term(term) => write!(f, "more time for {}", term.describe()),
            Self::Imbalance => f.write_str("one long row or slice keeps a thread busy while the others wait"),
            Self::Kernel => f.write_str("its kernel takes longer for the same work"),
            Self::Experience => {
                f.write_str("on matrices like this its kernel took longer than its work says")
            }
            Self::Preparation => f.write_str("its preparation does not pay off in so few products"),
        }
    }
}

/// The choice and everything it was made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The chosen plan.
    pub plan: Plan,
    /// Whether the plan was given rather than chosen.
    pub fixed: bool,
    /// What the choice rests on: predictions, or a race.
    pub basis: Basis,
    /// What the decision store had to say; none when it was not asked.
    pub store: Option<String>,
    /// Every candidate, best first.
    pub candidates: Vec<Candidate>,
    /// What was asked for.
    pub request: Request,
    /// The profile that predicted, as it was measured.
    pub profile: Arc<Profile>,
    /// Where the profile is from.
    pub origin: Origin,
    /// How well the profile fits the device.
    pub fit: Fit,
    /// What its times were multiplied by.
    pub scale: Scale,
    /// What was wrong with profiles that would have come before it, a line each.
    pub warnings: Vec<String>,
    /// Why it is for the CPU and not for the GPU that would have been taken; none when there was no such GPU, or nothing went wrong.
    pub fallback: Option<String>,
}

impl Decision {
    /// The race that the choice rests on, run now or remembered.
    #[doc(hidden)]
    pub fn race(&self) -> Option<&Race> {
        match &self.basis {
            Basis::Raced(race) | Basis::Remembered { race, .. } => Some(race),
            Basis::Predicted | Basis::Unpaid { .. } => None,
        }
    }

    /// The chosen plan as a candidate.
    pub fn chosen(&self) -> Option<&Candidate> {
        self.candidates.iter().find(|c| c.plan == self.plan)
    }
}

/// What a choice rests on.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Basis {
    /// Predictions.
    Predicted,
    /// Predictions: a race was asked for, but so few products would not pay for it.
    Unpaid {
        /// Seconds that the race could be expected to save.
        gain: f64,
        /// Seconds that it was predicted to take.
        cost: f64,
    },
    /// A race.
    Raced(Race),
    /// A race that was run before.
    Remembered {
        /// That race.
        race: Race,
        /// Seconds since.
        age: u64,
    },
}

/// A race and its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Race {
    /// Who won.
    pub winner: Plan,
    /// Whether caches were cold.
    pub cold: bool,
    /// Who took part or was to, by predicted time; first the plan that would have been chosen without the race.
    pub entrants: Vec<Entrant>,
    /// Races it took: more than one when not all packed matrices fit into memory together.
    pub heats: usize,
    /// Seconds of everything but packing the winner.
    pub seconds: f64,
    /// Of them, seconds of packing the others.
    pub packing: f64,
    /// Bytes that packed matrices took at a time at most.
    pub held_bytes: u64,
    /// Whether more rounds would have changed nothing.
    pub decided: bool,
}

/// One plan in a race.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entrant {
    /// The plan.
    pub plan: Plan,
    /// Seconds it took to pack and to bring to the device.
    pub prepare: Option<f64>,
    /// Seconds of a product, the middle of all rounds.
    pub median: Option<f64>,
    /// Median absolute deviation from it, over it.
    pub spread: Option<f64>,
    /// Rounds it ran.
    pub rounds: usize,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a plan in a race.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Outcome {
    /// It won.
    Won,
    /// It was not told from the winner of its heat.
    Tied {
        /// Its time over the winner's, preparation included.
        ratio: f64,
    },
    /// It was slower than the winner of its heat.
    Slower {
        /// Its time over the winner's, preparation included.
        ratio: f64,
        /// Whether that was clear before the race was over.
        early: bool,
    },
    /// Time was up before anything could be told.
    Undecided,
    /// It could not be packed, or its products failed.
    Failed {
        /// Why.
        reason: String,
    },
    /// There was no memory for it beside the champion.
    NoRoom {
        /// Bytes it needs.
        needed: u64,
        /// Bytes that were left of those that packed matrices may take together.
        left: u64,
    },
    /// Packing it would have taken longer than there was time.
    NoTime,
}

impl Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Won => f.write_str("measured fastest"),
            Self::Tied { ratio } if (ratio - 1.0).abs() <= RACE_BAND => {
                write!(f, "measured {ratio:.3} times as long: a tie")
            }
            Self::Tied { ratio } => write!(f, "measured {ratio:.2} times as long, but not surely"),
            Self::Slower { ratio, early } => {
                write!(f, "measured {ratio:.2} times as long{}", if *early { ", out early" } else { "" })
            }
            Self::Undecided => f.write_str("time was up before it could be told apart"),
            Self::Failed { reason } => write!(f, "disqualified: {reason}"),
            Self::NoRoom { needed, left } => {
                write!(f, "not raced: needs {needed} bytes beside the others, which leave {left}")
            }
            Self::NoTime => f.write_str("not raced: packing it would have taken too long"),
        }
    }
}

impl Race {
    /// What became of a plan, if it was to take part.
    pub fn entrant(&self, plan: &Plan) -> Option<&Entrant> {
        self.entrants.iter().find(|entrant| entrant.plan == *plan)
    }

    /// Where a plan stands: its measured time, or behind all that were measured.
    pub(crate) fn rank(&self, plan: &Plan) -> f64 {
        self.entrant(plan).and_then(|entrant| entrant.median).unwrap_or(f64::INFINITY)
    }

    /// The plan that would have been chosen without the race.
    pub fn predicted(&self) -> &Plan {
        self.entrants.first().map_or(&self.winner, |entrant| &entrant.plan)
    }

    /// Rounds of the one that ran most.
    pub fn rounds(&self) -> usize {
        self.entrants.iter().map(|entrant| entrant.rounds).max().unwrap_or(0)
    }
}
