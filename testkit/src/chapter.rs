//! Worked matrices of Kirk & Hwu, *Programming Massively Parallel Processors*, chapter "Sparse
//! Matrix Computation".

use sparseop::Scalar;
use sparseop::matrix::{CsrMatrix, Triplets};

fn from_dense<T: Scalar>(rows: [[u8; 4]; 4]) -> CsrMatrix<T> {
    let mut triplets = Triplets::new(4, 4).expect("4 x 4 is a valid shape");
    for (i, row) in rows.iter().enumerate() {
        for (j, &value) in row.iter().enumerate().filter(|(_, v)| **v != 0) {
            triplets.push(i, j, T::from_f64(f64::from(value))).expect("inside 4 x 4");
        }
    }
    triplets.to_csr()
}

/// The matrix of the drawings of all layouts.
pub fn matrix<T: Scalar>() -> CsrMatrix<T> {
    from_dense([[3, 0, 1, 0], [0, 0, 0, 0], [0, 2, 4, 1], [1, 0, 0, 1]])
}

/// The matrix of the exercises.
pub fn exercise<T: Scalar>() -> CsrMatrix<T> {
    from_dense([[1, 0, 7, 0], [0, 0, 8, 0], [0, 4, 3, 0], [2, 0, 0, 1]])
}
