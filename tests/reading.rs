//! Peak memory of reading a Matrix Market file.

use sparseop::matrix::{gallery, market};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Allocator that counts the bytes in use, and the most there have been.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(IN_USE.fetch_add(layout.size(), SeqCst) + layout.size(), SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(IN_USE.fetch_add(layout.size(), SeqCst) + layout.size(), SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_file_is_read_without_its_text_in_memory() {
    /// A window of the text, and working memory of the threads.
    const WINDOW: usize = 32 << 20;
    let folder = tempfile::tempdir().unwrap();
    let a = "femrandom,nodes=10k".parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
    let arrays = size_of_val(a.row_ptr()) + size_of_val(a.col_idx()) + size_of_val(a.values());
    for name in ["a.mtx", "a.mtx.gz"] {
        let path = folder.path().join(name);
        market::write(&path, a.view()).unwrap();
        let before = IN_USE.load(SeqCst);
        PEAK.store(before, SeqCst);
        let read = market::read::<f64>(&path).unwrap();
        let peak = PEAK.load(SeqCst) - before;
        assert!(read == a);
        // The entries in the order of the file, and the arrays that they become.
        assert!(peak <= arrays * 9 / 4 + WINDOW, "{name}: {peak} bytes for {arrays}");
    }
    // Comments and lines without an end are refused before they are in memory.
    let banner = "%%MatrixMarket matrix coordinate real general\n";
    let long = "% words\n".repeat(2 * WINDOW / 8);
    let blank = " ".repeat(2 * WINDOW);
    for lines in [long + "1 1 1\n", "1 1 1\n".to_owned() + &blank] {
        let path = folder.path().join("long.mtx");
        std::fs::write(&path, banner.to_owned() + &lines).unwrap();
        let before = IN_USE.load(SeqCst);
        PEAK.store(before, SeqCst);
        let refused = market::read::<f64>(&path).unwrap_err().to_string();
        let peak = PEAK.load(SeqCst) - before;
        assert!(refused.contains("have more than 16777216 bytes"), "{refused}");
        assert!(peak <= WINDOW, "{peak} bytes");
    }
}
