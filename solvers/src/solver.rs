//! Solvers of linear systems: common parts of all methods.

use super::bicgstab::BiCgStab;
use super::cg::Cg;
use super::chebyshev::{Chebyshev, bounds_of};
use super::checks::{check_length, check_square, check_vector, invalid};
use super::driver::{
    BB, BREAKDOWN, CONVERGED, Driver, EXHAUSTED, INTERRUPTED, LIMIT, Observer, RR, TARGET,
    Workspace, XX, outcome, timed,
};
use super::gmres::Gmres;
use super::single_reduction::SingleReductionCg;
use super::system::{Iteration, System, copy};
use super::{Jacobi, Method, Outcome, Progress, Report, Settings, SystemOperator};
use sparseop::device::fused::{Combine, Partner};
use sparseop::{DeviceVec, Error, Scalar};
use std::fmt::Debug;
use std::ops::ControlFlow;

/// Target of a method's recurrences, relative to the tolerance: they drift away from the true
/// residual.
const MARGIN: f64 = 0.95;

/// Settings of a solver.
pub struct SolverBuilder<'a, T: Scalar> {
    method: Method,
    settings: Settings,
    jacobi: Option<Jacobi<T>>,
    observer: Option<Observer<'a>>,
}

/// Solver for systems with one matrix. Its vectors are allocated and its iterations captured only
/// once.
pub struct Solver<'a, T: Scalar> {
    method: Method,
    settings: Settings,
    system: System<'a, T>,
    driver: Driver<'a>,
    iteration: Box<dyn Iteration<T> + 'a>,
}

impl<T: Scalar> Debug for Solver<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {:?}, {:?}", self.method.name(), self.settings, self.driver)
    }
}

impl<T: Scalar> Debug for SolverBuilder<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let preconditioner = if self.jacobi.is_some() { ", jacobi" } else { "" };
        write!(f, "{:?}, {:?}{preconditioner}", self.method, self.settings)
    }
}

impl<'a, T: Scalar> SolverBuilder<'a, T> {
    /// Creates a builder for a method, with default settings and without a preconditioner.
    pub fn new(method: Method) -> Self {
        Self { method, settings: Settings::default(), jacobi: None, observer: None }
    }

    /// Sets the stopping criteria and the interval of checks.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets a preconditioner.
    #[must_use]
    pub fn jacobi(mut self, jacobi: Jacobi<T>) -> Self {
        self.jacobi = Some(jacobi);
        self
    }

    /// Sets a callback that is called with the progress at every check, and may end the iteration:
    /// its outcome is then [`Outcome::Interrupted`]. While bounds of eigenvalues are estimated it
    /// is called with 0 iterations and the residual 1.
    #[must_use]
    pub fn progress(mut self, observer: impl FnMut(Progress) -> ControlFlow<()> + 'a) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Creates a solver for an operator, on its device: allocates the vectors, and on a GPU
    /// captures the iterations.
    ///
    /// # Errors
    ///
    /// [`Error::NotSquare`]; [`Error::SolverSetting`] for an invalid setting;
    /// [`Error::VectorLength`] if the preconditioner is that of another matrix;
    /// [`Error::NotConverged`] if Chebyshev's bounds have to be estimated and cannot be;
    /// [`Error::GpuMemory`], [`Error::Gpu`] and [`Error::KernelCompile`].
    pub fn build(self, op: &'a impl SystemOperator<T>) -> Result<Solver<'a, T>, Error> {
        let Self { mut method, settings, jacobi, mut observer } = self;
        check_square(method.name(), op.shape())?;
        settings.check(method.name())?;
        let n = op.own_rows().len();
        if let Some(jacobi) = &jacobi {
            check_length("diagonal", n, jacobi.inverse.len(), op.shape())?;
        }
        if method == (Method::Chebyshev { bounds: None }) {
            let bounds = bounds_of(op, jacobi.as_ref(), observer.as_mut())?;
            method = Method::Chebyshev { bounds: Some(bounds) };
        }
        let inverse = jacobi.map(|jacobi| DeviceVec::from_slice(op.device(), &jacobi.inverse));
        let diagonal = inverse.transpose()?;
        let mut workspace = Workspace::new(op, diagonal.is_some());
        let iteration: Box<dyn Iteration<T> + 'a> = match method {
            Method::Cg => Box::new(Cg::new(&mut workspace)?),
            Method::SingleReductionCg => Box::new(SingleReductionCg::new(&mut workspace)?),
            Method::BiCgStab => Box::new(BiCgStab::new(&mut workspace)?),
            Method::Gmres { restart } => Box::new(Gmres::new(&mut workspace, restart)?),
            Method::Chebyshev { bounds } => {
                Box::new(Chebyshev::new(&mut workspace, bounds.unwrap_or_default())?)
            }
        };
        let passes = workspace.passes(iteration.registers())?;
        let registers = passes.read()?;
        let driver = Driver::new(passes.stream(), &settings, observer);
        let zeros = || DeviceVec::zeros(op.device(), n);
        let [b, x, r, kept] = [zeros()?, zeros()?, zeros()?, zeros()?];
        let system = System { op, n, passes, registers, diagonal, b, x, r, kept };
        let mut solver = Solver { method, settings, system, driver, iteration };
        solver.batch(0, true)?;
        Ok(solver)
    }
}

impl<T: Scalar> Solver<'_, T> {
    /// The method, including estimated parameters.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Number of products per iteration.
    pub fn products_per_iteration(&self) -> u32 {
        if self.method == Method::BiCgStab { 2 } else { 1 }
    }

    /// Bytes of vectors read and written per iteration besides the products; for GMRES the mean up
    /// to a restart.
    pub fn vector_bytes_per_iteration(&self) -> u64 {
        let preconditioned = u64::from(self.system.diagonal.is_some());
        let vectors = match self.method {
            Method::Cg => 10 + 2 * preconditioned,
            Method::SingleReductionCg => 13 + 5 * preconditioned,
            Method::Chebyshev { .. } => 8 + preconditioned,
            Method::BiCgStab => 19 + 6 * preconditioned,
            // For every vector in the basis: two accesses of the newest vector and two of the basis
            // vector.
            Method::Gmres { restart } => 2 * restart as u64 + 5 + 3 * preconditioned,
        };
        vectors * (self.system.n * size_of::<T>()) as u64
    }

    /// Solves A x = b, starting from the given `x`.
    ///
    /// The report contains the outcome. If the method has not converged, `x` is the best
    /// approximation found ([`Report::converged`] converts this into an error).
    ///
    /// # Errors
    ///
    /// [`Error::VectorLength`] and [`Error::NotFinite`] for an invalid `b` or `x`,
    /// [`Error::SolverSetting`] if `b` is not zero but too small to be squared, below about 1e-154;
    /// [`Error::Gpu`] if the GPU fails.
    pub fn solve(&mut self, b: &[T], x: &mut [T]) -> Result<Report, Error> {
        let n = self.system.n;
        for (vector, elements) in [("b", b), ("x", &*x)] {
            check_vector(vector, elements, 0..n, (n, n))?;
        }
        self.system.b.copy_from(b)?;
        self.system.x.copy_from(x)?;
        let (report, seconds) = timed(|| {
            self.system.reset(0)?;
            self.system.square_b()?;
            let registers = self.system.residual()?;
            self.run(registers)
        });
        self.system.x.copy_to(x)?;
        report.map(|report| Report { seconds, ..report })
    }

    /// As [`Solver::solve`], with vectors in the memory of the operator's device. Waits first for
    /// all work enqueued there: `b` may still be in the process of being written on any stream.
    ///
    /// # Errors
    ///
    /// Those of [`Solver::solve`], and [`Error::WrongDevice`].
    pub fn solve_device(
        &mut self,
        b: &DeviceVec<T>,
        x: &mut DeviceVec<T>,
    ) -> Result<Report, Error> {
        let n = self.system.n;
        for (vector, found) in [("b", b.len()), ("x", x.len())] {
            check_length(vector, n, found, (n, n))?;
        }
        let device = self.system.op.device();
        for (what, found) in [("b", b.device()), ("x", x.device())] {
            if found != *device {
                let (expected, found) = (device.to_string(), found.to_string());
                return Err(Error::WrongDevice { what, expected, found });
            }
        }
        device.synchronize()?;
        self.system.reset(0)?;
        let System { passes, b: own_b, x: own_x, .. } = &mut self.system;
        // The square of `b` is that of `solve`, of the own copy; that of `x` is only tested.
        passes.combine(own_b, copy(b))?;
        let sums = [Partner::Itself, Partner::Absent];
        passes.combine(own_x, Combine { sums, at: XX, ..copy(x) })?;
        self.system.square_b()?;
        // The host waits for the sums and the first residual at once.
        let (registers, first) = timed(|| self.system.residual());
        let registers = registers?;
        for (vector, given, at) in [("b", b, BB), ("x", &*x, XX)] {
            if !registers[usize::from(at)].is_finite() {
                check_vector(vector, &given.to_vec()?, 0..n, (n, n))?;
            }
        }
        let (report, seconds) = timed(|| self.run(registers));
        let seconds = first + seconds;
        let System { passes, x: own_x, .. } = &mut self.system;
        passes.combine(x, Combine { always: true, ..copy(own_x) })?;
        passes.stream().synchronize()?;
        report.map(|report| Report { seconds, ..report })
    }

    /// Number of iterations; the history starts before the first.
    fn iterations(&self) -> usize {
        self.driver.history.len().saturating_sub(1)
    }

    /// Values of the registers at the end of a solve.
    pub(super) fn registers(&self) -> &[f64] {
        &self.system.registers
    }

    /// Runs a batch, or only prepares it.
    fn batch(&mut self, number: usize, only_prepare: bool) -> Result<(), Error> {
        let Self { system, driver, iteration, .. } = self;
        let (first, end) = (number * driver.every, (number + 1) * driver.every);
        let end = iteration.restart().map_or(end, |restart| restart.min(end));
        let mut work = || (first..end).try_for_each(|j| iteration.iterate(system, j));
        if only_prepare { driver.prepare(number, &mut work) } else { driver.run(number, &mut work) }
    }

    /// The norm of `b`, from its square; 0 only if all of `b` is 0.
    fn norm_b(&self, square: f64) -> Result<f64, Error> {
        if square < f64::MIN_POSITIVE
            && self.system.b.to_vec()?.iter().any(|element| *element != T::ZERO)
        {
            let message = "the square of the norm of `b` is below what 64 bits can hold; scale \
                           `b`, and `x` with it";
            return Err(invalid(self.method.name(), message));
        }
        Ok(square.sqrt())
    }

    /// Solves the system with its present `b` and `x`, from the registers with the sums of `b` and
    /// of the first residual.
    fn run(&mut self, mut registers: Vec<f64>) -> Result<Report, Error> {
        self.driver.history.clear();
        let norm = self.norm_b(registers[usize::from(BB)])?;
        if norm == 0.0 {
            self.system.passes.combine(&mut self.system.x, Combine::new())?;
            let _ = self.driver.note(0, [0.0]);
            return Ok(self.report(Outcome::Converged, 0.0, 0));
        }
        let (mut ended, mut before, mut restarts) = (0, f64::INFINITY, 0);
        loop {
            let residual = registers[usize::from(RR)].sqrt() / norm;
            let begins = self.driver.history.is_empty();
            if begins && self.driver.note(0, [residual]).is_break() {
                ended = INTERRUPTED;
            }
            let done = if residual <= self.settings.tolerance {
                Some(Outcome::Converged)
            } else if !registers[usize::from(RR)].is_finite() {
                Some(Outcome::NotFinite)
            } else if !matches!(ended, 0 | CONVERGED | BREAKDOWN) {
                Some(outcome(ended))
            } else if residual > self.iteration.progress() * before {
                Some(if ended == BREAKDOWN { Outcome::Breakdown } else { Outcome::Stagnated })
            } else if self.iterations() >= self.settings.max_iterations {
                Some(Outcome::MaxIterations)
            } else {
                None
            };
            if let Some(done) = done {
                let residual = self.best_of(residual, before)?;
                return Ok(self.report(done, residual, restarts));
            }
            restarts += usize::from(before.is_finite());
            before = residual;
            let System { passes, x, kept, .. } = &mut self.system;
            passes.combine(kept, copy(x))?;
            registers[usize::from(TARGET)] = (MARGIN * self.settings.tolerance * norm).powi(2);
            registers[usize::from(LIMIT)] = self.settings.max_iterations as f64;
            ended = self.cycle(&mut registers, norm)?;
            self.system.reset(self.iterations())?;
            registers = self.system.residual()?;
        }
    }

    /// Restores the `x` of the last start, with the residual `before`, if the residual has grown
    /// since; returns the residual of the resulting `x`.
    fn best_of(&mut self, residual: f64, before: f64) -> Result<f64, Error> {
        if residual <= before || !before.is_finite() {
            return Ok(residual);
        }
        let System { passes, x, kept, .. } = &mut self.system;
        passes.combine(x, copy(kept))?;
        Ok(before)
    }

    /// Iterates from the residual until the method ends or has to be restarted; returns the final
    /// status.
    fn cycle(&mut self, registers: &mut [f64], norm: f64) -> Result<u16, Error> {
        self.iteration.start(&mut self.system, registers)?;
        let restart = self.iteration.restart();
        let (mut ended, mut number) = (0, 0);
        while ended == 0 && restart.is_none_or(|restart| number * self.driver.every < restart) {
            self.batch(number, false)?;
            number += usize::from(restart.is_some());
            let registers = self.system.read()?;
            let found = self.iteration.observe(&registers, self.iterations());
            ended = found.status;
            let now = self.iterations() + found.residuals.len();
            let residuals = found.residuals.iter().map(|residual| residual / norm);
            let noted = self.driver.note(now, residuals);
            if ended == 0 && self.iterations() >= self.settings.max_iterations {
                ended = EXHAUSTED;
            } else if ended == 0 && noted.is_break() {
                ended = INTERRUPTED;
            }
        }
        self.iteration.finish(&mut self.system, ended)?;
        Ok(ended)
    }

    fn report(&mut self, outcome: Outcome, residual: f64, restarts: usize) -> Report {
        let iterations = self.iterations();
        let history = std::mem::take(&mut self.driver.history);
        Report {
            method: self.method.name(),
            outcome,
            iterations,
            residual,
            history,
            restarts,
            seconds: 0.0,
        }
    }
}
