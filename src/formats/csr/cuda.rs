//! CSR on a GPU: some lanes per row, or a block per chunk of about equally many entries and row
//! ends.

mod rows;
mod spmm;
mod spmm_times;

use super::chunks::{Chunk, ChunkOptions, Cuts};
use super::{CsrPlan, HostCsr, LANE_ENTRIES, RowOffsets};
use crate::analysis::{Analysis, RowStats};
use crate::device::{
    BLOCK, Buffer, CsrSource, Gpu, Launch, Module, Out, Ptr, Queue, Residency, RowKernel, Scratch,
    WorkingMemory, kernels,
};
use crate::formats::{DeviceMatrix, DeviceSpmm, DeviceValueArrays, ValueArrays, row_products};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar, ScalarKind};
use spmm::ChunkSpmm;
use std::sync::Arc;

/// Name of the kernel file.
const FILE: &str = "csr";

/// Residency of a matrix. A lane that loads a row in several steps reads a cache line several
/// times, and evict-first loads evict it in between: `csr(scalar)` takes 101 µs with them and
/// 53 µs without (H200, rows of 20, 136 MB).
fn residency<T: Scalar>(
    plan: CsrPlan,
    gpu: Gpu,
    bytes: u64,
    (nrows, ncols, nnz): (usize, usize, usize),
) -> Residency {
    let residency = Residency::of::<T>(gpu, bytes, (nrows, ncols)).with_final_results();
    let lanes = match plan {
        CsrPlan::Scalar => 1,
        CsrPlan::Vector(lanes) => lanes as usize,
        CsrPlan::Balanced => return residency,
    };
    if nnz > nrows * lanes * LANE_ENTRIES as usize {
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
    fn new(row_ptr: &RowOffsets, gpu: Gpu) -> Result<Self, Error> {
        Ok(match row_ptr {
            RowOffsets::Narrow(ptr) => Self::Narrow(gpu.upload(ptr)?),
            RowOffsets::Wide(ptr) => Self::Wide(gpu.upload(ptr)?),
        })
    }

    /// Infix of the kernel names for this width.
    fn name(&self) -> &'static str {
        match self {
            Self::Narrow(_) => "o32",
            Self::Wide(_) => "o64",
        }
    }

    /// Their address, for the kernels of this width.
    fn ptr(&self) -> Ptr<usize> {
        match self {
            Self::Narrow(ptr) => ptr.ptr().cast(),
            Self::Wide(ptr) => ptr.ptr().cast(),
        }
    }

    fn to_vec(&self) -> Result<Vec<usize>, Error> {
        match self {
            Self::Narrow(ptr) => RowOffsets::Narrow(ptr.to_vec()?),
            Self::Wide(ptr) => RowOffsets::Wide(ptr.to_vec()?),
        }
        .to_vec()
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
    fn residency(&self, plan: CsrPlan) -> Residency {
        let size = (self.nrows, self.ncols, self.values.len());
        residency::<T>(plan, self.gpu, self.bytes(), size)
    }

    fn bytes(&self) -> u64 {
        self.row_ptr.bytes() + self.col_idx.bytes() + self.values.bytes()
    }
}

/// A CSR matrix in GPU memory.
#[derive(Debug)]
pub(super) struct DeviceCsr<T> {
    matrix: CsrBuffers<T>,
    chunk_options: ChunkOptions,
    kernel: RowKernel,
    assignment: DeviceAssignment,
}

/// Assignment of the entries to threads.
#[derive(Debug)]
enum DeviceAssignment {
    /// Number of lanes per row.
    Lanes(u32),
    /// One block per chunk, with the words by which it passes on its sum of a row that continues in
    /// the next chunk.
    Chunks(DeviceChunks, Scratch<u64>),
}

/// Table of the chunks of a matrix in GPU memory.
#[derive(Debug)]
struct DeviceChunks {
    count: u32,
    chunks: Buffer<Chunk>,
    /// True if any row is cut.
    any_cut: bool,
}

impl DeviceChunks {
    fn new<T: Scalar>(cuts: Cuts, matrix: &CsrBuffers<T>, module: Module) -> Result<Self, Error> {
        let (gpu, nrows, nnz) = (matrix.gpu, matrix.nrows as u64, matrix.values.len() as u64);
        // There are fewer than 2³² chunks of any matrix that fits a machine.
        let count = cuts.count(nrows, nnz) as u32;
        let chunks = gpu.uninitialised::<Chunk>(count as usize + 1)?;
        let work = WorkingMemory::new(gpu, size_of::<u32>())?;
        let any_cut = work.cleared::<u32>(1)?;
        let launch = Launch::over(chunks.len(), 1).with(kernels::csr::Chunks {
            row_ptr: matrix.row_ptr.ptr(),
            nrows: nrows as u32,
            spacing: cuts.spacing,
            max_move: cuts.max_move,
            count,
            chunks: chunks.ptr(),
            any_cut,
        });
        let kernel = gpu.kernel(module, &chunks_name(matrix.row_ptr.name()))?;
        // SAFETY: the kernel has a thread for every chunk, and reads offsets of this width; the
        // arrays outlive the wait for `any_cut`.
        unsafe { kernel.launch(gpu.queue(), launch)? };
        Ok(Self { count, chunks, any_cut: work.read_vec(any_cut, 1)? == [1] })
    }

    /// Words for the carries of cut rows, of `blocks` blocks and `vectors` vectors. They are zero
    /// between products.
    fn carry_words<T>(&self, blocks: u32, vectors: usize) -> usize {
        let words = blocks as usize * vectors * size_of::<T>() / size_of::<u32>();
        if self.any_cut { words } else { 0 }
    }
}

/// Kernel of a plan, and its assignment of entries to threads.
fn kernel_of<T: Scalar>(
    plan: CsrPlan,
    chunk_options: ChunkOptions,
    matrix: &CsrBuffers<T>,
) -> Result<(RowKernel, DeviceAssignment), Error> {
    let gpu = matrix.gpu;
    let residency = matrix.residency(plan);
    let module = Module::of(FILE, residency);
    let assignment = match plan {
        CsrPlan::Scalar => DeviceAssignment::Lanes(1),
        CsrPlan::Vector(lanes) => DeviceAssignment::Lanes(lanes),
        CsrPlan::Balanced => {
            let table = DeviceChunks::new(chunk_options.size.cuts(), matrix, module)?;
            let carries = Scratch::cleared(gpu, table.carry_words::<T>(table.count, 1));
            DeviceAssignment::Chunks(table, carries)
        }
    };
    let name = kernel_name(plan, T::KIND, matrix.row_ptr.name(), chunk_options);
    Ok((RowKernel::new(gpu, module, residency, name)?, assignment))
}

/// Name of the kernel of a plan, for [`CsrPlan::Balanced`] with order and number of the loads of a
/// chunk.
fn kernel_name(
    plan: CsrPlan,
    scalar: ScalarKind,
    offset: &str,
    chunk_options: ChunkOptions,
) -> String {
    let name = match plan {
        CsrPlan::Scalar => "scalar".to_owned(),
        CsrPlan::Vector(lanes) => format!("vector{lanes}"),
        CsrPlan::Balanced => {
            let loads = if chunk_options.striped { "striped" } else { "balanced" };
            format!("{loads}{}", chunk_options.size.run())
        }
    };
    format!("csr_{name}_{scalar}_{offset}")
}

/// Name of the kernel that makes the table of chunks.
fn chunks_name(offset: &str) -> String {
    format!("csr_chunks_{offset}")
}

/// Name of the kernel that makes narrow row offsets.
fn narrow_name() -> String {
    format!("csr_narrow_o{}", usize::BITS)
}

/// Kernels that a matrix of `bytes` bytes is expected to need.
pub(super) fn gpu_kernels<T: Scalar>(
    plan: CsrPlan,
    analysis: &Analysis,
    bytes: u64,
    gpu: Gpu,
) -> Vec<(Module, String)> {
    let RowStats { nrows, ncols, nnz, .. } = analysis.rows;
    let residency = residency::<T>(plan, gpu, bytes, (nrows, ncols, nnz as usize));
    let is_narrow = RowOffsets::width(nnz) == 4;
    let offset = if is_narrow { "o32" } else { "o64" };
    let chunk_options = ChunkOptions::expected(analysis, T::KIND);
    let mut names = vec![kernel_name(plan, T::KIND, offset, chunk_options)];
    names.extend((plan == CsrPlan::Balanced).then(|| chunks_name(offset)));
    names.extend(is_narrow.then(narrow_name));
    names.into_iter().map(|name| (Module::of(FILE, residency), name)).collect()
}

impl<T: Scalar> DeviceCsr<T> {
    pub(super) fn new(host: &HostCsr<T>, gpu: Gpu) -> Result<Self, Error> {
        let matrix = CsrBuffers {
            gpu,
            nrows: host.row_ptr.len() - 1,
            ncols: host.ncols,
            row_ptr: DeviceOffsets::new(&host.row_ptr, gpu)?,
            col_idx: Arc::new(gpu.upload(&host.col_idx)?),
            values: Arc::new(gpu.upload(&host.values)?),
        };
        Self::with(host.assignment.plan, host.assignment.chunk_options, matrix)
    }

    fn with(
        plan: CsrPlan,
        chunk_options: ChunkOptions,
        matrix: CsrBuffers<T>,
    ) -> Result<Self, Error> {
        let (kernel, assignment) = kernel_of(plan, chunk_options, &matrix)?;
        Ok(Self { matrix, chunk_options, kernel, assignment })
    }

    /// Shares the arrays of a matrix in GPU memory.
    pub(super) fn from_device(plan: CsrPlan, source: &CsrSource<T>) -> Result<Self, Error> {
        let CsrSource { gpu, nrows, ncols, .. } = *source;
        let row_ptr = match RowOffsets::width(source.nnz() as u64) {
            4 => DeviceOffsets::Narrow(gpu.uninitialised(nrows + 1)?),
            _ => DeviceOffsets::new(&RowOffsets::new(&source.row_ptr.to_vec()?)?, gpu)?,
        };
        let (col_idx, values) = (source.col_idx.clone(), source.values.clone());
        let matrix = CsrBuffers { gpu, nrows, ncols, row_ptr, col_idx, values };
        if let DeviceOffsets::Narrow(row_ptr) = &matrix.row_ptr {
            let module = Module::of(FILE, matrix.residency(plan));
            let kernel = gpu.kernel(module, &narrow_name())?;
            let launch = Launch::over(row_ptr.len(), 1).with(kernels::csr::Narrow {
                offsets: source.row_ptr.ptr(),
                count: row_ptr.len() as u64,
                narrowed: row_ptr.ptr(),
            });
            // SAFETY: the kernel has a thread for every offset; the wait outlasts it.
            unsafe { kernel.launch(gpu.queue(), launch)? };
            gpu.queue().synchronize()?;
        }
        Self::with(plan, ChunkOptions::of_source(source)?, matrix)
    }

    /// Enqueues the SpMV.
    ///
    /// # Safety
    ///
    /// As [`DeviceMatrix::spmv_scaled`].
    unsafe fn multiply(&self, queue: &Queue, x: Ptr<T>, out: Out<'_, T>) -> Result<(), Error> {
        let CsrBuffers { nrows, ref row_ptr, ref col_idx, ref values, .. } = self.matrix;
        let (row_ptr, cols, nnz) = (row_ptr.ptr(), col_idx.ptr(), values.len() as u64);
        let (values, l2_shares) = (values.ptr(), self.kernel.residency().l2_shares(queue));
        let launch = match &self.assignment {
            DeviceAssignment::Lanes(lanes) => {
                let (launch, nrows) = (Launch::over(nrows, *lanes), nrows as u32);
                launch.with(kernels::csr::Rows { row_ptr, cols, values, nrows, x, out, l2_shares })
            }
            DeviceAssignment::Chunks(table, carries) => {
                let carries = carries.on(queue)?;
                Launch::new(table.count, BLOCK).with(kernels::csr::Balanced {
                    row_ptr,
                    cols,
                    values,
                    chunks: table.chunks.ptr(),
                    nrows: nrows as u32,
                    nnz,
                    x,
                    out,
                    carries,
                    l2_shares,
                })
            }
        };
        // SAFETY: the kernel is that of the assignment: `csr_scalar` or `csr_vector`, or
        // `csr_balanced`. That has words for every chunk if rows are cut, which are zero before and
        // after the launch. The vectors are the caller's promise.
        unsafe { self.kernel.launch(queue, &out, launch) }
    }
}

impl<T: Scalar> DeviceMatrix<T> for DeviceCsr<T> {
    row_products!();

    fn change_plan(&mut self, plan: &crate::formats::Plan) -> Result<bool, Error> {
        let crate::formats::Plan::Csr(plan) = plan else { return Ok(false) };
        (self.kernel, self.assignment) = kernel_of(*plan, self.chunk_options, &self.matrix)?;
        Ok(true)
    }

    fn copy_borrowed(&mut self) -> Result<(), Error> {
        Buffer::copy_borrowed(&mut self.matrix.col_idx)?;
        Buffer::copy_borrowed(&mut self.matrix.values)
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        let CsrBuffers { nrows, ncols, row_ptr, col_idx, values, .. } = &self.matrix;
        let (row_ptr, col_idx) = (row_ptr.to_vec()?, col_idx.to_vec()?);
        // SAFETY: these are the arrays of a checked matrix.
        Ok(unsafe { CsrMatrix::new_unchecked(*nrows, *ncols, row_ptr, col_idx, values.to_vec()?) })
    }

    fn values(&self) -> DeviceValueArrays<'_, T> {
        Ok(ValueArrays::Plain([self.matrix.values.numbers(), Default::default()]))
    }

    fn spmm_limit(&self) -> usize {
        usize::MAX
    }

    fn spmm(
        self: Arc<Self>,
        gpu: Gpu,
        has_tables: bool,
    ) -> Result<Option<Box<dyn DeviceSpmm<T>>>, Error> {
        Ok(Some(Box::new(ChunkSpmm::of(self, gpu, has_tables)?)))
    }

    fn device_bytes(&self) -> u64 {
        let chunks = match &self.assignment {
            DeviceAssignment::Lanes(_) => 0,
            DeviceAssignment::Chunks(table, _) => table.chunks.bytes(),
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
    use super::super::chunks::{ChunkSize, any_cut, chunk_table};
    use super::*;
    use crate::device::Device;
    use crate::matrix::gallery;
    use crate::testing::gpu;

    #[test]
    fn a_gpu_makes_the_chunk_table_of_the_host() {
        let Some(Device::Cuda(gpu)) = gpu() else { return };
        for spec in ["poisson2d,n=7", "uniform,rows=20k", "lp,rows=300", "rmat,scale=14"] {
            let a = spec.parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
            let host = chunk_table(a.row_ptr(), ChunkSize::of_rows(a.row_ptr()).cuts());
            let source = CsrSource::upload(a.view(), *gpu).unwrap();
            let packed = DeviceCsr::from_device(CsrPlan::Balanced, &source).unwrap();
            let DeviceAssignment::Chunks(made, _) = &packed.assignment else { panic!("{spec}") };
            assert_eq!(made.chunks.to_vec().unwrap(), host, "{spec}");
            assert_eq!(made.any_cut, any_cut(&host), "{spec}");
            assert_eq!(packed.matrix.row_ptr.to_vec().unwrap(), a.row_ptr(), "{spec}");
        }
    }
}
