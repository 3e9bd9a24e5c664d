//! Operators among those of SciPy: sums, products, multiples and powers of them.

use crate::checked::ProductOptions;
use crate::error::Exception;
use crate::product::multiply;
use crate::shared::PyOperator;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// The class of SciPy's operators, if it is imported already.
pub(crate) fn scipy_class(py: Python<'_>) -> Option<Bound<'_, PyAny>> {
    let modules = py.import("sys").and_then(|sys| sys.getattr("modules")).ok()?;
    modules.get_item("scipy.sparse.linalg").ok()?.getattr("LinearOperator").ok()
}

/// The operator as one of SciPy.
pub(crate) fn linear<'py>(op: &Bound<'py, PyOperator>) -> PyResult<Bound<'py, PyAny>> {
    op.py().import("sparseop._build")?.call_method1("as_linear_operator", (op,))
}

/// True for operators of this package and of SciPy.
fn is_operator(thing: &Bound<'_, PyAny>) -> bool {
    thing.is_instance_of::<PyOperator>()
        || scipy_class(thing.py()).is_some_and(|class| thing.is_instance(&class).unwrap_or(false))
}

/// True for numbers of Python and NumPy.
pub(crate) fn is_number(thing: &Bound<'_, PyAny>) -> PyResult<bool> {
    thing.is_instance(&thing.py().import("numbers")?.getattr("Number")?)
}

/// A sum, a multiple or a power of the operator, made by SciPy. `refused` is the exception for
/// values that do not suit.
pub(crate) fn combined<'py>(
    op: &Bound<'py, PyOperator>,
    refused: Exception,
    combine: impl FnOnce(Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = op.py();
    combine(linear(op)?).map_err(|error| {
        let cause = error.value(py);
        if error.is_instance_of::<PyTypeError>(py) {
            let message = format!(
                "{cause}; pass an operator, such as scipy.sparse.linalg.aslinearoperator(x), or a \
                 number to multiply with"
            );
            return Exception::Unsupported.error(py, message);
        }
        if error.is_instance_of::<PyValueError>(py) {
            return refused.error(py, cause.to_string());
        }
        error
    })
}

/// `op @ x` for an array; an operator of SciPy for an operator, and with `scales` for a number.
pub(crate) fn multiply_or_compose<'py>(
    op: &Bound<'py, PyOperator>,
    x: &Bound<'py, PyAny>,
    scales: bool,
) -> PyResult<Bound<'py, PyAny>> {
    match multiply(op, x, None, ProductOptions::PLAIN, None) {
        Err(_) if is_operator(x) || scales && is_number(x)? => {
            combined(op, Exception::Shape, |op| op.mul(x))
        }
        done => done,
    }
}
