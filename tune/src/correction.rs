//! Fit of learned corrections: curves over features, by ridge regression.

use crate::fit::Normal;
use sparseop::tuning::correction::{Feature, Features, KernelCorrection};

/// A measured product for the fit of a correction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Residual {
    /// Features of the matrix and the plan.
    pub features: Features,
    /// Logarithm of measured over predicted time.
    pub log: f64,
    /// Weight of the square of its error.
    pub weight: f64,
}

/// Points of a curve: the least and the largest value, and two in between.
const POINTS: usize = 4;

/// Slopes of all curves: one between every two knots.
const SLOPES: usize = Feature::COUNT * (POINTS - 1);

/// Fits the logarithm as a sum of curves, one for each feature, linear between the terciles of its
/// values. The curves begin at 0.
///
/// Ridge regression on the increments between knots, in units of their standard deviations; the
/// mean is not penalised.
pub fn curves(residuals: &[Residual], penalty: f64) -> KernelCorrection {
    let total = residuals.iter().map(|r| r.weight).sum::<f64>().max(f64::MIN_POSITIVE);
    let mean = |value: &dyn Fn(&Residual) -> f64| {
        residuals.iter().map(|r| r.weight * value(r)).sum::<f64>() / total
    };
    let knots: Vec<Vec<f32>> = (0..Feature::COUNT).map(|i| knots(residuals, i)).collect();
    // The parts of a value between every two knots of its curve.
    let increments = |features: &Features| -> [f64; SLOPES] {
        std::array::from_fn(|at| {
            let (feature, knot) = (at / (POINTS - 1), at % (POINTS - 1));
            let ends = knots[feature].get(knot).zip(knots[feature].get(knot + 1));
            ends.map_or(0.0, |(&from, &to)| {
                features[feature].clamp(f64::from(from), f64::from(to)) - f64::from(from)
            })
        })
    };
    let parts: Vec<[f64; SLOPES]> = residuals.iter().map(|r| increments(&r.features)).collect();
    let weighted = |value: &dyn Fn(&[f64; SLOPES]) -> f64| {
        let parts = parts.iter().zip(residuals);
        parts.map(|(part, r)| r.weight * value(part)).sum::<f64>() / total
    };
    let means: [f64; SLOPES] = std::array::from_fn(|i| weighted(&|part| part[i]));
    let deviations: [f64; SLOPES] =
        std::array::from_fn(|i| weighted(&|part| (part[i] - means[i]).powi(2)).sqrt());
    // A constant has no information.
    let varies = |i: usize| deviations[i] > f64::from(f32::EPSILON) * means[i].abs();
    let target = mean(&|r| r.log);
    let mut normal = Normal::<SLOPES>::default();
    for (part, residual) in parts.iter().zip(residuals) {
        let scaled =
            std::array::from_fn(
                |i| {
                    if varies(i) { (part[i] - means[i]) / deviations[i] } else { 0.0 }
                },
            );
        normal.add(&scaled, residual.log - target, residual.weight.sqrt());
    }
    normal.penalise(penalty);
    let steps = normal.solve(f64::NEG_INFINITY, f64::INFINITY);
    let slopes: [f64; SLOPES] =
        std::array::from_fn(|i| if varies(i) { steps[i] / deviations[i] } else { 0.0 });
    let offset: f64 = slopes.iter().zip(means).map(|(slope, mean)| slope * mean).sum();
    let curve = |feature: Feature| {
        let (knots, first) = (&knots[feature as usize], feature as usize * (POINTS - 1));
        let mut log = 0.0;
        let points = knots.iter().enumerate().map(|(i, &knot)| {
            if i > 0 {
                log += slopes[first + i - 1] * f64::from(knot - knots[i - 1]);
            }
            (knot, short(log))
        });
        (feature, points.collect::<Vec<_>>())
    };
    let curves = Feature::ALL.into_iter().map(curve).filter(|(_, points)| points.len() > 1);
    let fitted =
        KernelCorrection { spread: 0.0, bias: short(target - offset), curves: curves.collect() };
    let errors = residuals.iter().map(|r| (r.log - fitted.log(&r.features), r.weight));
    KernelCorrection { spread: deviation(errors).unwrap_or(0.0), ..fitted }
}

/// Knots of a feature's curve: its least value, its terciles, its largest value; each
/// once.
fn knots(residuals: &[Residual], feature: usize) -> Vec<f32> {
    let mut values: Vec<f32> = residuals.iter().map(|r| short(r.features[feature])).collect();
    values.sort_by(f32::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return values };
    let mut knots: Vec<f32> = (0..POINTS).map(|i| values[last * i / (POINTS - 1)]).collect();
    knots.dedup();
    knots
}

/// A number in few digits: a ten-thousandth is far below the noise.
fn short(number: f64) -> f32 {
    const PARTS: f64 = 1e4;
    ((number * PARTS).round() / PARTS) as f32
}

/// Weighted standard deviation about 0, of errors with their weights; at most
/// [`KernelCorrection::MAX_SPREAD`].
pub(crate) fn deviation(errors: impl Iterator<Item = (f64, f64)>) -> Option<f32> {
    let (squares, weights) = errors.fold((0.0, 0.0), |(squares, sum), (error, weight)| {
        (squares + weight * error * error, sum + weight)
    });
    let deviation = (squares / weights).sqrt().min(f64::from(KernelCorrection::MAX_SPREAD));
    (weights > 0.0).then(|| short(deviation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_found_in_features_of_any_size() {
        let bend = |value: f64| if value < 8e3 { 2e-5 * value } else { 0.16 };
        let residuals: Vec<Residual> = (0..400u32)
            .map(|i| {
                let mut features = [7.0; Feature::COUNT];
                features[0] = f64::from(i % 25) * 1000.0;
                features[5] = f64::from(i % 7) * 0.01;
                let log = 0.3 + bend(features[0]) - 8.0 * features[5];
                Residual { features, log, weight: 1.0 }
            })
            .collect();
        let found = curves(&residuals, 1e-3);
        assert_eq!(
            found.curves.keys().copied().collect::<Vec<_>>(),
            [Feature::ALL[0], Feature::ALL[5]]
        );
        for r in &residuals {
            let log = found.log(&r.features);
            assert!((log - r.log).abs() < 2e-3, "{log} is not {}", r.log);
        }
        // A large penalty leaves only the mean.
        let flat = curves(&residuals, 1e12);
        let mean = residuals.iter().map(|r| r.log).sum::<f64>() / residuals.len() as f64;
        assert!((flat.log(&residuals[3].features) - mean).abs() < 1e-3);
        // A residual without weight has no influence.
        let mut others = residuals.clone();
        let off = Residual { log: 50.0, weight: 0.0, ..residuals[3] };
        others.push(off);
        let log = curves(&others, 1e-3).log(&off.features);
        assert!((log - residuals[3].log).abs() < 2e-3, "{log}");
        assert!(found.spread < 1e-3 && (flat.spread - 0.18).abs() < 0.05, "{}", flat.spread);
        assert_eq!(curves(&[], 1.0).log(&off.features), 0.0);
    }

    #[test]
    fn a_deviation_is_no_larger_than_a_profile_may_have() {
        assert_eq!(deviation([(3.0, 1.0), (-4.0, 1.0)].into_iter()), Some(2.0));
        assert_eq!(deviation([(0.5, 1.0), (-0.5, 3.0)].into_iter()), Some(0.5));
        assert_eq!(deviation([(0.5, 0.0)].into_iter()), None);
    }
}
