//! Positions of the entries, for reports: no choice reads them.

use super::blocks::BlockFill;
use super::rows::ratio;
use crate::Scalar;
use crate::device::cpu::prepare_threads;
use crate::matrix::{CsrColumns, CsrView};
use crate::parallel;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Positions of the entries of a matrix. Rows and columns count from 0; shares go from 0 to 1 and
/// are 0 without entries.
///
/// ```
/// # use sparseop::{analysis::Pattern, matrix::CsrMatrix};
/// // 3 0 1
/// // 0 3 0
/// let a = CsrMatrix::try_new(2, 3, vec![0, 2, 3], vec![0, 2, 1], vec![3.0, 1.0, 3.0])?;
/// let pattern = Pattern::of(a.view());
/// assert_eq!((pattern.diagonals, pattern.bandwidth(), pattern.sorted), (2, 2, true));
/// # Ok::<(), sparseop::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pattern {
    /// Lower bandwidth: the largest `row - col` of an entry, 0 if none lies below the diagonal.
    pub lower_bandwidth: u32,
    /// Upper bandwidth: the largest `col - row` of an entry, 0 if none lies above the diagonal.
    pub upper_bandwidth: u32,
    /// Profile of the lower envelope: the sum over rows `i` of `i` minus the smallest column of the
    /// row, if that column is no larger than `i` (George & Liu, Computer Solution of Large Sparse
    /// Positive Definite Systems, 1981, 4.2).
    pub profile: u64,
    /// Share of the slices of 32 consecutive rows whose *span*, largest minus smallest column, is
    /// below 2⁸: their columns fit 8 bits, counted from the smallest. A slice without entries has
    /// no span and fits.
    pub span_below_8_bits: f64,
    /// Share of the slices whose span is below 2¹⁶.
    pub span_below_16_bits: f64,
    /// Occupied diagonals: distinct `col - row`.
    pub diagonals: u64,
    /// True if the columns of every row are in order, equal ones allowed.
    pub sorted: bool,
    /// True if two neighbouring entries of a row have the same column; in a sorted matrix, if any
    /// two entries do.
    pub duplicates: bool,
    /// Fill of small dense blocks.
    pub blocks: BlockFill,
}

impl Pattern {
    /// Measures `a`: reads its columns once, and a sample of them once more.
    pub fn of<T: Scalar>(a: CsrView<'_, T>) -> Self {
        prepare_threads();
        Self::of_columns(a.columns())
    }

    fn of_columns(a: CsrColumns<'_>) -> Self {
        let (scan, blocks) = parallel::join(|| Scan::of(a), || BlockFill::of(a));
        let share = |part: u64| ratio(part as f64, a.nrows().div_ceil(SLICE_ROWS) as f64);
        Self {
            lower_bandwidth: scan.lower,
            upper_bandwidth: scan.upper,
            profile: scan.profile,
            span_below_8_bits: share(scan.spans_below_8_bits),
            span_below_16_bits: share(scan.spans_below_16_bits),
            diagonals: scan.diagonals,
            sorted: !scan.falls,
            duplicates: scan.repeats,
            blocks,
        }
    }

    /// Bandwidth: the largest `|col - row|` of an entry.
    pub fn bandwidth(&self) -> u32 {
        self.lower_bandwidth.max(self.upper_bandwidth)
    }
}

/// Rows of a slice: a warp of rows, whose columns are encoded together in sliced formats.
const SLICE_ROWS: usize = 32;

/// Minimum number of slices per task.
const SLICES_PER_TASK: usize = 32;

/// Measurements of some slices, or all.
#[derive(Debug, Default)]
struct Scan {
    lower: u32,
    upper: u32,
    profile: u64,
    spans_below_8_bits: u64,
    spans_below_16_bits: u64,
    /// True if a column is smaller than the previous one in its row.
    falls: bool,
    /// True if a column equals the previous one in its row.
    repeats: bool,
    /// Number of occupied diagonals; 0 until all slices are scanned.
    diagonals: u64,
}

impl Scan {
    /// Scans the whole matrix. All sums are of integers, so the result does not depend on the order
    /// of the additions.
    fn of(a: CsrColumns<'_>) -> Self {
        let diagonals = OccupiedDiagonals::new(a.nrows(), a.ncols());
        let add = |scan: &mut Self, slices: Range<usize>| {
            for slice in slices {
                let rows = slice * SLICE_ROWS..((slice + 1) * SLICE_ROWS).min(a.nrows());
                scan.slice(a, rows, &diagonals);
            }
        };
        let slices = a.nrows().div_ceil(SLICE_ROWS);
        let scan = parallel::fold(slices, SLICES_PER_TASK, Self::default, add, Self::merge);
        Self { diagonals: diagonals.count(), ..scan }
    }

    fn slice(&mut self, a: CsrColumns<'_>, rows: Range<usize>, diagonals: &OccupiedDiagonals) {
        let (mut first, mut last) = (u32::MAX, 0);
        for row in rows {
            let columns = a.row(row);
            if columns.is_empty() {
                continue;
            }
            diagonals.mark(row, columns);
            let (min, max) =
                columns.iter().fold((u32::MAX, 0), |(a, b), &col| (a.min(col), b.max(col)));
            (first, last) = (first.min(min), last.max(max));
            let below = (row as u32).saturating_sub(min);
            self.lower = self.lower.max(below);
            self.upper = self.upper.max(max.saturating_sub(row as u32));
            self.profile += u64::from(below);
            for pair in columns.windows(2) {
                self.falls |= pair[1] < pair[0];
                self.repeats |= pair[1] == pair[0];
            }
        }
        let span = last.saturating_sub(first);
        self.spans_below_8_bits += u64::from(span < 1 << 8);
        self.spans_below_16_bits += u64::from(span < 1 << 16);
    }

    /// Combines both measurements.
    fn merge(self, other: Self) -> Self {
        Self {
            lower: self.lower.max(other.lower),
            upper: self.upper.max(other.upper),
            profile: self.profile + other.profile,
            spans_below_8_bits: self.spans_below_8_bits + other.spans_below_8_bits,
            spans_below_16_bits: self.spans_below_16_bits + other.spans_below_16_bits,
            falls: self.falls | other.falls,
            repeats: self.repeats | other.repeats,
            diagonals: 0,
        }
    }
}

/// Bit set of the occupied diagonals.
#[derive(Debug)]
struct OccupiedDiagonals {
    words: Vec<AtomicU64>,
    /// Number of the main diagonal; the one through the lower left corner is number 1.
    main: usize,
}

impl OccupiedDiagonals {
    fn new(nrows: usize, ncols: usize) -> Self {
        let words = (nrows + ncols).div_ceil(u64::BITS as usize);
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect(), main: nrows }
    }

    /// Marks the diagonals of a row with the given columns. Nearly always they are marked already.
    /// Reading a mark is cheap: only writing makes cores wait for one another.
    fn mark(&self, row: usize, columns: &[u32]) {
        let first = self.main - row;
        for &col in columns {
            let number = first + col as usize;
            let word = &self.words[number / u64::BITS as usize];
            let bit = 1 << (number % u64::BITS as usize);
            if word.load(Relaxed) & bit == 0 {
                word.fetch_or(bit, Relaxed);
            }
        }
    }

    fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum()
    }
}
