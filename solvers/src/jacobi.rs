//! The diagonal as a preconditioner.

use sparseop::matrix::CsrView;
use sparseop::{Error, Scalar};

/// Jacobi preconditioning: every residual is divided by the matrix's diagonal. Costs next to nothing, and helps where the rows of a matrix are
/// of different magnitude; where the diagonal is the same everywhere it changes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Jacobi<T> {
    pub(super) inverse: Vec<T>,
}

impl<T: Scalar> Jacobi<T> {
    /// The preconditioner of a square matrix; entries that stand on the diagonal twice are added.
    ///
    /// # Errors
    ///
    /// [`Error::NotSquare`]; [`Error::ZeroDiagonal`] for the first row whose diagonal is zero or has no entry; [`Error::NotFinite`] when it,
    /// or its inverse, is no finite number.
    pub fn of(a: CsrView<'_, T>) -> Result<Self, Error> {
        let (nrows, ncols) = (a.nrows(), a.ncols());
        if nrows != ncols {
            return Err(Error::NotSquare { method: "a Jacobi preconditioner", nrows, ncols });
        }
        let inverse = (0..nrows).map(|row| {
            let (cols, values) = a.row(row);
            let on_diagonal = cols.iter().zip(values).filter(|(col, _)| **col as usize == row);
            let diagonal: f64 = on_diagonal.map(|(_, value)| value.to_f64()).sum();
            let inverse = T::from_f64(1.0 / diagonal);
            if diagonal == 0.0 {
                Err(Error::ZeroDiagonal { row })
            } else if !diagonal.is_finite() {
                Err(Error::NotFinite { vector: "diagonal", index: row, value: diagonal })
            } else if !inverse.to_f64().is_finite() {
                Err(Error::NotFinite { vector: "1 / diagonal", index: row, value: inverse.to_f64() })
            } else {
                Ok(inverse)
            }
        });
        Ok(Self { inverse: inverse.collect::<Result<_, _>>()? })
    }
}
