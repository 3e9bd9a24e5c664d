//! Size of a matrix as packed SELL: estimated from a sample of its slices, without packing.

use super::host::{SliceBatch, SlicedRows};
use super::index::{Chooser, LANES, LaneRows};
use super::sizes::SliceSizes;
use super::{Order, Packing};
use crate::analysis::{Analysis, PARALLEL_MIN, RowStats, Sample, Sampler, task_size};
use crate::parallel::SparePool;
use crate::{Error, parallel};

/// Largest sum of rows and entries at which the pattern is stored whole and measured exactly.
const EXACT: usize = 1 << 14;

/// Sampling distance in entries, which keeps the cost well below that of an SpMV.
const SAMPLING: usize = 16;

/// Smallest and largest sample, in entries: enough for an error of a few per cent if slices are
/// alike.
const SAMPLE: (usize, usize) = (1 << 12, 1 << 16);

/// Largest number of entries of a small matrix. Its SpMV takes some 20 µs: one entry in 32 is
/// sampled in place of one in 16, and the least sample is a quarter of `SAMPLE.0`.
const SMALL: usize = 1 << 16;

/// Minimum number of samples, independent of their size.
const MIN_SAMPLES: usize = 2;

/// Rows of the windows that are measured sorted: the window size that pays off on most matrices and
/// devices.
const WINDOW: usize = 512;

/// Rows and entries that a parallel task measures: distributing fewer takes longer.
const MEASURED_PER_TASK: usize = 1 << 12;

/// Fewest and most slices of each window that is sorted for the sample: sorting a window costs as
/// much as sampling a few slices.
const SLICES_PER_WINDOW: (usize, usize) = (2, 4);

/// Number of windows of a matrix of which as many slices as possible are measured.
const FEW_WINDOWS: usize = 3;

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

    /// Measures `a`, which has the row statistics `rows`.
    ///
    /// # Errors
    ///
    /// Errors of a GPU that has the matrix in its memory.
    pub(crate) fn new(a: Sampler<'_>, rows: &RowStats) -> Result<Self, Error> {
        let (split, ncols) = (split_of(rows), a.ncols());
        if a.nrows() + a.nnz() <= EXACT {
            let row_ptr = a.offsets(std::iter::once(0..a.nrows() + 1).collect())?.get(0).to_vec();
            let col_idx = a.columns(std::iter::once(0..a.nnz()).collect())?.get(0).to_vec();
            let pattern = ColumnSample { row_ptr, col_idx, ncols };
            let (natural, sorted) = (Order::Natural, Order::Windows(WINDOW));
            let (natural, sorted) = (pattern.sizes(natural, split), pattern.sizes(sorted, split));
            return Ok(Self { split, natural, sorted, pattern: Some(pattern) });
        }
        let (slices, entries) =
            (a.nrows().div_ceil(LANES) as u64, rows.histogram.entries_up_to(split));
        let estimated = |sample: Vec<SliceBatch>| SliceSizes::estimated(&sample, slices, entries);
        let short = RowSample::slices(a)?;
        let natural = || estimated(short.natural(split));
        let sorted = || RowSample::windows(a).map(|windows| estimated(windows.sorted(split)));
        let (natural, sorted) = if a.nnz() < PARALLEL_MIN {
            (natural(), sorted())
        } else {
            // Windows are copied from a GPU meanwhile.
            parallel::join(natural, sorted)
        };
        Ok(Self { split, natural, sorted: sorted?, pattern: None })
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

/// The numbers below `count`, in an order in which any first few are spread evenly.
fn spread(count: usize) -> impl Iterator<Item = usize> {
    // Multiples of the golden ratio, which are spread most evenly (Knuth, TAOCP 3, 6.4). The step
    // is increased until it is coprime to `count`, so that each number occurs once.
    let step = (count as f64 * 0.618_033_988_749_895) as usize;
    let gcd = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let step = (step.max(1)..).find(|&step| gcd(step, count) <= 1).unwrap_or(1);
    (0..count).map(move |i| (count / 2 + i * step) % count)
}

/// Samples of the same number of consecutive rows each, with all their entries.
struct RowSample<'a> {
    /// Number of the sample's place in the matrix, counted in samples.
    numbers: Vec<usize>,
    /// Row offsets of rounds of samples, and the round of each sample with its place there.
    rounds: Vec<Sample<'a, usize>>,
    places: Vec<(usize, usize)>,
    columns: Sample<'a, u32>,
    /// Rows of each sample that are measured.
    measured: usize,
    /// Numbers of columns and of entries of the matrix.
    size: (usize, usize),
}

impl<'a> RowSample<'a> {
    /// Samples slices.
    fn slices(a: Sampler<'a>) -> Result<Self, Error> {
        Self::of(a, LANES, LANES)
    }

    /// Samples windows, of which few slices are measured if their rows are long and there are
    /// several windows: the slices of one are sorted.
    fn windows(a: Sampler<'a>) -> Result<Self, Error> {
        let slice = a.nnz() / a.nrows().div_ceil(LANES).max(1);
        let slices = SAMPLE.1 / (MIN_SAMPLES * slice).max(1);
        let (least, most) = SLICES_PER_WINDOW;
        let least = if a.nrows() > FEW_WINDOWS * WINDOW { least } else { most };
        Self::of(a, WINDOW, slices.clamp(least, most) * LANES)
    }

    /// Samples `len` consecutive rows at a time, of which `measured` are measured, until the
    /// measured rows have enough entries.
    fn of(a: Sampler<'a>, len: usize, measured: usize) -> Result<Self, Error> {
        let (nnz, count) = (a.nnz(), a.nrows().div_ceil(len));
        let enough = match nnz > SMALL {
            true => (nnz / SAMPLING).clamp(SAMPLE.0, SAMPLE.1),
            false => (nnz / (2 * SAMPLING)).max(SAMPLE.0 / 4),
        };
        let rows = |number: usize| number * len..((number + 1) * len).min(a.nrows());
        // A sample without entries has a cost as well.
        let cost = |entries: usize| LANES + entries;
        let expected = enough / cost(measured * nnz / a.nrows().max(1));
        let mut left = spread(count).peekable();
        let (mut numbers, mut entries, mut counted) = (Vec::new(), Vec::new(), 0);
        let (mut rounds, mut places) = (Vec::new(), Vec::new());
        while left.peek().is_some() && (counted < enough || numbers.len() < MIN_SAMPLES) {
            let next: Vec<usize> =
                left.by_ref().take(expected + expected / 4 + MIN_SAMPLES).collect();
            let offsets = next.iter().map(|&number| rows(number).start..rows(number).end + 1);
            let round = a.offsets(offsets.collect())?;
            for (place, number) in next.into_iter().enumerate() {
                if counted >= enough && numbers.len() >= MIN_SAMPLES {
                    break;
                }
                let offsets = round.get(place);
                let own = offsets[0]..offsets[offsets.len() - 1];
                counted += cost(own.len() * measured / len);
                numbers.push(number);
                places.push((rounds.len(), place));
                entries.push(own);
            }
            rounds.push(round);
        }
        let columns = a.columns(entries)?;
        Ok(Self { numbers, rounds, places, columns, measured, size: (a.ncols(), nnz) })
    }

    /// Row offsets of sample `i`.
    fn offsets(&self, i: usize) -> &[usize] {
        let (round, place) = self.places[i];
        self.rounds[round].get(place)
    }

    /// Calls `encode(number, rows)` for every sample, with its rows in natural order; rows with
    /// more than `split` entries are long.
    fn batches(
        &self,
        split: u32,
        encode: impl Fn(usize, SlicedRows<'_>) -> SliceBatch + Sync,
    ) -> Vec<SliceBatch> {
        let (ncols, nnz) = self.size;
        let samples = self.numbers.len();
        let rows: usize = (0..samples).map(|i| self.offsets(i).len() - 1).sum();
        let entries: usize = (0..samples).map(|i| self.columns.get(i).len()).sum();
        // Of each sample; of a window, a part is measured.
        let measured = (rows + entries) * self.measured / rows.max(1);
        let least = (MEASURED_PER_TASK / measured.max(1)).max(1);
        parallel::map(samples, task_size(nnz, least), |i| {
            let (offsets, col_idx) = (self.offsets(i), self.columns.get(i));
            let row_ptr: Vec<usize> = offsets.iter().map(|at| at - offsets[0]).collect();
            let rows = SlicedRows { row_ptr: &row_ptr, col_idx, perm: None, ncols, split };
            encode(self.numbers[i], rows)
        })
    }

    /// Samples that are slices of rows in natural order.
    fn natural(&self, split: u32) -> Vec<SliceBatch> {
        let choosers = SparePool::new(Chooser::default);
        self.batches(split, |number, rows| {
            let mut batch = SliceBatch::default();
            let first = number * LANES;
            // As in `SlicedRows::first_row`, by the numbers of the rows in the matrix.
            let is_square = first + rows.row_ptr.len() - 1 <= rows.ncols;
            let first_row = is_square.then_some(first);
            choosers.with(|chooser| {
                batch.push(chooser, &LaneRows { first_row, ..rows.lane_rows(0) });
            });
            batch
        })
    }

    /// Encodes some slices of every sample, after sorting its rows as one window.
    fn sorted(&self, split: u32) -> Vec<SliceBatch> {
        let each = self.measured / LANES;
        self.batches(split, |number, rows| {
            // A window is small; without memory for its order, the natural one is measured.
            let perm = Order::Windows(WINDOW).permutation(rows.row_ptr, split).ok().flatten();
            let sorted = SlicedRows { perm: perm.as_deref(), ..rows };
            let (mut chooser, mut batch) = (Chooser::default(), SliceBatch::default());
            let slices = (rows.row_ptr.len() - 1).div_ceil(LANES);
            let step = WINDOW / LANES / each;
            // The first slice differs between windows, so that lengths occur in their due share.
            for s in (number % step..slices).step_by(step) {
                batch.push(&mut chooser, &LaneRows { first_row: None, ..sorted.lane_rows(s) });
            }
            batch
        })
    }
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

    #[test]
    fn a_spread_has_every_number_once() {
        for count in [0, 1, 2, 3, 10, 1000, 1024, 46_368] {
            let mut numbers: Vec<usize> = spread(count).collect();
            let (low, high) = numbers.split_at(count / 2);
            let mean =
                |half: &[usize]| half.iter().sum::<usize>() as f64 / half.len().max(1) as f64;
            assert!(count < 1000 || (mean(low) / mean(high) - 1.0).abs() < 0.1, "{count}");
            numbers.sort_unstable();
            assert!(numbers.iter().copied().eq(0..count), "{count}");
        }
    }
}
