//! The one error type of the library.

use crate::Precision;
use std::path::{Path, PathBuf};

/// Everything that can go wrong, each case naming what was attempted, on what, and how to mend it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The arrays handed to a matrix constructor do not describe a matrix.
    #[error("not a valid {format} matrix: {message}")]
    InvalidMatrix {
        /// The layout that was being checked: `CSR`, `triplets`, `sprs`.
        format: &'static str,
        /// What is wrong, with the offending position.
        message: String,
    },
    /// A vector has the wrong length.
    #[error(
        "vector `{vector}` has {found} elements, but the matrix is {nrows} x {ncols} and needs {expected}"
    )]
    VectorLength {
        /// `x` or `y`.
        vector: &'static str,
        /// Elements the product needs.
        expected: usize,
        /// Elements handed in.
        found: usize,
        /// Rows of the matrix.
        nrows: usize,
        /// Columns of the matrix.
        ncols: usize,
    },
    /// Several vectors have the wrong length together.
    #[error(
        "`{vectors}` has {found} elements, but {count} vectors for a matrix of {nrows} x {ncols} have {count} x {len}"
    )]
    VectorsLength {
        /// `x` or `y`.
        vectors: &'static str,
        /// How many vectors there are.
        count: usize,
        /// Elements that each needs.
        len: usize,
        /// Elements handed in.
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
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// `open`, `read`, `write`, …
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// A Matrix Market file is malformed, or holds what this library does not take.
    #[error("{}{}: {message}", origin(path), line.map(|l| format!(":{l}")).unwrap_or_default())]
    Market {
        /// The file; empty for text that did not come from one.
        path: PathBuf,
        /// The line, counted from 1, where there is one to blame.
        line: Option<u64>,
        /// What is wrong and what was expected.
        message: String,
    },
    /// Text that should name a plan does not.
    #[error("`{text}` is not a plan: {message}")]
    PlanText {
        /// The text as given.
        text: String,
        /// What is wrong, with the nearest spelling where there is one.
        message: String,
    },
    /// Text that should name a gallery matrix does not.
    #[error("`{text}` is not a gallery matrix: {message}")]
    GalleryText {
        /// The text as given.
        text: String,
        /// What is wrong, with the nearest spelling where there is one.
        message: String,
    },
    /// A plan would need more memory than allowed; nothing was allocated.
    #[error(
        "plan {plan} needs {needed} bytes for the packed matrix, but the limit is {limit} bytes; \
         raise the memory limit or let `auto` choose another plan"
    )]
    MemoryLimit {
        /// The plan's spelling.
        plan: String,
        /// Bytes the packed matrix would take.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The bits of a plan's products may differ, and were asked to repeat.
    #[error(
        "the bits of plan {plan} may differ from product to product, but deterministic products were asked for; \
         choose another plan or let `auto` choose one"
    )]
    NotDeterministic {
        /// The plan's spelling.
        plan: String,
    },
    /// A matrix is too large for packed slices, whose places are 32-bit numbers.
    #[error(
        "packed slices hold at most {limit} bytes of {what}, and this matrix needs more; choose a plan without `index:packed`"
    )]
    PackedTooLarge {
        /// `values` or `indices`.
        what: &'static str,
        /// Bytes that can be addressed.
        limit: u64,
    },
    /// A plan has parameters with which it cannot hold the matrix; nothing was packed.
    #[error("plan {plan} cannot hold this matrix: {message}")]
    PlanLimit {
        /// The plan's spelling.
        plan: String,
        /// What there is too much of, and which parameter to change.
        message: String,
    },
    /// The asked device is not there.
    #[error("device `{device}` is not available: {reason}")]
    DeviceUnavailable {
        /// The device's spelling.
        device: String,
        /// Why, in one line.
        reason: String,
    },
    /// Something that takes part in a product lives on another device than the matrix.
    #[error("`{what}` is on {found}, but it must be on {expected}; create it there")]
    WrongDevice {
        /// `x`, `y` or `stream`.
        what: &'static str,
        /// Where it should be.
        expected: String,
        /// Where it is.
        found: String,
    },
    /// Memory that somebody else has allocated cannot be used.
    #[error("the {what} at {address:#x} cannot be used on {device}: {message}")]
    ForeignMemory {
        /// `vector`, `row_ptr`, `col_idx` or `values`.
        what: &'static str,
        /// The address that was given.
        address: u64,
        /// The device's spelling.
        device: String,
        /// Why not, in one line.
        message: String,
    },
    /// A copy from or to a vector of another length.
    #[error("cannot copy {found} elements: the vector has {expected}")]
    CopyLength {
        /// Elements of the vector.
        expected: usize,
        /// Elements of the slice.
        found: usize,
    },
    /// A matrix of another pattern was to give an operator its values.
    #[error(
        "the matrix, {nrows} x {ncols} with {nnz} entries, has not the pattern that the operator was built for, which has {expected} \
         entries; build another operator"
    )]
    OtherPattern {
        /// Rows of the matrix.
        nrows: usize,
        /// Its columns.
        ncols: usize,
        /// Its entries.
        nnz: usize,
        /// Entries of the operator's matrix.
        expected: usize,
    },
    /// New values for an operator are too few or too many.
    #[error("{found} values were given for {expected} entries; give one for each, in the order of `to_csr`")]
    ValuesLength {
        /// Entries of the matrix.
        expected: usize,
        /// Values handed in.
        found: usize,
    },
    /// A product needs a copy of the matrix, which launches of a graph would not update.
    #[error(
        "products {product} need a copy of the matrix, but a graph updates the values of the operator and not of copies; \
         update them outside of graphs, or build an operator for these products alone"
    )]
    UpdatedByGraph {
        /// `with several vectors` or `with the transposed matrix`.
        product: &'static str,
    },
    /// The values of a packed matrix cannot be replaced.
    #[error(
        "the values of plan {plan} cannot be replaced: {reason}; build the operator anew, or with `updatable(true)`, which keeps `auto` \
         from such plans"
    )]
    NotUpdatable {
        /// The plan's spelling.
        plan: String,
        /// Why not.
        reason: &'static str,
    },
    /// A value cannot be rounded to a precision: it is finite and would become infinite.
    #[error(
        "the value of entry {entry}{} is {value:e}, beyond the largest finite number of {precision}, {:e}; {}",
        position(place), precision.largest(), way_out(*precision)
    )]
    ValueRange {
        /// The number of the entry, in the order of `to_csr`, counted from 0.
        entry: usize,
        /// Its row and column, counted from 0, where they are known.
        place: Option<(usize, usize)>,
        /// Its value.
        value: f64,
        /// What it was to be rounded to.
        precision: Precision,
    },
    /// A new value for an operator is not one that its precision holds.
    #[error(
        "the value of entry {entry} is {value}, which {precision}, in which the operator stores values, does not hold exactly; build it          with `value_precision`, which rounds values, or with another plan"
    )]
    ValueInexact {
        /// The number of the entry, in the order of `to_csr`, counted from 0.
        entry: usize,
        /// Its value.
        value: f64,
        /// What values are stored in.
        precision: Precision,
    },
    /// There is no such row or column.
    #[error("there is no entry at row {row}, column {col}: the matrix is {nrows} x {ncols}, counted from 0")]
    OutOfBounds {
        /// The row that was asked for.
        row: usize,
        /// The column that was asked for.
        col: usize,
        /// Rows of the matrix.
        nrows: usize,
        /// Columns of the matrix.
        ncols: usize,
    },
    /// The packed matrix does not let single entries be found.
    #[error("plan {plan} on {device} does not let single entries be found: {reason}")]
    NoAccess {
        /// The plan's spelling.
        plan: String,
        /// The device's spelling.
        device: String,
        /// Why not, and what to do.
        reason: &'static str,
    },
    /// There is no room for another entry.
    #[error("plan {plan} has no room for an entry at row {row}, column {col}: {reason}")]
    NoRoom {
        /// The plan's spelling.
        plan: String,
        /// The row of the entry.
        row: usize,
        /// Its column.
        col: usize,
        /// Why not, and what has room.
        reason: &'static str,
    },
    /// The GPU has not enough memory left.
    #[error("{device} has {free} bytes of memory left, but {needed} are needed; free some, or use the CPU")]
    GpuMemory {
        /// The device's spelling.
        device: String,
        /// Bytes that were asked for.
        needed: u64,
        /// Bytes that were free.
        free: u64,
    },
    /// The GPU or its driver failed.
    #[error("{device} could not {action}: {message}")]
    Gpu {
        /// The device's spelling.
        device: String,
        /// What was attempted.
        action: String,
        /// The driver's answer.
        message: String,
    },
    /// A GPU kernel cannot be made ready.
    #[error("kernels/{kernel}.cu cannot be compiled for {architecture}: {message}")]
    KernelCompile {
        /// The kernel file, without its ending.
        kernel: &'static str,
        /// The architecture: `sm_90`.
        architecture: String,
        /// Why, in one line.
        message: String,
        /// Everything the compiler said; empty where none was asked.
        log: String,
    },
    /// A product was to be captured in a graph that cannot be part of one.
    #[error("plan {plan} cannot be captured in a graph: {reason}; choose another plan")]
    NotCapturable {
        /// The plan's spelling.
        plan: String,
        /// Why not.
        reason: &'static str,
    },
    /// A fused pass over vectors does not fit together.
    #[error("this pass over vectors cannot be done: {message}")]
    VectorPass {
        /// What does not fit.
        message: String,
    },
    /// A matrix that is not square was to be solved with, or to be iterated.
    #[error("{method} needs a square matrix, and this one is {nrows} x {ncols}")]
    NotSquare {
        /// The method.
        method: &'static str,
        /// Rows of the matrix.
        nrows: usize,
        /// Columns of the matrix.
        ncols: usize,
    },
    /// A vector that is given holds something that is no finite number.
    #[error("element {index} of vector `{vector}` is {value}; every element must be a finite number")]
    NotFinite {
        /// `b`, `x`, `diagonal`, …
        vector: &'static str,
        /// The first such element, counted from 0.
        index: usize,
        /// What it is.
        value: f64,
    },
    /// The diagonal has an element that a preconditioner would have to divide by.
    #[error(
        "the diagonal is 0 in row {row}, so that there is no Jacobi preconditioner; solve without one, or reorder the rows"
    )]
    ZeroDiagonal {
        /// The first such row, counted from 0.
        row: usize,
    },
    /// A setting of a solver makes no sense.
    #[error("{method}: {message}")]
    SolverSetting {
        /// The method.
        method: &'static str,
        /// What is wrong, and what it may be.
        message: String,
    },
    /// An iteration has ended without an answer that is as good as was asked for.
    #[error(
        "{method} has not converged after {iterations} iterations, at a relative residual of {residual:.3e}: {reason}"
    )]
    NotConverged {
        /// The method.
        method: &'static str,
        /// Iterations that were made.
        iterations: usize,
        /// ‖b − A x‖ / ‖b‖ of the best there is.
        residual: f64,
        /// What it ended with, and what may help.
        reason: &'static str,
    },
    /// A tuning profile cannot be used.
    #[error("profile {origin}: {message}")]
    Profile {
        /// The file, or the name of a built-in profile.
        origin: String,
        /// What is wrong and what to do.
        message: String,
    },
}

impl Error {
    /// Wraps an operating-system error with the file and the action it hit.
    pub(crate) fn io(action: &'static str, path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Self::Io { action, path: path.as_ref().to_owned(), source }
    }
}

/// Where an entry is, in words.
fn position(place: &Option<(usize, usize)>) -> String {
    place.map(|(row, col)| format!(", at row {row} and column {col},")).unwrap_or_default()
}

/// What to do where a precision does not reach far enough.
fn way_out(precision: Precision) -> &'static str {
    match precision {
        Precision::F16 => "scale the matrix, or choose bf16, which has the range of f32",
        Precision::Bf16 | Precision::F32 => "scale the matrix, or leave its values in f64",
    }
}

/// How a Matrix Market source is named in messages.
fn origin(path: &Path) -> String {
    if path.as_os_str().is_empty() { "Matrix Market text".to_owned() } else { path.display().to_string() }
}

/// ` (did you mean `NEAREST`?)` when one of `known` is close enough to `text` to be a slip of the fingers.
pub(crate) fn suggestion<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    // A slip is one letter wrong, missing, doubled or swapped; in a long word two or three.
    let slips = |word: &str| strsim::damerau_levenshtein(text, word);
    known
        .into_iter()
        .filter(|word| slips(word) <= 1 + word.len() / 5)
        .min_by_key(|word| slips(word))
        .map(|word| format!(" (did you mean `{word}`?)"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_corrected_and_nonsense_is_not() {
        assert_eq!(suggestion("sel", ["csr", "sell", "ell"]), " (did you mean `sell`?)");
        assert_eq!(suggestion("xyzzy", ["csr", "sell"]), "");
    }
}
