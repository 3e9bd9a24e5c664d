//! Storage precisions of values that are computed with in a wider type: the numbers they represent
//! exactly, rounding, and conversion in both directions.
//!
//! bf16 has the exponents of f32 and 8 bits of significand. f16 (IEEE 754 binary16) has 5 bits of
//! exponent and 11 of significand. The implicit bit of the significand is counted. All conversions
//! work on bits, so NaNs keep their payloads. The crate `half`, which rounds an f64 twice and makes
//! NaNs quiet, is their oracle in the tests.

use crate::parallel;
use crate::{Scalar, ScalarKind};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};

/// A floating-point type that values are stored in or rounded to, while products are computed in
/// the matrix's own type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// The upper half of an f32: its range, two to three decimal digits.
    Bf16,
    /// 16-bit IEEE 754: three to four decimal digits, up to 65504.
    F16,
    /// 32-bit IEEE 754.
    F32,
}

/// Layout of a floating-point number: the bits of its fraction and of its exponent, below the sign.
#[derive(Debug, Clone, Copy)]
struct FloatLayout {
    fraction: u32,
    exponent: u32,
}

impl FloatLayout {
    const fn of(scalar: ScalarKind) -> Self {
        match scalar {
            ScalarKind::F32 => Self { fraction: 23, exponent: 8 },
            ScalarKind::F64 => Self { fraction: 52, exponent: 11 },
        }
    }

    const fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// Exponent of subnormal numbers, and smallest exponent of normal numbers.
    const fn least(self) -> i32 {
        1 - self.bias()
    }

    /// Exponent field of infinities and NaNs.
    const fn special(self) -> u64 {
        (1 << self.exponent) - 1
    }

    /// Sign, exponent and fraction fields.
    const fn split_fields(self, bits: u64) -> (u64, u64, u64) {
        let fraction = bits & ((1 << self.fraction) - 1);
        (bits >> (self.fraction + self.exponent), bits >> self.fraction & self.special(), fraction)
    }

    const fn join_fields(self, sign: u64, exponent: u64, fraction: u64) -> u64 {
        (sign << self.exponent | exponent) << self.fraction | fraction
    }

    /// Significand of a finite number, and exponent of its leading bit.
    const fn significand(self, exponent: u64, fraction: u64) -> (u64, i32) {
        match exponent {
            0 => (fraction, self.least()),
            _ => (fraction | 1 << self.fraction, exponent as i32 - self.bias()),
        }
    }
}

impl Precision {
    /// All precisions; among those of the same size, the fastest to read first.
    #[doc(hidden)]
    pub const ALL: [Self; 3] = [Self::Bf16, Self::F16, Self::F32];

    /// Size of a number, in bytes.
    #[doc(hidden)]
    pub const fn size(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// `bf16`, `f16` or `f32`.
    #[doc(hidden)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }

    /// Largest finite number: 65504 for f16, about 3.39 · 10³⁸ for bf16 and 3.40 · 10³⁸ for
    /// f32.
    #[doc(hidden)]
    pub fn largest(self) -> f64 {
        let FloatLayout { fraction, .. } = self.layout();
        (2.0 - (-f64::from(fraction)).exp2()) * f64::from(self.layout().bias()).exp2()
    }

    /// True if numbers take fewer bytes than those of `scalar`.
    #[doc(hidden)]
    pub const fn is_narrower_than(self, scalar: ScalarKind) -> bool {
        self.size() < scalar.size()
    }

    const fn layout(self) -> FloatLayout {
        match self {
            Self::Bf16 => FloatLayout { fraction: 7, exponent: 8 },
            Self::F16 => FloatLayout { fraction: 10, exponent: 5 },
            Self::F32 => FloatLayout { fraction: 23, exponent: 8 },
        }
    }

    /// Rounds to the nearest number of this precision, ties to even. `None` if a finite number is
    /// beyond the [largest](Self::largest) and would become infinite. A number below the normal
    /// range is rounded to a subnormal number or to zero and keeps its sign. Infinities stay. NaNs
    /// become quiet and keep the part of their payload that fits.
    ///
    /// ```
    /// # use sparseop::Precision;
    /// assert_eq!(Precision::F16.round(0.1f64), Some(0.0999755859375));
    /// assert_eq!(Precision::F16.round(70_000.0f32), None);
    /// assert_eq!(Precision::Bf16.round(70_000.0f32), Some(70_144.0));
    /// ```
    #[doc(hidden)]
    pub fn round<T: Scalar>(self, value: T) -> Option<T> {
        if !self.is_narrower_than(T::KIND) {
            return Some(value);
        }
        let wide = value.to_f64();
        if wide.is_nan() {
            let layout = FloatLayout::of(T::KIND);
            let kept = !0 << (layout.fraction - self.layout().fraction);
            return Some(T::from_bits(value.bits() & kept | 1 << (layout.fraction - 1)));
        }
        if wide.is_infinite() {
            return Some(value);
        }
        // A number is rounded to an integer in units of its last place; powers of two leave the
        // bits of a significand unchanged.
        let exponent = (wide.to_bits() >> 52 & 0x7ff) as i32 - 1023;
        let place = exponent.max(self.layout().least()) - self.layout().fraction as i32;
        let rounded = (wide * power(-place)).round_ties_even() * power(place);
        (rounded.abs() <= self.largest()).then(|| T::from_f64(rounded))
    }

    /// True if the precision represents a number exactly, bit by bit: zeros have signs, and a NaN
    /// keeps its payload.
    #[inline]
    #[doc(hidden)]
    pub fn holds<T: Scalar>(self, value: T) -> bool {
        let (wide, own) = (FloatLayout::of(T::KIND), self.layout());
        let Some(lost) = wide.fraction.checked_sub(own.fraction) else { return false };
        let (_, exponent, fraction) = wide.split_fields(value.bits());
        if exponent == wide.special() {
            return fraction.trailing_zeros() >= lost;
        }
        let (significand, first) = wide.significand(exponent, fraction);
        let below = (own.least() - first).max(0) as u32;
        significand == 0 || (first <= own.bias() && significand.trailing_zeros() >= lost + below)
    }

    /// True if the precision represents all numbers exactly. Stops early if it does not.
    pub(crate) fn holds_all<T: Scalar>(self, values: &[T]) -> bool {
        /// Numbers checked together.
        const BATCH: usize = 64;
        /// Numbers that a thread checks: some 100 µs, the time to wake a thread pool.
        const TASK: usize = 1 << 18;
        // Numbers that are unchanged by a conversion to `f32` and back are exact in it. This takes
        // a few vector instructions.
        let changed =
            |value: &T| value.bits() ^ T::from_f64(f64::from(value.to_f64() as f32)).bits();
        let unchanged =
            |values: &[T]| values.iter().fold(0, |bits, value| bits | changed(value)) == 0;
        let each = |values: &[T]| values.iter().all(|&value| self.holds(value));
        parallel::all(values.len(), TASK, |range| match self {
            Self::F32 => {
                values[range].chunks(BATCH).all(|values| unchanged(values) || each(values))
            }
            Self::Bf16 | Self::F16 => each(&values[range]),
        })
    }

    /// Bits of a number that the precision [represents](Self::holds).
    #[inline]
    pub(crate) fn narrow<T: Scalar>(self, value: T) -> u32 {
        debug_assert!(self.holds(value));
        let (wide, own) = (FloatLayout::of(T::KIND), self.layout());
        let (sign, exponent, fraction) = wide.split_fields(value.bits());
        let lost = wide.fraction - own.fraction;
        let (significand, first) = wide.significand(exponent, fraction);
        let bits = if exponent == wide.special() {
            own.join_fields(sign, own.special(), fraction >> lost)
        } else if significand == 0 {
            own.join_fields(sign, 0, 0)
        } else {
            let significand = significand >> (lost + (own.least() - first).max(0) as u32);
            // Without the implicit leading bit the number is subnormal.
            let is_normal = significand >> own.fraction != 0;
            let exponent = if is_normal { (first + own.bias()) as u64 } else { 0 };
            own.join_fields(sign, exponent, significand & ((1 << own.fraction) - 1))
        };
        bits as u32
    }

    /// The number with these bits.
    #[inline]
    pub(crate) fn widen<T: Scalar>(self, bits: u32) -> T {
        let (wide, own) = (FloatLayout::of(T::KIND), self.layout());
        let (sign, exponent, fraction) = own.split_fields(u64::from(bits));
        if exponent == own.special() {
            let fraction = fraction << (wide.fraction - own.fraction);
            return T::from_bits(wide.join_fields(sign, wide.special(), fraction));
        }
        let (significand, first) = own.significand(exponent, fraction);
        let magnitude = significand as f64 * power(first - own.fraction as i32);
        T::from_f64(if sign == 0 { magnitude } else { -magnitude })
    }
}

/// 2 to the power of `exponent`, which is a normal number.
#[inline]
fn power(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// A number stored in a narrower precision.
pub(crate) trait Narrow: Copy + Send + Sync + 'static {
    /// Precision of the number.
    const PRECISION: Precision;
    /// Converts the number exactly; NaNs may lose their payload.
    fn to_f32(self) -> f32;
}

/// The bits of a bf16.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bf16(pub(crate) u16);

impl Narrow for Bf16 {
    const PRECISION: Precision = Precision::Bf16;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

/// The bits of an f16.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct F16(pub(crate) u16);

impl Narrow for F16 {
    const PRECISION: Precision = Precision::F16;

    /// Moves exponent and fraction to the fields of an f32. A multiplication corrects the bias,
    /// also of subnormal numbers.
    #[inline(always)]
    fn to_f32(self) -> f32 {
        /// 2¹¹²: the bias of f32 exponents is 127, that of f16 is 15.
        const BIASES: f32 = f32::from_bits((127 + 127 - 15) << 23);
        /// Exponent field of infinities and NaNs.
        const SPECIAL: u32 = 0x1f << 10;
        let bits = u32::from(self.0);
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * BIASES;
        let special = if bits & SPECIAL == SPECIAL { 0xff << 23 } else { 0 };
        f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
    }
}

impl Narrow for f32 {
    const PRECISION: Precision = Precision::F32;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
}

impl Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The precisions that represent some numbers exactly. In an analysis, only precisions narrower
/// than the numbers' own are set. See [`Precision::holds`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExactIn {
    /// True if bf16 represents them.
    pub bf16: bool,
    /// True if f16 represents them.
    pub f16: bool,
    /// True if f32 represents them.
    pub f32: bool,
}

impl Default for ExactIn {
    /// The value for no numbers: all precisions.
    fn default() -> Self {
        Self { bf16: true, f16: true, f32: true }
    }
}

impl ExactIn {
    /// No precision.
    pub const NOTHING: Self = Self { bf16: false, f16: false, f32: false };

    /// A precision, and those that represent all of its numbers.
    pub fn only(precision: Precision) -> Self {
        let is = |other: Precision| other == precision;
        Self { bf16: is(Precision::Bf16), f16: is(Precision::F16), f32: true }
    }

    /// True if `precision` represents the numbers.
    pub fn contains(self, precision: Precision) -> bool {
        match precision {
            Precision::Bf16 => self.bf16,
            Precision::F16 => self.f16,
            Precision::F32 => self.f32,
        }
    }

    /// The precisions among these whose numbers take fewer bytes than those of `scalar`.
    #[must_use]
    pub fn below(self, scalar: ScalarKind) -> Self {
        Self { f32: self.f32 && Precision::F32.is_narrower_than(scalar), ..self }
    }

    /// The precision with the fewest bytes that represents the numbers, if any.
    pub fn narrowest(self) -> Option<Precision> {
        Precision::ALL.into_iter().find(|&precision| self.contains(precision))
    }

    /// The precisions that represent all of `values`.
    pub(crate) fn of<T: Scalar>(values: &[T]) -> Self {
        // All numbers of the other precisions are exact in f32.
        let f32 = !Precision::F32.is_narrower_than(T::KIND) || Precision::F32.holds_all(values);
        let all = |precision: Precision| f32 && precision.holds_all(values);
        Self { f32, f16: all(Precision::F16), bf16: all(Precision::Bf16) }
    }

    /// The precisions that represent both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            bf16: self.bf16 && other.bf16,
            f16: self.f16 && other.f16,
            f32: self.f32 && other.f32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;

    /// Converts any 16-bit number with another implementation.
    fn read(precision: Precision, bits: u16) -> f32 {
        match precision {
            Precision::F16 => f16::from_bits(bits).to_f32(),
            _ => bf16::from_bits(bits).to_f32(),
        }
    }

    #[test]
    fn every_16_bit_number_there_and_back() {
        for precision in [Precision::Bf16, Precision::F16] {
            for bits in 0..=u16::MAX {
                let (single, double) =
                    (precision.widen::<f32>(bits.into()), precision.widen::<f64>(bits.into()));
                let expected = read(precision, bits);
                assert!(
                    single == expected || single.is_nan() && expected.is_nan(),
                    "{precision} {bits:#x}"
                );
                assert!(double == f64::from(expected) || double.is_nan(), "{precision} {bits:#x}");
                assert!(
                    precision.holds(single) && precision.holds(double),
                    "{precision} {bits:#x}"
                );
                assert_eq!(
                    (precision.narrow(single), precision.narrow(double)),
                    (bits.into(), bits.into())
                );
                assert_eq!(single.is_sign_negative(), bits >> 15 == 1, "{precision} {bits:#x}");
                let quick = if precision == Precision::F16 {
                    F16(bits).to_f32()
                } else {
                    Bf16(bits).to_f32()
                };
                assert_eq!(quick.to_bits(), single.to_bits(), "{precision} {bits:#x}");
            }
        }
    }

    #[test]
    fn special_numbers() {
        let [bf16, f16, f32] = Precision::ALL;
        assert_eq!(f16.largest(), 65504.0);
        assert_eq!(
            (bf16.largest(), f32.largest()),
            (f64::from(half::bf16::MAX), f64::from(f32::MAX))
        );
        // Infinity begins half a unit in the last place beyond the largest number.
        assert_eq!(f16.round(65519.99f64), Some(65504.0));
        assert_eq!((f16.round(65520.0f64), f16.round(-65520.0f32)), (None, None));
        assert_eq!(f32.round(f64::from(f32::MAX) * (1.0 + 2e-8)), Some(f64::from(f32::MAX)));
        assert_eq!((f32.round(1e39f64), bf16.round(f32::MAX)), (None, None));
        assert_eq!(f32.round(0.1f32), Some(0.1), "as it is");
        for precision in Precision::ALL {
            assert_eq!(precision.round(f64::NEG_INFINITY), Some(f64::NEG_INFINITY));
            assert!(precision.round(f64::NAN).unwrap().is_nan());
            let zero = precision.round(-1e-300f64).unwrap();
            assert!(zero == 0.0 && zero.is_sign_negative());
            assert!(
                precision.holds(-0.0f64)
                    && precision.holds(f64::INFINITY)
                    && precision.holds(f64::NAN)
            );
            assert!(
                !precision.holds(f64::MAX)
                    && !precision.holds(0.1f64)
                    && !precision.holds(5e-324f64)
            );
        }
        // The smallest subnormal numbers, and halves of them, which round to even.
        assert!(
            f16.holds(2f32.powi(-24))
                && !f16.holds(2f32.powi(-25))
                && f16.round(2f32.powi(-25)) == Some(0.0)
        );
        assert_eq!(f16.round(3.0 * 2f64.powi(-25)), Some(2f64.powi(-23)));
        // 2^-133 and 2^-134.
        assert!(bf16.holds(f32::from_bits(1 << 16)) && !bf16.holds(f32::from_bits(1 << 15)));
        assert!(f32.holds(2f64.powi(-149)) && !f32.holds(2f64.powi(-150)));
        let nan = f64::from_bits(0x7ff8_0000_dead_beef);
        assert!(!f32.holds(nan) && f32.holds(f32.round(nan).unwrap()));
        let signalling = f64::from_bits(0x7ff0_0000_2000_0000);
        assert!(f32.holds_all(&[1.0, signalling]) && !f32.holds_all(&[signalling, nan]));
        assert!(f32.holds(0.1f32) && !bf16.holds(0.1f32));
    }

    #[test]
    fn the_narrowest_that_holds_all() {
        let of = |values: &[f64]| ExactIn::of(values);
        let mut many = vec![1.0; 1000];
        assert_eq!(of(&many).narrowest(), Some(Precision::Bf16));
        many[700] = 2049.0 / 2048.0;
        assert_eq!(of(&many).narrowest(), Some(Precision::F32));
        many[700] = 1025.0 / 1024.0;
        assert_eq!(of(&many), ExactIn::only(Precision::F16));
        many[701] = 1e10;
        assert_eq!(of(&many), ExactIn::only(Precision::F32));
        many[999] = 0.1;
        assert_eq!(of(&many), ExactIn::NOTHING);
        assert_eq!(ExactIn::only(Precision::F32).below(ScalarKind::F32).narrowest(), None);
        assert_eq!(ExactIn::of(&[0.1f32]).below(ScalarKind::F32), ExactIn::NOTHING);
        assert_eq!(of(&[1.0]).and(of(&[0.1])), ExactIn::NOTHING);
    }

    proptest! {
        #[test]
        fn rounds_as_others_do(bits in any::<u32>(), wide in any::<u64>()) {
            let (value, wide) = (f32::from_bits(bits), f64::from_bits(wide));
            let same = |ours: Option<f32>, theirs: f32| match ours {
                Some(ours) => ours == theirs || ours.is_nan() && theirs.is_nan(),
                None => theirs.is_infinite(),
            };
            prop_assert!(same(Precision::F16.round(value), f16::from_f32(value).to_f32()));
            prop_assert!(same(Precision::Bf16.round(value), bf16::from_f32(value).to_f32()));
            let single = Precision::F32.round(wide).map(|v| v as f32);
            prop_assert!(same(single, wide as f32));
        }

        #[test]
        fn holds_what_rounding_leaves(bits in any::<u64>(), scale in -160i32..160) {
            let near = f64::from_bits(bits) .abs().log2().fract().exp2() * f64::from(scale).exp2();
            for value in [f64::from_bits(bits), near] {
                for precision in Precision::ALL {
                    let Some(rounded) = precision.round(value) else { continue };
                    prop_assert!(precision.holds(rounded));
                    let widened = precision.widen::<f64>(precision.narrow(rounded));
                    prop_assert_eq!(widened.to_bits(), rounded.to_bits());
                    prop_assert_eq!(precision.holds(value), rounded.to_bits() == value.to_bits());
                    prop_assert_eq!(precision.holds_all(&[rounded, value]), precision.holds(value));
                }
            }
        }
    }
}
