//! Fill of small dense blocks.

use super::rows::ratio;
use crate::matrix::CsrColumns;
use crate::parallel::{self, SparePool};
use serde::{Deserialize, Serialize};

/// Rows of a row group: the least number that whole block rows of every size fill.
const GROUP_ROWS: usize = 12;

/// Largest number of entries at which all entries are counted.
const EXACT_NNZ: usize = 1 << 12;

/// Smallest sample, in entries, approximately.
const MIN_SAMPLE: usize = 1 << 11;

/// Sampling distance in entries, which keeps the cost well below that of an SpMV.
const SAMPLING: usize = 32;

/// Largest sample, in entries: enough for an error of a few per cent even if rows have hundreds of
/// entries.
const MAX_SAMPLE: usize = 1 << 17;

/// Minimum number of sampled row groups, independent of the length of their rows.
const MIN_DRAWS: usize = 32;

/// Row groups per parallel task: distributing fewer takes longer than counting their blocks.
const GROUPS_PER_TASK: usize = 32;

/// Fill of aligned dense blocks: for blocks of `b` × `b`, `nnz / (b² · blocks)`, where `blocks`
/// is the number of aligned blocks that hold an entry. 1 means that blocks store no zeros,
/// `1 / b²` that every entry has a block of its own. Repeated entries count each time and can
/// raise it above 1. 0 without entries.
///
/// Exact up to 2¹² entries, estimated beyond from row groups of 12 rows, drawn at evenly spaced
/// *entries*. A group is thus drawn in proportion to its entries, and the mean of its blocks per
/// entry estimates that of the whole matrix, with long rows in their due weight (sampling with
/// probability proportional to size, Hansen & Hurwitz 1943). If rows are alike the error is within
/// a few per cent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockFill {
    /// Fill of 2 × 2 blocks.
    pub b2: f64,
    /// Fill of 3 × 3 blocks.
    pub b3: f64,
    /// Fill of 4 × 4 blocks.
    pub b4: f64,
    /// True if every entry was counted.
    pub exact: bool,
}

impl BlockFill {
    /// Measures `a`; columns may be unsorted and repeated.
    pub(super) fn of(a: CsrColumns<'_>) -> Self {
        let exact = a.nnz() <= EXACT_NNZ;
        let groups = if exact { all_groups(a) } else { drawn_groups(a) };
        let blocks_per_entry = |table: &mut DenseBlockTable, &(group, weight): &(usize, usize)| {
            let entries = group_entries(a, group).len() as f64;
            let blocks = [
                table.count::<2>(a, group),
                table.count::<3>(a, group),
                table.count::<4>(a, group),
            ];
            blocks.map(|blocks| (weight as u64 * blocks) as f64 / entries)
        };
        let spare = SparePool::new(DenseBlockTable::default);
        let terms = parallel::map_ranges(groups.len(), GROUPS_PER_TASK, |range| {
            spare.with(|table| {
                groups[range].iter().map(|group| blocks_per_entry(table, group)).collect::<Vec<_>>()
            })
        });
        let terms = terms.concat();
        // Summed in a fixed order: the result has the same bits on any number of threads.
        let sum = |size: usize| terms.iter().map(|term| term[size]).sum::<f64>();
        let weights = groups.iter().map(|group| group.1 as f64).sum::<f64>();
        let fill = |b: usize| ratio(weights, (b * b) as f64 * sum(b - 2));
        Self { b2: fill(2), b3: fill(3), b4: fill(4), exact }
    }
}

/// Range of the entries of a row group.
fn group_entries(a: CsrColumns<'_>, group: usize) -> std::ops::Range<usize> {
    let row = |row: usize| a.row_ptr()[row.min(a.nrows())];
    row(group * GROUP_ROWS)..row((group + 1) * GROUP_ROWS)
}

/// Every row group that has entries, weighted by them: each term of the mean is then the group's
/// number of blocks, exactly.
fn all_groups(a: CsrColumns<'_>) -> Vec<(usize, usize)> {
    let groups =
        (0..a.nrows().div_ceil(GROUP_ROWS)).map(|group| (group, group_entries(a, group).len()));
    groups.filter(|group| group.1 > 0).collect()
}

/// Row groups of evenly spaced entries, weighted by the number of times they are drawn.
fn drawn_groups(a: CsrColumns<'_>) -> Vec<(usize, usize)> {
    let sample = (a.nnz() / SAMPLING).clamp(MIN_SAMPLE, MAX_SAMPLE);
    let groups = a.nrows().div_ceil(GROUP_ROWS);
    let draws = ((sample as u64 * groups as u64).div_ceil(a.nnz() as u64) as usize).max(MIN_DRAWS);
    // A draw is the middle entry of its share of the entries.
    let entry = |i: usize| ((2 * i + 1) as u128 * a.nnz() as u128 / (2 * draws) as u128) as usize;
    let mut drawn: Vec<(usize, usize)> = Vec::new();
    let mut row = 0;
    for i in 0..draws {
        row = row_of(a.row_ptr(), row, entry(i));
        match drawn.last_mut() {
            Some((group, times)) if *group == row / GROUP_ROWS => *times += 1,
            _ => drawn.push((row / GROUP_ROWS, 1)),
        }
    }
    drawn
}

/// Row of an entry that is not in a row before `from`. The next draw is near: searching in doubling
/// steps touches few cache lines, a binary search through all offsets many.
pub(super) fn row_of(row_ptr: &[usize], from: usize, entry: usize) -> usize {
    let mut reach = 1;
    while row_ptr.get(from + reach).is_some_and(|&start| start <= entry) {
        reach *= 2;
    }
    let near = &row_ptr[from + reach / 2..(from + reach).min(row_ptr.len())];
    from + reach / 2 + near.partition_point(|&start| start <= entry) - 1
}

/// 2³² over the golden ratio: multiplying by it distributes keys over the upper bits (Knuth,
/// TAOCP 3, 6.4).
const SPREAD: u32 = 0x9e37_79b9;

/// Set of the block columns of one block row: an open-addressing hash table. A slot holds the
/// number of the block row, which is never 0, above the block column. Slots of earlier block rows
/// count as free, so that the table is never cleared.
#[derive(Debug, Default)]
struct DenseBlockTable {
    slots: Vec<u64>,
    block_rows: u32,
}

impl DenseBlockTable {
    /// Counts the `B` × `B` blocks with entries in `group`.
    fn count<const B: usize>(&mut self, a: CsrColumns<'_>, group: usize) -> u64 {
        let rows = group * GROUP_ROWS..((group + 1) * GROUP_ROWS).min(a.nrows());
        let block_rows = rows.clone().step_by(B).map(|row| {
            let entries = a.row_ptr()[row]..a.row_ptr()[(row + B).min(rows.end)];
            self.block_row::<B>(&a.col_idx()[entries])
        });
        block_rows.sum()
    }

    /// Counts the distinct `col / B` of one block row.
    fn block_row<const B: usize>(&mut self, columns: &[u32]) -> u64 {
        // At most a quarter full, so that probing is rarely needed. 32 bits suffice for that too,
        // because there are fewer than 2³¹ block columns. At least two slots, because the shift
        // below must stay under 32.
        let bits = (4 * columns.len()).next_power_of_two().ilog2().clamp(1, u32::BITS);
        if self.slots.len() < 1 << bits {
            self.slots = vec![0; 1 << bits];
        }
        self.block_rows += 1;
        let slots = &mut self.slots[..1 << bits];
        let (row, mask) = (u64::from(self.block_rows), (1 << bits) - 1);
        let mut count = 0;
        for &col in columns {
            let block = col / B as u32;
            let key = row << u32::BITS | u64::from(block);
            let mut slot = (block.wrapping_mul(SPREAD) >> (u32::BITS - bits)) as usize;
            // It is unpredictable if a block is new, so no branch may depend on it: `&` and not
            // `&&`.
            while (slots[slot] != key) & (slots[slot] >> u32::BITS == row) {
                slot = (slot + 1) & mask;
            }
            count += u64::from(slots[slot] != key);
            slots[slot] = key;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::CsrMatrix;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn matrix(ncols: usize, rows: &[Vec<u32>]) -> CsrMatrix<f32> {
        let mut row_ptr = vec![0];
        row_ptr.extend(rows.iter().scan(0, |end, row| {
            *end += row.len();
            Some(*end)
        }));
        let col_idx = rows.concat();
        let values = vec![1.0; col_idx.len()];
        CsrMatrix::try_new(rows.len(), ncols, row_ptr, col_idx, values).unwrap()
    }

    fn naive(rows: &[Vec<u32>], b: usize) -> f64 {
        let entries = || {
            rows.iter()
                .enumerate()
                .flat_map(|(i, row)| row.iter().map(move |&col| (i, col as usize)))
        };
        let blocks: BTreeSet<_> = entries().map(|(i, j)| (i / b, j / b)).collect();
        ratio(entries().count() as f64, (b * b * blocks.len()) as f64)
    }

    #[test]
    fn by_hand() {
        // x x . .
        // x x . .
        // . . . x
        let a = matrix(4, &[vec![0, 1], vec![1, 0], vec![3]]);
        let fill = BlockFill::of(a.view().columns());
        assert_eq!(fill, BlockFill { b2: 5.0 / 8.0, b3: 5.0 / 18.0, b4: 5.0 / 16.0, exact: true });
    }

    #[test]
    fn nothing_fills_nothing() {
        for (m, n) in [(0, 0), (0, 3), (3, 0), (3, 3)] {
            let a = CsrMatrix::<f64>::zeros(m, n).unwrap();
            assert_eq!(
                BlockFill::of(a.view().columns()),
                BlockFill { exact: true, ..BlockFill::default() }
            );
        }
    }

    #[test]
    fn a_sample_of_blocks_that_are_all_full_is_exact() {
        let rows: Vec<Vec<u32>> =
            (0..30_000u32).map(|i| (i / 3 * 3..i / 3 * 3 + 3).collect()).collect();
        let fill = BlockFill::of(matrix(30_000, &rows).view().columns());
        assert!(!fill.exact);
        assert!((fill.b3 - 1.0).abs() < 1e-12, "{fill:?}");
        assert!((fill.b2 / naive(&rows, 2) - 1.0).abs() < 1e-9, "{fill:?}");
    }

    #[test]
    fn a_sample_is_close_even_when_one_row_is_dense() {
        let mut rows: Vec<Vec<u32>> = (0..40_000u32)
            .map(|i| (0..3 + i % 5).map(|j| (i + j * (i % 7)) % 40_000).collect())
            .collect();
        rows[17] = (0..40_000).collect();
        let fill = BlockFill::of(matrix(40_000, &rows).view().columns());
        assert!(!fill.exact);
        for (found, b) in [(fill.b2, 2), (fill.b3, 3), (fill.b4, 4)] {
            assert!(
                (found / naive(&rows, b) - 1.0).abs() < 0.03,
                "{b}: {found} {}",
                naive(&rows, b)
            );
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(
            rows in prop::collection::vec(prop::collection::vec(0u32..40, 0..12), 0..40),
        ) {
            let fill = BlockFill::of(matrix(40, &rows).view().columns());
            prop_assert_eq!(fill.b2, naive(&rows, 2));
            prop_assert_eq!(fill.b3, naive(&rows, 3));
            prop_assert_eq!(fill.b4, naive(&rows, 4));
        }
    }
}
