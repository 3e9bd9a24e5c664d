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

/// Highest resident set of this process so far, in bytes.
#[cfg(target_os = "linux")]
fn peak_resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches("kB").trim_end().parse::<usize>().unwrap() << 10
}

/// A file with 80 entries in every row or column, by row, by column, or in no order.
#[cfg(target_os = "linux")]
fn write_entries(path: &std::path::Path, symmetry: &str, order: &str, n: u64) {
    use std::io::{BufWriter, Write};
    const PER_ROW: u64 = 80;
    let count = n * PER_ROW;
    let mut file: Box<dyn Write> = Box::new(std::fs::File::create(path).unwrap());
    if path.extension().is_some_and(|end| end == "gz") {
        file = Box::new(flate2::write::GzEncoder::new(file, flate2::Compression::fast()));
    }
    let mut file = BufWriter::new(file);
    let is_symmetric = symmetry == "symmetric";
    let field = if is_symmetric { "pattern" } else { "integer" };
    writeln!(file, "%%MatrixMarket matrix coordinate {field} {symmetry}\n{n} {n} {count}").unwrap();
    for k in 0..count {
        // A prime factor visits every number once.
        let k = if order == "none" { k * 0x9e37_79b1 % count } else { k };
        let (line, place) = (k / PER_ROW, k % PER_ROW);
        if is_symmetric {
            let other = (line + place * 1001) % n;
            writeln!(file, "{} {}", line.max(other) + 1, line.min(other) + 1).unwrap();
            continue;
        }
        let other = (line * 31 + place * 1001) % n;
        let (row, col) = if order == "row" { (line, other) } else { (other, line) };
        writeln!(file, "{} {} {}", row + 1, col + 1, k * 0x9e37_79b1 % 1_000_003).unwrap();
    }
    file.flush().unwrap();
}

/// Reads a file and builds the operator, and compares the peak of memory with what stays.
#[cfg(target_os = "linux")]
fn read_and_build<T: sparseop::Scalar>(path: &std::path::Path) {
    /// A window of the text, and working memory of two threads.
    const WINDOW: usize = 24 << 20;
    let before = peak_resident();
    let a = market::read::<T>(path).unwrap();
    let peak = peak_resident() - before;
    let arrays = size_of_val(a.row_ptr()) + size_of_val(a.col_idx()) + size_of_val(a.values());
    println!("reading: {peak} bytes for {arrays}: {:.3}", peak as f64 / arrays as f64);
    assert!(peak <= arrays / 10 * 13 + WINDOW, "{peak} bytes for {arrays}");
    let builder = sparseop::SparseOpBuilder::new().device(sparseop::Device::Cpu);
    let op = builder.build(&a).unwrap();
    let (peak, packed) = (peak_resident() - before, op.memory_bytes() as usize);
    println!("building {}: {peak} bytes for {arrays} and {packed}", op.plan());
    // CSR is packed, too, for the check of the plan.
    let most = arrays / 10 * 13 + packed.max(arrays) + WINDOW;
    assert!(peak <= most, "{peak} bytes for {arrays} and {packed}");
}

#[test]
#[cfg(target_os = "linux")]
fn little_more_than_the_matrix_is_in_memory() {
    /// Environment variable of a process that reads a file.
    const CHILD: &str = "SPARSEOP_TEST_READ";
    if let Some(path) = std::env::var_os(CHILD).map(std::path::PathBuf::from) {
        return match path.to_string_lossy().contains("f32") {
            true => read_and_build::<f32>(&path),
            false => read_and_build::<f64>(&path),
        };
    }
    let folder = tempfile::tempdir().unwrap();
    let test = "little_more_than_the_matrix_is_in_memory";
    for (name, symmetry, order) in [
        ("f32.mtx", "general", "column"),
        ("f64.mtx", "general", "none"),
        ("symmetric_f64.mtx", "symmetric", "column"),
        ("f64.mtx.gz", "general", "row"),
    ] {
        let path = folder.path().join(name);
        write_entries(&path, symmetry, order, if symmetry == "general" { 100_000 } else { 50_000 });
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", test, "--nocapture"]).env(CHILD, &path);
        let output = child.env("RAYON_NUM_THREADS", "2").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{name}: {said}");
        assert!(output.status.success() && said.contains("1 passed"), "{name}: {said}");
        std::fs::remove_file(&path).unwrap();
    }
}
