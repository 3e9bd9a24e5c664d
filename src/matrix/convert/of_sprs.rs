//! Sparse matrices of sprs.

use super::ToCsr;
use super::compressed::Compressed;
use crate::matrix::CsrCow;
use crate::{Error, Scalar, memory};
use sprs::{CsMatBase, SpIndex};
use std::borrow::Cow;
use std::ops::Deref;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::CsrMatrix;
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
