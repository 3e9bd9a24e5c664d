//! The storage formats, one folder each.
//!
//! To add one: create its folder, add its `mod` line and its line in `registry!`. Everything else
//! follows from that line: the name of the format, the spelling of its plans, its candidates, its
//! column in benchmarks and its conformance tests.

mod access;
pub mod blocked;
mod chunks;
mod constants;
pub mod coo;
mod costs;
pub mod csr;
mod device_rows;
mod device_sorting;
mod device_vectors;
pub mod dia;
pub mod ell;
mod encoded;
pub mod hyb;
pub mod jds;
mod pack_source;
mod plan_text;
mod properties;
pub mod psell;
mod registry;
mod resident;
mod row_products;
mod scaled;
mod sectors;
pub mod sell;
mod short_rows;
mod sorting;
mod spmm;
pub mod tiles;
mod update;
mod value_arrays;
mod values;
mod work;

pub(crate) use access::Access;
pub(crate) use chunks::{chunk_count, chunk_rows};
#[doc(hidden)]
pub use costs::{Costs, KernelCosts};
pub(crate) use device_vectors::{DeviceVectors, UnitKernels};
pub use encoded::ValueEncoding;
pub(crate) use pack_source::PackSource;
pub(crate) use plan_text::PlanArgs;
pub(crate) use properties::PlanProperties;
pub(crate) use resident::ResidentMatrix;
pub(crate) use row_products::row_products;
pub(crate) use scaled::Scaler;
pub(crate) use sorting::{rows_by_length, sorted_in_windows};
pub(crate) use spmm::{DeviceSpmm, HostBuffers, SpmmData, SpmmShape, copied_vectors};
pub use spmm::{Layout, Multivector};
pub(crate) use update::Updater;
pub(crate) use value_arrays::{
    Arrays, DeviceValueArrays, HostValueArrays, NoValueSlots, ValueArrays,
};
pub use work::Work;
pub(crate) use work::{
    STREAMS, critical_path_us, gathered, megabytes, millions, scattered, slot_bytes, vector_bytes,
};

use crate::analysis::{Analysis, FormatProbe};
use crate::device::{CsrSource, DeviceSpec, Gpu, Module, Ptr, Queue, Residency, Scaling};
use crate::matrix::{CsrMatrix, CsrView};
use crate::{Error, Scalar, ScalarKind, memory};
#[cfg(test)]
use proptest::prelude::BoxedStrategy;
use std::fmt::{self, Debug, Display};
use std::ops::RangeInclusive;
use std::sync::Arc;

registry::registry! {
    csr => Csr(CsrPlan),
    ell => Ell(EllPlan),
    sell => Sell(SellPlan),
    psell => Psell(PsellPlan),
    jds => Jds(JdsPlan),
    hyb => Hyb(HybPlan),
    coo => Coo(CooPlan),
    tiles => Tiles(TilesPlan),
    blocked => Blocked(BlockedPlan),
    dia => Dia(DiaPlan),
}

/// A storage format. Implemented by the unit struct at the top of each format's folder.
pub(crate) trait Format: 'static {
    /// Parameters of the format: plain data, spelled by `Display` and parsed by [`Format::parse`].
    type Plan: Debug + Clone + PartialEq + Display;
    /// The packed matrix in host memory.
    type Host<T: Scalar>: HostMatrix<T>;

    /// An example of each kind of plan, for help and for the conformance tests.
    const EXAMPLES: &'static [&'static str];

    /// Measurement of features of a matrix that the format alone needs, for its candidates and
    /// their work.
    const PROBE: Option<FormatProbe> = None;

    /// Parses the arguments between the parentheses of a plan's spelling.
    fn parse(args: &mut PlanArgs<'_>) -> Result<Self::Plan, Error>;

    /// Spellings of any plan, for property tests, in addition to the examples with other numbers.
    #[cfg(test)]
    fn any_plan() -> BoxedStrategy<String> {
        crate::testing::any_example(Self::EXAMPLES)
    }

    /// Candidate plans for a matrix on a kind of device, with thresholds by the costs.
    fn candidates(analysis: &Analysis, costs: Costs<'_>, on: Target) -> Vec<Self::Plan>;

    /// Work and memory traffic of one SpMV. Pure, computed without packing, and exact within
    /// [`Format::estimate_bounds`].
    fn work(plan: &Self::Plan, analysis: &Analysis, scalar: ScalarKind) -> Work;

    /// Cost key of the plan on `on`: that of its coefficients in a profile.
    fn cost_key(plan: &Self::Plan, on: Target) -> &'static str;

    /// Cost key of the plan for a matrix with this work, if its kernel depends on the matrix.
    fn cost_key_of(plan: &Self::Plan, on: Target, _: &Work) -> &'static str {
        Self::cost_key(plan, on)
    }

    /// Cost keys of the fallback kernels of one that was not measured, the nearest first.
    fn fallback_cost_keys(_key: &str) -> Vec<String> {
        Vec::new()
    }

    /// Properties of a plan that its parameters decide.
    fn properties(_: &Self::Plan) -> PlanProperties {
        PlanProperties::default()
    }

    /// Least and greatest ratio of the bytes of [`Format::work`] to the packed bytes.
    ///
    /// # Errors
    ///
    /// Reason why the format cannot hold the matrix, if the analysis shows it. [`Format::work`] is
    /// then a lower bound, and packing is [`Error::PlanLimit`].
    fn estimate_bounds(_: &Self::Plan, _: &Analysis) -> Result<RangeInclusive<f64>, String> {
        Ok(1.0..=1.0)
    }

    /// Plan of a second packing for SpMM with at least `_units` units of vectors, if the format
    /// serves as one on such a device, like `_fastest`, predicted to be the fastest for SpMV.
    fn spmm_plan(
        _: &Analysis,
        _: Target,
        _units: usize,
        _fastest: Option<&Self::Plan>,
    ) -> Option<Self::Plan> {
        None
    }

    /// Largest number of units of vectors of an SpMM with the arrays of a plan, if a second packing
    /// is faster for more.
    fn own_spmm_units(_: &Analysis, _: Target) -> Option<usize> {
        None
    }

    /// Time of an SpMV on an H200, in µs: an estimate from exact quantities, bytes, rows, slots
    /// and the critical path. It excludes plans from the candidates (`tuning::bounds`), and is
    /// fitted with `csr(balanced)` to the same matrices.
    fn estimate_us(plan: &Self::Plan, analysis: &Analysis, work: &Work) -> f64;

    /// Packs a matrix.
    ///
    /// # Errors
    ///
    /// [`Error::PlanLimit`] if the format cannot hold the matrix with such parameters.
    fn pack<T: Scalar>(plan: &Self::Plan, a: CsrView<'_, T>) -> Result<Self::Host<T>, Error>;

    /// Kernels, by module and name, that a matrix of `bytes` bytes under the plan is expected to
    /// need on a GPU. Those that are not compiled yet are compiled in parallel, during packing.
    /// Other kernels are compiled at their first use.
    fn gpu_kernels<T: Scalar>(
        _: &Self::Plan,
        _: &Analysis,
        _bytes: u64,
        _: Gpu,
    ) -> Vec<(Module, String)> {
        Vec::new()
    }

    /// Packs a matrix in GPU memory, on that GPU. None if only the host can pack it.
    ///
    /// # Errors
    ///
    /// [`Error::GpuMemory`] and the errors of compiling kernels.
    fn pack_on_device<T: Scalar>(
        _: &Self::Plan,
        _: &CsrSource<T>,
    ) -> Result<Option<Arc<dyn DeviceMatrix<T>>>, Error> {
        Ok(None)
    }
}

/// A matrix packed in one format, in host memory.
pub(crate) trait HostMatrix<T: Scalar>: Debug + Send + Sync + 'static {
    /// `y = A x`; `y` is overwritten without being read. The bits of `y` do not depend on the
    /// number of threads.
    ///
    /// `x` has `ncols` elements and `y` has `nrows`, checked by the caller.
    fn spmv(&self, x: &[T], y: &mut [T]);

    /// Converts the matrix back to CSR, with the entries in their original order.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    fn unpack(&self) -> Result<CsrMatrix<T>, Error>;

    /// Arrays of the values, or the reason why they cannot be replaced.
    fn values_mut(&mut self) -> HostValueArrays<'_, T> {
        Err(NoValueSlots::NO_VALUE_SLOTS)
    }

    /// Slot of every entry of the matrix, `a` in CSR, counted through the arrays of the values; or
    /// the reason why it is unknown.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    fn slots(&self, a: CsrView<'_, T>) -> Result<Result<Vec<u32>, NoValueSlots>, Error> {
        let Some(access) = self.access() else { return Ok(Err(NoValueSlots::NO_VALUE_SLOTS)) };
        if u32::try_from(access.slot_count()).is_err() {
            return Ok(Err(NoValueSlots::TOO_MANY));
        }
        let mut slots = memory::reserved(a.nnz())?;
        (0..a.nrows())
            .for_each(|row| access.visit_row(row, &mut |slot, _, _| slots.push(slot as u32)));
        Ok(Ok(slots))
    }

    /// Changes to another plan that uses the same arrays. False if there is no such plan; nothing
    /// is changed then.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    fn change_plan(&mut self, _: &Plan) -> Result<bool, Error> {
        Ok(false)
    }

    /// Access to single entries, if the format can find them.
    fn access(&self) -> Option<&dyn Access<T>> {
        None
    }

    /// Mutable access to single entries, if the format can find them.
    fn access_mut(&mut self) -> Option<&mut dyn Access<T>> {
        None
    }

    /// Largest number of vectors in a layout for which [`spmm`](Self::spmm) is about as fast as
    /// with a second packing. By default two that are stored one after the other, for the matrices
    /// that `SparseOp::spmm_limit` says: three SpMVs take up to twice as long as SpMM with CSR.
    fn spmm_limit(&self, layout: Layout) -> usize {
        match layout {
            Layout::RowMajor => 0,
            Layout::ColumnMajor => 2,
        }
    }

    /// Computes the SpMM with at most [`spmm_limit`](Self::spmm_limit) vectors; by default one
    /// after the other. `x` and `y` have the lengths given by `shape`; `y` is overwritten without
    /// being read, and its bits do not depend on the number of threads.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`] if there is no memory for a buffer.
    fn spmm(
        &self,
        shape: SpmmShape,
        x: &[T],
        y: &mut [T],
        _: &HostBuffers<T>,
    ) -> Result<(), Error> {
        debug_assert!(shape.layout == Layout::ColumnMajor, "no format multiplies rows like this");
        for v in 0..shape.count {
            let (x, y) = (&x[v * shape.ncols..], &mut y[v * shape.nrows..]);
            self.spmv(&x[..shape.ncols], &mut y[..shape.nrows]);
        }
        Ok(())
    }

    /// Bytes of the packed arrays.
    fn matrix_bytes(&self) -> u64;

    /// Copies the packed matrix to a GPU. A format without GPU kernels keeps the default, which
    /// returns an error, and its plans are not [eligible](PlanProperties::eligible_on_gpu) there.
    ///
    /// # Errors
    ///
    /// [`Error::GpuMemory`] and the errors of compiling kernels; [`Error::DeviceUnavailable`] by
    /// default.
    fn upload(&self, gpu: Gpu) -> Result<Box<dyn DeviceMatrix<T>>, Error> {
        let reason = "this format has no GPU kernels; take another plan, or the CPU".to_owned();
        Err(Error::DeviceUnavailable { device: gpu.to_string(), reason })
    }
}

/// A matrix packed in one format, in GPU memory. Many threads and queues may use it at the same
/// time.
pub(crate) trait DeviceMatrix<T: Scalar>: Debug + Send + Sync + 'static {
    /// Enqueues `y = A x`; `y` is overwritten without being read. Never waits or allocates after
    /// the first SpMV on a queue, unless the format documents otherwise. The caller has locked the
    /// queue: the host runs no task of a rayon pool.
    ///
    /// # Errors
    ///
    /// Errors of the GPU, and those of the format if it has any.
    ///
    /// # Safety
    ///
    /// `x` has `ncols` elements and `y` has `nrows`, both in the memory of the matrix's GPU; they
    /// do not overlap, and they and the matrix live until the SpMV is done.
    unsafe fn spmv(&self, queue: &Queue, x: Ptr<T>, y: Ptr<T>) -> Result<(), Error>;

    /// Enqueues `y = alpha A x + beta y` if the format's kernels have the axpby epilogue, and
    /// returns true if they do; otherwise nothing is enqueued. With `beta = 0` the previous `y`
    /// does not matter, with `alpha = 0` neither `A` nor `x`.
    ///
    /// # Errors
    ///
    /// As [`spmv`](Self::spmv).
    ///
    /// # Safety
    ///
    /// As [`spmv`](Self::spmv); the factors are in the memory of the same GPU, not in `y`, and live
    /// as long.
    unsafe fn spmv_scaled(
        &self,
        _: &Queue,
        _: Ptr<T>,
        _: Ptr<T>,
        _: Scaling<'_, T>,
    ) -> Result<bool, Error> {
        Ok(false)
    }

    /// As [`HostMatrix::change_plan`].
    ///
    /// # Errors
    ///
    /// As [`HostMatrix::upload`].
    fn change_plan(&mut self, _: &Plan) -> Result<bool, Error> {
        Ok(false)
    }

    /// Copies the arrays that it shares with another library.
    ///
    /// # Errors
    ///
    /// As [`HostMatrix::upload`].
    fn copy_borrowed(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Converts the matrix back to CSR, with the entries in their original order.
    ///
    /// # Errors
    ///
    /// Errors of copying from the GPU.
    fn unpack(&self) -> Result<CsrMatrix<T>, Error>;

    /// The same arrays as [`HostMatrix::values_mut`], with their lengths.
    fn values(&self) -> DeviceValueArrays<'_, T> {
        Err(NoValueSlots::NO_VALUE_SLOTS)
    }

    /// Largest number of vectors for which [`spmm`](Self::spmm) has kernels; 0 if the format has
    /// none.
    fn spmm_limit(&self) -> usize {
        0
    }

    /// SpMM with the matrix on its GPU, if the format has kernels for it. Without tables beside the
    /// matrix, products of many vectors may be slow.
    ///
    /// # Errors
    ///
    /// Errors of the GPU and of compiling kernels.
    fn spmm(
        self: Arc<Self>,
        _: Gpu,
        _has_tables: bool,
    ) -> Result<Option<Box<dyn DeviceSpmm<T>>>, Error> {
        Ok(None)
    }

    /// Bytes of the packed arrays in GPU memory.
    fn device_bytes(&self) -> u64;

    /// Share of the arrays that stays in the L2 between SpMVs.
    fn residency(&self) -> Residency;

    /// Numbers and arrays of the matrix as text, to compare two of them; empty by default.
    ///
    /// # Errors
    ///
    /// Errors of copying from the GPU.
    #[cfg(test)]
    fn text(&self) -> Result<String, Error> {
        Ok(String::new())
    }
}

/// Analyses a matrix, with the probes of all formats.
pub(crate) fn analyze<T: Scalar>(a: CsrView<'_, T>) -> Analysis {
    Analysis::with_probes(a, PROBES)
}

/// Kernels that measure a matrix in the memory of a GPU.
pub(crate) fn analysis_kernels<T: Scalar>() -> Vec<(Module, String)> {
    let probes = PROBES.iter().flatten().flat_map(|probe| probe.kernels);
    let probes = probes.map(|&(file, name)| (file.into(), name.to_owned()));
    Analysis::kernels::<T>().into_iter().chain(probes).collect()
}

/// Analyses a matrix in the memory of a GPU, with the same result but without the list of row
/// lengths. The values are there, or once `has_values` returns true, which is false without them.
///
/// # Errors
///
/// Errors of the GPU.
pub(crate) fn analyze_on_gpu<T: Scalar>(
    a: &CsrSource<T>,
    has_values: Option<&dyn Fn() -> bool>,
) -> Result<Analysis, Error> {
    Analysis::on_gpu(a, has_values, PROBES)
}

/// Kinds of device that have plans.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The CPU.
    Cpu,
    /// A GPU.
    Gpu,
}

impl Target {
    /// Returns the kind of a device.
    pub fn of(device: &DeviceSpec) -> Self {
        if device.gpu.is_some() { Self::Gpu } else { Self::Cpu }
    }
}

/// True if vector loads of `x` can often replace gathers: the columns of neighbouring slots are
/// consecutive in a large share of the sampled vectors, as in stencils.
pub(crate) fn follow_across_lanes(col_idx: &[u32]) -> bool {
    /// Width of the narrowest vector that has a kernel.
    const LANES: usize = 8;
    /// Sampling distance in vectors.
    const STRIDE: usize = 16;
    /// Least share of consecutive vectors: the test costs a tenth of what a whole load saves (Zen
    /// 4: 0.04 ns against 0.2 to 0.4 ns per slot).
    const WORTH: f64 = 0.2;
    let (mut counted, mut consecutive) = (0u32, 0u32);
    for lanes in col_idx.chunks_exact(LANES).step_by(STRIDE) {
        counted += 1;
        consecutive += u32::from(lanes.windows(2).all(|w| w[1] == w[0].wrapping_add(1)));
    }
    f64::from(consecutive) > WORTH * f64::from(counted)
}

/// Builds a CSR matrix row by row: `row(i, push)` pushes the columns and values of row `i` in
/// order.
///
/// # Errors
///
/// [`Error::HostMemory`].
pub(crate) fn from_rows<T: Scalar>(
    nrows: usize,
    ncols: usize,
    mut row: impl FnMut(usize, &mut dyn FnMut(u32, T)),
) -> Result<CsrMatrix<T>, Error> {
    let mut row_ptr = memory::reserved(nrows + 1)?;
    let (mut col_idx, mut values) = (Vec::new(), Vec::new());
    row_ptr.push(0);
    for i in 0..nrows {
        let mut pushed = Ok(());
        row(i, &mut |col, value| {
            if pushed.is_ok() {
                pushed = memory::push(&mut col_idx, col);
            }
            if pushed.is_ok() {
                pushed = memory::push(&mut values, value);
            }
        });
        pushed?;
        row_ptr.push(col_idx.len());
    }
    // SAFETY: offsets rise by construction, and packed matrices only hold columns of a checked one.
    Ok(unsafe { CsrMatrix::new_unchecked(nrows, ncols, row_ptr, col_idx, values) })
}
