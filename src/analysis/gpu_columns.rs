//! Positions of the entries of a matrix in the memory of a GPU, and copies of samples of them.

use super::frequency::{FrequencyCounts, Runs};
use super::sample::{Arrival, Sample};
use crate::device::kernels::analysis::{AddColumns, ColumnSpans, Gather, TallyColumns};
use crate::device::{BLOCK, Buffer, CsrSource, Gpu, HostWindow, Launch, Ptr, WorkingMemory};
use crate::{Error, Scalar};
use std::borrow::Cow;
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
    window: OnceCell<Option<HostWindow>>,
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
        let window = OnceCell::new();
        Ok(Self { gpu: a.gpu, nrows: a.nrows, ncols: a.ncols, row_ptr, col_idx, work, window })
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
    pub(crate) fn window(&self) -> Option<&HostWindow> {
        self.window.get_or_init(|| HostWindow::new(self.gpu).ok()).as_ref()
    }

    /// Copies of ranges of the row offsets.
    pub(super) fn offsets(
        &'a self,
        ranges: Vec<Range<usize>>,
    ) -> Result<Arrival<'a, usize>, Error> {
        self.gathered(self.row_ptr.ptr(), "gather_u64", ranges)
    }

    /// Copies of ranges of the columns.
    pub(super) fn columns(&'a self, ranges: Vec<Range<usize>>) -> Result<Arrival<'a, u32>, Error> {
        self.gathered(self.col_idx(), "gather_u32", ranges)
    }

    /// Enqueues copies of ranges to the window. Ranges that it has no room for are copied at once.
    fn gathered<E: Copy>(
        &'a self,
        elements: Ptr<E>,
        kernel: &str,
        ranges: Vec<Range<usize>>,
    ) -> Result<Arrival<'a, E>, Error> {
        /// Elements that a warp copies.
        const COPIED: usize = 512;
        let parts = ranges.iter().map(|range| range.len().div_ceil(COPIED)).sum::<usize>();
        let len: usize = ranges.iter().map(Range::len).sum();
        let shared = self.window().and_then(|window| {
            let places = window.take::<u64>(2 * parts + 1)?;
            Some((window, places, window.take::<E>(len)?))
        });
        // Beginnings of the parts, then their places among the copies.
        let mut places = vec![0; if shared.is_some() { 0 } else { 2 * parts + 1 }];
        let listed = match shared {
            // SAFETY: the array has as many elements, which only a later launch reads.
            Some((_, (host, _), _)) => unsafe {
                std::slice::from_raw_parts_mut(host, 2 * parts + 1)
            },
            None => &mut places[..],
        };
        let (from, to) = listed.split_at_mut(parts);
        let starts = ranges.iter().flat_map(|range| {
            range.clone().step_by(COPIED).map(|start| start..(start + COPIED).min(range.end))
        });
        to[0] = 0;
        for (part, range) in starts.enumerate() {
            from[part] = range.start as u64;
            to[part + 1] = to[part] + range.len() as u64;
        }
        let (from, copies) = match shared {
            Some((_, (_, from), (_, copies))) => (from, copies),
            None => {
                let from = self.work.take::<u64>(places.len())?;
                // SAFETY: as many elements, and the wait below outlasts the copy.
                unsafe { self.gpu.queue().copy_in(from, &places)? };
                (from, self.work.take::<E>(len)?)
            }
        };
        // There are fewer than 2³² ranges of any sample.
        let (to, count) = (from.add(parts), parts as u32);
        let launch = Launch::over(parts, WARP);
        let launch = launch.with(Gather { elements, from, to, count, copies });
        // SAFETY: the ranges are in the array, and there is room for their copies.
        unsafe { self.work.run(FILE, kernel, launch)? };
        match shared {
            Some((window, _, (copies, _))) => {
                window.mark()?;
                // SAFETY: the kernel before the mark writes the array.
                Ok(unsafe { Arrival::in_window(window, copies, ranges) })
            }
            None => {
                let copies = Cow::Owned(self.work.read_vec(copies, len)?);
                Ok(Arrival::here(Sample::of_copies(copies, &ranges)))
            }
        }
    }

    /// Least and largest column of rows, or `[u32::MAX, 0]` of a row without entries, and the
    /// offset of each row.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(crate) fn spans(&self, rows: &[u32]) -> Result<Vec<([u32; 2], usize)>, Error> {
        let count = rows.len();
        let shared = self.window().and_then(|window| {
            let (listed, list) = window.take::<u32>(count)?;
            // SAFETY: the array has as many elements, which only later launches read.
            unsafe { std::ptr::copy_nonoverlapping(rows.as_ptr(), listed, count) };
            Some((window, list, window.take::<[u32; 4]>(count)?))
        });
        let (list, spans) = match shared {
            Some((_, list, (_, spans))) => (list, spans),
            None => {
                let list = self.work.take::<u32>(count)?;
                // SAFETY: as many elements, and the wait below outlasts the copy.
                unsafe { self.gpu.queue().copy_in(list, rows)? };
                (list, self.work.take::<[u32; 4]>(count)?)
            }
        };
        let (row_ptr, cols) = (self.row_ptr(), self.col_idx());
        // There are fewer than 2³² rows.
        let params = ColumnSpans { row_ptr, cols, rows: list, count: count as u32, spans };
        // SAFETY: there is a warp and a place for every row.
        unsafe { self.work.run(FILE, "column_spans", Launch::over(count, WARP).with(params))? };
        let of = |&[least, most, low, high]: &[u32; 4]| {
            ([least, most], (u64::from(high) << u32::BITS | u64::from(low)) as usize)
        };
        match shared {
            Some((window, _, (spans, _))) => {
                window.mark()?;
                window.wait(count * size_of::<[u32; 4]>())?;
                // SAFETY: the kernel has written as many elements.
                Ok(unsafe { std::slice::from_raw_parts(spans, count) }.iter().map(of).collect())
            }
            None => Ok(self.work.read_vec(spans, count)?.iter().map(of).collect()),
        }
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
