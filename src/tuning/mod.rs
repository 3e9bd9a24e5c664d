//! How a plan is chosen: candidates, predicted times, and the decision with its reasons.

pub(crate) mod arena;
mod builtin;
pub mod calibrate;
#[cfg(any(test, feature = "testing"))]
pub mod calibrated;
pub mod ceilings;
pub mod correction;
pub mod cost;
pub mod explain;
pub mod facts;
pub mod fit;
pub mod lookup;
#[cfg(any(test, feature = "testing"))]
pub mod offline;
mod predictor;
pub mod profile;
pub mod record;
#[cfg(any(test, feature = "testing"))]
pub mod refit;
#[cfg(any(test, feature = "testing"))]
pub mod repeat;
pub mod scale;
mod schema1;
pub mod select;
pub mod stopwatch;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod trial;
