//! Values of formats with two ways to store them: one per slot, or one for all.

use super::NoValueSlots;
use crate::analysis::{Analysis, Distinct};
use crate::device::kernels::common_value::Differ;
use crate::device::{Buffer, Launch, Ptr, WorkingMemory};
use crate::{Error, Scalar, parallel};

/// Suffix of the cost keys of kernels for one value of all entries.
const SAME: &str = ".same";

/// Cost key of the fallback kernel of one for a single value: that for stored values.
pub(crate) fn without_same(key: &str) -> Vec<String> {
    key.strip_suffix(SAME).map(str::to_owned).into_iter().collect()
}

/// Values of a packed matrix, in host or GPU memory.
#[derive(Debug)]
pub(crate) enum SlotValues<T, Array = Vec<T>> {
    /// One value per slot.
    Plain(Array),
    /// The common value of all entries.
    Equal(T),
}

impl<T: Copy, Array> SlotValues<T, Array> {
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

    /// Copies the array to another memory, by `copy`.
    pub(crate) fn copied<To>(
        &self,
        copy: impl FnOnce(&Array) -> Result<To, Error>,
    ) -> Result<SlotValues<T, To>, Error> {
        Ok(match self {
            Self::Plain(values) => SlotValues::Plain(copy(values)?),
            Self::Equal(value) => SlotValues::Equal(*value),
        })
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
        self.array().map_or(0, |values| size_of_val(&**values))
    }
}

impl<T: Scalar> SlotValues<T, Buffer<T>> {
    /// The array, or null, and the common value, or 0.
    pub(crate) fn params(&self) -> (Ptr<T>, T) {
        match self {
            Self::Plain(values) => (values.ptr(), T::ZERO),
            Self::Equal(value) => (Ptr::NULL, *value),
        }
    }

    /// Bytes of the stored values.
    pub(crate) fn bytes(&self) -> u64 {
        self.array().map_or(0, Buffer::bytes)
    }
}

/// Values that a thread compares at a time.
const TASK: usize = 1 << 14;

/// Common value of all entries, compared by bits; zero without entries. None if values differ.
pub(crate) fn common<T: Scalar>(values: &[T]) -> Option<T> {
    let first = values.first().copied().unwrap_or_default();
    let alike = |value: &T| value.bits() == first.bits();
    parallel::all(values.len(), TASK, |range| values[range].iter().all(alike)).then_some(first)
}

/// As [`common`], of values in GPU memory.
///
/// # Errors
///
/// Errors of launches and kernel compilation.
pub(crate) fn common_on_gpu<T: Scalar>(
    work: &WorkingMemory,
    values: &Buffer<T>,
) -> Result<Option<T>, Error> {
    let differ = work.cleared::<u32>(1)?;
    let (all, count) = (values.ptr(), values.len() as u64);
    let launch = Launch::over(values.len(), 1).with(Differ { values: all, count, differ });
    let name = format!("common_value_differ_{}", T::KIND);
    // SAFETY: the values are bits of this width.
    unsafe { work.run("common_value", &name, launch)? };
    let (mut differs, mut first) = ([0], [T::ZERO]);
    work.read(differ, &mut differs)?;
    if values.len() > 0 {
        work.read(values.ptr(), &mut first)?;
    }
    Ok((differs == [0]).then_some(first[0]))
}

/// True if all values of a matrix have the same bits.
pub(crate) fn is_equal(analysis: &Analysis) -> bool {
    matches!(analysis.structure.distinct_values, Distinct::Exactly(0 | 1))
}
