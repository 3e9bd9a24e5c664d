//! CSR on a GPU: some lanes per row, or blocks with equal chunks of entries and row ends.

use super::chunks::{Chunk, Cutting};
use super::{Arrangement, Host, LANE_ENTRIES, Offsets, Plan};
use crate::device::{
    BLOCK, Buffer, Gpu, Launch, Module, Out, Ptr, Queue, Residency, RowKernel, Scratch,
};
use crate::formats::{Arrays, DeviceCsr, DeviceMatrix, NoArrays, row_products};
use crate::matrix::{CsrMatrix, CsrView};
use crate::{Error, Scalar};
use std::sync::Arc;

/// Name of the kernel file.
const FILE: &str = "csr";

/// Residency of a matrix. Lanes that return for more entries of a row find the rest of a line in
/// the caches, from which evict-first loads drive it out: on an H200 `csr(scalar)` then takes 101
/// in place of 53 µs for rows of 20 and 136 MB.
fn residency<T: Scalar>(plan: Plan, matrix: &CsrBuffers<T>) -> Residency {
    let CsrBuffers { gpu, nrows, ncols, .. } = *matrix;
    let residency = Residency::of::<T>(gpu, matrix.bytes(), (nrows, ncols));
    let lanes = match plan {
        Plan::Scalar => 1,
        Plan::Vector(lanes) => lanes as usize,
        Plan::Balanced => return residency,
    };
    if matrix.values.len() > nrows * lanes * LANE_ENTRIES as usize {
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

/// The arrays of a CSR matrix in GPU memory.
#[derive(Debug)]
struct CsrBuffers<T> {
    gpu: Gpu,
    nrows: usize,
    ncols: usize,
    row_ptr: DeviceOffsets,
    col_idx: Arc<Buffer<u32>>,
    values: Arc<Buffer<T>>,
}

impl<T: Scalar> CsrBuffers<T> {
    fn bytes(&self) -> u64 {
        self.row_ptr.bytes() + self.col_idx.bytes() + self.values.bytes()
    }
}

/// A CSR matrix in GPU memory.
#[derive(Debug)]
pub(super) struct Uploaded<T> {
    matrix: CsrBuffers<T>,
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
    fn new<T: Scalar>(
        cutting: Cutting,
        matrix: &CsrBuffers<T>,
        module: Module,
    ) -> Result<Self, Error> {
        let (gpu, nrows, nnz) = (matrix.gpu, matrix.nrows as u64, matrix.values.len() as u64);
        // There are fewer than 2³² chunks of any matrix that fits a machine.
        let count = cutting.count(nrows, nnz) as u32;
        let table = gpu.uninitialised::<Chunk>(count as usize + 1)?;
        let any_cut = gpu.zeroed::<u32>(1)?;
        let (spacing, reach) = cutting.spacing_and_reach();
        let launch = matrix.row_ptr.to(Launch::over(table.len(), 1)).arg(nrows as u32);
        let launch = launch.arg(spacing).arg(reach).arg(count).arg(table.ptr()).arg(any_cut.ptr());
        let kernel = gpu.kernel(module, &format!("csr_chunks_{}", matrix.row_ptr.name()))?;
        // SAFETY: these are the parameters of `csr_chunks`, with a thread for every chunk; the
        // arrays outlive the wait for `any_cut`.
        unsafe { kernel.launch(gpu.queue(), launch)? };
        let words = count as usize * size_of::<T>() / size_of::<u32>();
        let parts = (any_cut.to_vec()? == [1]).then(|| Scratch::cleared(gpu, words));
        Ok(Self { count, table, parts })
    }
}

/// Kernel and assignment of entries to threads under a plan.
fn arranged<T: Scalar>(
    arrangement: &Arrangement,
    matrix: &CsrBuffers<T>,
) -> Result<(RowKernel, Sharing), Error> {
    let gpu = matrix.gpu;
    let residency = residency(arrangement.plan, matrix);
    let module = Module::of(FILE, residency);
    let (scalar, offset) = (T::KIND, matrix.row_ptr.name());
    let (name, sharing) = match arrangement.plan {
        Plan::Scalar => ("scalar".to_owned(), Sharing::Lanes(1)),
        Plan::Vector(lanes) => (format!("vector{lanes}"), Sharing::Lanes(lanes)),
        Plan::Balanced => {
            let loads = if arrangement.striped { "striped" } else { "balanced" };
            let chunks = Chunks::new(arrangement.cutting, matrix, module)?;
            (format!("{loads}{}", arrangement.cutting.run()), Sharing::Chunks(chunks))
        }
    };
    let kernel = RowKernel::new(gpu, module, residency, format!("csr_{name}_{scalar}_{offset}"))?;
    Ok((kernel, sharing))
}

impl<T: Scalar> Uploaded<T> {
    pub(super) fn new(host: &Host<T>, gpu: Gpu) -> Result<Self, Error> {
        let matrix = CsrBuffers {
            gpu,
            nrows: host.row_ptr.len() - 1,
            ncols: host.ncols,
            row_ptr: DeviceOffsets::new(&host.row_ptr, gpu)?,
            col_idx: Arc::new(gpu.upload(&host.col_idx)?),
            values: Arc::new(gpu.upload(&host.values)?),
        };
        let (kernel, sharing) = arranged(&host.arrangement, &matrix)?;
        Ok(Self { matrix, kernel, sharing })
    }

    /// Takes the arrays of a matrix in GPU memory. `a` is the same matrix in host memory.
    pub(super) fn from_device(
        plan: Plan,
        a: CsrView<'_, T>,
        there: &DeviceCsr<T>,
    ) -> Result<Self, Error> {
        let (gpu, nrows, ncols) = (there.gpu, a.nrows(), a.ncols());
        let row_ptr = match Offsets::width(a.nnz() as u64) {
            4 => DeviceOffsets::Narrow(gpu.uninitialised(nrows + 1)?),
            _ => DeviceOffsets::new(&Offsets::new(a.row_ptr())?, gpu)?,
        };
        let (col_idx, values) = (there.kept(&there.col_idx)?, there.kept(&there.values)?);
        let matrix = CsrBuffers { gpu, nrows, ncols, row_ptr, col_idx, values };
        if let DeviceOffsets::Narrow(row_ptr) = &matrix.row_ptr {
            let module = Module::of(FILE, residency(plan, &matrix));
            let width = usize::BITS;
            let kernel = gpu.kernel(module, &format!("csr_narrow_o{width}"))?;
            let launch = Launch::over(row_ptr.len(), 1).arg(there.row_ptr.ptr());
            // SAFETY: these are the parameters of `csr_narrow`, with a thread for every offset;
            // freeing the arrays waits.
            unsafe {
                kernel.launch(gpu.queue(), launch.arg(row_ptr.len() as u64).arg(row_ptr.ptr()))?;
            }
            gpu.queue().synchronize()?;
        }
        let (kernel, sharing) = arranged(&Arrangement::of(plan, a), &matrix)?;
        Ok(Self { matrix, kernel, sharing })
    }

    /// Enqueues the SpMV.
    ///
    /// # Safety
    ///
    /// As [`DeviceMatrix::spmv_scaled`].
    unsafe fn multiply(&self, queue: &Queue, x: Ptr<T>, out: Out<'_, T>) -> Result<(), Error> {
        let CsrBuffers { nrows, ref row_ptr, ref col_idx, ref values, .. } = self.matrix;
        let arrays = |launch| row_ptr.to(launch).arg(col_idx.ptr()).arg(values.ptr());
        match &self.sharing {
            Sharing::Lanes(lanes) => {
                let launch = out.to(arrays(Launch::over(nrows, *lanes)).arg(nrows as u32).arg(x));
                // SAFETY: these are the parameters of `csr_scalar` and `csr_vector`; the vectors
                // are the caller's promise.
                unsafe { self.kernel.launch(queue, &out, launch) }
            }
            Sharing::Chunks(chunks) => {
                let parts = chunks.parts.as_ref().map_or(Ok(Ptr::NULL), |parts| parts.on(queue))?;
                let launch = arrays(Launch::new(chunks.count, BLOCK)).arg(chunks.table.ptr());
                let launch = out.to(launch.arg(nrows as u32).arg(values.len() as u64).arg(x));
                // SAFETY: these are the parameters of `csr_balanced`. If rows are cut there are
                // words for every chunk, which are zero before and after the launch.
                unsafe { self.kernel.launch(queue, &out, launch.arg(parts)) }
            }
        }
    }
}

impl<T: Scalar> DeviceMatrix<T> for Uploaded<T> {
    row_products!();

    fn change_plan(
        &mut self,
        plan: &crate::formats::Plan,
        a: CsrView<'_, T>,
    ) -> Result<bool, Error> {
        let crate::formats::Plan::Csr(plan) = plan else { return Ok(false) };
        (self.kernel, self.sharing) = arranged(&Arrangement::of(*plan, a), &self.matrix)?;
        Ok(true)
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        let CsrBuffers { nrows, ncols, row_ptr, col_idx, values, .. } = &self.matrix;
        let (row_ptr, col_idx) = (row_ptr.to_vec()?, col_idx.to_vec()?);
        // SAFETY: these are the arrays of a checked matrix.
        Ok(unsafe { CsrMatrix::new_unchecked(*nrows, *ncols, row_ptr, col_idx, values.to_vec()?) })
    }

    fn values(&self) -> Result<Arrays<(Ptr<T>, usize)>, NoArrays> {
        let values = &self.matrix.values;
        Ok([(values.ptr(), values.len()), (Ptr::NULL, 0)])
    }

    fn device_bytes(&self) -> u64 {
        let chunks = match &self.sharing {
            Sharing::Lanes(_) => 0,
            Sharing::Chunks(chunks) => chunks.table.bytes(),
        };
        self.matrix.bytes() + chunks
    }

    fn residency(&self) -> Residency {
        self.kernel.residency()
    }
}

#[cfg(test)]
#[cfg(feature = "cuda")]
mod tests {
    use super::super::chunks::{any_cut, chunks};
    use super::*;
    use crate::device::Device;
    use crate::matrix::gallery;
    use crate::testing::devices;

    #[test]
    fn a_gpu_makes_the_chunk_table_of_the_host() {
        let gpu = devices().iter().find_map(|device| match device {
            Device::Cuda(gpu) => Some(*gpu),
            Device::Cpu => None,
        });
        let Some(gpu) = gpu else { return };
        for spec in ["poisson2d,n=7", "uniform,rows=20k", "lp,rows=300", "rmat,scale=14"] {
            let a = spec.parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
            let host = chunks(a.row_ptr(), Cutting::of_rows(a.row_ptr()));
            let there = DeviceCsr::upload(a.view(), gpu).unwrap();
            let packed = Uploaded::from_device(Plan::Balanced, a.view(), &there).unwrap();
            let Sharing::Chunks(made) = &packed.sharing else { panic!("{spec}") };
            assert_eq!(made.table.to_vec().unwrap(), host, "{spec}");
            assert_eq!(made.parts.is_some(), any_cut(&host), "{spec}");
            assert_eq!(packed.matrix.row_ptr.to_vec().unwrap(), a.row_ptr(), "{spec}");
        }
    }
}
