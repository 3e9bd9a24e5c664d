//! What a matrix looks like: a pass over its row offsets, as much of its values as is enough, and samples of its columns. Everything that later
//! chooses a format reads an [`Analysis`] and never the matrix.
//! What no choice reads is measured only when asked for: [`Pattern`], [`Fingerprint`] and [`Symmetry`].

mod blocking;
mod blocks;
mod continued;
mod distinct;
mod fingerprint;
mod histogram;
mod locality;
mod packing;
mod pattern;
mod rows;
mod slices;
mod structure;
mod symmetry;

pub use crate::encoding::SliceSizes;
pub use blocking::{Blocking, Blocks};
pub(crate) use blocking::{Panel, Rows};
pub use blocks::BlockFill;
use continued::Continued;
pub use distinct::Distinct;
pub use fingerprint::{Fingerprint, ParseFingerprintError};
pub use histogram::{Bin, Histogram};
pub use locality::Reuse;
pub use packing::Packability;
pub use pattern::Pattern;
pub use rows::{Quantiles, RowStats, TAIL_MULTIPLES};
pub(crate) use slices::SliceSums;
use slices::Slices;
pub use structure::Structure;
use structure::Values;
pub use symmetry::Symmetry;

use crate::Scalar;
use crate::device::cpu::run_all;
use crate::matrix::CsrView;
use crate::trace::span;

/// Rows and entries below which an analysis is a few tasks of one thread each: a pool of threads takes some 100 µs to wake and to wait for.
const SHARED: usize = 1 << 19;

/// How many pieces of work a thread takes together at least, in a matrix of so many rows or entries; `least` where they are shared.
fn together(size: usize, least: usize) -> usize {
    if size < SHARED { usize::MAX } else { least }
}

/// The measured facts of one matrix: the same on any number of threads. They cost about as much as a few products.
///
/// ```
/// # use sparseop::{analysis::Analysis, matrix::CsrMatrix};
/// // 3 0 1
/// // 0 3 0
/// let a = CsrMatrix::try_new(2, 3, vec![0, 2, 3], vec![0, 2, 1], vec![3.0, 1.0, 3.0])?;
/// let analysis = Analysis::of(a.view());
/// assert_eq!(analysis.row_lengths, [2, 1]);
/// assert_eq!((analysis.rows.max, analysis.rows.mean), (2, 1.5));
/// assert_eq!((analysis.structure.all_ones, analysis.structure.affine), (false, 1.0 / 3.0));
/// # Ok::<(), sparseop::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Analysis {
    /// Statistics of the row lengths.
    pub rows: RowStats,
    /// Length of every row, in row order.
    pub row_lengths: Vec<u32>,
    /// What slices of sorted rows take.
    pub(crate) slices: Slices,
    /// How the entries follow one another, and what they hold.
    pub structure: Structure,
    /// What packed slices take.
    pub packing: Packability,
    /// What `x` in blocks gives; none where gathers hardly miss the nearest cache.
    pub blocking: Option<Blocking>,
}

impl Analysis {
    /// Measures `a`.
    pub fn of<T: Scalar>(a: CsrView<'_, T>) -> Self {
        T::analyze(a)
    }

    pub(crate) fn of_impl<T: Scalar>(a: CsrView<'_, T>) -> Self {
        let _span = span!(DEBUG, "analyze", rows = a.nrows(), cols = a.ncols(), nnz = a.nnz());
        if a.nnz().max(a.nrows()) < SHARED {
            Self::measured(a)
        } else {
            // In a pool, whose threads share the tasks on.
            rayon::scope(|_| Self::measured(a))
        }
    }

    fn measured<T: Scalar>(a: CsrView<'_, T>) -> Self {
        let (mut rows, mut row_lengths, mut packing, mut slices) = Default::default();
        let (mut reuse, mut continued, mut values) = Default::default();
        // Of two threads each begins with one half, the longer task first, and goes on with what is left of the other.
        run_all([
            &mut || {
                let pass = rows::pass(a.row_ptr());
                rows = RowStats::from_histogram(a.ncols(), pass.histogram, pass.changes);
                (row_lengths, slices) = (pass.row_lengths, pass.slices);
                packing = Packability::of(a, &rows);
            },
            &mut || continued = Continued::of(a),
            &mut || reuse = Reuse::of(a.ncols(), a.col_idx()),
            &mut || values = Values::of(a.values()),
        ]);
        let structure = Structure::new(continued, values, reuse);
        let blocking = Blocking::of(a, &rows, &structure);
        Self { rows, row_lengths, slices, structure, packing, blocking }
    }

    /// The same of a matrix with this pattern and the values of `a`.
    pub(crate) fn with_values_of<T: Scalar>(&self, a: CsrView<'_, T>) -> Self {
        let structure = self.structure.with_values(a.values());
        Self { structure, ..self.clone() }
    }
}

#[cfg(test)]
mod tests;
