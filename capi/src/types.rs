//! Types and constants of the interface.

use std::ffi::{c_char, c_void};

/// 32-bit floating point numbers.
pub const SPARSEOP_F32: u32 = 1;
/// 64-bit floating point numbers.
pub const SPARSEOP_F64: u32 = 2;

/// The first usable GPU, otherwise the CPU.
pub const SPARSEOP_DEVICE_AUTO: u32 = 0;
/// The CPU.
pub const SPARSEOP_DEVICE_CPU: u32 = 1;
/// The GPU of the given ordinal.
pub const SPARSEOP_DEVICE_CUDA: u32 = 2;

/// Restricts the choice to plans with bitwise reproducible products.
pub const SPARSEOP_DETERMINISTIC: u32 = 1;
/// Prepares for updates of the values, and excludes plans without them.
pub const SPARSEOP_UPDATABLE: u32 = 2;
/// Prepares for transposed products when the operator is created.
pub const SPARSEOP_TRANSPOSE: u32 = 4;
/// Chooses the plan by prediction alone: no product is timed, and the same matrix gets the same
/// plan.
pub const SPARSEOP_PREDICT: u32 = 8;

/// Element j of vector v at v * length + j.
pub const SPARSEOP_COLUMN_MAJOR: u32 = 0;
/// Element j of vector v at j * count + v; the faster layout.
pub const SPARSEOP_ROW_MAJOR: u32 = 1;

/// Status of a call.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum sparseop_status {
    /// Success.
    Ok = 0,
    /// A pointer is null or misaligned, or is not in the memory of the device.
    InvalidPointer = 1,
    /// A number or a text is not one of the allowed values.
    InvalidArgument = 2,
    /// The arrays are not a valid matrix.
    InvalidMatrix = 3,
    /// A vector or the array of values has the wrong length.
    WrongLength = 4,
    /// The device does not exist or cannot be used.
    DeviceUnavailable = 5,
    /// A vector or matrix is on another device than the operator.
    WrongDevice = 6,
    /// Not enough memory, or the memory limit is too low.
    OutOfMemory = 7,
    /// The GPU or its driver failed.
    GpuFailed = 8,
    /// The operation is not supported by the plan; the message names alternatives.
    NotPossible = 9,
    /// Another failure; the message describes it.
    Failed = 10,
    /// A panic: a defect of this library.
    Panicked = 11,
}

/// Options of an operator. Zero selects the default of each field; NULL is all zero.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sparseop_options {
    /// SPARSEOP_DEVICE_AUTO, SPARSEOP_DEVICE_CPU or SPARSEOP_DEVICE_CUDA.
    pub device: u32,
    /// Ordinal of the GPU, from 0, with SPARSEOP_DEVICE_CUDA.
    pub ordinal: u32,
    /// Expected number of products; 0: unknown.
    pub expected_calls: u64,
    /// Memory limit of the packed matrix in bytes; 0: the default.
    pub memory_limit: u64,
    /// Sum of SPARSEOP_DETERMINISTIC, SPARSEOP_UPDATABLE, SPARSEOP_TRANSPOSE and SPARSEOP_PREDICT.
    pub flags: u32,
    /// Plan, such as "csr" or "sell(c:32,sigma:512)"; NULL: the plan with the least predicted time,
    /// checked with at most 30 products and 2 % of the expected ones (see SPARSEOP_PREDICT).
    pub plan: *const c_char,
}

/// A matrix in compressed sparse rows (CSR), counted from 0: row i has the entries row_offsets[i]
/// to row_offsets[i + 1] - 1.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sparseop_csr {
    /// Number of rows.
    pub nrows: usize,
    /// Number of columns.
    pub ncols: usize,
    /// Number of entries.
    pub nnz: usize,
    /// Type of the values: SPARSEOP_F32 or SPARSEOP_F64.
    pub scalar: u32,
    /// Bits of an offset, signed or unsigned: 32 or 64.
    pub offset_bits: u32,
    /// nrows + 1 offsets.
    pub row_offsets: *const c_void,
    /// nnz column indices.
    pub columns: *const i32,
    /// nnz values.
    pub values: *const c_void,
}
