//! Frequencies of columns, by two samples of the entries.

use super::constants::{FREQUENCIES, FREQUENCY_RUN};
use super::rows::ratio;
use crate::parallel;

/// Sampling distance in entries.
const SAMPLING: usize = 64;

/// Largest number of entries in both samples.
const MAX: usize = 1 << 19;

/// Occurrences of the columns of one sample of the entries in that sample, and entries of another
/// sample in these columns. A single sample would count columns that it has by chance as frequent
/// ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Frequencies {
    counts: FrequencyCounts,
    /// Entries of the second sample.
    entries: u64,
}

/// Sums over columns by their number of occurrences in the first sample, the number of the element;
/// the last element has those with more, too.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub(super) struct FrequencyCounts {
    /// Number of columns.
    pub(super) columns: [u32; FREQUENCIES],
    /// Entries of the second sample in these columns.
    pub(super) entries: [u32; FREQUENCIES],
}

/// Runs of [`FREQUENCY_RUN`] entries, a line of the cache each, at even distances. Those with even
/// numbers are the first sample, the others the second one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Runs {
    pub(super) count: usize,
    pub(super) distance: usize,
}

impl Runs {
    /// Runs of a matrix of `nnz` entries, at least two runs.
    pub(super) fn of(nnz: usize) -> Self {
        let count = ((nnz / SAMPLING).min(MAX) / FREQUENCY_RUN).max(2);
        Self { count, distance: nnz / count }
    }

    /// Number of entries in the first sample, and in the second one.
    pub(super) fn entries(self) -> [usize; 2] {
        [self.count.div_ceil(2), self.count / 2].map(|runs| runs * FREQUENCY_RUN)
    }
}

impl Frequencies {
    /// The sums of a sample.
    pub(super) fn new(counts: FrequencyCounts, runs: Runs) -> Self {
        Self { counts, entries: runs.entries()[1] as u64 }
    }

    /// Share of the entries in the `columns` columns with the most entries, of `ncols` columns. At
    /// least twice as many columns as [`FREQUENCIES`] are asked for: the last element has fewer.
    pub(crate) fn share_in(&self, columns: u32, ncols: usize) -> f64 {
        let (mut left, mut within) = (u64::from(columns), 0.0);
        for times in (1..FREQUENCIES).rev() {
            let found = u64::from(self.counts.columns[times]);
            let taken = found.min(left);
            // Of equally frequent columns any may be taken.
            within += f64::from(self.counts.entries[times]) * ratio(taken as f64, found as f64);
            left -= taken;
        }
        let share = ratio(within, self.entries as f64);
        // Columns without an entry in the sample share the rest evenly.
        let known = (u64::from(columns) - left) as f64;
        let others = ratio(left as f64, ncols as f64 - known);
        share + (1.0 - share) * others.clamp(0.0, 1.0)
    }
}

impl Default for FrequencyCounts {
    fn default() -> Self {
        Self { columns: [0; FREQUENCIES], entries: [0; FREQUENCIES] }
    }
}

impl FrequencyCounts {
    /// Counts the columns of a matrix in host memory.
    pub(super) fn on_host(col_idx: &[u32], ncols: usize, runs: Runs) -> Self {
        let sorted = |half: usize| {
            let starts = (half..runs.count).step_by(2).map(|run| run * runs.distance);
            let cols = starts.flat_map(|at| &col_idx[at..at + FREQUENCY_RUN]).copied().collect();
            sorted_columns(cols, ncols)
        };
        let (first, second) = parallel::join(|| sorted(0), || sorted(1));
        // The loops have no branches that depend on the columns: these would be predicted wrong.
        let (mut cols, mut times) = (vec![0; first.len()], vec![0u32; first.len()]);
        let (mut last, mut before) = (0, first[0]);
        for &col in &first {
            last += usize::from(col != before);
            (cols[last], before) = (col, col);
            times[last] += 1;
        }
        let mut entries = vec![0u32; last + 1];
        let (mut i, mut k) = (0, 0);
        while i <= last && k < second.len() {
            let (col, other) = (cols[i], second[k]);
            entries[i] += u32::from(col == other);
            k += usize::from(other <= col);
            i += usize::from(other > col);
        }
        let mut counts = Self::default();
        for (times, entries) in times.iter().zip(entries) {
            let times = (*times as usize).min(FREQUENCIES - 1);
            counts.columns[times] += 1;
            counts.entries[times] += entries;
        }
        counts
    }
}

/// The columns in ascending order: radix sort, a few times as fast as one by comparisons.
fn sorted_columns(mut cols: Vec<u32>, ncols: usize) -> Vec<u32> {
    /// Bits of a digit.
    const BITS: u32 = 11;
    let mut other = vec![0; cols.len()];
    let bits = usize::BITS - ncols.leading_zeros();
    for shift in (0..bits).step_by(BITS as usize) {
        let digit = |col: u32| (col >> shift) as usize % (1 << BITS);
        let mut places = [0usize; 1 << BITS];
        cols.iter().for_each(|&col| places[digit(col)] += 1);
        let mut before = 0;
        for place in &mut places {
            before += std::mem::replace(place, before);
        }
        for &col in &cols {
            let place = &mut places[digit(col)];
            other[*place] = col;
            *place += 1;
        }
        std::mem::swap(&mut cols, &mut other);
    }
    cols
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// The columns of the first sample (0) or of the second one (1).
    fn sample(cols: &[u32], runs: Runs, half: usize) -> impl Iterator<Item = u32> {
        let starts = (half..runs.count).step_by(2).map(move |run| run * runs.distance);
        starts.flat_map(|at| &cols[at..at + FREQUENCY_RUN]).copied()
    }

    proptest! {
        #[test]
        fn counts_by_their_definition(
            cols in prop::collection::vec(prop_oneof![0u32..9, 0u32..5000], 32..4000),
        ) {
            let runs = Runs::of(cols.len());
            let counted = |half: usize| {
                let mut found = BTreeMap::<u32, u32>::new();
                sample(&cols, runs, half).for_each(|col| *found.entry(col).or_default() += 1);
                found
            };
            let (first, second) = (counted(0), counted(1));
            let mut expected = FrequencyCounts::default();
            for (col, times) in first {
                expected.columns[times as usize] += 1;
                expected.entries[times as usize] += second.get(&col).copied().unwrap_or(0);
            }
            prop_assert_eq!(FrequencyCounts::on_host(&cols, 5000, runs), expected);
        }
    }

    #[test]
    fn very_frequent_columns_are_counted_together() {
        // Every entry is in one of five columns, or in one of 40,000.
        let column = |k: u32| match k.wrapping_mul(0x9e37_79b9) >> 20 {
            hash @ 0..2048 => hash % 5,
            hash => 5 + (k / 16 * 31 + hash) % 40_000,
        };
        let cols: Vec<u32> = (0..1 << 20).map(column).collect();
        let counts = FrequencyCounts::on_host(&cols, 50_000, Runs::of(cols.len()));
        assert_eq!(counts.columns[FREQUENCIES - 1], 0, "{:?}", counts.columns);
        let cols: Vec<u32> = cols.iter().map(|&col| if col < 5 { 7 } else { col }).collect();
        let runs = Runs::of(cols.len());
        let counts = FrequencyCounts::on_host(&cols, 50_000, runs);
        assert_eq!(counts.columns[FREQUENCIES - 1], 1);
        let expected = sample(&cols, runs, 1).filter(|&col| col == 7).count();
        assert_eq!(counts.entries[FREQUENCIES - 1] as usize, expected);
        let different: BTreeSet<_> = sample(&cols, runs, 0).collect();
        assert_eq!(counts.columns.iter().sum::<u32>() as usize, different.len());
    }

    #[test]
    fn shares_by_hand() {
        let mut counts = FrequencyCounts::default();
        (counts.columns[FREQUENCIES - 1], counts.entries[FREQUENCIES - 1]) = (1, 30);
        (counts.columns[3], counts.entries[3]) = (2, 20);
        (counts.columns[1], counts.entries[1]) = (10, 10);
        let frequencies = Frequencies { counts, entries: 100 };
        // All of the most frequent columns, and half of those with an entry each.
        assert_eq!(frequencies.share_in(8, 1000), 0.55);
        // Of 987 unknown columns a third.
        assert!((frequencies.share_in(13 + 329, 1000) - (0.6 + 0.4 / 3.0)).abs() < 1e-12);
        assert_eq!(frequencies.share_in(2000, 1000), 1.0);
    }
}
