//! Positions of the entries of a slice among its values and its indices. No other code computes
//! them.
//!
//! The slots, or steps of several slots, that every lane has come first. They are stored in groups
//! of `group`, those of a lane adjacent, as long as there are enough for a group; the remaining
//! ones follow one by one, lane after lane. The slots that some lanes lack come last, one by one,
//! with the lanes that have them.

use super::index::{ALL, LANES, SliceShape, Slot};
use crate::device::cpu::set_lanes;

/// Position of the `k`-th of `full` slots that every lane has.
#[inline(always)]
fn full_position(k: usize, full: usize, group: usize, lane: usize) -> usize {
    if k < full / group * group {
        k / group * group * LANES + lane * group + k % group
    } else {
        k * LANES + lane
    }
}

/// Calls `visit(lane, slot, position)` for every stored value of a diagonal slice with these slots,
/// slot by slot in the given order.
#[inline(always)]
pub(crate) fn visit_diagonal(
    slots: impl Iterator<Item = Slot>,
    full: usize,
    group: usize,
    mut visit: impl FnMut(usize, Slot, usize),
) {
    let (mut k, mut single) = (0, full * LANES);
    for slot in slots {
        if slot.mask == ALL {
            (0..LANES).for_each(|lane| visit(lane, slot, full_position(k, full, group, lane)));
            k += 1;
        } else {
            for lane in set_lanes(slot.mask) {
                visit(lane, slot, single);
                single += 1;
            }
        }
    }
}

/// Steps of a relative slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Steps {
    full: usize,
    width: usize,
    step_columns: usize,
    group: usize,
}

impl Steps {
    /// Steps of the values of a slice. Steps with several slots are stored one by one.
    pub(crate) fn values(shape: SliceShape, group: usize) -> Self {
        let group = if shape.step_columns == 1 { group } else { 1 };
        Self { full: shape.full, width: shape.width, step_columns: shape.step_columns, group }
    }

    /// Steps of the indices, one per step.
    pub(crate) fn indices(shape: SliceShape, group: usize) -> Self {
        Self { step_columns: 1, ..Self::values(shape, group) }
    }

    /// Calls `visit(lane, entry, position)` for every place, those of a lane in their order.
    /// `mask(step)` returns the lanes of a step that some lanes lack.
    #[inline(always)]
    pub(crate) fn visit(
        self,
        mask: impl Fn(usize) -> u32,
        mut visit: impl FnMut(usize, usize, usize),
    ) {
        let Self { full, width, step_columns, group } = self;
        for entry in 0..full * step_columns {
            (0..LANES).for_each(|lane| {
                visit(lane, entry, full_position(entry, full * step_columns, group, lane))
            });
        }
        let mut position = full * step_columns * LANES;
        for step in full..width {
            let mask = mask(step);
            for entry in step * step_columns..(step + 1) * step_columns {
                for lane in set_lanes(mask) {
                    visit(lane, entry, position);
                    position += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::Kind;
    use super::*;

    /// Pairs `(lane, entry)` in the order of their positions, which are counted from 0 without
    /// gaps.
    fn ordered(mut at: Vec<(usize, usize, usize)>) -> Vec<(usize, usize)> {
        at.sort_unstable();
        assert!(at.iter().enumerate().all(|(i, at)| at.0 == i), "{at:?}");
        at.into_iter().map(|(_, lane, entry)| (lane, entry)).collect()
    }

    fn steps(steps: Steps, mask: u32) -> Vec<(usize, usize)> {
        let mut at = Vec::new();
        steps.visit(|_| mask, |lane, entry, position| at.push((position, lane, entry)));
        ordered(at)
    }

    fn single(entry: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..LANES).map(move |lane| (lane, entry))
    }

    fn grouped(entries: [usize; 4]) -> impl Iterator<Item = (usize, usize)> {
        (0..LANES).flat_map(move |lane| entries.map(|entry| (lane, entry)))
    }

    #[test]
    fn diagonals_that_every_lane_has_come_first_in_groups() {
        let masks = [ALL, ALL, 0b11, ALL, ALL, ALL, 0b100];
        let slots = (0..).zip(masks).map(|(delta, mask)| Slot { delta, mask });
        let mut at = Vec::new();
        visit_diagonal(slots, 5, 4, |lane, slot, position| {
            at.push((position, lane, slot.delta as usize))
        });
        let partial = [(0, 2), (1, 2), (2, 6)];
        assert_eq!(
            ordered(at),
            grouped([0, 1, 3, 4]).chain(single(5)).chain(partial).collect::<Vec<_>>()
        );
    }

    #[test]
    fn steps_in_groups_then_single_then_with_masks() {
        let shape = SliceShape { kind: Kind::Relative8, step_columns: 1, full: 5, width: 6 };
        let partial = [(1, 5), (2, 5)];
        let expected = grouped([0, 1, 2, 3]).chain(single(4)).chain(partial).collect::<Vec<_>>();
        assert_eq!(steps(Steps::values(shape, 4), 0b110), expected);
        let expected = (0..5).flat_map(single).chain(partial).collect::<Vec<_>>();
        assert_eq!(steps(Steps::values(shape, 1), 0b110), expected);
    }

    #[test]
    fn steps_of_columns_slot_by_slot_with_one_index_a_step() {
        let shape = SliceShape { kind: Kind::Relative8, step_columns: 3, full: 4, width: 5 };
        let partial = [(9, 12), (9, 13), (9, 14)];
        let expected = (0..12).flat_map(single).chain(partial).collect::<Vec<_>>();
        assert_eq!(steps(Steps::values(shape, 4), 1 << 9), expected);
        let expected = (0..4).flat_map(single).chain([(9, 4)]).collect::<Vec<_>>();
        assert_eq!(steps(Steps::indices(shape, 4), 1 << 9), expected);
    }
}
