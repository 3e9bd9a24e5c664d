//! What the entries are.

use super::random::{Purpose, Random};
use crate::{Scalar, ScalarKind};
use rayon::prelude::*;

/// Values that share a stream of random numbers.
const VALUES_PER_STREAM: usize = 1 << 16;
/// Different values of [`Values::Few`].
const FEW: u64 = 16;

/// The values of a gallery matrix, whatever its pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Values {
    /// Uniform in [−0.5, 0.5): nothing to compress.
    #[default]
    Random,
    /// All one: only the pattern counts.
    Pattern,
    /// Sixteen different values, none of them zero, each place's at random.
    Few,
}

impl Values {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Random, Self::Pattern, Self::Few];

    /// The spelling in a specification: `random`, `pattern` or `few`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Pattern => "pattern",
            Self::Few => "few",
        }
    }

    /// The values of `nnz` entries.
    pub(super) fn generate<T: Scalar>(self, nnz: usize, seed: u64) -> Vec<T> {
        let draw: fn(u64) -> T = match self {
            Self::Random => centred,
            Self::Pattern => return vec![T::ONE; nnz],
            Self::Few => |bits| T::from_f64((2 * (bits % FEW) + 1) as f64 / (2 * FEW) as f64 - 0.5),
        };
        let mut values = vec![T::ZERO; nnz];
        values.par_chunks_mut(VALUES_PER_STREAM).enumerate().for_each(|(block, values)| {
            let mut random = Random::new(seed, Purpose::Value, block);
            values.iter_mut().for_each(|value| *value = draw(random.bits()));
        });
        values
    }
}

/// Uniform in [−0.5, 0.5), with as many bits as the type holds exactly: rounding could reach 0.5.
fn centred<T: Scalar>(bits: u64) -> T {
    let digits = match T::KIND {
        ScalarKind::F32 => 24,
        ScalarKind::F64 => 53,
    };
    T::from_f64((bits >> (64 - digits)) as f64 / (1u64 << digits) as f64 - 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_values_stay_below_a_half() {
        assert_eq!([centred::<f32>(0), centred::<f32>(u64::MAX)], [-0.5, 0.5 - 2f32.powi(-24)]);
        assert_eq!([centred::<f64>(0), centred::<f64>(u64::MAX)], [-0.5, 0.5 - 2f64.powi(-53)]);
        let values = Values::Random.generate::<f32>(200_000, 1);
        let mean = values.iter().map(|v| v.to_f64()).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.005, "{mean}");
    }

    #[test]
    fn few_are_sixteen_and_never_zero() {
        let values = Values::Few.generate::<f64>(10_000, 1);
        let bits: std::collections::BTreeSet<u64> = values.iter().map(|v| v.bits()).collect();
        assert_eq!(bits.len(), 16);
        assert!(values.iter().all(|v| *v != 0.0 && v.abs() < 0.5));
    }
}
