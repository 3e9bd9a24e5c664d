//! A file of any bytes is read to a table of classes or to an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sparseop_fuzz::file_of;
use sparseop_tune::collection::Classes;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(classes) = Classes::read(file_of(bytes)) {
        classes.of("a.mtx");
    }
});
