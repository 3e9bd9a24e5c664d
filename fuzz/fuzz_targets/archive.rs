//! A file of any bytes, which may be a text, an archive or compressed, is read to a valid matrix or
//! to an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sparseop::matrix::CsrMatrix;
use sparseop::matrix::market::Reader;
use sparseop_fuzz::file_of;

/// Limit below libFuzzer's own: a short file can unpack to many gigabytes.
const MEMORY_LIMIT: u64 = 64 << 20;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(a) = Reader::new().memory_limit(MEMORY_LIMIT).read::<f32>(file_of(bytes)) {
        let (nrows, ncols) = (a.nrows(), a.ncols());
        let (row_ptr, col_idx, values) = a.into_parts();
        assert!(CsrMatrix::try_new(nrows, ncols, row_ptr, col_idx, values).is_ok());
    }
});
