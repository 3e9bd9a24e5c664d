//! Generated matrices: fifteen classes that stand for the structures people have.
//!
//! A [`Spec`] names one, `NAME[,key=value...]`, and [generates](Spec::generate) it. [`list`] tells what there is,
//! [`suite`] is the benchmark suite at full size, and [`Spec::scaled_to`] cuts it to a wished number of entries.
//!
//! The same specification gives the same matrix, to the bit, on any number of threads; on another platform
//! `lognormal` and `webbase` may differ in a few row lengths where its mathematical functions round otherwise.

mod irregular;
mod pattern;
mod random;
mod registry;
mod regular;
mod spec;
#[cfg(test)]
mod tests;
mod values;

pub use registry::{Entry, Parameter, Shape};
pub use spec::Spec;
pub use values::Values;

/// Every generator, in the order of the suite.
pub fn list() -> &'static [Entry] {
    &registry::ENTRIES
}

/// The benchmark suite: every generator at full size, with random values and seed 1.
///
/// ```
/// # use sparseop::matrix::gallery;
/// for spec in gallery::suite().map(|spec| spec.scaled_to(5_000)) {
///     assert!(spec.generate::<f64>()?.nnz() < 50_000, "{spec}");
/// }
/// # Ok::<(), sparseop::Error>(())
/// ```
pub fn suite() -> impl Iterator<Item = Spec> {
    list().iter().map(Entry::spec)
}
