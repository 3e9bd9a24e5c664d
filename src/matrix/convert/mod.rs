//! Conversion of matrices of other libraries.

#[cfg(feature = "faer")]
mod of_faer;
#[cfg(feature = "nalgebra")]
mod of_nalgebra;

use super::{CsrCow, CsrMatrix, CsrView, Triplets, check, check_dimensions};
use crate::{Error, Scalar, memory};
use sprs::{CsMatBase, SpIndex};
use std::borrow::Cow;
use std::ops::Deref;

/// A matrix that can be read as CSR: the input of [`SparseOp::auto`](crate::SparseOp::auto).
///
/// Implemented for [`CsrMatrix`], [`CsrView`], [`CsrCow`], [`Triplets`] and the matrices of `sprs`,
/// owned or borrowed, compressed by row or by column, of any index type. With the feature
/// `nalgebra` also for the `CsrMatrix`, `CscMatrix` and `CooMatrix` of `nalgebra-sparse`, with the
/// feature `faer` for its `SparseRowMat` and `SparseColMat`, owned or borrowed, of any index type.
/// Their indices are copied, their values only if they are compressed by column; entries of a
/// `CooMatrix` with the same place are summed.
pub trait ToCsr<T: Scalar> {
    /// Returns the matrix in CSR; borrowed if it is CSR already.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidMatrix`] if the matrix does not fit 32-bit column indices;
    /// [`Error::HostMemory`] if a converted matrix does not fit the memory.
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error>;
}

impl<T: Scalar> ToCsr<T> for CsrMatrix<T> {
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        Ok(self.view().into())
    }
}

impl<T: Scalar> ToCsr<T> for CsrView<'_, T> {
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        Ok((*self).into())
    }
}

impl<T: Scalar> ToCsr<T> for CsrCow<'_, T> {
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        Ok(self.view().into())
    }
}

impl<T: Scalar> ToCsr<T> for Triplets<T> {
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        Ok(T::assemble(self)?.into())
    }
}

impl<T, I, IptrStorage, IndStorage, DataStorage, Iptr> ToCsr<T>
    for CsMatBase<T, I, IptrStorage, IndStorage, DataStorage, Iptr>
where
    T: Scalar,
    I: SpIndex,
    Iptr: SpIndex,
    IptrStorage: Deref<Target = [Iptr]>,
    IndStorage: Deref<Target = [I]>,
    DataStorage: Deref<Target = [T]>,
{
    fn to_csr(&self) -> Result<CsrCow<'_, T>, Error> {
        let compressed = Compressed {
            format: "sprs",
            shape: self.shape(),
            ptr: memory::listed(self.proper_indptr().iter().map(|p| p.index()))?,
            by_rows: self.is_csr(),
        };
        // sprs can build matrices without checks, so the arrays are checked like any others.
        compressed.into_csr(self.indices().iter().map(|i| i.index()), Cow::Borrowed(self.data()))
    }
}

/// A matrix of another library, compressed by row or by column.
struct Compressed {
    /// Name in error messages.
    format: &'static str,
    /// Number of rows and columns.
    shape: (usize, usize),
    /// Beginning of each row or column, and the end of the last one.
    ptr: Vec<usize>,
    by_rows: bool,
}

impl Compressed {
    /// Builds and checks the CSR matrix with the given indices and values of its entries.
    fn into_csr<'a, T: Scalar>(
        self,
        indices: impl Iterator<Item = usize>,
        values: Cow<'a, [T]>,
    ) -> Result<CsrCow<'a, T>, Error> {
        let Self { format, shape: (nrows, ncols), ptr, by_rows } = self;
        check_dimensions(format, nrows, ncols)?;
        // An index that does not fit becomes one that is out of range, which the check below finds.
        let mut numbers = memory::reserved(values.len())?;
        numbers.extend(indices.map(|i| u32::try_from(i).unwrap_or(u32::MAX)));
        let indices: Vec<u32> = numbers;
        let (outer, inner) = if by_rows { (nrows, ncols) } else { (ncols, nrows) };
        check(outer, inner, &ptr, &indices, values.len())?;
        let (row_ptr, col_idx) = (Cow::Owned(ptr), Cow::Owned(indices));
        let compressed = CsrCow { nrows: outer, ncols: inner, row_ptr, col_idx, values };
        Ok(if by_rows { compressed } else { compressed.view().try_transpose()?.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sprs::{CsMatI, TriMatI};

    fn example<I: SpIndex, Iptr: SpIndex>() -> CsMatI<f64, I, Iptr> {
        let mut t = TriMatI::<f64, I>::new((2, 3));
        t.add_triplet(0, 2, 1.0);
        t.add_triplet(1, 0, 2.0);
        t.add_triplet(1, 1, 3.0);
        let a = t.to_csr::<Iptr>();
        CsMatI::new(
            (2, 3),
            a.indptr().raw_storage().to_vec(),
            a.indices().to_vec(),
            a.data().to_vec(),
        )
    }

    #[test]
    fn sprs_of_either_order_and_any_index_type() {
        let expected =
            CsrMatrix::try_new(2, 3, vec![0, 1, 3], vec![2, 0, 1], vec![1.0, 2.0, 3.0]).unwrap();
        assert_eq!(ToCsr::to_csr(&example::<usize, usize>()).unwrap().into_owned(), expected);
        assert_eq!(ToCsr::to_csr(&example::<u16, u32>()).unwrap().into_owned(), expected);
        assert_eq!(ToCsr::to_csr(&example::<i32, u64>()).unwrap().into_owned(), expected);
        let csc = example::<u32, usize>().to_csc();
        assert_eq!(ToCsr::to_csr(&csc).unwrap().into_owned(), expected);
        let view = csc.view();
        assert_eq!(ToCsr::to_csr(&view).unwrap().into_owned(), expected);
    }
}
