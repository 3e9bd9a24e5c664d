//! Reuse distances of the gathers from `x`, the input of a cache model.

use super::constants::{CLASSES, GROUP_BITS, GROUP_SPREAD, PLACE_BITS};
use super::rows::ratio;
use super::task_size;
use crate::device::cpu::prepare_threads;
use crate::parallel;
use serde::{Deserialize, Serialize};

/// Maximum number of entries of a window.
const WINDOW: usize = 1 << CLASSES;

/// Largest number of entries of a small matrix. Its SpMV takes some 20 µs: at most a quarter of
/// this number of its entries is measured.
const SMALL: usize = 1 << 16;

/// Maximum number of entries in all windows: they are representative of a matrix, and more would
/// only take longer.
const MAX: usize = 1 << PLACE_BITS;

/// Minimum number of groups that are sampled, if the matrix has as many. Of more groups, one in a
/// power of two is sampled.
const MIN_SAMPLED_GROUPS: usize = 1 << 9;

/// Largest binary logarithm of that power: beyond it, finding the sampled groups takes most of the
/// time.
const MAX_SKIPPED: u32 = 3;

/// Entries of a window per group if there are few groups: a group's first touch in the window is
/// then one of this number, if all are alike.
const TOUCHES: usize = 64;

/// Entries that are tested at a time for sampled groups.
const BATCH: usize = u64::BITS as usize;

/// Number of the first entry: further from zero than any window is long.
const FIRST_NUMBER: u32 = 1 << 31;

/// Histogram of reuse distances of the gathers from `x`.
///
/// Every entry, in row order, gathers from the *group* of 8 consecutive columns that contains its
/// own (`col / 8`). Its *distance* is the number of entries since the group was last touched, 1 if
/// the previous entry touched it. A cache that keeps the groups of the last `d` entries hits on the
/// gathers nearer than `d`: [`share_within`](Self::share_within).
///
/// Measured on evenly spaced, independent windows of 2²⁰ entries, one for each 2²¹ entries but
/// at most 16. A matrix no larger than a window is measured completely, but one of up to 2¹⁶
/// entries only on the 2¹⁴ in the middle. First touches within a window are therefore an
/// overestimate of those in the whole matrix, and represent every distance beyond the length of a
/// window.
///
/// In a matrix of more than 2¹⁶ entries only one group in eight is sampled, chosen by a hash of
/// its number, and represents the others: its distances are exact (SHARDS, of Waldspurger et al.,
/// FAST 2015). If the entries of the sampled groups are more or fewer than an eighth, the
/// difference is added to the least distance, because it is caused by a few groups that are touched
/// all the time. Of fewer than 4096 groups at least 512 are sampled, and the windows are fewer and
/// shorter instead: 64 entries a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reuse {
    /// Gathers by distance: `counts[b]` of them lie in `2^b .. 2^(b + 1)`.
    pub counts: [u64; CLASSES],
    /// Gathers from a group not touched earlier in their window: the number of groups touched in
    /// each window, summed over the windows.
    pub first: u64,
    /// Entries of each window.
    pub window: u64,
}

impl Reuse {
    /// Measures gathers from the columns `col_idx`, all below `ncols`, in this order.
    pub fn of(ncols: usize, col_idx: &[u32]) -> Self {
        prepare_threads();
        let (nnz, groups) = (col_idx.len(), Self::groups(ncols));
        let sampling = Sampling::of(nnz, groups);
        let Sampling { window, windows, skipped } = sampling;
        // Each window is in the middle of its share of the entries.
        let starts: Vec<usize> =
            (0..windows).map(|w| (nnz - window) / (2 * windows) * (2 * w + 1)).collect();
        // Each thread measures neighbouring windows, and reuses one array of stamps for them.
        let share = Self::windows_per_task(nnz, windows);
        let tallies = parallel::map_ranges(windows, share, |range| {
            let mut stamps = vec![0u32; groups];
            let mut tally = Tally::default();
            for (w, &start) in starts[range].iter().enumerate() {
                tally.window(w, &col_idx[start..start + window], skipped, &mut stamps);
            }
            tally
        });
        let tally = tallies.into_iter().fold(Tally::default(), Tally::merge);
        tally.reuse(&sampling)
    }

    fn windows_per_task(nnz: usize, windows: usize) -> usize {
        task_size(nnz, windows.div_ceil(rayon::current_num_threads()).max(1))
    }

    /// Bytes that a measurement allocates: a stamp for each group of columns, in every task.
    pub(super) fn stamp_bytes(ncols: usize, nnz: usize) -> usize {
        let groups = Self::groups(ncols);
        let windows = Sampling::of(nnz, groups).windows;
        let tasks = windows.div_ceil(Self::windows_per_task(nnz, windows));
        tasks.saturating_mul(groups).saturating_mul(size_of::<u32>())
    }

    /// The gathers of sampled groups by binary logarithm of their distance, first touches last.
    pub(super) fn of_classes(classes: &[u64; CLASSES + 1], sampling: &Sampling) -> Self {
        let mut tally = Tally::default();
        tally.0[..=CLASSES].copy_from_slice(classes);
        tally.reuse(sampling)
    }

    /// Number of groups of columns.
    pub(super) fn groups(ncols: usize) -> usize {
        (ncols >> GROUP_BITS) + 1
    }

    /// Number of measured gathers.
    pub fn total(&self) -> u64 {
        self.first + self.counts.iter().sum::<u64>()
    }

    /// Share of gathers, from 0 to 1, whose distance is below `entries`. Between the powers of two,
    /// the gathers of a class are assumed to be spread evenly.
    pub fn share_within(&self, entries: f64) -> f64 {
        let within = |class: u32| ((entries / f64::from(1u32 << class)) - 1.0).clamp(0.0, 1.0);
        let sum: f64 =
            (0..).zip(self.counts).map(|(class, count)| within(class) * count as f64).sum();
        ratio(sum, self.total() as f64)
    }
}

/// Size of the sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sampling {
    /// Entries per window.
    pub(super) window: usize,
    /// Number of windows.
    pub(super) windows: usize,
    /// Sampling of groups: one in 2 to this power.
    pub(super) skipped: u32,
}

impl Sampling {
    pub(super) fn of(nnz: usize, groups: usize) -> Self {
        if nnz <= SMALL {
            return Self { window: nnz.min(SMALL / 4), windows: 1, skipped: 0 };
        }
        let skipped = (groups / MIN_SAMPLED_GROUPS).max(1).ilog2().min(MAX_SKIPPED);
        // Groups that cannot be skipped are made up for by fewer entries. Of whole windows every
        // other one suffices.
        let fewer = 1 << (MAX_SKIPPED - skipped);
        let window =
            if fewer > 1 { (TOUCHES * groups).clamp(SMALL / 4, WINDOW) } else { WINDOW }.min(nnz);
        let windows = (nnz / (window * fewer.max(2))).clamp(1, MAX / (window * fewer));
        Self { window, windows, skipped }
    }

    /// Number of entries in all windows.
    pub(super) fn entries(&self) -> usize {
        self.window * self.windows
    }
}

/// True if a group is sampled, at one group in 2 to the power of `skipped`.
fn is_sampled(group: u32, skipped: u32) -> bool {
    ((group ^ group >> 16) as u16).wrapping_mul(GROUP_SPREAD) as u32 >> (16 - skipped) == 0
}

/// Bit mask of the columns whose groups are sampled: bit `i` stands for column `i`.
#[cfg(not(target_arch = "x86_64"))]
fn sampled_mask(cols: &[u32; BATCH], skipped: u32) -> u64 {
    let bit = |(i, &col): (usize, &u32)| u64::from(is_sampled(col >> GROUP_BITS, skipped)) << i;
    cols.iter().enumerate().map(bit).sum()
}

/// Bit mask of the columns whose groups are sampled: bit `i` stands for column `i`. Uses
/// instructions of every x86-64: three times as fast as the compiled loop.
#[cfg(target_arch = "x86_64")]
fn sampled_mask(cols: &[u32; BATCH], skipped: u32) -> u64 {
    use std::arch::x86_64::*;
    // SAFETY: SSE2 is part of the baseline, and nothing is read or written through pointers.
    unsafe {
        let (spread, limit) =
            (_mm_set1_epi32(i32::from(GROUP_SPREAD)), _mm_set1_epi32(1 << (16 - skipped)));
        let four = |cols: &[u32]| {
            let [a, b, c, d] = [cols[0], cols[1], cols[2], cols[3]].map(u32::cast_signed);
            let groups = _mm_srli_epi32::<{ GROUP_BITS as i32 }>(_mm_set_epi32(d, c, b, a));
            // The lower halves, since the upper ones are multiplied by 0.
            let hashes =
                _mm_mullo_epi16(_mm_xor_si128(groups, _mm_srli_epi32::<16>(groups)), spread);
            _mm_cmplt_epi32(hashes, limit)
        };
        let eight = |cols: &[u32]| _mm_packs_epi32(four(&cols[..4]), four(&cols[4..]));
        let sixteen = |cols: &[u32]| _mm_packs_epi16(eight(&cols[..8]), eight(&cols[8..]));
        cols.chunks(16)
            .rev()
            .fold(0, |all, cols| all << 16 | _mm_movemask_epi8(sixteen(cols)) as u64)
    }
}

/// Gathers by binary logarithm of their distance; those from `CLASSES` on are first touches.
#[derive(Debug, Default)]
struct Tally([u64; u32::BITS as usize]);

impl Tally {
    /// Counts the sampled groups of one window, the `w`-th of those that share `stamps`, which
    /// start as zeros.
    ///
    /// The stamp of a group is the number of the entry that touched it last. The numbers begin far
    /// from zero, and those of two windows lie more than a window apart. A stamp from outside of
    /// this window therefore gives a distance of class `CLASSES` or more, which counts as a first
    /// touch, and nothing needs to be cleared or compared.
    fn window(&mut self, w: usize, col_idx: &[u32], skipped: u32, stamps: &mut [u32]) {
        let base = FIRST_NUMBER + (2 * w * WINDOW) as u32;
        let mut touch = |now: u32, col: u32| {
            let stamp = &mut stamps[(col >> GROUP_BITS) as usize];
            self.0[(now - *stamp).ilog2() as usize] += 1;
            *stamp = now;
        };
        if skipped == 0 {
            (base..).zip(col_idx).for_each(|(now, &col)| touch(now, col));
            return;
        }
        let (batches, rest) = col_idx.as_chunks::<BATCH>();
        for (start, batch) in (base..).step_by(BATCH).zip(batches) {
            let mut left = sampled_mask(batch, skipped);
            while left != 0 {
                let i = left.trailing_zeros();
                touch(start + i, batch[i as usize]);
                left &= left - 1;
            }
        }
        for (now, &col) in (base + (col_idx.len() - rest.len()) as u32..).zip(rest) {
            if is_sampled(col >> GROUP_BITS, skipped) {
                touch(now, col);
            }
        }
    }

    fn merge(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
        self
    }

    /// Scales the counts to all groups.
    fn reuse(self, sampling: &Sampling) -> Reuse {
        let Sampling { window, skipped, .. } = *sampling;
        let first = self.0[CLASSES..].iter().sum::<u64>() << skipped;
        let mut counts: [u64; CLASSES] = std::array::from_fn(|class| self.0[class] << skipped);
        let (due, found) = (sampling.entries() as u64, first + counts.iter().sum::<u64>());
        counts[0] = (counts[0] + due).saturating_sub(found);
        Reuse { counts, first, window: window as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::gallery;
    use proptest::prelude::*;

    #[test]
    fn a_few_gathers_by_hand() {
        // Groups 0 0 1 0 2 1 0: distances first 1 first 2 first 3 3.
        let reuse = Reuse::of(24, &[0, 7, 8, 3, 16, 15, 1]);
        assert_eq!((reuse.counts[0], reuse.counts[1], reuse.first, reuse.window), (1, 3, 3, 7));
        assert_eq!(reuse.total(), 7);
        let shares = [0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 1e9].map(|d| reuse.share_within(d) * 7.0);
        assert_eq!(shares, [0.0, 0.0, 0.5, 1.0, 2.5, 4.0, 4.0]);
    }

    #[test]
    fn nothing_is_shared_without_gathers() {
        let reuse = Reuse::of(0, &[]);
        assert_eq!(reuse, Reuse::default());
        assert_eq!(reuse.share_within(10.0), 0.0);
    }

    /// Number of columns at which one group in eight is sampled.
    const MANY: usize = MIN_SAMPLED_GROUPS << (MAX_SKIPPED + GROUP_BITS);

    #[test]
    fn windows_know_nothing_of_one_another_and_threads_do_not_count() {
        // Column 0 throughout; its group is sampled and counts for eight: a first touch in each
        // window, all other distances are 1.
        let col_idx = vec![0; 3 * 2 * WINDOW + 5];
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| Reuse::of(MANY, &col_idx))
        };
        let reuse = on(1);
        assert_eq!((reuse.first, reuse.counts[0]), (3 * 8, 3 * (WINDOW as u64 - 8)));
        assert_eq!(reuse, on(3));
        assert_eq!(reuse, on(2));
    }

    #[test]
    fn a_window_reaches_its_last_class() {
        let mut col_idx = vec![8; WINDOW];
        (col_idx[0], col_idx[WINDOW - 1]) = (0, 0);
        let reuse = Reuse::of(MANY, &col_idx);
        assert_eq!((reuse.first, reuse.counts[CLASSES - 1], reuse.total()), (8, 8, WINDOW as u64));
    }

    #[test]
    fn a_small_matrix_is_measured_in_the_middle() {
        let mut col_idx = vec![0; SMALL];
        col_idx[SMALL * 3 / 8] = 8;
        assert_eq!(Reuse::of(9, &col_idx).first, 2);
        col_idx.rotate_left(1);
        assert_eq!(Reuse::of(9, &col_idx).first, 1);
    }

    #[test]
    fn what_is_looked_at() {
        let of = |nnz, groups| {
            let Sampling { window, windows, skipped } = Sampling::of(nnz, groups);
            (window, windows, skipped)
        };
        assert_eq!([of(0, 1), of(1 << 14, 9000)], [(0, 1, 0), (1 << 14, 1, 0)]);
        assert_eq!([of(SMALL, 9000), of(SMALL + 1, 9000)], [(1 << 14, 1, 0), (SMALL + 1, 1, 3)]);
        assert_eq!([of(WINDOW + 1, 9000), of(6 * WINDOW, 9000)], [(WINDOW, 1, 3), (WINDOW, 3, 3)]);
        assert_eq!(of(1 << 31, 9000), (WINDOW, 16, 3));
        // Few groups: an eighth, a quarter or half of the entries.
        assert_eq!([of(WINDOW, 20), of(WINDOW, 512)], [(1 << 14, 8, 0), (1 << 15, 4, 0)]);
        assert_eq!([of(WINDOW, 1024), of(WINDOW, 2048)], [(1 << 16, 4, 1), (1 << 17, 4, 2)]);
        assert_eq!(of(1 << 31, 20), (1 << 14, 128, 0));
    }

    #[test]
    fn a_sample_agrees_with_the_whole() {
        for entry in gallery::suite() {
            let a = entry.scaled_to(500_000).generate::<f32>().unwrap();
            let found = Reuse::of(a.ncols(), a.col_idx());
            let mut stamps = vec![0; (a.ncols() >> GROUP_BITS) + 1];
            let mut whole = Tally::default();
            whole.window(0, a.col_idx(), 0, &mut stamps);
            let whole = whole.reuse(&Sampling { window: a.nnz(), windows: 1, skipped: 0 });
            for within in [64.0, 1024.0, 8192.0, 131_072.0] {
                let (found, whole) = (found.share_within(within), whole.share_within(within));
                assert!(
                    (found - whole).abs() < 0.02,
                    "{}, {within}: {found}, {whole}",
                    entry.entry().name
                );
            }
        }
    }

    proptest! {
        #[test]
        fn batches_hold_the_sampled_columns(
            cols in prop::array::uniform32(0..crate::matrix::MAX_DIMENSION as u32),
            skipped in 1..=MAX_SKIPPED,
        ) {
            let cols: [u32; BATCH] =
                std::array::from_fn(|i| if i < 32 { cols[i] } else { cols[i - 32] / 1000 });
            let bits = sampled_mask(&cols, skipped);
            for (i, col) in cols.into_iter().enumerate() {
                prop_assert_eq!(bits >> i & 1 == 1, is_sampled(col >> GROUP_BITS, skipped));
            }
        }

        #[test]
        fn agrees_with_the_definition(col_idx in prop::collection::vec(0u32..200, 0..300)) {
            let mut expected = Reuse { window: col_idx.len() as u64, ..Reuse::default() };
            for (k, col) in col_idx.iter().enumerate() {
                match col_idx[..k].iter().rev().position(|before| before / 8 == col / 8) {
                    Some(between) => expected.counts[(between + 1).ilog2() as usize] += 1,
                    None => expected.first += 1,
                }
            }
            prop_assert_eq!(Reuse::of(200, &col_idx), expected);
        }
    }
}
