//! Column contiguity, values and reuse distances.

use super::contiguity::Contiguity;
use super::distinct::Distinct;
use super::locality::Reuse;
use super::value_set::ValueSet;
use crate::{ExactIn, Scalar};
use serde::{Deserialize, Serialize};

/// Features of the columns and values of a matrix that choices read. Shares go from 0 to 1 and are
/// 0 without entries. Columns are sampled; of the values as many are read as necessary, and their
/// features are exact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Structure {
    /// Share of the entries shifted from the previous row: entry `j` of row `r` lies one column
    /// further than entry `j` of row `r - 1`. Exact up to 2¹⁴ entries, else measured on every
    /// sixteenth section of 128 entries.
    pub shifted: f64,
    /// Share of contiguous entries, whose column is one more than that of the previous entry of
    /// their row, as in dense blocks and bands. Measured on the same entries.
    pub contiguous: f64,
    /// Number of distinct values.
    pub distinct_values: Distinct,
    /// True if there are values and all are 1.
    pub all_ones: bool,
    /// Precisions that hold all values exactly, of those with fewer bytes than the type of the
    /// matrix.
    pub exact_in: ExactIn,
    /// Histogram of the reuse distances of gathers from `x`.
    pub reuse: Reuse,
}

impl Structure {
    pub(super) fn new(contiguity: Contiguity, values: ValueStatistics, reuse: Reuse) -> Self {
        let Contiguity { shifted, contiguous } = contiguity;
        let ValueStatistics { distinct: distinct_values, all_ones, exact_in } = values;
        Self { shifted, contiguous, distinct_values, all_ones, exact_in, reuse }
    }

    /// Structure with the features of other values.
    pub(super) fn with_values<T: Scalar>(&self, values: &[T]) -> Self {
        let ValueStatistics { distinct: distinct_values, all_ones, exact_in } =
            ValueStatistics::of(values);
        Self { distinct_values, all_ones, exact_in, ..self.clone() }
    }
}

/// Features of the values.
#[derive(Default)]
pub(super) struct ValueStatistics {
    distinct: Distinct,
    all_ones: bool,
    exact_in: ExactIn,
}

impl ValueStatistics {
    pub(super) fn of<T: Scalar>(values: &[T]) -> Self {
        let set = ValueSet::of(values);
        let exact_in = match set.count() {
            Some(_) => ExactIn::of(&set.values::<T>()),
            None => ExactIn::of(values),
        };
        Self::new::<T>(&set, exact_in)
    }

    /// Statistics of values by their set, and the precisions that represent all of them.
    pub(super) fn new<T: Scalar>(set: &ValueSet, exact_in: ExactIn) -> Self {
        let exact_in = exact_in.below(T::KIND);
        Self { distinct: set.into(), all_ones: set.is_one::<T>(), exact_in }
    }
}
