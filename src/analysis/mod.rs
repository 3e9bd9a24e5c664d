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
pub use symmetry::Symmetry;

use crate::Scalar;
use crate::matrix::CsrView;
use crate::trace::span;

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
        let _span = span!(DEBUG, "analyze", rows = a.nrows(), cols = a.ncols(), nnz = a.nnz());
        let rows = || {
            let offsets = rows::pass(a.row_ptr());
            let changes = rows::changes(&offsets.row_lengths);
            let rows = RowStats::from_histogram(a.ncols(), offsets.histogram, changes);
            let (packing, slices) =
                rayon::join(|| Packability::of(a, &rows), || Slices::of(&offsets.row_lengths));
            (rows, offsets.row_lengths, packing, slices)
        };
        let (structure, (rows, row_lengths, packing, slices)) = rayon::join(|| Structure::of(a), rows);
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
