//! DIA on a GPU: one thread per row and one warp per slice.

use super::HostDia;
use crate::device::{Buffer, Gpu, Launch, Module, Out, Ptr, Queue, Residency, RowKernel, kernels};
use crate::formats::{DeviceMatrix, DeviceValueArrays, HostMatrix, ValueArrays, row_products};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};

/// Name of the kernel file.
const FILE: &str = "dia";

/// A DIA matrix in GPU memory.
#[derive(Debug)]
pub(super) struct DeviceDia<T> {
    nrows: usize,
    ncols: usize,
    offsets: Buffer<i64>,
    masks: Buffer<u32>,
    values: Buffer<T>,
    kernel: RowKernel,
}

impl<T: Scalar> DeviceDia<T> {
    /// Copies a matrix to GPU memory with the given residency.
    pub(super) fn new(host: &HostDia<T>, gpu: Gpu, residency: Residency) -> Result<Self, Error> {
        let (module, name) = (Module::of(FILE, residency), format!("{FILE}_{}", T::KIND));
        Ok(Self {
            nrows: host.nrows,
            ncols: host.ncols,
            offsets: gpu.upload(&host.offsets)?,
            masks: gpu.upload(&host.masks)?,
            values: gpu.upload(&host.values)?,
            kernel: RowKernel::new(gpu, module, residency, name)?,
        })
    }

    /// Enqueues the SpMV.
    ///
    /// # Safety
    ///
    /// As [`DeviceMatrix::spmv_scaled`].
    unsafe fn multiply(&self, queue: &Queue, x: Ptr<T>, out: Out<'_, T>) -> Result<(), Error> {
        let launch = Launch::over(self.nrows, 1).with(kernels::dia::Dia {
            offsets: self.offsets.ptr(),
            masks: self.masks.ptr(),
            values: self.values.ptr(),
            count: self.offsets.len() as u32,
            nrows: self.nrows as u32,
            ncols: self.ncols as u32,
            x,
            out,
            l2_shares: self.kernel.residency().l2_shares(queue),
        });
        // SAFETY: the kernel is `dia`; the vectors are the caller's promise.
        unsafe { self.kernel.launch(queue, &out, launch) }
    }
}

impl<T: Scalar> DeviceMatrix<T> for DeviceDia<T> {
    row_products!();

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        let host = HostDia {
            nrows: self.nrows,
            ncols: self.ncols,
            offsets: self.offsets.to_vec()?,
            masks: self.masks.to_vec()?,
            values: self.values.to_vec()?,
            tasks: Box::default(),
        };
        host.unpack()
    }

    fn values(&self) -> DeviceValueArrays<'_, T> {
        Ok(ValueArrays::Plain([self.values.numbers(), Default::default()]))
    }

    fn device_bytes(&self) -> u64 {
        self.offsets.bytes() + self.masks.bytes() + self.values.bytes()
    }

    fn residency(&self) -> Residency {
        self.kernel.residency()
    }
}
