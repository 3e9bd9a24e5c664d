//! Access to single entries of ELL.

use super::HostEll;
use crate::Scalar;
use crate::device::cpu::PADDING;
use crate::formats::access::{Access, NO_PADDING};

impl<T: Scalar> Access<T> for HostEll<T> {
    fn visit_row(&self, row: usize, visit: &mut dyn FnMut(usize, u32, T)) {
        let slots = (0..self.width).map(|k| k * self.nrows + row);
        let entries = slots.take_while(|&slot| self.col_idx[slot] != PADDING);
        entries.for_each(|slot| visit(slot, self.col_idx[slot], self.values[slot]));
    }

    fn slot_count(&self) -> usize {
        self.values.len()
    }

    fn position(&self, slot: usize) -> Option<(usize, u32)> {
        let col = *self.col_idx.get(slot).filter(|&&col| col != PADDING)?;
        Some((slot % self.nrows, col))
    }

    fn insert(&mut self, row: usize, col: u32, value: T) -> Result<(), &'static str> {
        let mut slots = (0..self.width).map(|k| k * self.nrows + row);
        let slot = slots.find(|&slot| self.col_idx[slot] == PADDING).ok_or(NO_PADDING)?;
        (self.col_idx[slot], self.values[slot]) = (col, value);
        if let Some(lengths) = &mut self.row_len {
            lengths[row] += 1;
        }
        Ok(())
    }
}
