//! Generated matrices: fifteen classes that represent structures of practical problems, two with
//! configurable properties, and one whose structure is drawn from a seed: structures for which a
//! choice of format may be wrong.
//!
//! A [`Spec`] names one, `NAME[,key=value...]`, and [generates](Spec::generate) it. [`list`] lists
//! them, [`suite`] is the benchmark suite at full size, and [`Spec::scaled_to`] scales a matrix to
//! a given number of entries.
//!
//! The same specification gives the same matrix, to the bit, on any number of threads; on another
//! platform `lognormal`, `webbase`, `artificial` and `random` may differ in a few row lengths if
//! its mathematical functions round differently.

mod artificial;
mod columns;
mod irregular;
mod lengths;
mod pattern;
mod random;
mod registry;
mod regular;
mod spec;
mod structure;
#[cfg(test)]
mod tests;
mod values;

#[doc(hidden)]
pub use registry::{Entry, MatrixSize, Parameter};
pub use spec::Spec;
#[doc(hidden)]
pub use values::Values;

/// All generators, in the order of the suite; those that are not in it come last.
#[doc(hidden)]
pub fn list() -> &'static [Entry] {
    &registry::ENTRIES
}

/// Benchmark suite: every generator that represents a structure of practical problems, at full
/// size, with random values and seed 1.
///
/// ```
/// # use sparseop::matrix::gallery;
/// for spec in gallery::suite().map(|spec| spec.scaled_to(5_000)) {
///     assert!(spec.generate::<f64>()?.nnz() < 50_000, "{spec}");
/// }
/// # Ok::<(), sparseop::Error>(())
/// ```
#[doc(hidden)]
pub fn suite() -> impl Iterator<Item = Spec> {
    list().iter().filter(|entry| entry.in_suite).map(Entry::spec)
}

/// Matrices of about `nnz` entries that vary the properties on which the cost of an SpMV depends:
/// the length of rows, its coefficient of variation, and the distance of their columns.
#[doc(hidden)]
pub fn sweep(nnz: usize) -> impl Iterator<Item = Spec> {
    /// Row lengths, from one entry to rows that many threads share.
    const LENGTHS: [usize; 7] = [1, 3, 8, 20, 50, 150, 600];
    /// Coefficients of variation in percent: none, that of meshes, that of graphs and more.
    const SPREADS: [usize; 3] = [0, 50, 200];
    /// Reach of the columns: within the nearest cache, within those behind it, anywhere.
    const REACHES: [usize; 3] = [100, 10_000, 1_000_000_000];
    let every = LENGTHS.into_iter().flat_map(move |length| {
        SPREADS.into_iter().flat_map(move |spread| REACHES.map(|reach| (length, spread, reach)))
    });
    // With fewer columns than the length of a row it would be another matrix.
    let wide = every.filter(move |&(length, _, reach)| length <= reach && length <= nnz / length);
    let entry = list().iter().find(|entry| entry.name == "sweep");
    entry.into_iter().flat_map(move |entry| {
        wide.clone().map(move |(length, spread, reach)| Spec {
            sizes: vec![(nnz / length).max(1), length, spread, reach],
            ..entry.spec()
        })
    })
}
