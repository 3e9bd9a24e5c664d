//! How entries follow one another, and what they hold.

use super::continued::Continued;
use super::distinct::Distinct;
use super::locality::Reuse;
use crate::encoding::ValueSet;
use crate::{ExactIn, Scalar};
use serde::{Deserialize, Serialize};

/// How the entries of a matrix follow one another, and what they hold: what choices read. Shares go from 0 to 1 and are 0 where there is
/// nothing to share. Of the columns a sample is read, of the values as many as are enough: what is said of these is exact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Structure {
    /// Share of the entries that continue the row above: entry `j` of row `r` lies one column further than entry `j`
    /// of row `r - 1`. Exact up to 2¹⁴ entries, else of every sixteenth stretch of 128 entries.
    pub affine: f64,
    /// Share of the entries whose column continues the one before them in their row by one: dense blocks and bands. Of as many entries.
    pub runs: f64,
    /// How many distinct values there are.
    pub distinct_values: Distinct,
    /// Whether every value is 1 and there is one.
    pub all_ones: bool,
    /// Which precisions hold all values exactly, of those with fewer bytes than the matrix's own type.
    pub exact_in: ExactIn,
    /// How soon a product comes back to the same part of `x`.
    pub reuse: Reuse,
}

impl Structure {
    pub(super) fn new(continued: Continued, values: Values, reuse: Reuse) -> Self {
        let Continued { affine, runs } = continued;
        let Values { distinct: distinct_values, all_ones, exact_in } = values;
        Self { affine, runs, distinct_values, all_ones, exact_in, reuse }
    }

    /// The same with what other values tell.
    pub(super) fn with_values<T: Scalar>(&self, values: &[T]) -> Self {
        let Values { distinct: distinct_values, all_ones, exact_in } = Values::of(values);
        Self { distinct_values, all_ones, exact_in, ..self.clone() }
    }
}

/// What the values tell.
#[derive(Default)]
pub(super) struct Values {
    distinct: Distinct,
    all_ones: bool,
    exact_in: ExactIn,
}

impl Values {
    pub(super) fn of<T: Scalar>(values: &[T]) -> Self {
        let set = ValueSet::of(values);
        let exact_in = match set.count() {
            Some(_) => ExactIn::of(&set.values::<T>()),
            None => ExactIn::of(values),
        };
        Self { distinct: (&set).into(), all_ones: set.is_one::<T>(), exact_in: exact_in.below(T::KIND) }
    }
}
