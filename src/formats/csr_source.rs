//! A CSR matrix in GPU memory, from which a GPU packs.

use crate::device::{Buffer, Device, ForeignCsr, Gpu};
use crate::matrix::CsrView;
use crate::{Error, Scalar};
use std::sync::Arc;

/// A CSR matrix in GPU memory.
#[derive(Debug)]
pub(crate) struct CsrSource<T> {
    pub(crate) gpu: Gpu,
    pub(crate) nrows: usize,
    pub(crate) ncols: usize,
    pub(crate) row_ptr: Buffer<usize>,
    pub(crate) col_idx: Arc<Buffer<u32>>,
    pub(crate) values: Arc<Buffer<T>>,
    /// True if the arrays are another library's.
    foreign: bool,
}

impl<T: Scalar> CsrSource<T> {
    /// Copies a matrix to GPU memory.
    ///
    /// # Errors
    ///
    /// Errors of allocation and copies.
    pub(crate) fn upload(a: CsrView<'_, T>, gpu: Gpu) -> Result<Self, Error> {
        Ok(Self {
            gpu,
            nrows: a.nrows(),
            ncols: a.ncols(),
            row_ptr: gpu.upload(a.row_ptr())?,
            col_idx: Arc::new(gpu.upload(a.col_idx())?),
            values: Arc::new(gpu.upload(a.values())?),
            foreign: false,
        })
    }

    /// Wraps a matrix that is already in GPU memory, in arrays of another library. `a` is the same
    /// matrix; its offsets are copied unless those in GPU memory have 64 bits. `None` if the arrays
    /// are in host memory.
    ///
    /// # Errors
    ///
    /// Errors of allocation and copies.
    ///
    /// # Safety
    ///
    /// It is not used after `foreign` is dropped.
    pub(crate) unsafe fn around(
        a: CsrView<'_, T>,
        foreign: &ForeignCsr<T>,
    ) -> Result<Option<Self>, Error> {
        let (Device::Cuda(gpu), Some(arrays)) = (foreign.device(), foreign.on_gpu()) else {
            return Ok(None);
        };
        // SAFETY: the caller's promise. 64-bit offsets are the same as those in host memory.
        let (row_ptr, col_idx, values) = unsafe {
            let row_ptr = match arrays.row_ptr {
                Some(there) if size_of::<usize>() == size_of::<u64>() => there.alias(),
                _ => gpu.upload(a.row_ptr())?,
            };
            (row_ptr, arrays.col_idx.alias(), arrays.values.alias())
        };
        let (nrows, ncols) = (a.nrows(), a.ncols());
        let (col_idx, values) = (Arc::new(col_idx), Arc::new(values));
        Ok(Some(Self { gpu: *gpu, nrows, ncols, row_ptr, col_idx, values, foreign: true }))
    }

    /// An array of this matrix, in memory that a packed matrix may keep: shared, or copied from
    /// another library's.
    ///
    /// # Errors
    ///
    /// Errors of allocation and copies.
    pub(crate) fn kept<E: Copy>(&self, array: &Arc<Buffer<E>>) -> Result<Arc<Buffer<E>>, Error> {
        match self.foreign {
            true => Ok(Arc::new(self.gpu.copied(array)?)),
            false => Ok(array.clone()),
        }
    }
}
