//! SpMM with the chunks of `csr(balanced)` on a GPU: a block per chunk and unit of vectors.

use super::{Assignment, Chunks, DeviceCsr};
use crate::device::{BLOCK, Gpu, Launch, Module, Ptr, Queue, Scratch, kernels};
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
    /// Words by which a chunk passes on its sums of a row that continues in the next chunk, for the
    /// largest number of vectors. None if no row is cut.
    parts: Option<Scratch<u64>>,
}

impl<T: Scalar> ChunkSpmm<T> {
    /// Loads the kernels on the matrix's GPU. None if the matrix is not in chunks.
    ///
    /// # Errors
    ///
    /// Errors of kernel compilation.
    pub(super) fn of(matrix: Arc<DeviceCsr<T>>, gpu: Gpu) -> Result<Option<Self>, Error> {
        let Assignment::Chunks(chunks) = &matrix.assignment else { return Ok(None) };
        let module = Module::of(FILE, matrix.kernel.residency().whole());
        let (run, offset) = (matrix.chunking.cutting.run(), matrix.matrix.row_ptr.name());
        let kernels = UnitKernels::load::<T>(gpu, module, |unit| {
            format!("{FILE}_chunks{run}_{}x{unit}_{offset}", T::KIND)
        })?;
        let words = chunks.part_words::<T>() * DeviceVectors::<T>::MOST;
        let parts = chunks.parts.is_some().then(|| Scratch::cleared(gpu, words));
        Ok(Some(Self { kernels, parts, matrix }))
    }

    fn chunks(&self) -> &Chunks {
        let Assignment::Chunks(chunks) = &self.matrix.assignment else {
            unreachable!("the matrix is in chunks")
        };
        chunks
    }
}

impl<T: Scalar> DeviceSpmm<T> for ChunkSpmm<T> {
    unsafe fn multiply(&self, queue: &Queue, vectors: DeviceVectors<T>) -> Result<(), Error> {
        let (matrix, chunks) = (&self.matrix.matrix, self.chunks());
        let (unit, kernel) = self.kernels.of(&vectors);
        let units = vectors.count.div_ceil(unit) as u32;
        let launch = Launch::new(chunks.count * units, BLOCK).with(kernels::csr_spmm::Spmm {
            row_ptr: matrix.row_ptr.ptr(),
            cols: matrix.col_idx.ptr(),
            values: matrix.values.ptr(),
            chunks: chunks.table.ptr(),
            nrows: matrix.nrows as u32,
            nnz: matrix.values.len() as u64,
            x: vectors.x,
            stride: (vectors.stride / unit) as u32,
            y: vectors.y,
            y_row: vectors.row as u64,
            y_vector: vectors.vector as u64,
            vectors: vectors.count as u32,
            whole: u32::from(vectors.is_whole(unit)),
            parts: self.parts.as_ref().map_or(Ok(Ptr::NULL), |parts| parts.on(queue))?,
        });
        // SAFETY: the kernel is `csr_spmm_chunks` for these offsets and the cutting of the table.
        // If rows are cut there are words for every chunk and vector, zero before and after the
        // launch. The vectors are the caller's promise.
        unsafe { kernel.launch(queue, launch) }
    }

    fn bytes(&self) -> u64 {
        0
    }
}
