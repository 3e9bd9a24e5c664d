//! How soon a product comes back to the same part of `x`: what a model of caches needs to know.

use super::rows::ratio;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Entries of one window.
const WINDOW: usize = 1 << 20;

/// A matrix of no more entries is multiplied within some 20 µs, and so measured on a quarter as many.
const SMALL: usize = 1 << 16;

/// Distances within a window lie below `2^CLASSES`.
const CLASSES: usize = WINDOW.ilog2() as usize;

/// At most so many windows: 16 million entries tell a matrix's habits, and more would only take longer.
const MAX_WINDOWS: usize = 16;

/// Entries per window that is measured: every other stretch of a matrix that has no more than [`MAX_WINDOWS`].
const STRIDE: usize = 2 * WINDOW;

/// Number of the first entry of all: further from zero than any window is long.
const FIRST_NUMBER: u32 = 1 << 31;

/// Columns that share a group, as a power of two: 8 numbers are a 32-byte sector in `f32`, a 64-byte line in `f64`.
const GROUP_BITS: u32 = 3;

/// How far apart the gathers from one part of `x` are.
///
/// Every entry, in row order, gathers from the *group* of 8 consecutive columns that holds its own (`col / 8`). Its
/// *distance* is the number of entries since the group was last touched, 1 when the entry before touched it. A cache
/// that keeps the groups of the last `d` entries answers the gathers nearer than `d`: [`share_within`](Self::share_within).
///
/// Measured on evenly spaced windows of 2²⁰ entries that know nothing of one another, one for each 2²¹ entries but at
/// most 16; on the whole matrix where it is no larger than a window, but of one of up to 2¹⁶ entries only on the 2¹⁴ in
/// the middle. First touches within a window are therefore an
/// overestimate of those in the whole matrix, and stand for every distance beyond a window's length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reuse {
    /// Gathers by distance: `counts[b]` of them lie in `2^b .. 2^(b + 1)`.
    pub counts: [u64; CLASSES],
    /// Gathers from a group not touched before in their window; summed over the windows, the groups touched in each.
    pub first: u64,
    /// Entries of each window.
    pub window: u64,
}

impl Reuse {
    /// Measures gathers from the columns `col_idx`, all below `ncols`, in this order.
    pub fn of(ncols: usize, col_idx: &[u32]) -> Self {
        let nnz = col_idx.len();
        let window = nnz.min(if nnz > SMALL { WINDOW } else { SMALL / 4 });
        let windows = (nnz / STRIDE).clamp(1, MAX_WINDOWS);
        // Each in the middle of its share of the entries.
        let starts: Vec<usize> = (0..windows).map(|w| (nnz - window) / (2 * windows) * (2 * w + 1)).collect();
        // Each thread takes neighbouring windows, and one array of stamps serves them all.
        let share = windows.div_ceil(rayon::current_num_threads());
        let tallies = starts.par_chunks(share).map(|starts| {
            let mut stamps = vec![0; (ncols >> GROUP_BITS) + 1];
            let mut tally = Tally::default();
            for (w, &start) in starts.iter().enumerate() {
                tally.window(w, &col_idx[start..start + window], &mut stamps);
            }
            tally
        });
        tallies.reduce(Tally::default, Tally::merge).reuse(window as u64)
    }

    /// All gathers that were measured.
    pub fn total(&self) -> u64 {
        self.first + self.counts.iter().sum::<u64>()
    }

    /// The share of gathers, from 0 to 1, whose distance is below `entries`; between the powers of two the gathers
    /// of a class are taken to be spread evenly.
    pub fn share_within(&self, entries: f64) -> f64 {
        let within = |class: u32| ((entries / f64::from(1u32 << class)) - 1.0).clamp(0.0, 1.0);
        let sum: f64 = (0..).zip(self.counts).map(|(class, count)| within(class) * count as f64).sum();
        ratio(sum, self.total() as f64)
    }

    /// The share of gathers, from 0 to 1, that touch a group for the first time in their window: the distinct groups
    /// of a window over its entries, on average.
    pub fn first_share(&self) -> f64 {
        ratio(self.first as f64, self.total() as f64)
    }
}

/// Gathers by binary logarithm of their distance; those from `CLASSES` on are first touches.
#[derive(Debug, Default)]
struct Tally([u64; u32::BITS as usize]);

impl Tally {
    /// Counts one window, the `w`-th of those that share `stamps`, which start as zeros.
    ///
    /// A group's stamp is the number of the entry that touched it last. The numbers begin far from zero, and those of two windows lie
    /// more than a window apart: so a stamp that is not of this window gives a distance of its own class, and nothing has to be
    /// cleared or compared.
    fn window(&mut self, w: usize, col_idx: &[u32], stamps: &mut [u32]) {
        let base = FIRST_NUMBER + (2 * w * WINDOW) as u32;
        for (now, &col) in (base..).zip(col_idx) {
            let stamp = &mut stamps[(col >> GROUP_BITS) as usize];
            self.0[(now - *stamp).ilog2() as usize] += 1;
            *stamp = now;
        }
    }

    fn merge(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
        self
    }

    fn reuse(self, window: u64) -> Reuse {
        let first = self.0[CLASSES..].iter().sum();
        Reuse { counts: std::array::from_fn(|class| self.0[class]), first, window }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_few_gathers_by_hand() {
        // Groups 0 0 1 0 2 1 0: distances first 1 first 2 first 3 3.
        let reuse = Reuse::of(24, &[0, 7, 8, 3, 16, 15, 1]);
        assert_eq!((reuse.counts[0], reuse.counts[1], reuse.first, reuse.window), (1, 3, 3, 7));
        assert_eq!(reuse.total(), 7);
        assert_eq!(reuse.first_share(), 3.0 / 7.0);
        let shares = [0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 1e9].map(|d| reuse.share_within(d) * 7.0);
        assert_eq!(shares, [0.0, 0.0, 0.5, 1.0, 2.5, 4.0, 4.0]);
    }

    #[test]
    fn nothing_is_shared_without_gathers() {
        let reuse = Reuse::of(0, &[]);
        assert_eq!(reuse, Reuse::default());
        assert_eq!((reuse.share_within(10.0), reuse.first_share()), (0.0, 0.0));
    }

    #[test]
    fn windows_know_nothing_of_one_another_and_threads_do_not_count() {
        // Column 0 throughout: one first touch in each window, all else next door.
        let col_idx = vec![0; 3 * STRIDE + 5];
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| Reuse::of(1, &col_idx))
        };
        let reuse = on(1);
        assert_eq!((reuse.first, reuse.counts[0]), (3, 3 * (WINDOW as u64 - 1)));
        assert_eq!(reuse, on(3));
        assert_eq!(reuse, on(2));
    }

    #[test]
    fn a_window_reaches_its_last_class() {
        let mut col_idx = vec![8; WINDOW];
        (col_idx[0], col_idx[WINDOW - 1]) = (0, 0);
        let reuse = Reuse::of(9, &col_idx);
        assert_eq!((reuse.first, reuse.counts[CLASSES - 1]), (2, 1));
    }

    #[test]
    fn a_small_matrix_is_measured_in_the_middle() {
        let window = |nnz: usize| Reuse::of(1, &vec![0; nnz]).window;
        let sizes = [SMALL / 4, SMALL / 4 + 1, SMALL, SMALL + 1, WINDOW, WINDOW + 1];
        assert_eq!(sizes.map(window), [1 << 14, 1 << 14, 1 << 14, (1 << 16) + 1, 1 << 20, 1 << 20]);
        let mut col_idx = vec![0; SMALL];
        col_idx[SMALL * 3 / 8] = 8;
        assert_eq!(Reuse::of(9, &col_idx).first, 2);
        col_idx.rotate_left(1);
        assert_eq!(Reuse::of(9, &col_idx).first, 1);
    }

    proptest! {
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
