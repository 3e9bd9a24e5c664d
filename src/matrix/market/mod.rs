//! Matrix Market files, the exchange format of sparse matrices.
//!
//! Source: R. F. Boisvert, R. Pozo, K. A. Remington, *The Matrix Market Exchange Formats: Initial
//! Design*, NISTIR 5935 (1996). Supported are `coordinate` and `array` files of `real`, `integer`
//! or `pattern` values, `general`, `symmetric` or `skew-symmetric`; only `complex` values are
//! refused. Beyond the specification, comments and blank lines may occur anywhere after the banner,
//! Fortran exponents (`1.0D+00`) and `nan`, `inf` are numbers, and entries of a symmetric matrix
//! may come from either triangle.
//!
//! Treatment of the entries: a symmetric matrix is expanded to both triangles; entries of one place
//! are summed in the order of the file; explicit zeros of a `coordinate` file are kept, those of an
//! `array` file are not; entries of a `pattern` file are 1. The columns of each row are sorted. The
//! result does not depend on the number of threads.
//!
//! A file may be plain (`.mtx`), compressed (`.mtx.gz`, `.mtx.zst`) or an archive of the
//! SuiteSparse Matrix Collection (`.tar.gz`, `.tgz`); its first bytes decide, not its name. `.zst`
//! needs the feature `zstd`.

mod array;
mod chunks;
mod coordinate;
mod header;
mod pieces;
mod scan;
mod source;
#[cfg(test)]
mod tests;
mod vector;
mod window;
mod write;

#[doc(hidden)]
pub use pieces::{MarketEntries, MarketPieces};
#[doc(hidden)]
pub use source::shortened;
#[doc(hidden)]
pub use vector::read_vector_of;
pub use vector::{read_vector, write_vector};
pub(crate) use vector::{read_vector_impl, write_vector_impl};
pub use write::write;
pub(crate) use write::write_impl;

use super::CsrMatrix;
use super::assemble::{Buckets, MatrixEntry, Repeated, SortedRun, to_csr};
use crate::{Error, Scalar, memory};
use header::{MarketHeader, MarketLayout};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use window::{WindowedText, count_line_ends};

/// Error message about `.zst`.
#[cfg(not(feature = "zstd"))]
const NO_ZSTD: &str =
    "this build of sparseop cannot compress or decompress zstd; enable its feature `zstd`";

/// Extensions of files that may hold a matrix.
#[doc(hidden)]
pub const EXTENSIONS: [&str; 5] = [".mtx", ".mtx.gz", ".mtx.zst", ".tar.gz", ".tgz"];

/// True if a file is a matrix by its name: one of [`EXTENSIONS`], in any case, after at least one
/// more character.
#[doc(hidden)]
pub fn is_matrix_path(path: impl AsRef<Path>) -> bool {
    let name = path.as_ref().file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    EXTENSIONS.iter().any(|extension| name.len() > extension.len() && name.ends_with(extension))
}

/// Reads a matrix from a file, on all cores; see [`market`](self) for the supported files.
///
/// ```no_run
/// let a = sparseop::matrix::market::read::<f32>("cant.mtx")?;
/// println!("{} x {}, {} nonzeros", a.nrows(), a.ncols(), a.nnz());
/// # Ok::<(), sparseop::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Io`] if the file cannot be opened, read or decompressed; [`Error::Market`] with the
/// first offending line if it is not a Matrix Market file of real numbers that fit `T`;
/// [`Error::HostMemory`] if the memory does not suffice.
pub fn read<T: Scalar>(path: impl AsRef<Path>) -> Result<CsrMatrix<T>, Error> {
    Reader::new().read(path)
}

/// Reads a matrix from the uncompressed text of a file.
///
/// ```
/// let text = b"%%MatrixMarket matrix coordinate real symmetric\n2 2 2\n1 1 4.0\n2 1 0.5\n";
/// let a = sparseop::matrix::market::parse::<f64>(text)?;
/// assert_eq!((a.row_ptr(), a.col_idx()), (&[0, 2, 3][..], &[0, 1, 0][..]));
/// assert_eq!(a.values(), [4.0, 0.5, 0.5]);
/// # Ok::<(), sparseop::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Market`], as [`read`].
#[doc(hidden)]
pub fn parse<T: Scalar>(text: &[u8]) -> Result<CsrMatrix<T>, Error> {
    Reader::new().parse(text)
}

/// Progress of a [`Reader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadProgress {
    /// Current stage.
    pub stage: ReadStage,
    /// Bytes done; increases to `total`, not always in order, because the calls come from several
    /// threads.
    pub done: u64,
    /// Total bytes of the stage.
    pub total: u64,
}

/// Stage of a [`Reader`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadStage {
    /// Decompressing the file; [`ReadProgress`] counts compressed bytes.
    Decompress,
    /// Parsing the text.
    Parse,
}

/// Callback for progress.
type Listener<'a> = &'a (dyn Fn(ReadProgress) + Sync);

/// Reader with options.
///
/// ```
/// use sparseop::matrix::market::Reader;
/// let text = b"%%MatrixMarket matrix coordinate pattern general\n4000000000 1 0\n";
/// let refused = Reader::new().memory_limit(1 << 20).parse::<f32>(text).unwrap_err();
/// assert!(refused.to_string().contains("limit"));
/// ```
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    listener: Option<Listener<'a>>,
    /// Count of the entries above the diagonal of symmetric files.
    above: Option<&'a AtomicU64>,
    memory_limit: u64,
    /// Bytes of text parsed at a time. `None` chooses by the size of the text.
    chunk_bytes: Option<usize>,
    /// Bytes of text in memory at a time, if not the usual number.
    window_bytes: Option<usize>,
}

impl Default for Reader<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Reader<'a> {
    /// Creates a reader that reports no progress; its memory limit is the memory that the process
    /// may use, if known: the least of the memory of the machine, the limits of its control groups
    /// and the limit of its address space.
    pub fn new() -> Self {
        Self {
            listener: None,
            above: None,
            memory_limit: memory::budget(),
            chunk_bytes: None,
            window_bytes: None,
        }
    }

    /// Calls `listener` about every megabyte, from any thread.
    pub fn progress(self, listener: &'a (dyn Fn(ReadProgress) + Sync)) -> Self {
        Self { listener: Some(listener), ..self }
    }

    /// Adds the number of entries above the diagonal of a `coordinate` file that is symmetric or
    /// skew-symmetric to `count`. Such files list the lower triangle; entries of both triangles
    /// are mirrored, and those of one place summed.
    #[doc(hidden)]
    pub fn count_above(self, count: &'a AtomicU64) -> Self {
        Self { above: Some(count), ..self }
    }

    /// Limits memory: a matrix whose arrays, or whose text, decompressed if necessary, would each
    /// take more than `bytes` is an error. By default 7/8 of the memory that the process may use.
    ///
    /// For untrusted input: a few bytes can declare four thousand million rows or unpack to
    /// gigabytes.
    pub fn memory_limit(self, bytes: u64) -> Self {
        Self { memory_limit: bytes, ..self }
    }

    /// [`read`] with these options.
    ///
    /// # Errors
    ///
    /// As [`read`]; [`Error::Market`] if the memory limit is exceeded.
    pub fn read<T: Scalar>(&self, path: impl AsRef<Path>) -> Result<CsrMatrix<T>, Error> {
        T::read_market(self, path.as_ref())
    }

    pub(crate) fn read_impl<T: Scalar>(&self, path: &Path) -> Result<CsrMatrix<T>, Error> {
        let mut text = WindowedText::open(path, self)?;
        let found = self.entries(&mut text);
        let (header, entries) = found.map_err(|problem| text.locate(problem))?;
        drop(text);
        entries.into_csr(&header)
    }

    /// [`parse`] with these options.
    ///
    /// # Errors
    ///
    /// As [`parse`]; [`Error::Market`] if the memory limit is exceeded.
    #[doc(hidden)]
    pub fn parse<T: Scalar>(&self, text: &[u8]) -> Result<CsrMatrix<T>, Error> {
        T::parse_market(self, text)
    }

    pub(crate) fn parse_impl<T: Scalar>(&self, text: &[u8]) -> Result<CsrMatrix<T>, Error> {
        let mut text = WindowedText::of(text, self);
        let found = self.entries(&mut text);
        let (header, entries) = found.map_err(|problem| text.locate(problem))?;
        entries.into_csr(&header)
    }

    /// Parses everything; only sorting remains.
    fn entries<T: Scalar>(
        &self,
        text: &mut WindowedText<'_>,
    ) -> Result<(MarketHeader, BucketedEntries<T>), ParseProblem> {
        let header = text.header()?;
        let least = header.least_entries(text.len().unwrap_or(text.bytes().len() as u64));
        self.check_memory::<T>(&header, least)?;
        // The entries are collected in many allocations before the matrix is assembled.
        memory::check_room(least.saturating_mul(size_of::<MatrixEntry<T>>()))?;
        let buckets = Buckets::new(header.nrows);
        let runs = match header.layout {
            MarketLayout::Coordinate => coordinate::parse(self, text, &header, buckets)?,
            MarketLayout::Array => array::parse(self, text, &header, buckets)?,
        };
        self.check_memory::<T>(&header, runs.iter().map(SortedRun::len).sum())?;
        Ok((header, BucketedEntries { buckets, runs }))
    }

    /// Returns an error if a matrix exceeds the limit.
    fn check_memory<T>(&self, header: &MarketHeader, nnz: usize) -> Result<(), ParseProblem> {
        let offsets = header.nrows + 1;
        let bytes = offsets as u64 * size_of::<usize>() as u64
            + nnz.saturating_mul(size_of::<T>() + size_of::<u32>()) as u64;
        if bytes > self.memory_limit {
            return Err(ParseProblem::new(format!(
                "a matrix of {} rows with at least {nnz} entries takes {bytes} bytes, above the \
                 limit of {}",
                header.nrows, self.memory_limit
            )));
        }
        Ok(())
    }

    fn report(&self, stage: ReadStage, done: u64, total: u64) {
        if let Some(listener) = self.listener {
            listener(ReadProgress { stage, done, total });
        }
    }
}

/// Entries of a file, sorted by bucket.
struct BucketedEntries<T> {
    buckets: Buckets,
    runs: Vec<SortedRun<T>>,
}

impl<T: Scalar> BucketedEntries<T> {
    fn into_csr(self, header: &MarketHeader) -> Result<CsrMatrix<T>, Error> {
        to_csr(header.nrows, header.ncols, self.buckets, self.runs, Repeated::Summed)
    }
}

/// Error in a text, without the path of the file and the line number.
#[derive(Debug)]
struct ParseProblem {
    message: String,
    /// Offset of a byte of the offending line in the window, if any.
    offset: Option<usize>,
    /// Number of the line, if it is known.
    line: Option<u64>,
    /// Error that is not about the text, returned instead of the message.
    other: Option<Box<Error>>,
}

impl From<Error> for ParseProblem {
    fn from(error: Error) -> Self {
        Self { other: Some(Box::new(error)), ..Self::new(String::new()) }
    }
}

impl ParseProblem {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), offset: None, line: None, other: None }
    }

    fn at(offset: usize, message: impl Into<String>) -> Self {
        Self { offset: Some(offset), ..Self::new(message) }
    }

    /// Adds the path, and the line of a text with so many lines before it, which is only counted
    /// here.
    fn locate(self, path: &Path, text: &[u8], before: u64) -> Error {
        let line_of = |offset: usize| before + count_line_ends(&text[..offset.min(text.len())]) + 1;
        let line = self.line.or(self.offset.map(line_of));
        Self { line, ..self }.of_file(path)
    }

    /// Adds the path.
    fn of_file(self, path: &Path) -> Error {
        let Self { message, line, other, .. } = self;
        other.map_or(Error::Market { path: path.to_owned(), line, message }, |other| *other)
    }
}

/// Beginning of some bytes of a file, for a message: at most 40 of them, unprintable ones escaped.
fn excerpt(bytes: &[u8]) -> String {
    const SHOWN: usize = 40;
    let ellipsis = if bytes.len() > SHOWN { "…" } else { "" };
    format!("`{}{ellipsis}`", bytes[..bytes.len().min(SHOWN)].escape_ascii())
}
