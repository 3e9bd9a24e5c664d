//! Owned objects of cuSPARSE (handles, descriptors, plans), and its status codes as errors.

use super::super::task::MultivectorShape;
use super::ffi::{
    BASE_ZERO, COLUMN_MAJOR, Cusparse, Enum, INDEX_32, INDEX_64, Number, REAL_32, REAL_64, RawOut,
};
use super::ffi::{CusparseStatus, ROW_MAJOR, Raw};
use super::matrix::{MatrixArrays, MatrixShape};
use sparseop::tuning::caches::Caches;
use sparseop::{DeviceVec, Error, Layout, Scalar, ScalarKind, Stream};
use std::ptr::{from_ref, null_mut};
use std::rc::Rc;

/// An object of cuSPARSE, destroyed on drop.
#[derive(Debug)]
pub(super) struct Object {
    raw: Raw,
    destroy: unsafe extern "C" fn(Raw) -> CusparseStatus,
}

impl Object {
    /// The address of the object, valid during its lifetime.
    pub(super) fn raw(&self) -> Raw {
        self.raw
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the maker of the object promises that this function destroys it, and nothing else
        // does. An error on drop cannot be reported.
        unsafe { (self.destroy)(self.raw) };
    }
}

/// A cuSPARSE handle bound to a stream.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) library: &'static Cusparse,
    handle: Object,
    caches: Rc<Caches>,
}

impl Session {
    /// Creates a handle on the stream of `caches`, which must be a GPU's.
    pub(super) fn new(library: &'static Cusparse, caches: Rc<Caches>) -> Result<Self, Error> {
        let (functions, stream) = (&library.functions, caches.stream());
        let mut raw = null_mut();
        // SAFETY: it writes one handle. Making the stream has made the GPU's context current.
        let created = unsafe { (functions.create)(&mut raw) };
        done(library, stream, "create a handle of cuSPARSE", created)?;
        let handle = Object { raw, destroy: functions.destroy };
        // SAFETY: both are alive; the session keeps the stream alive for longer than the handle.
        let set = unsafe { (functions.set_stream)(handle.raw, stream.raw()) };
        done(library, stream, "hand its stream to cuSPARSE", set)?;
        Ok(Self { library, handle, caches })
    }

    /// The handle.
    pub(super) fn handle(&self) -> Raw {
        self.handle.raw
    }

    /// The stream of the work.
    pub(super) fn stream(&self) -> &Stream {
        self.caches.stream()
    }

    /// The stream, and the state of the caches at the beginning of timed work.
    pub(super) fn caches(&self) -> &Rc<Caches> {
        &self.caches
    }

    /// Turns the status of `action` into a result.
    pub(super) fn done(&self, action: &str, status: CusparseStatus) -> Result<(), Error> {
        done(self.library, self.stream(), action, status)
    }

    /// Creates an object with `create`.
    ///
    /// # Safety
    ///
    /// If `create` succeeds, it has written an object that `destroy` destroys.
    pub(super) unsafe fn make(
        &self,
        action: &str,
        create: impl FnOnce(RawOut) -> CusparseStatus,
        destroy: unsafe extern "C" fn(Raw) -> CusparseStatus,
    ) -> Result<Object, Error> {
        let mut raw = null_mut();
        let status = create(&mut raw);
        self.done(action, status)?;
        Ok(Object { raw, destroy })
    }

    /// Creates a descriptor of a vector. The vector must outlive it.
    pub(super) fn vector<T: Scalar>(&self, vector: &DeviceVec<T>) -> Result<Object, Error> {
        let f = &self.library.functions;
        let (len, start) = (vector.len() as i64, vector.address() as Raw);
        // SAFETY: `len` numbers of that type begin there.
        let create = |out| unsafe { (f.create_vector)(out, len, start, data_type::<T>()) };
        // SAFETY: it creates a descriptor of a vector.
        unsafe { self.make("describe a vector to cuSPARSE", create, f.destroy_vector) }
    }

    /// Creates a descriptor of several vectors of `len` elements. The vectors must outlive it.
    pub(super) fn dense<T: Scalar>(
        &self,
        vectors: &DeviceVec<T>,
        len: i64,
        vectors_shape: MultivectorShape,
    ) -> Result<Object, Error> {
        let (f, count) = (&self.library.spmm, vectors_shape.count as i64);
        let (order, stride) = match vectors_shape.layout {
            Layout::RowMajor => (ROW_MAJOR, count),
            Layout::ColumnMajor => (COLUMN_MAJOR, len),
        };
        let start = vectors.address() as Raw;
        // SAFETY: all elements of the vectors begin there, of that type.
        let create = |out| unsafe {
            (f.create_dense)(out, len, count, stride, start, data_type::<T>(), order)
        };
        // SAFETY: it creates a descriptor of a dense matrix.
        unsafe { self.make("describe vectors to cuSPARSE", create, f.destroy_dense) }
    }

    /// Creates a descriptor of a matrix. Its arrays must outlive it.
    pub(super) fn matrix<T: Scalar>(
        &self,
        shape: MatrixShape,
        arrays: &MatrixArrays,
    ) -> Result<Object, Error> {
        let f = &self.library.functions;
        let MatrixShape { nrows, ncols, nnz } = shape;
        let (value, base) = (data_type::<T>(), BASE_ZERO);
        // SAFETY: the arrays hold a matrix of that shape, in that format, with indices and values
        // of those types.
        let create = |out| unsafe {
            match arrays {
                MatrixArrays::Csr { offsets, columns, values, wide } => {
                    let (o, c, v) = (
                        offsets.address() as Raw,
                        columns.address() as Raw,
                        values.address() as Raw,
                    );
                    let index = index_type(*wide);
                    (f.create_csr)(out, nrows, ncols, nnz, o, c, v, index, index, base, value)
                }
                MatrixArrays::Coo { rows, columns, values, wide } => {
                    let (r, c, v) =
                        (rows.address() as Raw, columns.address() as Raw, values.address() as Raw);
                    (f.create_coo)(out, nrows, ncols, nnz, r, c, v, index_type(*wide), base, value)
                }
                MatrixArrays::SlicedEll { slots, height, offsets, columns, values, wide } => {
                    let (o, c, v) = (
                        offsets.address() as Raw,
                        columns.address() as Raw,
                        values.address() as Raw,
                    );
                    let (index, slots, height) = (index_type(*wide), *slots, *height);
                    (f.create_sliced_ell)(
                        out, nrows, ncols, nnz, slots, height, o, c, v, index, index, base, value,
                    )
                }
            }
        };
        // SAFETY: it creates a descriptor of a matrix.
        unsafe { self.make("describe the matrix to cuSPARSE", create, f.destroy_matrix) }
    }
}

/// Turns the status of `action` into a result.
fn done(
    library: &Cusparse,
    stream: &Stream,
    action: &str,
    status: CusparseStatus,
) -> Result<(), Error> {
    if status == 0 {
        return Ok(());
    }
    let (device, action) = (stream.device().to_string(), action.to_owned());
    Err(Error::Gpu { device, action, code: None, message: library.text(status) })
}

/// cuSPARSE's name of the scalar type.
pub(super) fn data_type<T: Scalar>() -> Enum {
    match T::KIND {
        ScalarKind::F32 => REAL_32,
        ScalarKind::F64 => REAL_64,
    }
}

fn index_type(wide: bool) -> Enum {
    if wide { INDEX_64 } else { INDEX_32 }
}

/// Address of a scalar, as cuSPARSE takes it.
pub(super) fn number<T: Scalar>(value: &T) -> Number {
    from_ref(value).cast()
}
