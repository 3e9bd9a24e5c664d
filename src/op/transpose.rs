//! Products with the transposed matrix, by an operator of its own, created at the first use or, if
//! requested, with the operator.

use super::lazy::get_or_make;
use super::{SparseOp, SparseOpBuilder};
use crate::device::{Device, DeviceVec, Stream};
use crate::formats::Layout;
use crate::matrix::{CsrMatrix, CsrView};
use crate::tuning::explain::{AuxiliaryPacking, AuxiliaryPackings};
use crate::{Error, Scalar};

/// Operator of the transposed matrix.
#[derive(Debug)]
pub(super) enum Transposed<T: Scalar> {
    /// The matrix equals its transpose.
    Same,
    /// An operator, chosen and packed like any other.
    Own(Box<SparseOp<T>>),
}

impl<T: Scalar> Transposed<T> {
    /// Bytes of its packed matrix.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Same => 0,
            Self::Own(op) => op.memory_bytes(),
        }
    }
}

impl<T: Scalar> SparseOp<T> {
    /// `y = Aᵀ x`; otherwise as [`apply`](Self::apply). `x` has `nrows` elements and `y` has
    /// `ncols`.
    ///
    /// The transposed matrix is packed at the first such product or, after
    /// [`SparseOpBuilder::transpose`], when the operator is built: its plan is chosen
    /// independently, from the same settings, and its size is part of
    /// [`memory_bytes`](Self::memory_bytes). A matrix that equals its transpose is not packed
    /// again.
    ///
    /// # Errors
    ///
    /// [`Error::VectorLength`] if a vector has the wrong length; `y` is then untouched. Errors of
    /// [`transposed`](Self::transposed) and [`apply`](Self::apply).
    pub fn apply_transpose(&self, x: &[T], y: &mut [T]) -> Result<(), Error> {
        self.check_transposed_lengths(x.len(), y.len())?;
        self.transposed()?.apply(x, y)
    }

    /// `y = Aᵀ x` with vectors that live on the operator's device; otherwise as
    /// [`apply_device`](Self::apply_device) and [`apply_transpose`](Self::apply_transpose).
    ///
    /// # Errors
    ///
    /// Errors of [`transposed`](Self::transposed) and [`apply_device`](Self::apply_device).
    pub fn apply_transpose_device(
        &self,
        stream: &Stream,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
    ) -> Result<(), Error> {
        self.check_transposed_lengths(x.len(), y.len())?;
        self.transposed()?.apply_device(stream, x, y)
    }

    /// Operator of the transposed matrix, on the same device; this operator if the matrix equals
    /// its transpose. Created at the first use.
    ///
    /// # Errors
    ///
    /// As [`SparseOpBuilder::decide`], with the [memory limit](SparseOpBuilder::memory_limit)
    /// applied to both together; [`Error::Gpu`] if the matrix cannot be copied from the GPU.
    pub fn transposed(&self) -> Result<&Self, Error> {
        T::transposed(self)
    }

    pub(crate) fn transposed_impl(&self) -> Result<&Self, Error> {
        self.check_copies("products with the transposed matrix")?;
        let made = get_or_make(&self.transposed, &self.lazy_packing, || {
            Transposition::of(self.to_csr()?.view())?.make(self)
        })?;
        Ok(match made {
            Transposed::Same => self,
            Transposed::Own(op) => op,
        })
    }

    fn check_transposed_lengths(&self, x: usize, y: usize) -> Result<(), Error> {
        let (nrows, ncols) = (self.nrows, self.ncols);
        for (vector, expected, found) in [("x", nrows, x), ("y", ncols, y)] {
            if expected != found {
                return Err(Error::VectorLength { vector, expected, found, nrows, ncols });
            }
        }
        Ok(())
    }

    /// Additional packings beside the packed matrix.
    pub(super) fn auxiliary(&self) -> AuxiliaryPackings<'_> {
        let transposed = self.transposed.get().map(|transposed| match transposed {
            Transposed::Same => AuxiliaryPacking::Shared,
            Transposed::Own(op) => AuxiliaryPacking::Own {
                plan: op.plan(),
                bytes: op.matrix.bytes(),
                seconds: op.preparation.total(),
            },
        });
        let layouts = [Layout::RowMajor, Layout::ColumnMajor];
        let limits = layouts.map(|layout| self.spmm_limit(layout));
        let spmm = self.spmm_packings.explain(limits);
        AuxiliaryPackings { transposed, spmm }
    }
}

/// A transposed matrix to be packed, or the reason why none is necessary.
pub(super) enum Transposition<T> {
    /// Equal to the matrix.
    Same,
    /// Different from the matrix.
    Other(CsrMatrix<T>),
}

impl<T: Scalar> Transposition<T> {
    /// Transposes a matrix.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub(super) fn of(a: CsrView<'_, T>) -> Result<Self, Error> {
        let transposed = a.try_transpose()?;
        let same = a.equals_transpose(&transposed)?;
        Ok(if same { Self::Same } else { Self::Other(transposed) })
    }

    /// Settings for the matrix itself that reserve memory for plain CSR of this one, if a limit
    /// applies to both.
    pub(super) fn reserve_memory(&self, settings: &SparseOpBuilder) -> SparseOpBuilder {
        let bytes = match self {
            Self::Other(transposed) => {
                let entries = transposed.nnz() * (size_of::<u32>() + size_of::<T>());
                (entries + (transposed.nrows() + 1) * size_of::<u64>()) as u64
            }
            Self::Same => 0,
        };
        let memory_limit = settings.memory_limit.map(|limit| limit.saturating_sub(bytes));
        SparseOpBuilder { memory_limit, ..settings.clone() }
    }

    /// Packs it for a newly built operator.
    pub(super) fn prepare(self, op: &SparseOp<T>) -> Result<(), Error> {
        get_or_make(&op.transposed, &op.lazy_packing, || self.make(op)).map(drop)
    }

    /// Decides and packs, on the device of `op` and within the rest of its memory limit.
    fn make(self, op: &SparseOp<T>) -> Result<Transposed<T>, Error> {
        let Self::Other(transposed) = self else { return Ok(Transposed::Same) };
        let builder = op.auxiliary_builder().build(&transposed)?;
        Ok(Transposed::Own(Box::new(builder)))
    }
}

impl<T: Scalar> SparseOp<T> {
    /// Builder of an auxiliary packing on the operator's device, within the rest of its memory
    /// limit.
    pub(super) fn auxiliary_builder(&self) -> SparseOpBuilder {
        let memory_limit =
            self.settings.memory_limit.map(|limit| limit.saturating_sub(self.memory_bytes()));
        let device = Some(self.device.clone());
        // Profiles of GPUs do not apply if the operator has fallen back on the CPU.
        let fell_back = self.decision.fallback.is_some() && self.device == Device::Cpu;
        let profile = self.settings.profile.clone().filter(|_| !fell_back);
        SparseOpBuilder {
            memory_limit,
            device,
            profile,
            transpose: false,
            updatable: false,
            ..self.settings.clone()
        }
    }
}

impl SparseOpBuilder {
    /// Packs the data of [transposed products](SparseOp::apply_transpose) with the operator instead
    /// of at the first of them, and within the memory limit. The default is false.
    #[must_use]
    pub fn transpose(mut self, transpose: bool) -> Self {
        self.transpose = transpose;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tuning;
    use crate::matrix::gallery;
    use crate::testing::{Oracle, chapter, x_vector};

    fn gallery(spec: &str) -> CsrMatrix<f64> {
        spec.parse::<gallery::Spec>().unwrap().generate().unwrap()
    }

    /// Two builds choose the same plan.
    fn predicting() -> SparseOpBuilder {
        SparseOpBuilder::new().tuning(Tuning::Predict)
    }

    fn check(op: &SparseOp<f64>, a: &CsrMatrix<f64>) {
        let x = x_vector(a.nrows());
        let mut y = vec![f64::NAN; a.ncols()];
        op.apply_transpose(&x, &mut y).unwrap();
        let oracle = Oracle::of(a.transpose().view(), &x);
        oracle.check(&y).unwrap();
        let stream = Stream::new(op.device()).unwrap();
        let x = DeviceVec::from_slice(op.device(), &x).unwrap();
        let mut on_device = DeviceVec::from_slice(op.device(), &vec![f64::NAN; a.ncols()]).unwrap();
        op.apply_transpose_device(&stream, &x, &mut on_device).unwrap();
        oracle.check(&on_device.to_vec().unwrap()).unwrap();
    }

    #[test]
    fn rectangles_later_and_announced() {
        let a = gallery("lp,rows=2k");
        assert_ne!(a.nrows(), a.ncols());
        let later = predicting().build(&a).unwrap();
        let before = later.memory_bytes();
        assert!(
            later.transposed.get().is_none() && !later.explain().to_string().contains("transposed")
        );
        check(&later, &a);
        let own = later.transposed().unwrap();
        assert_eq!((own.nrows(), own.ncols(), own.nnz()), (a.ncols(), a.nrows(), a.nnz() as u64));
        assert_eq!(later.memory_bytes(), before + own.memory_bytes());
        let text = later.explain().to_string();
        assert!(text.contains(&format!("\ntransposed {}, ", own.plan())), "{text}");
        let requested = predicting().transpose(true).build(&a).unwrap();
        assert!(
            requested.transposed.get().is_some()
                && requested.memory_bytes() == later.memory_bytes()
        );
        check(&requested, &a);
    }

    #[test]
    fn a_symmetric_matrix_is_packed_once() {
        let mut a = gallery("poisson2d,n=40");
        a.values_mut().fill(0.5);
        let op = SparseOpBuilder::new().transpose(true).build(&a).unwrap();
        assert!(std::ptr::eq(op.transposed().unwrap(), &op));
        let text = op.explain().to_string();
        assert!(text.contains("\ntransposed shared with the symmetric matrix itself\n"), "{text}");
        check(&op, &a);
    }

    #[test]
    fn a_given_plan_is_that_of_both_and_a_limit_is_for_both() {
        let a = gallery("webbase,rows=3k");
        let fixed = Tuning::Fixed("sell(c:32,sigma:512)".parse().unwrap());
        let op = SparseOpBuilder::new().tuning(fixed).build(&a).unwrap();
        assert_eq!(op.transposed().unwrap().plan(), op.plan());
        check(&op, &a);
        let csr = a.nnz() as u64 * 12 + (a.nrows() + 1) as u64 * 8;
        for limit in [2 * csr, 5 * csr / 2, 4 * csr] {
            let op = SparseOpBuilder::new().memory_limit(limit).transpose(true).build(&a).unwrap();
            assert!(op.memory_bytes() <= limit, "{} of {limit} bytes", op.memory_bytes());
            check(&op, &a);
        }
        let small = SparseOpBuilder::new().memory_limit(csr).build(&a).unwrap();
        let refused = small.transposed().unwrap_err();
        assert!(matches!(refused, Error::NoPlanFits { limit, .. } if limit < csr), "{refused}");
    }

    #[test]
    fn wrong_lengths_are_refused_by_the_shape_of_the_matrix() {
        let a = CsrMatrix::try_new(2, 3, vec![0, 1, 2], vec![2, 0], vec![1.0, 4.0]).unwrap();
        let op = SparseOp::auto(&a).unwrap();
        let mut y = [7.0; 3];
        let wrong = op.apply_transpose(&[1.0; 3], &mut y).unwrap_err().to_string();
        assert!(
            wrong.contains("`x` has 3 elements, but the matrix is 2 x 3 and needs 2"),
            "{wrong}"
        );
        assert!(op.apply_transpose(&[1.0; 2], &mut y[..2]).is_err());
        assert_eq!((y, op.transposed.get().is_none()), ([7.0; 3], true));
        op.apply_transpose(&[10.0, 1.0], &mut y).unwrap();
        assert_eq!(y, [4.0, 0.0, 10.0]);
        let square = SparseOp::auto(&chapter::matrix::<f32>()).unwrap();
        assert!(square.apply_transpose(&[1.0; 4], &mut [0.0; 4]).is_ok());
    }

    #[test]
    fn the_plan_fits_the_transposed_matrix() {
        // A dense column becomes a row that is longer than all others.
        let n = 3000;
        let row_ptr: Vec<usize> = (0..=n).map(|row| 2 * row).collect();
        let col_idx = (0..n as u32).flat_map(|row| [0, row.max(1)]).collect();
        let a = CsrMatrix::try_new(n, n, row_ptr, col_idx, x_vector::<f64>(2 * n)).unwrap();
        let op = predicting().build(&a).unwrap();
        let by_hand = predicting().build(&a.transpose()).unwrap();
        assert_eq!(op.transposed().unwrap().plan(), by_hand.plan());
        assert_eq!(op.transposed().unwrap().stats().max as usize, n);
        check(&op, &a);
    }
}
