//! SpMM with the chunks of `csr(balanced)` on a GPU: neighbouring threads share the entries of a
//! chunk, each with a unit of adjacent vectors.

use super::super::constants::SHARERS;
use super::{Assignment, Chunks, DeviceCsr, FILE as SPMV_FILE};
use crate::device::{BLOCK, Gpu, Launch, Module, Queue, Scratch, kernels};
use crate::formats::{DeviceSpmm, DeviceVectors, UnitKernels};
use crate::{Error, Scalar};
use std::sync::Arc;

/// Name of the kernel file.
const FILE: &str = "csr_spmm";

/// SpMM with a CSR matrix in chunks on its GPU.
#[derive(Debug)]
pub(super) struct ChunkSpmm<T> {
    matrix: Arc<DeviceCsr<T>>,
    kernels: UnitKernels,
    /// Chunks for one thread and for two that share an entry: as many entries for each thread, and
    /// as many threads.
    chunks: Arc<Vec<Chunks>>,
    /// Words by which a chunk passes on its sums of a row that continues in the next chunk, for any
    /// of the tables.
    parts: Scratch<u64>,
}

impl<T: Scalar> ChunkSpmm<T> {
    /// Largest number of vectors for which packed SELL, whose lanes add the entries of a row
    /// without exchanging sums, is not faster.
    pub(super) const MAX: usize = SHARERS as usize * DeviceVectors::<T>::UNITS[0];

    /// Cuts the matrix for every number of threads, and loads the kernels on its GPU. None if the
    /// matrix is not in chunks.
    ///
    /// # Errors
    ///
    /// Errors of the GPU and of kernel compilation.
    pub(super) fn of(matrix: Arc<DeviceCsr<T>>, gpu: Gpu) -> Result<Option<Self>, Error> {
        let Assignment::Chunks(..) = &matrix.assignment else { return Ok(None) };
        let residency = matrix.kernel.residency();
        let (cutting, offset) = (matrix.chunking.cutting, matrix.matrix.row_ptr.name());
        let module = Module::of(FILE, residency.whole());
        let kernels = UnitKernels::load::<T>(gpu, module, |unit| {
            format!("{FILE}_chunks{}_{}x{unit}_{offset}", cutting.run(), T::KIND)
        })?;
        let numbers = (0..=SHARERS.ilog2()).map(|shift| 1 << shift);
        let module = Module::of(SPMV_FILE, residency);
        let cuttings = numbers.map_while(|threads| cutting.shared_by(threads));
        let chunks = cuttings.map(|cutting| Chunks::new(cutting, &matrix.matrix, module));
        let chunks = chunks.collect::<Result<Vec<_>, _>>()?;
        // Tables but the last are for as many units as threads share an entry.
        let (last, widest) = (chunks.len() - 1, DeviceVectors::<T>::UNITS[0]);
        let vectors = |at| if at == last { Self::MAX } else { widest << at };
        let words = chunks.iter().enumerate().map(|(at, own)| own.part_words::<T>(vectors(at)));
        let parts = Scratch::cleared(gpu, words.max().unwrap_or(0));
        Ok(Some(Self { kernels, chunks: Arc::new(chunks), parts, matrix }))
    }
}

impl<T: Scalar> DeviceSpmm<T> for ChunkSpmm<T> {
    unsafe fn multiply(&self, queue: &Queue, vectors: DeviceVectors<T>) -> Result<(), Error> {
        let matrix = &self.matrix.matrix;
        let (unit, kernel) = self.kernels.of(&vectors);
        let units = vectors.count.div_ceil(unit);
        let shift = (units.next_power_of_two().ilog2() as usize).min(self.chunks.len() - 1);
        let chunks = &self.chunks[shift];
        // A graph owns the memory it uses.
        if queue.records() {
            queue.keep(self.chunks.clone());
        }
        let blocks = chunks.count * units.div_ceil(1 << shift) as u32;
        let launch = Launch::new(blocks, BLOCK).with(kernels::csr_spmm::Spmm {
            row_ptr: matrix.row_ptr.ptr(),
            cols: matrix.col_idx.ptr(),
            values: matrix.values.ptr(),
            chunks: chunks.table.ptr(),
            nrows: matrix.nrows as u32,
            nnz: matrix.values.len() as u64,
            vectors: vectors.in_units(unit),
            parts: self.parts.on(queue)?,
            shift: shift as u32,
        });
        // SAFETY: the kernel is `csr_spmm_chunks` for these offsets and the run of the table for
        // one thread, of which a table for several has a part. If rows are cut there are words for
        // every chunk and vector, zero before and after the launch. The vectors are the caller's
        // promise.
        unsafe { kernel.launch(queue, launch) }
    }

    fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunks| chunks.table.bytes()).sum()
    }
}
