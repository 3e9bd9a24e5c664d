//! SpMM with CSR on a GPU, by chunks: a thread multiplies each entry with a unit of adjacent
//! vectors. With several units a group of lanes shares the entries.

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

/// Number of blocks of groups that a multiprocessor has at the same time: `KERNEL_BLOCKS` of Hopper
/// in `kernels/policy.cuh`.
const RESIDENT: usize = 5;

/// Binary logarithm of the number of chunks that a block of groups multiplies together: two, or
/// four, as many as it can hold, if fewer blocks run at the same time than there are pairs. In a
/// large group a lane has many entries, one after another, so that four have to be worth it.
/// Measured on an H200: docs/history/2026-11-30-spmm-by-groups.md.
fn merged(chunks: u32, lanes: usize, multiprocessors: usize) -> u32 {
    let resident = (RESIDENT * multiprocessors) as u32;
    match chunks {
        _ if chunks <= resident << 1 => 1,
        _ if chunks <= resident << 2 || chunks >= 1 << 13 || lanes < MOST_LANES => 2,
        _ => 1,
    }
}

/// SpMM with a CSR matrix on its GPU.
#[derive(Debug)]
pub(super) struct ChunkSpmm<T> {
    matrix: Arc<DeviceCsr<T>>,
    /// For one unit of vectors, with the chunks of `csr(balanced)`: kernels, and words by which a
    /// chunk passes on its sums of a row that continues in the next chunk.
    single: Option<(UnitKernels, Scratch<u64>)>,
    /// For more vectors, or for every number with another plan.
    groups: Option<Groups>,
}

/// Groups of lanes that multiply several units. They copy the matrix to shared memory, past the L1;
/// evict-first loads gain at most 1 % more, so that there is one kernel for all residencies.
#[derive(Debug)]
struct Groups {
    kernels: UnitKernels,
    /// Blocks multiply some of these chunks together.
    chunks: Arc<DeviceChunks>,
    /// As those of a unit, by blocks.
    carries: Scratch<u64>,
    multiprocessors: usize,
}

impl Groups {
    fn new<T: Scalar>(matrix: &DeviceCsr<T>, gpu: Gpu) -> Result<Self, Error> {
        let module = Module::of(super::FILE, matrix.kernel.residency());
        let chunks = DeviceChunks::new(ChunkSize::smallest(), &matrix.matrix, module)?;
        let multiprocessors = gpu.multiprocessors();
        // Smaller groups have as many blocks, or fewer.
        let blocks = chunks.count.div_ceil(1 << merged(chunks.count, MOST_LANES, multiprocessors));
        let words = chunks.carry_words::<T>(blocks, MOST_LANES * ChunkSpmm::<T>::UNIT);
        Ok(Self {
            kernels: kernels_of(matrix, gpu, Module::from(FILE), "groups")?,
            carries: Scratch::cleared(gpu, words),
            chunks: Arc::new(chunks),
            multiprocessors,
        })
    }
}

/// Kernels of a matrix for each unit.
fn kernels_of<T: Scalar>(
    matrix: &DeviceCsr<T>,
    gpu: Gpu,
    module: Module,
    kind: &str,
) -> Result<UnitKernels, Error> {
    let offset = matrix.matrix.row_ptr.name();
    let name = |unit| format!("{FILE}_{kind}_{}x{unit}_{offset}", T::KIND);
    UnitKernels::load::<T>(gpu, module, name)
}

impl<T: Scalar> ChunkSpmm<T> {
    /// Number of vectors of the widest unit.
    const UNIT: usize = DeviceVectors::<T>::UNITS[0];

    /// Loads the kernels on the GPU of a matrix, for fast products of up to `most` vectors.
    ///
    /// # Errors
    ///
    /// Errors of the GPU and of kernel compilation.
    pub(super) fn of(matrix: Arc<DeviceCsr<T>>, gpu: Gpu, most: usize) -> Result<Self, Error> {
        let single = match &matrix.assignment {
            DeviceAssignment::Lanes(_) => None,
            DeviceAssignment::Chunks(table, _) => {
                let kind = format!("chunks{}", matrix.chunk_options.size.run());
                let module = Module::of(FILE, matrix.kernel.residency());
                let words = table.carry_words::<T>(table.count, Self::UNIT);
                Some((kernels_of(&matrix, gpu, module, &kind)?, Scratch::cleared(gpu, words)))
            }
        };
        let has_groups = most > Self::UNIT || single.is_none();
        let groups = has_groups.then(|| Groups::new(&matrix, gpu)).transpose()?;
        Ok(Self { single, groups, matrix })
    }

    /// Multiplies one unit of vectors.
    ///
    /// # Safety
    ///
    /// As of [`DeviceSpmm::multiply`].
    unsafe fn multiply_unit(
        &self,
        (kernels, carries): &(UnitKernels, Scratch<u64>),
        queue: &Queue,
        vectors: DeviceVectors<T>,
    ) -> Result<(), Error> {
        let DeviceCsr { matrix, assignment, kernel: spmv, .. } = &*self.matrix;
        let DeviceAssignment::Chunks(table, _) = assignment else {
            unreachable!("only chunks have kernels for a unit")
        };
        let (unit, kernel) = kernels.of(&vectors);
        let launch = Launch::new(table.count, BLOCK).with(kernels::csr_spmm::Spmm {
            row_ptr: matrix.row_ptr.ptr(),
            cols: matrix.col_idx.ptr(),
            values: matrix.values.ptr(),
            chunks: table.chunks.ptr(),
            nrows: matrix.nrows as u32,
            nnz: matrix.values.len() as u64,
            vectors: vectors.in_units(unit),
            carries: carries.on(queue)?,
            l2_shares: spmv.residency().l2_shares(queue),
        });
        // SAFETY: the kernel is `csr_spmm_chunks` for these offsets, this run and as many vectors.
        // If rows are cut there are words for every chunk and vector, zero before and after the
        // launch. The vectors are the caller's promise.
        unsafe { kernel.launch(queue, launch) }
    }

    /// Multiplies up to [`MOST_LANES`] units.
    ///
    /// # Safety
    ///
    /// As of [`DeviceSpmm::multiply`].
    unsafe fn multiply_units(
        &self,
        groups: &Groups,
        queue: &Queue,
        vectors: DeviceVectors<T>,
    ) -> Result<(), Error> {
        let (matrix, chunks) = (&self.matrix.matrix, &groups.chunks);
        // A graph owns the memory it uses.
        if queue.records() {
            queue.keep(chunks.clone());
        }
        let (unit, kernel) = groups.kernels.of(&vectors);
        let lanes = vectors.count.div_ceil(unit).next_power_of_two();
        let merged = merged(chunks.count, lanes, groups.multiprocessors);
        let (spacing, _) = ChunkSize::smallest().spacing_and_max_move();
        let blocks = chunks.count.div_ceil(1 << merged);
        let launch = Launch::new(blocks, BLOCK).with(kernels::csr_spmm::Groups {
            row_ptr: matrix.row_ptr.ptr(),
            cols: matrix.col_idx.ptr(),
            values: matrix.values.ptr(),
            chunks: chunks.chunks.ptr(),
            nrows: matrix.nrows as u32,
            nnz: matrix.values.len() as u64,
            spacing: spacing as u32,
            vectors: vectors.in_units(unit),
            shift: lanes.trailing_zeros(),
            merged,
            carries: groups.carries.on(queue)?,
        });
        // SAFETY: the kernel is `csr_spmm_groups` for these offsets and units, of which a group has
        // one per lane. If rows are cut there are words for every block and lane, zero before and
        // after the launch. The vectors are the caller's promise.
        unsafe { kernel.launch(queue, launch) }
    }
}

impl<T: Scalar> DeviceSpmm<T> for ChunkSpmm<T> {
    fn most_vectors(&self) -> usize {
        MOST_LANES * Self::UNIT
    }

    unsafe fn multiply(&self, queue: &Queue, vectors: DeviceVectors<T>) -> Result<(), Error> {
        let unit = vectors.unit().expect("the caller has vectors with a unit");
        let (single, groups) = (self.single.as_ref(), self.groups.as_ref());
        let single = single.filter(|_| vectors.count <= unit || groups.is_none());
        // Several launches if the alignment of `x` permits only narrow units.
        let step = if single.is_some() { unit } else { MOST_LANES * unit };
        for first in (0..vectors.count).step_by(step) {
            let own = DeviceVectors {
                x: vectors.x.add(first),
                y: vectors.y.add(first * vectors.vector),
                count: (vectors.count - first).min(step),
                ..vectors
            };
            // SAFETY: the caller's promise.
            unsafe {
                match (single, groups) {
                    (Some(single), _) => self.multiply_unit(single, queue, own)?,
                    (None, Some(groups)) => self.multiply_units(groups, queue, own)?,
                    (None, None) => unreachable!("`of` has made one of them"),
                }
            }
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.groups.as_ref().map_or(0, |groups| groups.chunks.chunks.bytes())
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
    const COUNTS: [usize; 10] = [2, 3, 5, 8, 10, 16, 20, 24, 40, 70];

    /// Checks products of some vectors, and that the bits of all repeat.
    fn check<T: Scalar>(device: &Device, a: &CsrMatrix<T>, name: &str) {
        ["csr(balanced)", "csr(vector:4)"]
            .iter()
            .for_each(|plan| check_plan(device, a, name, plan));
    }

    fn check_plan<T: Scalar>(device: &Device, a: &CsrMatrix<T>, name: &str, plan: &str) {
        let (nrows, ncols) = (a.nrows(), a.ncols());
        let plan: crate::formats::Plan = plan.parse().unwrap();
        let matrix = ResidentMatrix::on(device, plan.pack(a.view()).unwrap()).unwrap();
        let data = SpmmData::of(&matrix, ncols, usize::MAX).unwrap().unwrap();
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

    /// Rows without entries, short ones, and some of many blocks, in blocks of four chunks whatever
    /// the number of lanes.
    fn large<T: Scalar>() -> CsrMatrix<T> {
        let lengths = [0, 1, 9, 2, 40, 3, 0, 4, 6, 5];
        scattered(500_000, 70_000, move |row| match row % 20_011 {
            7 => 30_000,
            8 | 12_000 => 600,
            _ => lengths[row % lengths.len()],
        })
    }

    fn check_all<T: Scalar>() {
        let Some(device) = gpu() else { return };
        awkward::<T>().iter().for_each(|(name, a)| check(device, a, name));
        if !few_cases() {
            let large = large::<T>();
            let (nrows, nnz) = (large.nrows() as u64, large.nnz() as u64);
            let chunks = ChunkSize::smallest().count(nrows, nnz);
            assert_eq!(merged(chunks as u32, MOST_LANES, 132), 2);
            check(device, &large, "large");
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
        let merged = |chunks| [2, 8, 16].map(|lanes| merged(chunks, lanes, 132));
        assert_eq!([0, 1320, 1321].map(merged), [[1; 3], [1; 3], [2; 3]]);
        assert_eq!([2640, 2641, 8192].map(merged), [[2; 3], [2, 2, 1], [2; 3]]);
        // Cuts may move back, copies begin up to three entries early, and four columns follow.
        let (spacing, max_move) = ChunkSize::smallest().spacing_and_max_move();
        let run = ((spacing << 2) + max_move + 3 + 4).div_ceil(u64::from(BLOCK));
        let kernel = include_str!("../../../../kernels/csr_groups.cuh");
        for constant in [format!("GROUP_RUN = {run}"), format!("MOST_LANES = {MOST_LANES}")] {
            assert!(kernel.contains(&format!("constexpr u32 {constant};")), "{constant}");
        }
        let policy = include_str!("../../../../kernels/policy.cuh");
        assert!(policy.contains(&format!("#define KERNEL_BLOCKS {RESIDENT}\n")));
    }
}
