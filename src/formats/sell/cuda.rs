//! SELL-C-σ on a GPU: one thread per lane, and with C = 32 one warp per slice.

use super::{HostSell, SellPlan};
use crate::device::{
    Buffer, CsrSource, Gpu, Launch, Module, Out, Ptr, Queue, Residency, RowKernel, WARP, kernels,
};
use crate::formats::device_rows::{PackedRows, RowPacker, RowSlots};
use crate::formats::{DeviceMatrix, DeviceValueArrays, HostMatrix, ValueArrays, row_products};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};

/// Name of the kernel file.
const FILE: &str = "sell";

/// Rows per multiprocessor up to which it is idle unless each row has many loads in flight: two
/// blocks of 256.
const FEW_ROWS: usize = 512;

/// Least number of slots of a row with many loads in flight.
const DEEP_WIDTH: usize = 64;

/// A SELL-C-σ matrix in GPU memory.
#[derive(Debug)]
pub(super) struct DeviceSell<T> {
    nrows: usize,
    ncols: usize,
    c: usize,
    slice_ptr: Buffer<u64>,
    full: Buffer<u32>,
    col_idx: Buffer<u32>,
    values: Buffer<T>,
    perm: Option<Buffer<u32>>,
    kernel: RowKernel,
}

impl<T: Scalar> DeviceSell<T> {
    pub(super) fn new(host: &HostSell<T>, gpu: Gpu) -> Result<Self, Error> {
        let slice_ptr: Vec<u64> = host.slice_ptr.iter().map(|&at| at as u64).collect();
        let packed = PackedRows {
            col_idx: gpu.upload(&host.col_idx)?,
            values: gpu.upload(&host.values)?,
            tail: None,
        };
        let slices = (gpu.upload(&slice_ptr)?, gpu.upload(&host.full)?);
        let perm = host.perm.as_ref().map(|perm| gpu.upload(perm)).transpose()?;
        Self::from_buffers(gpu, (host.nrows, host.ncols), host.c, slices, perm, packed)
    }

    /// Packs a matrix in GPU memory.
    pub(super) fn pack(plan: SellPlan, a: &CsrSource<T>) -> Result<Self, Error> {
        let packer = RowPacker::new(a)?;
        let perm = match plan.sigma {
            0 | 1 => None,
            sigma => Some(packer.sorted(sigma as usize)?),
        };
        let order = perm.as_ref().map_or(Ptr::NULL, Buffer::ptr);
        let (slice_ptr, full, slots) = packer.slices(order, plan.c)?;
        let positions = RowSlots::Slices(slice_ptr.ptr(), plan.c);
        let packed = packer.pack(order, positions, slots, u32::MAX)?;
        let shape = (a.nrows, a.ncols);
        Self::from_buffers(a.gpu, shape, plan.c as usize, (slice_ptr, full), perm, packed)
    }

    fn from_buffers(
        gpu: Gpu,
        (nrows, ncols): (usize, usize),
        c: usize,
        (slice_ptr, full): (Buffer<u64>, Buffer<u32>),
        perm: Option<Buffer<u32>>,
        packed: PackedRows<T>,
    ) -> Result<Self, Error> {
        let bytes = packed.bytes() + slice_ptr.bytes() + full.bytes();
        let bytes = bytes + perm.as_ref().map_or(0, Buffer::bytes);
        let residency = Residency::of::<T>(gpu, bytes, (nrows, ncols)).with_final_results();
        let few = nrows <= FEW_ROWS * gpu.multiprocessors();
        // Slices for whole warps have kernels of their own.
        let kernel = match c == WARP as usize {
            true if few && packed.col_idx.len() >= DEEP_WIDTH * nrows => "sell_deep",
            true => "sell32",
            false => "sell",
        };
        Ok(Self {
            nrows,
            ncols,
            c,
            slice_ptr,
            full,
            col_idx: packed.col_idx,
            values: packed.values,
            perm,
            kernel: RowKernel::new(
                gpu,
                Module::of(FILE, residency),
                residency,
                format!("{kernel}_{}", T::KIND),
            )?,
        })
    }

    /// Copies the matrix back to host memory, for unpacking only.
    fn to_host(&self) -> Result<HostSell<T>, Error> {
        Ok(HostSell {
            nrows: self.nrows,
            ncols: self.ncols,
            c: self.c,
            sigma: self.nrows,
            perm: self.perm.as_ref().map(Buffer::to_vec).transpose()?,
            slice_ptr: self.slice_ptr.to_vec()?.into_iter().map(|at| at as usize).collect(),
            full: self.full.to_vec()?,
            col_idx: self.col_idx.to_vec()?,
            values: self.values.to_vec()?,
            consecutive: false,
            tasks: Box::default(),
        })
    }

    /// Enqueues the SpMV.
    ///
    /// # Safety
    ///
    /// As [`DeviceMatrix::spmv_scaled`].
    unsafe fn multiply(&self, queue: &Queue, x: Ptr<T>, out: Out<'_, T>) -> Result<(), Error> {
        let launch = Launch::over(self.nrows, 1).with(kernels::sell::Slices {
            slice_ptr: self.slice_ptr.ptr(),
            full: self.full.ptr(),
            cols: self.col_idx.ptr(),
            values: self.values.ptr(),
            perm: self.perm.as_ref().map_or(Ptr::NULL, Buffer::ptr),
            c: self.c as u32,
            nrows: self.nrows as u32,
            ncols: self.ncols as u32,
            x,
            out,
            l2_shares: self.kernel.residency().l2_shares(queue),
        });
        // SAFETY: the kernel is `sell`, `sell32` or `sell_deep`; the vectors are the caller's
        // promise.
        unsafe { self.kernel.launch(queue, &out, launch) }
    }
}

impl<T: Scalar> DeviceMatrix<T> for DeviceSell<T> {
    row_products!();

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        self.to_host()?.unpack()
    }

    fn values(&self) -> DeviceValueArrays<'_, T> {
        Ok(ValueArrays::Plain([self.values.numbers(), Default::default()]))
    }

    fn device_bytes(&self) -> u64 {
        let slices = self.slice_ptr.bytes()
            + self.full.bytes()
            + self.perm.as_ref().map_or(0, Buffer::bytes);
        slices + self.col_idx.bytes() + self.values.bytes()
    }

    fn residency(&self) -> Residency {
        self.kernel.residency()
    }

    #[cfg(test)]
    fn text(&self) -> Result<String, Error> {
        Ok(format!("{:?}", self.to_host()?))
    }
}
