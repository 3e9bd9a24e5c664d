//! The operator and its builder.

use super::lazy::get_or_make;
use super::*;
use crate::testing::{Oracle, chapter, x_vector};
use crate::{Layout, Multivector};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[test]
fn vectors_of_wrong_length_are_refused_and_y_is_untouched() {
    let op = SparseOp::auto(&chapter::matrix::<f32>()).unwrap();
    let mut y = [7.0; 4];
    let wrong = op.apply(&[1.0; 3], &mut y).unwrap_err().to_string();
    assert!(wrong.contains("`x` has 3 elements, but the matrix is 4 x 4 and needs 4"), "{wrong}");
    assert!(
        op.apply(&[1.0; 4], &mut y[..2]).unwrap_err().to_string().contains("`y` has 2 elements")
    );
    assert_eq!(y, [7.0; 4]);
}

#[test]
fn handles_are_send_and_sync() {
    fn require<T: Send + Sync>() {}
    require::<SparseOp<f64>>();
    require::<crate::DeviceVec<f32>>();
    require::<crate::Stream>();
    require::<crate::Graph>();
}

#[test]
fn one_operator_serves_many_threads() {
    fn shared<O: Send + Sync>(_: &O) {}
    let (text, rounds) = match cfg!(miri) {
        true => ("webbase,rows=60", 2),
        false => ("webbase,rows=30k", 10),
    };
    let a = text.parse::<crate::matrix::gallery::Spec>().unwrap().generate::<f64>().unwrap();
    let op = SparseOp::auto(&a).unwrap();
    shared(&op);
    let x = x_vector(a.ncols());
    let oracle = Oracle::of(a.view(), &x);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut y = vec![f64::NAN; a.nrows()];
                for _ in 0..rounds {
                    op.apply(&x, &mut y).unwrap();
                    oracle.check(&y).unwrap();
                }
            });
        }
    });
}

#[test]
fn settings_are_followed() {
    let a = chapter::matrix::<f32>();
    let plan: Plan = "jds(diagonals)".parse().unwrap();
    let builder = SparseOpBuilder::new().tuning(Tuning::Fixed(plan.clone()));
    let op = builder.build(&a).unwrap();
    assert_eq!((op.plan(), op.to_csr().unwrap()), (&plan, a.clone()));
    assert_eq!(op.memory_bytes(), op.decision().chosen().unwrap().work.matrix_bytes);
    let refused = builder.memory_limit(10).build(&a).unwrap_err();
    assert!(refused.to_string().contains("but the limit is 10 bytes"), "{refused}");
}

#[test]
fn a_calibrated_operator_multiplies_with_the_winner() {
    let a = "webbase,rows=20k"
        .parse::<crate::matrix::gallery::Spec>()
        .unwrap()
        .generate::<f64>()
        .unwrap();
    let (x, mut y) = (x_vector(a.ncols()), vec![f64::NAN; a.nrows()]);
    for cold in [false, true] {
        let calibration = Calibration { seconds: 0.3, cold, ..Calibration::default() };
        let builder = SparseOpBuilder::new().tuning(Tuning::Calibrate).calibration(calibration);
        let op = builder.build(&a).unwrap();
        let timing_run = op.decision().timing_run().unwrap();
        assert_eq!((&timing_run.winner, timing_run.cold), (op.plan(), cold));
        // The size of packed SELL is estimated from a sample.
        let estimated = op.decision().chosen().unwrap().work.matrix_bytes;
        assert!(
            estimated.abs_diff(op.memory_bytes()) <= estimated / 10,
            "{estimated} bytes were estimated for {}",
            op.plan()
        );
        assert!(op.preparation().check > 0.0 && op.preparation().pack > 0.0);
        op.apply(&x, &mut y).unwrap();
        Oracle::of(a.view(), &x).check(&y).unwrap();
    }
    let nothing = CsrMatrix::<f32>::zeros(0, 0).unwrap();
    SparseOpBuilder::new()
        .tuning(Tuning::Calibrate)
        .build(&nothing)
        .unwrap()
        .apply(&[], &mut [])
        .unwrap();
    let decided = SparseOpBuilder::new().tuning(Tuning::Calibrate);
    let decided = decided.decide(&Analysis::of(a.view()), crate::ScalarKind::F64).unwrap();
    assert!(decided.timing_run().is_none(), "without the matrix there is nothing to time");
}

#[test]
fn memory_limits_hold_on_every_device() {
    let over = |limit| Error::MemoryLimit { plan: "ell".to_owned(), needed: 100, limit };
    let limited = SparseOpBuilder::new().memory_limit(50);
    assert!(SparseOpBuilder::new().is_due_to_gpu(&over(50)));
    assert!(limited.is_due_to_gpu(&over(40)) && !limited.is_due_to_gpu(&over(50)));
    assert!(limited.is_due_to_gpu(&Error::GpuMemory {
        device: "cuda:0".to_owned(),
        needed: 2,
        free: 1
    }));
    let invalid = Error::InvalidMatrix { format: "CSR", message: String::new() };
    assert!(!limited.is_due_to_gpu(&invalid));
    let a = "webbase,rows=3k".parse::<crate::matrix::gallery::Spec>().unwrap();
    let a = a.generate::<f64>().unwrap();
    let csr = (a.nnz() * 12 + (a.nrows() + 1) * 8) as u64;
    let (x, mut y) = (x_vector(a.ncols()), vec![0.0; a.nrows()]);
    let (many, mut results) = (vec![1.0; 4 * a.ncols()], vec![0.0; 4 * a.nrows()]);
    let (mut within, mut refused) = (0, 0);
    for device in crate::testing::devices() {
        for percent in [10, 50, 90, 100, 110, 150, 200, 220, 300] {
            let limit = csr * percent / 100;
            let builder = SparseOpBuilder::new().device(device.clone()).memory_limit(limit);
            let op = match builder.build(&a) {
                Ok(op) => op,
                Err(error) => {
                    assert_eq!(error.kind(), crate::ErrorKind::OutOfMemory, "{error}");
                    refused += 1;
                    continue;
                }
            };
            let transposed = op.apply_transpose(&x, &mut y);
            let spmm = op.apply_multi(
                Multivector::row_major(&many[..], 4),
                Multivector::row_major(&mut results[..], 4),
            );
            for result in [transposed, spmm] {
                match result {
                    Ok(()) => within += 1,
                    Err(error) => {
                        assert_eq!(error.kind(), crate::ErrorKind::OutOfMemory, "{error}");
                        refused += 1;
                    }
                }
                let found = op.memory_bytes();
                assert!(found <= limit, "{found} bytes above {limit} on {device}: {}", op.plan());
            }
        }
    }
    assert!(within > 0 && refused > 0, "{within} within, {refused} refused");
    let mut op = SparseOp::auto(&chapter::matrix::<f32>()).unwrap();
    op.decision.fallback = Some("on the CPU: it is full".to_owned());
    assert!(op.explain().to_string().contains("\ndevice   on the CPU: it is full\n"));
}

#[test]
fn a_task_that_runs_while_a_value_is_made_may_need_the_value() {
    let (sender, receiver) = std::sync::mpsc::channel();
    // A failure leaves the thread behind, waiting for itself.
    std::thread::spawn(move || {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let (cell, making) = (OnceCell::new(), Mutex::new(()));
        // What a thread of a pool may do while it waits for a part of the packing.
        let task = || *get_or_make(&cell, &making, || Ok(1)).unwrap();
        let made = pool.install(|| *get_or_make(&cell, &making, || Ok(task() + 1)).unwrap());
        sender.send((made, cell.get().copied())).unwrap();
    });
    let found = receiver.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(found, Ok((1, Some(1))), "the first value is kept");
}

#[test]
fn tasks_of_a_pool_make_the_first_transposed_products_and_products_of_several_vectors() {
    let text = if cfg!(miri) { "webbase,rows=60" } else { "webbase,rows=500" };
    let a = text.parse::<crate::matrix::gallery::Spec>().unwrap().generate::<f64>().unwrap();
    let (n, transposed) = (a.nrows(), a.transpose());
    let (x, wide) = (x_vector::<f64>(n), x_vector::<f64>(3 * n));
    for threads in [1, 2] {
        let op = SparseOpBuilder::new().device(Device::Cpu).build(&a).unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let [mut first, mut second, mut multi] = [vec![0.0; n], vec![0.0; n], vec![0.0; 3 * n]];
        pool.scope(|scope| {
            scope.spawn(|_| op.apply_transpose(&x, &mut first).unwrap());
            scope.spawn(|_| op.apply_transpose(&x, &mut second).unwrap());
            scope.spawn(|_| {
                let multi = Multivector::row_major(&mut multi[..], 3);
                op.apply_multi(Multivector::row_major(&wide[..], 3), multi).unwrap();
            });
        });
        Oracle::of(transposed.view(), &x).check(&first).unwrap();
        assert_eq!(first, second);
        let columns =
            |v: &[f64], k: usize| v.iter().skip(k).step_by(3).copied().collect::<Vec<_>>();
        for k in 0..3 {
            Oracle::of(a.view(), &columns(&wide, k)).check(&columns(&multi, k)).unwrap();
        }
    }
}

#[test]
fn threads_that_need_a_value_at_once_make_it_once() {
    let (cell, making, made) = (OnceCell::new(), Mutex::new(()), AtomicUsize::new(0));
    let make = || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        Ok(made.fetch_add(1, Relaxed))
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(get_or_make(&cell, &making, make).unwrap(), &0));
        }
    });
    assert_eq!(made.load(Relaxed), 1);
}

#[test]
#[cfg(not(miri))]
fn a_short_product_takes_little_longer_than_its_kernel() {
    use crate::tuning::stopwatch::{Samples, timed};
    /// Products of a batch, and pairs of batches of each kind: together 10⁴ products.
    const BATCHES: (usize, usize) = (20, 500);
    /// Rounds of them while the machine is busy. Both batches of a pair run at the speed that the
    /// other threads of a core leave.
    const ROUNDS: usize = 20;
    /// Seconds that an operator may add to its kernel.
    const OVERHEAD: f64 = 0.3e-6;
    fn batch(mut product: impl FnMut()) -> f64 {
        timed(|| (0..BATCHES.0).for_each(|_| product())).1 / BATCHES.0 as f64
    }
    // Few enough entries for one thread, and products below 10 µs.
    for (spec, plan) in [("banded,rows=200", "csr"), ("sweep,rows=2000,length=1", "sell")] {
        let a = spec.parse::<crate::matrix::gallery::Spec>().unwrap().generate::<f64>().unwrap();
        let builder = SparseOpBuilder::new().device(Device::Cpu);
        let op = builder.tuning(Tuning::Fixed(plan.parse().unwrap())).build(&a).unwrap();
        let ResidentMatrix::Host(matrix) = &op.matrix else { unreachable!("on the CPU") };
        let (x, mut y) = (x_vector(a.ncols()), vec![0.0; a.nrows()]);
        let mut least = f64::INFINITY;
        for _ in 0..ROUNDS {
            let pair = |_| {
                let bare = batch(|| matrix.spmv(&x, &mut y));
                batch(|| op.apply(&x, &mut y).unwrap()) - bare
            };
            let added: Vec<f64> = (0..BATCHES.1).map(pair).collect();
            least = least.min(Samples::from(added).median());
            if least <= OVERHEAD {
                break;
            }
        }
        println!("{spec}, {}: {} ns more than its kernel", op.plan(), (least * 1e9).round());
        assert!(least <= OVERHEAD, "{spec}: {least} s more than its kernel");
    }
}

#[test]
fn two_vectors_are_multiplied_by_spmvs_if_rows_are_short_and_gathers_local() {
    let limit = |text: &str, plan: &str, layout| {
        let a = text.parse::<crate::matrix::gallery::Spec>().unwrap().generate::<f64>().unwrap();
        let fixed = Tuning::Fixed(plan.parse().unwrap());
        let builder = SparseOpBuilder::new().device(Device::Cpu).tuning(fixed);
        builder.build(&a).unwrap().spmm_limit(layout)
    };
    let (short, long) = ("poisson2d,n=80", "banded,rows=5k");
    let scattered = "sweep,rows=200k,length=4,reach=200k";
    for (text, two) in [(short, 2), (long, 0), (scattered, 0)] {
        assert_eq!(limit(text, "sell", Layout::ColumnMajor), two, "{text}");
        assert_eq!(limit(text, "sell", Layout::RowMajor), 0, "{text}");
        assert_eq!(limit(text, "csr", Layout::ColumnMajor), usize::MAX, "{text}");
    }
}
