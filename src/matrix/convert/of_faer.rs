//! Sparse matrices of faer.

use super::ToCsr;
use super::compressed::Compressed;
use crate::matrix::CsrCow;
use crate::{Error, Scalar};
use faer::Index;
use faer::sparse::{SparseColMat, SparseColMatRef, SparseRowMat, SparseRowMatRef};
use std::borrow::Cow;

/// ```
/// # use sparseop::SparseOp;
/// use faer::sparse::{SparseColMat, Triplet};
///
/// let entries = [Triplet::new(0usize, 0usize, 2.0f64), Triplet::new(1, 1, 3.0)];
/// let a = SparseColMat::try_new_from_triplets(2, 2, &entries).unwrap();
/// let op = SparseOp::auto(&a)?;
/// let mut y = [0.0; 2];
/// op.apply(&[1.0, 10.0], &mut y)?;
/// assert_eq!(y, [2.0, 30.0]);
/// # Ok::<(), sparseop::Error>(())
/// ```
impl<T: Scalar, I: Index> ToCsr<T> for SparseColMat<I, T> {
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        of_parts(self.as_ref().parts().0.parts(), self.val(), false)
    }
}

impl<T: Scalar, I: Index> ToCsr<T> for SparseColMatRef<'_, I, T> {
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        of_parts(self.symbolic().parts(), self.val(), false)
    }
}

impl<T: Scalar, I: Index> ToCsr<T> for SparseRowMat<I, T> {
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        of_parts(self.as_ref().parts().0.parts(), self.val(), true)
    }
}

impl<T: Scalar, I: Index> ToCsr<T> for SparseRowMatRef<'_, I, T> {
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        of_parts(self.symbolic().parts(), self.val(), true)
    }
}

/// Numbers of rows and columns, beginning of each, its number of entries if there may be gaps
/// behind them, and the indices of the other dimension.
type Parts<'a, I> = (usize, usize, &'a [I], Option<&'a [I]>, &'a [I]);

/// Converts a matrix, dropping the gaps that its arrays may have.
fn of_parts<'a, T: Scalar, I: Index>(
    (nrows, ncols, begins, counts, indices): Parts<'_, I>,
    values: &[T],
    by_rows: bool,
) -> Result<CsrCow<'a, T>, Error> {
    let range = |outer: usize| {
        let begin = begins[outer].zx();
        begin..counts.map_or_else(|| begins[outer + 1].zx(), |counts| begin + counts[outer].zx())
    };
    let ranges = || (0..begins.len() - 1).map(range);
    let ends = ranges().scan(0, |end, range| {
        *end += range.len();
        Some(*end)
    });
    let ptr = std::iter::once(0).chain(ends).collect();
    let compressed = Compressed { format: "faer", shape: (nrows, ncols), ptr, by_rows };
    let values: Vec<T> = ranges().flat_map(|range| &values[range]).copied().collect();
    compressed.into_csr(
        ranges().flat_map(|range| &indices[range]).map(|index| index.zx()),
        Cow::Owned(values),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::CsrMatrix;
    use faer::sparse::{SymbolicSparseColMatRef, SymbolicSparseRowMatRef, Triplet};

    fn expected() -> CsrMatrix<f64> {
        CsrMatrix::try_new(2, 3, vec![0, 1, 3], vec![2, 0, 1], vec![1.0, 2.0, 3.0]).unwrap()
    }

    #[test]
    fn either_order_owned_or_borrowed_of_any_index_type() {
        let entries =
            [Triplet::new(0usize, 2usize, 1.0), Triplet::new(1, 0, 2.0), Triplet::new(1, 1, 3.0)];
        let col = SparseColMat::try_new_from_triplets(2, 3, &entries).unwrap();
        let row = SparseRowMat::try_new_from_triplets(2, 3, &entries).unwrap();
        assert_eq!(ToCsr::to_csr(&col).unwrap().into_owned(), expected());
        assert_eq!(ToCsr::to_csr(&col.as_ref()).unwrap().into_owned(), expected());
        assert_eq!(ToCsr::to_csr(&row).unwrap().into_owned(), expected());
        assert_eq!(ToCsr::to_csr(&row.as_ref()).unwrap().into_owned(), expected());
        let narrow =
            entries.map(|entry| Triplet::new(entry.row as u32, entry.col as u32, entry.val));
        let narrow = SparseColMat::<u32, f64>::try_new_from_triplets(2, 3, &narrow).unwrap();
        assert_eq!(ToCsr::to_csr(&narrow).unwrap().into_owned(), expected());
    }

    #[test]
    fn gaps_in_the_arrays_are_left_out() {
        let rows = SymbolicSparseRowMatRef::<u64>::new_checked(
            2,
            3,
            &[1, 3, 6],
            Some(&[1, 2]),
            &[0, 2, 0, 0, 1, 2, 0],
        );
        let a = SparseRowMatRef::new(rows, &[9.0, 1.0, 9.0, 2.0, 3.0, 9.0, 9.0]);
        assert_eq!(ToCsr::to_csr(&a).unwrap().into_owned(), expected());
        let cols = SymbolicSparseColMatRef::<usize>::new_checked(
            2,
            3,
            &[0, 2, 4, 5],
            Some(&[1, 1, 1]),
            &[1, 0, 1, 0, 0],
        );
        let a = SparseColMatRef::new(cols, &[2.0, 9.0, 3.0, 9.0, 1.0]);
        assert_eq!(ToCsr::to_csr(&a).unwrap().into_owned(), expected());
    }
}
