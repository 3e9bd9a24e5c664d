//! A file of any bytes is read to measurements or to an error; the journal that it may be continues
//! with the same ones. Measurements are written as a file that is read to as many.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sparseop_fuzz::file_of;
use sparseop_tune::measurements::{JournalFile, read_all, write};

fuzz_target!(|bytes: &[u8]| {
    let path = file_of(bytes).to_owned();
    let Ok(found) = read_all(&[path.clone()]) else { return };
    if let Ok(journal) = JournalFile::lock(path.clone()) {
        let opened = journal.open(&found.header, false).unwrap();
        assert_eq!(opened.measured.len(), found.measured.len());
    }
    write(&path, &found.header, &found.measured).unwrap();
    let again = read_all(&[path]).unwrap();
    assert!(again.incomplete.is_empty() && again.measured.len() == found.measured.len());
});
