//! Choice of a plan: candidates, predicted times, calibration, and the decision with its reasons.

mod bounds;
mod builtin;
mod cache_state;
pub mod caches;
pub mod calibrate;
pub mod ceilings;
pub(crate) mod check;
pub mod correction;
pub mod cost;
pub mod decision;
pub mod explain;
pub mod features;
pub mod lookup;
pub(crate) mod plan_timer;
pub mod prediction;
mod predictor;
pub mod profile;
pub mod record;
mod ron_text;
pub mod scale;
pub mod select;
pub mod stopwatch;
pub mod store;
mod unmeasured;

#[doc(hidden)]
pub use plan_timer::{PackedPlan, PlanBench};
#[doc(hidden)]
pub use predictor::Predictor;
