//! How many distinct values a matrix holds.

use crate::Scalar;
use serde::{Deserialize, Serialize};

/// How many distinct values a matrix holds, counted up to [`LIMIT`](Self::LIMIT) and compared by their bits: `0` and
/// `-0` differ, and so do NaNs of different payloads, as a lossless dictionary needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distinct {
    /// Exactly so many, at most [`LIMIT`](Self::LIMIT).
    Exactly(u32),
    /// More than [`LIMIT`](Self::LIMIT).
    Many,
}

impl Distinct {
    /// The largest number that is counted: what an 8-bit code can name.
    pub const LIMIT: u32 = 256;
}

impl Default for Distinct {
    fn default() -> Self {
        Self::Exactly(0)
    }
}

/// Slots of the hash table: four times the limit, so that a search seldom meets a second key. A power of two.
const SLOTS: usize = 4 * Distinct::LIMIT as usize;

/// 2⁶⁴ over the golden ratio: multiplying by it spreads keys over the upper bits (Knuth, TAOCP 3, 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The distinct values met so far, by their bits: a small open-addressing table.
#[derive(Debug)]
pub(super) struct ValueSet {
    /// Zero marks a free slot; the value whose bits are zero is `zero`.
    slots: Box<[u64; SLOTS]>,
    zero: bool,
    len: u32,
}

impl Default for ValueSet {
    fn default() -> Self {
        Self { slots: Box::new([0; SLOTS]), zero: false, len: 0 }
    }
}

impl ValueSet {
    /// Adds `values` until there are more than [`Distinct::LIMIT`].
    pub(super) fn add<T: Scalar>(&mut self, values: &[T]) {
        let mut last = None;
        for value in values {
            let bits = value.bits();
            // Equal neighbours are common where values repeat at all.
            if last != Some(bits) {
                if self.is_full() {
                    return;
                }
                self.insert(bits);
                last = Some(bits);
            }
        }
    }

    fn insert(&mut self, bits: u64) {
        if bits == 0 {
            self.len += u32::from(!self.zero);
            self.zero = true;
            return;
        }
        let mut slot = (bits.wrapping_mul(SPREAD) >> (u64::BITS - SLOTS.ilog2())) as usize;
        while self.slots[slot] != bits {
            if self.slots[slot] == 0 {
                self.slots[slot] = bits;
                self.len += 1;
                return;
            }
            slot = (slot + 1) % SLOTS;
        }
    }

    /// Whether there are too many values for another one to matter.
    pub(super) fn is_full(&self) -> bool {
        self.len > Distinct::LIMIT
    }

    /// Both sets together.
    pub(super) fn merge(mut self, other: Self) -> Self {
        if other.is_full() {
            return other;
        }
        let found = other.slots.iter().copied().filter(|&bits| bits != 0).chain(other.zero.then_some(0));
        for bits in found {
            if !self.is_full() {
                self.insert(bits);
            }
        }
        self
    }

    /// The number of values.
    pub(super) fn distinct(&self) -> Distinct {
        if self.is_full() { Distinct::Many } else { Distinct::Exactly(self.len) }
    }

    /// Whether the one value is `1`.
    pub(super) fn is_one<T: Scalar>(&self) -> bool {
        self.len == 1 && self.slots.contains(&T::ONE.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn of<T: Scalar>(values: &[T]) -> ValueSet {
        let mut set = ValueSet::default();
        set.add(values);
        set
    }

    #[test]
    fn bits_decide() {
        assert_eq!(of::<f64>(&[]).distinct(), Distinct::default());
        assert_eq!(of(&[0.0f32, -0.0, 0.0, f32::NAN, f32::NAN]).distinct(), Distinct::Exactly(3));
    }

    #[test]
    fn ones() {
        assert!(of(&[1.0f32; 5]).is_one::<f32>());
        assert!(of(&[1.0f64]).is_one::<f64>());
        assert!(!of(&[1.0f64, 2.0]).is_one::<f64>());
        assert!(!of(&[0.0f64]).is_one::<f64>());
        assert!(!of::<f64>(&[]).is_one::<f64>());
    }

    #[test]
    fn counting_stops_past_the_limit() {
        let values: Vec<f64> = (0..1000).map(f64::from).collect();
        let limit = Distinct::LIMIT as usize;
        assert_eq!(of(&values[..limit]).distinct(), Distinct::Exactly(Distinct::LIMIT));
        assert_eq!(of(&values[..limit + 1]).distinct(), Distinct::Many);
        assert_eq!(of(&values).distinct(), Distinct::Many);
        let halves = |at: usize, end: usize| of(&values[..at]).merge(of(&values[at..end])).distinct();
        assert_eq!(halves(100, limit), Distinct::Exactly(Distinct::LIMIT));
        assert_eq!(halves(100, limit + 1), Distinct::Many);
        assert_eq!(halves(1, 999), Distinct::Many);
        assert_eq!(halves(999, 1000), Distinct::Many);
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(values in prop::collection::vec(-200i32..200, 0..900), at in 0usize..900) {
            let values: Vec<f32> = values.into_iter().map(|v| v as f32).collect();
            let (a, b) = values.split_at(at.min(values.len()));
            let expected = values.iter().map(|v| v.to_bits()).collect::<BTreeSet<_>>().len() as u32;
            let expected = if expected > Distinct::LIMIT { Distinct::Many } else { Distinct::Exactly(expected) };
            prop_assert_eq!(of(&values).distinct(), expected);
            prop_assert_eq!(of(a).merge(of(b)).distinct(), expected);
        }
    }
}
