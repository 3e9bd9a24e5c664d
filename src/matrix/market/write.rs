//! Writing matrices.

use crate::files::write_atomically;
use crate::matrix::CsrView;
use crate::{Error, Scalar, memory, parallel};
use flate2::write::GzEncoder;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

/// Entries that a task formats: about a megabyte of text.
const BLOCK: usize = 1 << 15;

/// Bytes of the longest entry: two numbers of ten digits, a value, two blanks and the end.
const LONGEST_ENTRY: usize = 2 * 10 + 24 + 3;

/// Writes a matrix as `coordinate real general`, on all cores, row by row, indices from 1, values
/// with as many digits as necessary to read the same number again.
///
/// The name decides on compression: `.gz`, `.zst` (with the feature `zstd`), or none. The file
/// appears under its name when it is complete and never in part; an existing file is replaced. NaNs
/// lose their sign and payload.
///
/// # Errors
///
/// [`Error::Io`] if the folder of the file does not exist, cannot be written to, or is full;
/// [`Error::HostMemory`].
pub fn write<T: Scalar>(path: impl AsRef<Path>, matrix: CsrView<'_, T>) -> Result<(), Error> {
    T::write_market(path.as_ref(), matrix)
}

pub(crate) fn write_impl<T: Scalar>(path: &Path, matrix: CsrView<'_, T>) -> Result<(), Error> {
    let header = format!("real general\n{} {} {}\n", matrix.nrows(), matrix.ncols(), matrix.nnz());
    write_file(path, &format!("coordinate {header}"), matrix.nnz(), |entries, text| {
        let mut row =
            matrix.row_ptr().partition_point(|&start| start <= entries.start).saturating_sub(1);
        for k in entries {
            while matrix.row_ptr()[row + 1] <= k {
                row += 1;
            }
            push_integer(text, row + 1);
            text.push(b' ');
            push_integer(text, matrix.col_idx()[k] as usize + 1);
            text.push(b' ');
            push_real(text, matrix.values()[k]);
            text.push(b'\n');
        }
    })
}

/// Writes a banner that ends in `header`, and `len` entries, which `format` formats range by range.
pub(super) fn write_file(
    path: &Path,
    header: &str,
    len: usize,
    format: impl Fn(Range<usize>, &mut Vec<u8>) + Sync,
) -> Result<(), Error> {
    let blocks = len.div_ceil(BLOCK).clamp(1, 4 * rayon::current_num_threads());
    let room = LONGEST_ENTRY * BLOCK.min(len);
    let mut texts = (0..blocks).map(|_| memory::reserved(room)).collect::<Result<Vec<_>, _>>()?;
    write_atomically(path, |file| {
        let compressed =
            |end: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(OsStr::new(end)));
        if compressed("gz") {
            let mut encoder = GzEncoder::new(file, flate2::Compression::default());
            write_text(&mut encoder, header, len, &mut texts, &format)?;
            encoder.finish().map(drop)
        } else if compressed("zst") {
            #[cfg(feature = "zstd")]
            {
                let mut encoder = zstd::Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL)?;
                write_text(&mut encoder, header, len, &mut texts, &format)?;
                encoder.finish().map(drop)
            }
            #[cfg(not(feature = "zstd"))]
            Err(io::Error::new(io::ErrorKind::Unsupported, super::NO_ZSTD))
        } else {
            write_text(file, header, len, &mut texts, &format)
        }
    })
}

/// Formats a few blocks at a time in parallel, a text each, and writes them in order.
fn write_text(
    out: &mut dyn Write,
    header: &str,
    len: usize,
    texts: &mut [Vec<u8>],
    format: &(impl Fn(Range<usize>, &mut Vec<u8>) + Sync),
) -> io::Result<()> {
    write!(out, "%%MatrixMarket matrix {header}")?;
    for first in (0..len).step_by(BLOCK * texts.len()) {
        parallel::for_each_item(texts.iter_mut().enumerate(), |(k, text)| {
            let start = (first + k * BLOCK).min(len);
            text.clear();
            format(start..(start + BLOCK).min(len), text);
        });
        for text in &*texts {
            out.write_all(text)?;
        }
    }
    Ok(())
}

fn push_integer(text: &mut Vec<u8>, mut number: usize) {
    /// Number of digits of `u64::MAX`.
    const DIGITS: usize = 20;
    let mut digits = [0; DIGITS];
    let mut start = DIGITS;
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[start..]);
}

/// Appends the shortest text that parses to the same number.
pub(super) fn push_real<T: Scalar>(text: &mut Vec<u8>, value: T) {
    /// Magnitudes that are shorter without an exponent.
    const PLAIN: Range<f64> = 1e-5..1e16;
    let wide = value.to_f64();
    // The type itself formats the value: an `f32` needs fewer digits than the `f64` of the same
    // value.
    let written = if wide == 0.0 || PLAIN.contains(&wide.abs()) || !wide.is_finite() {
        write!(text, "{value}")
    } else {
        write!(text, "{value:?}")
    };
    debug_assert!(written.is_ok(), "a vector takes every byte");
}
