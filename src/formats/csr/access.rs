//! Access to single entries of CSR.

use super::HostCsr;
use crate::Scalar;
use crate::device::cpu::last_at_most;
use crate::formats::access::{Access, COMPACT};

impl<T: Scalar> Access<T> for HostCsr<T> {
    fn visit_row(&self, row: usize, visit: &mut dyn FnMut(usize, u32, T)) {
        (self.row_ptr.get(row)..self.row_ptr.get(row + 1))
            .for_each(|k| visit(k, self.col_idx[k], self.values[k]));
    }

    fn slot_count(&self) -> usize {
        self.values.len()
    }

    fn position(&self, slot: usize) -> Option<(usize, u32)> {
        let col = *self.col_idx.get(slot)?;
        // Last row that begins at the slot or before it: empty rows begin where the next row does.
        let rows = 0..self.row_ptr.len() - 1;
        Some((last_at_most(rows, slot, |row| self.row_ptr.get(row)), col))
    }

    fn insert(&mut self, _: usize, _: u32, _: T) -> Result<(), &'static str> {
        Err(COMPACT)
    }
}
