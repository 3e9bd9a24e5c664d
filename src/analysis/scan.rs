//! One pass over columns and values, everything measured while they are in the cache.

use crate::Scalar;
use crate::encoding::ValueSet;
use crate::matrix::CsrView;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Rows and entries together that one task takes: its columns and values fit a second-level cache of 256 KiB.
const TASK: usize = 1 << 14;

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
    /// Counted once all tasks are done; 0 until then.
    pub(super) diagonals: u64,
}

/// What all tasks share.
struct Shared<'a, T> {
    a: CsrView<'a, T>,
    diagonals: Diagonals,
    /// Set when some task has met more values than are counted: then nobody needs to look at more.
    many_values: AtomicBool,
}

impl Scan {
    /// Rows whose columns are encoded together in sliced formats: a warp of them.
    pub(super) const SLICE_ROWS: usize = 32;

    /// Scans the whole matrix. All sums are of integers, so the result does not depend on who adds what.
    pub(super) fn of<T: Scalar>(a: CsrView<'_, T>) -> Self {
        let diagonals = Diagonals::new(a.nrows(), a.ncols());
        let shared = Shared { a, diagonals, many_values: AtomicBool::new(false) };
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
        let sorted = self.order(a, rows.clone());
        self.extents(a, rows.clone(), sorted);
        self.diagonals(a, rows, &shared.diagonals);
        if !shared.many_values.load(Relaxed) {
            self.values.add(&a.values()[entries]);
            shared.many_values.fetch_or(self.values.is_full(), Relaxed);
        }
    }

    /// Whether the columns of each of `rows` are in order, and how many follow the one before. Compares all neighbours at once, which is many at a time,
    /// and takes off those that are in different rows: rows are often too short for a loop of their own.
    fn order<T: Scalar>(&mut self, a: CsrView<'_, T>, rows: Range<usize>) -> bool {
        let (start, end) = (a.row_ptr()[rows.start], a.row_ptr()[rows.end]);
        let columns = &a.col_idx()[start..end];
        let (mut falls, mut repeats, mut runs) = (0u32, 0u32, 0u32);
        for (before, col) in columns.iter().zip(columns.get(1..).unwrap_or_default()) {
            falls += u32::from(col < before);
            repeats += u32::from(col == before);
            runs += u32::from(*col == before.wrapping_add(1));
        }
        let mut counted = start;
        for &border in &a.row_ptr()[rows] {
            // Where rows are empty, several borders lie between the same two entries.
            if border > counted && border < end {
                let (before, col) = (a.col_idx()[border - 1], a.col_idx()[border]);
                falls -= u32::from(col < before);
                repeats -= u32::from(col == before);
                runs -= u32::from(col == before.wrapping_add(1));
                counted = border;
            }
        }
        self.falls |= falls > 0;
        self.repeats |= repeats > 0;
        self.runs += u64::from(runs);
        falls == 0
    }

    /// How far `rows` and their slices reach.
    fn extents<T: Scalar>(&mut self, a: CsrView<'_, T>, rows: Range<usize>, sorted: bool) {
        for slice in rows.clone().step_by(Self::SLICE_ROWS) {
            let end = (slice + Self::SLICE_ROWS).min(rows.end);
            let (mut first, mut last) = (u32::MAX, 0);
            for (row, ends) in (slice as u32..).zip(a.row_ptr()[slice..=end].windows(2)) {
                if let columns @ [_, ..] = &a.col_idx()[ends[0]..ends[1]] {
                    let (min, max) = extremes(columns, sorted);
                    self.lower = self.lower.max(row.saturating_sub(min));
                    self.upper = self.upper.max(max.saturating_sub(row));
                    self.profile += u64::from(row.saturating_sub(min));
                    (first, last) = (first.min(min), last.max(max));
                }
            }
            let span = last.saturating_sub(first);
            self.spans_below_8_bits += u64::from(span < 1 << 8);
            self.spans_below_16_bits += u64::from(span < 1 << 16);
        }
    }

    /// Counts the affine entries of `rows` and marks their diagonals.
    ///
    /// Rows of one length in succession are compared all at once, each entry with the one that lies a row's length
    /// before it. Where all are affine, as inside a stencil, their diagonals are marked already.
    fn diagonals<T: Scalar>(&mut self, a: CsrView<'_, T>, rows: Range<usize>, diagonals: &Diagonals) {
        let (row_ptr, col_idx) = (a.row_ptr(), a.col_idx());
        let mut row = rows.start;
        let mut above = if row > 0 { &col_idx[a.row_range(row - 1)] } else { &[] };
        while row < rows.end {
            let (start, len) = (row_ptr[row], a.row_len(row));
            let alike =
                row_ptr[row + 1..=rows.end].windows(2).take_while(|ends| ends[1] - ends[0] == len).count();
            let columns = &col_idx[start..row_ptr[row + 1 + alike]];
            let (head, rest) = columns.split_at(len);
            // The first one differs from the row above in its length already.
            diagonals.mark(row, head);
            let affine = continued(rest, columns);
            if affine < rest.len() {
                for (row, columns) in (row + 1..).zip(rest.chunks_exact(len)) {
                    diagonals.mark(row, columns);
                }
            }
            self.affine += (continued(head, above) + affine) as u64;
            row += 1 + alike;
            above = &columns[alike * len..];
        }
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
            diagonals: 0,
        }
    }
}

/// How many columns are one more than the one at the same place in `above`.
#[inline]
fn continued(columns: &[u32], above: &[u32]) -> usize {
    columns.iter().zip(above).map(|(&col, &over)| usize::from(col == over + 1)).sum()
}

/// Smallest and largest column of a row that has entries.
#[inline]
fn extremes(columns: &[u32], sorted: bool) -> (u32, u32) {
    let ends = (columns[0], columns[columns.len() - 1]);
    if sorted { ends } else { columns.iter().fold(ends, |(min, max), &col| (min.min(col), max.max(col))) }
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
