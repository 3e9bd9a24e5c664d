//! Children of fork that use operators, and processes with little memory.
#![cfg(target_os = "linux")]

use sparseop_c::*;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

/// Creates the operator of a matrix on the CPU.
fn create(
    (nrows, ncols): (usize, usize),
    (offsets, columns, values): (&[i64], &[i32], &[f64]),
    flags: u32,
) -> (sparseop_status, *mut sparseop_operator) {
    let matrix = sparseop_csr {
        nrows,
        ncols,
        nnz: values.len(),
        scalar: SPARSEOP_F64,
        offset_bits: 64,
        row_offsets: offsets.as_ptr().cast(),
        columns: columns.as_ptr(),
        values: values.as_ptr().cast(),
    };
    let options = sparseop_options {
        device: SPARSEOP_DEVICE_CPU,
        ordinal: 0,
        expected_calls: 0,
        memory_limit: 0,
        flags,
        plan: null(),
    };
    let mut operator = null_mut();
    // SAFETY: the arrays have their lengths.
    let status = unsafe { sparseop_create(&matrix, &options, &mut operator) };
    (status, operator)
}

/// Runs `child` in a child of this process, and returns its exit code, or none if it does not end
/// in a minute.
fn in_child(child: impl FnOnce() -> i32) -> Option<i32> {
    // SAFETY: the child only runs the closure and exits; no other thread is in the library.
    let id = unsafe { libc::fork() };
    assert!(id >= 0);
    if id == 0 {
        // A panic would end the test's thread alone, and the process with 0.
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) };
    }
    let patience = Instant::now() + Duration::from_secs(60);
    let mut status = 0;
    // SAFETY: the child of above, with room for its status.
    while unsafe { libc::waitpid(id, &mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > patience {
            // SAFETY: as above.
            unsafe {
                libc::kill(id, libc::SIGKILL);
                libc::waitpid(id, &mut status, 0);
            }
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 })
}

/// One test, because the parts change the process.
#[test]
fn children_of_fork_compute_and_little_memory_is_an_error() {
    // Large enough that products, analysis and packing are shared among threads.
    const ROWS: usize = 300_000;
    let offsets: Vec<i64> = (0..=ROWS as i64).map(|row| 3 * row).collect();
    let columns: Vec<i32> = (0..ROWS as i32)
        .flat_map(|row| [0, 1, 2].map(|k| (row * 7 + k * 1001) % ROWS as i32))
        .collect();
    let values: Vec<f64> = (0..columns.len()).map(|k| 1.0 + k as f64 / 3.0).collect();
    let arrays = (&offsets[..], &columns[..], &values[..]);
    let (status, operator) = create((ROWS, ROWS), arrays, 0);
    assert_eq!(status, sparseop_status::Ok);
    let x = vec![1.5f64; ROWS];
    let apply = |operator: *mut sparseop_operator| {
        let mut y = vec![0.0f64; ROWS];
        let (from, to) = (x.as_ptr().cast(), y.as_mut_ptr().cast());
        // SAFETY: the vectors have their lengths.
        let status = unsafe { sparseop_apply(operator, from, ROWS, to, ROWS) };
        assert_eq!(status, sparseop_status::Ok);
        y
    };
    let expected = apply(operator);
    let of_parent = in_child(|| i32::from(apply(operator) != expected));
    assert_eq!(of_parent, Some(0), "products with an operator of the parent");
    let of_child = in_child(|| {
        let (status, own) = create((ROWS, ROWS), arrays, SPARSEOP_TRANSPOSE);
        i32::from(status != sparseop_status::Ok || apply(own).len() != ROWS)
    });
    assert_eq!(of_child, Some(0), "an operator of the child");
    assert_eq!(apply(operator), expected, "the parent is not affected");

    // A transposed matrix of 34 GB: its row offsets.
    let small = in_child(|| {
        let limit = libc::rlimit { rlim_cur: 16 << 30, rlim_max: 16 << 30 };
        // SAFETY: a valid limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        let wide = create((1, 4_294_967_294), (&[0, 1], &[7], &[1.0]), SPARSEOP_TRANSPOSE);
        wide.0 as i32
    });
    assert_eq!(small, Some(sparseop_status::OutOfMemory as i32));

    // Only blocks of less than 512 bytes are left: the C library itself aborts without them.
    let nothing = in_child(|| {
        // SAFETY: a valid limit, and memory that is kept to the end of the process.
        unsafe {
            let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
            for bytes in (9..20).rev().map(|power| 1 << power) {
                while !std::hint::black_box(libc::malloc(bytes)).is_null() {}
            }
        }
        create((ROWS, ROWS), arrays, SPARSEOP_TRANSPOSE).0 as i32
    });
    assert_eq!(nothing, Some(sparseop_status::OutOfMemory as i32));
}
