//! Access to single entries of HYB.

use super::HostHyb;
use crate::Scalar;
use crate::formats::Access;

impl<T: Scalar> Access<T> for HostHyb<T> {
    fn visit_row(&self, row: usize, visit: &mut dyn FnMut(usize, u32, T)) {
        self.ell.visit_row(row, visit);
        let before = self.ell.slot_count();
        self.coo.visit_row(row, &mut |slot, col, value| visit(before + slot, col, value));
    }

    fn slot_count(&self) -> usize {
        self.ell.slot_count() + self.coo.slot_count()
    }

    fn position(&self, slot: usize) -> Option<(usize, u32)> {
        match slot.checked_sub(self.ell.slot_count()) {
            None => self.ell.position(slot),
            Some(slot) => self.coo.position(slot),
        }
    }

    fn insert(&mut self, row: usize, col: u32, value: T) -> Result<(), &'static str> {
        // The COO part takes the entry only if the ELL slots are full.
        self.ell.insert(row, col, value).or_else(|_| self.coo.insert(row, col, value))
    }
}
