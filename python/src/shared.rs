//! The packed matrix behind the operators of A and Aᵀ.

use crate::arrays::{ArrayPlace, ElementType};
use crate::error::Exception;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use pyo3::prelude::*;
use sparseop::{Device, Error, SparseOp};
use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// An operator of either scalar type.
pub(crate) enum ScalarOp {
    F32(SparseOp<f32>),
    F64(SparseOp<f64>),
}

/// Runs the same code for an operator of either scalar type.
macro_rules! either {
    ($operator:expr, $op:ident => $body:expr) => {
        match $operator {
            $crate::shared::ScalarOp::F32($op) => $body,
            $crate::shared::ScalarOp::F64($op) => $body,
        }
    };
}
pub(crate) use either;

thread_local! {
    /// True while a solve of this thread calls a function of Python.
    static CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Calls a function of Python for a solve.
pub(crate) fn called_back<R>(call: impl FnOnce() -> R) -> R {
    let outer = CALLBACK.replace(true);
    let done = call();
    CALLBACK.set(outer);
    done
}

/// Positions of the entries in the caller's array of values, and the number of its elements.
pub(crate) struct EntryOrder {
    pub(crate) positions: Py<PyAny>,
    pub(crate) given: u64,
}

/// An operator with its latest solver and its properties. Threads release the GIL before they take
/// the lock: a thread that waited for it with the GIL could wait forever.
pub(crate) struct SharedOp {
    /// The latest solver, which refers to the operator: it is dropped before it.
    solver: Mutex<Option<Box<dyn Any + Send>>>,
    op: RwLock<ScalarOp>,
    /// Number of solves in progress, which hold the lock.
    solves: AtomicUsize,
    pub(crate) device: Device,
    pub(crate) place: ArrayPlace,
    pub(crate) elements: ElementType,
    pub(crate) nrows: usize,
    pub(crate) ncols: usize,
    pub(crate) nnz: u64,
    /// None if the entries are in the order of the caller's values.
    pub(crate) order: Option<EntryOrder>,
    /// Number of the operator in this process.
    handle: u64,
    /// True if arguments that cannot be used in place are copied.
    pub(crate) copy: bool,
}

/// The operator of a solve.
pub(crate) struct SolveGuard<'a> {
    solves: &'a AtomicUsize,
    pub(crate) op: RwLockReadGuard<'a, ScalarOp>,
}

impl Drop for SolveGuard<'_> {
    fn drop(&mut self) {
        self.solves.fetch_sub(1, SeqCst);
    }
}

impl SharedOp {
    pub(crate) fn new(
        op: ScalarOp,
        place: ArrayPlace,
        order: Option<EntryOrder>,
        copy: bool,
    ) -> Self {
        static HANDLES: AtomicU64 = AtomicU64::new(0);
        let elements = match op {
            ScalarOp::F32(_) => ElementType::F32,
            ScalarOp::F64(_) => ElementType::F64,
        };
        let (device, nrows, ncols, nnz) =
            either!(&op, op => (op.device().clone(), op.nrows(), op.ncols(), op.nnz()));
        let handle = HANDLES.fetch_add(1, Relaxed);
        let (solver, op, solves) = (Mutex::default(), RwLock::new(op), AtomicUsize::new(0));
        Self { solver, op, solves, device, place, elements, nrows, ncols, nnz, order, handle, copy }
    }

    /// The operator, for reading. Without the GIL.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, ScalarOp> {
        /// Time after which a reader that waits looks for such solves again.
        const PATIENCE: Duration = Duration::from_millis(10);
        // The callback of a solve may multiply, and may wait for products of other threads: they
        // must not wait behind a writer that waits for the solve.
        while self.solves.load(SeqCst) == 0 {
            if let Some(guard) = self.op.try_read_for(PATIENCE) {
                return guard;
            }
        }
        self.op.read_recursive()
    }

    /// The operator, for a solve. Without the GIL.
    pub(crate) fn read_for_solve(&self) -> SolveGuard<'_> {
        let op = self.read();
        self.solves.fetch_add(1, SeqCst);
        SolveGuard { solves: &self.solves, op }
    }

    /// The operator, for changes; no solver refers to it any more. Without the GIL. None in a
    /// callback if the operator is in use: the solve would wait for itself.
    pub(crate) fn write(&self) -> Option<RwLockWriteGuard<'_, ScalarOp>> {
        let guard = if CALLBACK.get() { self.op.try_write()? } else { self.op.write() };
        drop(self.take_solver());
        Some(guard)
    }

    /// Takes the latest solver away, while the operator is locked.
    pub(crate) fn take_solver(&self) -> Option<Box<dyn Any + Send>> {
        self.solver.lock().take()
    }

    /// Keeps a solver, while the operator is locked.
    pub(crate) fn keep_solver(&self, solver: Box<dyn Any + Send>) {
        let kept = self.solver.lock().replace(solver);
        drop(kept);
    }

    /// The number by which [`numbered`] finds the operator.
    pub(crate) fn number(self: &Arc<Self>) -> u64 {
        let mut numbers = NUMBERS.lock();
        numbers.retain(|_, op| op.strong_count() > 0);
        numbers.entry(self.handle).or_insert_with(|| Arc::downgrade(self));
        self.handle
    }

    /// Shape of the operator or of its transpose.
    pub(crate) fn shape(&self, transposed: bool) -> (usize, usize) {
        match transposed {
            false => (self.nrows, self.ncols),
            true => (self.ncols, self.nrows),
        }
    }
}

/// Operators whose numbers were asked for.
static NUMBERS: Mutex<BTreeMap<u64, Weak<SharedOp>>> = Mutex::new(BTreeMap::new());

/// The operator of a number, or its transpose.
#[pyfunction]
pub(crate) fn numbered(py: Python<'_>, number: u64, transposed: bool) -> PyResult<PyOperator> {
    let found = NUMBERS.lock().get(&number).and_then(Weak::upgrade);
    match found {
        Some(shared) => Ok(PyOperator { shared, transposed }),
        None => Err(Exception::Setting.error(py, "the operator of this product is not in use")),
    }
}

/// A sparse matrix of shape (m, n), packed for repeated products; made by :func:`sparseop.auto`.
///
/// `op @ x` for `x` of shape (n,) or (n, k) returns an array of the library of `x`, of shape (m,)
/// or (m, k), in the same memory order. On a GPU it is enqueued on that library's current stream.
/// Type, device and contiguity have to be right: nothing is copied unless asked for. `z @ op`
/// multiplies from the left.
///
/// It takes part in `scipy.sparse.linalg` as a `LinearOperator`, may be used from several threads,
/// and releases the GIL.
///
/// >>> import numpy as np, sparseop
/// >>> A = sparseop.gallery("uniform,rows=100")
/// >>> op = sparseop.auto(A)
/// >>> (op @ np.ones(100)).shape, (op @ np.ones((100, 3))).shape, (np.ones((2, 100)) @ op).shape
/// ((100,), (100, 3), (2, 100))
#[pyclass(frozen, weakref, name = "Operator", module = "sparseop")]
pub(crate) struct PyOperator {
    pub(crate) shared: Arc<SharedOp>,
    pub(crate) transposed: bool,
}

/// The operator itself or its transpose, which is packed at the first use.
pub(crate) fn side<T: sparseop::Scalar>(
    op: &SparseOp<T>,
    transposed: bool,
) -> Result<&SparseOp<T>, Error> {
    if transposed { op.transposed() } else { Ok(op) }
}
