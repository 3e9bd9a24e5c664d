//! A matrix to pack, in host memory, in the memory of a GPU, or both.

use super::{Plan, ResidentMatrix};
use crate::device::CsrSource;
use crate::matrix::CsrView;
use crate::trace::{Entered, span};
use crate::{Error, Scalar};
use tracing::field::display;

/// A matrix to pack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackSource<'a, T: Scalar> {
    place: Place<'a, T>,
    /// The matrix in the memory of the target GPU, if present.
    pub(crate) on_gpu: Option<&'a CsrSource<T>>,
}

/// Place of a matrix.
#[derive(Debug, Clone, Copy)]
enum Place<'a, T: Scalar> {
    /// In host memory.
    Host(CsrView<'a, T>),
    /// In the memory of the target GPU; copied to the host when that is needed.
    Gpu(&'a CsrSource<T>),
}

impl<'a, T: Scalar> PackSource<'a, T> {
    /// A matrix in host memory, and its copy in the memory of the target GPU.
    pub(crate) fn new(a: CsrView<'a, T>, on_gpu: Option<&'a CsrSource<T>>) -> Self {
        Self { place: Place::Host(a), on_gpu }
    }

    /// The same matrix, with a copy in the memory of the target GPU.
    pub(crate) fn with_copy(self, on_gpu: &'a CsrSource<T>) -> Self {
        Self { on_gpu: Some(on_gpu), ..self }
    }

    /// The matrix in host memory.
    ///
    /// # Errors
    ///
    /// Errors of copying it from the GPU.
    pub(crate) fn on_host(self) -> Result<CsrView<'a, T>, Error> {
        match self.place {
            Place::Host(a) => Ok(a),
            Place::Gpu(a) => a.on_host(),
        }
    }

    /// Number of rows.
    pub(crate) fn nrows(self) -> usize {
        match self.place {
            Place::Host(a) => a.nrows(),
            Place::Gpu(a) => a.nrows,
        }
    }

    /// Number of columns.
    pub(crate) fn ncols(self) -> usize {
        match self.place {
            Place::Host(a) => a.ncols(),
            Place::Gpu(a) => a.ncols,
        }
    }

    /// Number of entries.
    pub(crate) fn nnz(self) -> usize {
        match self.place {
            Place::Host(a) => a.nnz(),
            Place::Gpu(a) => a.nnz(),
        }
    }

    /// Bytes of the matrix in CSR.
    pub(crate) fn csr_bytes(self) -> usize {
        let entry = size_of::<u32>() + size_of::<T>();
        (self.nrows() + 1) * size_of::<usize>() + self.nnz() * entry
    }

    /// True if a GPU packs it itself under a plan, from CSR in its memory.
    pub(crate) fn packs_on_device(self, plan: &Plan) -> bool {
        ResidentMatrix::<T>::packs_on_device(plan, self.nrows(), self.nnz())
    }

    /// Trace span of packing. The size in bytes is recorded when it is known.
    pub(crate) fn pack_span(self, plan: &Plan) -> Entered {
        span!(DEBUG, "pack", plan = display(plan), rows = self.nrows(), nnz = self.nnz(); bytes)
    }
}

impl<'a, T: Scalar> From<CsrView<'a, T>> for PackSource<'a, T> {
    fn from(a: CsrView<'a, T>) -> Self {
        Self::new(a, None)
    }
}

impl<'a, T: Scalar> From<&'a CsrSource<T>> for PackSource<'a, T> {
    fn from(a: &'a CsrSource<T>) -> Self {
        Self { place: Place::Gpu(a), on_gpu: Some(a) }
    }
}
