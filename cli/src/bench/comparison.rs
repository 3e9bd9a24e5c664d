//! The comparison: packs every candidate, checks its result and times all of them in turn.

use super::baseline::{Context, Peer, Peers, Task};
use super::cusparse::{self, SharedArrays};
use super::engine::{Engine, OperatorEngine, ProductKind};
use super::failure::RunFailure;
use super::report::{BenchRun, Details, Failed, MeasuredRun};
use super::task::{MultivectorShape, TestVectors};
use crate::console::Console;
use sparseop::analysis::Analysis;
use sparseop::device::Graph;
use sparseop::formats::Work;
use sparseop::matrix::CsrMatrix;
use sparseop::tuning::caches::{CacheState, Caches};
use sparseop::tuning::explain::AuxiliaryPacking;
use sparseop::tuning::stopwatch::{Policy, Samples, TimedBatch, time_interleaved};
use sparseop::{Device, Error, Plan, Scalar, SparseOp, SparseOpBuilder, Stream, Tuning};
use std::rc::Rc;

/// Packed bytes held at a time; plans beyond them are timed in groups. On a GPU at most a third of
/// the free memory.
const GROUP_BYTES: u64 = 8 << 30;

/// A comparison of plans and baselines.
pub(super) struct Comparison<'a, T> {
    pub(super) a: &'a CsrMatrix<T>,
    /// The matrix before transposition, if it is transposed.
    pub(super) original: Option<&'a CsrMatrix<T>>,
    pub(super) task: Task,
    pub(super) analysis: &'a Analysis,
    /// For this device and this limit.
    pub(super) builder: &'a SparseOpBuilder,
    /// Limit of the bytes of one packed matrix, for plans and baselines alike.
    pub(super) limit: u64,
    pub(super) device: &'a Device,
    pub(super) plans: &'a [Plan],
    pub(super) peers: &'a [Peer],
    pub(super) seconds: f64,
    /// State of the caches at the beginning of timed products.
    pub(super) cache: CacheState,
    /// True if products on a GPU are launched as graphs.
    pub(super) graphs: bool,
}

/// Number of products of a graph.
const CAPTURED: u32 = 128;

/// A packed candidate.
struct TimedEngine<'a, T> {
    /// Index among the results.
    place: usize,
    /// [`CAPTURED`] products on a GPU, captured by the first batch of so many. Dropped before the
    /// engine, whose memory it uses.
    graph: Option<Graph>,
    engine: Box<dyn Engine<T> + 'a>,
    work: Option<Work>,
    rel_error: f64,
    deterministic: bool,
    /// The plan for several vectors, if it is another one.
    spmm_plan: Option<String>,
}

/// The results: plans first, then peers, each in the order given.
///
/// # Errors
///
/// If the vector to multiply with, or the data that fill the caches, cannot be brought to the
/// device, or a GPU does not report its free memory.
pub(super) fn compare<T: Peers>(
    comparison: &Comparison<'_, T>,
    console: &Console,
) -> Result<Vec<BenchRun>, Error> {
    let vectors = TestVectors::new(comparison.a.view(), comparison.task.vectors_shape.count);
    let context = comparison.context(&vectors)?;
    let bytes: Vec<u64> = comparison
        .plans
        .iter()
        .map(|p| p.work(comparison.analysis, T::KIND).matrix_bytes)
        .collect();
    let together = match comparison.device {
        Device::Cpu => GROUP_BYTES,
        gpu => GROUP_BYTES.min(gpu.memory()? / 3),
    };
    let groups = groups(&bytes, together);
    let mut runs: Vec<Option<BenchRun>> =
        vec![None; comparison.plans.len() + comparison.peers.len()];
    let bar = console.bar("{msg} {wide_bar} {pos} of {len} plans");
    bar.set_length(comparison.plans.len() as u64);
    for group in groups {
        let mut ready = Vec::new();
        for place in group.into_iter().chain(comparison.plans.len()..runs.len()) {
            bar.set_message(format!("preparing {}", comparison.name(place).1));
            let checked = comparison.enter(place, &context).and_then(|mut timed_engine| {
                timed_engine.check(&vectors, comparison.a.nrows())?;
                Ok(timed_engine)
            });
            match checked {
                Ok(timed_engine) => ready.push(timed_engine),
                Err(failure) => runs[place] = Some(comparison.failed(place, failure)),
            }
        }
        bar.set_message("timing");
        let times = time(&mut ready, comparison);
        for (timed_engine, samples) in ready.iter().zip(times) {
            // A candidate of several groups keeps its first result.
            runs[timed_engine.place].get_or_insert_with(|| match samples {
                Ok(samples) => comparison.measured(timed_engine, &samples),
                Err(error) => comparison.failed(timed_engine.place, error.into()),
            });
        }
        bar.set_position(runs.iter().take(comparison.plans.len()).flatten().count() as u64);
    }
    bar.finish_and_clear();
    Ok(runs.into_iter().flatten().collect())
}

impl<T: Peers> Comparison<'_, T> {
    /// Engine and plan of a result.
    fn name(&self, place: usize) -> (&'static str, String) {
        match self.plans.get(place) {
            Some(plan) => ("sparseop", plan.to_string()),
            None => {
                let (engine, plan) = self.peers[place - self.plans.len()].name();
                (engine, plan.to_owned())
            }
        }
    }

    /// Inputs that all engines share.
    fn context<'c>(&'c self, vectors: &'c TestVectors<T>) -> Result<Context<'c, T>, Error> {
        Ok(Context {
            a: self.a.view(),
            original: self.original.map(CsrMatrix::view),
            task: self.task.vectors_shape,
            vectors,
            builder: self.builder,
            device: self.device,
            caches: Rc::new(Caches::new(&Stream::new(self.device)?, self.cache)?),
            shared: SharedArrays::within(self.limit),
            shared_original: SharedArrays::within(self.limit),
        })
    }

    /// Packs the matrix for the candidate at `place`.
    fn enter<'c>(
        &'c self,
        place: usize,
        context: &'c Context<'c, T>,
    ) -> Result<TimedEngine<'c, T>, RunFailure> {
        let Some(plan) = self.plans.get(place) else {
            let engine = self.peers[place - self.plans.len()].enter(context)?;
            return Ok(TimedEngine::new(place, engine));
        };
        let builder = self.builder.clone().tuning(Tuning::Fixed(plan.clone()));
        let op = builder.build_analyzed(self.a, self.analysis)?;
        let vectors_shape = self.task.vectors_shape;
        let x = context.vectors.on(self.device, vectors_shape)?;
        let engine =
            OperatorEngine::new(op, ProductKind::Plain(vectors_shape), x, context.caches.clone())?;
        let (work, spmm_plan) = work(engine.op(), vectors_shape);
        Ok(TimedEngine { work, spmm_plan, ..TimedEngine::new(place, Box::new(engine)) })
    }

    fn failed(&self, place: usize, failure: RunFailure) -> BenchRun {
        let (engine, plan) = self.name(place);
        let (error, refused) = match failure {
            RunFailure::Refused(error) => (error, true),
            RunFailure::Broken(error) => (error, false),
        };
        BenchRun::Failed(Failed {
            engine,
            version: version(engine),
            plan,
            completed: false,
            error,
            refused,
        })
    }

    fn measured(&self, timed_engine: &TimedEngine<'_, T>, samples: &Samples) -> BenchRun {
        let (engine, plan) = self.name(timed_engine.place);
        let (median, vectors) = (samples.median(), timed_engine.engine.vectors_shape().count);
        let details = timed_engine.work.map(|work| Details {
            matrix_bytes: work.matrix_bytes,
            traffic_bytes: work.bytes(),
            gflops: 2.0 * (self.a.nnz() * vectors) as f64 / median / 1e9,
            gbps: work.bytes() as f64 / median / 1e9,
            deterministic: timed_engine.deterministic,
        });
        let (median_us, min_us, rel_error) =
            (median * 1e6, samples.min() * 1e6, timed_engine.rel_error);
        let spmm_plan = timed_engine.spmm_plan.clone();
        BenchRun::Measured(MeasuredRun {
            engine,
            version: version(engine),
            plan,
            completed: true,
            median_us,
            min_us,
            rel_error,
            vectors,
            details,
            spmm_plan,
        })
    }
}

/// Version of an engine's library. None for an engine of this program.
fn version(engine: &str) -> Option<String> {
    (engine == cusparse::ENGINE).then(cusparse::version).flatten()
}

/// Work of an operator's product, with the bytes actually packed in place of the predicted ones,
/// and the plan for several vectors if it is another one.
fn work<T: Scalar>(
    op: &SparseOp<T>,
    vectors_shape: MultivectorShape,
) -> (Option<Work>, Option<String>) {
    let auxiliary = op.explain().auxiliary;
    // The packing for this number of vectors was made last.
    let (matrix_bytes, plan) = match auxiliary.spmm.into_iter().flatten().last() {
        Some((_, AuxiliaryPacking::Own { plan, bytes, .. })) => (bytes, Some(plan.to_string())),
        _ => (op.memory_bytes(), None),
    };
    let of_spmm = |estimated: Work| Work {
        matrix_bytes,
        vector_bytes: estimated.vector_bytes * vectors_shape.count as u64,
        ..estimated
    };
    (op.decision().chosen().map(|chosen| of_spmm(chosen.work)), plan)
}

impl<'a, T: Scalar> TimedEngine<'a, T> {
    fn new(place: usize, engine: Box<dyn Engine<T> + 'a>) -> Self {
        let (graph, work, spmm_plan) = (None, None, None);
        Self { place, graph, engine, work, rel_error: 0.0, deterministic: false, spmm_plan }
    }

    /// Seconds of a batch of products, in graphs if they are short.
    fn batch_in_graphs(&mut self, products: u32) -> Result<f64, Error> {
        let Self { engine, graph, .. } = self;
        let caches = engine.caches().clone();
        let stream = caches.stream();
        if products < CAPTURED || stream.device() == Device::Cpu || engine.is_separated() {
            return engine.batch(products);
        }
        if graph.is_none() {
            let mut work = || (0..CAPTURED).try_for_each(|_| engine.multiply());
            *graph = Some(stream.capture(&mut work)?);
        }
        let Some(graph) = graph else { return engine.batch(products) };
        let launches = products.div_ceil(CAPTURED);
        let seconds = caches.batch(launches, || graph.launch(stream))?;
        Ok(seconds * f64::from(products) / f64::from(launches * CAPTURED))
    }

    /// Compares the result with the oracle's, and with a second result.
    fn check(&mut self, vectors: &TestVectors<T>, nrows: usize) -> Result<(), RunFailure> {
        let vectors_shape = self.engine.vectors_shape();
        let mut answer = || {
            // Elements that are not written stay NaN.
            let mut y = sparseop::filled(nrows * vectors_shape.count, T::from_f64(f64::NAN))?;
            self.engine.answer(&mut y).map(|()| y)
        };
        let (first, second) = (answer()?, answer()?);
        let checked = vectors.check(&first, vectors_shape);
        self.rel_error =
            checked.map_err(|wrong| RunFailure::Broken(format!("wrong answer: {wrong}")))?;
        self.deterministic = first.iter().zip(&second).all(|(a, b)| a.bits() == b.bits());
        Ok(())
    }
}

/// Times the candidates in turn.
fn time<T: Scalar>(
    ready: &mut [TimedEngine<'_, T>],
    comparison: &Comparison<'_, T>,
) -> Vec<Result<Samples, Error>> {
    let policy = Policy::of(comparison.device).in_state(comparison.cache);
    // More time is more rounds.
    let max_rounds = (policy.max_rounds as f64 * comparison.seconds.max(1.0)) as usize;
    let policy = Policy { seconds: comparison.seconds * ready.len() as f64, max_rounds, ..policy };
    let mut batches: Vec<_> = ready
        .iter_mut()
        .map(|e| {
            move |products| match comparison.graphs {
                true => e.batch_in_graphs(products),
                false => e.engine.batch(products),
            }
        })
        .collect();
    let mut batches: Vec<&mut TimedBatch<'_>> = batches.iter_mut().map(|b| b as _).collect();
    time_interleaved(&mut batches, policy)
}

/// Cuts the plans into groups of at most `limit` bytes each, if possible. The first plan is in
/// every group, so that all can be compared through it.
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
    use super::super::engine::OnHost;
    use super::*;

    /// Checks a product with `[1 2; 3 4]`.
    fn check(
        multiply: impl Fn(&[f64], &mut [f64]) + 'static,
    ) -> Result<TimedEngine<'static, f64>, String> {
        let a = CsrMatrix::try_new(2, 2, vec![0, 2, 4], vec![0, 1, 0, 1], vec![1.0, 2.0, 3.0, 4.0])
            .unwrap();
        let caches = Caches::new(&Stream::new(&Device::Cpu).unwrap(), CacheState::Warm).unwrap();
        let engine = OnHost::new(Box::new(multiply), &[1.0, 1.0], 2, Rc::new(caches)).unwrap();
        let engine = Box::new(engine);
        let mut timed_engine = TimedEngine::new(0, engine);
        match timed_engine.check(&TestVectors::of(a.view(), vec![1.0, 1.0], 1), 2) {
            Ok(()) => Ok(timed_engine),
            Err(RunFailure::Broken(error) | RunFailure::Refused(error)) => Err(error),
        }
    }

    #[test]
    fn a_wrong_answer_is_not_timed() {
        let right =
            check(|_, y| y.copy_from_slice(&[3.0, 7.0])).unwrap_or_else(|error| panic!("{error}"));
        assert!(right.deterministic && right.rel_error == 0.0);
        let wrong = check(|_, y| y.copy_from_slice(&[3.0, 7.5])).err();
        assert_eq!(
            wrong.as_deref().map(|w| w.starts_with("wrong answer: row 1 is 7.5")),
            Some(true)
        );
        let unwritten = check(|_, y| y[0] = 3.0).err();
        assert_eq!(
            unwritten.as_deref().map(|w| w.starts_with("wrong answer: row 1 is NaN")),
            Some(true)
        );
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
