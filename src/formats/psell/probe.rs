//! Size of a matrix as packed SELL: estimated from a sample of its slices, without packing.

use super::host::{SliceBatch, SlicedRows};
use super::index::LANES;
use super::sample::{ArrivedSlices, EncodedSlices, SliceSamples, WINDOW};
use super::sizes::SliceSizes;
use super::{Order, Packing};
use crate::analysis::{Analysis, PARALLEL_MIN, RowStats, Sampler};
use crate::{Error, parallel};

/// Largest sum of rows and entries at which the pattern is stored whole and measured exactly.
const EXACT: usize = 1 << 14;

/// Least number of entries of long rows less one: two per lane. On an H200 the gallery's `webbase`
/// took 542 µs with one row in a thousand as a long row, 110 µs with those beyond 64 entries
/// (`f32`).
const LEAST_SPLIT: u32 = 64;

/// Long rows have more than twice the mean if at most a sixteenth of the rows are long and the
/// longest is this much longer than all others, and else more than four times the mean. On an H200
/// packed SELL took 0.89 times as long with the first limit as with the second on 81 matrices
/// with such rows, but up to 1.37 times where one of the conditions is violated:
/// docs/history/2026-11-29-extreme-rows.md.
const LONG: (f64, f64) = (2.0, 4.0);
const FEW_LONG: f64 = 1.0 / 16.0;
const MUCH_LONGER: f64 = 1.25;

/// Estimated size as packed SELL, for rows in natural order and for rows sorted by length.
///
/// Exact if rows and entries together are at most 2¹⁴. Larger matrices are estimated from slices
/// at even distances. These have one entry in 16, at most 2¹⁶; in matrices of up to 2¹⁶
/// entries one in 32, at least 2¹⁰. If slices are alike the error is within a few per cent.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SliceProbe {
    /// Threshold of long rows: rows with more entries are measured separately. At most
    /// [`Packing::MAX_SPLIT`], less if few rows are much longer than the others.
    pub(crate) split: u32,
    /// Size with the rows in natural order.
    pub(crate) natural: SliceSizes,
    /// Size with the rows sorted by length in windows of 512.
    pub(crate) sorted: SliceSizes,
    /// The whole pattern, of a small matrix.
    pattern: Option<ColumnSample>,
}

/// Row offsets and column indices.
#[derive(Debug, Clone, PartialEq)]
struct ColumnSample {
    row_ptr: Vec<usize>,
    col_idx: Vec<u32>,
    ncols: usize,
}

impl SliceProbe {
    /// The probe of an analysed matrix.
    pub(crate) fn of(analysis: &Analysis) -> &Self {
        analysis.probes.get().expect("every format probes every matrix")
    }

    /// Takes samples of `a`, which has the row statistics `rows`. The returned function measures
    /// them.
    ///
    /// # Errors
    ///
    /// Errors of a GPU that has the matrix in its memory.
    pub(crate) fn sample<'a>(
        a: Sampler<'a>,
        rows: &'a RowStats,
    ) -> Result<impl FnOnce() -> Result<Self, Error> + 'a, Error> {
        let (split, is_exact) = (split_of(rows), a.nrows() + a.nnz() <= EXACT);
        let samples = if is_exact { None } else { Some(SliceSamples::of(a, rows, split)?) };
        Ok(move || {
            let Some(samples) = samples else {
                let pattern = ColumnSample::all_of(a)?;
                let sizes = |order| pattern.sizes(order, split);
                let (natural, sorted) = (sizes(Order::Natural), sizes(Order::Windows(WINDOW)));
                return Ok(Self { split, natural, sorted, pattern: Some(pattern) });
            };
            let (nnz, ncols, slices) = (a.nnz(), a.ncols(), a.nrows().div_ceil(LANES) as u64);
            let entries = rows.histogram.entries_up_to(split);
            let (natural, sorted) = match samples {
                SliceSamples::Host(samples) => {
                    let [natural, sorted] = *samples;
                    let (natural, sorted) = (natural.wait()?, sorted.wait()?);
                    let estimated = |sample: &ArrivedSlices<'_>| {
                        let batches = sample.encoded(nnz, ncols);
                        let all = batches.iter().flat_map(SliceBatch::iter);
                        let all = all.map(|(encoded, slots)| (*encoded, slots));
                        SliceSizes::estimated(all, slices, entries)
                    };
                    let (natural, sorted) = (|| estimated(&natural), || estimated(&sorted));
                    match nnz < PARALLEL_MIN {
                        true => (natural(), sorted()),
                        false => parallel::join(natural, sorted),
                    }
                }
                SliceSamples::Gpu(samples) => {
                    let [natural, sorted] = samples.map(EncodedSlices::wait);
                    let estimated =
                        |all: Vec<_>| SliceSizes::estimated(all.into_iter(), slices, entries);
                    (estimated(natural?), estimated(sorted?))
                }
            };
            Ok(Self { split, natural, sorted, pattern: None })
        })
    }

    /// True if every slice was measured.
    pub(crate) fn is_exact(&self) -> bool {
        self.pattern.is_some()
    }

    /// Size with the rows in an order, and rows longer than `split` stored separately. If only a
    /// sample was measured, sorted windows of all sizes are assumed to be alike.
    pub(crate) fn sizes(&self, rows: &RowStats, order: Order, split: u32) -> SliceSizes {
        let measured = match order {
            Order::Natural => self.natural,
            Order::Windows(_) => self.sorted,
        };
        match &self.pattern {
            _ if split == self.split
                && matches!(order, Order::Natural | Order::Windows(WINDOW)) =>
            {
                measured
            }
            Some(pattern) => pattern.sizes(order, split),
            None if rows.max <= split => measured.scaled_to(rows.nnz).without_filled_lanes(),
            None => measured.scaled_to(rows.histogram.entries_up_to(split)),
        }
    }
}

impl ColumnSample {
    /// The whole pattern.
    fn all_of(a: Sampler<'_>) -> Result<Self, Error> {
        let row_ptr = a.offsets(std::iter::once(0..a.nrows() + 1).collect())?.wait()?;
        let col_idx = a.columns(std::iter::once(0..a.nnz()).collect())?.wait()?;
        let (row_ptr, col_idx) = (row_ptr.get(0).to_vec(), col_idx.get(0).to_vec());
        Ok(Self { row_ptr, col_idx, ncols: a.ncols() })
    }

    fn sizes(&self, order: Order, split: u32) -> SliceSizes {
        let Self { row_ptr, col_idx, ncols } = self;
        // A sample is small; without memory for its order, the natural one is measured.
        let perm = order.permutation(row_ptr, split).ok().flatten();
        SlicedRows { row_ptr, col_idx, perm: perm.as_deref(), ncols: *ncols, split }.sizes()
    }
}

/// Length beyond which the rows of a matrix are long rows.
fn split_of(rows: &RowStats) -> u32 {
    // `MAX_SPLIT` means no long rows: if some rows are too long for a slice, `split` is less.
    let most = f64::from(Packing::MAX_SPLIT - 1);
    let at = |times: f64| ((times * rows.mean).ceil().min(most) as u32).max(LEAST_SPLIT);
    let (near, far) = (at(LONG.0), at(LONG.1));
    let are_few = rows.histogram.rows_longer(near) as f64 <= FEW_LONG * rows.nrows as f64;
    let others = f64::from(rows.histogram.longest_up_to(near));
    let are_long = f64::from(rows.max) > MUCH_LONGER * others;
    let split = if are_few && are_long { near } else { far };
    if rows.max > split { split } else { Packing::MAX_SPLIT }
}

#[cfg(test)]
mod tests {
    use super::super::HostPsell;
    use super::*;
    use crate::matrix::{CsrMatrix, gallery};

    fn generate(spec: &str) -> CsrMatrix<f32> {
        spec.parse::<gallery::Spec>().unwrap().generate().unwrap()
    }

    /// Bytes of index and values in `f32`, estimated and exact.
    fn bytes(a: &CsrMatrix<f32>, order: Order, split: u32) -> (u64, u64) {
        let analysis = Analysis::of(a.view());
        let estimated = SliceProbe::of(&analysis).sizes(&analysis.rows, order, split);
        let packed =
            HostPsell::pack(a.view(), order, Packing { split, ..Packing::default() }).unwrap();
        let found = size_of_val(&*packed.index) + packed.values.bytes();
        (estimated.index_bytes + estimated.value_bytes(4), found as u64)
    }

    #[test]
    fn small_matrices_are_measured_exactly() {
        for spec in
            ["poisson2d,n=40", "banded,rows=600", "webbase,rows=2k", "circuit,rows=2k", "fem3d,n=4"]
        {
            let a = generate(spec);
            assert!(
                SliceProbe::of(&Analysis::of(a.view())).is_exact(),
                "{spec}: {} entries",
                a.nnz()
            );
            for order in [
                Order::Natural,
                Order::Windows(7),
                Order::Windows(WINDOW),
                Order::Windows(usize::MAX),
            ] {
                for split in [3, 100, Packing::MAX_SPLIT] {
                    let (estimated, found) = bytes(&a, order, split);
                    assert_eq!(estimated, found, "{spec}, {order:?}, {split}");
                }
            }
        }
    }

    #[test]
    fn larger_ones_are_estimated_within_a_few_per_cent() {
        // Small matrices have a larger error: they have a few hundred slices, of which a dozen are
        // sampled.
        for (entries, most) in [(400_000, 0.06), (50_000, 0.12)] {
            for entry in gallery::suite().filter(|spec| spec.entry().name != "small") {
                let a = entry.scaled_to(entries).generate::<f32>().unwrap();
                let analysis = Analysis::of(a.view());
                let probe = SliceProbe::of(&analysis);
                assert!(!probe.is_exact());
                for order in [Order::Natural, Order::Windows(WINDOW)] {
                    let (estimated, found) = bytes(&a, order, probe.split);
                    let error = estimated as f64 / found as f64 - 1.0;
                    assert!(
                        error.abs() < most,
                        "{}, {order:?}: {estimated} of {found}",
                        entry.entry().name
                    );
                }
            }
        }
    }

    #[test]
    fn shares_of_the_kinds_by_hand() {
        // Two slices along a diagonal, one of scattered columns.
        let col = |row: u32| if row < 64 { row } else { row * 7919 % 1000 };
        let a = CsrMatrix::try_new(
            96,
            1000,
            (0..=96).collect(),
            (0..96).map(col).collect(),
            vec![1.0f32; 96],
        );
        let analysis = Analysis::of(a.unwrap().view());
        let probe = SliceProbe::of(&analysis);
        assert_eq!(probe.natural.stored_by_kind, [64, 0, 32, 0]);
        assert_eq!(
            (probe.natural.index_bytes, probe.natural.slices, probe.natural.lane_slots),
            (16 + 64, 3, 1)
        );
        assert_eq!(probe.sorted.stored_by_kind, [0, 64, 32, 0]);
        assert_eq!((probe.natural.masked_slots, probe.split), (0, Packing::MAX_SPLIT));
    }

    #[test]
    fn rows_are_long_beside_short_ones_only() {
        let long_of = |lengths: &[u32]| split_of(&RowStats::of(1 << 20, lengths));
        assert_eq!(long_of(&[5000; 100]), Packing::MAX_SPLIT);
        let mut lengths = vec![8; 10_000];
        lengths[77] = 65;
        assert_eq!(long_of(&lengths), 64);
        lengths[77] = 64;
        assert_eq!(long_of(&lengths), Packing::MAX_SPLIT);
        lengths[..2000].fill(900);
        assert_eq!(long_of(&lengths), 746, "four times the mean of 186.4, rounded up");
        lengths[600..2000].fill(8);
        assert_eq!(long_of(&lengths), 124, "twice the mean of 61.5: a sixteenth of the rows");
        lengths.fill(50);
        lengths[7] = 120;
        assert_eq!(long_of(&lengths), 101);
        lengths[8] = 96;
        assert_eq!(long_of(&lengths), Packing::MAX_SPLIT, "1.25 times the longest other row");
        lengths[7] = 121;
        assert_eq!(long_of(&lengths), 101);
        assert_eq!(long_of(&[20_000; 9]), Packing::MAX_SPLIT - 1, "no slice holds them");
    }
}
