//! A file of any bytes in the kernel cache is the entry of its name, as it is stored, or a miss.
//!
//! The bytes are edits of an intact entry: few others have a checksum that fits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sparseop::device::KernelCache;
use sparseop_fuzz::edited;
use std::sync::LazyLock;
use std::{fs, process};

static CACHE: LazyLock<KernelCache> = LazyLock::new(|| {
    KernelCache::below(&sparseop_fuzz::folder().join(format!("sparseop-fuzz-{}", process::id())))
});

const NAME: &str = "csr-sm_90-00000000000000000000000000000001";
const OTHER: &str = "csr-sm_90-00000000000000000000000000000002";

fuzz_target!(|input: (&[u8], &[u8])| {
    let (code, edits) = input;
    CACHE.store(NAME, code).unwrap();
    assert_eq!(CACHE.load(NAME).as_deref(), Some(code));
    let whole = fs::read(CACHE.path(NAME)).unwrap();
    fs::copy(CACHE.path(NAME), CACHE.path(OTHER)).unwrap();
    assert_eq!(CACHE.load(OTHER), None);

    let written = edited(&whole, edits);
    fs::write(CACHE.path(NAME), &written).unwrap();
    let found = CACHE.load(NAME);
    assert!(found.is_some() || written != whole);
    if let Some(code) = found {
        CACHE.store(NAME, &code).unwrap();
        assert_eq!(fs::read(CACHE.path(NAME)).unwrap(), written);
    }
});
