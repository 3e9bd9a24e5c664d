//! ELL on a GPU: one thread per row.

use super::HostEll;
use crate::device::{Buffer, Gpu, Launch, Module, Out, Ptr, Queue, Residency, RowKernel, kernels};
use crate::formats::{Arrays, DeviceMatrix, HostMatrix, NoArrays, row_products};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};

/// Name of the kernel file.
const FILE: &str = "ell";

/// An ELL matrix, or the ELL part of another format, in GPU memory.
#[derive(Debug)]
pub(crate) struct DeviceEll<T> {
    nrows: usize,
    ncols: usize,
    width: usize,
    full: usize,
    col_idx: Buffer<u32>,
    values: Buffer<T>,
    row_len: Option<Buffer<u32>>,
    kernel: RowKernel,
}

impl<T: Scalar> DeviceEll<T> {
    /// Copies a matrix to GPU memory with the given residency.
    pub(crate) fn new(host: &HostEll<T>, gpu: Gpu, residency: Residency) -> Result<Self, Error> {
        let kernel = if host.row_len.is_some() { "ell_lengths" } else { "ell" };
        Ok(Self {
            nrows: host.nrows,
            ncols: host.ncols,
            width: host.width,
            full: host.full,
            col_idx: gpu.upload(&host.col_idx)?,
            values: gpu.upload(&host.values)?,
            row_len: host.row_len.as_ref().map(|lengths| gpu.upload(lengths)).transpose()?,
            kernel: RowKernel::new(
                gpu,
                Module::of(FILE, residency),
                residency,
                format!("{kernel}_{}", T::KIND),
            )?,
        })
    }

    /// Copies the matrix back to host memory, for unpacking only.
    pub(crate) fn to_host(&self) -> Result<HostEll<T>, Error> {
        Ok(HostEll {
            nrows: self.nrows,
            ncols: self.ncols,
            width: self.width,
            full: self.full,
            col_idx: self.col_idx.to_vec()?,
            values: self.values.to_vec()?,
            row_len: self.row_len.as_ref().map(Buffer::to_vec).transpose()?,
            consecutive: false,
            parts: Box::default(),
        })
    }

    /// Enqueues the SpMV.
    ///
    /// # Safety
    ///
    /// As [`DeviceMatrix::spmv_scaled`].
    unsafe fn multiply(&self, queue: &Queue, x: Ptr<T>, out: Out<'_, T>) -> Result<(), Error> {
        let (nrows, ncols) = (self.nrows as u32, self.ncols as u32);
        let (cols, values) = (self.col_idx.ptr(), self.values.ptr());
        let l2_shares = self.kernel.residency().shares();
        let launch = Launch::over(self.nrows, 1);
        let launch = match &self.row_len {
            Some(lengths) => {
                let row_len = lengths.ptr();
                launch.with(kernels::ell::Lengths {
                    cols,
                    values,
                    row_len,
                    nrows,
                    x,
                    out,
                    l2_shares,
                })
            }
            None => {
                let (full, width) = (self.full as u32, self.width as u32);
                let params = kernels::ell::Ell {
                    cols,
                    values,
                    nrows,
                    ncols,
                    full,
                    width,
                    x,
                    out,
                    l2_shares,
                };
                launch.with(params)
            }
        };
        // SAFETY: the kernel is `ell_lengths` if there are lengths, else `ell`; the vectors are the
        // caller's promise.
        unsafe { self.kernel.launch(queue, &out, launch) }
    }
}

impl<T: Scalar> DeviceMatrix<T> for DeviceEll<T> {
    row_products!();

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        self.to_host()?.unpack()
    }

    fn values(&self) -> Result<Arrays<(Ptr<T>, usize)>, NoArrays> {
        Ok([(self.values.ptr(), self.values.len()), (Ptr::NULL, 0)])
    }

    fn device_bytes(&self) -> u64 {
        self.col_idx.bytes() + self.values.bytes() + self.row_len.as_ref().map_or(0, Buffer::bytes)
    }

    fn residency(&self) -> Residency {
        self.kernel.residency()
    }
}
