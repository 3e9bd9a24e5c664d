//! Engines: our own operator on any device, and the baselines.

use super::task::MultivectorShape;
use sparseop::tuning::caches::Caches;
use sparseop::{DeviceVec, Error, Multivector, Scalar, SparseOp};
use std::rc::Rc;

/// An implementation of the product with one matrix and one or several vectors.
pub(super) trait Engine<T> {
    /// Computes the product into `y`, whose contents are overwritten.
    ///
    /// # Errors
    ///
    /// Errors of the library or of the device.
    fn answer(&mut self, y: &mut [T]) -> Result<(), Error>;

    /// Enqueues the product on the stream of its [`caches`](Self::caches), with vectors that stay
    /// on its device.
    ///
    /// # Errors
    ///
    /// Errors of the library or of the device.
    fn multiply(&mut self) -> Result<(), Error>;

    /// Stream of its products, and state of the caches at the beginning of timed ones.
    fn caches(&self) -> &Rc<Caches>;

    /// Times a batch of products, in seconds.
    ///
    /// # Errors
    ///
    /// As [`multiply`](Self::multiply).
    fn batch(&mut self, products: u32) -> Result<f64, Error> {
        let caches = self.caches().clone();
        caches.batch(products, || self.multiply())
    }

    /// True if a batch separates its products, which are then not launched as graphs.
    fn is_separated(&self) -> bool {
        false
    }

    /// Number and layout of its vectors.
    fn vectors_shape(&self) -> MultivectorShape {
        MultivectorShape::ONE
    }
}

/// Kind of a product of an operator.
#[derive(Debug, Clone, Copy)]
pub(super) enum ProductKind {
    /// With the matrix.
    Plain(MultivectorShape),
    /// With its transpose.
    Transposed,
}

/// Engine with an operator of the library.
pub(super) struct OperatorEngine<T: Scalar> {
    op: SparseOp<T>,
    product: ProductKind,
    caches: Rc<Caches>,
    x: Rc<DeviceVec<T>>,
    y: DeviceVec<T>,
}

impl<T: Scalar> OperatorEngine<T> {
    /// Engine whose work runs on the stream of `caches`.
    pub(super) fn new(
        op: SparseOp<T>,
        product: ProductKind,
        x: Rc<DeviceVec<T>>,
        caches: Rc<Caches>,
    ) -> Result<Self, Error> {
        let len = match product {
            ProductKind::Plain(vectors_shape) => vectors_shape.count * op.nrows(),
            ProductKind::Transposed => op.ncols(),
        };
        let y = DeviceVec::zeros(op.device(), len)?;
        let mut engine = Self { op, product, caches, x, y };
        // The first product does the lazy initialisation.
        engine.multiply()?;
        Ok(engine)
    }

    /// The operator.
    pub(super) fn op(&self) -> &SparseOp<T> {
        &self.op
    }
}

impl<T: Scalar> Engine<T> for OperatorEngine<T> {
    fn answer(&mut self, y: &mut [T]) -> Result<(), Error> {
        self.y.copy_from(y)?;
        self.multiply()?;
        self.y.copy_to(y)
    }

    fn multiply(&mut self) -> Result<(), Error> {
        let Self { op, caches, x, y, .. } = self;
        let stream = caches.stream();
        match self.product {
            ProductKind::Plain(MultivectorShape::ONE) => op.apply_device(stream, x, y),
            ProductKind::Plain(MultivectorShape { count, layout }) => {
                let of_y = Multivector::new(y, count, layout);
                op.apply_multi_device(stream, Multivector::new(x, count, layout), of_y)
            }
            ProductKind::Transposed => op.apply_transpose_device(stream, x, y),
        }
    }

    fn caches(&self) -> &Rc<Caches> {
        &self.caches
    }

    fn vectors_shape(&self) -> MultivectorShape {
        match self.product {
            ProductKind::Plain(vectors_shape) => vectors_shape,
            ProductKind::Transposed => MultivectorShape::ONE,
        }
    }
}

/// A product with one matrix: `multiply(x, y)`.
pub(super) type HostProduct<'a, T> = Box<dyn Fn(&[T], &mut [T]) + 'a>;

/// Engine whose product takes vectors in host memory.
pub(super) struct OnHost<'a, T> {
    multiply: HostProduct<'a, T>,
    x: &'a [T],
    y: Vec<T>,
    caches: Rc<Caches>,
}

impl<'a, T: Scalar> OnHost<'a, T> {
    /// Engine with vector `x`. `caches` must be those of the CPU.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub(super) fn new(
        multiply: HostProduct<'a, T>,
        x: &'a [T],
        nrows: usize,
        caches: Rc<Caches>,
    ) -> Result<Self, Error> {
        Ok(Self { multiply, x, y: sparseop::filled(nrows, T::ZERO)?, caches })
    }
}

impl<T: Scalar> Engine<T> for OnHost<'_, T> {
    fn answer(&mut self, y: &mut [T]) -> Result<(), Error> {
        (self.multiply)(self.x, y);
        Ok(())
    }

    fn multiply(&mut self) -> Result<(), Error> {
        (self.multiply)(self.x, &mut self.y);
        Ok(())
    }

    fn caches(&self) -> &Rc<Caches> {
        &self.caches
    }
}
