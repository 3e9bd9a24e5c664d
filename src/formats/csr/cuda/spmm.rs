//! SpMM with the chunks of `csr(balanced)` on a GPU: a thread multiplies each entry with a unit of
//! adjacent vectors.

use super::{DeviceAssignment, DeviceCsr};
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
    /// Words by which a chunk passes on its sums of a row that continues in the next chunk.
    carries: Scratch<u64>,
}

impl<T: Scalar> ChunkSpmm<T> {
    /// Maximum number of vectors, one widest unit. For more, packed SELL is faster: its lanes
    /// exchange no sums.
    pub(super) const LIMIT: usize = DeviceVectors::<T>::UNITS[0];

    /// Loads the kernels on the GPU of a matrix. None if it is not in chunks.
    ///
    /// # Errors
    ///
    /// Errors of the GPU and of kernel compilation.
    pub(super) fn of(matrix: Arc<DeviceCsr<T>>, gpu: Gpu) -> Result<Option<Self>, Error> {
        let DeviceAssignment::Chunks(table, _) = &matrix.assignment else { return Ok(None) };
        let (run, offset) = (matrix.chunk_options.size.run(), matrix.matrix.row_ptr.name());
        let module = Module::of(FILE, matrix.kernel.residency());
        let kernels = UnitKernels::load::<T>(gpu, module, |unit| {
            format!("{FILE}_chunks{run}_{}x{unit}_{offset}", T::KIND)
        })?;
        let carries = Scratch::cleared(gpu, table.carry_words::<T>(Self::LIMIT));
        Ok(Some(Self { kernels, carries, matrix }))
    }
}

impl<T: Scalar> DeviceSpmm<T> for ChunkSpmm<T> {
    unsafe fn multiply(&self, queue: &Queue, vectors: DeviceVectors<T>) -> Result<(), Error> {
        let DeviceCsr { matrix, assignment, kernel: spmv, .. } = &*self.matrix;
        let DeviceAssignment::Chunks(table, _) = assignment else {
            unreachable!("`of` refuses others")
        };
        let (unit, kernel) = self.kernels.of(&vectors);
        let carries = self.carries.on(queue)?;
        // One unit, unless the alignment of `x` permits only narrower ones.
        for first in (0..vectors.count).step_by(unit) {
            let own = DeviceVectors {
                x: vectors.x.add(first),
                y: vectors.y.add(first * vectors.vector),
                count: unit.min(vectors.count - first),
                ..vectors
            };
            let launch = Launch::new(table.count, BLOCK).with(kernels::csr_spmm::Spmm {
                row_ptr: matrix.row_ptr.ptr(),
                cols: matrix.col_idx.ptr(),
                values: matrix.values.ptr(),
                chunks: table.chunks.ptr(),
                nrows: matrix.nrows as u32,
                nnz: matrix.values.len() as u64,
                vectors: own.in_units(unit),
                carries,
                l2_shares: spmv.residency().l2_shares(queue),
            });
            // SAFETY: the kernel is `csr_spmm_chunks` for these offsets, this run and as many
            // vectors. If rows are cut there are words for every chunk and vector, zero before and
            // after the launch. The vectors are the caller's promise.
            unsafe { kernel.launch(queue, launch)? };
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        0
    }
}
