//! Values of formats with two ways to store them: one for every slot, or one for all.

use crate::Scalar;
use crate::analysis::{Analysis, Distinct};
use rayon::prelude::*;

/// The values of a packed matrix, in the memory of the host or of a GPU.
#[derive(Debug)]
pub(crate) enum Values<T, Array = Vec<T>> {
    /// One for every slot.
    Plain(Array),
    /// Every entry has this one.
    Equal(T),
}

impl<T: Scalar> Values<T> {
    /// The value in a slot.
    #[inline(always)]
    pub(crate) fn at(&self, slot: usize) -> T {
        match self {
            Self::Plain(values) => values[slot],
            Self::Equal(value) => *value,
        }
    }

    /// Bytes of those that are stored.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Plain(values) => size_of_val(&**values),
            Self::Equal(_) => 0,
        }
    }
}

/// The value that all have, compared by their bits; zero where there are none.
pub(crate) fn common<T: Scalar>(values: &[T]) -> Option<T> {
    let first = values.first().copied().unwrap_or_default();
    values.par_iter().all(|value| value.bits() == first.bits()).then_some(first)
}

/// Whether all values of a matrix have the same bits.
pub(crate) fn is_equal(analysis: &Analysis) -> bool {
    matches!(analysis.structure.distinct_values, Distinct::Exactly(0 | 1))
}
