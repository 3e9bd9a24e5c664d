//! Elimination of slow candidates and choice of the winner, from the samples of a timing run.
//! Calibration and `sparseop tune` use the same rules.
//!
//! Two candidates are compared by the logarithms of the ratios of their times, round by round: a
//! disturbance of the machine in a round affects both. Ratios far from the median are winsorised:
//! they are moved to within a few median absolute deviations of the median, so that an interrupt
//! weighs no more than an ordinary round. The confidence interval of the mean is that of Student's
//! distribution for winsorised samples.

use crate::Error;
use crate::tuning::decision::{TIMING_BAND as BAND, TimingOutcome};
use crate::tuning::stopwatch::Samples;
use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::statistics::{Data, OrderStatistics, Statistics};

/// Smallest number of common rounds for a comparison.
pub(in crate::tuning) const MIN_ROUNDS: usize = 5;

/// Least relative difference for which a plan chosen by an earlier timing run is changed. Two
/// timing runs of the same plans differ by more than the rounds of one run show, because of array
/// addresses and clock rates. The band of a plan from an earlier run is therefore wider.
pub const HYSTERESIS: f64 = 0.04;

/// Confidence of an interval that eliminates a candidate. Intervals are computed after every round
/// and for every pair, so that the error probabilities add up.
const ELIMINATE_CONFIDENCE: f64 = 0.9999;

/// Confidence of an interval that replaces a predicted plan; computed only at the end of the timing
/// run.
const ACCEPT_CONFIDENCE: f64 = 0.99;

/// Winsorising limit: largest distance from the median, in standard deviations.
const WINSORISING_LIMIT: f64 = 3.0;

/// Standard deviation over median absolute deviation, for normal noise.
const MAD_TO_SIGMA: f64 = 1.4826;

/// Mean logarithm of the ratio of two times, with its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ratio {
    pub(super) mean: f64,
    /// Standard error of the mean.
    error: f64,
    /// Degrees of freedom.
    free: f64,
}

impl Ratio {
    /// Ratio of the times of `a` to those of `b`, each with its share of the preparation added.
    /// `None` if there are too few common rounds, or if a measured time is not distinguishable
    /// from 0.
    pub(super) fn of(a: (&[f64], f64), b: (&[f64], f64)) -> Option<Self> {
        let logs: Vec<f64> =
            a.0.iter().zip(b.0).map(|(x, y)| ((x + a.1) / (y + b.1)).ln()).collect();
        if logs.len() < MIN_ROUNDS || logs.iter().any(|log| !log.is_finite()) {
            return None;
        }
        let median = Data::new(logs.clone()).median();
        let distances: Vec<f64> = logs.iter().map(|log| (log - median).abs()).collect();
        let reach = WINSORISING_LIMIT * MAD_TO_SIGMA * Data::new(distances).median();
        let near: Vec<f64> =
            logs.iter().map(|log| log.clamp(median - reach, median + reach)).collect();
        // Dixon & Tukey, Technometrics 10, 1968: the winsorised deviation is too small and the
        // number of degrees of freedom too large.
        let rounds = logs.len() as f64;
        let free = logs.iter().zip(&near).filter(|(log, near)| log == near).count() as f64 - 1.0;
        let error = near.iter().std_dev() / rounds.sqrt() * (rounds - 1.0) / free;
        (free >= 1.0).then(|| Self { mean: near.iter().mean(), error, free })
    }

    /// Confidence interval of the mean.
    fn interval(&self, confidence: f64) -> (f64, f64) {
        let factor = StudentsT::new(0.0, 1.0, self.free)
            .map_or(f64::INFINITY, |student| student.inverse_cdf(0.5 + confidence / 2.0));
        (self.mean - factor * self.error, self.mean + factor * self.error)
    }

    /// True if the first is faster by more than `band`, at the given confidence.
    fn is_faster(&self, band: f64, confidence: f64) -> bool {
        self.mean < -band.ln_1p() && self.interval(confidence).1 < 0.0
    }

    /// True if the first is slower by more than [`BAND`], at [`ELIMINATE_CONFIDENCE`].
    fn is_slower(&self) -> bool {
        self.mean > BAND.ln_1p() && self.interval(ELIMINATE_CONFIDENCE).0 > 0.0
    }

    /// True if the two differ by less than [`BAND`], at [`ELIMINATE_CONFIDENCE`].
    fn is_tie(&self) -> bool {
        let (low, high) = self.interval(ELIMINATE_CONFIDENCE);
        low > -BAND.ln_1p() && high < BAND.ln_1p()
    }
}

/// Baseline of a timing run: index of the plan in use and basis of its choice. Another plan wins
/// only if it is faster by more than the band of the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimingBaseline {
    /// Chosen by predictions: a band of 1 %.
    Predicted(usize),
    /// Chosen by an earlier timing run: a band of [`HYSTERESIS`].
    Stored(usize),
}

impl TimingBaseline {
    fn place(self) -> usize {
        match self {
            Self::Predicted(place) | Self::Stored(place) => place,
        }
    }

    /// Relative difference and confidence that another plan needs to win.
    fn band(self) -> (f64, f64) {
        match self {
            Self::Predicted(_) => (BAND, ACCEPT_CONFIDENCE),
            Self::Stored(_) => (HYSTERESIS, ELIMINATE_CONFIDENCE),
        }
    }
}

/// Elimination and choice in one timing run.
#[derive(Debug)]
pub struct Judge {
    /// Seconds of preparation per expected product, for each candidate.
    shares: Vec<f64>,
    /// True for each candidate that was eliminated early.
    out: Vec<bool>,
    /// True if more rounds would not change the result.
    pub(super) decided: bool,
}

impl Judge {
    /// Creates the rules for candidates with the given shares of preparation, in seconds per
    /// product.
    pub fn new(shares: Vec<f64>) -> Self {
        Self { out: vec![false; shares.len()], shares, decided: false }
    }

    /// Ratio of the times of `a` to those of `b`.
    fn ratio(&self, results: &[Result<Samples, Error>], a: usize, b: usize) -> Option<Ratio> {
        let times =
            |i: usize| results[i].as_ref().ok().map(|s: &Samples| (s.as_slice(), self.shares[i]));
        Ratio::of(times(a)?, times(b)?)
    }

    /// Median time of a product with its share of the preparation.
    fn time(&self, results: &[Result<Samples, Error>], i: usize) -> f64 {
        match &results[i] {
            Ok(samples) if !samples.is_empty() => samples.median() + self.shares[i],
            _ => f64::INFINITY,
        }
    }

    /// Eliminates candidates that are clearly slower than the fastest. Returns true if the
    /// comparison of the others is still undecided.
    pub fn eliminate(&mut self, results: &[Result<Samples, Error>], going: &mut [bool]) -> bool {
        let alive: Vec<usize> =
            (0..going.len()).filter(|&i| going[i] && results[i].is_ok()).collect();
        let time = |i: &usize| self.time(results, *i);
        let fastest = alive.iter().copied().min_by(|a, b| time(a).total_cmp(&time(b)));
        let mut open = false;
        for i in alive {
            match fastest
                .filter(|&fastest| fastest != i)
                .map(|fastest| self.ratio(results, i, fastest))
            {
                None => {}
                Some(Some(ratio)) if ratio.is_slower() => (going[i], self.out[i]) = (false, true),
                Some(Some(ratio)) if ratio.is_tie() => {}
                Some(_) => open = true,
            }
        }
        open
    }

    /// Eliminates candidates that are clearly slower than the fastest, and ends the timing run when
    /// the remaining candidates are known to be equal.
    pub(super) fn rule(&mut self, results: &[Result<Samples, Error>], going: &mut [bool]) {
        if !self.eliminate(results, going) {
            self.decided = true;
            going.fill(false);
        }
    }

    /// The winner: the baseline, unless other candidates are faster by more than its band. Of
    /// those, the fastest and all that it does not clearly beat are equal; the first of them by
    /// `order` wins. `order` is a number that does not come from this timing run. If the baseline
    /// failed, the first candidate by `order` that did not fail replaces it, as a predicted plan.
    /// `None` if all failed.
    ///
    /// Candidates are compared in their common rounds. Eliminated candidates are compared too: a
    /// candidate slower than a temporarily fastest one may still be faster than the baseline. If
    /// the baseline was eliminated early, its few rounds say little about the remaining candidates:
    /// a candidate that beats one that beats the baseline is then a winner, too.
    pub fn winner(
        &self,
        results: &[Result<Samples, Error>],
        baseline: TimingBaseline,
        order: impl Fn(usize) -> f64,
    ) -> Option<usize> {
        let first = |places: &mut dyn Iterator<Item = usize>| {
            places.min_by(|&a, &b| order(a).total_cmp(&order(b)).then(a.cmp(&b)))
        };
        let baseline = match results.get(baseline.place()) {
            Some(Ok(_)) => baseline,
            _ => TimingBaseline::Predicted(first(
                &mut (0..results.len()).filter(|&i| results[i].is_ok()),
            )?),
        };
        // Compared round by round: medians over different rounds are not comparable.
        let faster_than = |place: usize, (band, confidence): (f64, f64)| -> Vec<(usize, f64)> {
            let others = (0..results.len()).filter(|&i| i != place);
            let ratios = others.filter_map(|i| Some((i, self.ratio(results, i, place)?)));
            ratios
                .filter(|(_, r)| r.is_faster(band, confidence))
                .map(|(i, r)| (i, r.mean))
                .collect()
        };
        let least =
            |places: &[(usize, f64)]| places.iter().min_by(|a, b| a.1.total_cmp(&b.1)).map(|p| p.0);
        let mut winners = faster_than(baseline.place(), baseline.band());
        let Some(mut fastest) = least(&winners) else { return Some(baseline.place()) };
        // Noise may make the comparison cyclic. No path is longer than the number of candidates.
        for _ in 0..results.len() {
            let Some(next) = least(&faster_than(fastest, (BAND, ACCEPT_CONFIDENCE))) else { break };
            fastest = next;
        }
        winners.push((fastest, 0.0));
        let beaten: Vec<usize> = (0..results.len())
            .filter(|&i| {
                self.ratio(results, fastest, i)
                    .is_some_and(|r| r.is_faster(BAND, ACCEPT_CONFIDENCE))
            })
            .collect();
        first(&mut winners.iter().map(|&(i, _)| i).filter(|i| *i == fastest || !beaten.contains(i)))
    }

    /// Outcome for candidate `i` of a timing run won by `winner`.
    pub fn outcome(
        &self,
        results: &[Result<Samples, Error>],
        i: usize,
        winner: usize,
    ) -> TimingOutcome {
        if let Err(error) = &results[i] {
            return TimingOutcome::Failed { reason: error.to_string() };
        }
        let early = self.out[i];
        match self.ratio(results, i, winner).map(|ratio| ratio.mean.exp()) {
            _ if i == winner => TimingOutcome::Won,
            Some(ratio) if ratio > 1.0 + BAND || (early && ratio >= 1.0) => {
                TimingOutcome::Slower { ratio, early }
            }
            Some(ratio) => TimingOutcome::Tied { ratio },
            None => TimingOutcome::Undecided,
        }
    }
}

#[cfg(test)]
mod tests;
