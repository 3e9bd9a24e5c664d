//! SELL-C-σ, sliced ELL: rows sorted by length within windows of σ, cut into slices of C rows,
//! each slice an ELL of its own.
//!
//! ```text
//! 3 . 1 .     c 2, sigma 4             (_ is padding)
//! . . . .     perm       2 0   3 1
//! . 2 4 1     slice_ptr  0 6 10
//! 1 . . 1     col_idx    1 0 2 2 3 _   0 _ 3 _
//!             values     2 3 4 1 1 _   1 _ 1 _
//!             full       2 0
//! ```
//!
//! Invariants: slice `s` holds rows `perm[c·s ..]`; its slot `k` of lane `l` is at
//! `slice_ptr[s] + k·c + l`; its width is that of its longest row; every lane holds an entry in
//! the slots before `full[s]`; the last slice is padded to `c` lanes. With σ = 1 nothing is sorted
//! and there is no `perm`.
//!
//! Source: Kreutzer, Hager, Wellein, Fehske & Bishop, SIAM J. Sci. Comput. 36 (2014), §4.
#![doc = include_str!("operations.md")]

mod access;
mod cpu;
mod cuda;

use super::{
    Access, Costs, DeviceMatrix, Format, HostMatrix, HostValueArrays, PlanArgs, PlanProperties,
    Target, ValueArrays, Work, critical_path_us, device_rows, megabytes, millions, slot_bytes,
    vector_bytes,
};
use crate::analysis::{Analysis, SliceSums, SortedSlices};
use crate::device::cpu::{Output, PADDING, for_each_task, partition};
use crate::device::{CsrSource, Gpu, Module};
use crate::matrix::{CsrMatrix, CsrView};
use crate::memory::{collected, listed, try_zeroed};
use crate::order;
use crate::parallel;
use crate::{Error, Scalar, ScalarKind};
use std::fmt::{self, Display};
use std::sync::Arc;

/// The SELL-C-σ format.
pub(crate) struct Sell;

/// Plan `sell(c:C,sigma:S)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SellPlan {
    /// Number of rows per slice.
    c: u32,
    /// Number of rows per window sorted by length; 1 sorts nothing.
    sigma: u32,
}

/// Maximum number of rows of a slice: keeps `slice_ptr` meaningful and a slice of 32-bit lanes
/// addressable.
const MAX_C: u32 = 1 << 16;

/// Maximum padding ratio of a candidate: beyond it a plan cannot be the fastest.
const CANDIDATE_PADDING: f64 = 3.0;

/// C of candidates for a CPU: one or two vectors. C of one vector without sorting was the best plan
/// of 1 matrix in 304.
const CPU_CANDIDATE_C: &[u32] = &[16, 32];

/// C of candidates for a GPU, where a warp multiplies a slice. Beyond σ = 512 the savings of
/// sorting hardly pay for scattering `y` (measured).
const GPU_CANDIDATE_C: &[u32] = &[32];

/// No candidate for a CPU.
const GPU_ALONE: SellPlan = SellPlan { c: 32, sigma: 128 };

/// Maximum padding ratio of slices that count as filled.
const FILLED: f64 = 1.1;

impl Default for SellPlan {
    /// `sell(c:32,sigma:512)`.
    fn default() -> Self {
        Self { c: 32, sigma: 512 }
    }
}

impl Display for SellPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(c:{},sigma:{})", self.c, self.sigma)
    }
}

impl SellPlan {
    /// Number of rows per slice.
    pub const fn c(self) -> u32 {
        self.c
    }

    /// Padding of the slices.
    fn slice_sums(self, analysis: &Analysis) -> SliceSums {
        // The sums of the candidate windows are part of the analysis.
        analysis.slices.with(self.c, self.sigma).unwrap_or_else(|| {
            let lengths = &analysis.row_lengths;
            let stride = self.stride(analysis.rows.nrows);
            let sums = parallel::map_ranges(lengths.len(), stride, |rows| {
                let mut sorted = lengths[rows].to_vec();
                if self.sigma > 1 {
                    sorted.chunks_mut(self.sigma as usize).for_each(order::descending);
                }
                // Windows need not be multiples of slices: the longest row may be anywhere.
                SliceSums::of(&sorted, self.c as usize)
            });
            sums.into_iter().fold(SliceSums::default(), SliceSums::merge)
        })
    }

    /// Rows whose slices are independent of the others: a multiple of both the window and the
    /// slice.
    fn stride(self, nrows: usize) -> usize {
        let (c, sigma) = (self.c as usize, self.sigma as usize);
        if sigma >= nrows { nrows.max(1) } else { lcm(c, sigma).min(nrows.max(1)) }
    }
}

fn lcm(a: usize, b: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    a / gcd(a, b) * b
}

/// True if the slices of a candidate are hardly padded.
pub(crate) fn is_filled(analysis: &Analysis, on: Target) -> bool {
    let most = FILLED * analysis.rows.nnz as f64;
    candidates(analysis, on).any(|plan| plan.slice_sums(analysis).slots as f64 <= most)
}

/// Candidate plans for a kind of device: slices and windows that the analysis measures, with σ
/// from no sorting to windows whose `x` and `y` stay in the cache. Beyond 16,384 the locality of
/// `x` and `y` suffers (measured).
fn candidates(analysis: &Analysis, on: Target) -> impl Iterator<Item = SellPlan> {
    let sizes = match on {
        Target::Cpu => CPU_CANDIDATE_C,
        Target::Gpu => GPU_CANDIDATE_C,
    };
    let plans = sizes.iter().flat_map(|c| {
        let measured = SortedSlices::MEASURED.into_iter().filter(move |size| size.0 == *c);
        measured.map(|(c, sigma)| SellPlan { c, sigma })
    });
    let plans = plans.filter(move |plan| on == Target::Gpu || *plan != GPU_ALONE);
    // Rows of one length need no sorting.
    let even = analysis.rows.is_even();
    let plans = plans.filter(move |plan| !even || plan.sigma == 1);
    let affordable = CANDIDATE_PADDING * analysis.rows.nnz as f64;
    // A bound: sorted slices hold the longest row at least once.
    let longest = f64::from(analysis.rows.max);
    plans.filter(move |plan| longest * f64::from(plan.c) <= affordable)
}

impl Format for Sell {
    type Plan = SellPlan;
    type Host<T: Scalar> = HostSell<T>;

    const EXAMPLES: &'static [&'static str] = &[
        "sell(c:32,sigma:512)",
        "sell(c:16,sigma:1)",
        "sell(c:2,sigma:4)",
        "sell(c:5,sigma:7)",
        "sell(c:64,sigma:100000)",
    ];

    #[cfg(test)]
    fn any_plan() -> proptest::strategy::BoxedStrategy<String> {
        use proptest::prelude::*;
        let numbers = (1u32..70, 1u32..100);
        numbers.prop_map(|(c, sigma)| format!("sell(c:{c},sigma:{sigma})")).boxed()
    }

    fn parse(args: &mut PlanArgs<'_>) -> Result<SellPlan, Error> {
        let default = SellPlan::default();
        let c = args.number("c")?.unwrap_or(default.c);
        let sigma = args.number("sigma")?.unwrap_or(default.sigma);
        if c > MAX_C {
            return Err(args.error(format!("`c` may be at most {MAX_C}, not {c}")));
        }
        Ok(SellPlan { c, sigma })
    }

    fn candidates(analysis: &Analysis, _: Costs<'_>, on: Target) -> Vec<SellPlan> {
        candidates(analysis, on).collect()
    }

    fn work(plan: &SellPlan, analysis: &Analysis, scalar: ScalarKind) -> Work {
        let nrows = analysis.rows.nrows;
        let SliceSums { slots, masked_slots, largest } = plan.slice_sums(analysis);
        let slices = nrows.div_ceil(plan.c as usize) as u64;
        let perm = if plan.sigma > 1 { nrows as u64 * 4 } else { 0 };
        Work {
            matrix_bytes: (slots.saturating_mul(slot_bytes(scalar)))
                .saturating_add((slices + 1) * 8 + slices * 4 + perm),
            vector_bytes: vector_bytes(analysis, scalar),
            slots,
            gathered: super::gathered(slots, analysis.structure.shifted),
            masked_slots,
            rows: nrows as u64,
            scattered: super::scattered(nrows as u64, u64::from(plan.sigma)),
            starts: slices,
            serial_slots: largest,
            critical_path: largest / u64::from(plan.c),
            ..Work::default()
        }
    }

    fn cost_key(plan: &SellPlan, _: Target) -> &'static str {
        if plan.sigma > 1 { "sell.sorted" } else { "sell" }
    }

    fn estimate_us(_: &SellPlan, _: &Analysis, work: &Work) -> f64 {
        let slices = 45.0 * millions(work.starts);
        2.7 + 0.2 * megabytes(work) + critical_path_us(work, 0.03, 0.017) + slices
    }

    fn pack<T: Scalar>(plan: &SellPlan, a: CsrView<'_, T>) -> Result<Self::Host<T>, Error> {
        HostSell::new(*plan, a)
    }

    fn gpu_kernels<T: Scalar>(_: &SellPlan, _: &Analysis, _: u64, _: Gpu) -> Vec<(Module, String)> {
        device_rows::kernels()
    }

    fn properties(_: &SellPlan) -> PlanProperties {
        PlanProperties { packs_on_device: device_rows::SUPPORTED, ..PlanProperties::default() }
    }

    fn pack_on_device<T: Scalar>(
        plan: &SellPlan,
        source: &CsrSource<T>,
    ) -> Result<Option<Arc<dyn DeviceMatrix<T>>>, Error> {
        Ok(Some(Arc::new(cuda::DeviceSell::pack(*plan, source)?)))
    }
}

/// A SELL-C-σ matrix.
#[derive(Debug)]
pub(crate) struct HostSell<T> {
    nrows: usize,
    ncols: usize,
    c: usize,
    /// Number of rows of a sorted window.
    sigma: usize,
    perm: Option<Vec<u32>>,
    slice_ptr: Vec<usize>,
    full: Vec<u32>,
    col_idx: Vec<u32>,
    values: Vec<T>,
    consecutive: bool,
    /// Bounds of the tasks, in slices.
    tasks: Box<[usize]>,
}

impl<T: Scalar> HostSell<T> {
    fn new(plan: SellPlan, a: CsrView<'_, T>) -> Result<Self, Error> {
        let (nrows, c) = (a.nrows(), plan.c as usize);
        let len = |row: u32| a.row_len(row as usize) as u32;
        let perm = match plan.sigma {
            0 | 1 => None,
            sigma => Some(super::sorted_in_windows(nrows, sigma as usize, len)?),
        };
        let row_of = |i: usize| perm.as_ref().map_or(i, |p| p[i] as usize);
        let slices = nrows.div_ceil(c);
        let extent: Vec<(u32, u32)> = collected(slices, |s| {
            let lengths = (s * c..(s * c + c).min(nrows)).map(|i| a.row_len(row_of(i)) as u32);
            let (least, most) = lengths.fold((u32::MAX, 0), |m, l| (m.0.min(l), m.1.max(l)));
            (most, if s * c + c <= nrows { least } else { 0 })
        })?;
        let mut slice_ptr = try_zeroed::<usize>(slices + 1)?;
        for (s, &(width, _)) in extent.iter().enumerate() {
            slice_ptr[s + 1] = slice_ptr[s] + width as usize * c;
        }
        let mut col_idx = try_zeroed::<u32>(slice_ptr[slices])?;
        let mut values = try_zeroed::<T>(slice_ptr[slices])?;
        let (cols, vals) = (Output::new(&mut col_idx), Output::new(&mut values));
        let tasks = partition(slices, 1, |s| (slice_ptr[s] + s * c) as u64);
        for_each_task(&tasks, |range| {
            for s in range {
                for lane in 0..c {
                    let i = s * c + lane;
                    let (row_cols, row_vals) =
                        if i < nrows { a.row(row_of(i)) } else { (&[][..], &[][..]) };
                    for k in 0..extent[s].0 as usize {
                        let at = slice_ptr[s] + k * c + lane;
                        // SAFETY: the slots of a slice belong to the task that has the slice.
                        unsafe {
                            cols.set(at, row_cols.get(k).copied().unwrap_or(PADDING));
                            if let Some(&value) = row_vals.get(k) {
                                vals.set(at, value);
                            }
                        }
                    }
                }
            }
        });
        Ok(Self {
            nrows,
            ncols: a.ncols(),
            c,
            sigma: plan.sigma as usize,
            slice_ptr,
            full: listed(extent.iter().map(|e| e.1))?,
            consecutive: super::follow_across_lanes(&col_idx),
            col_idx,
            values,
            perm,
            tasks,
        })
    }

    /// Columns and values of lane `lane` of slice `s`, in order.
    fn lane(&self, s: usize, lane: usize) -> impl Iterator<Item = (u32, T)> + '_ {
        let slots = (self.slice_ptr[s] + lane..self.slice_ptr[s + 1]).step_by(self.c);
        slots.map(|at| (self.col_idx[at], self.values[at])).take_while(|&(col, _)| col != PADDING)
    }
}

impl<T: Scalar> HostMatrix<T> for HostSell<T> {
    fn spmv(&self, x: &[T], y: &mut [T]) {
        cpu::spmv(self, x, y);
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        let mut place = collected(self.nrows, |row| row as u32)?;
        for (i, &row) in self.perm.iter().flatten().enumerate() {
            place[row as usize] = i as u32;
        }
        super::from_rows(self.nrows, self.ncols, |row, push| {
            let i = place[row] as usize;
            self.lane(i / self.c, i % self.c).for_each(|(col, value)| push(col, value));
        })
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

    fn matrix_bytes(&self) -> u64 {
        let perm = self.perm.as_ref().map_or(0, |p| size_of_val(&**p));
        let slices = size_of_val(&*self.slice_ptr) + size_of_val(&*self.full);
        (perm + slices + size_of_val(&*self.col_idx) + size_of_val(&*self.values)) as u64
    }

    fn upload(&self, gpu: Gpu) -> Result<Box<dyn DeviceMatrix<T>>, Error> {
        Ok(Box::new(cuda::DeviceSell::new(self, gpu)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::chapter;

    const P: u32 = PADDING;

    #[test]
    fn the_chapters_matrix() {
        let plan = SellPlan { c: 2, sigma: 4 };
        let packed = HostSell::new(plan, chapter::matrix::<f32>().view()).unwrap();
        assert_eq!(packed.perm, Some(vec![2, 0, 3, 1]));
        assert_eq!(packed.slice_ptr, [0, 6, 10]);
        assert_eq!(packed.full, [2, 0]);
        assert_eq!(packed.col_idx, [1, 0, 2, 2, 3, P, 0, P, 3, P]);
        assert_eq!(packed.values, [2., 3., 4., 1., 1., 0., 1., 0., 1., 0.]);
    }

    #[test]
    fn unsorted_with_a_slice_that_is_not_full() {
        let plan = SellPlan { c: 3, sigma: 1 };
        let packed = HostSell::new(plan, chapter::matrix::<f32>().view()).unwrap();
        assert_eq!(packed.perm, None);
        assert_eq!(packed.slice_ptr, [0, 9, 15]);
        assert_eq!(packed.full, [0, 0]);
        assert_eq!(packed.col_idx, [0, P, 1, 2, P, 2, P, P, 3, 0, P, P, 3, P, P]);
    }
}
