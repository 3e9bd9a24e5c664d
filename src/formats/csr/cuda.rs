//! CSR on a GPU: some lanes a row, or equal chunks of entries and row ends a block.

use super::{Host, Offsets, Plan};
use crate::device::{BLOCK, Buffer, Gpu, Kernel, Launch, Ptr, Queue, Scratch};
use crate::formats::DeviceMatrix;
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};

/// Row offsets of either width.
#[derive(Debug)]
enum DeviceOffsets {
    Narrow(Buffer<u32>),
    Wide(Buffer<u64>),
}

impl DeviceOffsets {
    fn new(row_ptr: &Offsets, gpu: Gpu) -> Result<Self, Error> {
        Ok(match row_ptr {
            Offsets::Narrow(ptr) => Self::Narrow(gpu.upload(ptr)?),
            Offsets::Wide(ptr) => Self::Wide(gpu.upload(ptr)?),
        })
    }

    /// How kernels for this width are called.
    fn name(&self) -> &'static str {
        match self {
            Self::Narrow(_) => "o32",
            Self::Wide(_) => "o64",
        }
    }

    /// Adds them to the parameters.
    fn to(&self, launch: Launch) -> Launch {
        match self {
            Self::Narrow(ptr) => launch.arg(ptr.ptr()),
            Self::Wide(ptr) => launch.arg(ptr.ptr()),
        }
    }

    fn to_vec(&self) -> Result<Vec<usize>, Error> {
        Ok(match self {
            Self::Narrow(ptr) => Offsets::Narrow(ptr.to_vec()?),
            Self::Wide(ptr) => Offsets::Wide(ptr.to_vec()?),
        }
        .to_vec())
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Narrow(ptr) => ptr.bytes(),
            Self::Wide(ptr) => ptr.bytes(),
        }
    }
}

/// A matrix in CSR in the memory of a GPU.
#[derive(Debug)]
pub(super) struct Uploaded<T> {
    nrows: usize,
    ncols: usize,
    row_ptr: DeviceOffsets,
    col_idx: Buffer<u32>,
    values: Buffer<T>,
    kernel: Kernel,
    sharing: Sharing<T>,
}

/// How the work is shared.
#[derive(Debug)]
enum Sharing<T> {
    /// So many lanes a row.
    Lanes(u32),
    /// A block a chunk.
    Chunks(Chunks<T>),
}

/// What the chunks need; see [`super::chunk_rows`].
#[derive(Debug)]
struct Chunks<T> {
    count: usize,
    rows: Buffer<u32>,
    /// A sum for every chunk: what it has of the row that goes on in the next.
    carries: Scratch<T>,
    add_carries: Kernel,
}

impl<T: Scalar> Uploaded<T> {
    pub(super) fn new(host: &Host<T>, gpu: Gpu) -> Result<Self, Error> {
        let row_ptr = DeviceOffsets::new(&host.row_ptr, gpu)?;
        let (scalar, offset) = (T::KIND, row_ptr.name());
        let (name, sharing) = match host.plan {
            Plan::Scalar => ("scalar".to_owned(), Sharing::Lanes(1)),
            Plan::Vector(lanes) => (format!("vector{lanes}"), Sharing::Lanes(lanes)),
            Plan::Balanced => {
                let count = host.chunk_rows.len() - 1;
                let chunks = Chunks {
                    count,
                    rows: gpu.upload(&host.chunk_rows)?,
                    carries: Scratch::new(gpu, count),
                    add_carries: gpu.kernel("csr", &format!("csr_carries_{scalar}"))?,
                };
                ("balanced".to_owned(), Sharing::Chunks(chunks))
            }
        };
        Ok(Self {
            nrows: host.row_ptr.len() - 1,
            ncols: host.ncols,
            kernel: gpu.kernel("csr", &format!("csr_{name}_{scalar}_{offset}"))?,
            row_ptr,
            col_idx: gpu.upload(&host.col_idx)?,
            values: gpu.upload(&host.values)?,
            sharing,
        })
    }
}

impl<T: Scalar> DeviceMatrix<T> for Uploaded<T> {
    unsafe fn spmv(&self, queue: &Queue, x: Ptr<T>, y: Ptr<T>) -> Result<(), Error> {
        let arrays = |launch| self.row_ptr.to(launch).arg(self.col_idx.ptr()).arg(self.values.ptr());
        let nrows = self.nrows as u32;
        match &self.sharing {
            Sharing::Lanes(lanes) => {
                let launch = arrays(Launch::over(self.nrows, *lanes)).arg(nrows).arg(x).arg(y);
                // SAFETY: these are the parameters of `csr_scalar` and `csr_vector`; the vectors are the caller's promise.
                unsafe { self.kernel.launch(queue, launch) }
            }
            Sharing::Chunks(chunks) => {
                let carries = chunks.carries.on(queue)?;
                let launch = arrays(Launch::over(chunks.count, BLOCK)).arg(chunks.rows.ptr()).arg(nrows);
                let launch = launch.arg(self.values.len() as u64).arg(x).arg(y).arg(carries);
                // SAFETY: these are the parameters of `csr_balanced`, with a carry for every chunk.
                unsafe { self.kernel.launch(queue, launch)? };
                // Chunk b has a part of the row with which chunk b + 1 begins; the last one has none.
                let cuts = chunks.count.saturating_sub(1);
                let launch = Launch::over(cuts, 1).arg(chunks.rows.ptr().add(1)).arg(carries);
                // SAFETY: these are the parameters of `csr_carries`; the rows are those of `y`.
                unsafe { chunks.add_carries.launch(queue, launch.arg(cuts as u64).arg(y)) }
            }
        }
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        let (row_ptr, col_idx) = (self.row_ptr.to_vec()?, self.col_idx.to_vec()?);
        // SAFETY: these are the arrays of a checked matrix.
        Ok(unsafe {
            CsrMatrix::new_unchecked(self.nrows, self.ncols, row_ptr, col_idx, self.values.to_vec()?)
        })
    }

    fn device_bytes(&self) -> u64 {
        let chunks = match &self.sharing {
            Sharing::Lanes(_) => 0,
            Sharing::Chunks(chunks) => chunks.rows.bytes(),
        };
        self.row_ptr.bytes() + self.col_idx.bytes() + self.values.bytes() + chunks
    }
}
