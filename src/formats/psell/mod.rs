//! Packed SELL: SELL in slices of 32 rows, with columns and values encoded losslessly in as few
//! bytes as possible, and without padding for short rows.
//!
//! - `sigma:S`: rows are sorted by length within windows of S rows; 1 keeps the order of the
//!   matrix, which preserves diagonals.
//! - `values:packed`: 8-bit codes if the matrix has at most 256 values, none if it has one; exact,
//!   compared by their bits.
//! - `values:bf16`, `values:f16`, `values:f32`: the same numbers in fewer bytes if that type holds
//!   all of them exactly, otherwise unchanged. They are widened when they are read, so that SpMVs
//!   are computed in the type of the matrix.
//!   [`SparseOpBuilder::value_precision`](crate::SparseOpBuilder::value_precision) rounds values so
//!   that the type holds them.
//! - `group:4`: four consecutive slots of a row together, for the loads of a GPU; on the CPU slower
//!   than the default, `group:1`.
//! - `split:L`: rows with more than L entries are long rows, which are stored separately and shared
//!   by threads; by default those that exceed the capacity of a slice.
//! - `warps:1`: on a GPU one warp per slice, even if there are so few slices that several warps
//!   would share each: the bits of a row then depend on the rows of its slice alone.
//!
//! ```text
//! 3 . 1 .     a slice of 32 rows, of which there are 4, sorted by length:
//! . . . .     perm     2 0 3 1
//! . 2 4 1     header   value_at 0, index_at 0, base 0, 8-bit indices, 1 column a step, 0 of 3 full
//! 1 . . 1     index    7 7 1 0 (masks: the lanes with a 1st, 2nd, 3rd entry)   1 0 0  2 2 3  3
//!             values   2 3 1  4 1 1  1
//!
//! x x . . .   rows in their order, along diagonals; here a slice of three rows, not of 32:
//! x x x . .   header   value_at 0, index_at 0, base 0, diagonal, 2 of 3 slots full
//! . x x x .   index    0 1 _ _ (deltas of all lanes)   -1 _ _ _ (other)   2+4 _ _ _ (its lanes)
//! ```
//!
//! A slice of 32 rows, the lanes, has a `Header` of 16 bytes and a range in each of two arrays,
//! the values and the index. Both ranges begin at multiples of 16 bytes. The gaps between ranges
//! are zero, and so are 16 bytes behind the last value. Besides these and the filled lanes of long
//! rows a slice has as many values as its rows have entries. The lanes past the last row are empty.
//!
//! *Diagonal* slices consist of rows in natural order with strictly ascending columns. Their slots
//! are in diagonals: a delta (column - row) and the mask of lanes with an entry. The index holds
//! the deltas (i32) of the diagonals that every lane has, ascending, those of the others,
//! ascending, and the masks of the others, each of the three padded to 16 bytes. Slices with the
//! same diagonals share their index.
//!
//! *Relative* slices have rows packed to the left. A step has 1, 2 or 3 consecutive columns of each
//! of its rows. Their number is the same in all steps of a slice and as large as possible. A lane
//! has one index per step: its first column, in 8 or 16 bits relative to the slice's smallest
//! column, or in 32 bits relative to 0. The index holds the masks of the steps that some lanes
//! lack, padded to 16 bytes, then the indices.
//!
//! Values have the same order in both. The slots that every lane has come first: groups of `group`
//! slots lane by lane, those of a lane adjacent, then the remaining ones slot by slot. The other
//! slots follow slot by slot, those of their lanes without gaps. Indices have the order of values,
//! one per step. In steps with several slots, `group` counts as 1.
//!
//! Values are stored in one of these forms: in the matrix's own type; with `packed`, as codes of a
//! dictionary of up to 256 values (the array always has 256), or not at all if all have the same
//! bits; or in a narrower type that holds all of them exactly, and widened when they are read.
//!
//! A slice gets the kind with the fewest bytes of index, and a diagonal one in a tie. It is
//! diagonal only with at most twice as many slots as its longest row has entries, and only if every
//! row number is also a column number, so that a lane that lacks a slot can load that column.
//!
//! Rows longer than the plan's `split` are stored outside of the slices, as in CSR, cut into
//! pieces. They have no entries in their slice, and the sum of their lane is not used. If at most
//! eight lanes of a slice have long rows, these lanes are filled with bytes of zero where all other
//! lanes have an entry, so that these slots need no mask; in a diagonal slice only if the column of
//! the slot exists in every filled lane. The working memory on a GPU is a sum and a counter for
//! every piece.
//!
//! Slices and σ: Kreutzer, Hager, Wellein, Fehske & Bishop, SIAM J. Sci. Comput. 36 (2014).
//! Indices in fewer bits: Willcock & Lumsdaine, ICS'06. Diagonals: Bell & Garland, SC'09, §4.1,
//! here for each slice separately.
#![doc = include_str!("operations.md")]

mod constants;
mod cpu;
mod cuda;
mod host;
mod index;
mod layout;
mod long;
mod order;
mod pack;
mod plan;
mod probe;
mod sample;
mod sizes;
mod slice;
mod source;
mod unpack;
mod work;

pub use super::ValueEncoding;
pub use plan::PsellPlan;
pub(crate) use probe::SliceProbe;

use super::encoded::{Coder, DeviceValues, Sink, Stored, map_array, with_slack};
use super::{
    Costs, DeviceMatrix, Format, HostMatrix, HostValueArrays, NoValueSlots, PlanArgs,
    PlanProperties, Target, Work, sell,
};
use crate::analysis::{Analysis, FormatProbe, Measure};
use crate::device::{CsrSource, Gpu, Module};
use crate::matrix::{CsrMatrix, CsrView};
use crate::memory::try_zeroed;
use crate::{Error, Scalar, ScalarKind};
use cuda::DevicePsell;
use host::HostPsell;
use index::{LANES, SliceShape};
use order::Order;
use plan::Packing;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The packed SELL format.
pub(crate) struct Psell;

/// Candidate windows: no sorting, which preserves diagonals, and a window that fills slices.
const SIGMAS: [u32; 2] = [1, 512];

/// Least ratio of the bytes of columns of plain SELL to those of packed SELL at which packed SELL
/// is a candidate.
const MIN_GAIN: f64 = 1.1;

/// True if a plan with unchanged values and without separate long rows has column indices as long
/// as those of plain SELL (within [`MIN_GAIN`]). Plain SELL without padding is then faster on a
/// GPU. An H200 took 255 µs with it against 266 for the gallery's `uniform` in `f64`.
fn saves_no_index_bytes(plan: &PsellPlan, analysis: &Analysis) -> bool {
    let packing = plan.packing();
    if packing.values != ValueEncoding::Plain || packing.split < Packing::MAX_SPLIT {
        return false;
    }
    let sizes = SliceProbe::of(analysis).sizes(&analysis.rows, plan.order(), packing.split);
    sizes.index_bytes as f64 * MIN_GAIN >= (sizes.entries * size_of::<u32>() as u64) as f64
}

impl Format for Psell {
    type Plan = PsellPlan;
    type Host<T: Scalar> = HostPsell<T>;

    const EXAMPLES: &'static [&'static str] = &[
        "psell(sigma:1)",
        "psell(sigma:1,group:4)",
        "psell(sigma:1,group:4,warps:1)",
        "psell(sigma:1,values:packed,group:4,split:60)",
        "psell(sigma:1,values:packed,group:4,split:9)",
        "psell(sigma:512)",
        "psell(sigma:40,group:4,split:4)",
        "psell(sigma:512,values:packed)",
        "psell(sigma:100000)",
        "psell(sigma:100000,values:packed,group:4)",
        "psell(sigma:1,values:bf16,group:4)",
        "psell(sigma:1,values:f16,group:4,split:9)",
        "psell(sigma:1,values:f32,split:60)",
        "psell(sigma:512,values:f16)",
        "psell(sigma:100000,values:f32,group:4,split:9)",
    ];
    const PROBE: Option<FormatProbe> = Some(FormatProbe {
        measure: Measure::BeforeStructure(|a, rows| {
            let measure = SliceProbe::sample(a, rows)?;
            Ok(Box::new(|probes| {
                probes.add(measure()?);
                Ok(())
            }))
        }),
        kernels: &[(sample::FILE, "psell_encode_slices"), (sample::FILE, "psell_encode_windows")],
    });

    #[cfg(test)]
    fn any_plan() -> proptest::strategy::BoxedStrategy<String> {
        tests::any_plan()
    }

    fn parse(args: &mut PlanArgs<'_>) -> Result<PsellPlan, Error> {
        PsellPlan::parse(args)
    }

    fn candidates(analysis: &Analysis, _: Costs<'_>, on: Target) -> Vec<PsellPlan> {
        // Rows of one length need no sorting.
        let sigmas = SIGMAS.iter().filter(|&&sigma| !analysis.rows.is_even() || sigma == 1);
        let plans = sigmas.flat_map(|&sigma| {
            let packings = plan::candidates(analysis, on).into_iter();
            packings.map(move |packing| PsellPlan::of(sigma, packing))
        });
        let any_filled = on == Target::Gpu && sell::is_filled(analysis, on);
        plans.filter(|plan| !any_filled || !saves_no_index_bytes(plan, analysis)).collect()
    }

    fn work(plan: &PsellPlan, analysis: &Analysis, scalar: ScalarKind) -> Work {
        work::of(plan.order(), plan.packing(), analysis, scalar)
    }

    fn estimate_bounds(_: &PsellPlan, analysis: &Analysis) -> Result<RangeInclusive<f64>, String> {
        // The slices of a large matrix are estimated from a sample.
        Ok(if SliceProbe::of(analysis).is_exact() { 1.0..=1.0 } else { 0.9..=1.1 })
    }

    fn cost_key(plan: &PsellPlan, _: Target) -> &'static str {
        plan.cost_key()
    }

    fn fallback_cost_keys(key: &str) -> Vec<String> {
        plan::fallback_cost_keys(key)
    }

    fn spmm_plan(
        analysis: &Analysis,
        on: Target,
        _: usize,
        fastest: Option<&PsellPlan>,
    ) -> Option<PsellPlan> {
        (on == Target::Gpu).then(|| PsellPlan::for_spmm(analysis, fastest))
    }

    fn own_spmm_units(analysis: &Analysis, on: Target) -> Option<usize> {
        // With fewer it is not much slower.
        (on == Target::Gpu).then(|| {
            let slow = PsellPlan::is_slow_for_spmm(analysis) || PsellPlan::has_inodes(analysis);
            if slow { 2 } else { PsellPlan::SPMM_UNITS }
        })
    }

    fn estimate_us(plan: &PsellPlan, analysis: &Analysis, work: &Work) -> f64 {
        work::estimate_us(plan.packing(), analysis, work)
    }

    fn pack<T: Scalar>(plan: &PsellPlan, a: CsrView<'_, T>) -> Result<HostPsell<T>, Error> {
        HostPsell::pack(a, plan.order(), plan.packing())
    }

    fn gpu_kernels<T: Scalar>(
        plan: &PsellPlan,
        analysis: &Analysis,
        bytes: u64,
        gpu: Gpu,
    ) -> Vec<(Module, String)> {
        let own = cuda::expected_kernel::<T>(plan.packing(), analysis, bytes, gpu);
        let modules = pack::MODULES.map(|module| (module.into(), String::new()));
        let packing = modules.into_iter().filter(|_| Self::properties(plan).packs_on_device);
        let distinct = (plan.packing().values == ValueEncoding::Packed)
            .then(|| Analysis::distinct_kernel::<T>());
        packing.chain(distinct).chain([own]).collect()
    }

    fn properties(plan: &PsellPlan) -> PlanProperties {
        PlanProperties {
            packs_on_device: pack::supports(plan.packing()),
            values: plan.values(),
            packing_like: plan.packing_like(),
            ..PlanProperties::default()
        }
    }

    fn pack_on_device<T: Scalar>(
        plan: &PsellPlan,
        source: &CsrSource<T>,
    ) -> Result<Option<Arc<dyn DeviceMatrix<T>>>, Error> {
        let packed = pack::pack(source, plan.order(), plan.packing())?;
        Ok(packed.map(|packed| Arc::new(packed) as Arc<dyn DeviceMatrix<T>>))
    }
}

impl<T: Scalar> HostMatrix<T> for HostPsell<T> {
    fn spmv(&self, x: &[T], y: &mut [T]) {
        self.product(x, y);
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        self.to_csr()
    }

    fn values_mut(&mut self) -> HostValueArrays<'_, T> {
        let long =
            self.long.as_mut().map(|long| map_array!(&mut long.values, array => &mut array[..]));
        let own = map_array!(&mut self.values, array => &mut array[..]);
        Ok(own.and(long, &mut self.dictionary))
    }

    fn slots(&self, a: CsrView<'_, T>) -> Result<Result<Vec<u32>, NoValueSlots>, Error> {
        let own = self.values.per(self.values.bytes());
        let long = self.long.as_ref().map_or(0, |long| long.col_idx.len());
        if u32::try_from(own + long).is_err() {
            return Ok(Err(NoValueSlots::TOO_MANY));
        }
        let (row_ptr, mut slots) = (a.row_ptr(), try_zeroed(a.nnz())?);
        for s in 0..self.headers.len() {
            let slice = self.slice(s);
            slice.visit_values(self.group, |lane, entry, at| {
                slots[row_ptr[self.row(s, lane)] + entry] = (slice.first_value + at) as u32;
            });
        }
        for (row, entries) in self.long.iter().flat_map(|long| long.rows()) {
            for (place, at) in slots[row_ptr[row]..row_ptr[row + 1]].iter_mut().zip(entries) {
                *place = (own + at) as u32;
            }
        }
        Ok(Ok(slots))
    }

    fn matrix_bytes(&self) -> u64 {
        self.bytes()
    }

    fn upload(&self, gpu: Gpu) -> Result<Box<dyn DeviceMatrix<T>>, Error> {
        Ok(Box::new(DevicePsell::new(self, gpu)?))
    }
}

/// Header of a slice; 16 bytes, read by a GPU at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Header {
    /// Position of its values, in units of 16 bytes; 0 if none are stored.
    pub(crate) value_at: u32,
    /// Position of its index, in units of 16 bytes.
    pub(crate) index_at: u32,
    /// Column that indices are relative to.
    pub(crate) base: u32,
    /// Packed shape; see [`SliceShape::to_bits`].
    pub(crate) shape: u32,
}

/// Size of the tables of `slices` slices in bytes, with or without the masks of lanes with long
/// rows.
pub(crate) const fn slice_table_bytes(slices: u64, skip: bool) -> u64 {
    let skip = if skip { size_of::<u32>() } else { 0 };
    slices * (size_of::<Header>() + skip) as u64
}

impl Header {
    fn shape(&self) -> SliceShape {
        SliceShape::from_bits(self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::gallery;
    use proptest::prelude::*;

    /// Spelling of any plan.
    pub(super) fn any_plan() -> BoxedStrategy<String> {
        let precisions = ["", ",values:packed", ",values:bf16", ",values:f16", ",values:f32"];
        let values = prop::sample::select(precisions.to_vec());
        let group = prop::sample::select(vec![1, 4]);
        let sigma = prop_oneof![2 => 1u32..100, 1 => Just(1), 1 => Just(u32::MAX - 1)];
        let text = (sigma, values, group, 1u32..40).prop_map(|(sigma, values, group, split)| {
            format!("psell(sigma:{sigma}{values},group:{group},split:{split})")
        });
        text.boxed()
    }

    #[test]
    fn columns_as_long_as_those_of_sell_are_no_candidates_on_a_gpu() {
        let packed = |spec: &str, on| {
            let matrix: CsrMatrix<f32> = spec.parse::<gallery::Spec>().unwrap().generate().unwrap();
            let plans = Psell::candidates(&Analysis::of(matrix.view()), None, on);
            plans.iter().map(PsellPlan::sigma).collect::<Vec<_>>()
        };
        // Columns spread over 300,000 leave no slice a narrow index.
        let wide = "uniform,rows=300000";
        assert!(packed(wide, Target::Gpu).is_empty());
        assert!(!packed(wide, Target::Cpu).is_empty());
        assert_eq!(packed("poisson2d,n=300", Target::Gpu), [1, 1, 512, 512]);
    }
}
