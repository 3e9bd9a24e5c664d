//! Expected times of SpMM with CSR on a GPU by each of its kernels, which decide between them.
//!
//! The constants are fitted to times on an H200, of 41 matrices with 4 to 16 units of vectors, and
//! extrapolated to one and two; those of pairs of units to 38 matrices with 16 units:
//! docs/history/2026-11-30-spmm-by-rows.md.

use crate::device::WARP;

/// Number of sums of largest lengths: the same constant is in `kernels/csr_rows.cu`.
const LENGTH_SUMS: usize = 5;

/// Entries of a row that a group gathers together: `GROUP_ENTRIES` in `kernels/csr_groups.cuh`.
const GROUP_ENTRIES: f64 = 4.0;

/// Multiprocessors of the GPU of the measurement.
const MEASURED_MULTIPROCESSORS: f64 = 132.0;

/// Row lengths of a matrix, or numbers of entries of the rows of its i-nodes. `MeasuredLengths` in
/// `kernels/csr_rows.cu`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct LengthSums {
    /// Sums of the largest lengths of 1, 2, 4, 8 and 16 adjacent rows.
    pub(super) sums: [u64; LENGTH_SUMS],
    /// Largest length.
    pub(super) longest: u64,
    /// Number of entries of rows with the columns of the row before them.
    pub(super) repeated: u64,
}

impl LengthSums {
    /// Of rows with these lengths, none of which repeats another one.
    pub(super) fn of(lengths: impl IntoIterator<Item = u32>) -> Self {
        let (mut own, mut largest) = (Self::default(), [0; LENGTH_SUMS]);
        for (row, length) in lengths.into_iter().enumerate() {
            own.longest = own.longest.max(u64::from(length));
            for (i, largest) in largest.iter_mut().enumerate() {
                // The first of as many adjacent rows.
                if row % (1 << i) == 0 {
                    *largest = 0;
                }
                own.sums[i] += u64::from(length.saturating_sub(*largest));
                *largest = length.max(*largest);
            }
        }
        own
    }
}

/// Number of groups that share the entries of a row, and the expected time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RowSplit {
    /// Binary logarithm of their number.
    pub(super) split: u32,
    /// Expected time of a product.
    pub(super) microseconds: f64,
}

/// Terms of the time of a kernel that multiplies row by row.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowTerms {
    /// Time of an empty product, in microseconds.
    start: f64,
    /// Nanoseconds of a warp if all multiprocessors are busy.
    warp: f64,
    /// Nanoseconds of a step of a warp, to the next entries of its rows, likewise.
    step: f64,
    /// Nanoseconds of a row of a step, likewise.
    row: f64,
    /// Microseconds of a step that waits for nothing but its gathers.
    latency: f64,
}

impl RowTerms {
    /// Rows one by one.
    pub(super) const ROWS: Self =
        Self { start: 1.3, warp: 0.17, step: 0.185, row: 0.007, latency: 0.5 };
    /// Rows one by one by lanes with a pair of units each.
    pub(super) const ROWS_BY_PAIRS: Self =
        Self { start: 0.6, warp: 0.274, step: 0.273, row: 0.009, latency: 0.55 };
    /// I-nodes.
    pub(super) const INODES: Self =
        Self { start: 1.1, warp: 0.48, step: 0.265, row: 0.041, latency: 0.64 };

    /// The fastest split of `rows` rows of these lengths among groups of `1 << shift` lanes.
    pub(super) fn fastest(
        self,
        lengths: &LengthSums,
        rows: usize,
        shift: u32,
        multiprocessors: usize,
    ) -> RowSplit {
        let time = |split: u32| {
            let log2_rows = WARP.ilog2() - shift - split;
            let (rows_of_warp, parts) = (1_usize << log2_rows, f64::from(1 << split));
            let warps = rows.div_ceil(rows_of_warp) as f64;
            let entries = GROUP_ENTRIES * parts;
            // The last step of a warp is half full in the mean.
            let steps = lengths.sums[log2_rows as usize] as f64 / entries + warps / 2.0;
            let step = self.step + self.row * rows_of_warp as f64;
            let scale = MEASURED_MULTIPROCESSORS / multiprocessors as f64;
            let busy = (warps * self.warp + steps * step) * scale * 1e-3;
            let waiting = self.latency * (lengths.longest as f64 / entries + 1.0);
            RowSplit { split, microseconds: self.start + overlapped(busy, waiting) }
        };
        // There is no sum of 32 rows: at least two groups of one lane share a row.
        let least = u32::from(shift == 0);
        let times = (least..=WARP.ilog2() - shift).map(time);
        times.min_by(|a, b| a.microseconds.total_cmp(&b.microseconds)).expect("at least one split")
    }
}

/// Expected microseconds of groups of `1 << shift` lanes, each with a part of the entries.
pub(super) fn of_groups(nrows: usize, nnz: usize, shift: u32, multiprocessors: usize) -> f64 {
    /// Microseconds of a block, and of the start of many.
    const BLOCK_US: f64 = 5.6;
    const START: f64 = 1.5;
    /// Picoseconds of an entry, of a lane of an entry and of a lane of a row.
    const ENTRY: f64 = 4.5;
    const LANE: f64 = 1.41;
    const ROW: f64 = 7.4;
    let lanes = f64::from(1 << shift);
    let scale = MEASURED_MULTIPROCESSORS / multiprocessors as f64;
    let entries = (ENTRY + LANE * lanes) * nnz as f64;
    let rows = ROW * lanes * nrows as f64;
    overlapped(BLOCK_US, START + (entries + rows) * scale * 1e-6)
}

/// Sum of two times that overlap for the most part: little more than the larger one.
fn overlapped(a: f64, b: f64) -> f64 {
    (a.powi(3) + b.powi(3)).cbrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_adjacent_rows() {
        let lengths = LengthSums::of([3, 1, 0, 7, 2]);
        let expected = LengthSums { sums: [13, 12, 9, 7, 7], longest: 7, repeated: 0 };
        assert_eq!(lengths, expected);
        assert_eq!(LengthSums::of([]), LengthSums::default());
        let kernel = include_str!("../../../../kernels/csr_rows.cu");
        assert!(kernel.contains(&format!("constexpr u32 LENGTH_SUMS = {LENGTH_SUMS};")));
        let groups = include_str!("../../../../kernels/csr_groups.cuh");
        assert!(groups.contains("constexpr u32 GROUP_ENTRIES = 4,"));
    }

    /// The fastest split of rows of these lengths on the GPU of the measurement.
    fn fastest(terms: RowTerms, lengths: &[u32], lane_shift: u32) -> RowSplit {
        terms.fastest(&LengthSums::of(lengths.iter().copied()), lengths.len(), lane_shift, 132)
    }

    /// Split of rows, and whether it is expected to be faster than groups.
    fn split(lengths: &[u32], shift: u32) -> (u32, bool) {
        let nnz = lengths.iter().map(|&length| length as usize).sum();
        let fastest = fastest(RowTerms::ROWS, lengths, shift);
        (fastest.split, fastest.microseconds < of_groups(lengths.len(), nnz, shift, 132))
    }

    #[test]
    fn rows_are_split_where_that_is_faster() {
        assert_eq!(split(&[7; 64_000], 2), (0, true), "a stencil");
        assert_eq!(split(&[72; 1213], 2), (3, true), "few rows");
        assert_eq!(split(&[27; 512_000], 4), (0, true), "many vectors");
        assert!(split(&[27; 512_000], 2).1, "long rows");
        let mut skewed = vec![7; 64_000];
        skewed[30_000] = 4000;
        assert!(!split(&skewed, 2).1, "a long row");
        let alternate: Vec<u32> = (0..60_000).map(|row| 1 + row % 8 / 7 * 40).collect();
        assert!(!split(&alternate, 2).1, "rows of different lengths in a warp");
    }

    #[test]
    fn pairs_of_units_are_faster_than_twice_as_many_lanes() {
        for (lengths, expected) in
            [(vec![27; 512_000], 0), (vec![7; 64_000], 0), (vec![72; 1213], 2)]
        {
            let pairs = fastest(RowTerms::ROWS_BY_PAIRS, &lengths, 3);
            assert_eq!(pairs.split, expected, "{pairs:?}");
            assert!(pairs.microseconds < fastest(RowTerms::ROWS, &lengths, 4).microseconds);
        }
    }

    #[test]
    fn every_group_has_a_split() {
        let lengths = LengthSums::of([5; 100]);
        for shift in 0..=4 {
            let RowSplit { split, microseconds } =
                RowTerms::INODES.fastest(&lengths, 100, shift, 132);
            assert!(split + shift <= 5 && split + shift >= 1 && microseconds.is_finite());
        }
    }
}
