//! Faults that the sanitizers have to find: the argument names one.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;

struct Shared(UnsafeCell<u64>);

// SAFETY: none, which is the fault.
unsafe impl Sync for Shared {}

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
            static SHARED: Shared = Shared(UnsafeCell::new(0));
            let both = Barrier::new(2);
            let add = || {
                both.wait();
                for _ in 0..10_000 {
                    // SAFETY: none, which is the fault.
                    unsafe { *SHARED.0.get() += 1 };
                }
            };
            thread::scope(|scope| {
                scope.spawn(&add);
                scope.spawn(&add);
            });
            // SAFETY: both threads have ended.
            println!("{}", unsafe { *SHARED.0.get() });
        }
        other => panic!("no such fault: {other:?}"),
    }
}
