//! Faults that the sanitizers have to find: the argument names one.

use std::hint::black_box;
use std::thread;

static mut COUNT: u64 = 0;

/// Number of additions, large enough that the threads overlap: the sanitizer cannot tell a thread
/// from one that has ended.
const MANY: usize = 1_000_000;

/// Pairs of threads. On a busy machine those of a pair may run one after the other.
const PAIRS: usize = 10;

fn count() {
    for _ in 0..MANY {
        // SAFETY: none, which is the fault.
        unsafe { COUNT += 1 };
    }
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
            for _ in 0..PAIRS {
                let threads = [thread::spawn(count), thread::spawn(count)];
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            }
            // SAFETY: all threads have ended.
            println!("{}", unsafe { COUNT });
        }
        other => panic!("no such fault: {other:?}"),
    }
}
