//! Access to single entries of SELL.

use super::HostSell;
use crate::Scalar;
use crate::device::cpu::PADDING;
use crate::formats::access::{Access, NO_PADDING};
use std::ops::Range;

impl<T: Scalar> HostSell<T> {
    /// Slots of a row, which is searched in its window.
    fn slots_of(&self, row: usize) -> std::iter::StepBy<Range<usize>> {
        let i = self.perm.as_ref().map_or(row, |perm| {
            let first = row / self.sigma * self.sigma;
            let window = perm[first..].iter().take(self.sigma);
            first + window.take_while(|&&other| other as usize != row).count()
        });
        let s = i / self.c;
        (self.slice_ptr[s] + i % self.c..self.slice_ptr[s + 1]).step_by(self.c)
    }
}

impl<T: Scalar> Access<T> for HostSell<T> {
    fn visit_row(&self, row: usize, visit: &mut dyn FnMut(usize, u32, T)) {
        let entries = self.slots_of(row).take_while(|&slot| self.col_idx[slot] != PADDING);
        entries.for_each(|slot| visit(slot, self.col_idx[slot], self.values[slot]));
    }

    fn slot_count(&self) -> usize {
        self.values.len()
    }

    fn position(&self, slot: usize) -> Option<(usize, u32)> {
        let col = *self.col_idx.get(slot).filter(|&&col| col != PADDING)?;
        let s = self.slice_ptr.partition_point(|&at| at <= slot) - 1;
        let i = s * self.c + (slot - self.slice_ptr[s]) % self.c;
        Some((self.perm.as_ref().map_or(i, |perm| perm[i] as usize), col))
    }

    fn insert(&mut self, row: usize, col: u32, value: T) -> Result<(), &'static str> {
        let slot =
            self.slots_of(row).find(|&slot| self.col_idx[slot] == PADDING).ok_or(NO_PADDING)?;
        (self.col_idx[slot], self.values[slot]) = (col, value);
        Ok(())
    }
}
