//! Values of formats with two ways to store them: one per slot, or one for all.

use super::NoValueSlots;
use crate::Scalar;
use crate::analysis::{Analysis, Distinct};
use crate::parallel;

/// Suffix of the names of kernels for one value of all entries.
const SAME: &str = ".same";

/// Fallback kernel of one for a single value: that for stored values.
pub(crate) fn without_same(kernel: &str) -> Vec<String> {
    kernel.strip_suffix(SAME).map(str::to_owned).into_iter().collect()
}

/// Values of a packed matrix, in host or GPU memory.
#[derive(Debug)]
pub(crate) enum SlotValues<T, Array = Vec<T>> {
    /// One value per slot.
    Plain(Array),
    /// The common value of all entries.
    Equal(T),
}

impl<T, Array> SlotValues<T, Array> {
    /// The array of the values, or the reason why there is none.
    pub(crate) fn array(&self) -> Result<&Array, NoValueSlots> {
        match self {
            Self::Plain(values) => Ok(values),
            Self::Equal(_) => Err(NoValueSlots::CODED),
        }
    }

    /// As [`array`](Self::array), to write to it.
    pub(crate) fn array_mut(&mut self) -> Result<&mut Array, NoValueSlots> {
        match self {
            Self::Plain(values) => Ok(values),
            Self::Equal(_) => Err(NoValueSlots::CODED),
        }
    }

    /// Infix of the names of the kernels that read such values.
    pub(crate) fn infix(&self) -> &'static str {
        match self {
            Self::Plain(_) => "",
            Self::Equal(_) => "_equal",
        }
    }
}

impl<T: Scalar> SlotValues<T> {
    /// The value in a slot.
    #[inline(always)]
    pub(crate) fn at(&self, slot: usize) -> T {
        match self {
            Self::Plain(values) => values[slot],
            Self::Equal(value) => *value,
        }
    }

    /// Bytes of the stored values.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Plain(values) => size_of_val(&**values),
            Self::Equal(_) => 0,
        }
    }
}

/// Values that a thread compares at a time.
const CHUNK: usize = 1 << 14;

/// Common value of all entries, compared by bits; zero without entries. None if values differ.
pub(crate) fn common<T: Scalar>(values: &[T]) -> Option<T> {
    let first = values.first().copied().unwrap_or_default();
    let alike = |value: &T| value.bits() == first.bits();
    parallel::all(values.len(), CHUNK, |range| values[range].iter().all(alike)).then_some(first)
}

/// True if all values of a matrix have the same bits.
pub(crate) fn is_equal(analysis: &Analysis) -> bool {
    matches!(analysis.structure.distinct_values, Distinct::Exactly(0 | 1))
}
