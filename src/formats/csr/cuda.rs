//! CSR on a GPU: some lanes per row, or blocks with equal chunks of entries and row ends.

use super::chunks::{Chunk, any_cut};
use super::{Host, LANE_ENTRIES, Offsets, Plan};
use crate::device::{
    BLOCK, Buffer, Gpu, Launch, Module, Out, Ptr, Queue, Residency, RowKernel, Scratch,
};
use crate::formats::{Arrays, DeviceMatrix, HostMatrix, NoArrays, row_products};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};

/// Name of the kernel file.
const FILE: &str = "csr";

/// Residency of a matrix. Lanes that return for more entries of a row find the rest of a line in
/// the caches, from which evict-first loads drive it out: on an H200 `csr(scalar)` then takes 101
/// in place of 53 µs for rows of 20 and 136 MB.
fn residency<T: Scalar>(host: &Host<T>, gpu: Gpu) -> Residency {
    let nrows = host.row_ptr.len() - 1;
    let residency = Residency::of::<T>(gpu, host.matrix_bytes(), (nrows, host.ncols));
    let lanes = match host.plan {
        Plan::Scalar => 1,
        Plan::Vector(lanes) => lanes as usize,
        Plan::Balanced => return residency,
    };
    if host.values.len() > nrows * lanes * LANE_ENTRIES as usize {
        residency.without_streaming()
    } else {
        residency
    }
}

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

    /// Infix of the kernel names for this width.
    fn name(&self) -> &'static str {
        match self {
            Self::Narrow(_) => "o32",
            Self::Wide(_) => "o64",
        }
    }

    /// Adds the offsets to the parameters.
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

/// A CSR matrix in GPU memory.
#[derive(Debug)]
pub(super) struct Uploaded<T> {
    nrows: usize,
    ncols: usize,
    row_ptr: DeviceOffsets,
    col_idx: Buffer<u32>,
    values: Buffer<T>,
    kernel: RowKernel,
    sharing: Sharing,
}

/// Assignment of entries to threads.
#[derive(Debug)]
enum Sharing {
    /// Number of lanes per row.
    Lanes(u32),
    /// One block per chunk.
    Chunks(Chunks),
}

/// Data of the chunks.
#[derive(Debug)]
struct Chunks {
    count: u32,
    table: Buffer<Chunk>,
    /// Words by which a chunk passes on its sum of a row that continues in the next chunk. None if
    /// no row is cut.
    parts: Option<Scratch<u64>>,
}

impl Chunks {
    fn new<T: Scalar>(host: &Host<T>, gpu: Gpu) -> Result<Self, Error> {
        let count = host.chunks.len() - 1;
        let words = count * size_of::<T>() / size_of::<u32>();
        let parts = any_cut(&host.chunks).then(|| Scratch::cleared(gpu, words));
        // There are fewer than 2³² chunks.
        Ok(Self { count: count as u32, table: gpu.upload(&host.chunks)?, parts })
    }
}

impl<T: Scalar> Uploaded<T> {
    pub(super) fn new(host: &Host<T>, gpu: Gpu) -> Result<Self, Error> {
        let row_ptr = DeviceOffsets::new(&host.row_ptr, gpu)?;
        let (scalar, offset, residency) = (T::KIND, row_ptr.name(), residency(host, gpu));
        let (name, sharing) = match host.plan {
            Plan::Scalar => ("scalar".to_owned(), Sharing::Lanes(1)),
            Plan::Vector(lanes) => (format!("vector{lanes}"), Sharing::Lanes(lanes)),
            Plan::Balanced => {
                let arrangement = if host.striped { "striped" } else { "balanced" };
                (format!("{arrangement}{}", host.run), Sharing::Chunks(Chunks::new(host, gpu)?))
            }
        };
        Ok(Self {
            nrows: host.row_ptr.len() - 1,
            ncols: host.ncols,
            kernel: RowKernel::new(
                gpu,
                Module::of(FILE, residency),
                residency,
                format!("csr_{name}_{scalar}_{offset}"),
            )?,
            row_ptr,
            col_idx: gpu.upload(&host.col_idx)?,
            values: gpu.upload(&host.values)?,
            sharing,
        })
    }

    /// Enqueues the SpMV.
    ///
    /// # Safety
    ///
    /// As [`DeviceMatrix::spmv_scaled`].
    unsafe fn multiply(&self, queue: &Queue, x: Ptr<T>, out: Out<'_, T>) -> Result<(), Error> {
        let arrays =
            |launch| self.row_ptr.to(launch).arg(self.col_idx.ptr()).arg(self.values.ptr());
        let nrows = self.nrows as u32;
        match &self.sharing {
            Sharing::Lanes(lanes) => {
                let launch = out.to(arrays(Launch::over(self.nrows, *lanes)).arg(nrows).arg(x));
                // SAFETY: these are the parameters of `csr_scalar` and `csr_vector`; the vectors
                // are the caller's promise.
                unsafe { self.kernel.launch(queue, &out, launch) }
            }
            Sharing::Chunks(chunks) => {
                let parts = chunks.parts.as_ref().map_or(Ok(Ptr::NULL), |parts| parts.on(queue))?;
                let launch = arrays(Launch::new(chunks.count, BLOCK)).arg(chunks.table.ptr());
                let launch = out.to(launch.arg(nrows).arg(self.values.len() as u64).arg(x));
                // SAFETY: these are the parameters of `csr_balanced`. If rows are cut there are
                // words for every chunk, which are zero before and after the launch.
                unsafe { self.kernel.launch(queue, &out, launch.arg(parts)) }
            }
        }
    }
}

impl<T: Scalar> DeviceMatrix<T> for Uploaded<T> {
    row_products!();

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        let (row_ptr, col_idx) = (self.row_ptr.to_vec()?, self.col_idx.to_vec()?);
        // SAFETY: these are the arrays of a checked matrix.
        Ok(unsafe {
            CsrMatrix::new_unchecked(
                self.nrows,
                self.ncols,
                row_ptr,
                col_idx,
                self.values.to_vec()?,
            )
        })
    }

    fn values(&self) -> Result<Arrays<(Ptr<T>, usize)>, NoArrays> {
        Ok([(self.values.ptr(), self.values.len()), (Ptr::NULL, 0)])
    }

    fn device_bytes(&self) -> u64 {
        let chunks = match &self.sharing {
            Sharing::Lanes(_) => 0,
            Sharing::Chunks(chunks) => chunks.table.bytes(),
        };
        self.row_ptr.bytes() + self.col_idx.bytes() + self.values.bytes() + chunks
    }

    fn residency(&self) -> Residency {
        self.kernel.residency()
    }
}
