//! Faults that the sanitizers have to find: the argument names one.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;

static mut COUNT: u64 = 0;

/// Number of additions of a thread. The sanitizer reports a race only while it remembers both
/// accesses: they are few.
const ADDITIONS: usize = 100;

/// Adds to the count, and ends when both threads have: an access of a thread that has ended is not
/// remembered.
fn count(both: &Barrier) {
    for _ in 0..ADDITIONS {
        // SAFETY: none, which is the fault.
        unsafe { COUNT += 1 };
    }
    both.wait();
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        // Reads beyond the end of an allocation.
        Some("overflow") => {
            let list = vec![1u64; black_box(4)];
            // SAFETY: none, which is the fault.
            println!("{}", unsafe { *black_box(list.as_ptr()).add(4) });
        }
        // Reads memory that was freed.
        Some("freed") => {
            let list = vec![1u64; black_box(4)];
            let from = black_box(list.as_ptr());
            drop(list);
            // SAFETY: none, which is the fault.
            println!("{}", unsafe { *from });
        }
        // Two threads write without an order.
        Some("race") => {
            let both = Barrier::new(2);
            thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(|| count(&both)))));
            // SAFETY: all threads have ended.
            println!("{}", unsafe { COUNT });
        }
        other => panic!("no such fault: {other:?}"),
    }
}
