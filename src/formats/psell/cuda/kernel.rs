//! Choice of the kernel of a packed SELL matrix.

use super::super::constants::BATCH_STEPS;
use super::super::index::LANES;
use super::super::plan::SliceWarps;
use super::super::{Header, Packing, ValueEncoding};
use crate::analysis::{Analysis, Distinct};
use crate::device::{Buffer, Gpu, Module, Residency};
use crate::{Error, Precision, Scalar, ScalarKind};

/// Time of a batch of steps from the L2, in microseconds.
const BATCH_US: f64 = 0.5;

/// Time of a batch of steps from memory, in microseconds.
const MEMORY_BATCH_US: f64 = 1.0;

/// Time of one more warp in the grid, in microseconds.
const WARP_US: f64 = 0.36e-3;

/// Bytes that the memory delivers in a microsecond.
const BYTES_PER_US: f64 = 3.5e6;

/// Size of a matrix of which a part is streamed on an H200. A larger matrix is streamed by one warp
/// per slice, unless its critical path takes longer than reading its bytes.
const STREAMED_BYTES: u64 = 38_000_000;

/// Largest number of warps that share a slice, as a binary logarithm: the warps of a block.
const MAX_SHIFT: u32 = 3;

/// Number of slices above which there are enough warps, and the headers are not read.
const MANY_SLICES: usize = 1 << 15;

/// Form in which values are stored, after which modules are named.
#[derive(Debug, Clone, Copy)]
pub(super) enum ValueForm {
    Plain,
    /// Codes of a dictionary.
    Coded,
    /// One value, which all entries have.
    Same,
    Narrow(Precision),
}

impl ValueForm {
    /// Form that a matrix is expected to have. A narrower precision is assumed to hold its values.
    fn expected(values: ValueEncoding, distinct: Distinct) -> Self {
        match (values, distinct) {
            (ValueEncoding::Packed, Distinct::Exactly(0 | 1)) => Self::Same,
            (ValueEncoding::Packed, Distinct::Exactly(_)) => Self::Coded,
            (ValueEncoding::Narrow(precision), _) => Self::Narrow(precision),
            _ => Self::Plain,
        }
    }

    /// Names of the modules for SpMV and for SpMM.
    const fn modules(self) -> [&'static str; 2] {
        macro_rules! names {
            ($form:literal) => {
                [concat!("psell_spmv_", $form), concat!("psell_spmm_", $form)]
            };
        }
        match self {
            Self::Plain => names!("plain"),
            Self::Coded => names!("coded"),
            Self::Same => names!("same"),
            Self::Narrow(Precision::Bf16) => names!("bf16"),
            Self::Narrow(Precision::F16) => names!("f16"),
            Self::Narrow(Precision::F32) => names!("f32"),
        }
    }

    /// Name of the module for SpMV.
    pub(super) const fn spmv_module(self) -> &'static str {
        self.modules()[0]
    }

    /// Name of the module for SpMM.
    pub(super) const fn spmm_module(self) -> &'static str {
        self.modules()[1]
    }
}

/// Binary logarithm of the number of warps that share each slice of a matrix.
///
/// A warp processes its steps in batches, one after another; more warps make the critical path
/// shorter and the grid larger. Measured on an H200 over 28 matrices of 30,000 to 5 million
/// entries: a batch takes 0.5 µs, most of it the latency of loading an index and the element it
/// refers to, and 1000 more warps take 0.36 µs. The rule is the same on every GPU, because the
/// bits of products depend on it.
pub(super) fn warps_shift_of(headers: &Buffer<Header>, bytes: u64) -> Result<u32, Error> {
    if headers.len() > MANY_SLICES {
        return Ok(0);
    }
    let steps = headers.to_vec()?.iter().map(|header| header.shape().width).max().unwrap_or(0);
    Ok(warps_shift(headers.len(), steps, bytes))
}

/// Binary logarithm of the number of warps that share each slice of a matrix of `bytes` bytes in
/// `slices` slices, the widest of which has `steps` steps.
pub(crate) fn warps_shift(slices: usize, steps: usize, bytes: u64) -> u32 {
    let critical_path_us = steps.div_ceil(BATCH_STEPS) as f64 * MEMORY_BATCH_US;
    if slices > MANY_SLICES
        || (bytes > STREAMED_BYTES && critical_path_us < bytes as f64 / BYTES_PER_US)
    {
        return 0;
    }
    let cost = |shift: &u32| {
        let batches = steps.div_ceil(BATCH_STEPS << shift) as f64;
        batches * BATCH_US + (slices << shift) as f64 * WARP_US
    };
    (0..=MAX_SHIFT).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(0)
}

/// Largest number of steps of a warp, for a matrix as above: all steps of a slice, or its share of
/// them in whole batches.
pub(crate) fn steps_of_warp(slices: usize, steps: usize, bytes: u64) -> usize {
    match warps_shift(slices, steps, bytes) {
        0 => steps,
        shift => BATCH_STEPS * steps.div_ceil(BATCH_STEPS << shift),
    }
}

/// Variant of module `name`, and residency, for slices shared by `1 << shift` warps.
pub(super) fn module_of(
    name: &'static str,
    shift: u32,
    residency: Residency,
) -> (Module, Residency) {
    match shift {
        0 => (Module::of(name, residency).with_needed_loads(residency), residency),
        _ => (Module::from(name).shared(), residency.without_streaming()),
    }
}

/// Name of the kernel in a module. `is_diagonal` if all slices are diagonal.
pub(super) fn kernel_name(
    module: &str,
    is_diagonal: bool,
    group: usize,
    scalar: ScalarKind,
) -> String {
    let diagonal = if is_diagonal { "_diagonal" } else { "" };
    format!("{module}{diagonal}_v{group}_{scalar}")
}

/// Kernel that a matrix of `bytes` bytes is expected to need.
pub(crate) fn expected_kernel<T: Scalar>(
    packing: Packing,
    analysis: &Analysis,
    bytes: u64,
    gpu: Gpu,
) -> (Module, String) {
    /// Share of shifted entries from which on slices are expected to be diagonal.
    const DIAGONAL: f64 = 0.95;
    let structure = &analysis.structure;
    let (nrows, ncols) = (analysis.rows.nrows, analysis.rows.ncols);
    let module = ValueForm::expected(packing.values, structure.distinct_values).spmv_module();
    let steps = (analysis.rows.max as usize).min(packing.split as usize);
    let shift = match packing.warps {
        SliceWarps::One => 0,
        SliceWarps::Auto => warps_shift(nrows.div_ceil(LANES), steps, bytes),
    };
    let residency = Residency::of::<T>(gpu, bytes, (nrows, ncols));
    let is_diagonal = structure.shifted > DIAGONAL;
    let name = kernel_name(module, is_diagonal, packing.group as usize, T::KIND);
    (module_of(module, shift, residency).0, name)
}
