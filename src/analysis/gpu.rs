//! Analysis of a matrix in the memory of a GPU. What looks at every row or entry is counted by
//! kernels (`kernels/analysis.cu`); samples are copied to the host, which measures them like those
//! of a matrix in its own memory, or measured by kernels of their formats. All numbers are those of
//! an analysis on the host.

use super::constants::{
    BLOCK_ROWS, CLASSES, HISTOGRAM, NOT_BF16, NOT_F16, NOT_F32, SECTION, SLICE_SUMS, TOUCH_DIGITS,
    TOUCH_ROUNDS,
};
use super::contiguity::{self, Contiguity};
use super::gpu_columns::{FILE, GpuColumns, SMALL, WARP};
use super::histogram::Counts;
use super::locality::{Reuse, Sampling};
use super::probes::FormatProbe;
use super::sampler::Sampler;
use super::slices::SortedSlices;
use super::structure::ValueStatistics;
use super::value_set::{DICTIONARY, VALUE_SLOTS, ValueSet};
use super::{Analysis, Histogram, Probes, RowStats, Structure, probes, rows::ratio};
use crate::device::kernels::analysis::{
    CountTouches, Distinct, Inexact, PlaceTouches, RowLengths, TallyTouches,
};
use crate::device::{BLOCK, Buffer, CsrSource, Gpu, Launch, Module, Ptr, SCAN};
use crate::trace::span;
use crate::{Error, ExactIn, Scalar};
use std::mem::offset_of;

/// Blocks per multiprocessor of kernels that end early.
const FEW_BLOCKS: usize = 8;

/// Numbers that the kernels find. They use the same layout.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct KernelCounts {
    changes: u64,
    listed: u64,
    slices: [u64; SLICE_SUMS],
    contiguity: [u64; 2],
    touches: u64,
    distances: [u64; CLASSES + 1],
    inexact: u32,
    _padding: u32,
    distinct: [u32; 2],
    histogram: [u32; HISTOGRAM],
    values: [u64; VALUE_SLOTS],
}

impl GpuColumns<'_> {
    /// Enqueues the row lengths. Returns the list of long rows.
    fn row_lengths(&self, found: Ptr<KernelCounts>) -> Result<Ptr<u32>, Error> {
        let listed = self.work.take(self.nnz() / HISTOGRAM)?;
        let blocks = self.nrows.div_ceil(BLOCK_ROWS) as u32;
        let launch = Launch::new(blocks, BLOCK).with(RowLengths {
            row_ptr: self.row_ptr(),
            nrows: self.nrows as u32,
            histogram: field(found, offset_of!(KernelCounts, histogram)),
            listed,
            found: field(found, offset_of!(KernelCounts, changes)),
        });
        // SAFETY: the blocks have all rows, and there is room for all rows that are listed, each of
        // which has as many entries as the table.
        unsafe { self.work.run(FILE, "row_lengths", launch)? };
        Ok(listed)
    }

    /// Enqueues the column contiguity.
    fn contiguity(&self, found: Ptr<KernelCounts>) -> Result<(), Error> {
        let (every, count) = contiguity::sections(self.nnz());
        let launch = Launch::over(count, WARP).with(crate::device::kernels::analysis::Contiguity {
            row_ptr: self.row_ptr(),
            cols: self.col_idx(),
            nrows: self.nrows as u32,
            nnz: self.nnz() as u64,
            every: every as u32,
            sections: self.nnz().div_ceil(SECTION) as u64,
            count: count as u64,
            found: field(found, offset_of!(KernelCounts, contiguity)),
        });
        // SAFETY: there is a warp for every section, and none without entries.
        unsafe { self.work.run(FILE, "contiguity", launch) }
    }

    /// Enqueues the statistics of the values.
    fn values<T: Scalar>(&self, values: &Buffer<T>, found: Ptr<KernelCounts>) -> Result<(), Error> {
        let launch = few_blocks(self.gpu, values.len());
        let (values, count) = (values.ptr(), values.len() as u64);
        let slots = field(found, offset_of!(KernelCounts, values));
        let counts = field(found, offset_of!(KernelCounts, distinct));
        let inexact = field(found, offset_of!(KernelCounts, inexact));
        // SAFETY: the table has its size, and the counts are two.
        unsafe {
            let distinct = launch.with(Distinct { values, count, slots, counts });
            self.work.run(FILE, &format!("distinct_{}", T::KIND), distinct)?;
            let inexact = launch.with(Inexact { values, count, inexact });
            self.work.run(FILE, &format!("inexact_{}", T::KIND), inexact)
        }
    }

    /// Reads the numbers. Waits for everything enqueued.
    fn read(&self, found: Ptr<KernelCounts>) -> Result<Box<KernelCounts>, Error> {
        Ok(Box::new(self.work.read_vec(found, 1)?[0]))
    }
}

/// Touches of the sampled groups that are being sorted.
struct TouchSort<'a> {
    a: &'a GpuColumns<'a>,
    sampling: Sampling,
    /// Numbers of touches with every digit in every block, and then their sums.
    counts: Ptr<u64>,
}

impl<'a> TouchSort<'a> {
    /// Enqueues the count of the sampled touches, whose number will be at `total`.
    fn new(a: &'a GpuColumns<'a>, sampling: Sampling, total: Ptr<u64>) -> Result<Self, Error> {
        let counts = a.work.take(touch_blocks(sampling.entries()) * TOUCH_DIGITS)?;
        let sort = Self { a, sampling, counts };
        sort.count(Ptr::NULL, sort.sampling.entries(), 0, total)?;
        Ok(sort)
    }

    /// Distance of the beginnings of windows, halved.
    fn half_distance(&self) -> u64 {
        ((self.a.nnz() - self.sampling.window) / (2 * self.sampling.windows.max(1))) as u64
    }

    /// Enqueues the positions of all digits: a pass of `count` touches in the order of `from`.
    fn count(
        &self,
        from: Ptr<u64>,
        count: usize,
        shift: u32,
        total: Ptr<u64>,
    ) -> Result<(), Error> {
        let Self { a, ref sampling, counts } = *self;
        let launch = Launch::new(touch_blocks(count) as u32, BLOCK).with(CountTouches {
            cols: a.col_idx(),
            window: sampling.window as u64,
            half_distance: self.half_distance(),
            skipped: sampling.skipped,
            from,
            count: count as u64,
            shift,
            counts,
        });
        // SAFETY: there is a count for every digit of every block.
        unsafe {
            a.work.run(FILE, "count_touches", launch)?;
            a.work.scan(counts, touch_blocks(count) * TOUCH_DIGITS, 1, total)
        }
    }

    /// Sorts the `touches` sampled touches and enqueues the tally of their distances.
    fn tally(self, touches: usize, tally: Ptr<u64>) -> Result<(), Error> {
        let Self { a, ref sampling, counts } = self;
        let [mut to, mut other] = [a.work.take::<u64>(touches)?, a.work.take::<u64>(touches)?];
        let total = a.work.cleared::<u64>(1)?;
        let (mut from, mut count) = (Ptr::NULL, sampling.entries());
        let groups = Reuse::groups(a.ncols) as u64 - 1;
        let bits = u64::BITS - groups.leading_zeros();
        for shift in (0..bits.max(1)).step_by(TOUCH_DIGITS.ilog2() as usize) {
            if shift > 0 {
                self.count(from, count, shift, total)?;
            }
            let launch = Launch::new(touch_blocks(count) as u32, BLOCK).with(PlaceTouches {
                cols: a.col_idx(),
                window: sampling.window as u64,
                half_distance: self.half_distance(),
                skipped: sampling.skipped,
                from,
                count: count as u64,
                shift,
                before: counts,
                to,
            });
            // SAFETY: every touch has a place.
            unsafe { a.work.run(FILE, "place_touches", launch)? };
            (from, count) = (to, touches);
            (to, other) = (other, to);
        }
        let launch = few_blocks(a.gpu, touches);
        let window = sampling.window as u64;
        let launch =
            launch.with(TallyTouches { touches: from, count: touches as u64, window, tally });
        // SAFETY: there is a number for every class.
        unsafe { a.work.run(FILE, "tally_touches", launch) }
    }
}

/// Number of blocks that sort touches.
fn touch_blocks(touches: usize) -> usize {
    touches.div_ceil(TOUCH_ROUNDS * BLOCK as usize)
}

/// Launch of few blocks for many elements.
fn few_blocks(gpu: Gpu, elements: usize) -> Launch {
    let most = FEW_BLOCKS * gpu.multiprocessors() * BLOCK as usize;
    Launch::over(elements.min(most), 1)
}

/// Working memory that most matrices need, in bytes.
fn room(sampling: &Sampling) -> usize {
    let (digits, touch) = (TOUCH_DIGITS * size_of::<u64>(), 2 * size_of::<u64>());
    // Twice as many touches as are sampled of even columns.
    let touches = 2 * (sampling.entries() >> sampling.skipped);
    touch_blocks(sampling.entries()) * digits + touches * touch + SMALL
}

/// Address of a field at `offset` bytes.
fn field<N>(found: Ptr<KernelCounts>, offset: usize) -> Ptr<N> {
    found.cast::<u8>().add(offset).cast()
}

impl Analysis {
    /// Measures a matrix in the memory of a GPU. As an analysis on the host, but without the row
    /// lengths. The values are there, or once `has_values` returns true; if it returns false they
    /// could not be copied.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(crate) fn on_gpu<T: Scalar>(
        source: &CsrSource<T>,
        has_values: Option<&dyn Fn() -> bool>,
        formats: &[Option<FormatProbe>],
    ) -> Result<Self, Error> {
        let sampling = Sampling::of(source.nnz(), Reuse::groups(source.ncols));
        let diagonals = (source.nrows + source.ncols) / u8::BITS as usize;
        let a = &GpuColumns::with_room(source, room(&sampling) + diagonals)?;
        let _span = span!(DEBUG, "analyze", rows = a.nrows, cols = a.ncols, nnz = a.nnz());
        let found = a.work.cleared::<u64>(size_of::<KernelCounts>() / size_of::<u64>())?.cast();
        let sort = TouchSort::new(a, sampling, field(found, offset_of!(KernelCounts, touches)))?;
        let listed = a.row_lengths(found)?;
        a.contiguity(found)?;
        let first = a.read(found)?;
        let rows = RowStats::from_histogram(a.ncols, first.histogram(a, listed)?, first.changes);
        let begun = probes::begin(formats, Sampler::Gpu(a), &rows)?;
        // The GPU does this while the host measures samples.
        sort.tally(first.touches as usize, field(found, offset_of!(KernelCounts, distances)))?;
        if has_values.is_none() {
            a.values(&source.values, found)?;
        }
        let mut probes = Probes::of(begun)?;
        if let Some(has_values) = has_values {
            if !has_values() {
                return Err(Error::Gpu {
                    device: source.gpu.to_string(),
                    action: "analyse the values".to_owned(),
                    code: None,
                    message: "they were not copied".to_owned(),
                });
            }
            a.values(&source.values, found)?;
        }
        let last = a.read(found)?;
        let reuse = Reuse::of_classes(&last.distances, &sampling);
        let contiguity = first.contiguity(a.nnz());
        let structure = Structure::new(contiguity, last.values::<T>(), reuse);
        probes.measure(formats, Sampler::Gpu(a), &rows, &structure)?;
        let slices = SortedSlices::of_sums(&first.slices);
        Ok(Self { rows, row_lengths: Vec::new(), slices, structure, probes })
    }

    /// Kernel that finds the distinct values.
    pub(crate) fn distinct_kernel<T: Scalar>() -> (Module, String) {
        (FILE.into(), format!("distinct_{}", T::KIND))
    }

    /// Kernels of an analysis on a GPU.
    pub(crate) fn kernels<T: Scalar>() -> Vec<(Module, String)> {
        let inexact = format!("inexact_{}", T::KIND);
        let others = ["contiguity", "count_touches", "place_touches"];
        let samples = ["tally_touches", "gather_u32", "gather_u64", "column_spans"];
        let frequencies = ["add_columns", "tally_columns"];
        let checks = ["check_columns", "check_offsets_u32", "check_offsets_u64"];
        let own = others.into_iter().chain(samples).chain(frequencies).chain(checks);
        let own = own.map(str::to_owned);
        let own = own.chain([inexact]).map(|name| (FILE.into(), name));
        let scan = (SCAN.into(), String::new());
        own.chain([Histogram::kernel(), Self::distinct_kernel::<T>(), scan]).collect()
    }
}

impl Histogram {
    /// Kernel that counts row lengths.
    pub(crate) fn kernel() -> (Module, String) {
        (FILE.into(), "row_lengths".to_owned())
    }

    /// Counts the row lengths of a matrix in the memory of a GPU.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(crate) fn on_gpu<T: Scalar>(source: &CsrSource<T>) -> Result<Self, Error> {
        let a = &GpuColumns::with_room(source, size_of::<KernelCounts>() + SMALL)?;
        let found = a.work.cleared::<u64>(size_of::<KernelCounts>() / size_of::<u64>())?.cast();
        let listed = a.row_lengths(found)?;
        a.read(found)?.histogram(a, listed)
    }
}

impl KernelCounts {
    /// Histogram of the row lengths, with those of the long rows in `listed`.
    fn histogram(&self, a: &GpuColumns<'_>, listed: Ptr<u32>) -> Result<Histogram, Error> {
        let mut counts = Counts::default();
        (0..).zip(self.histogram).for_each(|(len, rows)| counts.add(len, rows.into()));
        let listed = a.work.read_vec(listed, self.listed as usize)?;
        listed.into_iter().for_each(|len| counts.add(len, 1));
        Ok(counts.into())
    }

    fn contiguity(&self, nnz: usize) -> Contiguity {
        let entries = contiguity::sampled(nnz) as f64;
        let [shifted, contiguous] = self.contiguity.map(|count| ratio(count as f64, entries));
        Contiguity { shifted, contiguous }
    }

    fn values<T: Scalar>(&self) -> ValueStatistics {
        let [others, zero] = self.distinct;
        let others = (others as usize).min(DICTIONARY + 1);
        let set = ValueSet::from_table(Box::new(self.values), others, zero != 0);
        let holds = |flag: u32| self.inexact & flag == 0;
        ValueStatistics::new::<T>(
            &set,
            ExactIn { bf16: holds(NOT_BF16), f16: holds(NOT_F16), f32: holds(NOT_F32) },
        )
    }
}
