//! ELL on a GPU: one thread per row, or for several short ones.

use super::HostEll;
use crate::device::{
    Buffer, CsrSource, Gpu, Module, Out, Ptr, Queue, Residency, RowKernel, kernels,
};
use crate::formats::device_rows::RowPacker;
use crate::formats::{
    DeviceMatrix, DeviceValueArrays, HostMatrix, ValueArrays, row_products, short_rows,
};
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
    /// True if a thread processes several rows.
    short: bool,
    kernel: RowKernel,
}

/// Kernel of the products.
fn kernel<T: Scalar>(
    lengths: bool,
    short: bool,
    gpu: Gpu,
    residency: Residency,
) -> Result<RowKernel, Error> {
    let name = match (lengths, short) {
        (true, _) => "ell_lengths",
        (false, true) => "ell_short",
        (false, false) => "ell",
    };
    RowKernel::new(gpu, Module::of(FILE, residency), residency, format!("{name}_{}", T::KIND))
}

impl<T: Scalar> DeviceEll<T> {
    /// Copies a matrix to GPU memory with the given residency.
    pub(crate) fn new(host: &HostEll<T>, gpu: Gpu, residency: Residency) -> Result<Self, Error> {
        let row_len = host.row_len.as_ref().map(|lengths| gpu.upload(lengths)).transpose()?;
        let short = row_len.is_none() && short_rows::are_short(host.nrows, host.width);
        Ok(Self {
            nrows: host.nrows,
            ncols: host.ncols,
            width: host.width,
            full: host.full,
            col_idx: gpu.upload(&host.col_idx)?,
            values: gpu.upload(&host.values)?,
            kernel: kernel::<T>(row_len.is_some(), short, gpu, residency)?,
            row_len,
            short,
        })
    }

    /// Packs a matrix in GPU memory, with the lengths of the rows if `lengths` is true.
    pub(super) fn pack(lengths: bool, a: &CsrSource<T>) -> Result<Self, Error> {
        let packer = RowPacker::new(a)?;
        let classes = packer.histogram().classes();
        let [full, width] = [classes.first(), classes.last()].map(|class| class.map_or(0, |c| c.0));
        let slots = a.nrows.saturating_mul(width as usize);
        let row_len = lengths.then(|| packer.lengths()).transpose()?;
        let packed = packer.pack(Ptr::NULL, packer.one_slice()?, slots, u32::MAX)?;
        let bytes = packed.bytes() + row_len.as_ref().map_or(0, Buffer::bytes);
        let residency = Residency::of::<T>(a.gpu, bytes, (a.nrows, a.ncols)).with_final_results();
        let short = !lengths && short_rows::are_short(a.nrows, width as usize);
        Ok(Self {
            nrows: a.nrows,
            ncols: a.ncols,
            width: width as usize,
            full: full as usize,
            col_idx: packed.col_idx,
            values: packed.values,
            kernel: kernel::<T>(lengths, short, a.gpu, residency)?,
            row_len,
            short,
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
            tasks: Box::default(),
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
        let l2_shares = self.kernel.residency().l2_shares(queue);
        let launch = short_rows::launch(self.nrows, self.short);
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
        // SAFETY: the kernel is `ell_lengths` if there are lengths, else `ell_short` or `ell`; the
        // vectors are the caller's promise.
        unsafe { self.kernel.launch(queue, &out, launch) }
    }
}

impl<T: Scalar> DeviceMatrix<T> for DeviceEll<T> {
    row_products!();

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        self.to_host()?.unpack()
    }

    fn values(&self) -> DeviceValueArrays<'_, T> {
        Ok(ValueArrays::Plain([self.values.numbers(), Default::default()]))
    }

    fn device_bytes(&self) -> u64 {
        self.col_idx.bytes() + self.values.bytes() + self.row_len.as_ref().map_or(0, Buffer::bytes)
    }

    fn residency(&self) -> Residency {
        self.kernel.residency()
    }

    #[cfg(test)]
    fn text(&self) -> Result<String, Error> {
        Ok(format!("{:?}", self.to_host()?))
    }
}
