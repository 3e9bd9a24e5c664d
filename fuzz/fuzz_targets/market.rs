//! Any bytes are a matrix or an error, never a panic, and a matrix is a valid one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sparseop::matrix::CsrMatrix;
use sparseop::matrix::market::Reader;

/// Below the memory that libFuzzer allows itself: a short text can declare rows for many gigabytes.
const MEMORY_LIMIT: u64 = 64 << 20;

fuzz_target!(|text: &[u8]| {
    if let Ok(a) = Reader::new().memory_limit(MEMORY_LIMIT).parse::<f64>(text) {
        let (nrows, ncols) = (a.nrows(), a.ncols());
        let (row_ptr, col_idx, values) = a.into_parts();
        assert!(CsrMatrix::try_new(nrows, ncols, row_ptr, col_idx, values).is_ok());
    }
});
