//! Common parts of all iterations: the layout of the registers, the workspace, and batches of
//! iterations as graphs.

use super::{Outcome, Progress, Settings, SystemOperator};
use sparseop::device::Graph;
use sparseop::device::fused::{Code, Instruction, ONE, Passes, RING, STATUS};
use sparseop::{Device, DeviceVec, Error, Scalar, Stream};
use std::cell::Cell;
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
/// Squares of the norms of the right-hand side and of the initial `x`.
pub(super) const BB: u16 = 8;
pub(super) const XX: u16 = 9;
/// First register of a method.
pub(super) const OWN: u16 = 10;
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

/// Writes the registers, some of them with new values.
pub(super) fn set<T: Scalar>(
    passes: &mut Passes<T>,
    all: &mut [f64],
    new: &[(u16, f64)],
) -> Result<(), Error> {
    for &(register, value) in new {
        all[usize::from(register)] = value;
    }
    passes.write(all)
}

/// Operator, new vectors and programs of an iteration in preparation.
pub(super) struct Workspace<'a, T: Scalar> {
    pub(super) op: &'a dyn SystemOperator<T>,
    /// Number of own elements of a vector.
    pub(super) n: usize,
    /// True if there is a preconditioner.
    pub(super) preconditioned: bool,
    pub(super) code: Code,
    /// Number of vectors allocated.
    vectors: Cell<usize>,
}

/// Result of an iteration without restarts.
pub(super) struct Ended {
    pub(super) registers: Vec<f64>,
    pub(super) outcome: Outcome,
    pub(super) iterations: usize,
    pub(super) history: Vec<f64>,
    /// Seconds of all batches.
    pub(super) seconds: f64,
}

impl<'a, T: Scalar> Workspace<'a, T> {
    pub(super) fn new(op: &'a dyn SystemOperator<T>, preconditioned: bool) -> Self {
        let (n, code, vectors) = (op.own_rows().len(), Code::new(), Cell::new(0));
        Self { op, n, preconditioned, code, vectors }
    }

    /// Allocates a vector.
    pub(super) fn zeros(&self) -> Result<DeviceVec<T>, Error> {
        self.vectors.set(self.vectors.get() + 1);
        DeviceVec::zeros(self.op.device(), self.n)
    }

    /// Creates the passes on a stream of their own, which run the programs.
    pub(super) fn passes(self, registers: usize) -> Result<Passes<T>, Error> {
        let stream = Stream::new(self.op.device())?;
        // At most: two of them belong to the product, but the solution and the residual do not, and
        // not all are touched between two products.
        let others = self.vectors.get() + usize::from(self.preconditioned);
        stream.set_other_bytes((others * self.n * size_of::<T>()) as u64);
        let mut passes = Passes::new(&stream, registers, self.code)?;
        if let Some(sums) = self.op.shared_sums() {
            passes.share_sums(sums)?;
        }
        Ok(passes)
    }

    /// Iterates until the status is set, or the observer ends it. `values` are initial values of
    /// registers. `residual` converts the stored value of an iteration to the reported residual.
    /// `iterate` enqueues an iteration.
    pub(super) fn run(
        self,
        settings: &Settings,
        observer: impl FnMut(Progress) -> ControlFlow<()> + 'a,
        values: &[(u16, f64)],
        residual: fn(f64) -> f64,
        mut iterate: impl FnMut(&mut Passes<T>) -> Result<(), Error>,
    ) -> Result<Ended, Error> {
        let mut passes = self.passes(usize::from(REGISTERS))?;
        let mut driver = Driver::new(passes.stream(), settings, Some(Box::new(observer)));
        let mut registers = passes.read()?;
        registers[usize::from(LIMIT)] = settings.max_iterations as f64;
        set(&mut passes, &mut registers, values)?;
        let every = driver.every;
        let mut batch = |passes: &mut _| (0..every).try_for_each(|_| iterate(passes));
        driver.prepare(0, &mut || batch(&mut passes))?;
        let (ended, seconds) = timed(|| {
            loop {
                driver.run(0, &mut || batch(&mut passes))?;
                let registers = passes.read()?;
                let (before, now) =
                    (driver.history.len(), registers[usize::from(ITERATIONS)] as usize);
                let noted = driver.note(now, ring(&registers, HISTORY, before, now).map(residual));
                if status(&registers) != 0 || now >= settings.max_iterations {
                    return Ok((status(&registers), registers));
                }
                if noted.is_break() {
                    return Ok((INTERRUPTED, registers));
                }
            }
        });
        let (status, registers) = ended?;
        let iterations = registers[usize::from(ITERATIONS)] as usize;
        let (outcome, history) = (outcome(status), driver.history);
        Ok(Ended { registers, outcome, iterations, history, seconds })
    }
}

/// Runs batches of iterations: as graphs on a GPU, directly on the CPU.
pub(super) struct Driver<'a> {
    stream: Stream,
    /// Number of iterations of a batch.
    pub(super) every: usize,
    /// Reported residuals of the iterations.
    pub(super) history: Vec<f64>,
    pub(super) observer: Option<Observer<'a>>,
    /// Graphs by the number of their batch; empty if nothing can be captured.
    graphs: Vec<Option<Graph>>,
    captures: bool,
}

impl std::fmt::Debug for Driver<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "batches of {} iterations on {}", self.every, self.stream.device())
    }
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        stream: &Stream,
        settings: &Settings,
        observer: Option<Observer<'a>>,
    ) -> Self {
        let (every, captures) = (settings.every(&stream.device()), stream.device() != Device::Cpu);
        let (stream, history, graphs) = (stream.clone(), Vec::new(), Vec::new());
        Self { stream, every, history, observer, graphs, captures }
    }

    /// Captures batch number `number`, so that running it later has no such overhead. The batch
    /// does not run yet.
    pub(super) fn prepare(
        &mut self,
        number: usize,
        work: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.captures || self.graphs.get(number).is_some_and(Option::is_some) {
            return Ok(());
        }
        match self.stream.capture(work) {
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

    /// Runs batch number `number`, which enqueues the same work at every call.
    pub(super) fn run(
        &mut self,
        number: usize,
        work: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.prepare(number, work)?;
        match self.graphs.get(number).and_then(Option::as_ref) {
            Some(graph) => graph.launch(&self.stream),
            None => work(),
        }
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
