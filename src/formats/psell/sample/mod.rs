//! Samples of the slices of a matrix.

mod gpu;

pub(super) use gpu::{EncodedSlices, FILE};

use super::Order;
use super::constants::PORTION;
use super::host::SliceBatch;
use super::index::{Chooser, LANES, LaneColumns, LaneRows};
use crate::analysis::{PendingSample, RowStats, Sample, Sampler, task_size};
use crate::parallel::SparePool;
use crate::{Error, parallel};
use std::ops::Range;

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

/// Rows and entries that a parallel task measures: distributing fewer takes longer.
const MEASURED_PER_TASK: usize = 1 << 12;

/// Fewest and most slices of each window that is sorted for the sample: sorting a window costs as
/// much as sampling a few slices.
const SLICES_PER_WINDOW: (usize, usize) = (2, 4);

/// Number of windows of a matrix of which as many slices as possible are measured.
const FEW_WINDOWS: usize = 3;

/// Rows of the windows that are measured sorted: the window size that pays off on most matrices and
/// devices.
pub(super) const WINDOW: usize = 512;

/// Windows that a parallel task sorts: fewer take less time than to wake a thread.
const SORTED_PER_TASK: usize = 32;

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

/// Chooses samples of `len` consecutive rows each, of which `measured` are measured, until the
/// measured rows have enough entries. The returned function waits for the offsets of the first
/// samples, and gives the numbers of the places of the samples in the matrix, counted in samples.
///
/// # Errors
///
/// Errors of a GPU that has the matrix in its memory.
fn chosen(
    a: Sampler<'_>,
    len: usize,
    measured: usize,
) -> Result<impl FnOnce() -> Result<Vec<usize>, Error>, Error> {
    let (nnz, count) = (a.nnz(), a.nrows().div_ceil(len));
    let enough = match nnz > SMALL {
        true => (nnz / SAMPLING).clamp(SAMPLE.0, SAMPLE.1),
        false => (nnz / (2 * SAMPLING)).max(SAMPLE.0 / 4),
    };
    // A sample without entries has a cost as well.
    let cost = |entries: usize| LANES + entries;
    let expected = enough / cost(measured * nnz / a.nrows().max(1));
    let mut left = spread(count);
    let mut next_round = move || {
        let count = expected + expected / 4 + MIN_SAMPLES;
        let numbers: Vec<usize> = left.by_ref().take(count).collect();
        let rows = numbers.iter().map(|&number| rows_of(a, len, number));
        Ok::<_, Error>((a.ends(rows)?, numbers))
    };
    let mut round = next_round()?;
    Ok(move || {
        let (mut chosen, mut counted) = (Vec::new(), 0);
        loop {
            let (ends, numbers) = round;
            if numbers.is_empty() {
                return Ok(chosen);
            }
            for (entries, number) in Sampler::between(&ends.wait()?).zip(numbers) {
                counted += cost(entries.len() * measured / len);
                chosen.push(number);
                if counted >= enough && chosen.len() >= MIN_SAMPLES {
                    return Ok(chosen);
                }
            }
            round = next_round()?;
        }
    })
}

/// Rows of a sample.
fn rows_of(a: Sampler<'_>, len: usize, number: usize) -> Range<usize> {
    number * len..((number + 1) * len).min(a.nrows())
}

/// Rows of a window that are measured: few slices if rows are long and there are several
/// windows, because the slices of one are sorted.
fn measured_of_window(a: Sampler<'_>) -> usize {
    let slice = a.nnz() / a.nrows().div_ceil(LANES).max(1);
    let slices = SAMPLE.1 / (MIN_SAMPLES * slice).max(1);
    let (least, most) = SLICES_PER_WINDOW;
    let least = if a.nrows() > FEW_WINDOWS * WINDOW { least } else { most };
    slices.clamp(least, most) * LANES
}

/// Samples of the same number of consecutive rows each.
struct RowSample<'a> {
    /// Number of the sample's place in the matrix, counted in samples.
    numbers: Vec<usize>,
    /// Row offsets of every sample.
    offsets: Sample<'a, usize>,
}

impl<'a> RowSample<'a> {
    /// Reads the offsets of samples of `len` rows.
    ///
    /// # Errors
    ///
    /// Errors of a GPU that has the matrix in its memory.
    fn new(a: Sampler<'a>, len: usize, numbers: Vec<usize>) -> Result<Self, Error> {
        let rows = numbers.iter().map(|&number| rows_of(a, len, number));
        let offsets = a.offsets(rows.map(|rows| rows.start..rows.end + 1).collect())?.wait()?;
        Ok(Self { numbers, offsets })
    }

    /// Row offsets of sample `i`.
    fn offsets(&self, i: usize) -> &[usize] {
        self.offsets.get(i)
    }

    /// Rows of some slices of every sample, after sorting its rows as one window.
    fn sorted_rows(&self, nnz: usize, split: u32, step: usize) -> Vec<Vec<u32>> {
        parallel::map(self.numbers.len(), task_size(nnz, SORTED_PER_TASK), |i| {
            let offsets = self.offsets(i);
            // A window is small; without memory for its order, the natural one is measured.
            let perm = Order::Windows(WINDOW).permutation(offsets, split).ok().flatten();
            let perm = perm.unwrap_or_else(|| (0..offsets.len() as u32 - 1).collect());
            // The first slice differs between windows, so that lengths occur in their due share.
            let slices = perm.chunks(LANES).skip(self.numbers[i] % step).step_by(step);
            slices.flatten().copied().collect()
        })
    }
}

/// Slices in natural order, and slices of windows that are sorted.
pub(super) enum SliceSamples<'a> {
    /// The host encodes them.
    Host(Box<[SampledSlices<'a>; 2]>),
    /// The GPU that has the matrix in its memory encodes them.
    Gpu([EncodedSlices<'a>; 2]),
}

impl<'a> SliceSamples<'a> {
    /// Takes samples of a matrix with these row statistics, whose rows are long beyond `split`
    /// entries.
    ///
    /// # Errors
    ///
    /// Errors of a GPU that has the matrix in its memory.
    pub(super) fn of(a: Sampler<'a>, rows: &RowStats, split: u32) -> Result<Self, Error> {
        let natural = chosen(a, LANES, LANES)?;
        let measured = measured_of_window(a);
        let windows = chosen(a, WINDOW, measured)?;
        let (natural, windows) = (natural()?, windows()?);
        let step = WINDOW / measured;
        if let Sampler::Gpu(a) = a
            && rows.max.min(split) as usize <= PORTION
            && let Some(found) = EncodedSlices::begin(a, split, &natural, (&windows, step))?
        {
            return Ok(Self::Gpu(found));
        }
        let are_short = rows.max <= split;
        let natural = RowSample::new(a, LANES, natural)?;
        let natural = SampledSlices::new(a, natural, None, split, are_short)?;
        let windows = RowSample::new(a, WINDOW, windows)?;
        let sorted = windows.sorted_rows(a.nnz(), split, step);
        let sorted = SampledSlices::new(a, windows, Some(sorted), split, are_short)?;
        Ok(Self::Host(Box::new([natural, sorted])))
    }
}

/// Slices of samples, whose columns a GPU may still have to copy.
pub(super) struct SampledSlices<'a> {
    rows: SampledRows<'a>,
    columns: PendingSample<'a, u32>,
}

/// Slices of samples, and their columns.
pub(super) struct ArrivedSlices<'a> {
    rows: SampledRows<'a>,
    columns: Sample<'a, u32>,
}

/// Rows of slices of samples.
struct SampledRows<'a> {
    sample: RowSample<'a>,
    /// Rows of the slices of every sample, in order; `None` if each sample is a slice in natural
    /// order.
    sorted: Option<Vec<Vec<u32>>>,
    /// Rows with more entries are long.
    split: u32,
    /// Number of the first range of the columns of every sample.
    firsts: Vec<usize>,
}

impl<'a> SampledSlices<'a> {
    /// Slices whose rows are not long if `are_short`.
    fn new(
        a: Sampler<'a>,
        sample: RowSample<'a>,
        sorted: Option<Vec<Vec<u32>>>,
        split: u32,
        are_short: bool,
    ) -> Result<Self, Error> {
        let samples = sample.numbers.len();
        let mut rows = SampledRows { sample, sorted, split, firsts: Vec::with_capacity(samples) };
        let mut ranges: Vec<Range<usize>> = Vec::new();
        if rows.sorted.is_none() && are_short {
            rows.firsts.extend(0..samples);
            ranges.extend((0..samples).map(|i| {
                let offsets = rows.sample.offsets(i);
                offsets[0]..offsets[offsets.len() - 1]
            }));
        } else {
            let task = task_size(a.nnz(), SORTED_PER_TASK);
            for own in parallel::map(samples, task, |i| rows.ranges(i)) {
                rows.firsts.push(ranges.len());
                ranges.extend(own);
            }
        }
        Ok(Self { rows, columns: a.columns(ranges)? })
    }

    /// Waits for the columns.
    ///
    /// # Errors
    ///
    /// Errors of a GPU that has the matrix in its memory.
    pub(super) fn wait(self) -> Result<ArrivedSlices<'a>, Error> {
        Ok(ArrivedSlices { rows: self.rows, columns: self.columns.wait()? })
    }
}

impl SampledRows<'_> {
    /// Rows of sample `i`, counted from its first one, in order.
    fn of(&self, i: usize) -> impl ExactSizeIterator<Item = usize> {
        let sorted = self.sorted.as_ref().map(|sorted| &sorted[i][..]);
        let rows = sorted.map_or(self.sample.offsets(i).len() - 1, <[u32]>::len);
        (0..rows).map(move |row| sorted.map_or(row, |sorted| sorted[row] as usize))
    }

    /// Entries of a row of sample `i`; `None` if it is long or has none.
    fn entries(&self, i: usize, row: usize) -> Option<Range<usize>> {
        let offsets = self.sample.offsets(i);
        let entries = offsets[row]..offsets[row + 1];
        (1..=self.split as usize).contains(&entries.len()).then_some(entries)
    }

    /// Entries of the rows of sample `i`, those of adjacent rows in one range.
    fn ranges(&self, i: usize) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for own in self.of(i).filter_map(|row| self.entries(i, row)) {
            match ranges.last_mut() {
                Some(last) if last.end == own.start => last.end = own.end,
                _ => ranges.push(own),
            }
        }
        ranges
    }

    /// True if a row of sample `i` is long.
    fn is_long(&self, i: usize, row: usize) -> bool {
        let offsets = self.sample.offsets(i);
        offsets[row + 1] - offsets[row] > self.split as usize
    }
}

impl ArrivedSlices<'_> {
    /// Encodes the slices, of a matrix with `nnz` entries and `ncols` columns.
    pub(super) fn encoded(&self, nnz: usize, ncols: usize) -> Vec<SliceBatch> {
        let samples = self.rows.sample.numbers.len();
        let rows: usize = (0..samples).map(|i| self.rows.of(i).len()).sum();
        let entries: usize = (0..self.columns.len()).map(|i| self.columns.get(i).len()).sum();
        let least = (MEASURED_PER_TASK * samples / (rows + entries).max(1)).max(1);
        let choosers = SparePool::new(Chooser::default);
        parallel::map(samples, task_size(nnz, least), |i| {
            choosers.with(|chooser| self.encoded_sample(i, ncols, chooser))
        })
    }

    /// Encodes the slices of sample `i`.
    fn encoded_sample(&self, i: usize, ncols: usize, chooser: &mut Chooser) -> SliceBatch {
        let Self { rows, columns } = self;
        let mut batch = SliceBatch::default();
        let (mut own, mut range, mut left) = (rows.of(i), rows.firsts[i], [].as_slice());
        while own.len() > 0 {
            let mut lanes: LaneColumns<'_> = [&[]; LANES];
            let (mut long, mut count) = (0, 0);
            for (lane, row) in own.by_ref().take(LANES).enumerate() {
                count += 1;
                long |= u32::from(rows.is_long(i, row)) << lane;
                let Some(entries) = rows.entries(i, row) else { continue };
                if left.is_empty() {
                    (left, range) = (columns.get(range), range + 1);
                }
                (lanes[lane], left) = left.split_at(entries.len());
            }
            // As in `SlicedRows::first_row`, by the numbers of the rows in the matrix.
            let first = rows.sample.numbers[i] * LANES;
            let may_be_diagonal = rows.sorted.is_none() && first + count <= ncols;
            let first_row = may_be_diagonal.then_some(first);
            batch.push(chooser, &LaneRows { columns: lanes, first_row, long, ncols });
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_the_rows_of_the_kernel() {
        let kernel = include_str!("../../../../kernels/sampled_slices.cu");
        assert!(kernel.contains(&format!("SAMPLED_WINDOW = {WINDOW};")));
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
