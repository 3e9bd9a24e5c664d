//! Any bytes parse to a valid matrix or to an error, and never panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sparseop::matrix::CsrMatrix;
use sparseop::matrix::market::Reader;

/// Limit below libFuzzer's own: a short text can declare rows for many gigabytes.
const MEMORY_LIMIT: u64 = 64 << 20;

fuzz_target!(|text: &[u8]| {
    if let Ok(a) = Reader::new().memory_limit(MEMORY_LIMIT).parse::<f64>(text) {
        let (nrows, ncols) = (a.nrows(), a.ncols());
        let (row_ptr, col_idx, values) = a.into_parts();
        assert!(CsrMatrix::try_new(nrows, ncols, row_ptr, col_idx, values).is_ok());
    }
});
