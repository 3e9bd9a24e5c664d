//! A packed slice, to be read.

use super::index::{Kind, LANES, Shape, Slot, UNIT, padded};
use super::layout::{Steps, visit_diagonal};
use super::slices::PackedSlices;
use crate::Scalar;
use crate::device::cpu::set_lanes;

/// A slice of a packed matrix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slice<'a> {
    pub(crate) shape: Shape,
    /// The column that indices are counted from.
    pub(crate) base: u32,
    /// The row of the first lane, where rows are in their order.
    pub(crate) first_row: u32,
    /// Position of its first value.
    pub(crate) first_value: usize,
    /// Of a diagonal slice, its slots.
    pub(crate) slots: &'a [Slot],
    /// The lanes of the steps that not every lane has.
    pub(crate) masks: &'a [u32],
    /// Its indices, and what comes after them.
    pub(crate) indices: &'a [u32],
}

impl<T: Scalar> PackedSlices<T> {
    /// Slice `s`.
    #[inline(always)]
    pub(crate) fn slice(&self, s: usize) -> Slice<'_> {
        let header = &self.headers[s];
        let shape = header.shape();
        let index = &self.index[header.index_at as usize * (UNIT / size_of::<u32>())..];
        let (slots, masks) = match shape.kind {
            Kind::Diagonal => (slots(&index[..2 * shape.width]), &index[..0]),
            _ => (&[][..], &index[..shape.width - shape.full]),
        };
        Slice {
            shape,
            base: header.base,
            first_row: (s * LANES) as u32,
            first_value: header.value_at as usize * self.values.per(UNIT),
            slots,
            masks,
            indices: &index[padded(size_of_val(masks)) / size_of::<u32>()..],
        }
    }
}

/// The slots that the words of an index are.
#[inline(always)]
fn slots(words: &[u32]) -> &[Slot] {
    // SAFETY: a slot is two words, any words, and aligned as they are.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() / 2) }
}

impl Slice<'_> {
    fn mask(&self, step: usize) -> u32 {
        self.masks[step - self.shape.full]
    }

    /// Entries of every lane.
    pub(crate) fn lengths(&self) -> [usize; LANES] {
        let Shape { kind, run, full, .. } = self.shape;
        let mut lengths = if kind == Kind::Diagonal { [0; LANES] } else { [full * run; LANES] };
        let masks = self.slots.iter().map(|slot| slot.mask).chain(self.masks.iter().copied());
        masks.flat_map(set_lanes).for_each(|lane| lengths[lane] += run);
        lengths
    }

    /// Calls `visit(lane, entry, position)` for every value.
    pub(crate) fn visit_values(&self, group: usize, mut visit: impl FnMut(usize, usize, usize)) {
        if self.shape.kind == Kind::Diagonal {
            self.visit_columns(group, |lane, entry, at, _| visit(lane, entry, at));
        } else {
            Steps::values(self.shape, group).visit(|step| self.mask(step), visit);
        }
    }

    /// Calls `visit(lane, entry, position, column)` for every entry. The position is that of its index, which is also that of its value
    /// unless several entries share an index.
    #[inline(always)]
    pub(crate) fn visit_columns(&self, group: usize, mut visit: impl FnMut(usize, usize, usize, u32)) {
        let Shape { kind, run, full, .. } = self.shape;
        if kind == Kind::Diagonal {
            let mut next = [0; LANES];
            visit_diagonal(self.slots, group, full, |lane, slot, at| {
                let row = self.first_row + lane as u32;
                visit(lane, next[lane], at, row.wrapping_add(self.slots[slot].delta as u32));
                next[lane] += 1;
            });
            return;
        }
        Steps::indices(self.shape, group).visit(
            |step| self.mask(step),
            |lane, step, at| {
                let first = self.base + self.index(at);
                (0..run).for_each(|slot| visit(lane, step * run + slot, at, first + slot as u32));
            },
        );
    }

    /// The index at position `at`.
    #[inline(always)]
    fn index(&self, at: usize) -> u32 {
        let bytes = |word: usize| self.indices[word].to_ne_bytes();
        match self.shape.kind {
            Kind::Relative8 => u32::from(bytes(at / 4)[at % 4]),
            Kind::Relative16 => {
                let (word, half) = (bytes(at / 2), at % 2 * 2);
                u32::from(u16::from_ne_bytes([word[half], word[half + 1]]))
            }
            _ => self.indices[at],
        }
    }
}
