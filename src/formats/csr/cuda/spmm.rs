//! SpMM with CSR on a GPU, by chunks: a thread multiplies each entry with a unit of adjacent
//! vectors. For several units there are groups of lanes, which share the entries of a chunk, and
//! kernels that multiply row by row.

use super::super::chunks::Cuts;
use super::super::constants::RESERVE;
use super::rows::RowSpmm;
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

/// Entries and row ends of a chunk of groups, at least and at most. Where fewer of the largest
/// chunks than of the smallest fit a multiprocessor, smaller ones are the largest.
const LEAST: u64 = 128;
const MOST: [u64; 3] = [1984, 992, 496];

/// Cuts of a matrix with `items` entries and row ends, in chunks of at most `most`, of which the
/// GPU multiplies `resident` at the same time: waves of blocks are complete. A single wave has four
/// fifths of the blocks. Measured on an H200: docs/history/2026-11-30-spmm-by-groups.md.
fn group_cuts(items: u64, resident: u64, most: u64) -> Cuts {
    let single = (resident * 4 / 5).max(1);
    let blocks = match items.div_ceil(resident * most) {
        ..=1 if items <= single * most => single,
        waves => resident * waves,
    };
    cuts_of(items.div_ceil(blocks).clamp(LEAST, most))
}

/// Cuts at this distance, moved by at most one [`RESERVE`]th of it.
const fn cuts_of(spacing: u64) -> Cuts {
    Cuts { spacing, max_move: spacing / RESERVE as u64 }
}

/// Entries of the shared memory of a block. Cuts may move back, copies begin up to three entries
/// early, and four columns follow.
const fn capacity(cuts: Cuts) -> u32 {
    (cuts.spacing + cuts.max_move + 3 + 4).next_multiple_of(8) as u32
}

/// Bytes of a capacity: a column, a value and the mark of a row end for each entry.
const fn shared_bytes<T>(capacity: u32) -> u32 {
    capacity * (size_of::<u32>() + size_of::<T>() + size_of::<u16>()) as u32
}

/// SpMM with a CSR matrix on its GPU.
#[derive(Debug)]
pub(super) struct ChunkSpmm<T> {
    matrix: Arc<DeviceCsr<T>>,
    /// For one unit of vectors, with the chunks of `csr(balanced)`: kernels, and words by which a
    /// chunk passes on its sums of a row that continues in the next chunk.
    single: Option<(UnitKernels, Scratch<u64>)>,
    /// For several units, or for every number without `single`; present if a choice of `rows` needs
    /// it.
    groups: Option<Groups>,
    /// Choice between the kernels for several units, and those that multiply row by row.
    rows: Option<RowSpmm>,
}

/// Groups of lanes that multiply several units. They copy the matrix to shared memory, past the L1;
/// evict-first loads gain at most 1 % more, so that there is one kernel for all residencies.
#[derive(Debug)]
struct Groups {
    kernels: UnitKernels,
    cuts: Cuts,
    chunks: Arc<DeviceChunks>,
    /// As those of a unit.
    carries: Scratch<u64>,
}

impl Groups {
    fn new<T: Scalar>(matrix: &DeviceCsr<T>, gpu: Gpu) -> Result<Self, Error> {
        let kernels = kernels_of(matrix, gpu, Module::from(FILE), "groups")?;
        let resident_of = |most| {
            let bytes = shared_bytes::<T>(capacity(cuts_of(most)));
            gpu.resident_blocks(kernels.widest(), BLOCK, bytes).map(u64::from)
        };
        let [.., least] = MOST;
        let resident = resident_of(least)?;
        let mut most = least;
        for larger in MOST {
            if resident_of(larger)? == resident {
                most = larger;
                break;
            }
        }
        let csr = &matrix.matrix;
        let cuts = group_cuts((csr.nrows + csr.values.len()) as u64, resident, most);
        let module = Module::of(super::FILE, matrix.kernel.residency());
        let chunks = DeviceChunks::new(cuts, csr, module)?;
        let words = chunks.carry_words::<T>(chunks.count, MOST_LANES * ChunkSpmm::<T>::UNIT);
        let carries = Scratch::cleared(gpu, words);
        Ok(Self { kernels, cuts, chunks: Arc::new(chunks), carries })
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

    /// Loads the kernels on the GPU of a matrix. Without tables several units of vectors are
    /// multiplied one after another if the plan has kernels for one unit.
    ///
    /// # Errors
    ///
    /// Errors of the GPU and of kernel compilation.
    pub(super) fn of(matrix: Arc<DeviceCsr<T>>, gpu: Gpu, has_tables: bool) -> Result<Self, Error> {
        let single = match &matrix.assignment {
            DeviceAssignment::Lanes(_) => None,
            DeviceAssignment::Chunks(table, _) => {
                let kind = format!("chunks{}", matrix.chunk_options.size.run());
                let module = Module::of(FILE, matrix.kernel.residency());
                let words = table.carry_words::<T>(table.count, Self::UNIT);
                Some((kernels_of(&matrix, gpu, module, &kind)?, Scratch::cleared(gpu, words)))
            }
        };
        let has_rows = has_tables || single.is_none();
        let rows = has_rows.then(|| RowSpmm::of(&matrix.matrix, has_tables)).transpose()?;
        let needs_groups = rows.as_ref().is_some_and(RowSpmm::needs_groups);
        let groups = needs_groups.then(|| Groups::new(&matrix, gpu)).transpose()?;
        Ok(Self { single, groups, rows, matrix })
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
        let capacity = capacity(groups.cuts);
        let launch = Launch::new(chunks.count, BLOCK).with_shared(shared_bytes::<T>(capacity));
        let launch = launch.with(kernels::csr_spmm::Groups {
            row_ptr: matrix.row_ptr.ptr(),
            cols: matrix.col_idx.ptr(),
            values: matrix.values.ptr(),
            chunks: chunks.chunks.ptr(),
            nrows: matrix.nrows as u32,
            nnz: matrix.values.len() as u64,
            spacing: groups.cuts.spacing as u32,
            vectors: vectors.in_units(unit),
            shift: vectors.lane_shift(unit),
            capacity,
            carries: groups.carries.on(queue)?,
        });
        // SAFETY: the kernel is `csr_spmm_groups` for these offsets and units, of which a group has
        // one per lane. A block has shared memory for its chunk. If rows are cut there are words
        // for every chunk and lane, zero before and after the launch. The vectors are the caller's
        // promise.
        unsafe { kernel.launch(queue, launch) }
    }
}

impl<T: Scalar> DeviceSpmm<T> for ChunkSpmm<T> {
    fn most_vectors(&self) -> usize {
        MOST_LANES * Self::UNIT
    }

    unsafe fn multiply(&self, queue: &Queue, vectors: DeviceVectors<T>) -> Result<(), Error> {
        let unit = vectors.unit().expect("the caller has vectors with a unit");
        let single = self.single.as_ref();
        let single = single.filter(|_| vectors.count <= unit || self.rows.is_none());
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
                match (single, &self.rows) {
                    (Some(single), _) => self.multiply_unit(single, queue, own)?,
                    (None, Some(rows)) => {
                        if !rows.multiply(&self.matrix.matrix, queue, own)? {
                            let groups = self.groups.as_ref().expect("`of` has made what is used");
                            self.multiply_units(groups, queue, own)?;
                        }
                    }
                    (None, None) => unreachable!("`of` has made one of them"),
                }
            }
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        let groups = self.groups.as_ref().map_or(0, |groups| groups.chunks.chunks.bytes());
        groups + self.rows.as_ref().map_or(0, RowSpmm::bytes)
    }
}

#[cfg(test)]
#[cfg(feature = "cuda")]
mod tests {
    use super::super::CsrPlan;
    use super::super::rows::{GroupShape, KernelChoice, inodes_of, measure};
    use super::super::spmm_times::LengthSums;
    use super::*;
    use crate::device::{CsrSource, Device, DeviceVec, Stream};
    use crate::formats::{Layout, ResidentMatrix, SpmmData, SpmmShape};
    use crate::matrix::CsrMatrix;
    use crate::testing::{Oracle, awkward, few_cases, gpu, of_rows, scattered, x_vector};

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
        let data = SpmmData::of(&matrix, ncols, true).unwrap().unwrap();
        check_products(device, a, name, &COUNTS, |stream, count, x, y| {
            let shape = SpmmShape { count, ncols, nrows, layout: Layout::RowMajor };
            matrix.enqueue_spmm(&data, stream, shape, x, y, None).unwrap();
        });
    }

    /// Checks products of some of each number of vectors, and that the bits of all repeat.
    fn check_products<T: Scalar>(
        device: &Device,
        a: &CsrMatrix<T>,
        name: &str,
        counts: &[usize],
        mut multiply: impl FnMut(&Stream, usize, &DeviceVec<T>, &mut DeviceVec<T>),
    ) {
        let (nrows, ncols) = (a.nrows(), a.ncols());
        let stream = Stream::new(device).unwrap();
        let x = x_vector::<T>(ncols);
        let vector = |v: usize| x.iter().map(move |x| T::from_f64(x.to_f64() * (v + 1) as f64));
        for &count in counts {
            let vectors: Vec<Vec<T>> = (0..count).map(|v| vector(v).collect()).collect();
            let rows = (0..ncols).flat_map(|i| vectors.iter().map(move |x| x[i]));
            let x = DeviceVec::from_slice(device, &rows.collect::<Vec<T>>()).unwrap();
            let mut product = || {
                let nothing = vec![T::from_f64(f64::NAN); count * nrows];
                let mut y = DeviceVec::from_slice(device, &nothing).unwrap();
                multiply(&stream, count, &x, &mut y);
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

    /// Rows without entries, short ones, and some of many blocks, in several waves.
    fn large<T: Scalar>() -> CsrMatrix<T> {
        let lengths = [0, 1, 9, 2, 40, 3, 0, 4, 6, 5];
        scattered(500_000, 70_000, move |row| match row % 20_011 {
            7 => 30_000,
            8 | 12_000 => 600,
            _ => lengths[row % lengths.len()],
        })
    }

    /// Runs of rows with the same columns, some without entries, and the number of their i-nodes.
    /// Two runs differ only in their last columns.
    fn alike<T: Scalar>(runs: usize) -> (CsrMatrix<T>, usize) {
        let count = |run: usize| [3, 3, 6, 1, 2, 4, 9, 5][run % 8];
        let lengths = [25, 30, 40, 0, 31, 28, 45];
        let rows = (0..runs).flat_map(|run| {
            let length = lengths[run / 2 % lengths.len()].max(run % 2);
            let first = move |k| if k + 1 < length { run / 2 * 2 } else { run };
            let cols = (0..length).map(move |k| (first(k) * 7 + k * 13) % 999);
            std::iter::repeat_n(cols, count(run))
        });
        (of_rows(1001, rows), (0..runs).map(|run| count(run).div_ceil(3)).sum())
    }

    /// Bits of rows with the columns of the row before them.
    fn repeats_of<T: Scalar>(a: &CsrMatrix<T>) -> Vec<u32> {
        let row = |row: usize| &a.col_idx()[a.row_ptr()[row]..a.row_ptr()[row + 1]];
        let mut repeats = vec![0; a.nrows().div_ceil(32)];
        let repeated = (1..a.nrows()).filter(|&i| row(i) == row(i - 1));
        repeated.for_each(|i| repeats[i / 32] |= 1u32 << (i % 32));
        repeats
    }

    #[test]
    fn rows_alike_are_as_many_as_their_inodes() {
        for runs in [1, 40, 700, 4000] {
            let (a, count) = alike::<f64>(runs);
            let inodes = inodes_of(a.row_ptr(), &repeats_of(&a)).unwrap();
            assert_eq!(inodes.len(), count + 1, "{runs}");
        }
    }

    #[test]
    fn lengths_and_rows_alike_are_measured_on_the_gpu() {
        let Some(Device::Cuda(gpu)) = gpu() else { return };
        let lengths = [0, 1, 4, 9, 31, 2, 70, 3, 150, 5, 5, 5];
        let unlike = scattered::<f64>(10_003, 700, |row| lengths[row * row % lengths.len()]);
        for a in [unlike, alike(1).0, alike(700).0] {
            let source = CsrSource::upload(a.view(), *gpu).unwrap();
            let packed = DeviceCsr::from_device(CsrPlan::Balanced, &source).unwrap();
            let (measured, bits) = measure(&packed.matrix).unwrap();
            let lengths: Vec<u32> =
                a.row_ptr().windows(2).map(|row| (row[1] - row[0]) as u32).collect();
            let repeats = repeats_of(&a);
            let is_repeated = |&row: &usize| repeats[row / 32] >> (row % 32) & 1 == 1;
            let repeated =
                (0..a.nrows()).filter(is_repeated).map(|row| u64::from(lengths[row])).sum();
            assert_eq!(measured, LengthSums { repeated, ..LengthSums::of(lengths) });
            assert_eq!(bits.to_vec().unwrap(), repeats);
        }
        // Many rows alike have a table of i-nodes, if tables are allowed.
        let source = CsrSource::upload(alike::<f64>(4000).0.view(), *gpu).unwrap();
        let packed = DeviceCsr::from_device(CsrPlan::Balanced, &source).unwrap();
        let bytes = |has_tables| RowSpmm::of(&packed.matrix, has_tables).unwrap().bytes();
        assert!(bytes(true) > 0 && bytes(false) == 0);
    }

    /// Checks few, some and many rows alike.
    fn check_alike<T: Scalar>(device: &Device) {
        for runs in [1, 40, 700, 4000].into_iter().filter(|&runs| runs < 700 || !few_cases()) {
            check(device, &alike::<T>(runs).0, &format!("{runs} runs of rows"));
        }
    }

    /// Checks rows and i-nodes with every number of groups for each, whichever is the fastest.
    fn check_splits<T: Scalar>(device: &Device) {
        let Device::Cuda(gpu) = device else { unreachable!("a GPU") };
        let lengths = [0, 1, 4, 9, 31, 2, 70, 3, 150, 5];
        let unlike = scattered::<T>(1003, 700, |row| lengths[row % lengths.len()]);
        for (name, a) in [("unlike", unlike), ("alike", alike(40).0)] {
            let source = CsrSource::upload(a.view(), *gpu).unwrap();
            let matrix = Arc::new(DeviceCsr::from_device(CsrPlan::Balanced, &source).unwrap());
            let inodes = inodes_of(a.row_ptr(), &repeats_of(&a)).unwrap();
            for split in 0..=5_u32 {
                let split_of =
                    |lane_shift: u32| split.clamp(u32::from(lane_shift == 0), 5 - lane_shift);
                let rows = std::array::from_fn(|shift| KernelChoice::Rows {
                    split: split_of(GroupShape::of_rows(shift as u32).lane_shift),
                });
                let alike = std::array::from_fn(|shift| match shift {
                    0 => rows[0],
                    shift => KernelChoice::Inodes { split: split_of(shift as u32) },
                });
                for kernels in [rows, alike] {
                    let rows = RowSpmm::load(&matrix.matrix, kernels, Some(&inodes)).unwrap();
                    let (matrix, rows) = (matrix.clone(), Some(rows));
                    let spmm = ChunkSpmm { single: None, groups: None, rows, matrix };
                    check_spmm(device, &spmm, &a, &format!("{name}, {kernels:?}"));
                }
            }
        }
    }

    /// Checks products of even numbers of vectors.
    fn check_spmm<T: Scalar>(device: &Device, spmm: &ChunkSpmm<T>, a: &CsrMatrix<T>, name: &str) {
        let counts = [2, 6, 10, 16, 24, 40, 70];
        check_products(device, a, name, &counts, |stream, count, x, y| {
            let (x, y, stride, row, vector) = (x.ptr(), y.ptr(), count, count, 1);
            let vectors = DeviceVectors { x, stride, y, row, vector, count };
            // SAFETY: multivectors of this matrix and this number of vectors.
            unsafe { spmm.multiply(stream.queue().unwrap(), vectors).unwrap() };
        });
    }

    fn check_all<T: Scalar>() {
        let Some(device) = gpu() else { return };
        check_alike::<T>(device);
        check_splits::<T>(device);
        awkward::<T>().iter().for_each(|(name, a)| check(device, a, name));
        if !few_cases() {
            let large = large::<T>();
            let items = (large.nrows() + large.nnz()) as u64;
            assert!(items > 2 * 660 * MOST[0], "{items}");
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
    fn waves_of_groups_are_complete() {
        let cuts = |items| group_cuts(items, 660, 1984);
        let blocks = |items: u64| cuts(items).count(0, items);
        let [single, whole] = [528, 660].map(|blocks| blocks * 1984);
        let all = [single, single + 1, whole, whole + 1, 3 * whole, 10_000_000].map(blocks);
        assert_eq!(all, [528, 660, 660, 1319, 1980, 5280]);
        assert_eq!([0, 1, 5000, 528 * 128].map(|items| cuts(items).spacing), [LEAST; 4]);
        for items in (0..40_000_000).step_by(100_003) {
            let Cuts { spacing, max_move } = cuts(items);
            let waves = blocks(items) as f64 / 660.0;
            let of_last = waves - (waves.ceil() - 1.0);
            assert!(of_last > 0.7 || spacing == LEAST, "{items}: {waves} waves of {spacing}");
            assert!((LEAST..=1984).contains(&spacing) && max_move * 16 <= spacing);
        }
        // An end mark has 16 bits, and the launch needs no permission to use its shared memory.
        let capacity = capacity(cuts(whole));
        assert!(capacity <= 1 << 16 && shared_bytes::<f64>(capacity) <= 38 << 10, "{capacity}");
        let kernel = include_str!("../../../../kernels/csr_groups.cuh");
        assert!(kernel.contains(&format!("constexpr u32 MOST_LANES = {MOST_LANES};")));
    }
}
