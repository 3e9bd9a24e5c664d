//! Where the entries of a slice stand among its values and its indices: the one place that knows.

use super::index::{ALL, LANES, Shape, Slot};
use crate::device::cpu::set_lanes;

/// The entries of a diagonal slice: calls `visit(lane, slot, position)` for every one, those of a lane in their order.
///
/// The slots are taken `group` at a time. Groups of slots that every lane has stand first, the slots of a lane side by side; there are
/// `full` of them. The slots of all other groups follow one by one, each with the lanes that have it.
#[inline(always)]
pub(crate) fn visit_diagonal(
    slots: &[Slot],
    group: usize,
    full: usize,
    mut visit: impl FnMut(usize, usize, usize),
) {
    let (mut wide, mut single) = (0, full * group * LANES);
    for (g, slots) in slots.chunks(group).enumerate() {
        let first = g * group;
        if is_wide(slots, group) {
            for lane in 0..LANES {
                for v in 0..group {
                    visit(lane, first + v, wide + lane * group + v);
                }
            }
            wide += group * LANES;
        } else {
            for (v, slot) in slots.iter().enumerate() {
                for lane in set_lanes(slot.mask) {
                    visit(lane, first + v, single);
                    single += 1;
                }
            }
        }
    }
}

/// Whether these are `group` slots that every lane has.
#[inline(always)]
pub(crate) fn is_wide(slots: &[Slot], group: usize) -> bool {
    slots.len() == group && slots.iter().all(|slot| slot.mask == ALL)
}

/// Steps of a slice with indices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Steps {
    full: usize,
    width: usize,
    run: usize,
    group: usize,
}

impl Steps {
    /// The steps of a slice in which every lane has its entries, `group` of them stored lane by lane.
    pub(crate) fn values(shape: Shape, group: usize) -> Self {
        let group = if shape.run == 1 { group } else { 1 };
        Self { full: shape.full, width: shape.width, run: shape.run, group }
    }

    /// The same for indices, of which a step has one.
    pub(crate) fn indices(shape: Shape, group: usize) -> Self {
        Self { run: 1, ..Self::values(shape, group) }
    }

    /// Calls `visit(lane, entry, position)` for every entry, those of a lane in their order.
    ///
    /// The steps that every lane has come first: in groups, the steps of a lane side by side, as far as there are whole groups, then one
    /// by one, slot by slot. The others follow slot by slot, each with the lanes of `mask(step)`.
    #[inline(always)]
    pub(crate) fn visit(self, mask: impl Fn(usize) -> u32, mut visit: impl FnMut(usize, usize, usize)) {
        let Self { full, width, run, group } = self;
        let mut position = 0;
        let mut next = |lane, entry| {
            visit(lane, entry, position);
            position += 1;
        };
        let grouped = full / group * group;
        if group > 1 {
            for first in (0..grouped).step_by(group) {
                (0..LANES).for_each(|lane| (first..first + group).for_each(|step| next(lane, step)));
            }
        }
        for slot in if group > 1 { grouped } else { 0 }..full * run {
            (0..LANES).for_each(|lane| next(lane, slot));
        }
        for step in full..width {
            let mask = mask(step);
            for slot in step * run..(step + 1) * run {
                set_lanes(mask).for_each(|lane| next(lane, slot));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::index::Kind;

    /// `(lane, entry)` in the order of their positions, which are counted from 0 without gaps.
    fn ordered(visit: impl FnOnce(&mut dyn FnMut(usize, usize, usize))) -> Vec<(usize, usize)> {
        let mut at = Vec::new();
        visit(&mut |lane, entry, position| at.push((position, lane, entry)));
        at.sort_unstable();
        assert!(at.iter().enumerate().all(|(i, at)| at.0 == i), "{at:?}");
        at.into_iter().map(|(_, lane, entry)| (lane, entry)).collect()
    }

    #[test]
    fn diagonals_that_every_lane_has_come_first_in_groups() {
        let slots = [ALL, ALL, 0b11, ALL, ALL, ALL, ALL].map(|mask| Slot { delta: 0, mask });
        let at = ordered(|visit| visit_diagonal(&slots, 2, 2, visit));
        let wide = |slots: [usize; 2]| (0..LANES).flat_map(move |lane| slots.map(|slot| (lane, slot)));
        let single = |slot: usize| (0..LANES).map(move |lane| (lane, slot));
        let partial = [(0, 2), (1, 2)];
        let expected = wide([0, 1]).chain(wide([4, 5])).chain(partial).chain(single(3)).chain(single(6));
        assert_eq!(at, expected.collect::<Vec<_>>());
    }

    #[test]
    fn steps_in_groups_then_single_then_with_masks() {
        let shape = Shape { kind: Kind::Relative8, run: 1, full: 5, width: 6 };
        let at = ordered(|visit| Steps::values(shape, 4).visit(|_| 0b110, visit));
        let group = (0..LANES).flat_map(|lane| (0..4).map(move |step| (lane, step)));
        let single = (0..LANES).map(|lane| (lane, 4));
        assert_eq!(at, group.chain(single).chain([(1, 5), (2, 5)]).collect::<Vec<_>>());
    }

    #[test]
    fn runs_slot_by_slot_with_one_index_a_step() {
        let shape = Shape { kind: Kind::Relative8, run: 3, full: 1, width: 2 };
        let at = ordered(|visit| Steps::values(shape, 4).visit(|_| 1 << 9, visit));
        let whole = (0..3).flat_map(|slot| (0..LANES).map(move |lane| (lane, slot)));
        assert_eq!(at, whole.chain([(9, 3), (9, 4), (9, 5)]).collect::<Vec<_>>());
        let at = ordered(|visit| Steps::indices(shape, 4).visit(|_| 1 << 9, visit));
        assert_eq!(at, (0..LANES).map(|lane| (lane, 0)).chain([(9, 1)]).collect::<Vec<_>>());
    }
}
