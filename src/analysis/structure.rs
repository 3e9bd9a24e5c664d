//! Where the entries lie and what they hold.

use super::blocks::BlockFill;
use super::distinct::Distinct;
use super::locality::Reuse;
use super::rows::ratio;
use super::scan::Scan;
use crate::encoding::ValueSet;
use crate::matrix::CsrView;
use crate::{ExactIn, Scalar};
use serde::{Deserialize, Serialize};

/// Where the entries of a matrix lie and what they hold. Rows and columns count from 0; shares go from 0 to 1 and are
/// 0 where there is nothing to share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Structure {
    /// Lower bandwidth: the largest `row - col` of an entry, 0 when none lies below the diagonal.
    pub lower_bandwidth: u32,
    /// Upper bandwidth: the largest `col - row` of an entry, 0 when none lies above the diagonal.
    pub upper_bandwidth: u32,
    /// Profile of the lower envelope: the sum over rows `i` of `i` minus the smallest column of the row, where that
    /// is no larger than `i` (George & Liu, Computer Solution of Large Sparse Positive Definite Systems, 1981, 4.2).
    pub profile: u64,
    /// Share of the slices of 32 consecutive rows whose *span*, largest minus smallest column, is below 2⁸: their
    /// columns fit 8 bits, counted from the smallest. A slice without entries has no span and fits.
    pub span_below_8_bits: f64,
    /// The same for spans below 2¹⁶.
    pub span_below_16_bits: f64,
    /// Occupied diagonals: distinct `col - row`.
    pub diagonals: u64,
    /// Share of the entries that continue the row above: entry `j` of row `r` lies one column further than entry `j`
    /// of row `r - 1`.
    pub affine: f64,
    /// Share of the entries whose column continues the one before them in their row by one: dense blocks and bands.
    pub runs: f64,
    /// Whether the columns of every row are in order, equal ones allowed.
    pub sorted: bool,
    /// Whether two neighbouring entries of a row share their column; in a sorted matrix, whether any two entries do.
    pub duplicates: bool,
    /// How many distinct values there are.
    pub distinct_values: Distinct,
    /// Whether every value is 1 and there is one.
    pub all_ones: bool,
    /// Which precisions hold all values exactly, of those with fewer bytes than the matrix's own type.
    pub exact_in: ExactIn,
    /// How well small dense blocks cover the entries.
    pub blocks: BlockFill,
    /// How soon a product comes back to the same part of `x`.
    pub reuse: Reuse,
}

impl Structure {
    /// Measures `a`: reads columns and values once, and a sample of the columns twice more.
    pub fn of<T: Scalar>(a: CsrView<'_, T>) -> Self {
        let samples = || rayon::join(|| Reuse::of(a.ncols(), a.col_idx()), || BlockFill::of(a));
        // In a small matrix the reuse is one task, and the longest: it begins at once.
        let ((reuse, blocks), scan) = rayon::join(samples, || Scan::of(a));
        let share = |part: u64, whole: usize| ratio(part as f64, whole as f64);
        let nslices = a.nrows().div_ceil(Scan::SLICE_ROWS);
        Self {
            lower_bandwidth: scan.lower,
            upper_bandwidth: scan.upper,
            profile: scan.profile,
            span_below_8_bits: share(scan.spans_below_8_bits, nslices),
            span_below_16_bits: share(scan.spans_below_16_bits, nslices),
            diagonals: scan.diagonals,
            affine: share(scan.affine, a.nnz()),
            runs: share(scan.runs, a.nnz()),
            sorted: !scan.falls,
            duplicates: scan.repeats,
            distinct_values: (&scan.values).into(),
            all_ones: scan.values.is_one::<T>(),
            exact_in: scan.exact_in.below(T::KIND),
            blocks,
            reuse,
        }
    }

    /// The same with what other values tell.
    pub(super) fn with_values<T: Scalar>(&self, values: &[T]) -> Self {
        let (mut set, mut exact_in) = (ValueSet::default(), ExactIn::default());
        set.add(values);
        exact_in.add(values);
        let (distinct_values, all_ones) = ((&set).into(), set.is_one::<T>());
        Self { distinct_values, all_ones, exact_in: exact_in.below(T::KIND), ..self.clone() }
    }

    /// Bandwidth: the largest `|col - row|` of an entry.
    pub fn bandwidth(&self) -> u32 {
        self.lower_bandwidth.max(self.upper_bandwidth)
    }
}
