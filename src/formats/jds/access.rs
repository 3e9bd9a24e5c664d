//! Access to single entries of JDS.

use super::{HostJds, SlotPositions};
use crate::Scalar;
use crate::device::cpu::PADDING;
use crate::formats::access::{Access, COMPACT};

impl<T: Scalar> Access<T> for HostJds<T> {
    /// Searches all rows for the position of `row`.
    fn visit_row(&self, row: usize, visit: &mut dyn FnMut(usize, u32, T)) {
        let Some(i) = self.perm.iter().position(|&other| other as usize == row) else { return };
        let entries = self.table.slots_of(i).take_while(|&slot| self.col_idx[slot] != PADDING);
        entries.for_each(|slot| visit(slot, self.col_idx[slot], self.values[slot]));
        let before = self.values.len();
        if let Some(tail) = &self.tail {
            tail.visit_row(row, &mut |slot, col, value| visit(before + slot, col, value));
        }
    }

    fn slot_count(&self) -> usize {
        self.values.len() + self.tail.as_ref().map_or(0, Access::slot_count)
    }

    fn position(&self, slot: usize) -> Option<(usize, u32)> {
        if let Some(slot) = slot.checked_sub(self.values.len()) {
            return self.tail.as_ref()?.position(slot);
        }
        let col = *self.col_idx.get(slot).filter(|&&col| col != PADDING)?;
        let i = match &self.table {
            SlotPositions::Diagonals(jd_ptr) => {
                slot - jd_ptr[jd_ptr.partition_point(|&at| at <= slot) - 1]
            }
            SlotPositions::Sections(sections) => {
                let s = &sections[sections.partition_point(|s| s.start + s.width * s.rows <= slot)];
                s.first_row + (slot - s.start) % s.rows
            }
        };
        Some((self.perm[i] as usize, col))
    }

    fn insert(&mut self, _: usize, _: u32, _: T) -> Result<(), &'static str> {
        Err(COMPACT)
    }
}
