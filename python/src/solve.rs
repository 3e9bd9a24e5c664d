//! Solvers.

use crate::arrays::{ArrayPlace, ArrayRef, describe, host_slice, host_slice_mut, stream_of};
use crate::build::{AnyView, builder, optional, with_csr};
use crate::error::{Exception, raised};
use crate::interrupt::SignalWatch;
use crate::product::check_operand;
use crate::shared::{PyOperator, called_back, either, side};
use numpy::IntoPyArray;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sparseop::{DeviceVec, Error, Scalar, SparseOp};
use sparseop_solvers::{
    Jacobi, Method, PageRank, Progress, Ranking, Report, Settings, Solver, SolverBuilder,
};
use std::any::Any;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

/// Outcome, advice, iterations, residual, history, restarts and seconds.
type SolveOutcome = (&'static str, &'static str, usize, f64, Vec<f64>, usize, f64);

/// A function of Python that is called with the progress, a watch for signals, and the exception
/// that either of them has raised.
#[derive(Clone)]
struct Callback {
    callback: Option<Arc<Py<PyAny>>>,
    signals: SignalWatch,
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl Callback {
    fn new(py: Python<'_>, callback: Option<Py<PyAny>>) -> PyResult<Self> {
        let (callback, signals) = (callback.map(Arc::new), SignalWatch::new(py)?);
        Ok(Self { callback, signals, raised: Arc::default() })
    }

    /// Without the function.
    fn silent(&self) -> Self {
        Self { callback: None, ..self.clone() }
    }

    /// Calls the function and checks for signals. Ends the iteration after an exception.
    fn report(&mut self, progress: Progress) -> ControlFlow<()> {
        let called = self.callback.as_ref().map_or(Ok(()), |callback| {
            let arguments = (progress.iterations, progress.residual);
            called_back(|| Python::attach(|py| callback.call1(py, arguments).map(drop)))
        });
        match called.and_then(|()| self.signals.check()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    /// The exception of the function or of a signal, if there is one.
    fn check(&self) -> PyResult<()> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

/// Method and settings of a solve.
#[derive(Clone, Copy, PartialEq)]
struct SolveRequest {
    method: Method,
    settings: Settings,
    jacobi: bool,
    transposed: bool,
}

/// The callback of the current solve.
type CallbackSlot = Arc<Mutex<Option<Callback>>>;

/// A solver that an operator keeps for the next solve, with its vectors and captured iterations.
struct KeptSolver {
    request: SolveRequest,
    slot: CallbackSlot,
    /// A `Solver<'static, T>`, whose operator is that of the [`SharedOp`](crate::shared::SharedOp)
    /// that keeps it.
    solver: Box<dyn Any>,
}

// SAFETY: a solver has vectors, streams and graphs, which any thread may use, one at a time, and
// the callback, which is behind a lock.
unsafe impl Send for KeptSolver {}

/// Creates a solver.
///
/// # Safety
///
/// The solver is dropped before the operator, and before it changes.
unsafe fn prepared<T: Scalar>(
    op: &SparseOp<T>,
    request: SolveRequest,
    listener: &Callback,
) -> Result<KeptSolver, Error> {
    // SAFETY: the caller's promise.
    let op: &'static SparseOp<T> = unsafe { &*std::ptr::from_ref(op) };
    let op = side(op, request.transposed)?;
    let mut builder = SolverBuilder::new(request.method).settings(request.settings);
    if request.jacobi {
        builder = builder.jacobi(Jacobi::of(op.to_csr()?.view())?);
    }
    let slot = CallbackSlot::new(Mutex::new(Some(listener.silent())));
    let current = slot.clone();
    let builder = builder.progress(move |progress| {
        let mut listener = current.lock().unwrap_or_else(PoisonError::into_inner);
        listener.as_mut().map_or(ControlFlow::Continue(()), |listener| listener.report(progress))
    });
    Ok(KeptSolver { request, slot, solver: Box::new(builder.build(op)?) })
}

/// Solves A x = b from `x`, which becomes the solution.
#[pyfunction]
#[pyo3(signature = (op, b, x, method, restart, rtol, maxiter, jacobi, callback, staged))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn solve(
    py: Python<'_>,
    op: &PyOperator,
    b: &Bound<'_, PyAny>,
    x: &Bound<'_, PyAny>,
    method: &str,
    restart: usize,
    rtol: f64,
    maxiter: usize,
    jacobi: bool,
    callback: Option<Py<PyAny>>,
    staged: bool,
) -> PyResult<SolveOutcome> {
    let shared = &*op.shared;
    let (b, x) = (describe(b, "b")?, describe(x, "x0")?);
    for (name, array) in [("b", &b), ("x0", &x)] {
        check_operand(py, shared, array, name, staged)?;
        if array.ndim != 1 {
            let message =
                format!("`{name}` has {} dimensions; systems have one vector", array.ndim);
            return Err(Exception::Shape.error(py, message));
        }
    }
    if b.place != x.place {
        return Err(
            Exception::Device.error(py, "`b` and `x0` are on two devices; move them to one")
        );
    }
    if !x.writable || x.overlaps(&b) {
        let message = "`x0` is read-only or has memory in common with `b`; pass a copy";
        return Err(Exception::ReadOnly.error(py, message));
    }
    let method = match method {
        "cg" => Method::Cg,
        "bicgstab" => Method::BiCgStab,
        "gmres" => Method::Gmres { restart },
        _ => Method::Chebyshev { bounds: None },
    };
    let settings = Settings { tolerance: rtol, max_iterations: maxiter, ..Settings::default() };
    let request = SolveRequest { method, settings, jacobi, transposed: op.transposed };
    let listener = Callback::new(py, callback)?;
    // The vectors may still be in the process of being written on the caller's stream.
    let stream = match b.place {
        ArrayPlace::Host => None,
        ArrayPlace::Cuda(ordinal) => Some(stream_of(py, b.library, ordinal, &shared.device)?),
    };
    let done = py.detach(|| {
        stream.map_or(Ok(()), |stream| stream.synchronize())?;
        let guard = shared.read_for_solve();
        let kept = shared.take_solver().and_then(|kept| kept.downcast::<KeptSolver>().ok());
        let kept = kept.filter(|kept| kept.request == request);
        either!(&*guard.op, op => {
            let mut kept = match kept {
                Some(kept) => kept,
                // SAFETY: solvers are kept beside the operator, whose updates drop them, and this
                // one is used with a lock on it.
                None => Box::new(unsafe { prepared(op, request, &listener)? }),
            };
            // SAFETY: the arrays were checked, and are held by the caller.
            let done = unsafe { run(op, &mut kept, &b, &x, &listener) };
            if done.is_ok() {
                shared.keep_solver(kept);
            }
            done
        })
    });
    listener.check()?;
    done.map_err(|error| raised(py, error))
}

/// # Safety
///
/// The vectors are alive, of the operator's type and on its device, and have nothing in common.
unsafe fn run<T: Scalar>(
    op: &SparseOp<T>,
    kept: &mut KeptSolver,
    b: &ArrayRef,
    x: &ArrayRef,
    listener: &Callback,
) -> Result<SolveOutcome, Error> {
    let Some(solver) = kept.solver.downcast_mut::<Solver<'static, T>>() else {
        unreachable!("an operator has one scalar type")
    };
    *kept.slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener.clone());
    // SAFETY: the caller's promise.
    let report = unsafe {
        match b.place {
            ArrayPlace::Host => {
                solver.solve(host_slice(b.address, b.len()), host_slice_mut(x.address, x.len()))?
            }
            ArrayPlace::Cuda(_) => {
                let given = DeviceVec::<T>::from_known(op.device(), b.address, b.len())?;
                let mut found = DeviceVec::<T>::from_known(op.device(), x.address, x.len())?;
                solver.solve_device(&given, &mut found)?
            }
        }
    };
    *kept.slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let Report { iterations, residual, history, restarts, seconds, .. } = report;
    let (outcome, advice) = (report.outcome.name(), report.outcome.advice());
    Ok((outcome, advice, iterations, residual, history, restarts, seconds))
}

/// Ranks of the pages of a graph, given by the arrays of CSR in host memory.
#[pyfunction]
#[pyo3(signature = (shape, arrays, settings, damping, tolerance, maxiter, callback))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn pagerank<'py>(
    py: Python<'py>,
    shape: (usize, usize),
    arrays: [Bound<'py, PyAny>; 3],
    settings: &Bound<'py, PyDict>,
    damping: f64,
    tolerance: f64,
    maxiter: usize,
    callback: Option<Py<PyAny>>,
) -> PyResult<(Bound<'py, PyAny>, SolveOutcome)> {
    let mut builder = builder(py, settings)?;
    if let Some(name) = optional::<String>(settings, "device")? {
        builder = builder.device(crate::library::device(py, &name)?);
    }
    let settings = Settings { tolerance, max_iterations: maxiter, ..Settings::default() };
    // The graph is prepared in the background, where no function of Python is called.
    let prepared = with_csr(py, shape, arrays, move |a| {
        Ok(match a {
            AnyView::F32(a) => AnyPageRank::F32(PageRank::new(a, &builder)?),
            AnyView::F64(a) => AnyPageRank::F64(PageRank::new(a, &builder)?),
        })
    })?;
    let listener = Callback::new(py, callback)?;
    let mut observer = listener.clone();
    let observer = |progress| observer.report(progress);
    match prepared {
        AnyPageRank::F32(pages) => {
            let ranked = py.detach(|| pages.rank(damping, settings, observer));
            ranking(py, &listener, ranked)
        }
        AnyPageRank::F64(pages) => {
            let ranked = py.detach(|| pages.rank(damping, settings, observer));
            ranking(py, &listener, ranked)
        }
    }
}

/// A graph of either scalar type.
enum AnyPageRank {
    F32(PageRank<f32>),
    F64(PageRank<f64>),
}

/// The ranks and the report, or the exception that has ended the iteration.
fn ranking<'py, T: Scalar + numpy::Element>(
    py: Python<'py>,
    listener: &Callback,
    ranked: Result<Ranking<T>, Error>,
) -> PyResult<(Bound<'py, PyAny>, SolveOutcome)> {
    listener.check()?;
    let ranking = ranked.map_err(|error| raised(py, error))?;
    let (outcome, advice) = (ranking.outcome.name(), ranking.outcome.advice());
    let change = ranking.history.last().copied().unwrap_or(0.0);
    let (iterations, seconds) = (ranking.iterations, ranking.seconds);
    let outcome = (outcome, advice, iterations, change, ranking.history, 0, seconds);
    Ok((ranking.ranks.into_pyarray(py).into_any(), outcome))
}
