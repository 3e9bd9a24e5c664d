//! Tests of texts, valid and invalid; of files; of properties.

// Tests compressed files of every kind.
#[cfg(feature = "zstd")]
mod files;
#[cfg(feature = "zstd")]
mod limits;
mod properties;
mod texts;

use super::Reader;
use super::window::WindowedText;
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};

/// Memory limit of a megabyte, so that no mutated size line can fill the memory of the machine.
const SMALL: u64 = 1 << 20;

/// Parses in chunks small enough that every border case occurs, and in windows of a stream, which
/// must give the same matrix or error.
fn parse_in<T: Scalar>(chunk_bytes: usize, text: &[u8]) -> Result<CsrMatrix<T>, Error> {
    let reader = Reader { chunk_bytes: Some(chunk_bytes), memory_limit: SMALL, ..Reader::new() };
    let whole = reader.parse(text);
    for window in [1, 2 * chunk_bytes, 64] {
        let reader = Reader { window_bytes: Some(window), ..reader };
        let mut windows = WindowedText::streamed(text, &reader).unwrap();
        let found = reader.entries::<T>(&mut windows);
        let found = found.map_err(|problem| windows.locate(problem));
        let found = found.and_then(|(header, entries)| entries.into_csr(&header));
        match (&whole, found) {
            // Not-a-numbers are not equal.
            (Ok(whole), Ok(found)) => assert_eq!(format!("{whole:?}"), format!("{found:?}")),
            // The number of lines that fit the text is not known in time.
            (Err(whole), Err(_)) if whole.to_string().contains("above the limit") => {}
            (Err(whole), Err(found)) => assert_eq!(whole.to_string(), found.to_string()),
            (whole, found) => panic!("{whole:?} and {found:?} in windows of {window}"),
        }
    }
    whole
}

/// Line and message of the error of a text, which must not depend on the chunks.
fn refusal<T: Scalar>(text: &[u8]) -> (Option<u64>, String) {
    let refusals = [1, 7, 1 << 20].map(|chunk_bytes| match parse_in::<T>(chunk_bytes, text) {
        Err(Error::Market { line, message, .. }) => (line, message),
        other => panic!("{:?} gave {other:?}", text.escape_ascii().to_string()),
    });
    assert!(refusals.iter().all(|refusal| *refusal == refusals[0]), "{refusals:?}");
    refusals[0].clone()
}
