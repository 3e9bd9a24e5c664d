//! Values of the entries.

use super::pattern::GeneratedPattern;
use super::random::{Purpose, Random};
use crate::{Error, Scalar, ScalarKind, memory, parallel};

/// Number of values that share a stream of random numbers.
const VALUES_PER_STREAM: usize = 1 << 16;
/// Number of distinct values of [`Values::Few`].
const FEW: u64 = 16;

/// Values of a gallery matrix, independent of its pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Values {
    /// Uniform in [−0.5, 0.5): incompressible.
    #[default]
    Random,
    /// All one: a pattern matrix.
    Pattern,
    /// Sixteen different values, none of them zero, chosen at random for each place.
    Few,
    /// −1 beside the diagonal, and on the diagonal the maximum number of off-diagonal entries of
    /// a row: for a stencil, Poisson's equation with zeros around the grid. Positive definite if
    /// the pattern is symmetric and connected and some row has fewer.
    Laplacian,
}

impl Values {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Random, Self::Pattern, Self::Few, Self::Laplacian];

    /// Spelling in a specification: `random`, `pattern`, `few` or `laplacian`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Pattern => "pattern",
            Self::Few => "few",
            Self::Laplacian => "laplacian",
        }
    }

    /// Generates the values of a pattern.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub(super) fn generate<T: Scalar>(
        self,
        pattern: &GeneratedPattern,
        seed: u64,
    ) -> Result<Vec<T>, Error> {
        let nnz = pattern.col_idx.len();
        let draw: fn(u64) -> T = match self {
            Self::Random => centred,
            Self::Pattern => return memory::filled(nnz, T::ONE),
            Self::Laplacian => return laplacian(pattern),
            Self::Few => |bits| T::from_f64((2 * (bits % FEW) + 1) as f64 / (2 * FEW) as f64 - 0.5),
        };
        let mut values = memory::try_zeroed(nnz)?;
        let blocks = values.chunks_mut(VALUES_PER_STREAM).enumerate();
        parallel::for_each_item(blocks, |(block, values)| {
            let mut random = Random::new(seed, Purpose::Value, block);
            values.iter_mut().for_each(|value| *value = draw(random.bits()));
        });
        Ok(values)
    }
}

/// See [`Values::Laplacian`].
fn laplacian<T: Scalar>(pattern: &GeneratedPattern) -> Result<Vec<T>, Error> {
    let rows = || {
        pattern
            .row_ptr
            .windows(2)
            .enumerate()
            .map(|(row, ends)| (row, &pattern.col_idx[ends[0]..ends[1]]))
    };
    let beside =
        |(row, cols): (usize, &[u32])| cols.iter().filter(|col| **col as usize != row).count();
    let diagonal = T::from_f64(rows().map(beside).max().unwrap_or(0) as f64);
    let mut values = memory::reserved(pattern.col_idx.len())?;
    values.extend(rows().flat_map(|(row, cols)| {
        cols.iter().map(move |col| if *col as usize == row { diagonal } else { -T::ONE })
    }));
    Ok(values)
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

    /// A row of `nnz` entries.
    fn places(nnz: u32) -> GeneratedPattern {
        GeneratedPattern { row_ptr: vec![0, nnz as usize], col_idx: (0..nnz).collect() }
    }

    #[test]
    fn a_laplacian_is_poissons_equation() {
        // A path of three nodes.
        let pattern =
            GeneratedPattern { row_ptr: vec![0, 2, 5, 7], col_idx: vec![0, 1, 0, 1, 2, 1, 2] };
        let values = Values::Laplacian.generate::<f32>(&pattern, 1).unwrap();
        assert_eq!(values, [2.0, -1.0, -1.0, 2.0, -1.0, -1.0, 2.0]);
    }

    #[test]
    fn random_values_stay_below_a_half() {
        assert_eq!([centred::<f32>(0), centred::<f32>(u64::MAX)], [-0.5, 0.5 - 2f32.powi(-24)]);
        assert_eq!([centred::<f64>(0), centred::<f64>(u64::MAX)], [-0.5, 0.5 - 2f64.powi(-53)]);
        let values = Values::Random.generate::<f32>(&places(200_000), 1).unwrap();
        let mean = values.iter().map(|v| v.to_f64()).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.005, "{mean}");
    }

    #[test]
    fn few_are_sixteen_and_never_zero() {
        let values = Values::Few.generate::<f64>(&places(10_000), 1).unwrap();
        let bits: std::collections::BTreeSet<u64> = values.iter().map(|v| v.bits()).collect();
        assert_eq!(bits.len(), 16);
        assert!(values.iter().all(|v| *v != 0.0 && v.abs() < 0.5));
    }
}
