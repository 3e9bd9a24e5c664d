//! The judge of a race: who is clearly slower and need not go on, and who has won. It rules on the races of calibration and on those of
//! `sparseop tune` alike.
//!
//! Two contestants are compared by the logarithms of the ratios of their times, round by round: what slows the machine down in a round
//! slows both. Ratios far from the median are drawn in to a few median absolute deviations of it, so that an interrupt weighs no more
//! than an ordinary round, and an interval for the mean is taken from Student's distribution, as for winsorised samples.

use crate::Error;
use crate::tuning::decision::{Outcome, RACE_BAND as BAND};
use crate::tuning::stopwatch::Samples;
use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::statistics::{Data, OrderStatistics, Statistics};

/// Rounds both must have run before they are compared.
pub(in crate::tuning) const MIN_ROUNDS: usize = 5;

/// A plan that an earlier race has decided for is not changed for less than this. Two races of the same plans differ by more than one of
/// them can know, by where arrays lie and how the clocks run, so that the band of those who stood a race before is wider.
pub const HOLD: f64 = 0.04;

/// How sure an interval is that ends a race for somebody. They are looked at after every round and for every pair, so that many chances to
/// be wrong add up.
const CONFIDENCE: f64 = 0.9999;

/// How sure an interval is that displaces a predicted plan: looked at once, when the race is over.
const ENOUGH: f64 = 0.99;

/// Deviations from the median beyond which a ratio is drawn in.
const REACH: f64 = 3.0;

/// Standard deviations in a median absolute deviation of normal noise.
const MAD_TO_SIGMA: f64 = 1.4826;

/// The logarithm of one time over another: the mean of what was seen, and how far off it may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ratio {
    pub(super) mean: f64,
    /// The standard error of the mean.
    error: f64,
    /// Degrees of freedom.
    free: f64,
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
        let error = near.iter().std_dev() / rounds.sqrt() * (rounds - 1.0) / free;
        (free >= 1.0).then(|| Self { mean: near.iter().mean(), error, free })
    }

    /// What the mean is surely above and below.
    fn interval(&self, confidence: f64) -> (f64, f64) {
        let factor = StudentsT::new(0.0, 1.0, self.free)
            .map_or(f64::INFINITY, |student| student.inverse_cdf(0.5 + confidence / 2.0));
        (self.mean - factor * self.error, self.mean + factor * self.error)
    }

    /// Whether the first is faster, as surely as asked and by more than a band.
    fn is_faster(&self, band: f64, confidence: f64) -> bool {
        self.mean < -band.ln_1p() && self.interval(confidence).1 < 0.0
    }

    /// Whether the first is slower, surely and by more than [`BAND`].
    fn is_slower(&self) -> bool {
        self.mean > BAND.ln_1p() && self.interval(CONFIDENCE).0 > 0.0
    }

    /// Whether the two are surely within [`BAND`].
    fn is_tie(&self) -> bool {
        let (low, high) = self.interval(CONFIDENCE);
        low > -BAND.ln_1p() && high < BAND.ln_1p()
    }
}

/// The plan that stands before a race, by its place, and what it rests on: who wants to take its place has to be faster by more than its
/// band.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incumbent {
    /// Predictions: 1 %.
    Predicted(usize),
    /// An earlier race: [`HOLD`].
    Remembered(usize),
}

impl Incumbent {
    fn place(self) -> usize {
        match self {
            Self::Predicted(place) | Self::Remembered(place) => place,
        }
    }

    /// By how much others have to be faster, and how surely.
    fn band(self) -> (f64, f64) {
        match self {
            Self::Predicted(_) => (BAND, ENOUGH),
            Self::Remembered(_) => (HOLD, CONFIDENCE),
        }
    }
}

/// Rules on one race.
#[derive(Debug)]
pub struct Judge {
    /// Seconds of preparation for every product that is expected.
    shares: Vec<f64>,
    /// Who was sent home early.
    out: Vec<bool>,
    /// Whether more rounds would change nothing.
    pub(super) decided: bool,
}

impl Judge {
    /// For contestants whose preparation is so many seconds of every product.
    pub fn new(shares: Vec<f64>) -> Self {
        Self { out: vec![false; shares.len()], shares, decided: false }
    }

    /// The times of `a` over those of `b`.
    fn ratio(&self, results: &[Result<Samples, Error>], a: usize, b: usize) -> Option<Ratio> {
        let times = |i: usize| results[i].as_ref().ok().map(|s: &Samples| (s.as_slice(), self.shares[i]));
        Ratio::of(times(a)?, times(b)?)
    }

    /// The middle time of a product with its share of the preparation.
    fn time(&self, results: &[Result<Samples, Error>], i: usize) -> f64 {
        match &results[i] {
            Ok(samples) if !samples.is_empty() => samples.median() + self.shares[i],
            _ => f64::INFINITY,
        }
    }

    /// Sends home who is clearly slower than the one that leads; whether it is still open how the others compare.
    pub fn send_home(&mut self, results: &[Result<Samples, Error>], going: &mut [bool]) -> bool {
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
        open
    }

    /// Sends home who is clearly slower than the one that leads, and everyone once the rest is known to be equal.
    pub(super) fn rule(&mut self, results: &[Result<Samples, Error>], going: &mut [bool]) {
        if !self.send_home(results, going) {
            self.decided = true;
            going.fill(false);
        }
    }

    /// The winner: the incumbent, unless others are faster by more than its band; of those the fastest and those that it does not beat, and
    /// of them the first by `order`, a number that does not come from this race. Where the incumbent failed, the first by `order` that did
    /// not stands for it, predicted. None when everyone failed.
    ///
    /// Contestants are compared in the rounds that both ran. Those who were sent home early count too: who was slower than one that led for
    /// a while may be faster than the incumbent. And an incumbent that was sent home early says little of those who went on: who beats one
    /// that beats it has won, too.
    pub fn winner(
        &self,
        results: &[Result<Samples, Error>],
        incumbent: Incumbent,
        order: impl Fn(usize) -> f64,
    ) -> Option<usize> {
        let first = |places: &mut dyn Iterator<Item = usize>| {
            places.min_by(|&a, &b| order(a).total_cmp(&order(b)).then(a.cmp(&b)))
        };
        let incumbent = match results.get(incumbent.place()) {
            Some(Ok(_)) => incumbent,
            _ => Incumbent::Predicted(first(&mut (0..results.len()).filter(|&i| results[i].is_ok()))?),
        };
        // Round by round: of those that ran in different rounds medians are not to be compared.
        let faster_than = |place: usize, (band, confidence): (f64, f64)| -> Vec<(usize, f64)> {
            let others = (0..results.len()).filter(|&i| i != place);
            let ratios = others.filter_map(|i| Some((i, self.ratio(results, i, place)?)));
            ratios.filter(|(_, r)| r.is_faster(band, confidence)).map(|(i, r)| (i, r.mean)).collect()
        };
        let least = |places: &[(usize, f64)]| places.iter().min_by(|a, b| a.1.total_cmp(&b.1)).map(|p| p.0);
        let mut winners = faster_than(incumbent.place(), incumbent.band());
        let Some(mut fastest) = least(&winners) else { return Some(incumbent.place()) };
        // By noise they may go in a circle: no way is longer than there are contestants.
        for _ in 0..results.len() {
            let Some(next) = least(&faster_than(fastest, (BAND, ENOUGH))) else { break };
            fastest = next;
        }
        winners.push((fastest, 0.0));
        let beaten: Vec<usize> = (0..results.len())
            .filter(|&i| self.ratio(results, fastest, i).is_some_and(|r| r.is_faster(BAND, ENOUGH)))
            .collect();
        first(&mut winners.iter().map(|&(i, _)| i).filter(|i| *i == fastest || !beaten.contains(i)))
    }

    /// What became of contestant `i` of a race that `winner` has won.
    pub fn outcome(&self, results: &[Result<Samples, Error>], i: usize, winner: usize) -> Outcome {
        if let Err(error) = &results[i] {
            return Outcome::Failed { reason: error.to_string() };
        }
        let early = self.out[i];
        match self.ratio(results, i, winner).map(|ratio| ratio.mean.exp()) {
            _ if i == winner => Outcome::Won,
            Some(ratio) if early || ratio > 1.0 + BAND => Outcome::Slower { ratio, early },
            Some(ratio) => Outcome::Tied { ratio },
            None => Outcome::Undecided,
        }
    }
}

#[cfg(test)]
mod tests;
