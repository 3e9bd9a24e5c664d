//! Size of a matrix as packed SELL: estimated from a sample of its slices, without packing.

use super::host::{SliceChunk, SlicedRows};
use super::index::{Chooser, LANES};
use super::sizes::SliceSizes;
use super::{Order, Packing};
use crate::Scalar;
use crate::analysis::{Analysis, RowStats, SHARED, together};
use crate::matrix::CsrView;
use crate::parallel;

/// Largest sum of rows and entries at which the pattern is stored whole and measured exactly.
const EXACT: usize = 1 << 14;

/// Beyond that, one entry in `SAMPLING` is sampled, which keeps the cost well below that of an SpMV
/// …
const SAMPLING: usize = 16;

/// … with this minimum and maximum number of entries: enough for an error of a few per cent if
/// slices are alike.
const SAMPLE: (usize, usize) = (1 << 12, 1 << 16);

/// Largest number of entries of a small matrix. An SpMV with it takes some 20 µs, so half the
/// share is sampled, and a quarter of the minimum.
const SMALL: usize = 1 << 16;

/// Minimum number of sampled slices, independent of their size.
const MIN_SLICES: usize = 2;

/// Rows of the windows that are measured sorted: the window size that pays off on most matrices and
/// devices.
const WINDOW: usize = 512;

/// Slices per parallel task: distributing fewer takes longer than sampling them.
const TOGETHER: usize = 16;

/// Slices of each window that is sorted for the sample: sorting a window costs as much as sampling
/// a few slices.
const SLICES_PER_WINDOW: usize = 4;

/// Definition of long rows, which are multiplied separately: rows with more entries than this
/// multiple of the mean and than this number, which a warp processes in two steps. On an H200 the
/// gallery's `webbase` took 542 µs with one row in a thousand as a long row, 110 µs with those
/// beyond 64 entries (`f32`).
const LONG: (f64, u32) = (4.0, 64);

/// Estimated size as packed SELL, for rows in natural order and for rows sorted by length.
///
/// Exact up to 2¹⁴ rows and entries; estimated beyond from slices that are spread evenly over
/// the matrix, one entry in 16 but no more than 2¹⁶, and one in 32 of a matrix of up to 2¹⁶
/// entries. If slices are alike the error is within a few per cent.
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
    whole: Option<ColumnSample>,
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
    pub(crate) fn new<T: Scalar>(a: CsrView<'_, T>, rows: &RowStats) -> Self {
        let split = threshold(rows);
        let (row_ptr, col_idx, ncols) = (a.row_ptr(), a.col_idx(), a.ncols());
        let all = SlicedRows { row_ptr, col_idx, perm: None, ncols, split };
        if a.nrows() + a.nnz() <= EXACT {
            let pattern =
                ColumnSample { row_ptr: row_ptr.to_vec(), col_idx: col_idx.to_vec(), ncols };
            let (natural, sorted) = (Order::Natural, Order::Windows(WINDOW));
            let (natural, sorted) = (pattern.sizes(natural, split), pattern.sizes(sorted, split));
            return Self { split, natural, sorted, whole: Some(pattern) };
        }
        let (slices, entries) =
            (a.nrows().div_ceil(LANES) as u64, rows.histogram.entries_up_to(split));
        let estimated = |sample: Vec<SliceChunk>| SliceSizes::estimated(&sample, slices, entries);
        let (natural, sorted) = (|| estimated(natural(all)), || estimated(sorted(all)));
        let (natural, sorted) =
            if a.nnz() < SHARED { (natural(), sorted()) } else { parallel::join(natural, sorted) };
        Self { split, natural, sorted, whole: None }
    }

    /// True if every slice was measured.
    pub(crate) fn is_exact(&self) -> bool {
        self.whole.is_some()
    }

    /// Size with the rows in an order, and rows longer than `split` stored separately. If only a
    /// sample was measured, sorted windows of all sizes are assumed to be alike.
    pub(crate) fn sizes(&self, rows: &RowStats, order: Order, split: u32) -> SliceSizes {
        let measured = match order {
            Order::Natural => self.natural,
            Order::Windows(_) => self.sorted,
        };
        match &self.whole {
            _ if split == self.split
                && matches!(order, Order::Natural | Order::Windows(WINDOW)) =>
            {
                measured
            }
            Some(pattern) => pattern.sizes(order, split),
            None => measured.scaled_to(rows.histogram.entries_up_to(split)),
        }
    }
}

impl ColumnSample {
    fn sizes(&self, order: Order, split: u32) -> SliceSizes {
        let Self { row_ptr, col_idx, ncols } = self;
        // A sample is small; without memory for its order, the natural one is measured.
        let perm = order.short_rows(row_ptr, split).ok().flatten();
        SlicedRows { row_ptr, col_idx, perm: perm.as_deref(), ncols: *ncols, split }.sizes()
    }
}

/// Length beyond which the rows of a matrix are long rows.
fn threshold(rows: &RowStats) -> u32 {
    let (times, least) = LONG;
    // Plans state a threshold of long rows if some rows exceed the capacity of a slice.
    let split = (times * rows.mean).ceil().min(f64::from(Packing::MAX_SPLIT - 1)) as u32;
    let split = split.max(least);
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

/// Takes items until they have as many entries as a sample needs.
fn sample<I>(rows: SlicedRows<'_>, items: impl Iterator<Item = (I, usize)>) -> Vec<I> {
    let nnz = rows.col_idx.len();
    let enough = match nnz > SMALL {
        true => (nnz / SAMPLING).clamp(SAMPLE.0, SAMPLE.1),
        false => (nnz / (2 * SAMPLING)).max(SAMPLE.0 / 4),
    };
    let mut seen = 0;
    let mut taken = Vec::new();
    for (item, entries) in items {
        if seen >= enough && taken.len() >= MIN_SLICES {
            break;
        }
        seen += entries;
        taken.push(item);
    }
    taken
}

/// Samples slices of rows in natural order.
fn natural(rows: SlicedRows<'_>) -> Vec<SliceChunk> {
    let count = (rows.row_ptr.len() - 1).div_ceil(LANES);
    let entries = |s: usize| {
        let end = ((s + 1) * LANES).min(rows.row_ptr.len() - 1);
        // An empty slice has a cost as well.
        LANES + rows.row_ptr[end] - rows.row_ptr[s * LANES]
    };
    let slices = sample(rows, spread(count).map(|s| (s, entries(s))));
    let chunk = |s: usize| {
        let mut chunk = SliceChunk::default();
        chunk.push(&mut Chooser::default(), &rows.columns(s), rows.first_row(s));
        chunk
    };
    let size = together(rows.col_idx.len(), TOGETHER);
    parallel::map(slices.len(), size, |i| chunk(slices[i]))
}

/// Samples some slices of each sampled sorted window.
fn sorted(rows: SlicedRows<'_>) -> Vec<SliceChunk> {
    let nrows = rows.row_ptr.len() - 1;
    let window = |w: usize| w * WINDOW..((w + 1) * WINDOW).min(nrows);
    let entries = |w: usize| {
        let entries = rows.row_ptr[window(w).end] - rows.row_ptr[w * WINDOW];
        LANES + entries * SLICES_PER_WINDOW / (WINDOW / LANES)
    };
    let windows = sample(rows, spread(nrows.div_ceil(WINDOW)).map(|w| (w, entries(w))));
    let chunk = |w: usize| {
        let window = window(w);
        let row_ptr = &rows.row_ptr[window.start..=window.end];
        // As above.
        let perm = Order::Windows(WINDOW).short_rows(row_ptr, rows.split).ok().flatten();
        let sorted = SlicedRows { row_ptr, perm: perm.as_deref(), ..rows };
        let (mut chooser, mut chunk) = (Chooser::default(), SliceChunk::default());
        let slices = window.len().div_ceil(LANES);
        // The first slice differs between windows, so that lengths occur in their due share.
        for s in (w % SLICES_PER_WINDOW..slices).step_by(WINDOW / LANES / SLICES_PER_WINDOW) {
            chunk.push(&mut chooser, &sorted.columns(s), None);
        }
        chunk
    };
    let size = together(rows.col_idx.len(), TOGETHER / SLICES_PER_WINDOW);
    parallel::map(windows.len(), size, |i| chunk(windows[i]))
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
                let packing = SliceProbe::of(&analysis);
                assert!(!packing.is_exact());
                for order in [Order::Natural, Order::Windows(WINDOW)] {
                    let (estimated, found) = bytes(&a, order, packing.split);
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
        let packing = SliceProbe::of(&analysis);
        assert_eq!(packing.natural.entries_by_kind, [64, 0, 32, 0]);
        assert_eq!(
            (packing.natural.index_bytes, packing.natural.slices, packing.natural.depth),
            (16 + 64, 3, 1)
        );
        assert_eq!(packing.sorted.entries_by_kind, [0, 64, 32, 0]);
        assert_eq!((packing.natural.masked_slots, packing.split), (0, Packing::MAX_SPLIT));
    }

    #[test]
    fn rows_are_long_beside_short_ones_only() {
        let long_of = |lengths: &[u32]| threshold(&RowStats::of(1 << 20, lengths));
        assert_eq!(long_of(&[5000; 100]), Packing::MAX_SPLIT);
        let mut lengths = vec![8; 10_000];
        lengths[77] = 65;
        assert_eq!(long_of(&lengths), 64);
        lengths[77] = 64;
        assert_eq!(long_of(&lengths), Packing::MAX_SPLIT);
        lengths[..2000].fill(900);
        assert_eq!(long_of(&lengths), 746, "four times the mean of 186.4, rounded up");
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
