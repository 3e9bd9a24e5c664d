//! A product does not allocate.

use sparseop::matrix::gallery;
use sparseop::{Error, Plan, SparseOpBuilder, Tuning, formats::FormatKind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system allocator.
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

/// Number of attempts, of which the one with the fewest allocations counts. An allocation at every
/// product shows in every attempt. On a busy machine a thread may take part for the first time in a
/// late attempt and allocate its own state, and the test's runner reports that it is slow.
const TRIES: usize = 10;

/// Allocations of a hundred products and of a hundred products with the axpby epilogue.
fn allocations(pools: &[rayon::ThreadPool; 2], plan: &Plan, spec: &str) -> usize {
    let [lone, pool] = pools;
    let a = spec.parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
    let op = match SparseOpBuilder::new().tuning(Tuning::Fixed(plan.clone())).build(&a) {
        // The format does not hold the matrix.
        Err(Error::PlanLimit { .. }) => return 0,
        op => op.unwrap(),
    };
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
    // On one thread, from the second product.
    let alone = lone.install(|| {
        after(1);
        after(10)
    });
    let mut hundred = || {
        // The allocations of the first products are not counted.
        after(10);
        let (mut fewest, mut tries) = (usize::MAX, 0);
        while fewest > 0 && tries < TRIES {
            fewest = fewest.min(after(100));
            tries += 1;
        }
        fewest
    };
    // With the team of threads, and within a pool.
    alone + hundred() + pool.install(hundred)
}

#[test]
fn a_product_allocates_nothing() {
    // The same pools for the whole test: threads that end allocate too.
    let pools =
        [1, 3].map(|threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap());
    // Threads that begin allocate, too: all of them have worked when the first product is counted.
    pools.iter().for_each(|pool| drop(pool.broadcast(|_| ())));
    for text in FormatKind::ALL.iter().flat_map(|k| k.examples()) {
        let plan = text.parse().unwrap();
        // One product on a single thread, and one on several.
        for spec in ["banded,rows=500", "poisson2d,n=200"] {
            assert_eq!(allocations(&pools, &plan, spec), 0, "{text} on {spec}");
        }
    }
}
