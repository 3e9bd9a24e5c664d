//! Number of distinct values of a matrix.

use super::value_set::{DICTIONARY, ValueSet};
use serde::{Deserialize, Serialize};

/// Number of distinct values of a matrix, counted up to [`LIMIT`](Self::LIMIT). Values are compared
/// by their bits: `0` and `-0` differ, and so do NaNs of different payloads, as a lossless
/// dictionary requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distinct {
    /// The exact number, at most [`LIMIT`](Self::LIMIT).
    Exactly(u32),
    /// More than [`LIMIT`](Self::LIMIT).
    Many,
}

impl Distinct {
    /// The largest number that is counted: the number of values of an 8-bit code.
    pub const LIMIT: u32 = DICTIONARY as u32;
}

impl From<&ValueSet> for Distinct {
    fn from(set: &ValueSet) -> Self {
        set.count().map_or(Self::Many, |count| Self::Exactly(count as u32))
    }
}

impl Default for Distinct {
    fn default() -> Self {
        Self::Exactly(0)
    }
}
