//! Time: the only place that reads a clock.

use crate::Error;
use crate::device::{Device, Stream};
use statrs::statistics::{Data, Min, OrderStatistics};
use std::time::Instant;

/// Tells how long something has taken so far. Scripted where no real time is to pass.
pub trait Clock {
    /// Seconds since it was started.
    fn seconds(&self) -> f64;
}

/// The clock on the wall.
#[derive(Debug, Clone, Copy)]
pub struct WallClock(Instant);

impl WallClock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for WallClock {
    fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// Runs `work` and gives what it returned and the seconds it took.
pub fn timed<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64())
}

/// Runs `work`, which enqueues on `stream`, so many times, and gives the seconds all of it took: by the GPU's own clock, or on
/// the CPU by the one on the wall.
///
/// # Errors
///
/// The first that `work` gives.
pub fn turn(
    stream: &Stream,
    repeats: u32,
    mut work: impl FnMut() -> Result<(), Error>,
) -> Result<f64, Error> {
    let mut all = || (0..repeats).try_for_each(|_| work());
    if stream.queue().is_some() {
        stream.seconds(&mut all)
    } else {
        let (done, seconds) = timed(all);
        done.map(|()| seconds)
    }
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
    /// Seconds a turn takes at least: shorter ones say more about the clock and the caches than about the contestant.
    pub turn: f64,
}

impl Policy {
    /// The default for a device: on a GPU turns are long enough to hide when the first of their launches begins.
    pub fn of(device: &Device) -> Self {
        match device {
            Device::Cpu => Self::default(),
            Device::Cuda(_) => Self { turn: 1e-3, ..Self::default() },
        }
    }
}

impl Default for Policy {
    /// Enough for a median that repeats within a per cent or two on a quiet machine.
    fn default() -> Self {
        Self { warmup: 2, min_rounds: 5, max_rounds: 200, seconds: 1.0, turn: 100e-6 }
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

/// One who takes part in a [`race`]: runs so many times and gives the seconds that took.
pub type Contestant<'a> = dyn FnMut(u32) -> Result<f64, Error> + 'a;

/// Times contestants in turn, round after round, so that drift of the machine hits all alike.
///
/// A contestant whose run is short is repeated within its turn until the turn can be read off the clock. One that fails is out of
/// the race, with its error.
pub fn race(contestants: &mut [&mut Contestant<'_>], policy: Policy) -> Vec<Result<Samples, Error>> {
    /// More repeats are never needed.
    const MAX_REPEATS: f64 = 10_000.0;
    let mut results: Vec<Result<Samples, Error>> =
        contestants.iter().map(|_| Ok(Samples::default())).collect();
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
            let Ok(samples) = &mut results[i] else { continue };
            // Once unseen: an operator is applied again and again, and finds in the caches what it left there.
            match contestant(1).and_then(|_| contestant(repeats[i])) {
                Err(error) => results[i] = Err(error),
                Ok(taken) if round < policy.warmup => {
                    let once = (taken / f64::from(repeats[i])).max(50e-9);
                    repeats[i] = (policy.turn / once).ceil().clamp(1.0, MAX_REPEATS) as u32;
                }
                Ok(taken) => samples.0.push(taken / f64::from(repeats[i])),
            }
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contestants_take_turns() {
        let order = std::cell::RefCell::new(Vec::new());
        let policy = Policy { warmup: 1, min_rounds: 3, max_rounds: 3, seconds: 10.0, turn: 100e-6 };
        let wait = |name| {
            order.borrow_mut().push(name);
            std::thread::sleep(std::time::Duration::from_micros(200));
            Ok(())
        };
        let cpu = Stream::new(&Device::Cpu).unwrap();
        let samples =
            race(&mut [&mut |n| turn(&cpu, n, || wait('a')), &mut |n| turn(&cpu, n, || wait('b'))], policy);
        assert_eq!(order.borrow().iter().collect::<String>(), "aabbaabbaabbaabb");
        for samples in samples {
            let samples = samples.unwrap();
            assert!(samples.len() == 3 && samples.median() >= 200e-6 && samples.min() <= samples.median());
        }
    }

    #[test]
    fn who_fails_is_out_and_the_others_go_on() {
        let failure = || Error::CopyLength { expected: 1, found: 2 };
        let results = race(&mut [&mut |_| Err(failure()), &mut |n| Ok(f64::from(n))], Policy::default());
        assert_eq!(results[0].as_ref().unwrap_err().to_string(), failure().to_string());
        assert!(results[1].as_ref().unwrap().median() == 1.0);
    }
}
