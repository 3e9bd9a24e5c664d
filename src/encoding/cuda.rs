//! Packed slices on a GPU: a thread a lane, a warp a slice; a block for every long row.

use super::Header;
use super::long::LongRows;
use super::slices::PackedSlices;
use super::value::Stored;
use crate::device::{BLOCK, Buffer, Gpu, Kernel, Launch, Ptr, Queue};
use crate::{Error, Scalar};

/// A matrix in packed slices in the memory of a GPU.
#[derive(Debug)]
pub(crate) struct Uploaded<T> {
    nrows: usize,
    ncols: usize,
    group: usize,
    headers: Buffer<Header>,
    values: Values<T>,
    dictionary: Buffer<T>,
    index: Buffer<u32>,
    perm: Option<Buffer<u32>>,
    skip: Option<Buffer<u32>>,
    long: Option<Long<T>>,
    kernel: Kernel,
}

/// Rows that are kept apart.
#[derive(Debug)]
struct Long<T> {
    rows: Buffer<u32>,
    row_ptr: Buffer<u64>,
    col_idx: Buffer<u32>,
    values: Values<T>,
    kernel: Kernel,
}

/// As [`Stored`].
#[derive(Debug)]
enum Values<T> {
    Plain(Buffer<T>),
    Codes(Buffer<u8>),
    Same,
}

impl<T: Scalar> Values<T> {
    fn new(stored: &Stored<T>, gpu: Gpu) -> Result<Self, Error> {
        Ok(match stored {
            Stored::Plain(values) => Self::Plain(gpu.upload(values)?),
            Stored::Codes(codes) => Self::Codes(gpu.upload(codes)?),
            Stored::Same => Self::Same,
        })
    }

    fn to_host(&self) -> Result<Stored<T>, Error> {
        Ok(match self {
            Self::Plain(values) => Stored::Plain(values.to_vec()?),
            Self::Codes(codes) => Stored::Codes(codes.to_vec()?),
            Self::Same => Stored::Same,
        })
    }

    fn ptr(&self) -> Ptr<u8> {
        match self {
            Self::Plain(values) => Ptr::from_address(values.ptr().address()),
            Self::Codes(codes) => codes.ptr(),
            Self::Same => Ptr::NULL,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Plain(values) => values.bytes(),
            Self::Codes(codes) => codes.bytes(),
            Self::Same => 0,
        }
    }

    /// How kernels for them are called.
    fn name(&self) -> &'static str {
        match self {
            Self::Plain(_) => "plain",
            Self::Codes(_) => "dict",
            Self::Same => "none",
        }
    }
}

impl<T: Scalar> Long<T> {
    fn new(long: &LongRows<T>, gpu: Gpu) -> Result<Self, Error> {
        let values = Values::new(&long.values, gpu)?;
        Ok(Self {
            rows: gpu.upload(&long.rows)?,
            row_ptr: gpu.upload(&long.row_ptr)?,
            col_idx: gpu.upload(&long.col_idx)?,
            kernel: gpu.kernel("packed", &format!("packed_long_{}_{}", T::KIND, values.name()))?,
            values,
        })
    }

    fn to_host(&self) -> Result<LongRows<T>, Error> {
        Ok(LongRows {
            rows: self.rows.to_vec()?,
            row_ptr: self.row_ptr.to_vec()?,
            col_idx: self.col_idx.to_vec()?,
            values: self.values.to_host()?,
            parts: Box::default(),
        })
    }

    fn bytes(&self) -> u64 {
        self.rows.bytes() + self.row_ptr.bytes() + self.col_idx.bytes() + self.values.bytes()
    }
}

impl<T: Scalar> Uploaded<T> {
    /// Copies a packed matrix to the memory of a GPU.
    ///
    /// # Errors
    ///
    /// What allocating, copying and compiling give.
    pub(crate) fn new(host: &PackedSlices<T>, gpu: Gpu) -> Result<Self, Error> {
        let values = Values::new(&host.values, gpu)?;
        let upload = |array: &Option<Vec<u32>>| array.as_ref().map(|array| gpu.upload(array)).transpose();
        let kernel = format!("packed_{}_{}_v{}", T::KIND, values.name(), host.group);
        Ok(Self {
            nrows: host.nrows,
            ncols: host.ncols,
            group: host.group,
            headers: gpu.upload(&host.headers)?,
            dictionary: gpu.upload(&host.dictionary)?,
            index: gpu.upload(&host.index)?,
            perm: upload(&host.perm)?,
            skip: upload(&host.skip)?,
            long: host.long.as_ref().map(|long| Long::new(long, gpu)).transpose()?,
            kernel: gpu.kernel("packed", &kernel)?,
            values,
        })
    }

    /// Enqueues `y = A x`; `y` is overwritten without being read.
    ///
    /// # Errors
    ///
    /// What the GPU gives.
    ///
    /// # Safety
    ///
    /// `x` has `ncols` elements and `y` has `nrows`, both in the memory of the matrix's GPU; they do not overlap, and they and the
    /// matrix live until the product is done.
    pub(crate) unsafe fn multiply(&self, queue: &Queue, x: Ptr<T>, y: Ptr<T>) -> Result<(), Error> {
        let or_null = |array: &Option<Buffer<u32>>| array.as_ref().map_or(Ptr::NULL, Buffer::ptr);
        let launch = Launch::over(self.nrows, 1).arg(self.headers.ptr()).arg(self.values.ptr());
        let launch = launch.arg(self.index.ptr()).arg(self.dictionary.ptr());
        let launch = launch.arg(or_null(&self.perm)).arg(or_null(&self.skip));
        // SAFETY: these are the parameters of `packed`; the vectors are the caller's promise.
        unsafe { self.kernel.launch(queue, launch.arg(self.nrows as u32).arg(x).arg(y))? };
        let Some(long) = &self.long else { return Ok(()) };
        let launch = Launch::new(long.rows.len() as u32, BLOCK).arg(long.rows.ptr()).arg(long.row_ptr.ptr());
        let launch = launch.arg(long.col_idx.ptr()).arg(long.values.ptr()).arg(self.dictionary.ptr());
        // SAFETY: these are the parameters of `packed_long`; the vectors are the caller's promise.
        unsafe { long.kernel.launch(queue, launch.arg(x).arg(y)) }
    }

    /// The matrix back in host memory, good for unpacking.
    ///
    /// # Errors
    ///
    /// What copying from the GPU gives.
    pub(crate) fn to_host(&self) -> Result<PackedSlices<T>, Error> {
        Ok(PackedSlices {
            nrows: self.nrows,
            ncols: self.ncols,
            group: self.group,
            headers: self.headers.to_vec()?,
            values: self.values.to_host()?,
            dictionary: self.dictionary.to_vec()?,
            index: self.index.to_vec()?,
            perm: self.perm.as_ref().map(Buffer::to_vec).transpose()?,
            skip: self.skip.as_ref().map(Buffer::to_vec).transpose()?,
            long: self.long.as_ref().map(Long::to_host).transpose()?,
            parts: Box::default(),
        })
    }

    /// Bytes of the arrays.
    pub(crate) fn bytes(&self) -> u64 {
        let optional = self.perm.iter().chain(&self.skip).map(Buffer::bytes).sum::<u64>();
        let slices =
            self.headers.bytes() + self.values.bytes() + self.index.bytes() + self.dictionary.bytes();
        slices + optional + self.long.as_ref().map_or(0, Long::bytes)
    }
}
