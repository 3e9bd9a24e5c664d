//! A CSR matrix in GPU memory, which a GPU analyses and packs.

use super::constants::CHECKED;
use super::kernels::analysis::{CheckColumns, CheckOffsets};
use super::{Buffer, Device, ForeignCsr, Gpu, Launch, Ptr, Queue, WorkingMemory};
use crate::matrix::{CsrMatrix, CsrView, MAX_DIMENSION};
use crate::trace::span;
use crate::{Error, Scalar};
use once_cell::sync::OnceCell;
use std::cell::RefCell;
use std::sync::Arc;
use std::{panic, thread};

/// A CSR matrix in GPU memory.
#[derive(Debug)]
pub(crate) struct CsrSource<T: Scalar> {
    pub(crate) gpu: Gpu,
    pub(crate) nrows: usize,
    pub(crate) ncols: usize,
    pub(crate) row_ptr: Buffer<usize>,
    pub(crate) col_idx: Arc<Buffer<u32>>,
    pub(crate) values: Arc<Buffer<T>>,
    /// Copy in host memory, made when it is first needed.
    host: OnceCell<CsrMatrix<T>>,
}

impl<T: Scalar> CsrSource<T> {
    /// Copies a matrix to GPU memory.
    ///
    /// # Errors
    ///
    /// Errors of allocation and copies.
    pub(crate) fn upload(a: CsrView<'_, T>, gpu: Gpu) -> Result<Self, Error> {
        let own = Self::with_positions(a, gpu)?;
        own.values.write(gpu.queue(), a.values())?;
        Ok(own)
    }

    /// Copies a matrix to GPU memory, and calls `work` while many values are copied. Their copy is
    /// done once the second argument of `work` returns true.
    ///
    /// # Errors
    ///
    /// As [`upload`](Self::upload).
    pub(crate) fn upload_during<R>(
        a: CsrView<'_, T>,
        gpu: Gpu,
        work: impl FnOnce(&Self, &dyn Fn() -> bool) -> R,
    ) -> Result<(Self, R), Error> {
        /// Bytes that take longer to copy than a queue and a thread to start.
        const MANY: u64 = 1 << 22;
        let own = Self::with_positions(a, gpu)?;
        // Work on the default queue does not wait for copies on another one.
        let queue = (own.values.bytes() >= MANY).then(|| gpu.new_queue()).transpose()?;
        let copy = || own.values.write(queue.as_ref().unwrap_or(gpu.queue()), a.values());
        let found = thread::scope(|scope| {
            let start = |_: &Queue| thread::Builder::new().spawn_scoped(scope, copy).ok();
            let copied = match queue.as_ref().and_then(start) {
                Some(copying) => (Some(copying), Ok(())),
                None => (None, copy()),
            };
            let copied = RefCell::new(copied);
            let is_copied = || {
                let (copying, result) = &mut *copied.borrow_mut();
                if let Some(copying) = copying.take() {
                    *result = copying.join().unwrap_or_else(|cause| panic::resume_unwind(cause));
                }
                result.is_ok()
            };
            let found = work(&own, &is_copied);
            is_copied();
            copied.into_inner().1.map(|()| found)
        })?;
        Ok((own, found))
    }

    /// A matrix without values: there is memory for them.
    fn with_positions(a: CsrView<'_, T>, gpu: Gpu) -> Result<Self, Error> {
        Ok(Self {
            gpu,
            nrows: a.nrows(),
            ncols: a.ncols(),
            row_ptr: gpu.upload(a.row_ptr())?,
            col_idx: Arc::new(gpu.upload(a.col_idx())?),
            values: Arc::new(gpu.uninitialised(a.nnz())?),
            host: OnceCell::new(),
        })
    }

    /// Wraps a matrix that is already in GPU memory, in arrays of another library, and checks it
    /// there. Offsets of 32 bits are copied, and arrays that wide loads cannot read. `None` if the
    /// arrays are in host memory, or if they are not those of a matrix: a check on the host names
    /// the error.
    ///
    /// # Errors
    ///
    /// Errors of allocation and launches.
    ///
    /// # Safety
    ///
    /// It and packed matrices that share its arrays are not used after `foreign` is dropped, and
    /// nothing writes the arrays.
    pub(crate) unsafe fn around(foreign: &ForeignCsr<T>) -> Result<Option<Self>, Error> {
        let (Device::Cuda(gpu), Some(arrays)) = (foreign.device(), foreign.on_gpu()) else {
            return Ok(None);
        };
        let ((nrows, ncols), nnz) = (foreign.shape(), arrays.col_idx.len());
        if nrows.max(ncols) > MAX_DIMENSION || size_of::<usize>() != size_of::<u64>() {
            return Ok(None);
        }
        let work = WorkingMemory::new(*gpu, size_of::<u32>())?;
        let wrong = work.cleared::<u32>(1)?;
        // SAFETY: the caller's promise.
        let (col_idx, values) = unsafe { (arrays.col_idx.alias(), arrays.values.alias()) };
        let (col_idx, values) = (aligned(col_idx)?, aligned(values)?);
        // Dimensions have 32 bits.
        let columns = CheckColumns {
            cols: arrays.col_idx.ptr(),
            nnz: nnz as u64,
            ncols: ncols as u32,
            wrong,
        };
        let columns = Launch::over(nnz.div_ceil(CHECKED), 1).with(columns);
        let row_ptr = match (arrays.narrow, arrays.wide) {
            (Some(narrow), _) => gpu.uninitialised(narrow.len())?,
            // SAFETY: the caller's promise.
            (_, Some(wide)) => unsafe { wide.alias() },
            (None, None) => return Ok(None),
        };
        let over = Launch::over(nrows + 1, 1);
        let (nnz, rows) = (nnz as u64, nrows as u32);
        // SAFETY: the kernels have a thread for every offset, and for every few columns; the arrays
        // outlive the wait for the result.
        unsafe {
            work.run(FILE, "check_columns", columns)?;
            match (arrays.narrow, arrays.wide) {
                (Some(narrow), _) => {
                    let (offsets, widened) = (narrow.ptr(), row_ptr.ptr().cast());
                    let check = CheckOffsets { offsets, nrows: rows, nnz, widened, wrong };
                    work.run(FILE, "check_offsets_u32", over.with(check))?;
                }
                (_, Some(wide)) => {
                    let (offsets, widened) = (wide.ptr(), Ptr::NULL);
                    let check = CheckOffsets { offsets, nrows: rows, nnz, widened, wrong };
                    work.run(FILE, "check_offsets_u64", over.with(check))?;
                }
                (None, None) => {}
            }
        }
        let mut found = [0];
        work.read(wrong, &mut found)?;
        let host = OnceCell::new();
        let own = Self { gpu: *gpu, nrows, ncols, row_ptr, col_idx, values, host };
        Ok((found == [0]).then_some(own))
    }

    /// Number of entries.
    pub(crate) fn nnz(&self) -> usize {
        self.col_idx.len()
    }

    /// The matrix in host memory, copied at the first call.
    ///
    /// # Errors
    ///
    /// Errors of allocation and copies.
    pub(crate) fn on_host(&self) -> Result<CsrView<'_, T>, Error> {
        let copy = || {
            let _span = span!(DEBUG, "download");
            let arrays = (self.row_ptr.to_vec()?, self.col_idx.to_vec()?, self.values.to_vec()?);
            let (row_ptr, col_idx, values) = arrays;
            // SAFETY: these are the arrays of a checked matrix.
            let a = unsafe {
                CsrMatrix::new_unchecked(self.nrows, self.ncols, row_ptr, col_idx, values)
            };
            Ok::<_, Error>(a)
        };
        self.host.get_or_try_init(copy).map(CsrMatrix::view)
    }

    /// The matrix in host memory, as [`on_host`](Self::on_host). Frees what is in GPU memory.
    ///
    /// # Errors
    ///
    /// As [`on_host`](Self::on_host).
    pub(crate) fn into_host(self) -> Result<CsrMatrix<T>, Error> {
        self.on_host()?;
        Ok(self.host.into_inner().expect("copied above"))
    }
}

/// An array of another library, or a copy of it if kernels cannot load 16 bytes from its beginning.
fn aligned<T: Copy>(array: Buffer<T>) -> Result<Arc<Buffer<T>>, Error> {
    let is_aligned = array.ptr().address().is_multiple_of(16);
    let mut array = Arc::new(array);
    if !is_aligned {
        Buffer::copy_borrowed(&mut array)?;
    }
    Ok(array)
}

/// Kernel file of the checks.
const FILE: &str = "analysis";
