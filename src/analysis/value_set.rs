//! The distinct values of a matrix, by their bits.

pub(crate) use super::constants::DICTIONARY;
use crate::{Scalar, parallel};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Values per chunk of the parallel search for distinct values.
const CHUNK: usize = 1 << 14;

/// Smallest number of chunks per thread: some 100 µs, the time to wake a thread pool and to wait
/// for it. Fewer than 2¹⁹ values are not shared among threads.
const TOGETHER: usize = (1 << 18) / CHUNK + 1;

/// Slots of a hash table of values: four times the limit, so that a search seldom meets a second
/// key. A power of two.
pub(crate) const SLOTS: usize = 4 * DICTIONARY;

/// 2⁶⁴ over the golden ratio: multiplying by it spreads keys over the upper bits (Knuth, TAOCP
/// 3, 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// First slot of the search for a key.
#[inline]
pub(crate) fn hash(bits: u64) -> usize {
    (bits.wrapping_mul(SPREAD) >> (u64::BITS - SLOTS.ilog2())) as usize
}

/// The distinct values found so far, by their bits: a small open-addressing table.
#[derive(Debug)]
pub(crate) struct ValueSet {
    /// Zero marks a free slot; `zero` stands for the value whose bits are zero.
    slots: Box<[u64; SLOTS]>,
    zero: bool,
    len: usize,
}

impl Default for ValueSet {
    fn default() -> Self {
        Self { slots: Box::new([0; SLOTS]), zero: false, len: 0 }
    }
}

impl ValueSet {
    /// Collects the distinct values. Stops early if there are more than [`DICTIONARY`].
    pub(crate) fn of<T: Scalar>(values: &[T]) -> Self {
        let many = AtomicBool::new(false);
        let add = |set: &mut Self, range: Range<usize>| {
            for values in values[range].chunks(CHUNK) {
                if !many.load(Relaxed) {
                    set.add(values);
                    many.fetch_or(set.is_full(), Relaxed);
                }
            }
        };
        parallel::fold(values.len(), CHUNK * TOGETHER, Self::default, add, Self::merge)
    }

    /// The set with this table of `keys` keys. A key is never zero; `zero` tells if zero is a
    /// value.
    pub(crate) fn from_table(slots: Box<[u64; SLOTS]>, keys: usize, zero: bool) -> Self {
        Self { slots, zero, len: keys + usize::from(zero) }
    }

    /// Adds `values` until there are more than [`DICTIONARY`].
    ///
    /// Repeated values mostly repeat in the order of the rows. A segment of values is compared with
    /// the values one period earlier, and is looked up only if it differs. The period is then the
    /// distance to the previous occurrence of the last few values (Lempel and Ziv, A universal
    /// algorithm for sequential data compression, 1977).
    pub(crate) fn add<T: Scalar>(&mut self, values: &[T]) {
        /// Values that are compared at once.
        const SEGMENT: usize = 16;
        /// Successive segments that differ before the search for periods other than 1 is given up.
        const PATIENCE: usize = 16;
        let mut phrases = Phrases { last: 0, ends: [0; Phrases::COUNT] };
        let (mut period, mut different) = (1, 0);
        for (start, segment) in (0usize..).step_by(SEGMENT).zip(values.chunks(SEGMENT)) {
            let before = start.checked_sub(period).map(|before| &values[before..]);
            if before.is_some_and(|before| same_bits(segment, before)) {
                different = 0;
                continue;
            }
            if self.is_full() {
                return;
            }
            different += 1;
            if different > PATIENCE {
                period = 1;
                for value in segment {
                    self.insert(value.bits());
                }
                continue;
            }
            for (at, value) in (start + 1..).zip(segment) {
                period = phrases.distance(at, self.insert(value.bits()));
            }
        }
    }

    /// Adds a value. Returns a number below [`SLOTS`] that is unique to the value, except for that
    /// of zero.
    #[inline]
    fn insert(&mut self, bits: u64) -> usize {
        let mut slot = hash(bits);
        if bits == 0 {
            self.len += usize::from(!self.zero);
            self.zero = true;
            return slot;
        }
        while self.slots[slot] != bits {
            if self.slots[slot] == 0 {
                self.slots[slot] = bits;
                self.len += 1;
                return slot;
            }
            slot = (slot + 1) % SLOTS;
        }
        slot
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

/// Previous occurrences of the last few values.
struct Phrases {
    /// Numbers of the last values, 16 bits each.
    last: u64,
    /// End of the latest occurrence of such numbers, by their hash.
    ends: [u32; Self::COUNT],
}

impl Phrases {
    const COUNT: usize = 256;

    /// Distance from position `at`, counted from 1, to the previous end of the last four values,
    /// the latest of which has this number. A guess between 1 and `at`.
    #[inline]
    fn distance(&mut self, at: usize, number: usize) -> usize {
        self.last = self.last << 16 | number as u64;
        let end = &mut self.ends
            [(self.last.wrapping_mul(SPREAD) >> (u64::BITS - Self::COUNT.ilog2())) as usize];
        at - std::mem::replace(end, at as u32) as usize
    }
}

/// True if `others` begins with values that have the bits of `values`.
#[inline]
fn same_bits<T: Scalar>(values: &[T], others: &[T]) -> bool {
    // All pairs are compared, without an early exit, so that the loop is vectorised.
    values.iter().zip(others).fold(0, |other, (a, b)| other | (a.bits() ^ b.bits())) == 0
}

#[cfg(test)]
#[path = "value_set_tests.rs"]
mod tests;
