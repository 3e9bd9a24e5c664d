//! Row-length histogram.

use crate::device::cpu::prepare_threads;
use crate::parallel;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Lengths below this are counted in a table, longer ones in a map: 2048 counters of 8 bytes leave
/// half of a 32 KiB first-level cache to the lengths themselves, and rows this long are few in
/// relation to their entries. Miri takes seconds for a table of that size.
const TABLE: usize = if cfg!(miri) { 32 } else { 2048 };

/// Rows that are compared at a time: a vector of lengths.
const GROUP: usize = 8;

/// Rows per task: enough to hide the cost of a task (about a microsecond), few enough to balance
/// the load.
const TASK_ROWS: usize = 1 << 14;

/// [`Histogram::bins`] uses bins of equal width if a bin spans at most this many lengths. Wider
/// ranges use powers of two, which show a tail better.
const WIDEST_STEP: u32 = 8;

/// Row-length histogram: the number of rows of every length that occurs. Exact, shortest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram(Vec<(u32, u64)>);

/// A bin of the row-length histogram, see [`Histogram::bins`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// Shortest length in the bin.
    pub from: u32,
    /// Longest length in the bin, inclusive.
    pub to: u32,
    /// Number of rows with such a length.
    pub rows: u64,
    /// Number of entries in those rows.
    pub entries: u64,
}

impl Histogram {
    /// Counts the given row lengths.
    pub fn of(row_lengths: &[u32]) -> Self {
        prepare_threads();
        let add = |counts: &mut Counts, rows: Range<usize>| counts.add_all(&row_lengths[rows]);
        let rows = row_lengths.len();
        parallel::fold(rows, TASK_ROWS, Counts::default, add, Counts::merge).into()
    }

    /// `(length, rows)` for every length that occurs, shortest first.
    pub fn classes(&self) -> &[(u32, u64)] {
        &self.0
    }

    /// Number of rows.
    pub fn nrows(&self) -> u64 {
        self.0.iter().map(|c| c.1).sum()
    }

    /// Rows with more than `len` entries.
    pub fn rows_longer(&self, len: u32) -> u64 {
        self.0[self.0.partition_point(|c| c.0 <= len)..].iter().map(|c| c.1).sum()
    }

    /// Number of entries beyond the first `width` of their row: the entries of the COO part of a
    /// HYB of that width.
    pub fn entries_beyond(&self, width: u32) -> u64 {
        let longer = &self.0[self.0.partition_point(|c| c.0 <= width)..];
        longer.iter().map(|&(len, rows)| u64::from(len - width) * rows).sum()
    }

    /// Number of entries in the rows with at most `len` entries.
    pub fn entries_up_to(&self, len: u32) -> u64 {
        let shorter = &self.0[..self.0.partition_point(|c| c.0 <= len)];
        shorter.iter().map(|&(len, rows)| u64::from(len) * rows).sum()
    }

    /// Longest of the rows with at most `len` entries; 0 if there are none.
    pub(crate) fn longest_up_to(&self, len: u32) -> u32 {
        self.0[..self.0.partition_point(|c| c.0 <= len)].last().map_or(0, |c| c.0)
    }

    /// Quantile: the smallest length such that at least the share `q` of the rows is no longer; 0
    /// without rows.
    pub fn quantile(&self, q: f64) -> u32 {
        let wanted = (q * self.nrows() as f64).ceil().max(1.0);
        let mut counted = 0;
        for &(len, rows) in &self.0 {
            counted += rows;
            if counted as f64 >= wanted {
                return len;
            }
        }
        self.0.last().map_or(0, |c| c.0)
    }

    /// Row length at place `index` in ascending order; the longest past the end, 0 without rows.
    pub fn nth(&self, index: u64) -> u32 {
        let mut counted = 0;
        let reached = self.0.iter().find(|&&(_, rows)| {
            counted += rows;
            counted > index
        });
        reached.or(self.0.last()).map_or(0, |c| c.0)
    }

    /// Length of the `rows`-th longest row, the least length that fewer than `rows` rows exceed; 0
    /// if there are fewer rows. `rows` is at least 1.
    pub fn exceeded_by_fewer_than(&self, rows: u64) -> u32 {
        self.nrows().checked_sub(rows).map_or(0, |place| self.nth(place))
    }

    /// Histogram with rows longer than `len` cut to `len`.
    pub fn clipped(&self, len: u32) -> Self {
        let mut classes = self.0[..self.0.partition_point(|c| c.0 < len)].to_vec();
        let rows = self.nrows() - classes.iter().map(|c| c.1).sum::<u64>();
        if rows > 0 {
            classes.push((len, rows));
        }
        Self(classes)
    }

    /// Histogram in at most `max_bins` bins, for display, from the shortest length to the longest:
    ///
    /// - At most `max_bins` lengths occur: a bin for each of them, not adjacent where lengths
    ///   between them do not occur.
    /// - `max_bins` bins need a width of at most 8: bins of equal width.
    /// - Otherwise: `2^k ..= 2^(k+1) - 1`, empty rows apart, with two, three, … powers in a bin
    ///   until there are few enough.
    ///
    /// No bins without rows or with `max_bins == 0`.
    pub fn bins(&self, max_bins: usize) -> Vec<Bin> {
        let (Some(&(min, _)), Some(&(max, _)), 1..) = (self.0.first(), self.0.last(), max_bins)
        else {
            return Vec::new();
        };
        if self.0.len() <= max_bins {
            return self.0.iter().map(|&(len, rows)| bin(len, len, &[(len, rows)])).collect();
        }
        // There are more classes than `max_bins`, so `max_bins` is below 2³² and so is the step.
        let step = (u64::from(max - min) + 1).div_ceil(max_bins as u64) as u32;
        if step <= WIDEST_STEP {
            return self.cut(min, max, |from| from.saturating_add(step - 1));
        }
        let powers =
            |step: u32| move |from: u32| if from == 0 { 0 } else { last_of_powers(from, step) };
        (1..=u32::BITS)
            .map(|step| self.cut(min, max, powers(step)))
            .find(|bins| bins.len() <= max_bins)
            .unwrap_or_else(|| vec![bin(min, max, &self.0)])
    }

    /// Adjacent bins over `min..=max`; `last` maps the first length of a bin to its last.
    fn cut(&self, min: u32, max: u32, last: impl Fn(u32) -> u32) -> Vec<Bin> {
        let (mut bins, mut classes, mut from) = (Vec::new(), &self.0[..], min);
        loop {
            let to = last(from).min(max);
            let (inside, longer) = classes.split_at(classes.partition_point(|c| c.0 <= to));
            bins.push(bin(from, to, inside));
            if to == max {
                return bins;
            }
            (classes, from) = (longer, to + 1);
        }
    }
}

/// Last length of the group of `step` powers of two that holds `len`, which is not 0.
fn last_of_powers(len: u32, step: u32) -> u32 {
    let next = (len.ilog2() / step + 1) * step;
    1u32.checked_shl(next).map_or(u32::MAX, |power| power - 1)
}

/// Bin of the lengths `from..=to`, which are exactly those of `classes`.
fn bin(from: u32, to: u32, classes: &[(u32, u64)]) -> Bin {
    let rows = classes.iter().map(|c| c.1).sum();
    Bin { from, to, rows, entries: classes.iter().map(|&(len, rows)| u64::from(len) * rows).sum() }
}

/// Counters of row lengths, of one or several tasks.
#[derive(Debug)]
pub(super) struct Counts {
    table: Vec<u64>,
    long: BTreeMap<u32, u64>,
}

impl Default for Counts {
    fn default() -> Self {
        Self { table: vec![0; TABLE], long: BTreeMap::new() }
    }
}

impl Counts {
    /// Counts `lengths`.
    fn add_all(&mut self, lengths: &[u32]) {
        let (groups, rest) = lengths.as_chunks::<GROUP>();
        for group in groups {
            // Consecutive rows of equal length, as in stencils, would each wait for the update of
            // the same counter.
            if group.iter().all(|len| *len == group[0]) {
                self.add(group[0], GROUP as u64);
            } else {
                group.iter().for_each(|&len| self.add(len, 1));
            }
        }
        rest.iter().for_each(|&len| self.add(len, 1));
    }

    /// Counts `rows` rows of length `len`.
    #[inline]
    pub(super) fn add(&mut self, len: u32, rows: u64) {
        match self.table.get_mut(len as usize) {
            Some(count) => *count += rows,
            None => *self.long.entry(len).or_default() += rows,
        }
    }

    /// Sum of both counts.
    pub(super) fn merge(mut self, other: Self) -> Self {
        self.table.iter_mut().zip(other.table).for_each(|(count, more)| *count += more);
        for (len, rows) in other.long {
            *self.long.entry(len).or_default() += rows;
        }
        self
    }
}

impl From<Counts> for Histogram {
    fn from(counts: Counts) -> Self {
        let short = (0..).zip(counts.table).filter(|&(_, rows)| rows > 0);
        Self(short.chain(counts.long).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn triples(lengths: &[u32], max_bins: usize) -> Vec<(u32, u32, u64, u64)> {
        let bins = Histogram::of(lengths).bins(max_bins);
        bins.iter().map(|b| (b.from, b.to, b.rows, b.entries)).collect()
    }

    #[test]
    fn counts_short_and_long_rows() {
        let longest = TABLE as u32 + 5;
        let h = Histogram::of(&[3, 0, longest, 3, longest, 1]);
        assert_eq!(h.classes(), [(0, 1), (1, 1), (3, 2), (longest, 2)]);
        assert_eq!((h.nrows(), h.rows_longer(1), h.rows_longer(3)), (6, 4, 2));
        assert_eq!(h.entries_beyond(2), 2 + 2 * u64::from(longest - 2));
        assert_eq!(
            (h.entries_up_to(0), h.entries_up_to(1), h.entries_up_to(longest - 1)),
            (0, 1, 7)
        );
        assert_eq!((h.quantile(0.0), h.quantile(0.5), h.quantile(1.0)), (0, 3, longest));
    }

    #[test]
    fn few_lengths_get_a_bin_each() {
        assert_eq!(triples(&[5, 5, 900], 2), [(5, 5, 2, 10), (900, 900, 1, 900)]);
    }

    #[test]
    fn close_lengths_get_equal_steps() {
        assert_eq!(
            triples(&[10, 11, 12, 13, 15], 3),
            [(10, 11, 2, 21), (12, 13, 2, 25), (14, 15, 1, 15)]
        );
    }

    #[test]
    fn a_tail_gets_powers_of_two_and_coarser_ones_when_bins_are_scarce() {
        let lengths = [0, 1, 2, 3, 9, 100];
        let bins = triples(&lengths, 5);
        assert_eq!(
            bins,
            [(0, 0, 1, 0), (1, 3, 3, 6), (4, 15, 1, 9), (16, 63, 0, 0), (64, 100, 1, 100)]
        );
        assert_eq!(triples(&lengths, 1), [(0, 100, 6, 115)]);
        assert_eq!(
            triples(&[0, 1, u32::MAX], 2),
            [(0, 0, 1, 0), (1, u32::MAX, 2, 1 + u64::from(u32::MAX))]
        );
    }

    #[test]
    fn nothing_has_no_bins() {
        assert!(Histogram::of(&[]).bins(8).is_empty());
        assert!(Histogram::of(&[1]).bins(0).is_empty());
    }

    proptest! {
        #[test]
        fn the_least_length_that_few_rows_exceed(
            lengths in prop::collection::vec(0u32..9, 0..40),
            rows in 1u64..50,
        ) {
            let h = Histogram::of(&lengths);
            let least = (0..9).find(|&len| h.rows_longer(len) < rows);
            prop_assert_eq!(Some(h.exceeded_by_fewer_than(rows)), least);
        }

        #[test]
        fn bins_cover_everything_once(
            lengths in prop::collection::vec(0u32..5000, 1..60),
            max_bins in 1usize..20,
        ) {
            let h = Histogram::of(&lengths);
            let bins = h.bins(max_bins);
            prop_assert!(bins.len() <= max_bins);
            prop_assert_eq!(bins.iter().map(|b| b.rows).sum::<u64>(), h.nrows());
            prop_assert_eq!(bins.iter().map(|b| b.entries).sum::<u64>(), h.entries_beyond(0));
            prop_assert!(bins.iter().all(|b| b.from <= b.to));
            prop_assert!(bins.windows(2).all(|w| w[0].to < w[1].from));
        }
    }
}
