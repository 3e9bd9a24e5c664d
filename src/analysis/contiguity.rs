//! Column contiguity: the shares of entries that are shifted from the previous row or contiguous
//! within their row, measured on a sample.

use super::blocks::row_of;
use super::constants::{SECTION, SPREAD};
use super::rows::ratio;
use super::task_size;
use crate::matrix::CsrColumns;
use crate::parallel;
use std::ops::Range;

/// Largest number of entries at which all entries are measured.
const EXACT_NNZ: usize = 1 << 14;

/// Sampling distance in sections of entries.
const SAMPLING: usize = 16;

/// Sections per parallel task: distributing fewer takes longer than measuring them.
const SECTIONS_PER_TASK: usize = 32;

/// Column contiguity: shares of the entries, from 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Contiguity {
    /// Share shifted from the previous row: entry `j` of row `r` lies one column further than entry
    /// `j` of row `r - 1`.
    pub(super) shifted: f64,
    /// Share contiguous: the column is one more than that of the previous entry of the row.
    pub(super) contiguous: f64,
}

impl Contiguity {
    /// Measures `a`.
    pub(super) fn of(a: CsrColumns<'_>) -> Self {
        let (_, count) = sections(a.nnz());
        let size = task_size(a.nnz(), SECTIONS_PER_TASK);
        let sampled = parallel::map(count, size, |i| ContiguityCounts::of(a, section(a.nnz(), i)));
        let ContiguityCounts { entries, shifted, contiguous } =
            sampled.into_iter().fold(ContiguityCounts::default(), ContiguityCounts::merge);
        Self {
            shifted: ratio(shifted as f64, entries as f64),
            contiguous: ratio(contiguous as f64, entries as f64),
        }
    }
}

/// Sampling distance of the sections of a matrix, and their number.
pub(super) fn sections(nnz: usize) -> (usize, usize) {
    let every = if nnz <= EXACT_NNZ { 1 } else { SAMPLING };
    (every, nnz.div_ceil(SECTION).div_ceil(every))
}

/// Entries of sampled section number `i`.
fn section(nnz: usize, i: usize) -> Range<usize> {
    let (every, _) = sections(nnz);
    let section = (i * every + scattered(i, every)).min(nnz.div_ceil(SECTION) - 1);
    section * SECTION..((section + 1) * SECTION).min(nnz)
}

/// Number of entries in all sampled sections. Only the last one may be shorter.
pub(super) fn sampled(nnz: usize) -> usize {
    let (_, count) = sections(nnz);
    (0..count).map(|i| section(nnz, i).len()).sum()
}

/// A number below `count` that differs for every `i`: evenly spaced samples may hit the same place
/// of every grid line.
fn scattered(i: usize, count: usize) -> usize {
    ((i as u64).wrapping_mul(SPREAD) >> 32) as usize % count
}

#[derive(Debug, Default)]
struct ContiguityCounts {
    entries: usize,
    shifted: usize,
    contiguous: usize,
}

impl ContiguityCounts {
    /// Counts a range of entries, by their numbers.
    fn of(a: CsrColumns<'_>, entries: Range<usize>) -> Self {
        let (row_ptr, col_idx) = (a.row_ptr(), a.col_idx());
        let mut counts = Self { entries: entries.len(), ..Self::default() };
        let mut row = row_of(row_ptr, 0, entries.start);
        while row < a.nrows() && row_ptr[row] < entries.end {
            let (start, end) = (row_ptr[row], row_ptr[row + 1]);
            let (from, to) = (start.max(entries.start), end.min(entries.end));
            let above = if row > 0 { &col_idx[row_ptr[row - 1]..start] } else { &[] };
            let above = above.get(from - start..).unwrap_or_default();
            let continues = |(&col, &over): (&u32, &u32)| col == over.wrapping_add(1);
            counts.shifted +=
                col_idx[from..to].iter().zip(above).filter(|&pair| continues(pair)).count();
            let second = from.max(start + 1).min(to);
            let before = &col_idx[second.saturating_sub(1)..];
            counts.contiguous +=
                col_idx[second..to].iter().zip(before).filter(|&pair| continues(pair)).count();
            row += 1;
        }
        counts
    }

    fn merge(self, other: Self) -> Self {
        Self {
            entries: self.entries + other.entries,
            shifted: self.shifted + other.shifted,
            contiguous: self.contiguous + other.contiguous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{CsrMatrix, gallery};
    use proptest::prelude::*;

    /// Reference: computed by the definition.
    fn whole(a: &CsrMatrix<f32>) -> Contiguity {
        let rows: Vec<&[u32]> = (0..a.nrows()).map(|row| a.view().row(row).0).collect();
        let shifted: usize = rows
            .windows(2)
            .map(|pair| {
                pair[1].iter().zip(pair[0]).filter(|(col, over)| **col == **over + 1).count()
            })
            .sum();
        let contiguous =
            rows.iter().flat_map(|row| row.windows(2)).filter(|w| w[1] == w[0] + 1).count();
        let share = |count: usize| ratio(count as f64, a.nnz() as f64);
        Contiguity { shifted: share(shifted), contiguous: share(contiguous) }
    }

    #[test]
    fn a_sample_agrees_with_the_whole() {
        for entry in gallery::suite() {
            for entries in [100_000, 1_000_000] {
                let a = entry.scaled_to(entries).generate::<f32>().unwrap();
                let (estimated, found) = (Contiguity::of(a.view().columns()), whole(&a));
                let most = if a.nnz() <= EXACT_NNZ { 1e-12 } else { 0.02 };
                let error = (estimated.shifted - found.shifted)
                    .abs()
                    .max((estimated.contiguous - found.contiguous).abs());
                assert!(error < most, "{}: {estimated:?}, {found:?}", entry.entry().name);
            }
        }
    }

    #[test]
    fn grid_lines_as_long_as_the_samples_are_apart_are_met_everywhere() {
        // Every sixteenth section has different rows.
        let rows = 32 * EXACT_NNZ / 4;
        let cols = (0..4 * rows)
            .map(|k| if k / SECTION % SAMPLING == 3 { 7 } else { (k / 4 + k % 4) as u32 });
        let row_ptr = (0..=rows).map(|row| 4 * row).collect();
        let a = CsrMatrix::try_new(rows, rows + 4, row_ptr, cols.collect(), vec![1.0f32; 4 * rows])
            .unwrap();
        let (estimated, found) = (Contiguity::of(a.view().columns()), whole(&a));
        assert!((estimated.shifted - found.shifted).abs() < 0.05, "{estimated:?}, {found:?}");
    }

    proptest! {
        #[test]
        fn small_matrices_are_measured_exactly(
            rows in prop::collection::vec(prop::collection::vec(0u32..40, 0..9), 0..300),
        ) {
            let row_ptr = std::iter::once(0).chain(rows.iter().scan(0, |end, row| {
                *end += row.len();
                Some(*end)
            })).collect();
            let cols = rows.concat();
            let values = vec![1.0f32; cols.len()];
            let a = CsrMatrix::try_new(rows.len(), 40, row_ptr, cols, values).unwrap();
            prop_assert_eq!(Contiguity::of(a.view().columns()), whole(&a));
        }
    }
}
