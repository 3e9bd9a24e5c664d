//! A product allocates nothing.

use sparseop::matrix::gallery;
use sparseop::{Plan, SparseOpBuilder, Tuning, formats::FormatKind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tries of which the one with the fewest allocations counts. What allocates at every product does
/// so in every try. On a busy machine a thread may take part, and allocate what is its own, for the
/// first time in a late one, and the test's own runner reports that it is slow.
const TRIES: usize = 10;

/// Allocations of a hundred products, and as many that are scaled.
fn allocations(pool: &rayon::ThreadPool, plan: &Plan, spec: &str) -> usize {
    let a = spec.parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
    let op = SparseOpBuilder::new().tuning(Tuning::Fixed(plan.clone())).build(&a).unwrap();
    let (x, mut y) = (vec![1.0; a.ncols()], vec![0.0; a.nrows()]);
    let mut both = || {
        op.apply(&x, &mut y).unwrap();
        op.apply_with(0.5, &x, -0.5, &mut y).unwrap();
    };
    let mut after = |products: usize| {
        let before = ALLOCATIONS.load(SeqCst);
        (0..products).for_each(|_| both());
        ALLOCATIONS.load(SeqCst) - before
    };
    let mut hundred = || {
        // What is made at the first products is not counted.
        after(10);
        let (mut fewest, mut tries) = (usize::MAX, 0);
        while fewest > 0 && tries < TRIES {
            fewest = fewest.min(after(100));
            tries += 1;
        }
        fewest
    };
    // By the team of threads, and by a pool the caller is in.
    hundred() + pool.install(hundred)
}

#[test]
fn a_product_allocates_nothing() {
    // One for the whole test: threads that end allocate too.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for text in FormatKind::ALL.iter().flat_map(|k| k.examples()) {
        let plan = text.parse().unwrap();
        // One that a thread does alone, and one that is shared.
        for spec in ["banded,rows=500", "banded,rows=50k"] {
            assert_eq!(allocations(&pool, &plan, spec), 0, "{text} on {spec}");
        }
    }
}
