//! SpMM with the chunks of `csr(balanced)` on a GPU: a thread multiplies each entry with a unit of
//! adjacent vectors. With several units a group of lanes shares the entries.

use super::super::chunks::ChunkSize;
use super::{DeviceAssignment, DeviceChunks, DeviceCsr};
use crate::device::{BLOCK, Gpu, Launch, Module, Queue, Scratch, kernels};
use crate::formats::{DeviceSpmm, DeviceVectors, UnitKernels};
use crate::{Error, Scalar};
use std::sync::Arc;

/// Name of the kernel file.
const FILE: &str = "csr_spmm";

/// Largest number of lanes of a group, each with a unit of vectors: those that load the same
/// entries. The same constant is in `kernels/csr_groups.cuh`.
const MOST_LANES: usize = 16;

/// Binary logarithm of the number of chunks that a block of groups multiplies together: as many as
/// it can hold, so that a product has few blocks that wait, or half of them where a small matrix
/// has few blocks and a lane of a large group has many entries, one after another. Measured on an
/// H200: docs/history/2026-11-30-spmm-by-groups.md.
fn merged(chunks: u32, lanes: usize) -> u32 {
    let least = match lanes {
        MOST_LANES => 1 << 13,
        4.. => 1 << 10,
        _ => 1 << 9,
    };
    if chunks < least { 1 } else { 2 }
}

/// SpMM with a CSR matrix in chunks on its GPU.
///
/// Groups load a cache line in several steps, so that evict-first loads would evict it in between:
/// `rmat` with 32 vectors takes 1836 µs with them and 1427 without (H200, f64).
#[derive(Debug)]
pub(super) struct ChunkSpmm<T> {
    matrix: Arc<DeviceCsr<T>>,
    /// Kernels for one unit of vectors.
    single: UnitKernels,
    /// Kernels for several units.
    groups: UnitKernels,
    /// Chunks of the blocks of groups.
    group_chunks: DeviceChunks,
    /// Words by which a block passes on its sums of a row that continues in the next block.
    carries: Scratch<u64>,
}

impl<T: Scalar> ChunkSpmm<T> {
    /// Largest number of vectors per launch.
    const MOST: usize = MOST_LANES * DeviceVectors::<T>::UNITS[0];

    /// Loads the kernels on the GPU of a matrix. None if it is not in chunks.
    ///
    /// # Errors
    ///
    /// Errors of the GPU and of kernel compilation.
    pub(super) fn of(matrix: Arc<DeviceCsr<T>>, gpu: Gpu) -> Result<Option<Self>, Error> {
        let DeviceAssignment::Chunks(table, _) = &matrix.assignment else { return Ok(None) };
        let (run, offset) = (matrix.chunk_options.size.run(), matrix.matrix.row_ptr.name());
        let load = |module, kind: &str| {
            let name = |unit| format!("{FILE}_{kind}_{}x{unit}_{offset}", T::KIND);
            UnitKernels::load::<T>(gpu, module, name)
        };
        let single = load(Module::of(FILE, matrix.kernel.residency()), &format!("chunks{run}"))?;
        let groups = load(Module::from(FILE), "groups")?;
        let arrays = &matrix.matrix;
        let of_arrays = Module::of(super::FILE, matrix.kernel.residency());
        let group_chunks = DeviceChunks::new(ChunkSize::smallest(), arrays, of_arrays)?;
        let words = table.carry_words::<T>(DeviceVectors::<T>::UNITS[0]);
        let words = words.max(group_chunks.carry_words::<T>(Self::MOST));
        let carries = Scratch::cleared(gpu, words);
        Ok(Some(Self { single, groups, group_chunks, carries, matrix }))
    }
}

impl<T: Scalar> DeviceSpmm<T> for ChunkSpmm<T> {
    fn most_vectors(&self) -> usize {
        Self::MOST
    }

    unsafe fn multiply(&self, queue: &Queue, vectors: DeviceVectors<T>) -> Result<(), Error> {
        let DeviceCsr { matrix, assignment, kernel: spmv, .. } = &*self.matrix;
        let DeviceAssignment::Chunks(table, _) = assignment else {
            unreachable!("`of` refuses others")
        };
        let ((unit, single), (_, groups)) = (self.single.of(&vectors), self.groups.of(&vectors));
        let (carries, residency) = (self.carries.on(queue)?, spmv.residency());
        let (row_ptr, cols) = (matrix.row_ptr.ptr(), matrix.col_idx.ptr());
        let values = matrix.values.ptr();
        let (nrows, nnz) = (matrix.nrows as u32, matrix.values.len() as u64);
        // Several launches if the alignment of `x` permits only narrow units.
        for first in (0..vectors.count).step_by(MOST_LANES * unit) {
            let own = DeviceVectors {
                x: vectors.x.add(first),
                y: vectors.y.add(first * vectors.vector),
                count: (vectors.count - first).min(MOST_LANES * unit),
                ..vectors
            };
            let shift = own.count.div_ceil(unit).next_power_of_two().trailing_zeros();
            let vectors = own.in_units(unit);
            let (kernel, launch) = if shift == 0 {
                let launch = Launch::new(table.count, BLOCK).with(kernels::csr_spmm::Spmm {
                    row_ptr,
                    cols,
                    values,
                    chunks: table.chunks.ptr(),
                    nrows,
                    nnz,
                    vectors,
                    carries,
                    l2_shares: residency.l2_shares(queue),
                });
                (single, launch)
            } else {
                let (spacing, _) = ChunkSize::smallest().spacing_and_max_move();
                let table = &self.group_chunks;
                let merged = merged(table.count, 1 << shift);
                let blocks = table.count.div_ceil(1 << merged);
                let launch = Launch::new(blocks, BLOCK).with(kernels::csr_spmm::Groups {
                    row_ptr,
                    cols,
                    values,
                    chunks: table.chunks.ptr(),
                    nrows,
                    nnz,
                    spacing: spacing as u32,
                    vectors,
                    shift,
                    merged,
                    carries,
                });
                (groups, launch)
            };
            // SAFETY: the kernel is that of csr_spmm.cu for these offsets, chunks and units, of
            // which a group has one per lane. If rows are cut there are words for every block and
            // vector, zero before and after the launch. The vectors are the caller's promise.
            unsafe { kernel.launch(queue, launch)? };
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.group_chunks.chunks.bytes()
    }
}

#[cfg(test)]
#[cfg(feature = "cuda")]
mod tests {
    use super::*;
    use crate::device::{Device, DeviceVec, Stream};
    use crate::formats::{Layout, ResidentMatrix, SpmmData, SpmmShape};
    use crate::matrix::CsrMatrix;
    use crate::testing::{Oracle, awkward, few_cases, gpu, scattered, x_vector};

    /// Numbers of vectors: groups of each size, complete and not, and several launches.
    const COUNTS: [usize; 8] = [2, 3, 5, 8, 16, 31, 40, 70];

    /// Checks products of some vectors, and that the bits of all repeat.
    fn check<T: Scalar>(device: &Device, a: &CsrMatrix<T>, name: &str) {
        let (nrows, ncols) = (a.nrows(), a.ncols());
        let plan: crate::formats::Plan = "csr(balanced)".parse().unwrap();
        let matrix = ResidentMatrix::on(device, plan.pack(a.view()).unwrap()).unwrap();
        let data = SpmmData::of(&matrix, ncols).unwrap().unwrap();
        let stream = Stream::new(device).unwrap();
        let x = x_vector::<T>(ncols);
        let vector = |v: usize| x.iter().map(move |x| T::from_f64(x.to_f64() * (v + 1) as f64));
        for count in COUNTS {
            let vectors: Vec<Vec<T>> = (0..count).map(|v| vector(v).collect()).collect();
            let rows = (0..ncols).flat_map(|i| vectors.iter().map(move |x| x[i]));
            let x = DeviceVec::from_slice(device, &rows.collect::<Vec<T>>()).unwrap();
            let shape = SpmmShape { count, ncols, nrows, layout: Layout::RowMajor };
            let product = || {
                let nothing = vec![T::from_f64(f64::NAN); count * nrows];
                let mut y = DeviceVec::from_slice(device, &nothing).unwrap();
                matrix.enqueue_spmm(&data, &stream, shape, &x, &mut y, None).unwrap();
                stream.synchronize().unwrap();
                y.to_vec().unwrap()
            };
            let y = product();
            for v in [0, 1, count / 2, count - 1] {
                let own: Vec<T> = (0..nrows).map(|row| y[row * count + v]).collect();
                let checked = Oracle::of(a.view(), &vectors[v]).check(&own);
                checked.unwrap_or_else(|wrong| panic!("{name}, {v} of {count}: {wrong}"));
            }
            let bits = |y: Vec<T>| y.into_iter().map(Scalar::bits).collect::<Vec<_>>();
            assert!(bits(y) == bits(product()), "{name}, {count}: other bits");
        }
    }

    /// Rows without entries, short ones, and some of many blocks, in blocks of several chunks.
    fn large<T: Scalar>() -> CsrMatrix<T> {
        let lengths = [0, 1, 9, 2, 40, 3, 0, 4, 6, 5];
        scattered(300_000, 70_000, move |row| match row % 20_011 {
            7 => 30_000,
            8 | 12_000 => 600,
            _ => lengths[row % lengths.len()],
        })
    }

    fn check_all<T: Scalar>() {
        let Some(device) = gpu() else { return };
        awkward::<T>().iter().for_each(|(name, a)| check(device, a, name));
        if !few_cases() {
            check(device, &large::<T>(), "large");
        }
    }

    #[test]
    fn groups_multiply_any_number_of_vectors_in_f32() {
        check_all::<f32>();
    }

    #[test]
    fn groups_multiply_any_number_of_vectors_in_f64() {
        check_all::<f64>();
    }

    #[test]
    fn blocks_of_groups_hold_their_chunks() {
        let merged = |chunks| [2, 4, 8, 16].map(|lanes| merged(chunks, lanes));
        assert_eq!([0, 512].map(merged), [[1; 4], [2, 1, 1, 1]]);
        assert_eq!([1024, 8192].map(merged), [[2, 2, 2, 1], [2; 4]]);
        // Cuts may move back, and loads of four entries begin up to three early.
        let (spacing, max_move) = ChunkSize::smallest().spacing_and_max_move();
        assert!((spacing << 2) + max_move + 3 <= 8 * u64::from(BLOCK));
    }
}
