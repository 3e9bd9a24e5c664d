//! CSR, compressed sparse rows: the entries row by row, and the offset of each row.
//!
//! ```text
//! 3 . 1 .     row_ptr  0 2 2 5 7
//! . . . .     col_idx  0 2 1 2 3 0 3
//! . 2 4 1     values   3 1 2 4 1 1 1
//! 1 . . 1
//! ```
//!
//! Invariants: `row_ptr` has `nrows + 1` offsets rising from 0 to `nnz`; they are 32-bit if
//! `nnz < 2³²` and 64-bit otherwise. Nothing is padded. `csr(balanced)` also stores the
//! beginnings of the GPU chunks: 16 bytes each. If a row is cut, its working memory on a GPU is a
//! sum for every chunk; SpMM of more than a unit of vectors has chunks of its own, and up to 16
//! units for every two or four of them.
//!
//! Source: Saad, *Iterative Methods for Sparse Linear Systems*, 2nd ed., §3.4; Bell & Garland,
//! SC'09, §4.3 (one or several threads per row); Merrill & Garland, SC'16 (equally many nonzeros
//! per task).
#![doc = include_str!("operations.md")]

mod access;
mod chunks;
mod constants;
mod cpu;
mod cuda;
mod spmm;

use super::psell::PsellPlan;
use super::{
    Access, Costs, DeviceMatrix, Format, HostBuffers, HostMatrix, HostValueArrays, Layout,
    PlanArgs, PlanProperties, SpmmShape, Target, ValueArrays, Work, critical_path_us, megabytes,
    millions, slot_bytes, vector_bytes,
};
use crate::analysis::{Analysis, RowStats, Sampler};
use crate::device::cpu::{first_at_least, partition};
use crate::device::{BLOCK, CsrSource, Gpu, Module, WARP};
use crate::matrix::{CsrMatrix, CsrView};
use crate::memory::{listed, try_copied};
use crate::{Error, Scalar, ScalarKind};
use chunks::{ChunkOptions, ChunkSize};
use constants::LANE_ENTRIES;
use std::fmt::{self, Display};
use std::sync::Arc;

/// The CSR format.
pub(crate) struct Csr;

/// Plan of CSR: the summation of a row. A running sum on the CPU is a lane of a warp on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CsrPlan {
    /// `csr(scalar)`, also `csr`: one running sum per row, in the order of its entries. The
    /// textbook loop.
    Scalar,
    /// `csr(vector:W)`: W running sums per row, W one of 2, 4, 8, 16, 32.
    Vector(u32),
    /// `csr(balanced)`: equally many entries per task, on a GPU per chunk; the sums of rows that
    /// are cut are added afterwards.
    Balanced,
}

/// Entries of a row whose additions overlap with those of the rows around it; entries beyond them
/// are dependent additions.
const OVERLAPPED_ADDS: u32 = 16;

/// Numbers of running sums that have a kernel.
const VECTOR_WIDTHS: [u32; 5] = [2, 4, 8, 16, 32];

impl Display for CsrPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scalar => f.write_str("(scalar)"),
            Self::Vector(width) => write!(f, "(vector:{width})"),
            Self::Balanced => f.write_str("(balanced)"),
        }
    }
}

impl Format for Csr {
    type Plan = CsrPlan;
    type Host<T: Scalar> = HostCsr<T>;

    const EXAMPLES: &'static [&'static str] = &[
        "csr(scalar)",
        "csr(vector:2)",
        "csr(vector:4)",
        "csr(vector:8)",
        "csr(vector:16)",
        "csr(vector:32)",
        "csr(balanced)",
    ];

    fn parse(args: &mut PlanArgs<'_>) -> Result<CsrPlan, Error> {
        let scalar = args.flag("scalar")?;
        let vector = args.number("vector")?;
        let balanced = args.flag("balanced")?;
        match (scalar, vector, balanced) {
            (_, None, false) => Ok(CsrPlan::Scalar),
            (false, Some(width), false) if VECTOR_WIDTHS.contains(&width) => {
                Ok(CsrPlan::Vector(width))
            }
            (false, Some(width), false) => Err(args.error(format!(
                "`vector` may be 2, 4, 8, 16 or 32, as in `vector:8`; not {width}"
            ))),
            (false, None, true) => Ok(CsrPlan::Balanced),
            _ => Err(args
                .error("only one of `scalar`, `vector:W` and `balanced` may be given".to_owned())),
        }
    }

    fn gpu_kernels<T: Scalar>(
        plan: &CsrPlan,
        analysis: &Analysis,
        bytes: u64,
        gpu: Gpu,
    ) -> Vec<(Module, String)> {
        cuda::gpu_kernels::<T>(*plan, analysis, bytes, gpu)
    }

    fn candidates(_: &Analysis, _: Costs<'_>, _: Target) -> Vec<CsrPlan> {
        let vectors = VECTOR_WIDTHS.iter().map(|&width| CsrPlan::Vector(width));
        [CsrPlan::Scalar, CsrPlan::Balanced].into_iter().chain(vectors).collect()
    }

    fn work(plan: &CsrPlan, analysis: &Analysis, scalar: ScalarKind) -> Work {
        let (nrows, nnz) = (analysis.rows.nrows as u64, analysis.rows.nnz);
        let size = ChunkSize::of_analyzed(&analysis.rows);
        let chunks = if *plan == CsrPlan::Balanced { size.bytes(nrows, nnz) } else { 0 };
        let by_lanes = |lanes: u32| {
            let blocks = (nrows * u64::from(lanes)).div_ceil(u64::from(BLOCK));
            (u64::from(analysis.rows.max.div_ceil(lanes)), blocks)
        };
        let (critical_path, overlapping) = match plan {
            CsrPlan::Scalar => by_lanes(1),
            CsrPlan::Vector(lanes) => by_lanes(*lanes),
            CsrPlan::Balanced => (0, size.cuts().count(nrows, nnz)),
        };
        Work {
            matrix_bytes: (nrows + 1) * RowOffsets::width(nnz) + nnz * slot_bytes(scalar) + chunks,
            vector_bytes: vector_bytes(analysis, scalar),
            slots: nnz,
            gathered: super::gathered(nnz, analysis.structure.contiguous),
            dependent_adds: analysis.rows.histogram.entries_beyond(OVERLAPPED_ADDS),
            rows: nrows,
            serial_slots: if *plan == CsrPlan::Balanced { 0 } else { u64::from(analysis.rows.max) },
            critical_path,
            relaunches: u64::from(critical_path > LANE_ENTRIES),
            overlapping,
            ..Work::default()
        }
    }

    fn properties(_: &CsrPlan) -> PlanProperties {
        PlanProperties { keeps_order: true, packs_on_device: true, ..PlanProperties::default() }
    }

    fn spmm_plan(
        analysis: &Analysis,
        on: Target,
        units: usize,
        _: Option<&CsrPlan>,
    ) -> Option<CsrPlan> {
        let slower = units <= PsellPlan::SPMM_UNITS && PsellPlan::is_fast_for_spmm(analysis);
        match on {
            Target::Cpu => Some(CsrPlan::Scalar),
            Target::Gpu => (!slower).then_some(CsrPlan::Balanced),
        }
    }

    fn own_spmm_units(analysis: &Analysis, on: Target) -> Option<usize> {
        (on == Target::Gpu && PsellPlan::is_fast_for_spmm(analysis)).then_some(1)
    }

    fn estimate_us(plan: &CsrPlan, analysis: &Analysis, work: &Work) -> f64 {
        let rows = &analysis.rows;
        let lanes = match plan {
            CsrPlan::Balanced => {
                let columns = millions(work.vector_bytes) * rows.ncols as f64;
                let vectors = (rows.nrows + rows.ncols).max(1) as f64;
                return 1.8 + 0.36 * megabytes(work) + 0.53 * columns / vectors;
            }
            CsrPlan::Scalar => 1,
            CsrPlan::Vector(lanes) => u64::from(*lanes),
        };
        let entries = millions(rows.nnz);
        // Each lane reads lines of its own, in many steps: they do not stay in the L1. All lanes of
        // a warp together read whole lines.
        let steps = if lanes < u64::from(WARP) { rows.mean / lanes as f64 } else { 0.0 };
        let separate =
            0.27 * ((steps - 4.0) / 28.0).clamp(0.0, 4.0) + if steps > 64.0 { 6.0 } else { 0.0 };
        let threads = millions(rows.nrows as u64 * lanes);
        let path = critical_path_us(work, 0.08, 0.05);
        let throughput = 0.16 * megabytes(work) + 4.5 * threads + path + separate * entries;
        1.0 + throughput.max(latency_of_mixed_us(rows, lanes))
    }

    fn cost_key(plan: &CsrPlan, _: Target) -> &'static str {
        match plan {
            CsrPlan::Scalar => "csr.scalar",
            CsrPlan::Vector(2) => "csr.vector2",
            CsrPlan::Vector(4) => "csr.vector4",
            CsrPlan::Vector(8) => "csr.vector8",
            CsrPlan::Vector(16) => "csr.vector16",
            CsrPlan::Vector(_) => "csr.vector32",
            CsrPlan::Balanced => "csr.balanced",
        }
    }

    fn pack<T: Scalar>(plan: &CsrPlan, a: CsrView<'_, T>) -> Result<HostCsr<T>, Error> {
        let columns = a.columns();
        let chunk_options = ChunkOptions::of::<T>(Sampler::Host(columns), columns.row_ptr())?;
        let ptr = a.row_ptr();
        Ok(HostCsr {
            ncols: a.ncols(),
            assignment: HostAssignment::of(*plan, chunk_options, a.nrows(), |row| ptr[row]),
            row_ptr: RowOffsets::new(a.row_ptr())?,
            col_idx: try_copied(a.col_idx())?,
            values: try_copied(a.values())?,
        })
    }

    fn pack_on_device<T: Scalar>(
        plan: &CsrPlan,
        source: &CsrSource<T>,
    ) -> Result<Option<Arc<dyn DeviceMatrix<T>>>, Error> {
        Ok(Some(Arc::new(cuda::DeviceCsr::from_device(*plan, source)?)))
    }
}

/// Assignment of the entries to threads under a plan.
#[derive(Debug)]
struct HostAssignment {
    plan: CsrPlan,
    /// For [`CsrPlan::Balanced`] on a GPU: the partition into chunks.
    chunk_options: ChunkOptions,
    /// Bounds of the tasks: in rows, or in entries for [`CsrPlan::Balanced`].
    tasks: Box<[usize]>,
}

impl HostAssignment {
    /// Assigns the entries of `nrows` rows that begin behind `before(row)` entries.
    fn of(
        plan: CsrPlan,
        chunk_options: ChunkOptions,
        nrows: usize,
        before: impl Fn(usize) -> usize,
    ) -> Self {
        let tasks = match plan {
            CsrPlan::Balanced => partition(before(nrows), 1, |k| k as u64),
            // Beginning and ending a row costs about as much as an entry.
            _ => partition(nrows, 1, |row| (before(row) + row) as u64),
        };
        Self { plan, chunk_options, tasks }
    }

    /// Bytes of the chunk table on a GPU.
    fn chunk_bytes(&self, nrows: u64, nnz: u64) -> u64 {
        if self.plan == CsrPlan::Balanced { self.chunk_options.size.bytes(nrows, nnz) } else { 0 }
    }
}

/// Row offsets of the narrowest possible type.
#[derive(Debug)]
enum RowOffsets {
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
}

impl RowOffsets {
    /// Bytes of one offset in a matrix of `nnz` entries.
    fn width(nnz: u64) -> u64 {
        if u32::try_from(nnz).is_ok() { 4 } else { 8 }
    }

    fn get(&self, row: usize) -> usize {
        match self {
            Self::Narrow(ptr) => ptr[row] as usize,
            Self::Wide(ptr) => ptr[row] as usize,
        }
    }

    /// The first row that begins at entry `entry` or later.
    fn first_row(&self, entry: usize) -> usize {
        first_at_least(self.len() - 1, entry as u64, |row| self.get(row) as u64)
    }

    fn new(row_ptr: &[usize]) -> Result<Self, Error> {
        Ok(match Self::width(row_ptr[row_ptr.len() - 1] as u64) {
            4 => Self::Narrow(listed(row_ptr.iter().map(|&p| p as u32))?),
            _ => Self::Wide(listed(row_ptr.iter().map(|&p| p as u64))?),
        })
    }

    fn to_vec(&self) -> Result<Vec<usize>, Error> {
        match self {
            Self::Narrow(ptr) => listed(ptr.iter().map(|&p| p as usize)),
            Self::Wide(ptr) => listed(ptr.iter().map(|&p| p as usize)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Narrow(ptr) => ptr.len(),
            Self::Wide(ptr) => ptr.len(),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Narrow(ptr) => size_of_val(ptr.as_slice()) as u64,
            Self::Wide(ptr) => size_of_val(ptr.as_slice()) as u64,
        }
    }
}

/// Time on an H200 of the dependent loads of rows that `lanes` lanes share, in µs, where most rows
/// of a warp wait for its longest; else 0. A warp takes as many batches as its longest row, each of
/// them two loads one after the other, after that of the offsets. Where row lengths change, the
/// rows of a warp are drawn from the histogram.
fn latency_of_mixed_us(rows: &RowStats, lanes: u64) -> f64 {
    /// Batches of a warp over those of a row in the mean from which on most rows wait.
    const WAIT: f64 = 2.0;
    /// Warps that an H200 executes at a time.
    const RESIDENT: f64 = 8448.0;
    /// Time of a load, in µs.
    const LOAD_US: f64 = 0.72;
    let (nrows, own) = (rows.nrows.max(1) as f64, (u64::from(WARP) / lanes).max(1));
    let warps = nrows / own as f64;
    let batches = |len: u32| u64::from(len).div_ceil(lanes * LANE_ENTRIES) as f64;
    // Share of the rows up to a length, and the probability that all rows of a warp are.
    let (mut below, mut all_below) = (0.0, 0.0);
    let (mut mean, mut longest) = (0.0, 0.0);
    for &(len, count) in rows.histogram.classes() {
        let share = count as f64 / nrows;
        let up_to: f64 = (below + share).min(1.0);
        let all_up_to = up_to.powi(own as i32);
        mean += share * batches(len);
        longest += (all_up_to - all_below) * batches(len);
        (below, all_below) = (up_to, all_up_to);
    }
    let mixed = (rows.changes as f64 / warps).min(1.0);
    let batches = mixed * longest + (1.0 - mixed) * mean;
    if batches > WAIT * mean { warps / RESIDENT * LOAD_US * (1.0 + 2.0 * batches) } else { 0.0 }
}

/// A CSR matrix.
#[derive(Debug)]
pub(crate) struct HostCsr<T> {
    ncols: usize,
    row_ptr: RowOffsets,
    col_idx: Vec<u32>,
    values: Vec<T>,
    assignment: HostAssignment,
}

impl<T: Scalar> HostMatrix<T> for HostCsr<T> {
    fn spmv(&self, x: &[T], y: &mut [T]) {
        cpu::spmv(self, x, y);
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        let (nrows, row_ptr) = (self.row_ptr.len() - 1, self.row_ptr.to_vec()?);
        let (col_idx, values) = (try_copied(&self.col_idx)?, try_copied(&self.values)?);
        // SAFETY: these are the arrays of a checked matrix.
        Ok(unsafe { CsrMatrix::new_unchecked(nrows, self.ncols, row_ptr, col_idx, values) })
    }

    fn change_plan(&mut self, plan: &super::Plan) -> Result<bool, Error> {
        let super::Plan::Csr(plan) = plan else { return Ok(false) };
        let (chunk_options, nrows) = (self.assignment.chunk_options, self.row_ptr.len() - 1);
        self.assignment =
            HostAssignment::of(*plan, chunk_options, nrows, |row| self.row_ptr.get(row));
        Ok(true)
    }

    fn access(&self) -> Option<&dyn Access<T>> {
        Some(self)
    }

    fn access_mut(&mut self) -> Option<&mut dyn Access<T>> {
        Some(self)
    }

    fn values_mut(&mut self) -> HostValueArrays<'_, T> {
        Ok(ValueArrays::Plain([&mut self.values, &mut []]))
    }

    fn spmm_limit(&self, _: Layout) -> usize {
        usize::MAX
    }

    fn spmm(
        &self,
        shape: SpmmShape,
        x: &[T],
        y: &mut [T],
        buffers: &HostBuffers<T>,
    ) -> Result<(), Error> {
        self.multiply_vectors(shape, x, y, buffers)
    }

    fn matrix_bytes(&self) -> u64 {
        let entries = size_of_val(&*self.col_idx) + size_of_val(&*self.values);
        let (nrows, nnz) = (self.row_ptr.len() as u64 - 1, self.values.len() as u64);
        self.row_ptr.bytes() + entries as u64 + self.assignment.chunk_bytes(nrows, nnz)
    }

    fn upload(&self, gpu: Gpu) -> Result<Box<dyn DeviceMatrix<T>>, Error> {
        Ok(Box::new(cuda::DeviceCsr::new(self, gpu)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::ResidentMatrix;
    use crate::matrix::gallery;
    use crate::testing::{Oracle, chapter, devices, product, x_vector};

    #[test]
    fn the_chapters_matrices() {
        let a = chapter::matrix::<f32>();
        let packed = Csr::pack(&CsrPlan::Scalar, a.view()).unwrap();
        assert_eq!(packed.row_ptr.to_vec().unwrap(), [0, 2, 2, 5, 7]);
        assert_eq!(packed.col_idx, [0, 2, 1, 2, 3, 0, 3]);
        assert_eq!(packed.values, [3.0, 1.0, 2.0, 4.0, 1.0, 1.0, 1.0]);

        let exercise = Csr::pack(&CsrPlan::Scalar, chapter::exercise::<f32>().view()).unwrap();
        assert_eq!(exercise.row_ptr.to_vec().unwrap(), [0, 2, 3, 5, 7]);
        assert_eq!(exercise.col_idx, [0, 2, 2, 1, 2, 0, 3]);
        assert_eq!(exercise.values, [1.0, 7.0, 8.0, 4.0, 3.0, 2.0, 1.0]);
    }

    #[test]
    fn storage_is_two_words_an_entry_and_one_a_row() {
        let a = chapter::matrix::<f32>();
        let work = Csr::work(&CsrPlan::Scalar, &Analysis::of(a.view()), ScalarKind::F32);
        let (m, z) = (4, 7);
        assert_eq!(work.matrix_bytes, 4 * (2 * z + m + 1));
    }

    #[test]
    fn wide_offsets_give_the_same_sums() {
        let text = if cfg!(miri) { "webbase,rows=60" } else { "webbase,rows=3k" };
        let a = text.parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
        let x = x_vector(a.ncols());
        let oracle = Oracle::of(a.view(), &x);
        for text in Csr::EXAMPLES {
            let crate::formats::Plan::Csr(plan) = text.parse().unwrap() else {
                panic!("{text} is not CSR")
            };
            for device in devices() {
                let mut packed = Csr::pack(&plan, a.view()).unwrap();
                packed.row_ptr =
                    RowOffsets::Wide(a.row_ptr().iter().map(|&at| at as u64).collect());
                let resident = ResidentMatrix::on(device, Box::new(packed)).unwrap();
                let y = product(device, &resident, a.nrows(), &x);
                oracle.check(&y).unwrap_or_else(|wrong| panic!("{text} on {device}: {wrong}"));
            }
        }
    }

    #[test]
    fn offsets_widen_only_when_they_must() {
        assert_eq!((RowOffsets::width(u64::from(u32::MAX)), RowOffsets::width(1 << 32)), (4, 8));
        assert_eq!(RowOffsets::new(&[0, 1 << 33]).unwrap().bytes(), 16);
    }
}
