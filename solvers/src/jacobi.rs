//! Jacobi preconditioner.

use super::checks::check_square;
use sparseop::matrix::CsrView;
use sparseop::{Error, Scalar};

/// Jacobi preconditioner: every residual is divided by the matrix's diagonal. Its cost is
/// negligible. It helps if the rows of a matrix are of different magnitude, and has no effect if
/// the diagonal is constant.
#[derive(Debug, Clone, PartialEq)]
pub struct Jacobi<T> {
    pub(super) inverse: Vec<T>,
}

impl<T: Scalar> Jacobi<T> {
    /// Creates the preconditioner of a square matrix; repeated diagonal entries are added.
    ///
    /// # Errors
    ///
    /// [`Error::NotSquare`]; [`Error::ZeroDiagonal`] for the first row with a zero or missing
    /// diagonal; [`Error::NotFinite`] if the diagonal or its inverse is not finite.
    pub fn of(a: CsrView<'_, T>) -> Result<Self, Error> {
        check_square("a Jacobi preconditioner", (a.nrows(), a.ncols()))?;
        Self::of_diagonal(
            0,
            (0..a.nrows()).map(|row| {
                let (cols, values) = a.row(row);
                let on_diagonal = cols.iter().zip(values).filter(|(col, _)| **col as usize == row);
                on_diagonal.map(|(_, value)| value.to_f64()).sum()
            }),
        )
    }

    /// Creates the preconditioner of the rows of a square matrix from `first_row` on, whose
    /// diagonal entries are `diagonal`.
    ///
    /// # Errors
    ///
    /// [`Error::ZeroDiagonal`] and [`Error::NotFinite`], as [`Jacobi::of`].
    pub fn of_diagonal(
        first_row: usize,
        diagonal: impl IntoIterator<Item = f64>,
    ) -> Result<Self, Error> {
        let inverse = diagonal.into_iter().enumerate().map(|(at, diagonal)| {
            let (index, inverse) = (first_row + at, T::from_f64(1.0 / diagonal));
            if diagonal == 0.0 {
                Err(Error::ZeroDiagonal { row: index })
            } else if !diagonal.is_finite() {
                Err(Error::NotFinite { vector: "diagonal", index, value: diagonal })
            } else if !inverse.to_f64().is_finite() {
                Err(Error::NotFinite { vector: "1 / diagonal", index, value: inverse.to_f64() })
            } else {
                Ok(inverse)
            }
        });
        Ok(Self { inverse: inverse.collect::<Result<_, _>>()? })
    }
}
