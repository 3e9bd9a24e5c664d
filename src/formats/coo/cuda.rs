//! COO on a GPU: a segmented sum over equal chunks, or one atomic addition per entry.

use super::{CHUNK, CooPlan, HostCoo, MAX_CHUNKS_ONE_LAUNCH};
use crate::device::{
    BLOCK, Buffer, Gpu, Kernel, Launch, Module, Numbers, Ptr, Queue, Residency, Scratch, kernels,
};
use crate::formats::device_rows::TailArrays;
use crate::formats::{DeviceMatrix, DeviceValueArrays, HostMatrix, Plan, ValueArrays};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};

/// Name of the kernel file.
const FILE: &str = "coo";

impl<T: Scalar> HostCoo<T> {
    /// Copies the entries to GPU memory.
    pub(crate) fn upload_arrays(&self, gpu: Gpu) -> Result<TailArrays<T>, Error> {
        Ok(TailArrays {
            row_idx: gpu.upload(&self.row_idx)?,
            col_idx: gpu.upload(&self.col_idx)?,
            values: gpu.upload(&self.values)?,
        })
    }
}

/// Entries in GPU memory.
#[derive(Debug)]
struct Entries<T> {
    nrows: usize,
    ncols: usize,
    row_idx: Buffer<u32>,
    col_idx: Buffer<u32>,
    values: Buffer<T>,
    residency: Residency,
}

impl<T: Scalar> Entries<T> {
    fn new(host: &HostCoo<T>, gpu: Gpu, residency: Residency) -> Result<Self, Error> {
        Ok(Self::of_arrays((host.nrows, host.ncols), host.upload_arrays(gpu)?, residency))
    }

    fn of_arrays(
        (nrows, ncols): (usize, usize),
        TailArrays { row_idx, col_idx, values }: TailArrays<T>,
        residency: Residency,
    ) -> Self {
        Self { nrows, ncols, row_idx, col_idx, values, residency }
    }

    fn to_host(&self) -> Result<HostCoo<T>, Error> {
        let (row_idx, col_idx) = (self.row_idx.to_vec()?, self.col_idx.to_vec()?);
        Ok(HostCoo::of(self.nrows, self.ncols, row_idx, col_idx, self.values.to_vec()?))
    }

    fn bytes(&self) -> u64 {
        self.row_idx.bytes() + self.col_idx.bytes() + self.values.bytes()
    }
}

/// Segmented sum: one block per chunk; the sums of rows in the chunks before their last one are
/// added afterwards.
#[derive(Debug)]
struct SegmentedSum<T> {
    chunks: usize,
    kernel: Kernel,
    add_carries: AddCarries,
    /// Carry of every chunk: its sum of a row that continues in the next chunk, and the number of
    /// that row.
    carries: Scratch<T>,
    carry_rows: Scratch<u32>,
}

/// Addition of the carries: the sums of rows in the chunks before their last one.
#[derive(Debug)]
enum AddCarries {
    /// By the last block to finish; the array is the counter of finished blocks. All blocks first
    /// wait for their sums to be written.
    InPassing(Scratch<u32>),
    /// By a second kernel.
    Afterwards(Kernel),
}

impl<T: Scalar> SegmentedSum<T> {
    /// Creates the sum, with the kernel that writes rows or the one that adds to them.
    fn new(entries: usize, gpu: Gpu, kernel: &str, residency: Residency) -> Result<Self, Error> {
        let chunks = entries.div_ceil(CHUNK);
        let add_carries = if chunks <= MAX_CHUNKS_ONE_LAUNCH {
            // A single chunk has no carry.
            AddCarries::InPassing(Scratch::cleared(gpu, usize::from(chunks > 1)))
        } else {
            AddCarries::Afterwards(gpu.kernel(FILE, &format!("coo_carries_{}", T::KIND))?)
        };
        Ok(Self {
            chunks,
            kernel: gpu.kernel(Module::of(FILE, residency), &format!("{kernel}_{}", T::KIND))?,
            add_carries,
            carries: Scratch::new(gpu, chunks),
            carry_rows: Scratch::new(gpu, chunks),
        })
    }

    /// Enqueues the SpMV.
    ///
    /// # Safety
    ///
    /// As [`DeviceMatrix::spmv`], and the entries are those that this was made for.
    unsafe fn enqueue(
        &self,
        entries: &Entries<T>,
        queue: &Queue,
        x: Ptr<T>,
        y: Ptr<T>,
    ) -> Result<(), Error> {
        let (carries, rows) = (self.carries.on(queue)?, self.carry_rows.on(queue)?);
        let (arrivals, afterwards) = match &self.add_carries {
            AddCarries::InPassing(arrivals) => (arrivals.on(queue)?, None),
            AddCarries::Afterwards(kernel) => (Ptr::NULL, Some(kernel)),
        };
        let launch = Launch::over(self.chunks, BLOCK).with(kernels::coo::Segments {
            rows: entries.row_idx.ptr(),
            cols: entries.col_idx.ptr(),
            values: entries.values.ptr(),
            nnz: entries.values.len() as u64,
            x,
            y,
            carry_rows: rows,
            carries,
            arrivals,
            l2_shares: entries.residency.l2_shares(queue),
        });
        // SAFETY: the kernel is `coo` or `coo_add`; there is a carry for every chunk, and the
        // counter is zero before and after the launch.
        unsafe { self.kernel.launch(queue, launch)? };
        let Some(kernel) = afterwards else { return Ok(()) };
        // No row continues behind the last chunk.
        let cuts = self.chunks - 1;
        let params = kernels::coo::Carries { rows, carries, count: cuts as u64, y };
        let launch = Launch::over(cuts, 1).with(params);
        // SAFETY: the kernel is `coo_carries`; the rows are those of `y`.
        unsafe { kernel.launch(queue, launch) }
    }
}

/// A COO matrix in GPU memory.
#[derive(Debug)]
pub(super) struct DeviceCoo<T> {
    gpu: Gpu,
    entries: Entries<T>,
    /// True if every row has an entry.
    reaches_every_row: bool,
    sum: Sum<T>,
}

/// Summation of the entries.
#[derive(Debug)]
enum Sum<T> {
    Segments(Box<SegmentedSum<T>>),
    Atomic(Kernel),
}

impl<T: Scalar> Sum<T> {
    fn of(plan: CooPlan, entries: &Entries<T>, gpu: Gpu) -> Result<Self, Error> {
        let residency = entries.residency;
        Ok(match plan {
            CooPlan::Segments => {
                let sum = SegmentedSum::new(entries.values.len(), gpu, "coo", residency)?;
                Self::Segments(Box::new(sum))
            }
            CooPlan::Atomic => {
                let module = Module::of(FILE, residency);
                Self::Atomic(gpu.kernel(module, &format!("coo_atomic_{}", T::KIND))?)
            }
        })
    }
}

impl<T: Scalar> DeviceCoo<T> {
    pub(super) fn new(host: &HostCoo<T>, gpu: Gpu) -> Result<Self, Error> {
        let residency = Residency::of::<T>(gpu, host.matrix_bytes(), (host.nrows, host.ncols));
        let entries = Entries::new(host, gpu, residency)?;
        let sum = Sum::of(host.plan, &entries, gpu)?;
        Ok(Self { gpu, entries, reaches_every_row: host.reaches_every_row(), sum })
    }
}

impl<T: Scalar> DeviceMatrix<T> for DeviceCoo<T> {
    unsafe fn spmv(&self, queue: &Queue, x: Ptr<T>, y: Ptr<T>) -> Result<(), Error> {
        // The kernel adds to `y`, or does not write every row.
        if matches!(self.sum, Sum::Atomic(_)) || !self.reaches_every_row {
            // SAFETY: `y` has `nrows` elements.
            unsafe { queue.clear(y, self.entries.nrows)? };
        }
        match &self.sum {
            // SAFETY: the caller's promise; these are the entries it was made for.
            Sum::Segments(segments) => unsafe { segments.enqueue(&self.entries, queue, x, y) },
            Sum::Atomic(kernel) => {
                let Entries { row_idx, col_idx, values, residency, .. } = &self.entries;
                let launch = Launch::over(values.len(), 1).with(kernels::coo::Atomic {
                    rows: row_idx.ptr(),
                    cols: col_idx.ptr(),
                    values: values.ptr(),
                    nnz: values.len() as u64,
                    x,
                    y,
                    l2_shares: residency.l2_shares(queue),
                });
                // SAFETY: the kernel is `coo_atomic`; the vectors are the caller's promise.
                unsafe { kernel.launch(queue, launch) }
            }
        }
    }

    fn change_plan(&mut self, plan: &Plan) -> Result<bool, Error> {
        let Plan::Coo(plan) = plan else { return Ok(false) };
        self.sum = Sum::of(*plan, &self.entries, self.gpu)?;
        Ok(true)
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        self.entries.to_host()?.unpack()
    }

    fn values(&self) -> DeviceValueArrays<'_, T> {
        Ok(ValueArrays::Plain([self.entries.values.numbers(), Default::default()]))
    }

    fn device_bytes(&self) -> u64 {
        self.entries.bytes()
    }

    fn residency(&self) -> Residency {
        self.entries.residency
    }
}

/// The COO part of another format in GPU memory.
#[derive(Debug)]
pub(crate) struct DeviceTail<T> {
    entries: Entries<T>,
    segments: SegmentedSum<T>,
}

impl<T: Scalar> DeviceTail<T> {
    /// Copies the entries to GPU memory with the given residency.
    pub(crate) fn new(host: &HostCoo<T>, gpu: Gpu, residency: Residency) -> Result<Self, Error> {
        Self::of_arrays(gpu, (host.nrows, host.ncols), host.upload_arrays(gpu)?, residency)
    }

    /// Wraps entries in GPU memory.
    pub(crate) fn of_arrays(
        gpu: Gpu,
        shape: (usize, usize),
        arrays: TailArrays<T>,
        residency: Residency,
    ) -> Result<Self, Error> {
        let segments = SegmentedSum::new(arrays.values.len(), gpu, "coo_add", residency)?;
        Ok(Self { entries: Entries::of_arrays(shape, arrays, residency), segments })
    }

    /// Enqueues `y = y + A x`; always adds in the same order.
    ///
    /// # Safety
    ///
    /// As [`DeviceMatrix::spmv`].
    pub(crate) unsafe fn spmv_add(&self, queue: &Queue, x: Ptr<T>, y: Ptr<T>) -> Result<(), Error> {
        // SAFETY: the caller's promise; these are the entries it was made for.
        unsafe { self.segments.enqueue(&self.entries, queue, x, y) }
    }

    /// Copies the entries back to host memory.
    pub(crate) fn to_host(&self) -> Result<HostCoo<T>, Error> {
        self.entries.to_host()
    }

    /// Address and number of the values.
    pub(crate) fn values(&self) -> Numbers<T> {
        self.entries.values.numbers()
    }

    /// Bytes of the entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.bytes()
    }
}
