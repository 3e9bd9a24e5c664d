//! Time: the only place that reads a clock.

use statrs::statistics::{Data, Min, OrderStatistics};
use std::time::{Duration, Instant};

/// Runs `work` and gives what it returned and the seconds it took.
pub fn timed<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64())
}

/// How long and how often contestants of a [`race`] run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// Rounds before anything is recorded.
    pub warmup: usize,
    /// Rounds that are recorded at least, unless the time is up.
    pub min_rounds: usize,
    /// Rounds that are recorded at most.
    pub max_rounds: usize,
    /// Seconds after which no further round begins.
    pub seconds: f64,
}

impl Default for Policy {
    /// Enough for a median that repeats within a per cent or two on a quiet machine.
    fn default() -> Self {
        Self { warmup: 2, min_rounds: 5, max_rounds: 200, seconds: 1.0 }
    }
}

/// The recorded times of one contestant, in seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// The median; NaN without samples.
    pub fn median(&self) -> f64 {
        Data::new(self.0.clone()).median()
    }

    /// The least; NaN without samples.
    pub fn min(&self) -> f64 {
        Data::new(self.0.clone()).min()
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Times contestants in turn, round after round, so that drift of the machine hits all alike.
///
/// A contestant whose run is short is repeated within its turn until the turn can be read off the clock.
pub fn race(contestants: &mut [&mut dyn FnMut()], policy: Policy) -> Vec<Samples> {
    /// A turn shorter than this says more about the clock and the caches than about the contestant.
    const TURN: Duration = Duration::from_micros(100);
    let mut samples = vec![Samples::default(); contestants.len()];
    let mut repeats = vec![1u32; contestants.len()];
    let start = Instant::now();
    for round in 0..policy.warmup + policy.max_rounds {
        let recorded = round.saturating_sub(policy.warmup);
        let spent = start.elapsed().as_secs_f64();
        if recorded >= 1
            && (spent > policy.seconds * 4.0 || (recorded >= policy.min_rounds && spent > policy.seconds))
        {
            break;
        }
        for (i, contestant) in contestants.iter_mut().enumerate() {
            // Once unseen: an operator is applied again and again, and finds in the caches what it left there.
            contestant();
            let turn = Instant::now();
            for _ in 0..repeats[i] {
                contestant();
            }
            let taken = turn.elapsed();
            if round < policy.warmup {
                let once = (taken / repeats[i]).max(Duration::from_nanos(50));
                repeats[i] = (TURN.as_nanos() / once.as_nanos()).clamp(1, 10_000) as u32;
            } else {
                samples[i].0.push(taken.as_secs_f64() / f64::from(repeats[i]));
            }
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contestants_take_turns() {
        let order = std::cell::RefCell::new(Vec::new());
        let policy = Policy { warmup: 1, min_rounds: 3, max_rounds: 3, seconds: 10.0 };
        let wait = |name| {
            order.borrow_mut().push(name);
            std::thread::sleep(Duration::from_micros(200));
        };
        let samples = race(&mut [&mut || wait('a'), &mut || wait('b')], policy);
        assert_eq!(order.borrow().iter().collect::<String>(), "aabbaabbaabbaabb");
        assert!(samples.iter().all(|s| s.len() == 3 && s.median() >= 200e-6 && s.min() <= s.median()));
    }
}
