//! Allocations of the size of a matrix that fail, one after the other: a typed error or a right
//! answer, and never an abort.
//!
//! Every failure happens in a process of its own, which this test starts: an allocation whose
//! failure is not handled ends the process.

use sparseop::formats::FormatKind;
use sparseop::matrix::{CsrMatrix, gallery, market};
use sparseop::{Error, ErrorKind, Multivector, SparseOp, SparseOpBuilder, Tuning};
use std::alloc::{GlobalAlloc, Layout, System};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Least number of bytes of an allocation that fails. Smaller ones are those of tables and threads.
const LARGE: usize = 1 << 16;

/// Environment variable of the process: the work, and the number of the allocation that fails.
const CHILD: &str = "SPARSEOP_TEST_FAILING";

struct Failing;

static LARGE_ONES: AtomicUsize = AtomicUsize::new(0);
static FAILS: AtomicUsize = AtomicUsize::new(usize::MAX);

impl Failing {
    fn refuses(size: usize) -> bool {
        size >= LARGE && LARGE_ONES.fetch_add(1, SeqCst) == FAILS.load(SeqCst)
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
static ALLOCATOR: Failing = Failing;

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

/// The work of a process. After a failure the operator multiplies rightly.
fn work(name: &str) -> Result<(), Error> {
    FAILS.store(usize::MAX, SeqCst);
    let mut a = matrix();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mtx");
    market::write(&path, a.view())?;
    let arm = || {
        let number = std::env::var(CHILD).unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        LARGE_ONES.store(0, SeqCst);
        FAILS.store(number, SeqCst);
    };
    let builder = SparseOpBuilder::new().device(sparseop::Device::Cpu).updatable(true);
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
        use_of(&mut op, &mut a).expect("there is memory again");
    }
    used
}

/// True if the allocation that fails has come.
fn reached() -> bool {
    LARGE_ONES.load(SeqCst) > FAILS.load(SeqCst)
}

#[test]
fn every_large_allocation_may_fail() {
    if let Ok(asked) = std::env::var(CHILD) {
        let name = asked.split(' ').next().unwrap();
        let done = work(name);
        let reached = reached();
        FAILS.store(usize::MAX, SeqCst);
        match done {
            Ok(()) => println!("\nCHILD done {reached}"),
            Err(error) => println!("\nCHILD {:?} {reached}: {error}", error.kind()),
        }
        return;
    }
    // With the variable every example of a plan, otherwise one of each format.
    let all = std::env::var_os("SPARSEOP_TEST_LARGE").is_some();
    let plans = |kind: &FormatKind| kind.examples().iter().take(if all { usize::MAX } else { 1 });
    let plans = FormatKind::ALL.iter().flat_map(plans);
    let mut failures = 0;
    let mut wrong = Vec::new();
    let works = ["read", "write", "predict", "check"].into_iter().chain(GENERATED);
    for name in works.chain(plans.copied()) {
        for number in 0.. {
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["every_large_allocation_may_fail", "--exact", "--nocapture"])
                .env(CHILD, format!("{name} {number}"))
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&child.stdout).into_owned();
            let line = text.lines().find(|line| line.starts_with("CHILD")).unwrap_or_default();
            let is_right = line.starts_with("CHILD done")
                || line.starts_with(&format!("CHILD {:?}", ErrorKind::OutOfMemory))
                || line.starts_with(&format!("CHILD {:?} false", ErrorKind::Unsupported));
            if !is_right {
                let message = String::from_utf8_lossy(&child.stderr).into_owned();
                wrong.push(format!("{name}, allocation {number}: {line} {message}"));
            }
            assert!(number < 1000, "{name}: {line}");
            if line.contains("false") || line.is_empty() {
                break;
            }
            failures += 1;
        }
    }
    eprintln!("{failures} failed allocations");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(failures > 100, "{failures}");
}
