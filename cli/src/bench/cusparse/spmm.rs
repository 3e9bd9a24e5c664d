//! cuSPARSE's SpMM: products with several vectors.

use super::super::baseline::Context;
use super::super::engine::Engine;
use super::super::failure::RunFailure;
use super::super::task::MultivectorShape;
use super::ffi::{Cusparse, Enum, NON_TRANSPOSE, Raw};
use super::matrix::{MatrixArrays, MatrixShape, StorageLayout};
use super::session::{Object, Session, data_type, number};
use sparseop::device::DeviceArray;
use sparseop::matrix::CsrMatrix;
use sparseop::tuning::caches::Caches;
use sparseop::{
    Device, DeviceVec, Error, Layout, Scalar, SparseOp, SparseOpBuilder, Stream, Tuning,
};
use std::rc::Rc;

/// Value of `CUSPARSE_SPMM_CSR_ALG3`.
const CSR_ALG3: Enum = 12;

/// An SpMM algorithm of cuSPARSE with layouts of matrix and vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct SpMm {
    name: &'static str,
    /// Number in `cusparseSpMMAlg_t`.
    number: Enum,
    matrix: StorageLayout,
    vectors: Layout,
}

impl SpMm {
    /// Every algorithm with every layout of the vectors.
    pub(in super::super) fn all() -> Vec<Self> {
        use Layout::{ColumnMajor, RowMajor};
        let way = |name, number, matrix, vectors| Self { name, number, matrix, vectors };
        vec![
            way("csr_alg1 row", 4, StorageLayout::Csr, RowMajor),
            way("csr_alg1 column", 4, StorageLayout::Csr, ColumnMajor),
            way("csr_alg2 row", 6, StorageLayout::Csr, RowMajor),
            way("csr_alg2 column", 6, StorageLayout::Csr, ColumnMajor),
            way("csr_alg3 row", CSR_ALG3, StorageLayout::Csr, RowMajor),
            way("csr_alg3 column", CSR_ALG3, StorageLayout::Csr, ColumnMajor),
            way("coo_alg1 row", 1, StorageLayout::Coo, RowMajor),
            way("coo_alg1 column", 1, StorageLayout::Coo, ColumnMajor),
            way("coo_alg2 row", 2, StorageLayout::Coo, RowMajor),
            way("coo_alg2 column", 2, StorageLayout::Coo, ColumnMajor),
            way("coo_alg3 row", 3, StorageLayout::Coo, RowMajor),
            way("coo_alg3 column", 3, StorageLayout::Coo, ColumnMajor),
            way("coo_alg4 row", 5, StorageLayout::Coo, RowMajor),
            way("coo_alg4 column", 5, StorageLayout::Coo, ColumnMajor),
        ]
    }

    /// Name in reports.
    pub(in super::super) fn name(self) -> &'static str {
        self.name
    }

    /// True if products that follow one another may run at the same time, although the second one
    /// reads what the first one writes.
    fn overlaps(self) -> bool {
        self.number == CSR_ALG3
    }

    /// Copies the matrix and the vectors to the device and prepares many products.
    pub(in super::super) fn enter<'a, T: Scalar>(
        self,
        context: &Context<'_, T>,
    ) -> Result<Box<dyn Engine<T> + 'a>, RunFailure> {
        let (a, device) = (context.a, context.device);
        if *device == Device::Cpu {
            return Err(RunFailure::Broken(
                "it needs an NVIDIA GPU, and the device is the CPU".to_owned(),
            ));
        }
        let library = Cusparse::get().map_err(|reason| RunFailure::Broken(reason.to_owned()))?;
        let arrays = MatrixArrays::of(a, self.matrix, device, &context.shared)?;
        let vectors_shape = MultivectorShape { count: context.task.count, layout: self.vectors };
        let x = context.vectors.on(device, vectors_shape)?;
        let y = DeviceVec::zeros(device, a.nrows() * vectors_shape.count)?;
        let session = Session::new(library, context.caches.clone())?;
        let product = PreparedSpmm::new(
            self.number,
            vectors_shape,
            MatrixShape::of(a),
            arrays,
            x,
            y,
            session,
        )?;
        if !self.overlaps() {
            return Ok(Box::new(product));
        }
        Ok(Box::new(SeparatedSpmm { product, separator: Separator::on(device)? }))
    }
}

/// State of one algorithm. Objects come before those that they refer to, so that they are dropped
/// first.
struct PreparedSpmm<T: Scalar> {
    algorithm: Enum,
    vectors_shape: MultivectorShape,
    matrix: Object,
    x: Object,
    y: Object,
    session: Session,
    buffer: DeviceArray,
    _arrays: MatrixArrays,
    _vectors: Rc<DeviceVec<T>>,
    products: DeviceVec<T>,
}

impl<T: Scalar> PreparedSpmm<T> {
    fn new(
        algorithm: Enum,
        vectors_shape: MultivectorShape,
        shape: MatrixShape,
        arrays: MatrixArrays,
        vectors: Rc<DeviceVec<T>>,
        products: DeviceVec<T>,
        session: Session,
    ) -> Result<Self, Error> {
        let matrix = session.matrix::<T>(shape, &arrays)?;
        let x = session.dense(&vectors, shape.ncols, vectors_shape)?;
        let y = session.dense(&products, shape.nrows, vectors_shape)?;
        let (one, zero) = (T::ONE, T::ZERO);
        let (alpha, beta, kind, op) =
            (number(&one), number(&zero), data_type::<T>(), NON_TRANSPOSE);
        let (h, a, b, c) = (session.handle(), matrix.raw(), x.raw(), y.raw());
        let (f, mut bytes) = (&session.library.spmm, 0);
        // SAFETY: all objects are alive; one size is written.
        let status = unsafe {
            (f.buffer_size)(h, op, op, alpha, a, b, beta, c, kind, algorithm, &mut bytes)
        };
        session.done("ask cuSPARSE for the size of its buffer", status)?;
        let buffer = DeviceArray::zeroed(&session.stream().device(), bytes)?;
        // SAFETY: as above, with a buffer of the size that was asked for. The matrix keeps its
        // address, and is dropped first.
        let status = unsafe {
            (f.preprocess)(
                h,
                op,
                op,
                alpha,
                a,
                b,
                beta,
                c,
                kind,
                algorithm,
                buffer.address() as Raw,
            )
        };
        session.done("let cuSPARSE look at the matrix", status)?;
        Ok(Self {
            algorithm,
            vectors_shape,
            matrix,
            x,
            y,
            session,
            buffer,
            _arrays: arrays,
            _vectors: vectors,
            products,
        })
    }
}

impl<T: Scalar> Engine<T> for PreparedSpmm<T> {
    fn answer(&mut self, y: &mut [T]) -> Result<(), Error> {
        self.products.copy_from(y)?;
        self.multiply()?;
        self.products.copy_to(y)
    }

    fn multiply(&mut self) -> Result<(), Error> {
        let (one, zero) = (T::ONE, T::ZERO);
        let (alpha, beta, kind, op) =
            (number(&one), number(&zero), data_type::<T>(), NON_TRANSPOSE);
        let (h, a, b, c) = (self.session.handle(), self.matrix.raw(), self.x.raw(), self.y.raw());
        let (f, buffer) = (&self.session.library.spmm, self.buffer.address() as Raw);
        // SAFETY: all objects are alive; the buffer has the size that was asked for with the same
        // arguments.
        let status =
            unsafe { (f.multiply)(h, op, op, alpha, a, b, beta, c, kind, self.algorithm, buffer) };
        self.session.done("multiply with cuSPARSE", status)
    }

    fn caches(&self) -> &Rc<Caches> {
        self.session.caches()
    }

    fn vectors_shape(&self) -> MultivectorShape {
        self.vectors_shape
    }
}

/// A product of one element between two others, which makes the second one wait for the first.
///
/// `csr_alg3` of cuSPARSE 12.9.4 does not wait: y = A x and then z = A y, without other work
/// between them, give a wrong z for some matrices, and such products seem up to five times as fast
/// (docs/history/2026-11-30-spmm-by-rows.md).
struct Separator<T: Scalar> {
    op: SparseOp<T>,
    x: DeviceVec<T>,
    y: DeviceVec<T>,
}

impl<T: Scalar> Separator<T> {
    fn on(device: &Device) -> Result<Self, Error> {
        let a = CsrMatrix::try_new(1, 1, vec![0, 1], vec![0], vec![T::ONE])?;
        let builder = SparseOpBuilder::new().device(device.clone());
        let op = builder.tuning(Tuning::Predict).build(&a)?;
        let x = DeviceVec::zeros(device, 1)?;
        let y = DeviceVec::zeros(device, 1)?;
        Ok(Self { op, x, y })
    }

    fn enqueue(&mut self, stream: &Stream) -> Result<(), Error> {
        self.op.apply_device(stream, &self.x, &mut self.y)
    }
}

/// An algorithm whose products a batch separates from each other.
struct SeparatedSpmm<T: Scalar> {
    product: PreparedSpmm<T>,
    separator: Separator<T>,
}

impl<T: Scalar> Engine<T> for SeparatedSpmm<T> {
    fn answer(&mut self, y: &mut [T]) -> Result<(), Error> {
        self.product.answer(y)
    }

    fn multiply(&mut self) -> Result<(), Error> {
        self.product.multiply()
    }

    fn batch(&mut self, products: u32) -> Result<f64, Error> {
        // A single product overlaps with none.
        if products == 1 {
            return self.product.batch(products);
        }
        let Self { product, separator } = self;
        let caches = product.caches().clone();
        let stream = caches.stream();
        let both = caches.batch(products, || {
            product.multiply()?;
            separator.enqueue(stream)
        })?;
        let alone = caches.batch(products, || separator.enqueue(stream))?;
        // A lower bound: noise must not make it the fastest.
        Ok((both - alone).max(both / 4.0))
    }

    fn is_separated(&self) -> bool {
        true
    }

    fn caches(&self) -> &Rc<Caches> {
        self.product.caches()
    }

    fn vectors_shape(&self) -> MultivectorShape {
        self.product.vectors_shape()
    }
}
