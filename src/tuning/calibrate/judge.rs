//! The judge of a race: who is clearly slower and need not go on, and who has won.
//!
//! Two contestants are compared by the logarithms of the ratios of their times, round by round: what slows the machine down in a round
//! slows both. Ratios far from the median are drawn in to a few median absolute deviations of it, so that an interrupt weighs no more
//! than an ordinary round, and an interval for the mean is taken from Student's distribution, as for winsorised samples.

use crate::Error;
use crate::tuning::stopwatch::Samples;
use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::statistics::{Data, OrderStatistics, Statistics};

/// Rounds both must have run before they are compared.
pub(super) const MIN_ROUNDS: usize = 5;

/// Measured times closer than this are ties: a plan is not changed for less.
pub(super) const BAND: f64 = 0.01;

/// How sure an interval is. They are looked at after every round and for every pair, so that many chances to be wrong add up.
const CONFIDENCE: f64 = 0.9999;

/// Deviations from the median beyond which a ratio is drawn in.
const REACH: f64 = 3.0;

/// Standard deviations in a median absolute deviation of normal noise.
const MAD_TO_SIGMA: f64 = 1.4826;

/// The logarithm of one time over another: the mean of what was seen, and what it may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ratio {
    pub(super) mean: f64,
    low: f64,
    high: f64,
}

impl Ratio {
    /// The times of `a` over those of `b`, each with what every product costs besides; none with too few rounds in common, or where a
    /// clock could not tell a time from nothing.
    pub(super) fn of(a: (&[f64], f64), b: (&[f64], f64)) -> Option<Self> {
        let logs: Vec<f64> = a.0.iter().zip(b.0).map(|(x, y)| ((x + a.1) / (y + b.1)).ln()).collect();
        if logs.len() < MIN_ROUNDS || logs.iter().any(|log| !log.is_finite()) {
            return None;
        }
        let median = Data::new(logs.clone()).median();
        let distances: Vec<f64> = logs.iter().map(|log| (log - median).abs()).collect();
        let reach = REACH * MAD_TO_SIGMA * Data::new(distances).median();
        let near: Vec<f64> = logs.iter().map(|log| log.clamp(median - reach, median + reach)).collect();
        // Dixon & Tukey, Technometrics 10, 1968: of what was drawn in, the deviation is too small and the degrees of freedom too many.
        let rounds = logs.len() as f64;
        let free = logs.iter().zip(&near).filter(|(log, near)| log == near).count() as f64 - 1.0;
        let student = StudentsT::new(0.0, 1.0, free).ok()?;
        let factor = student.inverse_cdf(0.5 + CONFIDENCE / 2.0);
        let mean = near.iter().mean();
        let error = near.iter().std_dev() / rounds.sqrt() * (rounds - 1.0) / free;
        Some(Self { mean, low: mean - factor * error, high: mean + factor * error })
    }

    /// Whether the first is faster, surely and by more than the band.
    fn is_faster(&self) -> bool {
        self.high < 0.0 && self.mean < -band()
    }

    /// Whether the first is slower, surely and by more than the band.
    fn is_slower(&self) -> bool {
        self.low > 0.0 && self.mean > band()
    }

    /// Whether the two are surely within the band.
    fn is_tie(&self) -> bool {
        self.low > -band() && self.high < band()
    }
}

/// The band as a logarithm.
fn band() -> f64 {
    BAND.ln_1p()
}

/// Rules on one race.
#[derive(Debug)]
pub(super) struct Judge {
    /// Seconds of preparation for every product that is expected.
    shares: Vec<f64>,
    /// Who was sent home early.
    pub(super) out: Vec<bool>,
    /// Whether more rounds would change nothing.
    pub(super) decided: bool,
}

impl Judge {
    /// For contestants whose preparation is so many seconds of every product.
    pub(super) fn new(shares: Vec<f64>) -> Self {
        Self { out: vec![false; shares.len()], shares, decided: false }
    }

    /// The times of `a` over those of `b`.
    pub(super) fn ratio(&self, results: &[Result<Samples, Error>], a: usize, b: usize) -> Option<Ratio> {
        let times = |i: usize| results[i].as_ref().ok().map(|s: &Samples| (s.as_slice(), self.shares[i]));
        Ratio::of(times(a)?, times(b)?)
    }

    /// The middle time of a product with its share of the preparation.
    pub(super) fn time(&self, results: &[Result<Samples, Error>], i: usize) -> f64 {
        match &results[i] {
            Ok(samples) if !samples.is_empty() => samples.median() + self.shares[i],
            _ => f64::INFINITY,
        }
    }

    /// Sends home who is clearly slower than the one that leads, and everyone once the rest is known to be equal.
    pub(super) fn rule(&mut self, results: &[Result<Samples, Error>], going: &mut [bool]) {
        let alive: Vec<usize> = (0..going.len()).filter(|&i| going[i] && results[i].is_ok()).collect();
        let time = |i: &usize| self.time(results, *i);
        let leader = alive.iter().copied().min_by(|a, b| time(a).total_cmp(&time(b)));
        let mut open = false;
        for i in alive {
            match leader.filter(|&leader| leader != i).map(|leader| self.ratio(results, i, leader)) {
                None => {}
                Some(Some(ratio)) if ratio.is_slower() => (going[i], self.out[i]) = (false, true),
                Some(Some(ratio)) if ratio.is_tie() => {}
                Some(_) => open = true,
            }
        }
        if !open {
            self.decided = true;
            going.fill(false);
        }
    }

    /// The winner: the champion, who comes first, unless others are surely faster; of those the fastest, and of those within the band of
    /// it the least by `order`. None when everyone failed.
    pub(super) fn winner<K: Ord>(
        &self,
        results: &[Result<Samples, Error>],
        order: impl Fn(usize) -> K,
    ) -> Option<usize> {
        let champion = results.iter().position(Result::is_ok)?;
        let finished = (0..results.len()).filter(|&i| i != champion && !self.out[i]);
        let beats = |a: usize, b: usize| self.ratio(results, a, b).is_some_and(|ratio| ratio.is_faster());
        let faster: Vec<usize> = finished.filter(|&i| beats(i, champion)).collect();
        let time = |i: &usize| self.time(results, *i);
        let Some(fastest) = faster.iter().copied().min_by(|a, b| time(a).total_cmp(&time(b))) else {
            return Some(champion);
        };
        let ties = faster.iter().copied().filter(|&i| !beats(fastest, i));
        ties.min_by_key(|&i| order(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(a: &[f64], b: &[f64]) -> Ratio {
        Ratio::of((a, 0.0), (b, 0.0)).unwrap()
    }

    #[test]
    fn an_interval_is_that_of_students_distribution() {
        // Logarithms 0.18, 0.19, 0.20, 0.21, 0.22: mean 0.2, standard error 0.015811 / √5, and 15.5441 for 4 degrees of freedom.
        let a: Vec<f64> = [0.18f64, 0.19, 0.20, 0.21, 0.22].map(f64::exp).to_vec();
        let found = ratio(&a, &[1.0; 5]);
        let half = 15.5441 * 0.015_811_39 / 5f64.sqrt();
        assert!((found.mean - 0.2).abs() < 1e-12);
        assert!(
            (found.low - (0.2 - half)).abs() < 1e-4 && (found.high - (0.2 + half)).abs() < 1e-4,
            "{found:?}"
        );
        assert!(found.is_slower() && !found.is_faster() && !found.is_tie());
    }

    #[test]
    fn too_few_rounds_and_times_of_nothing_say_nothing() {
        assert_eq!(Ratio::of((&[1.0; 4], 0.0), (&[9.0; 9], 0.0)), None);
        assert_eq!(Ratio::of((&[0.0; 9], 0.0), (&[9.0; 9], 0.0)), None);
        assert_eq!(Ratio::of((&[0.0; 9], 0.0), (&[0.0; 9], 0.0)), None);
    }

    #[test]
    fn drift_that_hits_both_does_not_widen_the_interval() {
        let a: Vec<f64> = (0..10).map(|round| 1.05 * 1.3f64.powi(round)).collect();
        let b: Vec<f64> = (0..10).map(|round| 1.3f64.powi(round)).collect();
        assert!(ratio(&a, &b).is_slower() && ratio(&b, &a).is_faster());
    }

    #[test]
    fn an_outlier_weighs_no_more_than_an_ordinary_round() {
        let noisy = |slow: f64| [1.03, 1.031, 1.029, 1.0302, 1.0298, 1.03, 1.0301, slow];
        let clean = ratio(&noisy(1.031), &[1.0; 8]);
        let hit = ratio(&noisy(80.0), &[1.0; 8]);
        assert!(hit.is_slower() && (hit.high - clean.high).abs() < 0.01, "{hit:?} {clean:?}");
    }

    #[test]
    fn equal_times_are_ties_and_preparation_counts() {
        assert!(ratio(&[1.0; 5], &[1.0; 5]).is_tie());
        assert!(ratio(&[1.004; 5], &[1.0; 5]).is_tie());
        assert!(Ratio::of((&[1.0; 5], 0.2), (&[1.0; 5], 0.0)).unwrap().is_slower());
    }
}
