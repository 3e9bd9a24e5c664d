//! The class of operators.

use crate::arrays::describe;
use crate::checked::ProductOptions;
use crate::error::{Exception, raised};
use crate::library::{AnyCsr, csr_arrays};
use crate::linear::{combined, is_number, linear, multiply_or_compose, scipy_class};
use crate::product::{self, multiply};
use crate::shared::{PyOperator, ScalarOp, side};
use crate::view;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use sparseop::{CsrMatrix, Error, Scalar, SparseOp};

impl PyOperator {
    /// Calls the function of the scalar type with the operator, transposed if this is, without the
    /// GIL.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        f32: impl FnOnce(&SparseOp<f32>) -> R + Send,
        f64: impl FnOnce(&SparseOp<f64>) -> R + Send,
    ) -> PyResult<R> {
        let done = py.detach(|| match &*self.shared.read() {
            ScalarOp::F32(op) => side(op, self.transposed).map(f32),
            ScalarOp::F64(op) => side(op, self.transposed).map(f64),
        });
        done.map_err(|error| raised(py, error))
    }
}

/// Evaluates an expression with the operator of either scalar type.
macro_rules! property {
    ($this:expr, $py:expr, $op:ident => $body:expr) => {
        $this.with($py, |$op| $body, |$op| $body)
    };
}

#[pymethods]
#[allow(non_upper_case_globals)]
impl PyOperator {
    // NumPy leaves `array @ op` to the operator.
    #[classattr]
    const __array_ufunc__: Option<()> = None;
    #[classattr]
    const ndim: usize = 2;

    fn __matmul__<'py>(
        slf: &Bound<'py, Self>,
        x: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        multiply_or_compose(slf, x, false)
    }

    fn __rmatmul__<'py>(
        slf: &Bound<'py, Self>,
        x: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let transposed = Bound::new(py, slf.get().T())?;
        if describe(x, "x")?.ndim < 2 {
            return multiply(&transposed, x, None, ProductOptions::PLAIN, None);
        }
        let rows = multiply(&transposed, &x.getattr("T")?, None, ProductOptions::PLAIN, None)?;
        rows.getattr("T")
    }

    /// `alpha * A @ x + beta * out` for an array `x` of shape (n,) or (n, k).
    ///
    /// With `out`, of shape (m,) or (m, k), nothing is allocated, and `out` is returned. `out` is
    /// only read if `beta` is not 0. With `copy=True` arguments of another type, layout or device
    /// are copied; by default that is decided by :func:`sparseop.auto`.
    ///
    /// >>> import numpy as np, sparseop
    /// >>> A = sparseop.gallery("poisson2d,n=20")
    /// >>> op, x, y = sparseop.auto(A), np.ones(400), np.empty(400)
    /// >>> op(x, out=y) is y, bool(np.allclose(y, A @ x))
    /// (True, True)
    /// >>> residual = np.ones(400)
    /// >>> bool(np.allclose(op(x, out=residual, alpha=-1, beta=1), 1 - A @ x))
    /// True
    #[pyo3(signature = (x, out=None, *, alpha=1.0, beta=0.0, copy=None))]
    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        x: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        alpha: f64,
        beta: f64,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        multiply(slf, x, out, ProductOptions { alpha, beta, staged: false }, copy)
    }

    /// `op @ x`, in `out` if it is given. An operator of SciPy for an operator `x`.
    ///
    /// >>> import numpy as np, sparseop
    /// >>> op = sparseop.auto(sparseop.gallery("banded,rows=50"))
    /// >>> op.dot(np.ones((50, 3))).shape
    /// (50, 3)
    #[pyo3(signature = (x, out=None))]
    fn dot<'py>(
        slf: &Bound<'py, Self>,
        x: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match out {
            None => multiply_or_compose(slf, x, false),
            Some(_) => multiply(slf, x, out, ProductOptions::PLAIN, None),
        }
    }

    /// A x for `x` of shape (n,) or (n, 1), as SciPy's solvers call it: they pass columns of
    /// matrices, and vectors of float64 to operators of float32, so arrays with gaps or of another
    /// type are copied here, complex ones in two parts. `matmat`, `rmatvec` and `rmatmat` do too.
    ///
    /// >>> import numpy as np, sparseop
    /// >>> from scipy.sparse.linalg import LinearOperator, eigsh
    /// >>> op = sparseop.auto(sparseop.gallery("poisson2d,n=20,values=laplacian"))
    /// >>> isinstance(op, LinearOperator)
    /// True
    /// >>> round(float(eigsh(op, k=1, return_eigenvectors=False)[0]), 3)
    /// 7.955
    fn matvec<'py>(slf: &Bound<'py, Self>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        multiply_with_gaps(slf, x)
    }

    /// A X for `x` of shape (n, k).
    fn matmat<'py>(slf: &Bound<'py, Self>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        multiply_with_gaps(slf, x)
    }

    /// Aᵀ x for `x` of shape (m,) or (m, 1).
    fn rmatvec<'py>(slf: &Bound<'py, Self>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        multiply_with_gaps(&Bound::new(slf.py(), slf.get().T())?, x)
    }

    /// Aᵀ X for `x` of shape (m, k).
    fn rmatmat<'py>(slf: &Bound<'py, Self>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        multiply_with_gaps(&Bound::new(slf.py(), slf.get().T())?, x)
    }

    /// A product of arrays as they are, for the modules of the package.
    #[pyo3(signature = (x, out=None, alpha=1.0, beta=0.0, staged=false))]
    fn _apply<'py>(
        &self,
        x: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        alpha: f64,
        beta: f64,
        staged: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = ProductOptions { alpha, beta, staged };
        product::product(self, x, describe(x, "x")?, out, options)
    }

    /// Replaces the values of all entries, in the order of the values of the matrix that the
    /// operator was built from; pattern and plan stay. `updatable=True` of :func:`sparseop.auto`
    /// prepares for it, and keeps to plans that can hold any values. With `copy=True` values of
    /// another type, layout or device are copied.
    ///
    /// >>> import numpy as np, sparseop
    /// >>> A = sparseop.gallery("poisson2d,n=20")
    /// >>> op, x = sparseop.auto(A, updatable=True), np.ones(400)
    /// >>> op.update_values(2 * A.data)
    /// >>> bool(np.allclose(op @ x, 2 * (A @ x)))
    /// True
    #[pyo3(signature = (values, *, copy=false))]
    fn update_values(slf: &Bound<'_, Self>, values: &Bound<'_, PyAny>, copy: bool) -> PyResult<()> {
        product::update_values(slf, values, copy)
    }

    /// The operator of the transposed matrix. It is packed, with a plan of its own, at its first
    /// product; a symmetric matrix is not packed again.
    ///
    /// >>> import numpy as np, sparseop
    /// >>> A = sparseop.gallery("uniform,rows=100")
    /// >>> op, x = sparseop.auto(A), np.ones(100)
    /// >>> bool(np.allclose(op.T @ x, A.T @ x))
    /// True
    #[getter]
    #[allow(non_snake_case)]
    fn T(&self) -> Self {
        Self { shared: self.shared.clone(), transposed: !self.transposed }
    }

    /// The same as `T`, of shape (n, m): the matrix is real.
    #[getter]
    #[allow(non_snake_case)]
    fn H(&self) -> Self {
        self.T()
    }

    /// The same as `T`, of shape (n, m).
    fn transpose(&self) -> Self {
        self.T()
    }

    /// The same as `T`, of shape (n, m): the matrix is real.
    fn adjoint(&self) -> Self {
        self.T()
    }

    /// Numbers of rows and columns: (m, n).
    #[getter]
    fn shape(&self) -> (usize, usize) {
        self.shared.shape(self.transposed)
    }

    /// Number of stored entries.
    #[getter]
    fn nnz(&self) -> u64 {
        self.shared.nnz
    }

    /// Type of the values, of `x` and of the result: `numpy.dtype`.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("numpy")?.call_method1("dtype", (self.shared.elements.name(),))
    }

    /// Device of the products: `cpu` or `cuda:0`.
    #[getter]
    fn device(&self) -> String {
        self.shared.device.to_string()
    }

    /// True if arguments of another type, layout or device are copied.
    #[getter]
    fn copies(&self) -> bool {
        self.shared.copy
    }

    /// The operator itself, as `copy.copy` returns it: copies with values of their own are those of
    /// `copy.deepcopy`.
    ///
    /// >>> import copy, numpy as np, sparseop
    /// >>> A = sparseop.gallery("banded,rows=50")
    /// >>> op, x = sparseop.auto(A, updatable=True), np.ones(50)
    /// >>> own = copy.deepcopy(op)
    /// >>> op.update_values(2 * A.data)
    /// >>> op.copy() is op, bool(np.allclose(own @ x, A @ x))
    /// (True, True)
    fn copy(slf: &Bound<'_, Self>) -> Py<Self> {
        slf.clone().unbind()
    }

    fn __copy__(slf: &Bound<'_, Self>) -> Py<Self> {
        Self::copy(slf)
    }

    fn __deepcopy__<'py>(
        slf: &Bound<'py, Self>,
        _memo: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("sparseop._state")?.call_method1("duplicate", (slf,))
    }

    /// Format of the packed matrix, with its parameters: `sell(c:32,sigma:512)`.
    #[getter]
    fn plan(&self, py: Python<'_>) -> PyResult<String> {
        property!(self, py, op => op.plan().to_string())
    }

    /// Bytes of all packings, in the memory of the device.
    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        property!(self, py, op => op.memory_bytes())
    }

    /// The candidates with predicted and measured times, and why one was chosen, as text.
    ///
    /// >>> import sparseop
    /// >>> op = sparseop.auto(sparseop.gallery("small"))
    /// >>> op.plan in op.explain()
    /// True
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        property!(self, py, op => op.explain().to_string())
    }

    /// Statistics of the row lengths, as a dictionary.
    ///
    /// >>> import sparseop
    /// >>> stats = sparseop.auto(sparseop.gallery("poisson2d,n=20")).stats
    /// >>> stats["min"], stats["max"], stats["histogram"]
    /// (3, 5, [[3, 4], [4, 72], [5, 324]])
    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view::parsed(py, property!(self, py, op => view::stats(op.stats()))?)
    }

    /// The decision as a dictionary: plan, settings, times of the preparation in seconds, and the
    /// candidates with their times in seconds.
    ///
    /// >>> import sparseop
    /// >>> op = sparseop.auto(sparseop.gallery("small"))
    /// >>> op.decision["plan"] == op.plan
    /// True
    #[getter]
    fn decision<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view::parsed(
            py,
            property!(self, py, op => view::decision(op.decision(), op.preparation()))?,
        )
    }

    /// The arrays of CSR: offsets, columns and values, in the order of the operator.
    fn _to_csr<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let unpacked = py.detach(|| match &*self.shared.read() {
            ScalarOp::F32(op) => unpacked(op, self.transposed).map(AnyCsr::F32),
            ScalarOp::F64(op) => unpacked(op, self.transposed).map(AnyCsr::F64),
        });
        csr_arrays(py, unpacked.map_err(|error| raised(py, error))?)
    }

    /// The operator as a `scipy.sparse.linalg.LinearOperator`, which copies arrays of other types
    /// and layouts. `2 * op`, `-op`, `op ** 2`, and sums and products of operators are such, too.
    ///
    /// >>> import numpy as np, sparseop
    /// >>> op = sparseop.auto(sparseop.gallery("poisson2d,n=20"))
    /// >>> X = np.ones((400, 3))
    /// >>> bool(np.allclose((2 * op - op @ op) @ X, 2 * (op @ X) - op @ (op @ X)))
    /// True
    /// >>> (op.as_linear_operator() @ np.ones(400, int)).dtype
    /// dtype('float64')
    fn as_linear_operator<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        linear(slf)
    }

    /// The matrix as a `scipy.sparse.csr_array`, its entries in the order of the operator.
    ///
    /// >>> import sparseop
    /// >>> A = sparseop.gallery("banded,rows=50")
    /// >>> bool(abs(sparseop.auto(A).to_scipy() - A).sum() == 0)
    /// True
    fn to_scipy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("sparseop._build")?.call_method1("to_scipy", (slf,))
    }

    /// Number of the packed matrix, by which `numbered` finds it as long as it is in use.
    #[getter]
    fn _handle(&self) -> u64 {
        self.shared.number()
    }

    #[getter]
    fn _transposed(&self) -> bool {
        self.transposed
    }

    /// Positions of the entries in the caller's values, and the number of these.
    #[getter]
    fn _order(&self, py: Python<'_>) -> Option<(Py<PyAny>, u64)> {
        self.shared.order.as_ref().map(|order| (order.positions.clone_ref(py), order.given))
    }

    /// Settings of `build` for the same plan.
    #[getter]
    fn _settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view::parsed(py, property!(self, py, op => view::settings(op))?)
    }

    // That of SciPy once it is imported: its functions look for it with `isinstance`.
    #[getter]
    fn __class__<'py>(slf: &Bound<'py, Self>) -> Bound<'py, PyAny> {
        scipy_class(slf.py()).unwrap_or_else(|| slf.get_type().into_any())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (nrows, ncols) = self.shape();
        let plan = match self.transposed {
            false => self.plan(py)?,
            // Its plan is chosen at its first product.
            true => "transposed".to_owned(),
        };
        let (nnz, elements) = (self.shared.nnz, self.shared.elements.name());
        let device = &self.shared.device;
        Ok(format!("<{nrows}x{ncols} Operator of {elements}, {nnz} entries: {plan} on {device}>"))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("sparseop._html")?.call_method1("operator", (slf,))
    }

    /// Product as with SciPy's matrices: its solvers multiply by `*`.
    fn __mul__<'py>(slf: &Bound<'py, Self>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        multiply_or_compose(slf, x, true)
    }

    fn __rmul__<'py>(slf: &Bound<'py, Self>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if is_number(x)? { Self::__mul__(slf, x) } else { Self::__rmatmul__(slf, x) }
    }

    fn __add__<'py>(slf: &Bound<'py, Self>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        combined(slf, Exception::Shape, |op| op.add(x))
    }

    fn __sub__<'py>(slf: &Bound<'py, Self>, x: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        combined(slf, Exception::Shape, |op| op.sub(x))
    }

    fn __truediv__<'py>(
        slf: &Bound<'py, Self>,
        x: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        combined(slf, Exception::Setting, |op| op.div(x))
    }

    fn __neg__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        combined(slf, Exception::Setting, |op| op.neg())
    }

    fn __pow__<'py>(
        slf: &Bound<'py, Self>,
        exponent: &Bound<'py, PyAny>,
        modulus: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        combined(slf, Exception::Setting, |op| op.pow(exponent, modulus))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("sparseop._state")?.call_method1("state", (slf,))
    }
}

/// Reasons for which a product for solvers of SciPy copies its argument.
const CONVERTED: [Exception; 2] = [Exception::Contiguity, Exception::Dtype];

/// A product for solvers of SciPy; an array with gaps or of another type is copied.
fn multiply_with_gaps<'py>(
    op: &Bound<'py, PyOperator>,
    x: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    match multiply(op, x, None, ProductOptions::PLAIN, None) {
        Err(error) if CONVERTED.iter().any(|class| class.is(op.py(), &error)) => {
            op.py().import("sparseop._copies")?.call_method1("multiply_any", (op, x))
        }
        done => done,
    }
}

/// The matrix of an operator, or its transpose.
fn unpacked<T: Scalar>(op: &SparseOp<T>, transposed: bool) -> Result<CsrMatrix<T>, Error> {
    let a = op.to_csr()?;
    Ok(if transposed { a.transpose() } else { a })
}
