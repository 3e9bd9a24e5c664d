//! The distinct values of a matrix, by their bits.

pub(crate) use super::constants::{DICTIONARY, VALUE_SLOTS};
use super::constants::{SPREAD, VALUE_SLOT_BITS};
use crate::{Scalar, parallel};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Values that are added between two checks whether any thread has found too many.
const VALUES_PER_CHECK: usize = 1 << 14;

/// Checks per task of the parallel search: some 100 µs, the time to wake a thread pool and to wait
/// for it. Fewer than 2¹⁹ values are not shared among threads.
const CHECKS_PER_TASK: usize = (1 << 18) / VALUES_PER_CHECK + 1;

/// First slot of the search for a key.
#[inline]
pub(crate) fn hash(bits: u64) -> usize {
    (bits.wrapping_mul(SPREAD) >> (u64::BITS - VALUE_SLOT_BITS)) as usize
}

/// The distinct values found so far, by their bits: a small open-addressing table.
#[derive(Debug)]
pub(crate) struct ValueSet {
    /// Zero marks a free slot; `zero` stands for the value whose bits are zero.
    slots: Box<[u64; VALUE_SLOTS]>,
    zero: bool,
    len: usize,
}

impl Default for ValueSet {
    fn default() -> Self {
        Self { slots: Box::new([0; VALUE_SLOTS]), zero: false, len: 0 }
    }
}

impl ValueSet {
    /// Collects the distinct values. Stops early if there are more than [`DICTIONARY`].
    pub(crate) fn of<T: Scalar>(values: &[T]) -> Self {
        let many = AtomicBool::new(false);
        let add = |set: &mut Self, range: Range<usize>| {
            for values in values[range].chunks(VALUES_PER_CHECK) {
                if !many.load(Relaxed) {
                    set.add(values);
                    many.fetch_or(set.is_full(), Relaxed);
                }
            }
        };
        parallel::fold(
            values.len(),
            VALUES_PER_CHECK * CHECKS_PER_TASK,
            Self::default,
            add,
            Self::merge,
        )
    }

    /// The set with this table of `keys` keys. A key is never zero; `zero` is true if zero is a
    /// value.
    pub(crate) fn from_table(slots: Box<[u64; VALUE_SLOTS]>, keys: usize, zero: bool) -> Self {
        Self { slots, zero, len: keys + usize::from(zero) }
    }

    /// Adds `values` until there are more than [`DICTIONARY`]: some 2 ns each.
    pub(crate) fn add<T: Scalar>(&mut self, values: &[T]) {
        /// Values between two tests of the limit, which is exceeded by at most as many.
        const BATCH: usize = 16;
        for batch in values.chunks(BATCH) {
            if self.is_full() {
                return;
            }
            batch.iter().for_each(|value| self.insert(value.bits()));
        }
    }

    /// Adds a value.
    #[inline]
    fn insert(&mut self, bits: u64) {
        if bits == 0 {
            self.len += usize::from(!self.zero);
            self.zero = true;
            return;
        }
        let mut slot = hash(bits);
        while self.slots[slot] != bits {
            if self.slots[slot] == 0 {
                self.slots[slot] = bits;
                self.len += 1;
                return;
            }
            slot = (slot + 1) % VALUE_SLOTS;
        }
    }

    /// True if there are more than [`DICTIONARY`] values.
    fn is_full(&self) -> bool {
        self.len > DICTIONARY
    }

    /// Union of both sets.
    pub(crate) fn merge(mut self, other: Self) -> Self {
        if other.is_full() {
            return other;
        }
        for bits in other.bits() {
            if !self.is_full() {
                self.insert(bits);
            }
        }
        self
    }

    /// Bits of the values, in no particular order.
    pub(crate) fn bits(&self) -> impl Iterator<Item = u64> {
        self.slots.iter().copied().filter(|&bits| bits != 0).chain(self.zero.then_some(0))
    }

    /// The values, in no particular order.
    pub(crate) fn values<T: Scalar>(&self) -> Vec<T> {
        self.bits().map(T::from_bits).collect()
    }

    /// Number of values; `None` if there are more than [`DICTIONARY`].
    pub(crate) fn count(&self) -> Option<usize> {
        (!self.is_full()).then_some(self.len)
    }

    /// True if `1` is the only value.
    pub(crate) fn is_one<T: Scalar>(&self) -> bool {
        self.len == 1 && self.slots.contains(&T::ONE.bits())
    }
}

#[cfg(test)]
#[path = "value_set_tests.rs"]
mod tests;
