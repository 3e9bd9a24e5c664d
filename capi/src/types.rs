//! What both sides of the border know.

use std::ffi::{c_char, c_void};

/// 32-bit floating point numbers.
pub const SPARSEOP_F32: u32 = 1;
/// 64-bit floating point numbers.
pub const SPARSEOP_F64: u32 = 2;

/// The first GPU that can be used, else the CPU.
pub const SPARSEOP_DEVICE_AUTO: u32 = 0;
/// The CPU.
pub const SPARSEOP_DEVICE_CPU: u32 = 1;
/// The GPU of the given ordinal.
pub const SPARSEOP_DEVICE_CUDA: u32 = 2;

/// Only plans whose products repeat their bits.
pub const SPARSEOP_DETERMINISTIC: u32 = 1;
/// Values are to be updated: prepares for it, and chooses no plan that cannot.
pub const SPARSEOP_UPDATABLE: u32 = 2;
/// Transposed products are to come: prepares for them at once.
pub const SPARSEOP_TRANSPOSE: u32 = 4;

/// Element j of vector v at v * length + j: one vector after the other.
pub const SPARSEOP_COLUMN_MAJOR: u32 = 0;
/// Element j of vector v at j * count + v: vectors side by side, which is the faster way.
pub const SPARSEOP_ROW_MAJOR: u32 = 1;

/// How a call ended.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum sparseop_status {
    /// All went well.
    Ok = 0,
    /// A pointer is null that must not be, is not aligned, or does not lead to memory of the device.
    InvalidPointer = 1,
    /// A number is none of those that are allowed, or a text is not what it should be.
    InvalidArgument = 2,
    /// The arrays are not those of a matrix.
    InvalidMatrix = 3,
    /// A vector has the wrong length, or values are too few or too many.
    WrongLength = 4,
    /// There is no such device, or it cannot be used.
    DeviceUnavailable = 5,
    /// Something is on another device than the matrix.
    WrongDevice = 6,
    /// There is not enough memory, or the limit that was set is too low.
    OutOfMemory = 7,
    /// The GPU or its driver failed.
    GpuFailed = 8,
    /// The operator cannot do this; the message says what can be done.
    NotPossible = 9,
    /// Something else; the message says what.
    Failed = 10,
    /// A defect of this library, which is not to happen.
    Panicked = 11,
}

/// How an operator is made. All zero means that nothing is said, and is what NULL stands for.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sparseop_options {
    /// SPARSEOP_DEVICE_AUTO, SPARSEOP_DEVICE_CPU or SPARSEOP_DEVICE_CUDA.
    pub device: u32,
    /// Which GPU, counted from 0, with SPARSEOP_DEVICE_CUDA.
    pub ordinal: u32,
    /// How many products are to come; 0: not known.
    pub expected_calls: u64,
    /// Bytes that the packed matrix may take; 0: what is sensible.
    pub memory_limit: u64,
    /// SPARSEOP_DETERMINISTIC, SPARSEOP_UPDATABLE, SPARSEOP_TRANSPOSE, added up.
    pub flags: u32,
    /// A plan, such as "csr" or "sell(c:32,sigma:512)"; NULL: the one that is predicted to be the fastest.
    pub plan: *const c_char,
}

/// A matrix in compressed sparse rows, counted from 0: row i has the entries row_offsets[i] to row_offsets[i + 1] - 1.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sparseop_csr {
    /// Number of rows.
    pub nrows: usize,
    /// Number of columns.
    pub ncols: usize,
    /// Number of entries.
    pub nnz: usize,
    /// SPARSEOP_F32 or SPARSEOP_F64: what the values are.
    pub scalar: u32,
    /// 32 or 64: what the offsets are, signed or not.
    pub offset_bits: u32,
    /// nrows + 1 offsets.
    pub row_offsets: *const c_void,
    /// nnz columns.
    pub columns: *const i32,
    /// nnz values.
    pub values: *const c_void,
}
