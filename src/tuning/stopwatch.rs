//! Timing: clocks, batches and timing runs. No other module reads a clock.

use super::cache_state::CacheState;
use crate::Error;
use crate::device::{Device, Stream};
use statrs::statistics::{Data, Min, OrderStatistics};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A clock of elapsed time. Scripted if no real time should pass.
pub trait Clock {
    /// Seconds since the start.
    fn seconds(&self) -> f64;
}

/// Wall clock.
#[derive(Debug, Clone, Copy)]
pub struct WallClock(Instant);

impl WallClock {
    /// Starts a clock.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for WallClock {
    fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// Seconds since 1970, for records; 0 if the system's date is earlier.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Runs `work` and returns its result and its seconds.
pub fn timed<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let clock = WallClock::start();
    let result = work();
    (result, clock.seconds())
}

/// Runs `work`, which enqueues on `stream`, `repeats` times and returns the seconds of the whole
/// batch: by the GPU's own clock, or on the CPU by the wall clock.
///
/// # Errors
///
/// The first error of `work`.
pub fn time_batch(
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

/// Numbers and times of the rounds of a timing run (see [`time_interleaved`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// Rounds before the first recorded one.
    pub warmup: usize,
    /// Least number of recorded rounds, unless the time limit is exceeded.
    pub min_rounds: usize,
    /// Largest number of recorded rounds.
    pub max_rounds: usize,
    /// Seconds after which no further round starts.
    pub seconds: f64,
    /// Least duration of a batch, in seconds. Shorter batches measure the clock and the caches more
    /// than the product.
    pub batch_seconds: f64,
    /// Number of warm-up products before a recorded batch, over the number of products of the
    /// batch; at least three products run.
    pub warm_up_share: f64,
    /// Cache state before a recorded batch. Warm-up products run in the warm state alone.
    pub cache: CacheState,
}

/// Least number of warm-up products before a recorded batch, the same for all engines. The batch
/// before is that of another engine, whose data fill the cache. Caches do not replace strictly the
/// oldest line: after one pass over a matrix that fits, a part of it is still outside; each further
/// pass leaves less.
const MIN_WARM_UP: u32 = 3;

impl Policy {
    /// The default for a device, warm. On a GPU batches are long enough to hide the start time of
    /// their first launch.
    pub fn of(device: &Device) -> Self {
        match device {
            Device::Cpu => Self::default(),
            Device::Cuda(_) => Self { batch_seconds: 1e-3, warm_up_share: 0.1, ..Self::default() },
        }
    }

    /// The same policy for products in another cache state.
    pub fn in_state(self, cache: CacheState) -> Self {
        // Filling the cache takes longer than a product, and a cold batch is one product.
        let batch_seconds = if cache == CacheState::Cold { 0.0 } else { self.batch_seconds };
        Self { batch_seconds, cache, ..self }
    }

    /// Number of warm-up products before a recorded batch of `products`.
    fn warm_up(&self, products: u32) -> u32 {
        match self.cache {
            CacheState::Warm => {
                ((f64::from(products) * self.warm_up_share).ceil() as u32).max(MIN_WARM_UP)
            }
            CacheState::Company | CacheState::Cold => 0,
        }
    }

    /// Seconds of one recorded batch and its warm-up, if a product takes `product` seconds.
    pub(crate) fn round_seconds(&self, product: f64) -> f64 {
        let products =
            (self.batch_seconds / product.max(MIN_PRODUCT)).ceil().clamp(1.0, MAX_PRODUCTS);
        product.max(self.batch_seconds) + f64::from(self.warm_up(products as u32)) * product
    }
}

/// Least assumed time of a product, in seconds.
const MIN_PRODUCT: f64 = 50e-9;

/// Largest number of products of a batch.
const MAX_PRODUCTS: f64 = 10_000.0;

impl Default for Policy {
    /// Enough rounds for a median that repeats within one or two per cent on a quiet machine.
    ///
    /// Measured with thirty plans on Zen 4 cores: CSR took 87 µs for a band of 300,000 entries
    /// with batches of 100 µs after one warm-up product, and 44 µs in a loop. Branch predictors
    /// need several products to learn the row lengths.
    fn default() -> Self {
        Self {
            warmup: 2,
            min_rounds: 5,
            max_rounds: 200,
            seconds: 1.0,
            batch_seconds: 500e-6,
            warm_up_share: 1.0,
            cache: CacheState::Warm,
        }
    }
}

/// Recorded times of a product of one candidate, in seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples(Vec<f64>);

impl From<Vec<f64>> for Samples {
    fn from(seconds: Vec<f64>) -> Self {
        Self(seconds)
    }
}

impl Samples {
    /// The median; NaN without samples.
    pub fn median(&self) -> f64 {
        Data::new(self.0.clone()).median()
    }

    /// Median absolute deviation, in seconds; NaN without samples.
    pub fn deviation(&self) -> f64 {
        let median = self.median();
        let distances: Vec<f64> = self.0.iter().map(|sample| (sample - median).abs()).collect();
        Data::new(distances).median()
    }

    /// The samples in the order of the rounds.
    pub fn as_slice(&self) -> &[f64] {
        &self.0
    }

    /// The least sample; NaN without samples.
    pub fn min(&self) -> f64 {
        Data::new(self.0.clone()).min()
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are no samples.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A candidate of a timing run ([`time_interleaved`]): runs the given number of products and
/// returns their seconds.
pub type TimedBatch<'a> = dyn FnMut(u32) -> Result<f64, Error> + 'a;

/// Elimination rule of a timing run ([`time_interleaved`]), called after every recorded round:
/// clears the flags of candidates that need no further rounds. Its arguments are the samples of all
/// candidates so far, one per round, and the flags.
pub type EliminationRule<'a> = dyn FnMut(&[Result<Samples, Error>], &mut [bool]) + 'a;

/// Times candidates in turn, round after round, so that drift of the machine affects all of them
/// equally.
///
/// Short products are repeated within a batch until the clock can resolve its time. The number of
/// repetitions is determined in the rounds before the first recorded one. A candidate that fails
/// leaves the timing run with its error.
pub fn time_interleaved(
    batches: &mut [&mut TimedBatch<'_>],
    policy: Policy,
) -> Vec<Result<Samples, Error>> {
    time_interleaved_until(batches, policy, &WallClock::start(), &mut |_, _| {})
}

/// As [`time_interleaved`], with a rule that may eliminate candidates before the end. The timing
/// run ends when no candidate is left. The seconds of the policy are those on `clock`.
pub fn time_interleaved_until(
    batches: &mut [&mut TimedBatch<'_>],
    policy: Policy,
    clock: &dyn Clock,
    judge: &mut EliminationRule<'_>,
) -> Vec<Result<Samples, Error>> {
    let mut results: Vec<Result<Samples, Error>> =
        batches.iter().map(|_| Ok(Samples::default())).collect();
    let mut repeats = vec![1u32; batches.len()];
    let mut going = vec![true; batches.len()];
    for round in 0..policy.warmup + policy.max_rounds {
        let recorded = round.saturating_sub(policy.warmup);
        let spent = clock.seconds();
        if recorded >= 1
            && (spent > policy.seconds * 4.0
                || (recorded >= policy.min_rounds && spent > policy.seconds))
        {
            break;
        }
        for (i, batch) in batches.iter_mut().enumerate().filter(|(i, _)| going[*i]) {
            let Ok(samples) = &mut results[i] else { continue };
            let taken = match round < policy.warmup {
                true => settle(batch, &mut repeats[i], policy.batch_seconds).map(|()| None),
                false => {
                    let warm_up = match policy.warm_up(repeats[i]) {
                        0 => Ok(0.0),
                        products => batch(products),
                    };
                    warm_up.and_then(|_| batch(repeats[i])).map(Some)
                }
            };
            match taken {
                Err(error) => results[i] = Err(error),
                Ok(taken) => samples.0.extend(taken.map(|taken| taken / f64::from(repeats[i]))),
            }
        }
        if round >= policy.warmup {
            judge(&results, &mut going);
            if !going.contains(&true) {
                break;
            }
        }
    }
    results
}

/// Runs batches of a candidate until their duration is about `batch_seconds`, and sets `repeats` to
/// the number of products of such a batch.
///
/// The time of a single product may be mostly overhead of starting and finishing a batch. With that
/// time alone batches would be too short, by a different factor for each candidate, and the
/// overhead would be included in the time of a product. The least time is used, so that a single
/// interruption does not count.
fn settle(batch: &mut TimedBatch<'_>, repeats: &mut u32, batch_seconds: f64) -> Result<(), Error> {
    /// Largest number of trial batches. Each shares the overhead among more products; the third is
    /// nearly exact.
    const TRIES: usize = 3;
    let mut once = batch(1)?;
    for _ in 0..TRIES {
        let tried = *repeats;
        once = once.min(batch(tried)? / f64::from(tried)).max(MIN_PRODUCT);
        *repeats = (batch_seconds / once).ceil().clamp(1.0, MAX_PRODUCTS) as u32;
        // No more than the number tried plus a third.
        if *repeats <= tried + tried / 3 {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_the_requested_length_despite_start_costs() {
        // 20 µs to start a batch, 1 µs for a product: with the time of the first product alone
        // there would be 48 products instead of about a thousand.
        let lengths = std::cell::RefCell::new(Vec::new());
        let mut short = |n: u32| {
            lengths.borrow_mut().push(n);
            Ok(20e-6 + f64::from(n) * 1e-6)
        };
        let policy = Policy {
            warmup: 1,
            min_rounds: 2,
            max_rounds: 2,
            seconds: 10.0,
            batch_seconds: 1e-3,
            ..Policy::default()
        };
        let samples = time_interleaved(&mut [&mut short], policy).remove(0).unwrap();
        let last = *lengths.borrow().last().unwrap();
        assert!((900..=1000).contains(&last), "{:?}", lengths.borrow());
        assert!(samples.len() == 2 && (samples.median() * 1e6 - 1.0).abs() < 0.03, "{samples:?}");
    }

    #[test]
    fn a_share_of_the_batch_and_at_least_three_products_warm_up() {
        let lengths = std::cell::RefCell::new(Vec::new());
        let mut engine = |n: u32| {
            lengths.borrow_mut().push(n);
            Ok(f64::from(n))
        };
        let policy = Policy {
            warmup: 1,
            min_rounds: 1,
            max_rounds: 1,
            seconds: 1e9,
            batch_seconds: 40.0,
            warm_up_share: 0.1,
            cache: CacheState::Warm,
        };
        time_interleaved(&mut [&mut engine], policy);
        assert_eq!(lengths.borrow()[lengths.borrow().len() - 2..], [4, 40]);
        assert_eq!([1, 10, 30, 31].map(|products| policy.warm_up(products)), [3, 3, 3, 4]);
        assert_eq!((policy.round_seconds(1.0), policy.round_seconds(50.0)), (44.0, 200.0));
        let cold = policy.in_state(CacheState::Cold);
        assert_eq!((cold.warm_up(1), cold.round_seconds(1.0)), (0, 1.0));
        assert_eq!(policy.in_state(CacheState::Company).round_seconds(1.0), 40.0);
    }

    #[test]
    fn candidates_take_turns() {
        let order = std::cell::RefCell::new(Vec::new());
        let policy = Policy {
            warmup: 1,
            min_rounds: 3,
            max_rounds: 3,
            seconds: 10.0,
            batch_seconds: 100e-6,
            ..Policy::default()
        };
        let wait = |name| {
            order.borrow_mut().push(name);
            std::thread::sleep(std::time::Duration::from_micros(200));
            Ok(())
        };
        let cpu = Stream::new(&Device::Cpu).unwrap();
        let samples = time_interleaved(
            &mut [&mut |n| time_batch(&cpu, n, || wait('a')), &mut |n| {
                time_batch(&cpu, n, || wait('b'))
            }],
            policy,
        );
        assert_eq!(
            order.borrow().iter().collect::<String>(),
            format!("aabb{}", "aaaabbbb".repeat(3))
        );
        for samples in samples {
            let samples = samples.unwrap();
            assert!(
                samples.len() == 3
                    && samples.median() >= 200e-6
                    && samples.min() <= samples.median()
            );
        }
    }

    #[test]
    fn a_failed_candidate_does_not_stop_the_others() {
        let failure = || Error::CopyLength { expected: 1, found: 2 };
        let results = time_interleaved(
            &mut [&mut |_| Err(failure()), &mut |n| Ok(f64::from(n))],
            Policy::default(),
        );
        assert_eq!(results[0].as_ref().unwrap_err().to_string(), failure().to_string());
        assert!(results[1].as_ref().unwrap().median() == 1.0);
    }

    #[test]
    fn a_judge_ends_it_for_some_and_then_for_all() {
        let mut judge = |results: &[Result<Samples, Error>], going: &mut [bool]| {
            let rounds = |i: usize| results[i].as_ref().unwrap().len();
            going[0] &= rounds(0) < 3;
            going[1] &= rounds(1) < 7;
        };
        let mut one = |n| Ok(f64::from(n));
        let mut other = |n| Ok(f64::from(n) * 2.0);
        let policy = Policy { batch_seconds: 0.0, ..Policy::default() };
        let results = time_interleaved_until(
            &mut [&mut one, &mut other],
            policy,
            &WallClock::start(),
            &mut judge,
        );
        let lengths: Vec<_> = results.iter().map(|r| r.as_ref().unwrap().len()).collect();
        assert_eq!(lengths, [3, 7]);
    }

    #[test]
    fn the_deviation_ignores_outliers() {
        let samples = Samples(vec![1.0, 1.2, 0.9, 50.0, 1.0]);
        assert_eq!(samples.median(), 1.0);
        assert!((samples.deviation() - 0.1).abs() < 1e-12);
    }
}
