//! Access to single entries of COO.

use super::HostCoo;
use crate::Scalar;
use crate::device::cpu::partition;
use crate::formats::Access;

impl<T: Scalar> Access<T> for HostCoo<T> {
    fn visit_row(&self, row: usize, visit: &mut dyn FnMut(usize, u32, T)) {
        let first = self.row_idx.partition_point(|&r| (r as usize) < row);
        let entries = (first..self.values.len()).take_while(|&k| self.row_idx[k] as usize == row);
        entries.for_each(|k| visit(k, self.col_idx[k], self.values[k]));
    }

    fn slot_count(&self) -> usize {
        self.values.len()
    }

    fn position(&self, slot: usize) -> Option<(usize, u32)> {
        Some((*self.row_idx.get(slot)? as usize, self.col_idx[slot]))
    }

    fn insert(&mut self, row: usize, col: u32, value: T) -> Result<(), &'static str> {
        let place = self.row_idx.partition_point(|&r| r as usize <= row);
        self.row_idx.insert(place, row as u32);
        self.col_idx.insert(place, col);
        self.values.insert(place, value);
        self.tasks = partition(self.values.len(), 1, |k| k as u64);
        Ok(())
    }
}
