//! Read access to a slice of packed SELL.

use super::host::HostPsell;
use super::index::{ALIGNMENT, ALL, Kind, LANES, SliceShape, Slot};
use super::layout::{Steps, visit_diagonal};
use crate::Scalar;
use crate::device::cpu::set_lanes;

/// Words per unit of offsets, of [`ALIGNMENT`] bytes.
const UNIT_WORDS: usize = ALIGNMENT / size_of::<u32>();

/// A slice of a packed matrix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slice<'a> {
    pub(crate) shape: SliceShape,
    /// Lanes with long rows, which have no entries here.
    pub(crate) long: u32,
    /// Column that indices are relative to.
    pub(crate) base: u32,
    /// Row of the first lane in the natural order.
    pub(crate) first_row: u32,
    /// Position of its first value.
    pub(crate) first_value: usize,
    /// For a diagonal slice, column minus row of the slots that every lane has, and of the others.
    pub(crate) deltas: [&'a [u32]; 2],
    /// Lanes of the slots or steps that some lanes lack.
    pub(crate) masks: &'a [u32],
    /// For a relative slice, its indices and all words of the index behind them.
    pub(crate) indices: &'a [u32],
}

impl<T: Scalar> HostPsell<T> {
    /// Returns slice `s`.
    #[inline(always)]
    pub(crate) fn slice(&self, s: usize) -> Slice<'_> {
        let header = &self.headers[s];
        let shape = header.shape();
        let index = &self.index[header.index_at as usize * UNIT_WORDS..];
        let (deltas, masks, indices) = match shape.kind {
            Kind::Diagonal => {
                let (full, rest) = table(index, shape.full);
                let (partial, rest) = table(rest, shape.width - shape.full);
                ([full, partial], table(rest, partial.len()).0, &rest[..0])
            }
            _ => {
                let (masks, indices) = table(index, shape.width - shape.full);
                ([&index[..0]; 2], masks, indices)
            }
        };
        let first_value = header.value_at as usize * self.values.per(ALIGNMENT);
        Slice {
            shape,
            long: self.skip.as_ref().map_or(0, |skip| skip[s]),
            base: header.base,
            first_row: (s * LANES) as u32,
            first_value,
            deltas,
            masks,
            indices,
        }
    }
}

/// The first `len` words of an index, and the words behind their padding.
#[inline(always)]
fn table(index: &[u32], len: usize) -> (&[u32], &[u32]) {
    (&index[..len], &index[len.next_multiple_of(UNIT_WORDS)..])
}

impl Slice<'_> {
    fn mask(&self, step: usize) -> u32 {
        self.masks[step - self.shape.full]
    }

    /// Slots of a diagonal slice, deltas ascending.
    fn slots(&self) -> impl Iterator<Item = Slot> {
        let [full, partial] = self.deltas;
        let mut full = full.iter().map(|&delta| Slot { delta: delta as i32, mask: ALL }).peekable();
        let partial = partial.iter().zip(self.masks);
        let mut partial =
            partial.map(|(&delta, &mask)| Slot { delta: delta as i32, mask }).peekable();
        std::iter::from_fn(move || match (full.peek(), partial.peek()) {
            (Some(first), Some(second)) if first.delta < second.delta => full.next(),
            (_, Some(_)) => partial.next(),
            _ => full.next(),
        })
    }

    /// Number of entries of every lane.
    pub(crate) fn lengths(&self) -> [usize; LANES] {
        let SliceShape { step_columns, full, .. } = self.shape;
        let mut lengths = [full * step_columns; LANES];
        self.masks
            .iter()
            .flat_map(|&mask| set_lanes(mask))
            .for_each(|lane| lengths[lane] += step_columns);
        set_lanes(self.long).for_each(|lane| lengths[lane] = 0);
        lengths
    }

    /// True if the lane has a row in the slice: the places of the others are filled.
    #[inline(always)]
    fn has(&self, lane: usize) -> bool {
        self.long >> lane & 1 == 0
    }

    /// Calls `visit(lane, entry, position)` for every value of a row, those of a lane in their
    /// order.
    pub(crate) fn visit_values(&self, group: usize, mut visit: impl FnMut(usize, usize, usize)) {
        if self.shape.kind == Kind::Diagonal {
            self.visit_columns(group, |lane, entry, at, _| visit(lane, entry, at));
        } else {
            Steps::values(self.shape, group).visit(
                |step| self.mask(step),
                |lane, entry, at| {
                    if self.has(lane) {
                        visit(lane, entry, at);
                    }
                },
            );
        }
    }

    /// Calls `visit(lane, entry, position, column)` for every entry of a row, those of a lane in
    /// their order. The position is that of the index. It is also the position of the value unless
    /// several entries share an index.
    #[inline(always)]
    pub(crate) fn visit_columns(
        &self,
        group: usize,
        mut visit: impl FnMut(usize, usize, usize, u32),
    ) {
        let SliceShape { kind, step_columns, full, .. } = self.shape;
        if kind == Kind::Diagonal {
            let mut next = [0; LANES];
            visit_diagonal(self.slots(), full, group, |lane, slot, at| {
                if !self.has(lane) {
                    return;
                }
                let row = self.first_row + lane as u32;
                visit(lane, next[lane], at, row.wrapping_add(slot.delta as u32));
                next[lane] += 1;
            });
            return;
        }
        Steps::indices(self.shape, group).visit(
            |step| self.mask(step),
            |lane, step, at| {
                if !self.has(lane) {
                    return;
                }
                let first = self.base + self.index(at);
                (0..step_columns).for_each(|slot| {
                    visit(lane, step * step_columns + slot, at, first + slot as u32)
                });
            },
        );
    }

    /// Returns the index at position `at`.
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
