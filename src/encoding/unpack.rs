//! A packed matrix read back.

use super::index::{Kind, LANES, Shape, Slot, UNIT, padded};
use super::layout::{Steps, lanes, visit_diagonal};
use super::slices::PackedSlices;
use crate::Scalar;
use crate::matrix::CsrMatrix;

impl<T: Scalar> PackedSlices<T> {
    /// The matrix in CSR, its entries in the order they were packed from.
    pub(crate) fn unpack(&self) -> CsrMatrix<T> {
        let mut row_ptr = vec![0; self.nrows + 1];
        for (s, slice) in self.slices().enumerate() {
            for (lane, len) in slice.lengths().into_iter().enumerate().filter(|(_, len)| *len > 0) {
                row_ptr[self.row(s, lane) + 1] = len;
            }
        }
        for (row, entries) in self.long.iter().flat_map(|long| long.iter()) {
            row_ptr[row + 1] = entries.len();
        }
        for row in 0..self.nrows {
            row_ptr[row + 1] += row_ptr[row];
        }
        let nnz = row_ptr[self.nrows];
        let (mut col_idx, mut values) = (vec![0; nnz], vec![T::ZERO; nnz]);
        for (s, slice) in self.slices().enumerate() {
            let first = self.headers[s].value_at as usize * self.values.per(UNIT);
            // Lanes without a row have no entries.
            let place = |lane: usize, entry: usize| row_ptr[self.row(s, lane)] + entry;
            slice.visit_values(self.group, |lane, entry, at| {
                values[place(lane, entry)] = self.values.get(first + at, &self.dictionary);
            });
            let first_row = (s * LANES) as u32;
            slice.visit_columns(self.group, first_row, |lane, entry, col| col_idx[place(lane, entry)] = col);
        }
        for (long, (row, entries)) in
            self.long.iter().flat_map(|long| long.iter().map(move |row| (long, row)))
        {
            let place = row_ptr[row]..row_ptr[row + 1];
            col_idx[place.clone()].copy_from_slice(&long.col_idx[entries.clone()]);
            for (value, at) in values[place].iter_mut().zip(entries) {
                *value = long.values.get(at, &self.dictionary);
            }
        }
        // SAFETY: offsets rise by construction, and packed matrices only hold columns of a checked one.
        unsafe { CsrMatrix::new_unchecked(self.nrows, self.ncols, row_ptr, col_idx, values) }
    }

    /// The row of a lane that has entries.
    fn row(&self, s: usize, lane: usize) -> usize {
        let i = s * LANES + lane;
        self.perm.as_ref().map_or(i, |perm| perm[i] as usize)
    }

    fn slices(&self) -> impl Iterator<Item = Slice<'_>> {
        self.headers.iter().map(|header| {
            let index = &self.index[header.index_at as usize * (UNIT / size_of::<u32>())..];
            Slice { shape: header.shape(), base: header.base, index }
        })
    }
}

/// A slice to be read.
struct Slice<'a> {
    shape: Shape,
    base: u32,
    /// The index from where the slice's begins.
    index: &'a [u32],
}

impl Slice<'_> {
    fn slots(&self) -> Vec<Slot> {
        let words = self.index.chunks_exact(2).take(self.shape.width);
        words.map(|words| Slot { delta: words[0] as i32, mask: words[1] }).collect()
    }

    /// The lanes of a step.
    fn mask(&self, step: usize) -> u32 {
        self.index[step - self.shape.full]
    }

    /// Entries of every lane.
    fn lengths(&self) -> [usize; LANES] {
        let Shape { kind, run, full, width } = self.shape;
        let (mut lengths, masks): (_, Vec<u32>) = match kind {
            Kind::Diagonal => ([0; LANES], self.slots().iter().map(|slot| slot.mask).collect()),
            _ => ([full * run; LANES], (full..width).map(|step| self.mask(step)).collect()),
        };
        masks.into_iter().flat_map(lanes).for_each(|lane| lengths[lane] += run);
        lengths
    }

    /// Calls `visit(lane, entry, position)` for every value.
    fn visit_values(&self, group: usize, mut visit: impl FnMut(usize, usize, usize)) {
        match self.shape.kind {
            Kind::Diagonal => {
                let mut next = [0; LANES];
                visit_diagonal(&self.slots(), group, self.shape.full, |lane, _, at| {
                    visit(lane, next[lane], at);
                    next[lane] += 1;
                });
            }
            _ => Steps::values(self.shape, group).visit(|step| self.mask(step), visit),
        }
    }

    /// Calls `visit(lane, entry, column)` for every column of rows from `first_row` on.
    fn visit_columns(&self, group: usize, first_row: u32, mut visit: impl FnMut(usize, usize, u32)) {
        let Shape { kind, run, full, width } = self.shape;
        if kind == Kind::Diagonal {
            let (slots, mut next) = (self.slots(), [0; LANES]);
            visit_diagonal(&slots, group, full, |lane, slot, _| {
                visit(lane, next[lane], (first_row + lane as u32).wrapping_add(slots[slot].delta as u32));
                next[lane] += 1;
            });
            return;
        }
        let indices = padded((width - full) * size_of::<u32>()) / size_of::<u32>();
        let bytes = |at: usize| self.index[indices + at / 4].to_ne_bytes();
        Steps::indices(self.shape, group).visit(
            |step| self.mask(step),
            |lane, step, at| {
                let offset = match kind {
                    Kind::Relative8 => u32::from(bytes(at)[at % 4]),
                    Kind::Relative16 => {
                        let (word, half) = (bytes(2 * at), at % 2 * 2);
                        u32::from(u16::from_ne_bytes([word[half], word[half + 1]]))
                    }
                    _ => self.index[indices + at],
                };
                (0..run).for_each(|slot| visit(lane, step * run + slot, self.base + offset + slot as u32));
            },
        );
    }
}
