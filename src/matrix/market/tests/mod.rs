//! Tests of texts, valid and invalid; of files; of properties.

// Tests compressed files of every kind.
#[cfg(feature = "zstd")]
mod files;
#[cfg(feature = "zstd")]
mod limits;
mod properties;
mod texts;

use super::Reader;
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};

/// Memory limit of a megabyte, so that no mutated size line can fill the memory of the machine.
const SMALL: u64 = 1 << 20;

/// Parses in chunks small enough that every border case occurs.
fn parse_in<T: Scalar>(chunk_bytes: usize, text: &[u8]) -> Result<CsrMatrix<T>, Error> {
    Reader { chunk_bytes: Some(chunk_bytes), memory_limit: SMALL, ..Reader::new() }.parse(text)
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
