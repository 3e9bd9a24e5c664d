//! Fits of coefficients and corrections to measured times.

use sparseop::tuning::cost::{Coefficients, PACKED, Term, WorkTerms};

/// One measured plan on one matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    /// Work terms of the product.
    pub work_terms: WorkTerms,
    /// Work terms of packing; see [`cost::packed`](sparseop::tuning::cost::packed).
    pub packed: [f64; PACKED],
    /// Nanoseconds of a product.
    pub product: f64,
    /// Nanoseconds of packing.
    pub prepare: f64,
    /// Weight of its error. The error of a plan that is far from being chosen may be larger.
    pub weight: f64,
}

/// Fits non-negative coefficients that minimise the weighted squared relative errors.
pub fn fit(observations: &[Observation]) -> Coefficients {
    fit_rest(observations, None)
}

/// As [`fit`], with one fixed coefficient.
fn fit_rest(observations: &[Observation], given: Option<(Term, f64)>) -> Coefficients {
    let product = observations.iter().filter(|o| o.product > 0.0).map(|o| {
        let mut parts = o.work_terms.map(|work| work / o.product);
        let known = given.map_or(0.0, |(term, c)| c * std::mem::take(&mut parts[term as usize]));
        (parts, 1.0 - known, o.weight)
    });
    let mut terms = solve::<{ Term::COUNT }>(product);
    if let Some((term, c)) = given {
        terms[term as usize] = c;
    }
    let packings = observations.iter().filter(|o| o.prepare > 0.0);
    Coefficients::new(
        terms,
        solve::<PACKED>(packings.map(|o| (o.packed.map(|a| a / o.prepare), 1.0, 1.0))),
    )
}

/// As [`fit`] for each of several kernels with one common coefficient, which belongs to code that
/// they share and affects few matrices.
pub fn fit_sharing(kernels: &[&[Observation]], shared: Term) -> Vec<Coefficients> {
    /// The common coefficient and the others are fitted alternately until it does not change; each
    /// step decreases the objective.
    const TURNS: usize = 50;
    const STILL: f64 = 1e-3;
    let place = shared as usize;
    let mut fits: Vec<Coefficients> = kernels.iter().map(|kernel| fit(kernel)).collect();
    if kernels.len() < 2 {
        return fits;
    }
    let mut common = f64::NAN;
    for _ in 0..TURNS {
        let (mut explained, mut squares) = (0.0, 0.0);
        for (kernel, fit) in kernels.iter().zip(&fits) {
            let terms = fit.terms();
            for o in kernel.iter().filter(|o| o.product > 0.0) {
                let others =
                    (0..Term::COUNT).filter(|&i| i != place).map(|i| terms[i] * o.work_terms[i]);
                let (part, square) = (o.work_terms[place] / o.product, o.weight * o.weight);
                explained += square * part * (1.0 - others.sum::<f64>() / o.product);
                squares += square * part * part;
            }
        }
        if squares == 0.0 {
            break;
        }
        let before =
            std::mem::replace(&mut common, (explained / squares).clamp(0.0, Coefficients::MAX));
        if (common - before).abs() <= STILL * common {
            break;
        }
        fits = kernels.iter().map(|kernel| fit_rest(kernel, Some((shared, common)))).collect();
    }
    fits
}

/// Non-negative least squares of Σ unknown·factor = value.
fn solve<const N: usize>(rows: impl Iterator<Item = ([f64; N], f64, f64)>) -> [f64; N] {
    let mut normal = Normal::default();
    rows.for_each(|(factors, value, weight)| normal.add(&factors, value, weight));
    normal.solve(0.0, Coefficients::MAX)
}

/// Normal equations of a least-squares problem.
pub(crate) struct Normal<const N: usize> {
    gram: [[f64; N]; N],
    target: [f64; N],
}

impl<const N: usize> Default for Normal<N> {
    fn default() -> Self {
        Self { gram: [[0.0; N]; N], target: [0.0; N] }
    }
}

impl<const N: usize> Normal<N> {
    /// Adds the equation Σ unknown·factor = value, with its squared error times the square of
    /// `weight`.
    pub(crate) fn add(&mut self, factors: &[f64; N], value: f64, weight: f64) {
        let square = weight * weight;
        for i in 0..N {
            self.target[i] += factors[i] * value * square;
            for j in 0..N {
                self.gram[i][j] += factors[i] * factors[j] * square;
            }
        }
    }

    /// Adds `penalty` times the square of every unknown to the objective.
    pub(crate) fn penalise(&mut self, penalty: f64) {
        (0..N).for_each(|i| self.gram[i][i] += penalty);
    }

    /// Solves for the unknowns, none below `least` or above `most`, by cyclic coordinate descent
    /// (Franc, Hlaváč & Navara, CAIP 2005): each unknown in turn takes its optimal value with the
    /// others fixed.
    pub(crate) fn solve(&self, least: f64, most: f64) -> [f64; N] {
        /// Sufficient for the columns here, which differ by many orders of magnitude but are few.
        const SWEEPS: usize = 20_000;
        /// Relative change of the contributions below which a sweep is the last.
        const STILL: f64 = 1e-9;
        let mut unknowns = [0.0f64; N];
        for _ in 0..SWEEPS {
            let mut moved = 0.0f64;
            for i in (0..N).filter(|&i| self.gram[i][i] > 0.0) {
                let others: f64 =
                    (0..N).filter(|&j| j != i).map(|j| self.gram[i][j] * unknowns[j]).sum();
                let best = ((self.target[i] - others) / self.gram[i][i]).clamp(least, most);
                // In units of the sum of squares, so that small coefficients of large terms
                // count.
                moved = moved.max((best - unknowns[i]).abs() * self.gram[i][i].sqrt());
                unknowns[i] = best;
            }
            if moved <= STILL {
                break;
            }
        }
        unknowns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Root mean square of the relative errors of `coefficients`.
    fn relative_error(coefficients: &Coefficients, observations: &[Observation]) -> f64 {
        let error = |o: &Observation| {
            let predicted: f64 =
                coefficients.terms().iter().zip(&o.work_terms).map(|(c, a)| c * a).sum();
            (predicted / o.product - 1.0).powi(2)
        };
        (observations.iter().map(error).sum::<f64>() / observations.len().max(1) as f64).sqrt()
    }

    #[test]
    fn known_coefficients_are_found_again() {
        let truth = [
            100.0, 50.0, 0.5, 0.1, 0.0, 0.0, 0.2, 0.0, 1.5, 2.0, 0.1, 0.0, 0.0, 0.25, 0.0, 0.0,
            900.0, 0.0, 0.0, 0.05,
        ];
        let observations: Vec<_> = (1..60u64)
            .map(|i| {
                let work_terms: WorkTerms = std::array::from_fn(|t| {
                    let bits = (i * 2_654_435_761 + t as u64 * 40_503).wrapping_mul(i + 11) % 1000;
                    match t {
                        0 => 1.0,
                        1 => f64::from(i % 3 == 0),
                        16 => (i % 4) as f64,
                        _ => bits as f64 * 100.0,
                    }
                });
                let product = truth.iter().zip(&work_terms).map(|(c, a)| c * a).sum();
                let packed = [work_terms[2], work_terms[8], 1.0];
                let prepare = 3.0 * work_terms[2] + work_terms[8] + 5e4;
                Observation { work_terms, packed, product, prepare, weight: 1.0 }
            })
            .collect();
        let found = fit(&observations);
        assert!(relative_error(&found, &observations) < 1e-3);
        for (found, truth) in found.terms().iter().zip(truth) {
            assert!((found - truth).abs() <= 0.02 * truth.max(1.0), "{found} is not {truth}");
        }
        assert!(
            (found.pack_slot - 3.0).abs() < 1e-2 && (found.pack_call - 5e4).abs() < 5e2,
            "{found:?}"
        );
        assert!(found.is_valid());
    }

    #[test]
    fn coefficients_of_hardly_any_work_are_valid() {
        let observation = |unevenness, product| {
            let mut work_terms = [0.0; Term::COUNT];
            (work_terms[Term::Call as usize], work_terms[Term::Uneven as usize]) =
                (1.0, unevenness);
            Observation {
                work_terms,
                packed: [1.0, 1e-12, 0.0],
                product,
                prepare: 7.0,
                weight: 1.0,
            }
        };
        let found = fit(&[observation(0.0, 1e4), observation(1e-12, 5e4)]);
        assert!(found.is_valid(), "{found:?}");
    }

    #[test]
    fn a_pooled_coefficient_is_shared_by_kernels_without_observations() {
        let (call, latency) = (Term::Call as usize, Term::LongRowLatency as usize);
        let of = |base: f64, doublings: f64, product: f64| {
            let mut work_terms = [0.0; Term::COUNT];
            (work_terms[call], work_terms[latency]) = (1.0, doublings);
            assert!(product >= base);
            Observation { work_terms, packed: [1.0, 0.0, 0.0], product, prepare: 7.0, weight: 1.0 }
        };
        let telling: Vec<_> =
            [0.0, 1.0, 4.0, 8.0].map(|p| of(1000.0, p, 1000.0 + 500.0 * p)).to_vec();
        // A fit of its own would assign the one product with a long row about 200 ns.
        let silent: Vec<_> =
            [(0.0, 2000.0), (0.0, 2020.0), (1.0, 2210.0)].map(|(p, t)| of(2000.0, p, t)).to_vec();
        let fits = fit_sharing(&[&telling, &silent], Term::LongRowLatency);
        assert!(fit(&silent).long_row_latency < 250.0);
        assert!(
            fits[0].long_row_latency == fits[1].long_row_latency
                && (480.0..=500.0).contains(&fits[0].long_row_latency),
            "{fits:?}"
        );
        assert!(
            (990.0..1050.0).contains(&fits[0].call) && (1800.0..2000.0).contains(&fits[1].call),
            "{fits:?}"
        );
        assert!((fits[1].pack_slot - 7.0).abs() < 1e-6);
        // Without observations of the shared term, each kernel is fitted on its own.
        let none: Vec<_> = [1000.0, 1010.0].map(|t| of(1000.0, 0.0, t)).to_vec();
        assert_eq!(fit_sharing(&[&none, &none], Term::LongRowLatency), [fit(&none); 2]);
    }

    #[test]
    fn light_weights_do_not_affect_the_fit() {
        let of = |work: f64, product: f64, weight: f64| {
            let mut work_terms = [0.0; Term::COUNT];
            work_terms[2] = work;
            Observation { work_terms, packed: [1.0, 0.0, 0.0], product, prepare: 1.0, weight }
        };
        let alike = fit(&[of(1.0, 2.0, 1.0), of(1.0, 8.0, 1.0)]).slot;
        let weighted = fit(&[of(1.0, 2.0, 1.0), of(1.0, 8.0, 0.01)]).slot;
        assert!((weighted - 2.0).abs() < 0.01 && alike > 2.1, "{weighted} {alike}");
    }
}
