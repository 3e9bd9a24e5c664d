//! Positions of the entries of a matrix in the memory of a GPU, and copies of samples of them.

use super::frequency::{FrequencyCounts, Runs};
use super::sample::{PendingElements, PendingSample};
use crate::device::kernels::analysis::{AddColumns, ColumnSpans, Gather, TallyColumns};
use crate::device::{BLOCK, Buffer, CsrSource, Gpu, HostArrays, Launch, Ptr, WorkingMemory};
use crate::{Error, Scalar};
use std::cell::OnceCell;
use std::ops::Range;

/// Working memory for samples, in bytes.
pub(super) const SMALL: usize = 1 << 22;

/// Kernel file of the analysis.
pub(super) const FILE: &str = "analysis";

/// Blocks that count the columns of a table.
const TALLY_BLOCKS: u32 = 64;

/// Threads per warp.
pub(super) const WARP: u32 = 32;

/// Row offsets and columns of a checked matrix in the memory of a GPU.
#[derive(Debug)]
pub(crate) struct GpuColumns<'a> {
    pub(crate) gpu: Gpu,
    pub(crate) nrows: usize,
    pub(crate) ncols: usize,
    row_ptr: &'a Buffer<usize>,
    col_idx: &'a Buffer<u32>,
    /// Working memory.
    pub(crate) work: WorkingMemory,
    /// Host memory for samples, if it can be allocated.
    host_arrays: OnceCell<Option<HostArrays>>,
}

impl<'a> GpuColumns<'a> {
    /// A matrix of which only samples are read.
    ///
    /// # Errors
    ///
    /// Errors of allocation.
    pub(crate) fn for_samples<T: Scalar>(a: &'a CsrSource<T>) -> Result<Self, Error> {
        Self::with_room(a, SMALL)
    }

    /// A matrix whose analysis takes `room` bytes of working memory.
    ///
    /// # Errors
    ///
    /// Errors of allocation.
    pub(super) fn with_room<T: Scalar>(a: &'a CsrSource<T>, room: usize) -> Result<Self, Error> {
        let (row_ptr, col_idx) = (&a.row_ptr, &*a.col_idx);
        let work = WorkingMemory::new(a.gpu, room)?;
        let (nrows, ncols, host_arrays) = (a.nrows, a.ncols, OnceCell::new());
        Ok(Self { gpu: a.gpu, nrows, ncols, row_ptr, col_idx, work, host_arrays })
    }

    /// Number of entries.
    pub(crate) fn nnz(&self) -> usize {
        self.col_idx.len()
    }

    /// Row offsets, in the type of the kernels.
    pub(crate) fn row_ptr(&self) -> Ptr<u64> {
        self.row_ptr.ptr().cast()
    }

    /// Columns of the entries.
    pub(crate) fn col_idx(&self) -> Ptr<u32> {
        self.col_idx.ptr()
    }

    /// Host memory that kernels write; `None` if it cannot be allocated.
    pub(crate) fn host_arrays(&self) -> Option<&HostArrays> {
        self.host_arrays.get_or_init(|| HostArrays::new(self.gpu).ok()).as_ref()
    }

    /// Copies of ranges of the row offsets.
    pub(super) fn offsets(
        &'a self,
        ranges: Vec<Range<usize>>,
    ) -> Result<PendingSample<'a, usize>, Error> {
        self.gathered(self.row_ptr.ptr(), "gather_u64", ranges)
    }

    /// Copies of ranges of the columns.
    pub(super) fn columns(
        &'a self,
        ranges: Vec<Range<usize>>,
    ) -> Result<PendingSample<'a, u32>, Error> {
        self.gathered(self.col_idx(), "gather_u32", ranges)
    }

    /// Enqueues copies of ranges.
    fn gathered<E: Copy>(
        &'a self,
        elements: Ptr<E>,
        kernel: &str,
        ranges: Vec<Range<usize>>,
    ) -> Result<PendingSample<'a, E>, Error> {
        /// Elements that a warp copies.
        const COPIED: usize = 512;
        let parts = ranges.iter().map(|range| range.len().div_ceil(COPIED)).sum::<usize>();
        // Beginnings of the parts, then their places among the copies.
        let mut list = vec![0; 2 * parts + 1];
        let (from, to) = list.split_at_mut(parts);
        let starts = ranges.iter().flat_map(|range| {
            range.clone().step_by(COPIED).map(|start| start..(start + COPIED).min(range.end))
        });
        for (part, range) in starts.enumerate() {
            from[part] = range.start as u64;
            to[part + 1] = to[part] + range.len() as u64;
        }
        let len = to[parts] as usize;
        // There are fewer than 2³² ranges of any sample.
        let count = parts as u32;
        let launch = |from: Ptr<u64>, copies| {
            let gather = Gather { elements, from, to: from.add(parts), count, copies };
            Launch::over(parts, WARP).with(gather)
        };
        // SAFETY: the ranges are in the array, and there is room for their copies.
        let copies = unsafe { self.written(kernel, &list, len, launch)? };
        Ok(PendingSample::of_copies(copies, &ranges))
    }

    /// Enqueues a kernel that reads `list` and writes `len` elements: in host memory, or where that
    /// has no room in the working memory, from which they are copied at once.
    ///
    /// # Safety
    ///
    /// As for [`Kernel::launch`](crate::device::Kernel::launch), with such arrays.
    unsafe fn written<I: Copy, E: Copy>(
        &'a self,
        kernel: &str,
        list: &[I],
        len: usize,
        launch: impl FnOnce(Ptr<I>, Ptr<E>) -> Launch,
    ) -> Result<PendingElements<'a, E>, Error> {
        let arrays = self.host_arrays().and_then(|arrays| {
            Some((arrays, arrays.take::<I>(list.len())?, arrays.take::<E>(len)?))
        });
        let Some((arrays, (copy, from), (elements, to))) = arrays else {
            let (from, to) = (self.work.take::<I>(list.len())?, self.work.take::<E>(len)?);
            self.work.write(from, list)?;
            // SAFETY: the caller's promise.
            unsafe { self.work.run(FILE, kernel, launch(from, to))? };
            return Ok(PendingElements::Read(self.work.read_vec(to, len)?.into()));
        };
        // SAFETY: the array has as many elements, which only the launch reads; and the caller's
        // promise.
        unsafe {
            copy.copy_from_nonoverlapping(list.as_ptr(), list.len());
            self.work.run(FILE, kernel, launch(from, to))?;
        }
        arrays.mark()?;
        Ok(PendingElements::Written { arrays, elements, len })
    }

    /// Least and largest column of rows, or `[u32::MAX, 0]` of a row without entries, and the
    /// offset of each row.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(crate) fn spans(&'a self, rows: &[u32]) -> Result<Vec<([u32; 2], usize)>, Error> {
        let (row_ptr, cols) = (self.row_ptr(), self.col_idx());
        let launch = |rows_ptr, spans| {
            let params = ColumnSpans { row_ptr, cols, rows: rows_ptr, spans };
            Launch::new(rows.len() as u32, BLOCK).with(params)
        };
        // SAFETY: there is a block and a place for every row.
        let spans = unsafe { self.written("column_spans", rows, rows.len(), launch)? };
        let of = |&[least, most, low, high]: &[u32; 4]| {
            ([least, most], (u64::from(high) << u32::BITS | u64::from(low)) as usize)
        };
        // SAFETY: the kernel writes all elements.
        Ok(unsafe { spans.wait()? }.iter().map(of).collect())
    }

    /// Enqueues the frequencies of the columns in runs of entries.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(super) fn begin_frequencies(&self, runs: Runs) -> Result<Ptr<FrequencyCounts>, Error> {
        let [chosen, _] = runs.entries();
        // Half of the slots of the table are free.
        let slots = (2 * chosen).next_power_of_two();
        let [columns, times, entries] = {
            let table = self.work.cleared::<u32>(3 * slots)?;
            [table, table.add(slots), table.add(2 * slots)]
        };
        let counts = self.work.cleared::<FrequencyCounts>(1)?;
        let add = |second| AddColumns {
            cols: self.col_idx(),
            distance: runs.distance as u64,
            runs: runs.count as u32,
            second,
            slots: slots as u32,
            columns,
            times,
            entries,
        };
        let launch = Launch::over(chosen, 1);
        let tally =
            TallyColumns { slots: slots as u32, columns, times, entries, counts: counts.cast() };
        // SAFETY: every run has as many entries; the table has room for all columns of the first
        // sample, and there is a number for each frequency.
        unsafe {
            self.work.run(FILE, "add_columns", launch.with(add(0)))?;
            self.work.run(FILE, "add_columns", launch.with(add(1)))?;
            self.work.run(FILE, "tally_columns", Launch::new(TALLY_BLOCKS, BLOCK).with(tally))?;
        }
        Ok(counts)
    }
}
