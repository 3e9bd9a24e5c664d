//! One pass over columns and values, everything measured while they are in the cache.

use crate::encoding::ValueSet;
use crate::matrix::CsrView;
use crate::{ExactIn, Scalar};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Rows and entries together that one task takes: its columns and values fit a second-level cache of 256 KiB.
const TASK: usize = 1 << 14;

/// Entries that are counted in 32 bits, of which more are added at a time, before that would overflow.
const PIECE: usize = 1 << 20;

/// Rows that continue one another and are so many are measured by the first one; fewer are sooner measured with those around them.
const LONG_RUN: usize = 8;

/// What a task, or several, found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) lower: u32,
    pub(super) upper: u32,
    pub(super) profile: u64,
    pub(super) spans_below_8_bits: u64,
    pub(super) spans_below_16_bits: u64,
    pub(super) affine: u64,
    pub(super) runs: u64,
    /// Whether a column is smaller than the one before it in its row.
    pub(super) falls: bool,
    /// Whether a column equals the one before it in its row.
    pub(super) repeats: bool,
    pub(super) values: ValueSet,
    /// The precisions that hold all values.
    pub(super) exact_in: ExactIn,
    /// Counted once all tasks are done; 0 until then.
    pub(super) diagonals: u64,
}

/// What all tasks share.
struct Shared<'a, T> {
    a: CsrView<'a, T>,
    diagonals: Diagonals,
    /// Set when some task has met more values than are counted: then nobody needs to look at more.
    many_values: AtomicBool,
    /// Set when some task has met values that nothing narrower holds.
    wide_values: AtomicBool,
}

impl Scan {
    /// Rows whose columns are encoded together in sliced formats: a warp of them.
    pub(super) const SLICE_ROWS: usize = 32;

    /// Scans the whole matrix. All sums are of integers, so the result does not depend on who adds what.
    pub(super) fn of<T: Scalar>(a: CsrView<'_, T>) -> Self {
        let diagonals = Diagonals::new(a.nrows(), a.ncols());
        let shared =
            Shared { a, diagonals, many_values: AtomicBool::new(false), wide_values: AtomicBool::new(false) };
        let tasks = (a.nrows() + a.nnz()).div_ceil(TASK);
        let partial = (0..tasks).into_par_iter().fold(Self::default, |mut scan, task| {
            scan.rows(&shared, task_start(a, task)..task_start(a, task + 1));
            scan
        });
        let scan = partial.reduce_with(Self::merge).unwrap_or_default();
        Self { diagonals: shared.diagonals.count(), ..scan }
    }

    /// Scans `rows`, which begin with a slice.
    fn rows<T: Scalar>(&mut self, shared: &Shared<'_, T>, rows: Range<usize>) {
        let a = shared.a;
        let entries = a.row_ptr()[rows.start]..a.row_ptr()[rows.end];
        let mut reach = Reach::default();
        self.alike(a, rows.clone(), &shared.diagonals, |run, continued| {
            reach.run(a, run, continued, |columns| (columns[0], columns[columns.len() - 1]));
        });
        let pairs = Pairs::within(&a.col_idx()[entries.clone()]).without(reach.borders);
        if pairs.falls > 0 {
            // The ends of a row were not its extremes.
            reach = Reach::default();
            reach.run(a, rows.clone(), false, extremes);
        }
        self.add(pairs, &reach.of_rows(rows));
        let values = &a.values()[entries];
        if !shared.many_values.load(Relaxed) {
            self.values.add(values);
            shared.many_values.fetch_or(self.values.is_full(), Relaxed);
        }
        if shared.wide_values.load(Relaxed) {
            self.exact_in = ExactIn::NOTHING;
        } else {
            self.exact_in.add(values);
            shared.wide_values.fetch_or(self.exact_in.is_settled(T::KIND), Relaxed);
        }
    }

    /// Adds what neighbours in rows and the rows' reach have told.
    fn add(&mut self, pairs: Pairs, reach: &Reach) {
        self.falls |= pairs.falls > 0;
        self.repeats |= pairs.repeats > 0;
        self.runs += u64::from(pairs.runs);
        self.lower = self.lower.max(reach.lower);
        self.upper = self.upper.max(reach.upper);
        self.profile += reach.profile;
        self.spans_below_8_bits += reach.spans_below_8_bits;
        self.spans_below_16_bits += reach.spans_below_16_bits;
    }

    /// Counts the affine entries of `rows` and marks their diagonals; shows `each` the rows in order, cut where long runs of rows begin and end that
    /// all, but for the first one, continue the row above with every entry; with whether it is such a run.
    ///
    /// The rows of a run are compared all at once, each entry with the one that lies a row's length before it. Where all are affine,
    /// as inside a stencil, their diagonals are marked already.
    fn alike<T: Scalar>(
        &mut self,
        a: CsrView<'_, T>,
        rows: Range<usize>,
        diagonals: &Diagonals,
        mut each: impl FnMut(Range<usize>, bool),
    ) {
        let (row_ptr, col_idx) = (a.row_ptr(), a.col_idx());
        let mut row = rows.start;
        let mut above = if row > 0 { &col_idx[a.row_range(row - 1)] } else { &[] };
        let mut shown = row;
        while row < rows.end {
            let (start, len) = (row_ptr[row], a.row_len(row));
            let alike =
                row_ptr[row + 1..=rows.end].windows(2).take_while(|ends| ends[1] - ends[0] == len).count();
            let columns = &col_idx[start..row_ptr[row + 1 + alike]];
            let (head, rest) = columns.split_at(len);
            // The first one differs from the row above in its length already.
            diagonals.mark(row, head);
            let pieces = rest.chunks(PIECE).zip(columns.chunks(PIECE));
            let affine = pieces.map(|(columns, above)| continued(columns, above) as usize).sum::<usize>();
            if affine < rest.len() {
                for (row, columns) in (row + 1..).zip(rest.chunks_exact(len)) {
                    diagonals.mark(row, columns);
                }
            }
            self.affine += u64::from(continued(head, above)) + affine as u64;
            let run = row..row + 1 + alike;
            row = run.end;
            above = &columns[alike * len..];
            if run.len() >= LONG_RUN && affine == rest.len() {
                each(shown..run.start, false);
                shown = run.end;
                each(run, true);
            }
        }
        each(shown..rows.end, false);
    }

    /// Both together.
    fn merge(self, other: Self) -> Self {
        Self {
            lower: self.lower.max(other.lower),
            upper: self.upper.max(other.upper),
            profile: self.profile + other.profile,
            spans_below_8_bits: self.spans_below_8_bits + other.spans_below_8_bits,
            spans_below_16_bits: self.spans_below_16_bits + other.spans_below_16_bits,
            affine: self.affine + other.affine,
            runs: self.runs + other.runs,
            falls: self.falls | other.falls,
            repeats: self.repeats | other.repeats,
            values: self.values.merge(other.values),
            exact_in: self.exact_in.and(other.exact_in),
            diagonals: 0,
        }
    }
}

/// How many columns are one more than the one at the same place in `above`; there are fewer than 2³² of them.
#[inline]
fn continued(columns: &[u32], above: &[u32]) -> u32 {
    columns.iter().zip(above).map(|(&col, &over)| u32::from(col == over + 1)).sum()
}

/// Pairs of neighbouring entries, by how the second column compares with the first.
#[derive(Debug, Default, Clone, Copy)]
struct Pairs {
    falls: u32,
    repeats: u32,
    /// The second one is one more.
    runs: u32,
}

impl Pairs {
    /// All pairs in `columns`, those across the borders of rows too: many are compared at a time, and rows are often too
    /// short for a loop of their own.
    fn within(columns: &[u32]) -> Self {
        let mut pairs = Self::default();
        columns
            .iter()
            .zip(columns.get(1..).unwrap_or_default())
            .for_each(|(&before, &col)| pairs.add(Self::of(before, col), 1));
        pairs
    }

    fn of(before: u32, col: u32) -> Self {
        Self {
            falls: u32::from(col < before),
            repeats: u32::from(col == before),
            runs: u32::from(col == before.wrapping_add(1)),
        }
    }

    /// Adds `times` as many pairs as in `other`.
    fn add(&mut self, other: Self, times: u32) {
        self.falls += times * other.falls;
        self.repeats += times * other.repeats;
        self.runs += times * other.runs;
    }

    fn without(self, other: Self) -> Self {
        Self {
            falls: self.falls - other.falls,
            repeats: self.repeats - other.repeats,
            runs: self.runs - other.runs,
        }
    }
}

/// How far consecutive rows, of which the first one begins a slice, and their slices reach.
#[derive(Debug)]
struct Reach {
    lower: u32,
    upper: u32,
    profile: u64,
    spans_below_8_bits: u64,
    spans_below_16_bits: u64,
    /// The pairs of neighbouring entries that are in different rows.
    borders: Pairs,
    /// The last entry so far.
    before: Option<u32>,
    /// The least and the largest column in the slice that is not complete.
    slice: (u32, u32),
}

impl Default for Reach {
    fn default() -> Self {
        let (borders, slice) = (Pairs::default(), Self::EMPTY);
        Self {
            lower: 0,
            upper: 0,
            profile: 0,
            spans_below_8_bits: 0,
            spans_below_16_bits: 0,
            borders,
            before: None,
            slice,
        }
    }
}

impl Reach {
    /// The extremes of nothing.
    const EMPTY: (u32, u32) = (u32::MAX, 0);

    /// Adds the next rows. `extremes` gives the smallest and the largest column of a row that has entries. When `continued`,
    /// all of them have one length, and those behind the first one continue the row above.
    #[inline]
    fn run<T: Scalar>(
        &mut self,
        a: CsrView<'_, T>,
        rows: Range<usize>,
        continued: bool,
        extremes: impl Fn(&[u32]) -> (u32, u32),
    ) {
        let mut row = rows.start;
        while row < rows.end {
            let end = (row + 1).next_multiple_of(Scan::SLICE_ROWS).min(rows.end);
            let offsets = &a.row_ptr()[row..=end];
            if continued {
                self.rows(row, &a.col_idx()[offsets[0]..offsets[1]], (end - row) as u32, &extremes);
            } else {
                for (row, ends) in (row..).zip(offsets.windows(2)) {
                    self.rows(row, &a.col_idx()[ends[0]..ends[1]], 1, &extremes);
                }
            }
            row = end;
            if row.is_multiple_of(Scan::SLICE_ROWS) {
                self.end_slice();
            }
        }
    }

    /// Adds a row with the given columns and those after it that continue it, `count` rows of one slice in all. From one to the next
    /// every column rises by one as the row does: whatever lies between them stays the same.
    #[inline]
    fn rows(&mut self, row: usize, columns: &[u32], count: u32, extremes: impl Fn(&[u32]) -> (u32, u32)) {
        let (&[head, ..], &[.., tail]) = (columns, columns) else { return };
        let (min, max) = extremes(columns);
        let (row, rise) = (row as u32, count - 1);
        let below = row.saturating_sub(min);
        self.lower = self.lower.max(below);
        self.upper = self.upper.max(max.saturating_sub(row));
        self.profile += u64::from(below) * u64::from(count);
        self.slice = (self.slice.0.min(min), self.slice.1.max(max + rise));
        self.borders.add(Pairs::of(tail, head + 1), rise);
        if let Some(before) = self.before.replace(tail + rise) {
            self.borders.add(Pairs::of(before, head), 1);
        }
    }

    fn end_slice(&mut self) {
        let (first, last) = std::mem::replace(&mut self.slice, Self::EMPTY);
        let span = last.saturating_sub(first);
        self.spans_below_8_bits += u64::from(span < 1 << 8);
        self.spans_below_16_bits += u64::from(span < 1 << 16);
    }

    /// When all of `rows` are added.
    fn of_rows(mut self, rows: Range<usize>) -> Self {
        if !rows.len().is_multiple_of(Scan::SLICE_ROWS) {
            self.end_slice();
        }
        self
    }
}

/// Smallest and largest column of a row that has entries.
fn extremes(columns: &[u32]) -> (u32, u32) {
    columns.iter().fold((u32::MAX, 0), |(min, max), &col| (min.min(col), max.max(col)))
}

/// First row of a task: of the first slice at which as many rows and entries as earlier tasks take have gone by.
fn task_start<T: Scalar>(a: CsrView<'_, T>, task: usize) -> usize {
    let gone_by = |slice: usize| {
        let row = (slice * Scan::SLICE_ROWS).min(a.nrows());
        row + a.row_ptr()[row]
    };
    let (mut low, mut high) = (0, a.nrows().div_ceil(Scan::SLICE_ROWS));
    while low < high {
        let middle = low.midpoint(high);
        if gone_by(middle) < task * TASK { low = middle + 1 } else { high = middle }
    }
    (low * Scan::SLICE_ROWS).min(a.nrows())
}

/// One bit for each diagonal, set when it is occupied.
#[derive(Debug)]
struct Diagonals {
    words: Vec<AtomicU64>,
    /// Number of the main diagonal; the one through the lower left corner is number 1.
    main: usize,
}

impl Diagonals {
    fn new(nrows: usize, ncols: usize) -> Self {
        let words = (nrows + ncols).div_ceil(u64::BITS as usize);
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect(), main: nrows }
    }

    /// Marks the diagonals of a row with the given columns. Nearly always they are marked already, and reading that is
    /// cheap: only writing makes cores wait for one another.
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
