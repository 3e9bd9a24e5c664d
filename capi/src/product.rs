//! Products, and updates of the values.

use crate::failure::{Failure, catch_panics};
use crate::memory::{check_apart, input, output, reference};
use crate::operator::{Operator, either, sparseop_operator};
use crate::stream::sparseop_stream;
use crate::types::sparseop_status::InvalidArgument;
use crate::types::{SPARSEOP_COLUMN_MAJOR, SPARSEOP_ROW_MAJOR, sparseop_status};
use sparseop::device::DeviceView;
use sparseop::{Device, DeviceVec, Layout, Multivector, Scalar, SparseOp, Stream};
use std::ffi::c_void;

/// Kind of a product.
#[derive(Clone, Copy)]
enum Product {
    Plain,
    Scaled { alpha: f64, beta: f64 },
    Transposed,
    SpmmMeans { count: usize, layout: Layout },
}

/// Vectors of a product, with elements of the operator's scalar type.
#[derive(Clone, Copy)]
struct ProductVectors {
    x: *const c_void,
    x_len: usize,
    y: *mut c_void,
    y_len: usize,
}

/// y = A x with vectors in host memory, of the operator's scalar type: ncols elements of `x` and
/// nrows of `y`. `y` is overwritten without being read.
///
/// # Safety
///
/// The operator is alive, and the vectors have as many elements as stated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_apply(
    operator: *const sparseop_operator,
    x: *const c_void,
    x_len: usize,
    y: *mut c_void,
    y_len: usize,
) -> sparseop_status {
    // SAFETY: the caller's promise.
    catch_panics(|| unsafe {
        on_host(operator, Product::Plain, ProductVectors { x, x_len, y, y_len })
    })
}

/// y = alpha A x + beta y, as in BLAS: `y` is not read if beta = 0. Otherwise as sparseop_apply.
///
/// # Safety
///
/// As of sparseop_apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_apply_with(
    operator: *const sparseop_operator,
    alpha: f64,
    x: *const c_void,
    x_len: usize,
    beta: f64,
    y: *mut c_void,
    y_len: usize,
) -> sparseop_status {
    let product = Product::Scaled { alpha, beta };
    // SAFETY: the caller's promise.
    catch_panics(|| unsafe { on_host(operator, product, ProductVectors { x, x_len, y, y_len }) })
}

/// y = A^T x: `x` has nrows elements and `y` has ncols. The transposed matrix is packed at the
/// first such product, or at creation with SPARSEOP_TRANSPOSE. Otherwise as sparseop_apply.
///
/// # Safety
///
/// As of sparseop_apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_apply_transpose(
    operator: *const sparseop_operator,
    x: *const c_void,
    x_len: usize,
    y: *mut c_void,
    y_len: usize,
) -> sparseop_status {
    // SAFETY: the caller's promise.
    catch_panics(|| unsafe {
        on_host(operator, Product::Transposed, ProductVectors { x, x_len, y, y_len })
    })
}

/// Y = A X for `count` vectors (SpMM), in SPARSEOP_ROW_MAJOR or SPARSEOP_COLUMN_MAJOR; the
/// lengths are those of all vectors together. Many plans pack the matrix a second time at the
/// first such product, on the CPU not for 2 vectors in SPARSEOP_COLUMN_MAJOR and a matrix with
/// short rows of near columns, and csr and psell on a GPU, depending on the matrix and the
/// layout, at the first with more than 4, 8 or 32 vectors in f32, or 2, 4 or 16 in f64. This
/// packing counts towards the memory limit: if it does not fit, csr and psell do without it, and
/// with other plans the status is SPARSEOP_STATUS_OUT_OF_MEMORY. Otherwise as sparseop_apply.
///
/// # Safety
///
/// As of sparseop_apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_apply_multi(
    operator: *const sparseop_operator,
    count: usize,
    layout: u32,
    x: *const c_void,
    x_len: usize,
    y: *mut c_void,
    y_len: usize,
) -> sparseop_status {
    catch_panics(|| {
        let product = spmm(count, layout)?;
        // SAFETY: the caller's promise.
        unsafe { on_host(operator, product, ProductVectors { x, x_len, y, y_len }) }
    })
}

/// y = A x with vectors in the memory of the operator's GPU, enqueued on the stream: neither
/// copied nor waited for. For an operator on the CPU the stream is NULL and the vectors are in
/// host memory.
///
/// # Safety
///
/// The operator and the stream are alive; the vectors have as many elements as stated and live
/// until the product is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_apply_device(
    operator: *const sparseop_operator,
    stream: *const sparseop_stream,
    x: *const c_void,
    x_len: usize,
    y: *mut c_void,
    y_len: usize,
) -> sparseop_status {
    // SAFETY: the caller's promise.
    catch_panics(|| unsafe {
        on_device(operator, stream, Product::Plain, ProductVectors { x, x_len, y, y_len })
    })
}

/// y = alpha A x + beta y; otherwise as sparseop_apply_device.
///
/// # Safety
///
/// As of sparseop_apply_device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_apply_with_device(
    operator: *const sparseop_operator,
    stream: *const sparseop_stream,
    alpha: f64,
    x: *const c_void,
    x_len: usize,
    beta: f64,
    y: *mut c_void,
    y_len: usize,
) -> sparseop_status {
    let product = Product::Scaled { alpha, beta };
    // SAFETY: the caller's promise.
    catch_panics(|| unsafe {
        on_device(operator, stream, product, ProductVectors { x, x_len, y, y_len })
    })
}

/// y = A^T x; otherwise as sparseop_apply_device and sparseop_apply_transpose.
///
/// # Safety
///
/// As of sparseop_apply_device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_apply_transpose_device(
    operator: *const sparseop_operator,
    stream: *const sparseop_stream,
    x: *const c_void,
    x_len: usize,
    y: *mut c_void,
    y_len: usize,
) -> sparseop_status {
    // SAFETY: the caller's promise.
    catch_panics(|| unsafe {
        on_device(operator, stream, Product::Transposed, ProductVectors { x, x_len, y, y_len })
    })
}

/// Y = A X for `count` vectors; otherwise as sparseop_apply_device and sparseop_apply_multi. A
/// second packing is waited for, and is no part of a graph: make the first such product before
/// the stream is captured.
///
/// # Safety
///
/// As of sparseop_apply_device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_apply_multi_device(
    operator: *const sparseop_operator,
    stream: *const sparseop_stream,
    count: usize,
    layout: u32,
    x: *const c_void,
    x_len: usize,
    y: *mut c_void,
    y_len: usize,
) -> sparseop_status {
    catch_panics(|| {
        let product = spmm(count, layout)?;
        // SAFETY: the caller's promise.
        unsafe { on_device(operator, stream, product, ProductVectors { x, x_len, y, y_len }) }
    })
}

/// Replaces the values of all entries, in the order of the arrays of the matrix; the pattern
/// stays. See SPARSEOP_UPDATABLE.
///
/// # Safety
///
/// The operator is alive, and there are as many values as stated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_update_values(
    operator: *mut sparseop_operator,
    values: *const c_void,
    len: usize,
) -> sparseop_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let mut operator = unsafe { reference("operator", operator)? }.write();
        // SAFETY: as above.
        either!(&mut *operator, op => op.update_values(unsafe { input("values", values, len)? })?);
        Ok(())
    })
}

/// Replaces the values by an array in the memory of the operator's GPU, enqueued on the stream.
/// Otherwise as sparseop_update_values and sparseop_apply_device.
///
/// # Safety
///
/// As of sparseop_apply_device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_update_values_device(
    operator: *mut sparseop_operator,
    stream: *const sparseop_stream,
    values: *const c_void,
    len: usize,
) -> sparseop_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let mut operator = unsafe { reference("operator", operator)? }.write();
        either!(&mut *operator, op => {
            // SAFETY: as above.
            let (stream, values) = unsafe
                { (stream_for(op.device(), stream)?, view(op, values, len)?) };
            op.update_values_device(&stream, &values)?;
        });
        Ok(())
    })
}

fn spmm(count: usize, layout: u32) -> Result<Product, Failure> {
    let layout = match layout {
        SPARSEOP_ROW_MAJOR => Layout::RowMajor,
        SPARSEOP_COLUMN_MAJOR => Layout::ColumnMajor,
        other => {
            let message = format!(
                "`layout` is {other}; it may be SPARSEOP_ROW_MAJOR or SPARSEOP_COLUMN_MAJOR"
            );
            return Err(Failure::new(InvalidArgument, message));
        }
    };
    Ok(Product::SpmmMeans { count, layout })
}

/// # Safety
///
/// As of `sparseop_apply`.
unsafe fn on_host(
    operator: *const sparseop_operator,
    product: Product,
    vectors: ProductVectors,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let operator = unsafe { reference("operator", operator)? }.read();
    // SAFETY: as above.
    either!(&*operator, op => unsafe { multiply(op, product, vectors) })
}

/// # Safety
///
/// As of `sparseop_apply`.
unsafe fn multiply<T: Scalar>(
    op: &SparseOp<T>,
    product: Product,
    ProductVectors { x, x_len, y, y_len }: ProductVectors,
) -> Result<(), Failure> {
    check_apart::<T>(x, x_len, y, y_len)?;
    // SAFETY: the caller's promise, and they have nothing in common.
    let (x, y) = unsafe { (input::<T>("x", x, x_len)?, output::<T>("y", y, y_len)?) };
    match product {
        Product::Plain => op.apply(x, y)?,
        Product::Scaled { alpha, beta } => {
            op.apply_with(T::from_f64(alpha), x, T::from_f64(beta), y)?
        }
        Product::Transposed => op.apply_transpose(x, y)?,
        Product::SpmmMeans { count, layout } => {
            let y = Multivector::new(y, count, layout);
            op.apply_multi(Multivector::new(x, count, layout), y)?;
        }
    }
    Ok(())
}

/// # Safety
///
/// As of `sparseop_apply_device`.
unsafe fn on_device(
    operator: *const sparseop_operator,
    stream: *const sparseop_stream,
    product: Product,
    vectors: ProductVectors,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let operator = unsafe { reference("operator", operator)? }.read();
    either!(&*operator, op => {
        // SAFETY: as above.
        let stream = unsafe { stream_for(op.device(), stream)? };
        // SAFETY: as above.
        unsafe { enqueue(op, &stream, product, vectors) }
    })
}

/// # Safety
///
/// As of `sparseop_apply_device`.
unsafe fn enqueue<T: Scalar>(
    op: &SparseOp<T>,
    stream: &Stream,
    product: Product,
    ProductVectors { x, x_len, y, y_len }: ProductVectors,
) -> Result<(), Failure> {
    check_apart::<T>(x, x_len, y, y_len)?;
    // SAFETY: the caller's promise, and they have nothing in common.
    let (x, mut y) = unsafe {
        let y = y.expose_provenance() as u64;
        (view(op, x, x_len)?, DeviceVec::<T>::from_raw(op.device(), y, y_len)?)
    };
    match product {
        Product::Plain => op.apply_device(stream, &x, &mut y)?,
        Product::Scaled { alpha, beta } => {
            op.apply_device_with(stream, T::from_f64(alpha), &x, T::from_f64(beta), &mut y)?;
        }
        Product::Transposed => op.apply_transpose_device(stream, &x, &mut y)?,
        Product::SpmmMeans { count, layout } => {
            let of_y = Multivector::new(&mut y, count, layout);
            op.apply_multi_device(stream, Multivector::new(&x, count, layout), of_y)?;
        }
    }
    Ok(())
}

/// An input vector on the operator's device.
///
/// # Safety
///
/// As of `sparseop_apply_device`.
unsafe fn view<T: Scalar>(
    op: &SparseOp<T>,
    pointer: *const c_void,
    len: usize,
) -> Result<DeviceView<T>, Failure> {
    // SAFETY: the caller's promise.
    Ok(unsafe { DeviceView::from_raw(op.device(), pointer.expose_provenance() as u64, len)? })
}

/// Stream of a product; may be absent on the CPU.
///
/// # Safety
///
/// The stream is NULL or alive.
unsafe fn stream_for(device: &Device, stream: *const sparseop_stream) -> Result<Stream, Failure> {
    if stream.is_null() && *device == Device::Cpu {
        return Ok(Stream::new(device)?);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { reference("stream", stream)? }.0.clone())
}
