//! Time: the only place that reads a clock.

use super::cache_state::CacheState;
use crate::Error;
use crate::device::{Device, Stream};
use statrs::statistics::{Data, Min, OrderStatistics};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

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

/// Seconds since 1970, for records; 0 where the system's date is before that.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Runs `work` and gives what it returned and the seconds it took.
pub fn timed<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let clock = WallClock::start();
    let result = work();
    (result, clock.seconds())
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
    /// Warm-up products before a recorded batch, over the products of the batch; at least three products run.
    pub lead: f64,
    /// State of the caches that a recorded batch finds. Warm-up products run in the warm state alone.
    pub cache: CacheState,
}

/// Warm-up products before a recorded batch at least, for all engines alike: the batch before was
/// another engine's, whose data fill the cache. Caches do not replace strictly the oldest line, so
/// that one pass over a matrix that fits leaves a part of it outside; each further pass leaves less.
const MIN_WARM_UP: u32 = 3;

impl Policy {
    /// The default for a device, warm: on a GPU batches are long enough to hide when the first of their launches begins.
    pub fn of(device: &Device) -> Self {
        match device {
            Device::Cpu => Self::default(),
            Device::Cuda(_) => Self { turn: 1e-3, lead: 0.1, ..Self::default() },
        }
    }

    /// The same for products that find the caches in another state.
    pub fn in_state(self, cache: CacheState) -> Self {
        // Filling the cache takes longer than a product, and a cold batch is one product.
        let turn = if cache == CacheState::Cold { 0.0 } else { self.turn };
        Self { turn, cache, ..self }
    }

    /// Warm-up products before a recorded batch of so many.
    fn warm_up(&self, products: u32) -> u32 {
        match self.cache {
            CacheState::Warm => ((f64::from(products) * self.lead).ceil() as u32).max(MIN_WARM_UP),
            CacheState::Company | CacheState::Cold => 0,
        }
    }

    /// Seconds of one recorded batch and its warm-up, of products that take `product` seconds.
    pub(crate) fn round_seconds(&self, product: f64) -> f64 {
        let products = (self.turn / product.max(MIN_PRODUCT)).ceil().clamp(1.0, MAX_PRODUCTS);
        product.max(self.turn) + f64::from(self.warm_up(products as u32)) * product
    }
}

/// Seconds that a product is taken for at least.
const MIN_PRODUCT: f64 = 50e-9;

/// Products of a batch at most.
const MAX_PRODUCTS: f64 = 10_000.0;

impl Default for Policy {
    /// Enough for a median that repeats within a per cent or two on a quiet machine.
    ///
    /// Among thirty plans CSR took 87 µs for a band of 300,000 entries on Zen 4 cores with turns of 100 µs after one product, and 44 in a loop: it takes several
    /// products until the lengths of the rows are foretold.
    fn default() -> Self {
        Self {
            warmup: 2,
            min_rounds: 5,
            max_rounds: 200,
            seconds: 1.0,
            turn: 500e-6,
            lead: 1.0,
            cache: CacheState::Warm,
        }
    }
}

/// The recorded times of one contestant, in seconds.
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

    /// How far samples are from the median, half of them less and half of them more: the median absolute deviation, in seconds; NaN
    /// without samples.
    pub fn deviation(&self) -> f64 {
        let median = self.median();
        let distances: Vec<f64> = self.0.iter().map(|sample| (sample - median).abs()).collect();
        Data::new(distances).median()
    }

    /// The samples, in the order of the rounds.
    pub fn as_slice(&self) -> &[f64] {
        &self.0
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

/// Rules on a [`race`] after every recorded round: takes those who need no further rounds off the list of those who go on. It sees
/// everyone's samples so far, one for each round.
pub type Judge<'a> = dyn FnMut(&[Result<Samples, Error>], &mut [bool]) + 'a;

/// Times contestants in turn, round after round, so that drift of the machine hits all alike.
///
/// A contestant whose run is short is repeated within its turn until the turn can be read off the clock: how often is found in the rounds
/// before anything is recorded. One that fails is out of the race, with its error.
pub fn race(contestants: &mut [&mut Contestant<'_>], policy: Policy) -> Vec<Result<Samples, Error>> {
    race_until(contestants, policy, &WallClock::start(), &mut |_, _| {})
}

/// As [`race`], but a judge may end it for some before it ends for all; over when nobody goes on. The seconds of the policy are those
/// on `clock`.
pub fn race_until(
    contestants: &mut [&mut Contestant<'_>],
    policy: Policy,
    clock: &dyn Clock,
    judge: &mut Judge<'_>,
) -> Vec<Result<Samples, Error>> {
    let mut results: Vec<Result<Samples, Error>> =
        contestants.iter().map(|_| Ok(Samples::default())).collect();
    let mut repeats = vec![1u32; contestants.len()];
    let mut going = vec![true; contestants.len()];
    for round in 0..policy.warmup + policy.max_rounds {
        let recorded = round.saturating_sub(policy.warmup);
        let spent = clock.seconds();
        if recorded >= 1
            && (spent > policy.seconds * 4.0 || (recorded >= policy.min_rounds && spent > policy.seconds))
        {
            break;
        }
        for (i, contestant) in contestants.iter_mut().enumerate().filter(|(i, _)| going[*i]) {
            let Ok(samples) = &mut results[i] else { continue };
            let taken = match round < policy.warmup {
                true => settle(contestant, &mut repeats[i], policy.turn).map(|()| None),
                false => {
                    let warm_up = match policy.warm_up(repeats[i]) {
                        0 => Ok(0.0),
                        products => contestant(products),
                    };
                    warm_up.and_then(|_| contestant(repeats[i])).map(Some)
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

/// Runs a contestant until its turn takes about as long as asked, and leaves in `repeats` how often it has to run for that.
///
/// Of a single run most may be what it takes to start and to end a turn: by it alone turns would be too short, each contestant's by another
/// factor, and what starting takes would be charged to its runs. What was held up once is not taken for slow.
fn settle(contestant: &mut Contestant<'_>, repeats: &mut u32, turn: f64) -> Result<(), Error> {
    /// Each time what starting takes is shared by more runs: the third is hardly off.
    const TRIES: usize = 3;
    let mut once = contestant(1)?;
    for _ in 0..TRIES {
        let tried = *repeats;
        once = once.min(contestant(tried)? / f64::from(tried)).max(MIN_PRODUCT);
        *repeats = (turn / once).ceil().clamp(1.0, MAX_PRODUCTS) as u32;
        // As many as were tried, or up to a third more.
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
    fn turns_are_as_long_as_asked_where_starting_one_takes_longer_than_a_run() {
        // 20 µs to start a turn, 1 µs for a run: by the first run alone there would be 48 runs in place of about a thousand.
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
            turn: 1e-3,
            ..Policy::default()
        };
        let samples = race(&mut [&mut short], policy).remove(0).unwrap();
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
            turn: 40.0,
            lead: 0.1,
            cache: CacheState::Warm,
        };
        race(&mut [&mut engine], policy);
        assert_eq!(lengths.borrow()[lengths.borrow().len() - 2..], [4, 40]);
        assert_eq!([1, 10, 30, 31].map(|products| policy.warm_up(products)), [3, 3, 3, 4]);
        assert_eq!((policy.round_seconds(1.0), policy.round_seconds(50.0)), (44.0, 200.0));
        let cold = policy.in_state(CacheState::Cold);
        assert_eq!((cold.warm_up(1), cold.round_seconds(1.0)), (0, 1.0));
        assert_eq!(policy.in_state(CacheState::Company).round_seconds(1.0), 40.0);
    }

    #[test]
    fn contestants_take_turns() {
        let order = std::cell::RefCell::new(Vec::new());
        let policy = Policy {
            warmup: 1,
            min_rounds: 3,
            max_rounds: 3,
            seconds: 10.0,
            turn: 100e-6,
            ..Policy::default()
        };
        let wait = |name| {
            order.borrow_mut().push(name);
            std::thread::sleep(std::time::Duration::from_micros(200));
            Ok(())
        };
        let cpu = Stream::new(&Device::Cpu).unwrap();
        let samples =
            race(&mut [&mut |n| turn(&cpu, n, || wait('a')), &mut |n| turn(&cpu, n, || wait('b'))], policy);
        assert_eq!(order.borrow().iter().collect::<String>(), format!("aabb{}", "aaaabbbb".repeat(3)));
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

    #[test]
    fn a_judge_ends_it_for_some_and_then_for_all() {
        let mut judge = |results: &[Result<Samples, Error>], going: &mut [bool]| {
            let rounds = |i: usize| results[i].as_ref().unwrap().len();
            going[0] &= rounds(0) < 3;
            going[1] &= rounds(1) < 7;
        };
        let mut one = |n| Ok(f64::from(n));
        let mut other = |n| Ok(f64::from(n) * 2.0);
        let policy = Policy { turn: 0.0, ..Policy::default() };
        let results = race_until(&mut [&mut one, &mut other], policy, &WallClock::start(), &mut judge);
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
