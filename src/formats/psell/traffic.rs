//! Work and memory traffic of one SpMV with packed SELL.

use super::long::long_bytes;
use super::plan::Packing;
use super::{LANES, Order, Probe, ValueEncoding, cuda, slice_table_bytes};
use crate::ScalarKind;
use crate::analysis::{Analysis, Distinct, value_set::DICTIONARY};
use crate::device::BLOCK;
use crate::formats::{ROW_BATCH, Traffic, chain_us, scattered, vector_bytes};

/// Work and memory traffic of one SpMV; exact if the [`Probe`] is, otherwise estimated.
pub(super) fn of(
    order: Order,
    packing: Packing,
    analysis: &Analysis,
    scalar: ScalarKind,
) -> Traffic {
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
    let sizes = Probe::of(analysis).sizes(rows, order, packing.split);
    let classes = rows.histogram.classes();
    let long = &classes[classes.partition_point(|&(len, _)| len <= packing.split)..];
    let long_rows = long.iter().map(|&(_, rows)| rows).sum::<u64>();
    let (perm, window) = match order {
        Order::Natural => (0, 1),
        Order::Windows(window) => (nrows * size_of::<u32>() as u64, window as u64),
    };
    let arrays = slice_table_bytes(sizes.slices, long_rows > 0) + perm;
    let lanes = LANES as u64;
    Traffic {
        matrix_bytes: arrays
            + sizes.index_bytes
            + sizes.value_bytes(value_size)
            + dictionary * scalar.size() as u64
            + long_bytes(long, value_size),
        vector_bytes: vector_bytes(analysis, scalar),
        slots: sizes.entries,
        gathered: sizes.entries - sizes.entries_by_kind[0],
        guarded: sizes.guarded,
        tail: rows.nnz - rows.histogram.entries_up_to(packing.split),
        decoded: if coded { rows.nnz } else { 0 },
        rows: nrows,
        branchless: nrows,
        scattered: scattered(nrows, window),
        groups: sizes.slices + long_rows,
        serial: (sizes.depth * lanes).min(sizes.entries),
        depth: sizes.depth,
        overlapping: nrows.div_ceil(u64::from(BLOCK)),
        ..Traffic::default()
    }
}

/// Lower bound of the time of an SpMV on a GPU, in µs: from the longest row of the slices, which
/// several warps share if there are few slices.
pub(super) fn floor_us(packing: Packing, analysis: &Analysis) -> f64 {
    let rows = &analysis.rows;
    let sliced = rows.histogram.classes().iter().rev().find(|(len, _)| *len <= packing.split);
    let steps = sliced.map_or(0, |(len, _)| *len as usize);
    let slices = rows.nrows.div_ceil(LANES);
    chain_us((steps >> cuda::warps_shift(slices, steps)) as u64, ROW_BATCH)
}
