//! Scalar types of a matrix.

use crate::compiled::Compiled;
use serde::{Deserialize, Serialize};
use std::fmt::{Debug, Display};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Neg, Sub};

/// The [`Scalar`] types, as data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScalarKind {
    /// 32-bit IEEE 754.
    F32,
    /// 64-bit IEEE 754.
    F64,
}

impl ScalarKind {
    /// All kinds.
    #[doc(hidden)]
    pub const ALL: [Self; 2] = [Self::F32, Self::F64];

    /// Size of a number, in bytes.
    #[doc(hidden)]
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// `f32` or `f64`.
    #[doc(hidden)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }
}

impl Display for ScalarKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A scalar of a matrix: `f32` or `f64`. Sealed, because the kernels exist for exactly these types.
pub trait Scalar:
    sealed::Sealed
    + Compiled
    + Copy
    + Default
    + Debug
    + Display
    + PartialEq
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + AddAssign
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Neg<Output = Self>
    + Sum
    + 'static
{
    /// Zero.
    #[doc(hidden)]
    const ZERO: Self;
    /// One.
    #[doc(hidden)]
    const ONE: Self;
    /// Distance from one to the next larger number, as `f64`.
    #[doc(hidden)]
    const EPSILON: f64;
    /// Smallest positive number, as `f64`.
    #[doc(hidden)]
    const MIN: f64;
    /// Largest finite number, as `f64`.
    #[doc(hidden)]
    const MAX: f64;
    /// The type as data.
    #[doc(hidden)]
    const KIND: ScalarKind;

    /// Rounds to the nearest number of this type.
    fn from_f64(value: f64) -> Self;
    /// Converts to `f64`, exactly.
    fn to_f64(self) -> f64;
    /// The bits, widened. Equal numbers of one type have equal bits, except for the two zeros and
    /// NaN.
    #[doc(hidden)]
    fn bits(self) -> u64;
    /// The number with these [`bits`](Self::bits).
    #[doc(hidden)]
    fn from_bits(bits: u64) -> Self;
}

macro_rules! scalar {
    ($type:ident, $kind:ident) => {
        impl sealed::Sealed for $type {}
        impl Scalar for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const EPSILON: f64 = $type::EPSILON as f64;
            const MIN: f64 = $type::from_bits(1) as f64;
            const MAX: f64 = $type::MAX as f64;
            const KIND: ScalarKind = ScalarKind::$kind;
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $type
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn bits(self) -> u64 {
                u64::from(self.to_bits())
            }
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                $type::from_bits(bits as _)
            }
        }
    };
}

scalar!(f32, F32);
scalar!(f64, F64);

mod sealed {
    pub trait Sealed: bytemuck::Zeroable {}
}
