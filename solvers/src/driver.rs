//! Common parts of all iterations: the layout of the registers, and batches of iterations as
//! graphs.

use super::{Outcome, Progress, Settings};
use sparseop::device::Graph;
use sparseop::device::fused::{Code, Instruction, ONE, Passes, RING, STATUS};
use sparseop::{Device, Error, Scalar, Stream};
use std::ops::ControlFlow;
use std::time::Instant;

/// Registers of every iteration; those of a method start at [`OWN`].
pub(super) const ITERATIONS: u16 = 2;
/// Target for the square of the residual's norm; for power iteration and PageRank the tolerance
/// itself.
pub(super) const TARGET: u16 = 3;
/// Largest number of iterations.
pub(super) const LIMIT: u16 = 4;
/// The constant zero.
pub(super) const ZERO: u16 = 5;
/// Square of the residual's norm.
pub(super) const RR: u16 = 6;
/// Second sum of the pass that computes the residual: of the residual and the requested partner.
pub(super) const RZ: u16 = 7;
/// First register of a method.
pub(super) const OWN: u16 = 8;
/// Ring buffer of the value of [`RR`] in each iteration.
pub(super) const HISTORY: u16 = 64;
/// The second and the third ring buffer.
pub(super) const SECOND: u16 = HISTORY + RING;
pub(super) const THIRD: u16 = SECOND + RING;
/// Number of registers, without those of GMRES' matrix, which follow.
pub(super) const REGISTERS: u16 = THIRD + RING;

/// Values of the status register.
pub(super) const CONVERGED: u16 = 1;
pub(super) const EXHAUSTED: u16 = 2;
pub(super) const INDEFINITE: u16 = 3;
pub(super) const BREAKDOWN: u16 = 4;
pub(super) const NOT_FINITE: u16 = 5;
pub(super) const DIVERGED: u16 = 6;
/// Set by the host only.
pub(super) const INTERRUPTED: u16 = 7;

/// Outcome for a status.
pub(super) fn outcome(status: u16) -> Outcome {
    match status {
        CONVERGED => Outcome::Converged,
        INDEFINITE => Outcome::NotPositiveDefinite,
        BREAKDOWN => Outcome::Breakdown,
        NOT_FINITE => Outcome::NotFinite,
        DIVERGED => Outcome::Diverged,
        INTERRUPTED => Outcome::Interrupted,
        _ => Outcome::MaxIterations,
    }
}

/// Status in the registers.
pub(super) fn status(registers: &[f64]) -> u16 {
    registers[usize::from(STATUS)] as u16
}

/// Instructions at the end of every iteration, with the residual in `of`: store it, count the
/// iteration, and stop if a criterion is met.
pub(super) fn counted(of: u16) -> [Instruction; 5] {
    [
        Instruction::StopUnlessFinite(NOT_FINITE, of),
        Instruction::Push(HISTORY, of, ITERATIONS),
        Instruction::Add(ITERATIONS, ITERATIONS, ONE),
        Instruction::StopAtMost(CONVERGED, of, TARGET),
        Instruction::StopAtMost(EXHAUSTED, LIMIT, ITERATIONS),
    ]
}

/// Elements of a ring buffer written by iterations `from..to`; at most as many as the ring has
/// places.
pub(super) fn ring(
    registers: &[f64],
    base: u16,
    from: usize,
    to: usize,
) -> impl Iterator<Item = f64> {
    (from..to).map(move |i| registers[usize::from(base) + i % usize::from(RING)])
}

/// Returns the result of `work` and its seconds on the wall clock.
pub(super) fn timed<R>(work: impl FnOnce() -> R) -> (R, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64())
}

/// Callback for the progress of an iteration, which may end it.
pub(super) type Observer<'a> = Box<dyn FnMut(Progress) -> ControlFlow<()> + 'a>;

/// Runs batches of iterations: as graphs on a GPU, directly on the CPU.
pub(super) struct Driver<'a, T: Scalar> {
    pub(super) passes: Passes<T>,
    /// Number of iterations of a batch.
    pub(super) every: usize,
    /// Reported residuals of the iterations.
    pub(super) history: Vec<f64>,
    pub(super) observer: Option<Observer<'a>>,
    /// Graphs by the number of their batch; empty if nothing can be captured.
    graphs: Vec<Option<Graph>>,
    captures: bool,
}

impl<T: Scalar> std::fmt::Debug for Driver<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "batches of {} iterations on {}", self.every, self.passes.stream().device())
    }
}

impl<'a, T: Scalar> Driver<'a, T> {
    pub(super) fn new(
        stream: &Stream,
        settings: &Settings,
        registers: usize,
        code: Code,
        observer: Option<Observer<'a>>,
    ) -> Result<Self, Error> {
        let device = stream.device();
        Ok(Self {
            passes: Passes::new(stream, registers, code)?,
            every: settings.every(&device),
            history: Vec::new(),
            observer,
            graphs: Vec::new(),
            captures: device != Device::Cpu,
        })
    }

    /// Captures batch number `number`, so that running it later has no such overhead. The batch
    /// does not run yet.
    pub(super) fn prepare(
        &mut self,
        number: usize,
        work: &mut dyn FnMut(&mut Passes<T>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.captures || self.graphs.get(number).is_some_and(Option::is_some) {
            return Ok(());
        }
        let (stream, passes) = (self.passes.stream().clone(), &mut self.passes);
        match stream.capture(&mut || work(passes)) {
            Ok(graph) => {
                if self.graphs.len() <= number {
                    self.graphs.resize_with(number + 1, || None);
                }
                self.graphs[number] = Some(graph);
            }
            // The host takes part in the products of this plan.
            Err(Error::NotCapturable { .. }) => self.captures = false,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Runs batch number `number`, which enqueues the same work at every call, and returns the
    /// resulting registers.
    pub(super) fn advance(
        &mut self,
        number: usize,
        work: &mut dyn FnMut(&mut Passes<T>) -> Result<(), Error>,
    ) -> Result<Vec<f64>, Error> {
        self.prepare(number, work)?;
        match self.graphs.get(number).and_then(Option::as_ref) {
            Some(graph) => graph.launch(self.passes.stream())?,
            None => work(&mut self.passes)?,
        }
        self.passes.read()
    }

    /// Runs batch 0 until the iteration ends, and returns the resulting registers and the seconds
    /// of all batches. `residual` converts the stored value of an iteration to the reported
    /// residual.
    pub(super) fn run(
        &mut self,
        max_iterations: usize,
        residual: fn(f64) -> f64,
        work: &mut dyn FnMut(&mut Passes<T>) -> Result<(), Error>,
    ) -> Result<(Vec<f64>, f64), Error> {
        self.prepare(0, work)?;
        let (ended, seconds) = timed(|| {
            loop {
                let mut registers = self.advance(0, work)?;
                let (before, now) =
                    (self.history.len(), registers[usize::from(ITERATIONS)] as usize);
                let noted = self.note(now, ring(&registers, HISTORY, before, now).map(residual));
                if status(&registers) != 0 || now >= max_iterations {
                    return Ok(registers);
                }
                if noted.is_break() {
                    registers[usize::from(STATUS)] = f64::from(INTERRUPTED);
                    return Ok(registers);
                }
            }
        });
        ended.map(|registers| (registers, seconds))
    }

    /// Appends residuals to the history, the last of which is that of iteration `iterations`, and
    /// calls the observer. Returns its answer.
    pub(super) fn note(
        &mut self,
        iterations: usize,
        residuals: impl IntoIterator<Item = f64>,
    ) -> ControlFlow<()> {
        self.history.extend(residuals);
        let residual = self.history.last().copied().unwrap_or(f64::NAN);
        match &mut self.observer {
            Some(observer) => observer(Progress { iterations, residual }),
            None => ControlFlow::Continue(()),
        }
    }
}
