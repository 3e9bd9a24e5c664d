//! The contest: everyone packs, is checked, and multiplies in turn.

use super::baseline::{Baseline, Product, Sprs};
use super::report::{Details, Failed, Measured, Run};
use crate::cli::console::Console;
use sparseop::analysis::Analysis;
use sparseop::formats::Traffic;
use sparseop::matrix::CsrMatrix;
use sparseop::testing::{Oracle, x_vector};
use sparseop::tuning::stopwatch::{Policy, Samples, race};
use sparseop::{Error, Plan, Scalar, SparseOp, SparseOpBuilder, Tuning};

/// Packed bytes that are held at a time; plans beyond it race in groups.
const GROUP_BYTES: u64 = 8 << 30;

/// Who takes part, and in what.
pub(super) struct Contest<'a, T> {
    pub(super) a: &'a CsrMatrix<T>,
    pub(super) analysis: &'a Analysis,
    pub(super) builder: &'a SparseOpBuilder,
    pub(super) plans: &'a [Plan],
    pub(super) baselines: &'a [Baseline],
    pub(super) seconds: f64,
}

/// One who takes part.
struct Contestant<'a, T> {
    /// Its place among the results.
    place: usize,
    multiply: Product<'a, T>,
    traffic: Option<Traffic>,
    rel_error: f64,
    deterministic: bool,
}

/// The results: plans first, then baselines, each in the order given.
pub(super) fn contest<T: Sprs>(contest: &Contest<'_, T>, console: &Console) -> Vec<Run> {
    let x = x_vector::<T>(contest.a.ncols());
    let oracle = Oracle::of(contest.a.view(), &x);
    let bytes: Vec<u64> =
        contest.plans.iter().map(|p| p.traffic(contest.analysis, T::KIND).matrix_bytes).collect();
    let groups = groups(&bytes, GROUP_BYTES);
    let mut runs: Vec<Option<Run>> = vec![None; contest.plans.len() + contest.baselines.len()];
    let bar = console.bar("{msg} {wide_bar} {pos} of {len} plans");
    bar.set_length(contest.plans.len() as u64);
    for group in groups {
        let mut ready = Vec::new();
        let entrants = group.into_iter().chain(contest.plans.len()..runs.len());
        for place in entrants {
            bar.set_message(format!("preparing {}", contest.name(place).1));
            let checked = contest.enter(place).and_then(|mut entrant| {
                entrant.check(&oracle, &x, contest.a.nrows())?;
                Ok(entrant)
            });
            match checked {
                Ok(entrant) => ready.push(entrant),
                Err(failure) => runs[place] = Some(contest.failed(place, failure)),
            }
        }
        bar.set_message("timing");
        for (entrant, samples) in ready.iter().zip(time(&ready, &x, contest)) {
            // Who was there in an earlier group keeps its first result.
            runs[entrant.place].get_or_insert_with(|| contest.measured(entrant, &samples));
        }
        bar.set_position(runs.iter().take(contest.plans.len()).flatten().count() as u64);
    }
    bar.finish_and_clear();
    runs.into_iter().flatten().collect()
}

/// Why somebody does not take part.
enum Failure {
    /// More memory than allowed.
    Refused(String),
    /// Anything else.
    Broken(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::MemoryLimit { .. } => Self::Refused(error.to_string()),
            _ => Self::Broken(error.to_string()),
        }
    }
}

impl<'a, T: Sprs> Contest<'a, T> {
    /// Engine and plan of a place.
    fn name(&self, place: usize) -> (&'static str, String) {
        match self.plans.get(place) {
            Some(plan) => ("sparseop", plan.to_string()),
            None => (self.baselines[place - self.plans.len()].engine(), "csr".to_owned()),
        }
    }

    /// Packs the matrix for a place.
    fn enter(&self, place: usize) -> Result<Contestant<'a, T>, Failure> {
        let (multiply, traffic): (Product<'a, T>, _) = match self.plans.get(place) {
            Some(plan) => {
                let builder = self.builder.clone().tuning(Tuning::Fixed(plan.clone()));
                let op = builder.build_analyzed(self.a, self.analysis)?;
                let traffic = op.decision().chosen().map(|c| c.traffic);
                (product(op), traffic)
            }
            None => (T::sprs(self.a.view()).map_err(Failure::Broken)?, None),
        };
        Ok(Contestant { place, multiply, traffic, rel_error: 0.0, deterministic: false })
    }

    fn failed(&self, place: usize, failure: Failure) -> Run {
        let (engine, plan) = self.name(place);
        let (error, refused) = match failure {
            Failure::Refused(error) => (error, true),
            Failure::Broken(error) => (error, false),
        };
        Run::Failed(Failed { engine, plan, completed: false, error, refused })
    }

    fn measured(&self, entrant: &Contestant<'_, T>, samples: &Samples) -> Run {
        let (engine, plan) = self.name(entrant.place);
        let (median, nnz) = (samples.median(), self.a.nnz());
        let details = entrant.traffic.map(|traffic| Details {
            matrix_bytes: traffic.matrix_bytes,
            traffic_bytes: traffic.bytes(),
            gflops: 2.0 * nnz as f64 / median / 1e9,
            gbps: traffic.bytes() as f64 / median / 1e9,
            deterministic: entrant.deterministic,
        });
        let (median_us, min_us, rel_error) = (median * 1e6, samples.min() * 1e6, entrant.rel_error);
        Run::Measured(Measured { engine, plan, completed: true, median_us, min_us, rel_error, details })
    }
}

/// The product of an operator.
fn product<'a, T: Scalar>(op: SparseOp<T>) -> Product<'a, T> {
    // The lengths are those of the matrix itself.
    Box::new(move |x, y| op.apply(x, y).expect("x and y have the lengths of the matrix"))
}

impl<T: Scalar> Contestant<'_, T> {
    /// Compares the answer with the oracle's, and with itself a second time.
    fn check(&mut self, oracle: &Oracle, x: &[T], nrows: usize) -> Result<(), Failure> {
        let answer = || {
            // Whatever is not written stays wrong.
            let mut y = vec![T::from_f64(f64::NAN); nrows];
            (self.multiply)(x, &mut y);
            y
        };
        let (first, second) = (answer(), answer());
        oracle.check(&first).map_err(|wrong| Failure::Broken(format!("wrong answer: {wrong}")))?;
        self.rel_error = oracle.rel_error(&first);
        self.deterministic = first.iter().zip(&second).all(|(a, b)| a.bits() == b.bits());
        Ok(())
    }
}

/// Lets them multiply in turn.
fn time<T: Sprs>(ready: &[Contestant<'_, T>], x: &[T], contest: &Contest<'_, T>) -> Vec<Samples> {
    let mut answers = vec![vec![T::ZERO; contest.a.nrows()]; ready.len()];
    let mut products: Vec<_> =
        ready.iter().zip(&mut answers).map(|(entrant, y)| move || (entrant.multiply)(x, y)).collect();
    let mut contestants: Vec<&mut dyn FnMut()> = products.iter_mut().map(|p| p as _).collect();
    let policy = Policy { seconds: contest.seconds * ready.len() as f64, ..Policy::default() };
    race(&mut contestants, policy)
}

/// Cuts the plans into groups that take at most `limit` bytes each, where they can; the first is in every one, so that all can be
/// compared through it.
fn groups(bytes: &[u64], limit: u64) -> Vec<Vec<usize>> {
    let Some(&first) = bytes.first() else { return vec![Vec::new()] };
    let mut groups = vec![vec![0]];
    let mut held = first;
    for (place, &bytes) in bytes.iter().enumerate().skip(1) {
        let full = held.saturating_add(bytes) > limit;
        match groups.last_mut() {
            Some(group) if !full || group.len() == 1 => group.push(place),
            _ => {
                groups.push(vec![0, place]);
                held = first;
            }
        }
        held = held.saturating_add(bytes);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a product with `[1 2; 3 4]`.
    fn check(multiply: impl Fn(&[f64], &mut [f64]) + 'static) -> Result<Contestant<'static, f64>, String> {
        let a = CsrMatrix::try_new(2, 2, vec![0, 2, 4], vec![0, 1, 0, 1], vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        let x = [1.0, 1.0];
        let multiply = Box::new(multiply);
        let mut entrant =
            Contestant { place: 0, multiply, traffic: None, rel_error: 0.0, deterministic: false };
        match entrant.check(&Oracle::of(a.view(), &x), &x, 2) {
            Ok(()) => Ok(entrant),
            Err(Failure::Broken(error) | Failure::Refused(error)) => Err(error),
        }
    }

    #[test]
    fn a_wrong_answer_is_not_timed() {
        let right = check(|_, y| y.copy_from_slice(&[3.0, 7.0])).unwrap_or_else(|error| panic!("{error}"));
        assert!(right.deterministic && right.rel_error == 0.0);
        let wrong = check(|_, y| y.copy_from_slice(&[3.0, 7.5])).err();
        assert_eq!(wrong.as_deref().map(|w| w.starts_with("wrong answer: row 1 is 7.5")), Some(true));
        let unwritten = check(|_, y| y[0] = 3.0).err();
        assert_eq!(unwritten.as_deref().map(|w| w.starts_with("wrong answer: row 1 is NaN")), Some(true));
    }

    #[test]
    fn groups_stay_below_the_limit_and_share_the_first() {
        assert_eq!(groups(&[], 10), [Vec::<usize>::new()]);
        assert_eq!(groups(&[1, 2, 3], 10), [[0, 1, 2]]);
        assert_eq!(groups(&[4, 5, 6, 1], 10), [vec![0, 1], vec![0, 2], vec![0, 3]]);
        assert_eq!(groups(&[4, 3, 3, 2, 2], 10), [[0, 1, 2], [0, 3, 4]]);
        assert_eq!(groups(&[99, 99, 1], 10), [[0, 1], [0, 2]], "too large for any group");
    }
}
