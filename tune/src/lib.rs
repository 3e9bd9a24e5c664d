//! Offline tuning of sparse matrix–vector products: measuring campaigns, fitted cost models and
//! their validation on held-out classes of matrices.
//!
//! | module | contents |
//! | --- | --- |
//! | [`collection`] | classes of matrices, generated matrices |
//! | [`campaign`], [`trial`] | timing runs of every plan of a matrix |
//! | [`offline`], [`measurements`] | measured times, in memory and in files of RON |
//! | [`fit`], [`correction`] | coefficients and corrections from measured times |
//! | [`refit`] | profiles from measured times, held-out regret |
//! | [`unfitted`] | regret on matrices that were not fitted to, learning curve |
//! | [`repeat`] | agreement of repeated timing runs |
//! | [`calibrating`] | calibration of every matrix, and a timing run of all its plans |
//! | [`calibrated`] | regret of calibrated operators |
//!
//! A campaign times every plan on a collection of matrices. [`refit::profile`] fits the
//! coefficients of the cost model to the times and gives a
//! [`Profile`](sparseop::tuning::profile::Profile), which the library reads in RON. Each class of
//! matrices is predicted by a fit to the other classes, so that the stated regret is of matrices
//! that the fit has not seen.
//!
//! ```
//! use sparseop::Device;
//! use sparseop::device::Ceilings;
//! use sparseop::matrix::gallery;
//! use sparseop::tuning::stopwatch::Policy;
//! use sparseop_tune::campaign::Campaign;
//! use sparseop_tune::refit::{self, Provenance};
//!
//! let policy = Policy { seconds: 0.02, ..Policy::of(&Device::Cpu) };
//! let campaign = Campaign { policy, ..Campaign::new(&Device::Cpu) };
//! let mut measured = Vec::new();
//! for class in ["poisson2d", "uniform"] {
//!     let a = class.parse::<gallery::Spec>()?.scaled_to(2_000).generate::<f64>()?;
//!     measured.push(campaign.measure(&a, class, class)?.measured);
//! }
//! let device = Device::Cpu.spec();
//! let provenance = Provenance {
//!     kernels: device.kernels().to_owned(),
//!     device,
//!     ceilings: Ceilings::default(),
//!     date: "2026-01-01".to_owned(),
//!     command: "an example".to_owned(),
//! };
//! let fitted = refit::profile(&measured, &provenance);
//! println!("regret {:.2}", fitted.profile.validation.judged().geometric_mean);
//! # Ok::<(), sparseop::Error>(())
//! ```
//!
//! The command `sparseop tune` of the package `sparseop-cli` is built on this package.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod caches;
pub mod calibrated;
pub mod calibrating;
pub mod campaign;
pub mod collection;
pub mod correction;
pub mod fit;
pub mod measurements;
pub mod offline;
pub mod refit;
pub mod repeat;
pub mod trial;
pub mod unfitted;
