//! Access to single entries of DIA.

use super::{HostDia, SLICE};
use crate::Scalar;
use crate::formats::access::{Access, NO_PADDING};

impl<T: Scalar> Access<T> for HostDia<T> {
    fn visit_row(&self, row: usize, visit: &mut dyn FnMut(usize, u32, T)) {
        self.row(row).for_each(|(slot, col, value)| visit(slot, col, value));
    }

    fn slot_count(&self) -> usize {
        self.values.len()
    }

    fn position(&self, slot: usize) -> Option<(usize, u32)> {
        if slot >= self.values.len() {
            return None;
        }
        let start = slot / (SLICE * self.offsets.len()) * SLICE;
        let (rest, len) = (slot - start * self.offsets.len(), SLICE.min(self.nrows - start));
        let (row, diagonal) = (start + rest % len, rest / len);
        let present = self.has_entry(row, diagonal);
        present.then(|| (row, (row as i64 + self.offsets[diagonal]) as u32))
    }

    fn insert(&mut self, row: usize, col: u32, value: T) -> Result<(), &'static str> {
        let count = self.offsets.len();
        let behind = (0..count).rev().take_while(|&diagonal| !self.has_entry(row, diagonal));
        let here = |&diagonal: &usize| row as i64 + self.offsets[diagonal] == i64::from(col);
        let diagonal = behind.filter(here).last().ok_or(NO_PADDING)?;
        let slot = self.slot(row, diagonal);
        self.values[slot] = value;
        self.masks[row / SLICE * count + diagonal] |= 1 << (row % SLICE);
        Ok(())
    }
}
