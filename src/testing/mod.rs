//! The oracle every kernel is compared with, and the small matrices of the literature. Not part of the stable API.

pub mod chapter;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod gpu;
#[cfg(feature = "cuda")]
pub mod kernels;
mod oracle;

#[cfg(test)]
pub(crate) use conformance::{check_format, format_suite};
pub use oracle::{Oracle, x_vector};
