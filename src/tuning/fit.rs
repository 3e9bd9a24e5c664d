//! Fitting coefficients to measured times.

use super::cost::{Amounts, Coefficients, Term};

/// One measured plan on one matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// What the product did.
    pub amounts: Amounts,
    /// Slots and rows that were packed.
    pub packed: [f64; 2],
    /// Nanoseconds of a product.
    pub product: f64,
    /// Nanoseconds of packing.
    pub prepare: f64,
}

/// The coefficients that minimise the squared relative errors, none of them negative.
pub fn fit(observations: &[Observation]) -> Coefficients {
    let product = observations.iter().map(|o| (o.amounts, o.product));
    let pack = observations.iter().map(|o| (o.packed, o.prepare));
    Coefficients::new(least_squares::<{ Term::COUNT }>(product), least_squares::<2>(pack))
}

/// Root mean square of the relative errors that `coefficients` leave.
pub fn relative_error(coefficients: &Coefficients, observations: &[Observation]) -> f64 {
    let error = |o: &Observation| {
        let predicted: f64 = coefficients.terms().iter().zip(&o.amounts).map(|(c, a)| c * a).sum();
        (predicted / o.product - 1.0).powi(2)
    };
    (observations.iter().map(error).sum::<f64>() / observations.len().max(1) as f64).sqrt()
}

/// Non-negative least squares of Σ c·amount / time = 1 by cyclic coordinate descent (Franc, Hlaváč & Navara, CAIP 2005): each
/// coefficient in turn takes its best value with the others fixed, never below 0.
fn least_squares<const N: usize>(rows: impl Iterator<Item = ([f64; N], f64)>) -> [f64; N] {
    /// Enough for the columns here, which differ by many orders of magnitude but are few.
    const SWEEPS: usize = 20_000;
    let mut gram = [[0.0; N]; N];
    let mut target = [0.0; N];
    for (amounts, time) in rows.filter(|r| r.1 > 0.0) {
        for i in 0..N {
            target[i] += amounts[i] / time;
            for j in 0..N {
                gram[i][j] += amounts[i] / time * (amounts[j] / time);
            }
        }
    }
    let mut coefficients = [0.0f64; N];
    for _ in 0..SWEEPS {
        for i in 0..N {
            if gram[i][i] > 0.0 {
                let others: f64 = (0..N).filter(|&j| j != i).map(|j| gram[i][j] * coefficients[j]).sum();
                coefficients[i] = ((target[i] - others) / gram[i][i]).max(0.0);
            }
        }
    }
    coefficients
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_coefficients_are_found_again() {
        let truth = [100.0, 50.0, 0.5, 0.1, 0.0, 0.0, 0.2, 1.5, 2.0, 0.1, 0.0, 0.0, 0.25, 0.0, 0.0, 0.05];
        let observations: Vec<_> = (1..60u64)
            .map(|i| {
                let amounts: Amounts = std::array::from_fn(|t| {
                    let bits = (i * 2_654_435_761 + t as u64 * 40_503).wrapping_mul(i + 11) % 1000;
                    if t == 0 || (t == 1 && i % 3 == 0) { 1.0 } else { bits as f64 * 100.0 }
                });
                let product = truth.iter().zip(&amounts).map(|(c, a)| c * a).sum();
                Observation {
                    amounts,
                    packed: [amounts[2], amounts[8]],
                    product,
                    prepare: 3.0 * amounts[2] + amounts[8],
                }
            })
            .collect();
        let found = fit(&observations);
        assert!(relative_error(&found, &observations) < 1e-3);
        for (found, truth) in found.terms().iter().zip(truth) {
            assert!((found - truth).abs() <= 0.02 * truth.max(1.0), "{found} is not {truth}");
        }
        assert!((found.pack_slot - 3.0).abs() < 1e-2);
        assert!(found.is_valid());
    }
}
