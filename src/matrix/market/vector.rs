//! Dense vectors.

use super::array::elements;
use super::header::{Field, MarketLayout, MarketSymmetry, has_banner};
use super::scan::next_line;
use super::window::WindowedText;
use super::write::{push_real, write_file};
use super::{ParseProblem, Reader};
use crate::{Error, Scalar, memory};
use std::path::Path;

/// Reads a dense vector: a Matrix Market file of n × 1, `array` or `coordinate`, or plain text of
/// one number per line.
///
/// Blank lines, `%` comments and compression are supported as for matrices. Elements that a
/// `coordinate` file does not list are zero.
///
/// # Errors
///
/// As [`read`](super::read); [`Error::Market`] if the file holds a matrix of another shape.
pub fn read_vector<T: Scalar>(path: impl AsRef<Path>) -> Result<Vec<T>, Error> {
    T::read_vector(path.as_ref(), None)
}

/// As [`read_vector`], for a vector of `len` numbers. A file without an end is not read to the
/// limit of the memory, but as far as a text of so many numbers reaches; a shorter or longer vector
/// may be returned.
///
/// # Errors
///
/// As [`read_vector`]; [`Error::Market`] if the text is too long.
#[doc(hidden)]
pub fn read_vector_of<T: Scalar>(path: impl AsRef<Path>, len: usize) -> Result<Vec<T>, Error> {
    T::read_vector(path.as_ref(), Some(len))
}

/// Largest size of the text of so many numbers, in bytes, with comments and blank lines.
fn largest_text(len: usize) -> u64 {
    const COMMENTS: u64 = 1 << 20;
    const NUMBER: u64 = 128;
    (len as u64).saturating_mul(NUMBER).saturating_add(COMMENTS)
}

pub(crate) fn read_vector_impl<T: Scalar>(
    path: &Path,
    len: Option<usize>,
) -> Result<Vec<T>, Error> {
    let reader = Reader::new();
    let limit = reader.memory_limit.min(len.map_or(u64::MAX, largest_text));
    let reader = reader.memory_limit(limit);
    let mut text = WindowedText::open(path, &reader)?;
    text.read_all()?;
    vector(&reader, &mut text).map_err(|problem| text.locate(problem))
}

/// Writes a dense vector as a Matrix Market `array` of n × 1; otherwise as
/// [`write`](super::write()).
///
/// # Errors
///
/// [`Error::Io`] if the folder of the file does not exist, cannot be written to, or is full;
/// [`Error::HostMemory`].
pub fn write_vector<T: Scalar>(path: impl AsRef<Path>, vector: &[T]) -> Result<(), Error> {
    T::write_vector(path.as_ref(), vector)
}

pub(crate) fn write_vector_impl<T: Scalar>(path: &Path, vector: &[T]) -> Result<(), Error> {
    let header = format!("array real general\n{} 1\n", vector.len());
    write_file(path, &header, vector.len(), |range, text| {
        for &value in &vector[range] {
            push_real(text, value);
            text.push(b'\n');
        }
    })
}

fn vector<T: Scalar>(
    reader: &Reader<'_>,
    text: &mut WindowedText<'_>,
) -> Result<Vec<T>, ParseProblem> {
    let bytes = text.bytes();
    if !has_banner(bytes) {
        if next_line(bytes, 0, bytes.len()).is_none() {
            return Err(ParseProblem::new(
                "there is no number in it; expected one a line, or a Matrix Market file",
            ));
        }
        return Ok(memory::joined(&elements(reader, text, 0, None, Field::Real)?)?);
    }
    let header = text.header()?;
    if header.ncols != 1 {
        let message = format!(
            "a vector must have one column, but this is {} x {}",
            header.nrows, header.ncols
        );
        return Err(ParseProblem::new(message));
    }
    if header.layout == MarketLayout::Array && header.symmetry == MarketSymmetry::General {
        let declared = Some(header.declared);
        return Ok(memory::joined(&elements(reader, text, header.body, declared, header.field)?)?);
    }
    let (header, entries) = reader.entries(text)?;
    let column = entries.into_csr(&header)?;
    let row_values = column
        .row_ptr()
        .windows(2)
        .map(|row| column.values()[row[0]..row[1]].iter().copied().sum());
    Ok(memory::listed(row_values)?)
}
