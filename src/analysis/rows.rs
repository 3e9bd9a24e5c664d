//! Statistics of the row lengths.
//!
//! All statistics follow exactly from the [`Histogram`], which has as many classes as there are
//! distinct lengths: a few dozen, seldom thousands. `statrs` computes the same moments by Welford's
//! update, which divides for every row and runs on one core: with short rows that takes as long as
//! an SpMV, ten times the histogram. It is therefore only the oracle of the tests.

use super::Histogram;
use super::histogram::Counts;
use super::slices::{LARGEST_WINDOW, SortedSlices};
use super::task_size;
use crate::device::cpu::prepare_threads;
use crate::parallel::{self, SparePool};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};

/// Largest windows per parallel task.
const WINDOWS_PER_TASK: usize = 4;

/// Multiples of the mean row length for which [`RowStats::tail`] is measured.
pub const TAIL_MULTIPLES: [u32; 4] = [2, 4, 8, 16];

/// Statistics of the row lengths of a matrix. With `l` the length of a row and `n` the number of
/// rows, all moments are those of the population (divided by `n`, not `n - 1`, since all rows are
/// counted). Undefined quantities are zero, as without rows or without entries.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RowStats {
    /// Number of rows.
    pub nrows: usize,
    /// Number of columns.
    pub ncols: usize,
    /// Number of stored entries.
    pub nnz: u64,
    /// Rows without entries.
    pub empty_rows: u64,
    /// Length of the shortest row.
    pub min: u32,
    /// Length of the longest row.
    pub max: u32,
    /// Mean number of entries per row: `nnz / n`.
    pub mean: f64,
    /// Variance `Σ (l - mean)² / n`, entries squared.
    pub variance: f64,
    /// Standard deviation: the square root of the variance, entries.
    pub std_dev: f64,
    /// Coefficient of variation: `std_dev / mean`.
    pub cv: f64,
    /// Skewness `Σ (l - mean)³ / (n · std_dev³)`: positive if few rows are much longer than the
    /// others.
    pub skewness: f64,
    /// Quantiles of the row lengths.
    pub quantiles: Quantiles,
    /// Gini coefficient `Σ |lᵢ - lⱼ| / (2 n² mean)`: 0 if all rows have the same length,
    /// towards 1 if one row has all entries.
    pub gini: f64,
    /// Share of the entries that lie in rows longer than 2, 4, 8 and 16 times the mean
    /// ([`TAIL_MULTIPLES`]).
    pub tail: [f64; TAIL_MULTIPLES.len()],
    /// The fewest rows that hold half of the entries: the number of longest rows that do.
    pub half_rows: u64,
    /// Rows of another length than the previous row: the number of times that a loop over rows
    /// mispredicts its end.
    pub changes: u64,
    /// Row-length histogram.
    pub histogram: Histogram,
}

/// Quantiles of the row lengths, each the smallest length not exceeded by at least this share of
/// the rows ([`Histogram::quantile`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantiles {
    /// 50 %, the (lower) median.
    pub p50: u32,
    /// 75 %.
    pub p75: u32,
    /// 90 %.
    pub p90: u32,
    /// 99 %.
    pub p99: u32,
    /// 99.9 %.
    pub p999: u32,
}

impl Display for RowStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nrows, ncols, nnz, min, max, mean, cv, .. } = self;
        write!(f, "{nrows} x {ncols}, {nnz} entries; ")?;
        write!(f, "row lengths {min} to {max}, mean {mean:.1}, CV {cv:.2}")
    }
}

impl RowStats {
    /// True if all rows have the same length.
    pub(crate) fn is_even(&self) -> bool {
        self.min == self.max
    }

    /// Measures rows of the given lengths in a matrix with `ncols` columns.
    #[doc(hidden)]
    pub fn of(ncols: usize, row_lengths: &[u32]) -> Self {
        prepare_threads();
        Self::from_histogram(ncols, Histogram::of(row_lengths), changes(row_lengths))
    }

    /// Computes the statistics of a matrix of `ncols` columns with the given row-length histogram.
    #[doc(hidden)]
    pub fn from_histogram(ncols: usize, histogram: Histogram, changes: u64) -> Self {
        let (nrows, nnz) = (histogram.nrows(), histogram.entries_beyond(0));
        let classes = histogram.classes();
        let mean = ratio(nnz as f64, nrows as f64);
        let moment = |power| {
            let sum: f64 = classes
                .iter()
                .map(|&(l, rows)| (f64::from(l) - mean).powi(power) * rows as f64)
                .sum();
            ratio(sum, nrows as f64)
        };
        let variance = moment(2);
        let std_dev = variance.sqrt();
        Self {
            nrows: nrows as usize,
            ncols,
            nnz,
            empty_rows: nrows - histogram.rows_longer(0),
            min: classes.first().map_or(0, |c| c.0),
            max: classes.last().map_or(0, |c| c.0),
            mean,
            variance,
            std_dev,
            cv: ratio(std_dev, mean),
            skewness: ratio(moment(3), variance * std_dev),
            quantiles: Quantiles::of(&histogram),
            gini: gini(classes, nrows, nnz),
            tail: TAIL_MULTIPLES.map(|multiple| tail(classes, nrows, nnz, multiple)),
            half_rows: half_rows(classes, nnz),
            changes,
            histogram,
        }
    }
}

impl Quantiles {
    fn of(histogram: &Histogram) -> Self {
        let [p50, p75, p90, p99, p999] =
            [0.5, 0.75, 0.9, 0.99, 0.999].map(|q| histogram.quantile(q));
        Self { p50, p75, p90, p99, p999 }
    }
}

/// `a / b`, or 0 if that is undefined.
pub(crate) fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}

/// Gini coefficient. With the rows in ascending order of length,
/// `Σ (2 i - n - 1) lᵢ / (n · nnz)`, i from 1. A class of `c` rows after `r` shorter ones adds
/// `l · c · (2 r + c - n)`; integers, because the terms cancel.
fn gini(classes: &[(u32, u64)], nrows: u64, nnz: u64) -> f64 {
    let (mut shorter, mut sum) = (0i128, 0i128);
    for &(len, rows) in classes {
        let rows = i128::from(rows);
        sum += i128::from(len) * rows * (2 * shorter + rows - i128::from(nrows));
        shorter += rows;
    }
    ratio(sum as f64, nrows as f64 * nnz as f64)
}

/// Share of the entries in rows longer than `multiple · nnz / nrows`, compared in integers.
fn tail(classes: &[(u32, u64)], nrows: u64, nnz: u64, multiple: u32) -> f64 {
    let short =
        |len: u32| u128::from(len) * u128::from(nrows) <= u128::from(multiple) * u128::from(nnz);
    let long = &classes[classes.partition_point(|c| short(c.0))..];
    ratio(long.iter().map(|&(len, rows)| u64::from(len) * rows).sum::<u64>() as f64, nnz as f64)
}

/// Number of longest rows that hold half of the entries, rounded up.
fn half_rows(classes: &[(u32, u64)], nnz: u64) -> u64 {
    let (mut taken, mut missing) = (0, nnz.div_ceil(2));
    for &(len, rows) in classes.iter().rev().take_while(|c| c.0 > 0) {
        let needed = missing.div_ceil(u64::from(len)).min(rows);
        taken += needed;
        missing = missing.saturating_sub(needed * u64::from(len));
    }
    taken
}

/// Number of rows of another length than the previous row.
fn changes(row_lengths: &[u32]) -> u64 {
    let after = row_lengths.get(1..).unwrap_or_default();
    // There are fewer than 2³² rows. A counter of the width of the compared numbers lets the loop
    // vectorise.
    let changes: u32 = row_lengths.iter().zip(after).map(|(a, b)| u32::from(a != b)).sum();
    changes.into()
}

/// Result of one pass over the row offsets.
pub(super) struct Pass {
    pub(super) row_lengths: Vec<u32>,
    pub(super) histogram: Histogram,
    pub(super) changes: u64,
    pub(super) slices: SortedSlices,
}

/// Reads the offsets once: the length of every row, the histogram, the number of changes, and the
/// longest rows of slices of sorted rows.
pub(super) fn pass(row_ptr: &[usize]) -> Pass {
    let mut row_lengths = vec![0; row_ptr.len() - 1];
    let size = row_lengths.len().max(row_ptr[row_lengths.len()]);
    let rows = LARGEST_WINDOW
        .saturating_mul(task_size(size, WINDOWS_PER_TASK))
        .min(row_lengths.len().max(1));
    let spare = SparePool::new(TaskTotals::default);
    let add = |totals: &mut TaskTotals, start: usize, lengths: &mut [u32]| {
        let offsets = &row_ptr[start..=start + lengths.len()];
        for (length, ends) in lengths.iter_mut().zip(offsets.windows(2)) {
            *length = (ends[1] - ends[0]) as u32;
        }
        let before = start.checked_sub(1).map(|row| (row_ptr[start] - row_ptr[row]) as u32);
        totals.changes +=
            changes(lengths) + u64::from(before.is_some_and(|before| before != lengths[0]));
        totals.slices.add(lengths, &mut totals.counts);
    };
    parallel::for_each_item(row_lengths.chunks_mut(rows).enumerate(), |(i, lengths)| {
        let tasks = lengths.chunks_mut(LARGEST_WINDOW).enumerate();
        spare.with(|totals| {
            tasks.for_each(|(t, lengths)| add(totals, i * rows + t * LARGEST_WINDOW, lengths))
        });
    });
    let TaskTotals { changes, counts, slices } =
        spare.merged(TaskTotals::merge).unwrap_or_default();
    Pass { row_lengths, histogram: counts.into(), changes, slices }
}

/// Totals of the rows of a task.
#[derive(Default)]
struct TaskTotals {
    changes: u64,
    counts: Counts,
    slices: SortedSlices,
}

impl TaskTotals {
    fn merge(self, other: Self) -> Self {
        Self {
            changes: self.changes + other.changes,
            counts: self.counts.merge(other.counts),
            slices: self.slices.merge(other.slices),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::PARALLEL_MIN;
    use proptest::prelude::*;
    use statrs::statistics::{Accumulate, Data, Max, Min, OnlineSkewness, OrderStatistics};

    #[test]
    fn five_rows_by_hand() {
        let s = RowStats::of(7, &[0, 1, 1, 2, 6]);
        assert_eq!((s.nrows, s.ncols, s.nnz, s.empty_rows, s.min, s.max), (5, 7, 10, 1, 0, 6));
        assert_eq!(s.mean, 2.0);
        // Powers differ in their last bits among platforms.
        for (found, expected) in [
            (s.variance, 22.0 / 5.0),
            (s.std_dev, 4.4f64.sqrt()),
            (s.cv, 4.4f64.sqrt() / 2.0),
            (s.skewness, (54.0 / 5.0) / 4.4f64.powf(1.5)),
        ] {
            assert!((found - expected).abs() < 4e-15, "{found} and {expected}");
        }
        assert_eq!(s.quantiles, Quantiles { p50: 1, p75: 2, p90: 6, p99: 6, p999: 6 });
        // Differences over ordered pairs: 2 · (1 + 1 + 2 + 6 + 0 + 1 + 5 + 1 + 5 + 4) = 52; 2 ·
        // n² · mean = 100.
        assert_eq!(s.gini, 0.52);
        assert_eq!(s.tail, [0.6, 0.0, 0.0, 0.0]);
        assert_eq!(s.half_rows, 1);
        assert_eq!(s.histogram.classes(), [(0, 1), (1, 2), (2, 1), (6, 1)]);
    }

    #[test]
    fn equal_rows_vary_in_nothing() {
        let s = RowStats::of(9, &[3; 8]);
        assert_eq!((s.variance, s.cv, s.skewness, s.gini, s.half_rows), (0.0, 0.0, 0.0, 0.0, 4));
        assert_eq!(s.tail, [0.0; 4]);
    }

    #[test]
    fn one_row_holds_all() {
        let mut lengths = vec![0; 100];
        lengths[42] = 1000;
        let s = RowStats::of(1000, &lengths);
        assert_eq!((s.gini, s.half_rows, s.tail, s.empty_rows), (0.99, 1, [1.0; 4], 99));
    }

    #[test]
    fn nothing_gives_zeros() {
        assert_eq!(RowStats::of(0, &[]), RowStats::default());
        let empty = RowStats::of(4, &[0; 3]);
        let histogram = Histogram::of(&[0; 3]);
        assert_eq!(
            empty,
            RowStats { nrows: 3, ncols: 4, empty_rows: 3, histogram, ..RowStats::default() }
        );
    }

    #[test]
    fn the_pass_over_offsets_agrees_with_the_lengths() {
        // With the work distributed among threads, and without.
        for rows in [10_000u32, PARALLEL_MIN as u32 + 10_000] {
            the_pass_agrees(
                &(0..rows).map(|i| i.wrapping_mul(i) % 37 + i / 90_000).collect::<Vec<_>>(),
            );
        }
    }

    fn the_pass_agrees(lengths: &[u32]) {
        let mut row_ptr = vec![0];
        row_ptr.extend(lengths.iter().scan(0, |end, &len| {
            *end += len as usize;
            Some(*end)
        }));
        let pass = pass(&row_ptr);
        assert_eq!(pass.row_lengths, lengths);
        assert_eq!((pass.histogram, pass.changes), (Histogram::of(lengths), changes(lengths)));
        let (mut slices, mut counts) = (SortedSlices::default(), Counts::default());
        lengths.chunks(LARGEST_WINDOW).for_each(|rows| slices.add(rows, &mut counts));
        assert_eq!(pass.slices, slices);
    }

    proptest! {
        #[test]
        fn moments_and_order_agree_with_statrs(
            lengths in prop::collection::vec(0u32..3000, 2..80),
        ) {
            let s = RowStats::of(1, &lengths);
            let floats: Vec<f64> = lengths.iter().map(|&l| f64::from(l)).collect();
            let start = OnlineSkewness::default();
            let oracle = floats.iter().copied().fold(start, OnlineSkewness::push);
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * (1.0 + b.abs());
            prop_assert!(close(s.mean, oracle.mean().unwrap()));
            prop_assert!(close(s.variance, oracle.population_variance().unwrap()));
            prop_assert!(close(s.std_dev, oracle.population_std_dev().unwrap()));
            prop_assert!(close(s.skewness, oracle.skewness().unwrap()));
            let n = lengths.len();
            let mut data = Data::new(floats);
            prop_assert_eq!((f64::from(s.min), f64::from(s.max)), (data.min(), data.max()));
            let quantiles = [s.quantiles.p50, s.quantiles.p75, s.quantiles.p90];
            for (q, length) in [0.5, 0.75, 0.9].into_iter().zip(quantiles) {
                let order = (q * n as f64).ceil() as usize;
                prop_assert_eq!(f64::from(length), data.order_statistic(order));
            }
        }

        #[test]
        fn the_rest_agrees_with_its_definition(
            mut lengths in prop::collection::vec(0u32..50, 1..40),
        ) {
            let s = RowStats::of(1, &lengths);
            let (n, nnz) = (lengths.len() as f64, lengths.iter().sum::<u32>());
            let differences: u64 =
                lengths.iter().flat_map(|&a| lengths.iter().map(move |&b| a.abs_diff(b)))
                    .map(u64::from)
                    .sum();
            let gini = ratio(differences as f64, 2.0 * n * f64::from(nnz));
            prop_assert!((s.gini - gini).abs() < 1e-12);
            for (multiple, share) in TAIL_MULTIPLES.into_iter().zip(s.tail) {
                let bound = f64::from(multiple * nnz);
                let long = lengths.iter().filter(|&&l| f64::from(l) * n > bound);
                prop_assert_eq!(share, ratio(f64::from(long.sum::<u32>()), f64::from(nnz)));
            }
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            let holds_half = |k: &usize| 2 * lengths[..*k].iter().sum::<u32>() >= nnz;
            prop_assert_eq!(s.half_rows, (0..).find(holds_half).unwrap() as u64);
        }
    }
}
