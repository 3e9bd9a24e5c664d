//! Creation, destruction and properties of operators.

use crate::failure::{Failure, catch_panics};
use crate::memory::{check_place, copy_text, give, reference, text};
use crate::stream::sparseop_stream;
use crate::types::{
    SPARSEOP_DETERMINISTIC, SPARSEOP_DEVICE_AUTO, SPARSEOP_DEVICE_CPU, SPARSEOP_DEVICE_CUDA,
    SPARSEOP_F32, SPARSEOP_F64, SPARSEOP_PREDICT, SPARSEOP_TRANSPOSE, SPARSEOP_UPDATABLE,
    sparseop_csr, sparseop_options, sparseop_status,
};
use sparseop::device::{ForeignCsr, Offsets};
use sparseop::{Device, Scalar, SparseOp, SparseOpBuilder, Stream, Tuning};
use sparseop_status::InvalidArgument;
use std::ffi::c_char;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A sparse matrix, packed for repeated products. Any number of threads may multiply at the same
/// time; functions that modify the operator wait for them.
///
/// A child of fork may use operators on the CPU that its parent has created, and create others,
/// unless another thread of the parent was in a call at the time of the fork. The threads of the
/// library do not exist in the child: each of its threads computes alone, with the same results.
pub struct sparseop_operator(RwLock<Operator>);

/// An operator of either scalar type.
pub(crate) enum Operator {
    F32(SparseOp<f32>),
    F64(SparseOp<f64>),
}

/// Runs the same code for an operator of either scalar type.
macro_rules! either {
    ($operator:expr, $op:ident => $body:expr) => {
        match $operator {
            Operator::F32($op) => $body,
            Operator::F64($op) => $body,
        }
    };
}
pub(crate) use either;

impl sparseop_operator {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Operator> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Operator> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates an operator from a matrix in host memory, which is copied. `options` may be NULL.
///
/// # Safety
///
/// The arrays have the lengths given in `matrix`. `operator` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_create(
    matrix: *const sparseop_csr,
    options: *const sparseop_options,
    operator: *mut *mut sparseop_operator,
) -> sparseop_status {
    // SAFETY: the caller's promise.
    catch_panics(|| unsafe { create(matrix, None, options, operator) })
}

/// Creates an operator from a matrix in the memory of the GPU of the stream, after the work
/// enqueued there. The arrays are checked, analysed and, where possible, packed on the GPU; they
/// are not kept. `options` may be NULL; their device, if set, must be that GPU.
///
/// # Safety
///
/// The arrays have the lengths given in `matrix` and are not modified during the call. `operator`
/// has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_create_from_device(
    matrix: *const sparseop_csr,
    stream: *const sparseop_stream,
    options: *const sparseop_options,
    operator: *mut *mut sparseop_operator,
) -> sparseop_status {
    // SAFETY: the caller's promise.
    catch_panics(|| unsafe {
        create(matrix, Some(reference("stream", stream)?), options, operator)
    })
}

/// Destroys an operator. NULL is ignored.
///
/// # Safety
///
/// The operator was created by sparseop_create or sparseop_create_from_device and is not used any
/// more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_destroy(operator: *mut sparseop_operator) {
    catch_panics(|| {
        if !operator.is_null() {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(operator) });
        }
        Ok::<_, Failure>(())
    });
}

/// Numbers of rows, columns and entries; each pointer may be NULL.
///
/// # Safety
///
/// The operator is alive; each pointer is NULL or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_shape(
    operator: *const sparseop_operator,
    nrows: *mut usize,
    ncols: *mut usize,
    nnz: *mut usize,
) -> sparseop_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let operator = unsafe { reference("operator", operator)? }.read();
        let (rows, cols, entries) =
            either!(&*operator, op => (op.nrows(), op.ncols(), op.nnz() as usize));
        for (name, place, number) in
            [("nrows", nrows, rows), ("ncols", ncols, cols), ("nnz", nnz, entries)]
        {
            if !place.is_null() {
                // SAFETY: the caller's promise.
                unsafe { give(name, place, number)? };
            }
        }
        Ok(())
    })
}

/// Bytes of all packings and of the data for updates, in the memory of their device; 0 for NULL.
///
/// # Safety
///
/// The operator is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_memory_bytes(operator: *const sparseop_operator) -> u64 {
    let mut bytes = 0;
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let operator = unsafe { reference("operator", operator)? }.read();
        bytes = either!(&*operator, op => op.memory_bytes());
        Ok(())
    });
    bytes
}

/// Writes the plan of the operator, such as "sell(c:32,sigma:512)", to a buffer of `capacity`
/// bytes, truncated and NUL-terminated. Returns the length of the whole text without the NUL, as
/// snprintf does; a buffer of NULL and 0 asks for the length alone. 0 for an operator of NULL.
///
/// # Safety
///
/// The operator is NULL or alive, and the buffer has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_plan(
    operator: *const sparseop_operator,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        write_property(
            operator,
            buffer,
            capacity,
            |operator| either!(operator, op => op.plan().to_string()),
        )
    }
}

/// Writes the explanation of the choice, in lines of text; otherwise as sparseop_plan.
///
/// # Safety
///
/// As of sparseop_plan.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_explain(
    operator: *const sparseop_operator,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        write_property(
            operator,
            buffer,
            capacity,
            |operator| either!(operator, op => op.explain().to_string()),
        )
    }
}

/// Writes a text property of an operator.
///
/// # Safety
///
/// As for `sparseop_plan`.
unsafe fn write_property(
    operator: *const sparseop_operator,
    buffer: *mut c_char,
    capacity: usize,
    what: impl FnOnce(&Operator) -> String,
) -> usize {
    let mut len = 0;
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let operator = unsafe { reference("operator", operator)? }.read();
        // SAFETY: as above.
        len = unsafe { copy_text(&what(&operator), buffer, capacity) };
        Ok(())
    });
    len
}

/// Creates an operator from arrays in host memory, or in that of the stream's GPU.
///
/// # Safety
///
/// As of `sparseop_create` and `sparseop_create_from_device`.
unsafe fn create(
    matrix: *const sparseop_csr,
    stream: Option<&sparseop_stream>,
    options: *const sparseop_options,
    operator: *mut *mut sparseop_operator,
) -> Result<(), Failure> {
    check_place("operator", operator)?;
    // SAFETY: the caller's promise.
    unsafe { give("operator", operator, std::ptr::null_mut())? };
    // SAFETY: as above.
    let matrix = unsafe { reference("matrix", matrix)? };
    // SAFETY: as above.
    let settings = unsafe { settings(options)? };
    // SAFETY: as above.
    let made = unsafe {
        match matrix.scalar {
            SPARSEOP_F32 => Operator::F32(build(matrix, stream, &settings)?),
            SPARSEOP_F64 => Operator::F64(build(matrix, stream, &settings)?),
            other => {
                let message =
                    format!("`scalar` is {other}; it may be SPARSEOP_F32 or SPARSEOP_F64");
                return Err(Failure::new(InvalidArgument, message));
            }
        }
    };
    sparseop::print_file_warnings();
    // SAFETY: as above.
    unsafe {
        give("operator", operator, Box::into_raw(Box::new(sparseop_operator(RwLock::new(made)))))
    }
}

/// Builds an operator of one scalar type.
///
/// # Safety
///
/// As of `create`.
unsafe fn build<T: Scalar>(
    matrix: &sparseop_csr,
    stream: Option<&sparseop_stream>,
    settings: &SparseOpBuilder,
) -> Result<SparseOp<T>, Failure> {
    let row_ptr = matrix.row_offsets.expose_provenance() as u64;
    let row_ptr = match matrix.offset_bits {
        32 => Offsets::Bits32(row_ptr),
        64 => Offsets::Bits64(row_ptr),
        other => {
            let message = format!("`offset_bits` is {other}; it may be 32 or 64");
            return Err(Failure::new(InvalidArgument, message));
        }
    };
    let (columns, values) = (matrix.columns.expose_provenance(), matrix.values.expose_provenance());
    let device = stream.map_or(Device::Cpu, |stream| stream.0.device());
    let shape = (matrix.nrows, matrix.ncols);
    // SAFETY: the caller's promise.
    let arrays = unsafe {
        ForeignCsr::<T>::from_raw(
            &device,
            shape,
            matrix.nnz,
            row_ptr,
            columns as u64,
            values as u64,
        )?
    };
    Ok(match stream {
        Some(stream) => settings.build_from_device(&stream.0, &arrays)?,
        None => settings.build(&arrays.to_csr(&Stream::new(&Device::Cpu)?)?)?,
    })
}

/// Builder with the given options.
///
/// # Safety
///
/// As of `create`.
unsafe fn settings(options: *const sparseop_options) -> Result<SparseOpBuilder, Failure> {
    let mut settings = SparseOpBuilder::new();
    if options.is_null() {
        return Ok(settings);
    }
    // SAFETY: the caller's promise.
    let options = unsafe { reference("options", options)? };
    settings = match options.device {
        SPARSEOP_DEVICE_AUTO => settings,
        SPARSEOP_DEVICE_CPU => settings.device(Device::Cpu),
        SPARSEOP_DEVICE_CUDA => settings.device(Device::cuda(options.ordinal as usize)?),
        other => {
            let message = format!(
                "`device` is {other}; it may be SPARSEOP_DEVICE_AUTO, SPARSEOP_DEVICE_CPU or \
                 SPARSEOP_DEVICE_CUDA"
            );
            return Err(Failure::new(InvalidArgument, message));
        }
    };
    let known = SPARSEOP_DETERMINISTIC | SPARSEOP_UPDATABLE | SPARSEOP_TRANSPOSE | SPARSEOP_PREDICT;
    if options.flags & !known != 0 {
        return Err(Failure::new(
            InvalidArgument,
            format!("`flags` has unknown bits {}", options.flags & !known),
        ));
    }
    let has = |flag| options.flags & flag != 0;
    settings =
        settings.deterministic(has(SPARSEOP_DETERMINISTIC)).updatable(has(SPARSEOP_UPDATABLE));
    settings = settings.transpose(has(SPARSEOP_TRANSPOSE));
    if has(SPARSEOP_PREDICT) {
        settings = settings.tuning(Tuning::Predict);
    }
    if options.expected_calls != 0 {
        settings = settings.expected_calls(options.expected_calls);
    }
    if options.memory_limit != 0 {
        settings = settings.memory_limit(options.memory_limit);
    }
    if !options.plan.is_null() {
        // SAFETY: the caller's promise.
        let plan = unsafe { text("plan", options.plan)? };
        settings = settings.tuning(Tuning::Fixed(plan.parse()?));
    }
    Ok(settings)
}
