//! Operators as linear operators of faer, for its iterative solvers and eigensolvers.

use super::SparseOp;
use crate::{Error, Multivector, Scalar};
use faer::dyn_stack::{MemStack, StackReq};
use faer::matrix_free::{BiLinOp, LinOp};
use faer::traits::ComplexField;
use faer::{MatMut, MatRef, Par};

/// Products of faer's matrix-free solvers. The number of threads is the operator's, not `par`'s.
///
/// faer's trait returns no errors.
///
/// # Panics
///
/// If the numbers of rows or columns of `out` and `rhs` do not fit the matrix, or the SpMV fails;
/// see [`SparseOp::apply`] and [`SparseOp::apply_multi`].
///
/// ```
/// use faer::dyn_stack::{MemBuffer, MemStack};
/// use faer::matrix_free::LinOp;
/// use faer::{Mat, Par};
/// # use sparseop::{SparseOp, matrix::Triplets};
///
/// let mut t = Triplets::new(2, 2)?;
/// t.push(0, 1, 2.0f64)?;
/// t.push(1, 0, 3.0)?;
/// let op = SparseOp::auto(&t)?;
/// let x = Mat::from_fn(2, 1, |i, _| [1.0, 10.0][i]);
/// let mut y = Mat::zeros(2, 1);
/// let mut buffer = MemBuffer::new(op.apply_scratch(1, Par::Seq));
/// LinOp::apply(&op, y.as_mut(), x.as_ref(), Par::Seq, MemStack::new(&mut buffer));
/// assert_eq!((y[(0, 0)], y[(1, 0)]), (20.0, 3.0));
/// # Ok::<(), sparseop::Error>(())
/// ```
impl<T: Scalar + ComplexField> LinOp<T> for SparseOp<T> {
    fn apply_scratch(&self, _: usize, _: Par) -> StackReq {
        StackReq::EMPTY
    }

    fn nrows(&self) -> usize {
        SparseOp::nrows(self)
    }

    fn ncols(&self) -> usize {
        SparseOp::ncols(self)
    }

    #[track_caller]
    fn apply(&self, out: MatMut<'_, T>, rhs: MatRef<'_, T>, _: Par, _: &mut MemStack) {
        assert_eq!(out.ncols(), rhs.ncols(), "`out` and `rhs` have as many columns");
        if rhs.ncols() == 1 {
            return columns(out, rhs, |x, y| SparseOp::apply(self, x, y));
        }
        let (count, x) = (rhs.ncols(), entries(rhs));
        let mut y = entries(out.as_ref());
        let product = self.apply_multi(
            Multivector::column_major(&x, count),
            Multivector::column_major(&mut y, count),
        );
        if product.is_err() {
            // Memory for a second packing or a buffer may be missing.
            return columns(out, rhs, |x, y| SparseOp::apply(self, x, y));
        }
        let nrows = out.nrows();
        { out }.copy_from(MatRef::from_column_major_slice(&y, nrows, count));
    }

    #[track_caller]
    fn conj_apply(&self, out: MatMut<'_, T>, rhs: MatRef<'_, T>, par: Par, stack: &mut MemStack) {
        // Values are real.
        LinOp::apply(self, out, rhs, par, stack);
    }
}

/// As [`LinOp`], with the transposed matrix, which is stored in addition at the first use.
impl<T: Scalar + ComplexField> BiLinOp<T> for SparseOp<T> {
    fn transpose_apply_scratch(&self, _: usize, _: Par) -> StackReq {
        StackReq::EMPTY
    }

    #[track_caller]
    fn transpose_apply(&self, out: MatMut<'_, T>, rhs: MatRef<'_, T>, _: Par, _: &mut MemStack) {
        assert_eq!(out.ncols(), rhs.ncols(), "`out` and `rhs` have as many columns");
        columns(out, rhs, |x, y| self.apply_transpose(x, y));
    }

    #[track_caller]
    fn adjoint_apply(
        &self,
        out: MatMut<'_, T>,
        rhs: MatRef<'_, T>,
        par: Par,
        stack: &mut MemStack,
    ) {
        self.transpose_apply(out, rhs, par, stack);
    }
}

/// Entries of a matrix, column by column.
fn entries<T: Scalar>(matrix: MatRef<'_, T>) -> Vec<T> {
    matrix.col_iter().flat_map(|column| column.iter().copied()).collect()
}

/// Multiplies column by column.
#[track_caller]
fn columns<T: Scalar>(
    out: MatMut<'_, T>,
    rhs: MatRef<'_, T>,
    product: impl Fn(&[T], &mut [T]) -> Result<(), Error>,
) {
    for (mut y, x) in out.col_iter_mut().zip(rhs.col_iter()) {
        let copied: Vec<T>;
        let x = match x.try_as_col_major() {
            Some(x) => x.as_slice(),
            None => {
                copied = x.iter().copied().collect();
                &copied
            }
        };
        let result = match y.as_mut().try_as_col_major_mut() {
            Some(y) => product(x, y.as_slice_mut()),
            None => {
                let mut copy: Vec<T> = y.as_ref().iter().copied().collect();
                let result = product(x, &mut copy);
                y.iter_mut().zip(&copy).for_each(|(y, &copy)| *y = copy);
                result
            }
        };
        result.unwrap_or_else(|error| panic!("{error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Oracle, x_vector};
    use faer::Mat;
    use faer::dyn_stack::MemBuffer;

    #[test]
    fn products_of_faer_are_those_of_the_operator() {
        let spec = "webbase,rows=2k".parse::<crate::matrix::gallery::Spec>().unwrap();
        let a = spec.generate::<f64>().unwrap();
        let (op, x) = (SparseOp::auto(&a).unwrap(), x_vector::<f64>(a.ncols()));
        let oracle = Oracle::of(a.view(), &x);
        let transposed = Oracle::of(a.transpose().view(), &x);
        let mut buffer = MemBuffer::new(op.apply_scratch(1, Par::Seq));
        let stack = MemStack::new(&mut buffer);
        for count in [1, 3] {
            let rhs = Mat::from_fn(x.len(), count, |i, _| x[i]);
            let turned = Mat::from_fn(count, x.len(), |_, i| x[i]);
            // Contiguous columns, and columns with a stride.
            for rhs in [rhs.as_ref(), turned.transpose()] {
                let mut out = Mat::zeros(a.nrows(), count);
                let mut strided = Mat::<f64>::zeros(count, a.nrows());
                LinOp::apply(&op, out.as_mut(), rhs, Par::Seq, stack);
                oracle.check(&entries(out.col(count - 1).as_mat())).unwrap();
                op.conj_apply(strided.transpose_mut(), rhs, Par::Seq, stack);
                assert_eq!(strided.transpose(), out);
                op.transpose_apply(strided.transpose_mut(), rhs, Par::Seq, stack);
                op.adjoint_apply(out.as_mut(), rhs, Par::Seq, stack);
                transposed.check(&entries(out.col(0).as_mat())).unwrap();
                assert_eq!(strided.transpose(), out);
            }
        }
    }
}
