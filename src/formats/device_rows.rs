//! Packing of ELL, SELL and JDS on a GPU, from CSR arrays in its memory. The buffers are the same,
//! bit for bit, as those of a matrix packed on the host.
//!
//! In these formats the slot of an entry is a function of the place of its row in the order of the
//! rows and of its place in the row:
//!
//! 1. The histogram of the row lengths is copied to the host, which derives the number of slots, or
//!    the table of JDS.
//! 2. The rows are sorted by length, if the format sorts them.
//! 3. Prefix sums over the widths of slices give the first slot of each, for SELL.
//! 4. Prefix sums over the entries beyond a length give every row its place in the COO part, if
//!    there is one.
//! 5. Threads copy up to [`ROW_PORTION`] entries of a row each; a warp has 32 adjacent rows, whose
//!    slots are adjacent.

use super::constants::ROW_PORTION;
use super::device_sorting::{RowSort, SORT};
use crate::analysis::Histogram;
use crate::device::kernels::pack_rows::{Beyond, Entries, Pad, Widths};
use crate::device::{Buffer, CsrSource, Launch, Module, Ptr, SCAN, WARP, WorkingMemory};
use crate::{Error, Scalar};

/// Kernel file.
const FILE: &str = "pack_rows";

/// True if the kernels read row offsets as they are.
pub(crate) const SUPPORTED: bool = size_of::<usize>() == size_of::<u64>();

/// Kernels for packing.
pub(crate) fn kernels() -> Vec<(Module, String)> {
    let modules = [SORT, FILE, SCAN].map(|module| (module.into(), String::new()));
    modules.into_iter().chain([Histogram::kernel()]).collect()
}

/// Positions of the slots of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RowSlots {
    /// The rows are in slices of this number. Slot `k` of a row is that many slots behind the
    /// previous one. The array has the first slot of every slice.
    Slices(Ptr<u64>, u32),
    /// The rows are in this number of sections of JDS.
    Sections(Ptr<u64>, u32),
    /// Slot `k` of a row is in diagonal `k`, whose beginning is in the array.
    Diagonals(Ptr<u64>),
}

/// Entries in COO, sorted by row.
#[derive(Debug)]
pub(crate) struct TailArrays<T> {
    pub(crate) row_idx: Buffer<u32>,
    pub(crate) col_idx: Buffer<u32>,
    pub(crate) values: Buffer<T>,
}

/// Slots, and the entries beyond them.
#[derive(Debug)]
pub(crate) struct PackedRows<T> {
    pub(crate) col_idx: Buffer<u32>,
    pub(crate) values: Buffer<T>,
    /// None without such entries.
    pub(crate) tail: Option<TailArrays<T>>,
}

impl<T: Scalar> PackedRows<T> {
    /// Bytes of all arrays.
    pub(crate) fn bytes(&self) -> u64 {
        let tail = self.tail.as_ref();
        let tail = tail.map_or(0, |t| t.row_idx.bytes() + t.col_idx.bytes() + t.values.bytes());
        self.col_idx.bytes() + self.values.bytes() + tail
    }
}

/// A matrix that is being packed.
pub(crate) struct RowPacker<'a, T: Scalar> {
    a: &'a CsrSource<T>,
    histogram: Histogram,
    work: WorkingMemory,
}

impl<'a, T: Scalar> RowPacker<'a, T> {
    /// Counts the row lengths.
    ///
    /// # Errors
    ///
    /// Errors of allocation, launches and kernel compilation, here and below.
    pub(crate) fn new(a: &'a CsrSource<T>) -> Result<Self, Error> {
        /// Bytes per row: order of the rows and counts of digits.
        const ROW: usize = 5;
        /// Bytes that do not depend on the number of rows.
        const SMALL: usize = 1 << 16;
        let histogram = Histogram::on_gpu(a)?;
        let work = WorkingMemory::new(a.gpu, ROW * a.nrows + SMALL)?;
        Ok(Self { a, histogram, work })
    }

    /// Histogram of the row lengths.
    pub(crate) fn histogram(&self) -> &Histogram {
        &self.histogram
    }

    /// Length of the longest row.
    fn longest(&self) -> u32 {
        self.histogram.classes().last().map_or(0, |class| class.0)
    }

    /// The rows, sorted by length within windows of `sigma`.
    pub(crate) fn sorted(&self, sigma: usize) -> Result<Buffer<u32>, Error> {
        let (row_ptr, nrows, limit) = (self.row_ptr(), self.a.nrows, self.longest());
        RowSort { work: &self.work, row_ptr, nrows, limit }.windows(sigma)
    }

    /// Lengths of all rows.
    pub(crate) fn lengths(&self) -> Result<Buffer<u32>, Error> {
        let lengths = self.a.gpu.uninitialised(self.a.nrows)?;
        let widths = self.work.take(self.a.nrows.div_ceil(WARP as usize))?;
        self.widths(Ptr::NULL, (WARP, 1, 1), widths, (Ptr::NULL, lengths.ptr()))?;
        Ok(lengths)
    }

    /// First slot of every slice of `c` rows and the end of the last one, length of the shortest
    /// row of each, and the number of slots.
    pub(crate) fn slices(
        &self,
        perm: Ptr<u32>,
        c: u32,
    ) -> Result<(Buffer<u64>, Buffer<u32>, usize), Error> {
        let (gpu, slices) = (self.a.gpu, self.a.nrows.div_ceil(c as usize));
        let (slice_ptr, full) = gpu.uninitialised_pair::<u64, u32>((slices + 1, slices))?;
        self.widths(perm, (c, 1, c), slice_ptr.ptr(), (full.ptr(), Ptr::NULL))?;
        let slots = self.sums(slice_ptr.ptr(), slices)?;
        Ok((slice_ptr, full, slots))
    }

    /// Writes the width of every slice of `c` rows, in multiples of `portion` and times `factor`,
    /// and the arrays of the kernel that are not null.
    fn widths(
        &self,
        perm: Ptr<u32>,
        (c, portion, factor): (u32, u32, u32),
        widths: Ptr<u64>,
        (full, lengths): (Ptr<u32>, Ptr<u32>),
    ) -> Result<(), Error> {
        let (row_ptr, nrows) = (self.row_ptr(), self.a.nrows as u32);
        let find = Widths { row_ptr, perm, nrows, c, portion, factor, widths, full, lengths };
        let launch = Launch::over(self.a.nrows.div_ceil(c as usize), WARP).with(find);
        // SAFETY: callers have room for every slice, and for every row in `lengths`.
        unsafe { self.work.run(FILE, "pack_rows_widths", launch) }
    }

    /// Replaces `count` numbers by the sums before them and of all, which is returned.
    fn sums(&self, numbers: Ptr<u64>, count: usize) -> Result<usize, Error> {
        let (all, mut sum) = (numbers.add(count), [0]);
        self.work.clear(all, 1)?;
        // SAFETY: callers have the numbers, and room for their sum.
        unsafe { self.work.scan(numbers, count, 1, all)? };
        self.work.read(all, &mut sum)?;
        Ok(sum[0] as usize)
    }

    /// Packs the first `cut` entries of every row, in the order of `perm` unless it is null, to
    /// `slots` slots, and the others to COO. Waits for all launches.
    pub(crate) fn pack(
        &self,
        perm: Ptr<u32>,
        positions: RowSlots,
        slots: usize,
        cut: u32,
    ) -> Result<PackedRows<T>, Error> {
        let Self { a, work, .. } = self;
        let (gpu, nrows) = (a.gpu, a.nrows as u32);
        let beyond = self.histogram.entries_beyond(cut) as usize;
        let padded = slots > a.nnz() - beyond;
        let (col_idx, values) = gpu.uninitialised_pair::<u32, T>((slots, slots))?;
        if padded {
            work.clear(values.ptr(), slots)?;
            let pad = Pad { cols: col_idx.ptr(), slots: slots as u64 };
            // SAFETY: there are as many slots.
            unsafe { work.run(FILE, "pack_rows_pad", Launch::over(slots, 1).with(pad))? };
        }
        let before_tail = self.before_tail(cut, beyond)?;
        let (row_idx, tail_cols) = (gpu.uninitialised(beyond)?, gpu.uninitialised(beyond)?);
        let tail = TailArrays { row_idx, col_idx: tail_cols, values: gpu.uninitialised(beyond)? };
        let slices = a.nrows.div_ceil(WARP as usize);
        let before = work.take::<u64>(slices + 1)?;
        self.widths(perm, (WARP, ROW_PORTION as u32, 1), before, (Ptr::NULL, Ptr::NULL))?;
        let portions = self.sums(before, slices)?;
        let (table, sections, c) = match positions {
            RowSlots::Slices(table, c) => (table, 0, c),
            RowSlots::Sections(table, sections) => (table, sections, 0),
            RowSlots::Diagonals(table) => (table, 0, 0),
        };
        let launch = Launch::over(portions, WARP).with(Entries {
            row_ptr: self.row_ptr(),
            col_idx: a.col_idx.ptr(),
            values: a.values.ptr(),
            perm,
            nrows,
            before,
            slices: slices as u32,
            table,
            sections,
            c,
            cols: col_idx.ptr(),
            stored: values.ptr(),
            cut,
            before_tail,
            tail_rows: tail.row_idx.ptr(),
            tail_cols: tail.col_idx.ptr(),
            tail_values: tail.values.ptr(),
        });
        // SAFETY: there is a warp for every portion, and the buffers have every slot and entry.
        unsafe { work.run(FILE, &format!("pack_rows_entries_{}", T::KIND), launch)? };
        gpu.queue().synchronize()?;
        Ok(PackedRows { col_idx, values, tail: (beyond > 0).then_some(tail) })
    }

    /// Number of entries in COO before every row; null if there are none.
    fn before_tail(&self, cut: u32, beyond: usize) -> Result<Ptr<u64>, Error> {
        if beyond == 0 {
            return Ok(Ptr::NULL);
        }
        let (row_ptr, nrows) = (self.row_ptr(), self.a.nrows);
        let numbers = self.work.take::<u64>(nrows + 1)?;
        let count = Beyond { row_ptr, nrows: nrows as u32, cut, numbers };
        // SAFETY: there is a number for every row.
        unsafe {
            self.work.run(FILE, "pack_rows_beyond", Launch::over(nrows, 1).with(count))?;
            self.work.scan(numbers, nrows, 1, numbers.add(nrows))?;
        }
        Ok(numbers)
    }

    /// Zero on the GPU: the first slot of the only slice.
    pub(crate) fn one_slice(&self) -> Result<RowSlots, Error> {
        Ok(RowSlots::Slices(self.work.cleared(1)?, self.a.nrows as u32))
    }

    /// Row offsets in the type of the kernels.
    fn row_ptr(&self) -> Ptr<u64> {
        self.a.row_ptr.ptr().cast()
    }
}

#[cfg(test)]
#[path = "device_rows_tests.rs"]
mod tests;
