//! Allocations that fail: one of the size of a matrix, or all from some number on, whose small ones
//! the reserve serves. The result is a typed error or a right answer, and never an abort.
//!
//! Every failure happens in a process of its own, which this test starts: an allocation whose
//! failure is not handled ends the process.

use sparseop::formats::FormatKind;
use sparseop::matrix::{CsrMatrix, gallery, market};
use sparseop::{Device, Error, ErrorKind, Multivector, Reserve, SparseOp, SparseOpBuilder, Tuning};
use sparseop_testkit::gpu;
use std::alloc::{GlobalAlloc, Layout, System};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// Least number of bytes of an allocation that fails alone. Smaller ones are those of tables and
/// threads.
const LARGE: usize = 1 << 16;

/// Environment variable of the process: the work, the number of the first allocation that fails,
/// and which fail.
const CHILD: &str = "SPARSEOP_TEST_FAILING";

struct Failing;

static COUNTED: AtomicUsize = AtomicUsize::new(0);
/// Number of the allocation that fails now, and of the one that was asked for.
static FAILS: AtomicUsize = AtomicUsize::new(usize::MAX);
static FIRST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// True if all allocations of any size are counted and fail from that number on.
static ALL: AtomicBool = AtomicBool::new(false);

impl Failing {
    fn refuses(size: usize) -> bool {
        if ALL.load(SeqCst) {
            return COUNTED.fetch_add(1, SeqCst) >= FAILS.load(SeqCst);
        }
        size >= LARGE && COUNTED.fetch_add(1, SeqCst) == FAILS.load(SeqCst)
    }
}

// SAFETY: every call goes to the system allocator, or fails.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if Self::refuses(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if Self::refuses(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if Self::refuses(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Reserve<Failing> = Reserve::new(Failing);

fn matrix() -> CsrMatrix<f64> {
    "banded,rows=3000".parse::<gallery::Spec>().unwrap().generate().unwrap()
}

/// Sums of the rows: the product with a vector of ones.
fn row_sums(a: &CsrMatrix<f64>) -> Vec<f64> {
    a.row_ptr().windows(2).map(|row| a.values()[row[0]..row[1]].iter().sum()).collect()
}

/// The product of the transposed matrix.
fn transposed_product(a: &CsrMatrix<f64>, x: &[f64]) -> Vec<f64> {
    let mut y = vec![0.0; a.ncols()];
    for (row, x) in x.iter().enumerate() {
        let (columns, values) = a.view().row(row);
        columns.iter().zip(values).for_each(|(column, value)| y[*column as usize] += value * x);
    }
    y
}

#[track_caller]
fn assert_near(y: &[f64], expected: &[f64]) {
    let is_near = |(y, e): (&f64, &f64)| (y - e).abs() <= 1e-9 * e.abs().max(1.0);
    assert!(y.len() == expected.len() && y.iter().zip(expected).all(is_near));
}

/// Multiplies the values, without an allocation.
fn scale(a: &mut CsrMatrix<f64>, factor: f64) {
    a.values_mut().iter_mut().for_each(|value| *value *= factor);
}

/// Everything that one operator does, with right results. `a` is the matrix of the operator, with
/// other values after an update.
fn use_of(op: &mut SparseOp<f64>, a: &mut CsrMatrix<f64>) -> Result<(), Error> {
    const VECTORS: usize = 2;
    let (x, mut y) = (vec![1.0; a.ncols()], vec![0.0; a.nrows()]);
    let product = row_sums(a);
    op.apply(&x, &mut y)?;
    assert_near(&y, &product);
    op.apply_with(0.5, &x, -0.5, &mut y)?;
    assert_near(&y, &vec![0.0; a.nrows()]);
    let (many, mut y_of_both) = (vec![1.0; VECTORS * a.ncols()], vec![0.0; VECTORS * a.nrows()]);
    let (many, results) = (
        Multivector::new(&many[..], VECTORS, sparseop::Layout::RowMajor),
        Multivector::new(&mut y_of_both[..], VECTORS, sparseop::Layout::RowMajor),
    );
    op.apply_multi(many, results)?;
    let both = product.iter().flat_map(|sum| [*sum; VECTORS]);
    assert_near(&y_of_both, &both.collect::<Vec<_>>());
    op.apply_transpose(&product, &mut y)?;
    assert_near(&y, &transposed_product(a, &product));
    scale(a, 2.0);
    if let Err(error) = op.update_values(a.values()) {
        scale(a, 0.5);
        return Err(error);
    }
    let twice: Vec<f64> = product.iter().map(|sum| 2.0 * sum).collect();
    op.apply(&x, &mut y)?;
    assert_near(&y, &twice);
    op.apply_transpose(&product, &mut y)?;
    assert_near(&y, &transposed_product(a, &product));
    Ok(())
}

/// Generators of every way to a pattern and to values.
const GENERATED: [&str; 4] = [
    "gallery:femrandom,nodes=1k,values=laplacian",
    "gallery:rmat,scale=13,degree=4,values=pattern",
    "gallery:random,nnz=150k,seed=12",
    "gallery:circuit,rows=30k,dense=1,length=30k",
];

/// Prefix of the names of work on a GPU.
const ON_GPU: &str = "cuda/";

/// The work of a process. After a failure the operator multiplies rightly.
fn work(name: &str) -> Result<(), Error> {
    FAILS.store(usize::MAX, SeqCst);
    let mut a = matrix();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mtx");
    market::write(&path, a.view())?;
    let arm = || {
        let asked = std::env::var(CHILD).unwrap();
        let mut words = asked.split(' ').skip(1);
        let number = words.next().unwrap().parse().unwrap();
        FIRST.store(number, SeqCst);
        FAILS.store(number, SeqCst);
        ALL.store(words.next().unwrap() == "all", SeqCst);
        COUNTED.store(0, SeqCst);
    };
    let (device, name) = match name.strip_prefix(ON_GPU) {
        Some(plan) => (gpu().expect("the parent has found one").clone(), plan),
        None => (Device::Cpu, name),
    };
    let builder = SparseOpBuilder::new().device(device).updatable(true);
    let tuning = match name {
        "read" => {
            arm();
            return market::read::<f64>(&path).map(drop);
        }
        "write" => {
            arm();
            return market::write(&path, a.view());
        }
        generated if generated.starts_with(gallery::Spec::PREFIX) => {
            arm();
            return generated.parse::<gallery::Spec>()?.generate::<f64>().map(drop);
        }
        "predict" => Tuning::Predict,
        "check" => Tuning::Check,
        plan => Tuning::Fixed(plan.parse()?),
    };
    arm();
    let mut op = builder.tuning(tuning).build(&a)?;
    let used = use_of(&mut op, &mut a);
    if used.is_err() && reached() {
        FAILS.store(usize::MAX, SeqCst);
        use_of(&mut op, &mut a).expect("there is memory again");
    }
    used
}

/// True if the allocation that fails has come.
fn reached() -> bool {
    COUNTED.load(SeqCst) > FIRST.load(SeqCst)
}

/// True for plans that cannot hold the matrix, or whose values cannot be updated.
fn is_refused(name: &str) -> bool {
    let text = name.strip_prefix(ON_GPU).unwrap_or(name);
    let Ok(plan) = text.parse() else { return false };
    let builder = SparseOpBuilder::new().device(Device::Cpu).updatable(true);
    let built = builder.tuning(Tuning::Fixed(plan)).build(&matrix());
    built.is_err_and(|error| error.kind() == ErrorKind::Unsupported)
}

/// Failures from allocation `number` on, which a process of its own reports, and true unless the
/// work ended before it.
fn failure(test: &str, name: &str, number: usize, which: &str, wrong: &mut Vec<String>) -> bool {
    let child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, format!("{name} {number} {which}"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("CHILD")).unwrap_or_default();
    let is_right = line.starts_with("CHILD done")
        || line.starts_with(&format!("CHILD {:?}", ErrorKind::OutOfMemory))
        || (is_refused(name) && line.starts_with(&format!("CHILD {:?}", ErrorKind::Unsupported)));
    if !is_right {
        let message = String::from_utf8_lossy(&child.stderr).into_owned();
        wrong.push(format!("{name}, {which} {number}: {line} {message}"));
    }
    line.contains("true")
}

/// Does the work that the parent asks for, and reports it; false in the parent.
fn is_child() -> bool {
    let Ok(asked) = std::env::var(CHILD) else { return false };
    let done = work(asked.split(' ').next().unwrap());
    let reached = reached();
    FAILS.store(usize::MAX, SeqCst);
    match done {
        Ok(()) => println!("\nCHILD done {reached}"),
        Err(error) => println!("\nCHILD {:?} {reached}: {error}", error.kind()),
    }
    true
}

/// Names of all kinds of work: with the variable every example of a plan, otherwise one of each
/// format.
fn works() -> impl Iterator<Item = &'static str> {
    let all = std::env::var_os("SPARSEOP_TEST_LARGE").is_some();
    let examples = move |kind: &FormatKind| {
        kind.examples().iter().copied().take(if all { usize::MAX } else { 1 })
    };
    let plans = FormatKind::ALL.iter().flat_map(examples);
    ["read", "write", "predict", "check"].into_iter().chain(GENERATED).chain(plans)
}

/// Lets every large allocation of each kind of work fail alone; returns the number of failures.
fn fail_one_by_one(test: &str, works: impl Iterator<Item = String>) -> usize {
    let mut failures = 0;
    let mut wrong = Vec::new();
    for name in works {
        let mut fails = |number: &usize| failure(test, &name, *number, "one", &mut wrong);
        let count = (0..1000).take_while(|number| fails(number)).count();
        assert!(count < 1000, "{name}");
        failures += count;
    }
    eprintln!("{failures} failed allocations");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    failures
}

#[test]
fn every_large_allocation_may_fail() {
    if is_child() {
        return;
    }
    let works = works().map(str::to_owned);
    let failures = fail_one_by_one("every_large_allocation_may_fail", works);
    assert!(failures > 100, "{failures}");
}

#[test]
fn every_large_allocation_may_fail_with_a_gpu() {
    if is_child() || gpu().is_none() {
        return;
    }
    let plans = FormatKind::ALL.iter().map(|kind| kind.examples()[0]);
    let works = ["predict", "check"].into_iter().chain(plans).map(|plan| format!("{ON_GPU}{plan}"));
    let failures = fail_one_by_one("every_large_allocation_may_fail_with_a_gpu", works);
    assert!(failures > 20, "{failures}");
}

#[test]
fn memory_may_end_at_any_allocation() {
    if is_child() {
        return;
    }
    // Numbers of allocations grow by this factor, so that a few dozen are tried of many thousand.
    let step = if std::env::var_os("SPARSEOP_TEST_LARGE").is_some() { 1.02 } else { 1.3 };
    let mut failures = 0;
    let mut wrong = Vec::new();
    for name in works() {
        let mut number = 0;
        while failure("memory_may_end_at_any_allocation", name, number, "all", &mut wrong) {
            failures += 1;
            number = ((number as f64 * step) as usize).max(number + 1);
        }
    }
    eprintln!("memory ended {failures} times");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(failures > 100, "{failures}");
}
