//! Longest and shortest rows of slices: sums over slices of `c` consecutive rows, after sorting by
//! length in windows of `sigma` rows, for several `c` and `sigma` in one pass over the row lengths.
//!
//! In a window whose rows are sorted in descending order of length, the longest row of slice `s` is
//! the row of rank `c·s`. With `N(l)` rows of at least `l` entries, the longest rows of all slices
//! add up to `Σ ⌈N(l) / c⌉` entries over `l` from 1, and the shortest rows of whole slices to
//! `Σ ⌊N(l) / c⌋`. Nothing needs to be sorted, and the `N` of a window are the sums of those
//! of the smaller windows in it.

use super::constants::{BLOCK_ROWS, SLICE_SUMS};
use super::histogram::Counts;
use crate::order;

/// Rows of the smallest window.
const BLOCK: usize = 128;

/// Rows of the largest window, a multiple of all others.
pub(super) const LARGEST_WINDOW: usize = BLOCK_ROWS;

/// Rows of fewer entries are counted, longer rows are sorted.
const SHORT: usize = 128;

/// Rows that are compared at a time.
const GROUP: usize = 8;

/// Largest difference of the lengths of a block at which each length is counted in turn over all
/// rows at a time.
const NARROW: u32 = 16;

/// Sums over all slices of `c` rows. Every row of a slice has as many slots as the longest row of
/// the slice has entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SliceSums {
    /// Slots: `c` times the longest rows.
    pub(crate) slots: u64,
    /// Slots beyond the shortest row of their slice: `c` times the longest rows less the shortest.
    /// A last slice of fewer than `c` rows counts as one with an empty row.
    pub(crate) masked_slots: u64,
    /// Slots of the largest slice.
    pub(crate) largest: u64,
}

/// Sums for the slices and windows of [`SortedSlices::MEASURED`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SortedSlices([SliceSums; SortedSlices::MEASURED.len()]);

impl SortedSlices {
    /// Rows of a slice, `c`, and rows of a sorted window, `sigma`, of all sums that are measured. A
    /// window of 1 sorts nothing. `analysis.cu` has the same order.
    pub(crate) const MEASURED: [(u32, u32); 7] =
        [(32, 1), (16, 128), (32, 128), (32, 512), (16, 1024), (16, 4096), (32, 4096)];

    /// Rows of the sorted windows, each a multiple of the previous one.
    const WINDOWS: [usize; 4] = [BLOCK, 512, 1024, LARGEST_WINDOW];

    /// Sums of slices of `c` rows in windows of `sigma`. None if they are not measured.
    pub(crate) fn with(&self, c: u32, sigma: u32) -> Option<SliceSums> {
        Self::MEASURED.iter().position(|size| *size == (c, sigma)).map(|i| self.0[i])
    }

    /// The sums in the order of the slices and windows: slots, masked slots and the largest slice.
    pub(super) fn of_sums(sums: &[u64; SLICE_SUMS]) -> Self {
        let (each, _) = sums.as_chunks();
        Self(std::array::from_fn(|i| {
            let [slots, masked_slots, largest] = each[i];
            SliceSums { slots, masked_slots, largest }
        }))
    }

    /// Sums of windows of `sigma` rows, each with the rows of its slices.
    fn of_window(&mut self, sigma: usize) -> impl Iterator<Item = (usize, &mut SliceSums)> {
        let all = Self::MEASURED.iter().zip(&mut self.0);
        all.filter(move |(size, _)| size.1 as usize == sigma)
            .map(|(size, sums)| (size.0 as usize, sums))
    }

    /// Adds up to [`LARGEST_WINDOW`] rows, the last of which ends a window. Counts their lengths.
    pub(super) fn add(&mut self, rows: &[u32], counts: &mut Counts) {
        #[cfg(target_arch = "x86_64")]
        if crate::device::cpu::has_avx2() {
            // SAFETY: the machine has AVX2.
            return unsafe { self.add_by_avx2(rows, counts) };
        }
        self.add_by_any(rows, counts);
    }

    /// Same as [`add_by_any`](Self::add_by_any), compiled for AVX2: less than half the time.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn add_by_avx2(&mut self, rows: &[u32], counts: &mut Counts) {
        self.add_by_any(rows, counts);
    }

    /// Same as [`add`](Self::add), compiled for the instruction set of the caller.
    #[inline(always)]
    fn add_by_any(&mut self, rows: &[u32], counts: &mut Counts) {
        self.of_window(1).for_each(|(c, sums)| *sums = sums.merge(SliceSums::of(rows, c)));
        let mut windows: [Window; Self::WINDOWS.len()] = std::array::from_fn(|_| Window::default());
        for (block, lengths) in (1..).zip(rows.chunks(BLOCK)) {
            windows[0].count(lengths);
            for (i, sigma) in Self::WINDOWS.into_iter().enumerate() {
                if (block * BLOCK).is_multiple_of(sigma) || block * BLOCK >= rows.len() {
                    self.of_window(sigma).for_each(|(c, sums)| windows[i].sum(c, sums));
                    if let [smaller, larger, ..] = &mut windows[i..] {
                        larger.take(smaller);
                    }
                }
            }
        }
        let [.., whole] = windows;
        whole.count_into(counts);
    }

    /// Sum of both.
    pub(super) fn merge(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].merge(other.0[i])))
    }
}

impl SliceSums {
    /// Sums of rows in slices of `c`, in the given order.
    #[inline(always)]
    pub(crate) fn of(rows: &[u32], c: usize) -> Self {
        let mut sums = Self::default();
        for slice in rows.chunks(c) {
            let (least, most) =
                slice.iter().fold((u32::MAX, 0), |(a, b), &len| (a.min(len), b.max(len)));
            let full = if slice.len() == c { least } else { 0 };
            let width = u64::from(most) * c as u64;
            sums.slots += width;
            sums.masked_slots += width - u64::from(full) * c as u64;
            sums.largest = sums.largest.max(width);
        }
        sums
    }

    /// Combines both sums.
    pub(crate) fn merge(self, other: Self) -> Self {
        Self {
            slots: self.slots + other.slots,
            masked_slots: self.masked_slots + other.masked_slots,
            largest: self.largest.max(other.largest),
        }
    }
}

/// Counted rows of a window.
#[derive(Debug)]
struct Window {
    /// Number of rows of at least the index in entries. While the only block of a window is
    /// counted: the number of rows of exactly the index.
    at_least: [u32; SHORT],
    /// Index beyond which all counts are 0.
    longest_short: usize,
    /// Lengths of the longer rows, unordered.
    long: Vec<u32>,
}

impl Default for Window {
    fn default() -> Self {
        Self { at_least: [0; SHORT], longest_short: 0, long: Vec::new() }
    }
}

impl Window {
    /// Counts the rows of a block; the window must be empty.
    #[inline(always)]
    fn count(&mut self, lengths: &[u32]) {
        let (least, most) =
            lengths.iter().fold((u32::MAX, 0), |(a, b), &len| (a.min(len), b.max(len)));
        if (most as usize) < SHORT && most - least <= NARROW {
            self.longest_short = most as usize;
            self.at_least[..=least as usize].fill(lengths.len() as u32);
            for length in least + 1..=most {
                let rows = lengths.iter().map(|&len| u32::from(len as i32 >= length as i32));
                self.at_least[length as usize] = rows.sum();
            }
            return;
        }
        let mut count = |length: u32, rows: usize| match self.at_least.get_mut(length as usize) {
            Some(count) => *count += rows as u32,
            None => self.long.extend(std::iter::repeat_n(length, rows)),
        };
        for group in lengths.chunks(GROUP) {
            // Consecutive rows of equal length would each wait for the update of the same counter.
            if group.iter().fold(0, |other, length| other | (length ^ group[0])) == 0 {
                count(group[0], group.len());
            } else {
                group.iter().for_each(|&length| count(length, 1));
            }
        }
        let mut at_least = self.long.len() as u32;
        self.longest_short = if at_least > 0 { SHORT - 1 } else { most as usize };
        for count in self.at_least[..=self.longest_short].iter_mut().rev() {
            at_least += *count;
            *count = at_least;
        }
    }

    /// Adds the rows of every length to `counts`.
    fn count_into(&self, counts: &mut Counts) {
        let mut longer = self.long.len() as u32;
        for length in (0..=self.longest_short).rev() {
            counts.add(length as u32, u64::from(self.at_least[length] - longer));
            longer = self.at_least[length];
        }
        self.long.chunk_by(|a, b| a == b).for_each(|rows| counts.add(rows[0], rows.len() as u64));
    }

    /// Adds the sums of the slices of `c` rows to `sums`; `c` is a power of two.
    #[inline(always)]
    fn sum(&mut self, c: usize, sums: &mut SliceSums) {
        let (shift, rest) = (c.ilog2(), c as u32 - 1);
        let (mut widths, mut ragged) = (0, 0);
        for &rows in &self.at_least[1..=self.longest_short] {
            widths += u64::from((rows + rest) >> shift);
            ragged += u64::from(rows & rest != 0);
        }
        let mut width = self.longest_short as u64;
        if !self.long.is_empty() {
            // Long lengths by rank: the first row of a slice is its width, the last row is the
            // length that all of its rows have.
            let beyond = |length: u32| u64::from(length) - (SHORT as u64 - 1);
            order::descending(&mut self.long);
            let wide: u64 = self.long.iter().step_by(c).copied().map(beyond).sum();
            let full: u64 = self.long.iter().skip(c - 1).step_by(c).copied().map(beyond).sum();
            (widths, ragged) = (widths + wide, ragged + wide - full);
            width += beyond(self.long[0]);
        }
        sums.slots += widths * c as u64;
        sums.masked_slots += ragged * c as u64;
        sums.largest = sums.largest.max(width * c as u64);
    }

    /// Adds a smaller window and clears it.
    #[inline(always)]
    fn take(&mut self, part: &mut Self) {
        let counts = self.at_least.iter_mut().zip(&mut part.at_least);
        counts.take(part.longest_short + 1).for_each(|(all, rows)| *all += std::mem::take(rows));
        self.longest_short = self.longest_short.max(std::mem::take(&mut part.longest_short));
        self.long.append(&mut part.long);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Histogram;
    use proptest::prelude::*;

    /// Reference: computed by sorting.
    fn expected(row_lengths: &[u32], c: usize, sigma: usize) -> SliceSums {
        let mut sums = SliceSums::default();
        for window in row_lengths.chunks(sigma.max(c)) {
            let mut sorted = window.to_vec();
            if sigma > 1 {
                sorted.sort_unstable_by(|a, b| b.cmp(a));
            }
            sums = sums.merge(SliceSums::of(&sorted, c));
        }
        sums
    }

    /// Sums of all windows, and the histogram they count.
    fn measured(
        row_lengths: &[u32],
        add: fn(&mut SortedSlices, &[u32], &mut Counts),
    ) -> (SortedSlices, Histogram) {
        let (mut slices, mut counts) = (SortedSlices::default(), Counts::default());
        row_lengths.chunks(LARGEST_WINDOW).for_each(|rows| add(&mut slices, rows, &mut counts));
        (slices, counts.into())
    }

    fn check(row_lengths: &[u32]) {
        let (slices, histogram) = measured(row_lengths, SortedSlices::add);
        assert_eq!(
            (slices.clone(), histogram.clone()),
            measured(row_lengths, SortedSlices::add_by_any)
        );
        assert_eq!(histogram, Histogram::of(row_lengths));
        for (c, sigma) in SortedSlices::MEASURED {
            let found = slices.with(c, sigma).unwrap();
            assert_eq!(
                found,
                expected(row_lengths, c as usize, sigma as usize),
                "c {c}, sigma {sigma}"
            );
        }
    }

    #[test]
    fn by_hand() {
        // A slice of 16, the longest row and the others, and one of two rows.
        let mut lengths = vec![2; 18];
        lengths[17] = 300;
        let (slices, _) = measured(&lengths, SortedSlices::add);
        let sums = |slots, masked_slots, largest| SliceSums { slots, masked_slots, largest };
        assert_eq!(slices.with(32, 1), Some(sums(32 * 300, 32 * 300, 32 * 300)));
        assert_eq!(slices.with(16, 128), Some(sums(16 * 302, 16 * 300, 16 * 300)));
        assert_eq!(slices.with(32, 128), Some(sums(32 * 300, 32 * 300, 32 * 300)));
        assert_eq!((slices.with(8, 128), slices.with(32, 64)), (None, None));
        check(&[]);
        check(&[0]);
    }

    #[test]
    fn windows_and_tasks_of_all_sizes() {
        for rows in [127, 128, 129, 512, 1023, 4096, 4097, 3 * LARGEST_WINDOW + 700] {
            check(&(0..rows as u32).map(|i| i * i % 31).collect::<Vec<_>>());
            check(&vec![7; rows]);
            // Some rows, or all, longer than the counted lengths.
            check(
                &(0..rows as u32)
                    .map(|i| if i % 97 == 3 { 1000 + i } else { i % 150 })
                    .collect::<Vec<_>>(),
            );
            check(&(0..rows as u32).map(|i| 127 + i * 7919 % 5).collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn any_lengths(
            row_lengths in prop::collection::vec(
                prop_oneof![8 => 0u32..9, 2 => 120u32..140, 1 => 0u32..5000],
                0..600,
            ),
        ) {
            check(&row_lengths);
        }
    }
}
