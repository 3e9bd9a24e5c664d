//! Reference product in higher precision, with an error bound that holds for any order of
//! summation.

use rayon::prelude::*;
use sparseop::matrix::CsrView;
use sparseop::{Scalar, zeroed};

/// The exact product `A x` and the allowed error of a kernel.
#[derive(Debug, Clone)]
pub struct Oracle {
    /// The product, computed in `f64` for `f32` and in compensated `f64` for `f64`.
    y: Vec<f64>,
    /// Σ|a·x| of every row.
    scale: Vec<f64>,
    /// Allowed |ŷ − y| of every row.
    bound: Vec<f64>,
}

impl Oracle {
    /// Computes the product row by row.
    pub fn of<T: Scalar>(a: CsrView<'_, T>, x: &[T]) -> Self {
        let rows: Vec<(f64, f64, f64)> = (0..a.nrows())
            .into_par_iter()
            .with_min_len(1024)
            .map(|row| {
                let (cols, values) = a.row(row);
                let (mut sum, mut lost, mut scale) = (0.0f64, 0.0f64, 0.0f64);
                for (&col, &value) in cols.iter().zip(values) {
                    let (a, x) = (value.to_f64(), x[col as usize].to_f64());
                    let product = a * x;
                    // Rounding error of the product (two-product), followed by that of the sum
                    // (Neumaier).
                    let error = a.mul_add(x, -product);
                    let next = sum + product;
                    lost += if sum.abs() >= product.abs() {
                        (sum - next) + product
                    } else {
                        (product - next) + sum
                    };
                    if error.is_finite() {
                        lost += error;
                    }
                    sum = next;
                    scale += product.abs();
                }
                let y = if lost.is_finite() { sum + lost } else { sum };
                // n products and n − 1 sums, each rounded once; doubled for the rounding of the
                // reference itself. Subnormal results are rounded to the spacing of the smallest
                // numbers.
                (y, scale, (cols.len() + 2) as f64 * (T::EPSILON * scale + T::MIN))
            })
            .collect();
        Self {
            y: rows.iter().map(|r| r.0).collect(),
            scale: rows.iter().map(|r| r.1).collect(),
            bound: rows.iter().map(|r| r.2).collect(),
        }
    }

    /// Converts to the oracle of `alpha A x + beta y`. A factor of 0 suppresses its term, including
    /// NaN and infinities.
    #[must_use]
    pub fn scaled<T: Scalar>(mut self, alpha: T, beta: T, y: &[T]) -> Self {
        let times = |factor: f64, value: f64| if factor == 0.0 { 0.0 } else { factor * value };
        let (alpha, beta) = (alpha.to_f64(), beta.to_f64());
        for (row, y) in y.iter().enumerate() {
            let added = times(beta, y.to_f64());
            self.y[row] = times(alpha, self.y[row]) + added;
            self.scale[row] = times(alpha.abs(), self.scale[row]) + added.abs();
            // Rounding of two products and a sum.
            self.bound[row] =
                times(alpha.abs(), self.bound[row]) + 4.0 * (T::EPSILON * self.scale[row] + T::MIN);
        }
        self
    }

    /// Largest |ŷ − y| / Σ|a·x| over the rows; infinite if a row is NaN or infinite and should
    /// not be, or vice versa.
    pub fn rel_error<T: Scalar>(&self, y: &[T]) -> f64 {
        assert_eq!(y.len(), self.y.len(), "a product has one element a row");
        let error =
            |((&y, &expected), &scale): ((&T, &f64), &f64)| match distance(y.to_f64(), expected) {
                0.0 => 0.0,
                distance => distance / scale,
            };
        y.iter().zip(&self.y).zip(&self.scale).map(error).fold(0.0, f64::max)
    }

    /// Checks that every row is within its bound.
    ///
    /// # Errors
    ///
    /// A sentence about the first wrong row, with its computed and its expected value.
    pub fn check<T: Scalar>(&self, y: &[T]) -> Result<(), String> {
        if y.len() != self.y.len() {
            return Err(format!("{} rows were expected, not {}", self.y.len(), y.len()));
        }
        let wrong = (0..y.len()).find(|&i| {
            let distance = distance(y[i].to_f64(), self.y[i]);
            // The bound of a row that touches a NaN or Inf is not usable; `distance` has compared
            // such rows exactly. If the terms are too large for the type, some orders of summation
            // overflow.
            let overflows =
                self.scale[i].is_finite() && self.scale[i] > T::MAX && !y[i].to_f64().is_finite();
            distance != 0.0 && !(distance.is_finite() && distance <= self.bound[i]) && !overflows
        });
        wrong.map_or(Ok(()), |i| {
            Err(format!("row {i} is {} and should be {} ± {}", y[i], self.y[i], self.bound[i]))
        })
    }
}

/// |ŷ − y|, with NaN equal to NaN and an infinity to itself, and both infinitely far from any
/// other value.
fn distance(found: f64, expected: f64) -> f64 {
    if found == expected || (found.is_nan() && expected.is_nan()) {
        0.0
    } else if found.is_finite() && expected.is_finite() {
        (found - expected).abs()
    } else {
        f64::INFINITY
    }
}

/// A vector to multiply with: numbers in ±[0.5, 1.5], the same for the same length, without a
/// pattern that could hide errors of structure.
pub fn x_vector<T: Scalar>(len: usize) -> Vec<T> {
    let mut x = zeroed(len);
    x.par_iter_mut().enumerate().for_each(|(i, x)| {
        // Finaliser of SplitMix64: neighbouring indices give unrelated bits.
        let mut z =
            (i as u64).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let magnitude = 0.5 + (z >> 11) as f64 / (1u64 << 53) as f64;
        *x = T::from_f64(if z & 1 == 0 { magnitude } else { -magnitude });
    });
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparseop::matrix::CsrMatrix;

    fn one_row(values: Vec<f64>) -> CsrMatrix<f64> {
        let n = values.len();
        CsrMatrix::try_new(1, n, vec![0, n], (0..n as u32).collect(), values).unwrap()
    }

    #[test]
    fn cancellation_is_seen_through() {
        let a = one_row(vec![1e16, 1.0, -1e16]);
        let oracle = Oracle::of(a.view(), &[1.0; 3]);
        assert_eq!(oracle.y, [1.0]);
        assert!(oracle.check(&[0.0]).is_ok(), "what a plain sum gives is within its bound");
        assert!(oracle.check(&[1e6]).is_err());
    }

    #[test]
    fn underflow_and_overflow_are_no_errors() {
        let diagonal = CsrMatrix::try_new(1, 1, vec![0, 1], vec![0], vec![1e-40f32]).unwrap();
        let oracle = Oracle::of(diagonal.view(), &[0.3]);
        assert!(oracle.check(&[1e-40 * 0.3]).is_ok());
        let large = CsrMatrix::try_new(1, 3, vec![0, 3], vec![0, 1, 2], vec![-3e38f32; 3]).unwrap();
        let oracle = Oracle::of(large.view(), &[1.0, 1.0, -1.0]);
        assert!(oracle.check(&[f32::NEG_INFINITY]).is_ok());
        assert!(oracle.check(&[0.0]).is_err());
    }

    #[test]
    fn nan_and_inf_must_be_where_they_belong() {
        let a = one_row(vec![1.0, 2.0]);
        let oracle = Oracle::of(a.view(), &[f64::INFINITY, 1.0]);
        assert!(oracle.check(&[f64::INFINITY]).is_ok());
        assert!(oracle.check(&[f64::NAN]).is_err());
        assert!(oracle.check(&[1.0]).is_err());
        let finite = Oracle::of(a.view(), &[1.0, 1.0]);
        assert!(finite.check(&[f64::NAN]).is_err());
        assert_eq!(finite.rel_error(&[f64::NAN]), f64::INFINITY);
        assert_eq!(finite.rel_error(&[3.0]), 0.0);
    }
}
