//! Generated matrices: fifteen classes that stand for the structures people have, one that can be given any of some
//! properties, and one of which a seed draws everything: the structures in which a choice of format may be wrong.
//!
//! A [`Spec`] names one, `NAME[,key=value...]`, and [generates](Spec::generate) it. [`list`] tells what there is,
//! [`suite`] is the benchmark suite at full size, and [`Spec::scaled_to`] cuts it to a wished number of entries.
//!
//! The same specification gives the same matrix, to the bit, on any number of threads; on another platform
//! `lognormal`, `webbase` and `random` may differ in a few row lengths where its mathematical functions round otherwise.

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
pub use registry::{Entry, Parameter, Shape};
pub use spec::Spec;
#[doc(hidden)]
pub use values::Values;

/// Every generator, in the order of the suite; those that are not in it come last.
#[doc(hidden)]
pub fn list() -> &'static [Entry] {
    &registry::ENTRIES
}

/// The benchmark suite: every generator that stands for a structure people have, at full size, with random values and seed 1.
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

/// Matrices of about `nnz` entries that spread what the cost of a product depends on: the length of rows, how uneven they are, and how
/// far from one another their columns lie.
#[doc(hidden)]
pub fn sweep(nnz: usize) -> impl Iterator<Item = Spec> {
    /// Rows of one entry up to such as many threads share.
    const LENGTHS: [usize; 7] = [1, 3, 8, 20, 50, 150, 600];
    /// Even, as uneven as meshes, as graphs, and worse.
    const SPREADS: [usize; 3] = [0, 50, 200];
    /// Columns in the nearest cache, in those behind it, anywhere.
    const REACHES: [usize; 3] = [100, 10_000, 1_000_000_000];
    let every = LENGTHS.into_iter().flat_map(move |length| {
        SPREADS.into_iter().flat_map(move |spread| REACHES.map(|reach| (length, spread, reach)))
    });
    // Where there are fewer columns than a row is long, it is another matrix.
    let wide = every.filter(move |&(length, _, reach)| length <= reach && length <= nnz / length);
    let entry = list().iter().find(|entry| entry.name == "sweep");
    entry.into_iter().flat_map(move |entry| {
        wide.clone().map(move |(length, spread, reach)| Spec {
            sizes: vec![(nnz / length).max(1), length, spread, reach],
            ..entry.spec()
        })
    })
}
