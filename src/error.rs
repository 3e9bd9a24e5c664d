//! The error type of the library.

mod kind;
mod printable;
mod suggestion;

pub use kind::ErrorKind;
pub use printable::printable;
pub(crate) use suggestion::suggestion;

use crate::Precision;
use std::path::{Path, PathBuf};

/// All errors of the library. Each names the attempted action, its object, and a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The arrays handed to a matrix constructor do not describe a matrix.
    #[error("not a valid {format} matrix: {message}")]
    InvalidMatrix {
        /// Layout that was checked: `CSR`, `triplets`, `sprs`.
        format: &'static str,
        /// The defect, with its position.
        message: String,
    },
    /// A vector has the wrong length.
    #[error(
        "vector `{vector}` has {found} elements, but the matrix is {nrows} x {ncols} and needs \
         {expected}"
    )]
    VectorLength {
        /// `x` or `y`.
        vector: &'static str,
        /// Number of elements that the product needs.
        expected: usize,
        /// Number of elements passed.
        found: usize,
        /// Rows of the matrix.
        nrows: usize,
        /// Columns of the matrix.
        ncols: usize,
    },
    /// A multivector has the wrong length.
    #[error(
        "`{vectors}` has {found} elements, but {count} vectors for a matrix of {nrows} x {ncols} \
         have {count} x {len}"
    )]
    VectorsLength {
        /// `x` or `y`.
        vectors: &'static str,
        /// Number of vectors.
        count: usize,
        /// Number of elements that each vector needs.
        len: usize,
        /// Number of elements passed.
        found: usize,
        /// Rows of the matrix.
        nrows: usize,
        /// Columns of the matrix.
        ncols: usize,
    },
    /// The multivectors of a product differ in number or layout of their vectors.
    #[error("x has {x} and y has {y}; both need the same number of vectors in the same layout")]
    MultivectorMismatch {
        /// Number and layout of the vectors of `x`.
        x: String,
        /// Number and layout of the vectors of `y`.
        y: String,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", printed(path))]
    Io {
        /// `open`, `read`, `write`, …
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A Matrix Market file is malformed, or holds data that this library does not support.
    #[error(
        "{}{}: {}",
        origin(path),
        line.map(|l| format!(":{l}")).unwrap_or_default(),
        printable(message)
    )]
    Market {
        /// The file; empty for text that is not from a file.
        path: PathBuf,
        /// Line number, counted from 1, if the error belongs to a line.
        line: Option<u64>,
        /// The defect, and the expected content.
        message: String,
    },
    /// A text is not a valid plan.
    #[error("`{}` is not a plan: {}", printable(text), printable(message))]
    PlanText {
        /// The text as passed.
        text: String,
        /// The defect, with the nearest spelling if there is one.
        message: String,
    },
    /// A text is not a valid gallery matrix.
    #[error("`{}` is not a gallery matrix: {}", printable(text), printable(message))]
    GalleryText {
        /// The text as passed.
        text: String,
        /// The defect, with the nearest spelling if there is one.
        message: String,
    },
    /// A plan needs more memory than allowed; nothing was allocated.
    #[error(
        "plan {plan} needs {needed} bytes for the packed matrix, but the limit is {limit} bytes; \
         raise the memory limit or take a plan that needs less"
    )]
    MemoryLimit {
        /// Spelling of the plan.
        plan: String,
        /// Bytes of the packed matrix.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// No plan fits the memory limit; nothing was allocated.
    #[error(
        "no plan fits the memory limit of {limit} bytes: {plan} needs the least of all, {needed} \
         bytes for the packed matrix; raise the limit to at least that"
    )]
    NoPlanFits {
        /// Spelling of the plan that needs the least.
        plan: String,
        /// Bytes of its packed matrix.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// Deterministic products were requested, but the bits of this plan's products may differ.
    #[error(
        "the bits of plan {plan} may differ from product to product, but deterministic products \
         were asked for; \
         choose another plan or let `auto` choose one"
    )]
    NotDeterministic {
        /// Spelling of the plan.
        plan: String,
    },
    /// The parameters of a plan do not permit this matrix; nothing was packed.
    #[error("plan {plan} cannot hold this matrix: {message}")]
    PlanLimit {
        /// Spelling of the plan.
        plan: String,
        /// The quantity that is too large, and the parameter to change.
        message: String,
    },
    /// The requested device is not available.
    #[error("device `{}` is not available: {}", printable(device), printable(reason))]
    DeviceUnavailable {
        /// Spelling of the device.
        device: String,
        /// The reason, in one line.
        reason: String,
    },
    /// An operand of a product is on another device than the matrix.
    #[error("`{what}` is on {found}, but it must be on {expected}; create it there")]
    WrongDevice {
        /// `x`, `y` or `stream`.
        what: &'static str,
        /// The device of the matrix.
        expected: String,
        /// The device of the operand.
        found: String,
    },
    /// Memory allocated by another library cannot be used.
    #[error("the {what} at {address:#x} cannot be used on {device}: {message}")]
    ForeignMemory {
        /// `vector`, `row_ptr`, `col_idx` or `values`.
        what: &'static str,
        /// The address as passed.
        address: u64,
        /// Spelling of the device.
        device: String,
        /// The reason, in one line.
        message: String,
    },
    /// The two sides of a copy differ in length.
    #[error("cannot copy {found} elements: the vector has {expected}")]
    CopyLength {
        /// Number of elements of the vector.
        expected: usize,
        /// Number of elements of the slice.
        found: usize,
    },
    /// A matrix with new values for an operator has another pattern.
    #[error(
        "the matrix, {nrows} x {ncols} with {nnz} entries, does not have the pattern that the \
         operator was built for, which has {expected} entries; build another operator"
    )]
    OtherPattern {
        /// Rows of the matrix.
        nrows: usize,
        /// Columns of the matrix.
        ncols: usize,
        /// Entries of the matrix.
        nnz: usize,
        /// Entries of the operator's matrix.
        expected: usize,
    },
    /// The number of new values for an operator is wrong.
    #[error(
        "{found} values were given for {expected} entries; give one for each, in the order of \
         `to_csr`"
    )]
    ValuesLength {
        /// Number of entries of the matrix.
        expected: usize,
        /// Number of values passed.
        found: usize,
    },
    /// A product needs a copy of the matrix, which launches of a graph would not update.
    #[error(
        "{product} need a copy of the matrix, but a graph updates the values of the \
         operator and not of copies; \
         update them outside of graphs, or build an operator for these products alone"
    )]
    UpdatedByGraph {
        /// `SpMMs` or `products with the transposed matrix`.
        product: &'static str,
    },
    /// The values of a packed matrix cannot be replaced.
    #[error(
        "the values of plan {plan} cannot be replaced: {reason}; build the operator anew, or with \
         `updatable(true)`, which keeps `auto` \
         from such plans"
    )]
    NotUpdatable {
        /// Spelling of the plan.
        plan: String,
        /// The reason.
        reason: &'static str,
    },
    /// A value cannot be rounded to a precision: it is finite and would become infinite.
    #[error(
        "the value of entry {entry}{} is {value:e}, beyond the largest finite number of \
         {precision}, {:e}; {}",
        position(place), precision.largest(), remedy(*precision)
    )]
    ValueRange {
        /// Index of the entry in the order of `to_csr`, counted from 0.
        entry: usize,
        /// Row and column of the entry, counted from 0, if known.
        place: Option<(usize, usize)>,
        /// Value of the entry.
        value: f64,
        /// Precision that the value was rounded to.
        precision: Precision,
    },
    /// A new value for an operator is not representable in the precision of its values.
    #[error(
        "the value of entry {entry} is {value}, which is not representable in {precision}, the \
         precision of stored values; build the operator with `value_precision`, which rounds, or \
         with another plan"
    )]
    ValueInexact {
        /// Index of the entry in the order of `to_csr`, counted from 0.
        entry: usize,
        /// Value of the entry.
        value: f64,
        /// Precision of the stored values.
        precision: Precision,
    },
    /// A row or column is out of bounds.
    #[error(
        "there is no entry at row {row}, column {col}: the matrix is {nrows} x {ncols}, counted \
         from 0"
    )]
    OutOfBounds {
        /// The requested row.
        row: usize,
        /// The requested column.
        col: usize,
        /// Rows of the matrix.
        nrows: usize,
        /// Columns of the matrix.
        ncols: usize,
    },
    /// The packed matrix does not support access to single entries.
    #[error("plan {plan} on {device} does not let single entries be found: {reason}")]
    NoAccess {
        /// Spelling of the plan.
        plan: String,
        /// Spelling of the device.
        device: String,
        /// The reason and a remedy.
        reason: &'static str,
    },
    /// No room for another entry.
    #[error("plan {plan} has no room for an entry at row {row}, column {col}: {reason}")]
    NoRoom {
        /// Spelling of the plan.
        plan: String,
        /// Row of the entry.
        row: usize,
        /// Column of the entry.
        col: usize,
        /// The reason, and formats that have room.
        reason: &'static str,
    },
    /// The host does not have enough memory; nothing was allocated.
    #[error(
        "{needed} bytes of memory are needed and cannot be allocated; this process may use {limit} \
         bytes in all"
    )]
    HostMemory {
        /// Number of bytes requested.
        needed: u64,
        /// Least of the memory of the machine and the limits of the process and its control groups.
        limit: u64,
    },
    /// The GPU does not have enough free memory.
    #[error(
        "{device} has {free} bytes of memory left, but {needed} are needed; free some, or use the \
         CPU"
    )]
    GpuMemory {
        /// Spelling of the device.
        device: String,
        /// Number of bytes requested.
        needed: u64,
        /// Number of bytes free.
        free: u64,
    },
    /// The GPU or its driver failed.
    #[error("{device} could not {action}: {}{}", printable(message), kind::way_out(*code))]
    Gpu {
        /// Spelling of the device.
        device: String,
        /// The attempted action.
        action: String,
        /// The driver's `CUresult`; none if the driver was not asked.
        code: Option<u32>,
        /// The message of the driver.
        message: String,
    },
    /// A GPU kernel cannot be compiled or loaded.
    #[error("kernels/{kernel}.cu cannot be compiled for {architecture}: {}", printable(message))]
    KernelCompile {
        /// Name of the kernel file, without its extension.
        kernel: &'static str,
        /// Architecture, such as `sm_90`.
        architecture: String,
        /// The reason, in one line.
        message: String,
        /// The complete log of the compiler; empty if no compiler ran.
        log: String,
    },
    /// A product that cannot be captured was to be captured in a graph.
    #[error("plan {plan} cannot be captured in a graph: {reason}; choose another plan")]
    NotCapturable {
        /// Spelling of the plan.
        plan: String,
        /// The reason.
        reason: &'static str,
    },
    /// The operands of a fused vector pass do not fit together.
    #[error("this pass over vectors cannot be done: {message}")]
    VectorPass {
        /// The mismatch.
        message: String,
    },
    /// A solver or iteration was given a matrix that is not square.
    #[error("{method} needs a square matrix, and this one is {nrows} x {ncols}")]
    NotSquare {
        /// Name of the method.
        method: &'static str,
        /// Rows of the matrix.
        nrows: usize,
        /// Columns of the matrix.
        ncols: usize,
    },
    /// An input vector has an element that is not finite.
    #[error(
        "element {index} of vector `{vector}` is {value}; every element must be a finite number"
    )]
    NotFinite {
        /// `b`, `x`, `diagonal`, …
        vector: &'static str,
        /// Index of the first such element, counted from 0.
        index: usize,
        /// Value of the element.
        value: f64,
    },
    /// The diagonal has an element that a preconditioner cannot divide by.
    #[error(
        "the diagonal is 0 in row {row}, so that there is no Jacobi preconditioner; solve without \
         one, or reorder the rows"
    )]
    ZeroDiagonal {
        /// The first such row, counted from 0.
        row: usize,
    },
    /// A setting of a solver is invalid.
    #[error("{method}: {message}")]
    SolverSetting {
        /// Name of the method.
        method: &'static str,
        /// The defect, and the valid settings.
        message: String,
    },
    /// An iteration has ended without reaching the requested accuracy.
    #[error(
        "{method} has not converged after {iterations} iterations, at a relative residual of \
         {residual:.3e}: {reason}"
    )]
    NotConverged {
        /// Name of the method.
        method: &'static str,
        /// Number of iterations.
        iterations: usize,
        /// ‖b − A x‖ / ‖b‖ of the best iterate.
        residual: f64,
        /// The reason why it ended, and a remedy.
        reason: &'static str,
    },
    /// A matrix cannot be distributed in this way.
    #[error("not a valid partition: {message}")]
    Partition {
        /// The defect, with its position, and a remedy.
        message: String,
    },
    /// The parts of a distributed operator do not belong together.
    #[error("the ranks differ: {message}")]
    RanksDiffer {
        /// Difference, with the ranks, and a remedy.
        message: String,
    },
    /// Another part of a distributed operator has failed.
    #[error("rank {rank} has failed: {}", printable(message))]
    RankFailed {
        /// Number of the part, from 0.
        rank: usize,
        /// Its error.
        message: String,
    },
    /// Messages among the parts of a distributed operator fail or do not arrive in time.
    #[error("communication between ranks: {}", printable(message))]
    Communication {
        /// The failure, and a remedy.
        message: String,
    },
    /// A tuning profile cannot be used.
    #[error("profile {}: {}", printable(origin), printable(message))]
    Profile {
        /// The file, or the name of a built-in profile.
        origin: String,
        /// The defect and a remedy.
        message: String,
    },
}

impl Error {
    /// Wraps an error of the operating system with the file and the action.
    pub(crate) fn io(action: &'static str, path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Self::Io { action, path: path.as_ref().to_owned(), source }
    }
}

/// Describes the position of an entry in words.
fn position(place: &Option<(usize, usize)>) -> String {
    place.map(|(row, col)| format!(", at row {row} and column {col},")).unwrap_or_default()
}

/// Remedy for a value beyond the range of a precision.
fn remedy(precision: Precision) -> &'static str {
    match precision {
        Precision::F16 => "scale the matrix, or choose bf16, which has the range of f32",
        Precision::Bf16 | Precision::F32 => "scale the matrix, or leave its values in f64",
    }
}

/// Name of a Matrix Market source in messages.
fn origin(path: &Path) -> String {
    if path.as_os_str().is_empty() { "Matrix Market text".to_owned() } else { printed(path) }
}

/// Path of a file in messages.
fn printed(path: &Path) -> String {
    printable(&path.display().to_string()).into_owned()
}
