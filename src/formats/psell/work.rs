//! Work and memory traffic of one SpMV with packed SELL.

use super::constants::BATCH_STEPS;
use super::long::long_bytes;
use super::plan::{Packing, SliceWarps};
use super::{LANES, Order, SliceProbe, ValueEncoding, cuda, slice_table_bytes};
use crate::ScalarKind;
use crate::analysis::{Analysis, Distinct, value_set::DICTIONARY};
use crate::device::BLOCK;
use crate::formats::{Work, megabytes, millions, scattered, vector_bytes};

/// Work and memory traffic of one SpMV; exact if the [`SliceProbe`] is, otherwise estimated.
pub(super) fn of(order: Order, packing: Packing, analysis: &Analysis, scalar: ScalarKind) -> Work {
    let (rows, nrows) = (&analysis.rows, analysis.rows.nrows as u64);
    let (value_size, dictionary) = match (packing.values, analysis.structure.distinct_values) {
        (ValueEncoding::Narrow(precision), _)
            if analysis.structure.exact_in.contains(precision) =>
        {
            (precision.size(), 0)
        }
        (ValueEncoding::Plain | ValueEncoding::Narrow(_), _) | (_, Distinct::Many) => {
            (scalar.size(), 0)
        }
        (ValueEncoding::Packed, Distinct::Exactly(0 | 1)) => (0, 1),
        (ValueEncoding::Packed, Distinct::Exactly(_)) => (1, DICTIONARY as u64),
    };
    let coded = dictionary > 1;
    let sizes = SliceProbe::of(analysis).sizes(rows, order, packing.split);
    let classes = rows.histogram.classes();
    let long = &classes[classes.partition_point(|&(len, _)| len <= packing.split)..];
    let long_rows = rows.histogram.rows_longer(packing.split);
    let (perm, window) = match order {
        Order::Natural => (0, 1),
        Order::Windows(window) => (nrows * size_of::<u32>() as u64, window as u64),
    };
    // The sampled slices may lack rare rows.
    let longest = rows.histogram.longest_up_to(packing.split);
    let lane_slots = sizes.lane_slots.max(longest.into());
    let matrix_bytes = slice_table_bytes(sizes.slices, long_rows > 0)
        + perm
        + sizes.index_bytes
        + sizes.value_bytes(value_size)
        + dictionary * scalar.size() as u64
        + long_bytes(long, value_size);
    // On a GPU several warps may share a slice, each a contiguous part of its steps.
    let slots_per_step = sizes.lane_slots.div_ceil(sizes.steps.max(1)).max(1);
    let steps = lane_slots.div_ceil(slots_per_step);
    let own = match packing.warps {
        SliceWarps::One => steps,
        SliceWarps::Auto => {
            let slices = sizes.slices as usize;
            cuda::steps_of_warp(slices, steps as usize, matrix_bytes) as u64
        }
    };
    let lanes = LANES as u64;
    let outside = rows.nnz - rows.histogram.entries_up_to(packing.split);
    Work {
        matrix_bytes,
        vector_bytes: vector_bytes(analysis, scalar),
        slots: sizes.stored,
        gathered: sizes.stored - sizes.stored_by_kind[0],
        masked_slots: sizes.masked_slots,
        outside,
        decoded: if coded { sizes.stored + outside } else { 0 },
        rows: nrows,
        branchless: nrows,
        scattered: scattered(nrows, window),
        starts: sizes.slices + long_rows,
        serial_slots: (lane_slots * lanes).min(sizes.stored),
        critical_path: (own * slots_per_step).min(lane_slots),
        long_rows,
        overlapping: nrows.div_ceil(u64::from(BLOCK)),
        ..Work::default()
    }
}

/// Estimated time of an SpMV on an H200, in µs.
pub(super) fn estimate_us(packing: Packing, analysis: &Analysis, work: &Work) -> f64 {
    let rows = &analysis.rows;
    let path = 0.8 * work.critical_path.div_ceil(BATCH_STEPS as u64) as f64;
    let masked = 0.8 * millions(work.masked_slots);
    let long = if rows.max > packing.split { 1.5 } else { 0.0 };
    1.5 + 0.17 * megabytes(work) + path + 3.0 * millions(rows.nrows as u64) + masked + long
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Plan;
    use crate::formats::psell::HostPsell;
    use crate::matrix::CsrMatrix;
    use crate::matrix::gallery::Spec;

    #[test]
    fn the_longest_row_is_on_the_critical_path_outside_the_sample_too() {
        const ROWS: usize = 1 << 18;
        const LONGEST: usize = 40;
        let plan: Plan = "psell(sigma:1)".parse().unwrap();
        let longest_at = |row: usize| {
            let columns = |r: usize| if r == row { LONGEST } else { 1 };
            let ends = (0..ROWS).scan(0, |end, r| {
                *end += columns(r);
                Some(*end)
            });
            let row_ptr: Vec<usize> = std::iter::once(0).chain(ends).collect();
            let col_idx: Vec<u32> = (0..ROWS).flat_map(|r| 0..columns(r) as u32).collect();
            let values = vec![1.0; col_idx.len()];
            CsrMatrix::try_new(ROWS, ROWS, row_ptr, col_idx, values).unwrap()
        };
        for row in [0, 1000, 77_777, 200_001] {
            let analysis = Analysis::of(longest_at(row).view());
            assert!(!SliceProbe::of(&analysis).is_exact());
            assert_eq!(plan.work(&analysis, ScalarKind::F64).critical_path, LONGEST as u64);
        }
    }

    #[test]
    fn the_critical_path_is_that_of_the_packed_slices() {
        // Steps of three columns, and of one.
        for (text, step_columns) in [("femrandom,nodes=3000", 3), ("uniform,rows=3000", 1)] {
            let a = text.parse::<Spec>().unwrap().generate::<f64>().unwrap();
            let analysis = Analysis::of(a.view());
            let packing = Packing { split: SliceProbe::of(&analysis).split, ..Packing::default() };
            let packed = HostPsell::pack(a.view(), Order::Natural, packing).unwrap();
            let shapes = packed.headers.iter().map(|header| header.shape());
            let deepest = shapes.max_by_key(|shape| shape.width * shape.step_columns).unwrap();
            assert_eq!(deepest.step_columns, step_columns, "{text}");
            let own = |warps| {
                let packing = Packing { warps, ..packing };
                of(Order::Natural, packing, &analysis, ScalarKind::F64).critical_path
            };
            let steps = cuda::steps_of_warp(packed.headers.len(), deepest.width, packed.bytes());
            assert!(steps < deepest.width, "several warps share a slice of {text}");
            assert_eq!(own(SliceWarps::Auto), (steps * step_columns) as u64, "{text}");
            assert_eq!(own(SliceWarps::One), (deepest.width * step_columns) as u64, "{text}");
        }
    }
}
