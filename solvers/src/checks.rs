//! Checks of arguments.

use sparseop::{Error, Scalar};
use std::ops::Range;

/// Checks that a matrix is square.
///
/// # Errors
///
/// [`Error::NotSquare`].
pub fn check_square(method: &'static str, (nrows, ncols): (usize, usize)) -> Result<(), Error> {
    if nrows == ncols { Ok(()) } else { Err(Error::NotSquare { method, nrows, ncols }) }
}

/// Checks the number of elements of a vector for a matrix with a shape.
///
/// # Errors
///
/// [`Error::VectorLength`].
pub fn check_length(
    vector: &'static str,
    expected: usize,
    found: usize,
    (nrows, ncols): (usize, usize),
) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(Error::VectorLength { vector, expected, found, nrows, ncols })
}

/// Checks that a vector has the elements `own` of one for a matrix with a shape, and that all are
/// finite.
///
/// # Errors
///
/// [`Error::VectorLength`] and [`Error::NotFinite`].
pub fn check_vector<T: Scalar>(
    vector: &'static str,
    elements: &[T],
    own: Range<usize>,
    shape: (usize, usize),
) -> Result<(), Error> {
    check_length(vector, own.len(), elements.len(), shape)?;
    match own.zip(elements).find(|(_, element)| !element.to_f64().is_finite()) {
        None => Ok(()),
        Some((index, value)) => Err(Error::NotFinite { vector, index, value: value.to_f64() }),
    }
}

/// Error for an invalid setting of a method.
pub(super) fn invalid(method: &'static str, message: impl Into<String>) -> Error {
    Error::SolverSetting { method, message: message.into() }
}
