//! Calls of the GPU driver that fail, one after the other, and a GPU that is lost at any of them:
//! a typed error or a right answer, and an operator that never multiplies wrongly afterwards.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "driver_faults/library.rs"]
mod library;

use library::{
    Faults, Results, Trial, build, function, in_process_with_library, leave_out, output,
};
use sparseop::device::{DeviceArray, ForeignCsr, Offsets};
use sparseop::formats::FormatKind;
use sparseop::matrix::{CsrMatrix, gallery};
use sparseop::{
    Device, DeviceVec, Error, ErrorKind, Layout, Multivector, SparseOp, SparseOpBuilder, Stream,
    Tuning,
};
use sparseop_solvers::{Method, Settings, SolverBuilder};
use std::ffi::c_int;
use std::process::Command;
use std::{env, fs};

fn matrix() -> CsrMatrix<f64> {
    "poisson3d,n=14,values=laplacian".parse::<gallery::Spec>().unwrap().generate().unwrap()
}

/// Builds an operator and uses it. The results that are complete are in `done`.
fn work(
    gpu: &Device,
    tuning: &Tuning,
    a: &CsrMatrix<f64>,
    op: &mut Option<SparseOp<f64>>,
    done: &mut Results,
) -> Result<(), Error> {
    const VECTORS: usize = 2;
    let builder = SparseOpBuilder::new().device(gpu.clone()).updatable(true);
    let op = op.insert(builder.tuning(tuning.clone()).build(a)?);
    let (x, mut y) = (vec![1.0; a.ncols()], vec![0.5; a.nrows()]);
    op.apply(&x, &mut y)?;
    done.push(y.clone());
    op.apply_with(0.5, &x, -0.5, &mut y)?;
    done.push(y.clone());
    let (many, mut results) = (vec![1.0; VECTORS * a.ncols()], vec![0.0; VECTORS * a.nrows()]);
    op.apply_multi(
        Multivector::new(&many[..], VECTORS, Layout::RowMajor),
        Multivector::new(&mut results[..], VECTORS, Layout::RowMajor),
    )?;
    done.push(results);
    op.apply_transpose(&x, &mut y)?;
    done.push(y.clone());
    let stream = Stream::new(gpu)?;
    let there = DeviceVec::from_slice(gpu, &x)?;
    let mut product = DeviceVec::zeros(gpu, a.nrows())?;
    let graph = stream.capture(&mut || op.apply_device(&stream, &there, &mut product))?;
    graph.launch(&stream)?;
    stream.synchronize()?;
    drop(graph);
    done.push(product.to_vec()?);
    op.update_values(a.values())?;
    op.apply(&x, &mut y)?;
    done.push(y.clone());
    let mut solution = vec![0.0; a.ncols()];
    let settings = Settings { max_iterations: 40, ..Settings::default() };
    SolverBuilder::new(Method::Cg).settings(settings).build(op)?.solve(&x, &mut solution)?;
    done.push(solution);
    Ok(())
}

/// The plan with this name, or a check of the predicted one.
fn tuning(name: &str) -> Tuning {
    match name {
        "check" => Tuning::Check,
        plan => Tuning::Fixed(plan.parse().unwrap()),
    }
}

/// Failures of every kind in `work`, which builds an operator for `a` and uses it.
fn failures_in(
    faults: &Faults,
    (name, failures): (&str, Option<usize>),
    a: &CsrMatrix<f64>,
    work: impl Fn(&mut Option<SparseOp<f64>>, &mut Results) -> Result<(), Error>,
) {
    let mut right = Results::new();
    // The first time loads kernels.
    for _ in 0..2 {
        right.clear();
        if let Err(error) = work(&mut None, &mut right) {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
        }
    }
    let kinds = &[ErrorKind::OutOfMemory, ErrorKind::Gpu];
    let trial = Trial { name, right: &right, kinds, failures, gpus: 1 };
    let multiply = |op: &SparseOp<f64>| {
        let mut y = vec![0.0; a.nrows()];
        op.apply(&vec![1.0; a.ncols()], &mut y).map(|()| y)
    };
    trial.run(faults, work, multiply);
}

/// Every failure of every kind, for a plan of each format, `csr(balanced)` and a check.
fn every_failure(faults: &Faults) {
    let (gpu, a) = (Device::cuda(0).unwrap(), matrix());
    let all = env::var_os("SPARSEOP_TEST_LARGE").is_some();
    let plans = |kind: &FormatKind| kind.examples().iter().take(if all { usize::MAX } else { 1 });
    let plans: Vec<&str> = FormatKind::ALL.iter().flat_map(plans).copied().collect();
    for name in ["check", "csr(balanced)"].into_iter().chain(plans) {
        let tuning = tuning(name);
        failures_in(faults, (name, None), &a, |op, done| work(&gpu, &tuning, &a, op, done));
    }
}

/// Plans that a GPU packs itself: without and with sorting in and beyond a block, with codes of
/// values, long rows and wide slices; SELL, JDS, and cache blocks of either kind.
const PACKED: [&str; 9] = [
    "psell(sigma:1)",
    "psell(sigma:1,values:packed,group:4,split:60)",
    "psell(sigma:512)",
    "psell(sigma:100000)",
    "sell(c:32,sigma:1)",
    "sell(c:32,sigma:512)",
    "jds(sections:auto,tail:auto)",
    "blocked(kib:192)",
    "blocked(hot:1,values:packed)",
];

/// Plans that a GPU packs in other steps if rows are not sorted by column.
const PACKED_UNSORTED: [&str; 2] = ["blocked(kib:192)", "blocked(hot:1)"];

/// A matrix of 81,000 entries with one long row and three values. Rows are sorted by column, or in
/// the opposite order.
fn matrix_to_pack(is_sorted: bool) -> CsrMatrix<f64> {
    const ROWS: usize = 16_000;
    let (mut row_ptr, mut col_idx, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..ROWS {
        let (first, distance, len) = match row {
            777 => (0, 1, 9_000),
            _ => (5 * row % 15_000, 97, 3 + row % 4),
        };
        let cols = (0..len).map(|k| (first + k * distance) as u32);
        match is_sorted {
            true => col_idx.extend(cols),
            false => col_idx.extend(cols.rev()),
        }
        values.extend((0..len).map(|k| (1 + k % 3) as f64));
        row_ptr.push(col_idx.len());
    }
    CsrMatrix::try_new(ROWS, ROWS, row_ptr, col_idx, values).unwrap()
}

/// Multiplies with an operator before and after new values, which are the same.
fn use_briefly(
    a: &CsrMatrix<f64>,
    op: &mut SparseOp<f64>,
    done: &mut Results,
) -> Result<(), Error> {
    let (x, mut y) = (vec![1.0; a.ncols()], vec![0.5; a.nrows()]);
    op.apply(&x, &mut y)?;
    done.push(y.clone());
    op.update_values(a.values())?;
    op.apply(&x, &mut y)?;
    done.push(y);
    Ok(())
}

/// Every failure of every kind while a GPU analyses and packs a matrix that is in its memory, or
/// packs one of the host; some of those in a check.
fn failures_in_packing(faults: &Faults) {
    const IN_CHECK: usize = 100;
    let gpu = &Device::cuda(0).unwrap();
    let new = |name: &str| {
        SparseOpBuilder::new().device(gpu.clone()).updatable(true).tuning(tuning(name))
    };
    for (is_sorted, plans) in [(true, &PACKED[..]), (false, &PACKED_UNSORTED)] {
        let a = &matrix_to_pack(is_sorted);
        let row_ptr = DeviceArray::from_slice(gpu, a.row_ptr()).unwrap();
        let col_idx = DeviceArray::from_slice(gpu, a.col_idx()).unwrap();
        let values = DeviceArray::from_slice(gpu, a.values()).unwrap();
        let (offsets, shape) = (Offsets::Bits64(row_ptr.address()), (a.nrows(), a.ncols()));
        let (cols, values_at) = (col_idx.address(), values.address());
        // SAFETY: the arrays are those of the matrix, and outlive the operators.
        let there = unsafe {
            ForeignCsr::<f64>::from_raw(gpu, shape, a.nnz(), offsets, cols, values_at).unwrap()
        };
        let build =
            |builder: &SparseOpBuilder| builder.build_from_device(&Stream::new(gpu)?, &there);
        for &name in plans {
            let (builder, name) = (new(name), format!("{name}, sorted: {is_sorted}"));
            // An analysis or packing on the host ends with a copy to the GPU, which takes time.
            let upload = build(&builder).unwrap().preparation().upload;
            assert_eq!(upload, 0.0, "{name}: the GPU has not packed");
            failures_in(faults, (&name, None), a, |op, done| {
                use_briefly(a, op.insert(build(&builder)?), done)
            });
        }
        failures_in(faults, ("a check on the GPU", Some(IN_CHECK)), a, |op, done| {
            use_briefly(a, op.insert(build(&new("check"))?), done)
        });
        for (name, failures) in [(plans[0], None), ("check", Some(IN_CHECK))] {
            let (builder, of_host) = (new(name), format!("{name} of the host"));
            failures_in(faults, (&of_host, failures), a, |op, done| {
                use_briefly(a, op.insert(builder.build(a)?), done)
            });
        }
    }
    let a = &matrix_of_many_values();
    for (name, failures) in [("csr(scalar)", None), ("check", Some(IN_CHECK))] {
        let (builder, many) = (new(name), format!("{name} of many values"));
        failures_in(faults, (&many, failures), a, |op, done| {
            use_briefly(a, op.insert(builder.build(a)?), done)
        });
    }
}

/// A matrix with values of more than 4 MiB, which a thread copies while the GPU analyses the rest.
fn matrix_of_many_values() -> CsrMatrix<f64> {
    let a: CsrMatrix<f64> = "stencil27,n=30".parse::<gallery::Spec>().unwrap().generate().unwrap();
    assert!(size_of_val(a.values()) > 1 << 22);
    a
}

/// Builds the library for a driver that computes nothing; the folder of the library, and its path.
fn empty_driver() -> Option<(tempfile::TempDir, String)> {
    let folder = tempfile::tempdir().unwrap();
    let (source, driver) = (folder.path().join("own.c"), folder.path().join("own.so"));
    let code = "int cuMemAlloc_v2(unsigned long *to, unsigned long n) { *to = n; return 0; }\n\
                int cuMemAllocFromPoolAsync(unsigned long *to, unsigned long n, int *pool, int *s)\
                { *to = n; return pool && !s ? 0 : 1; }\n\
                int cuMemFree_v2(unsigned long at) { return at == 7 ? 0 : 1; }\n\
                int cuMemGetInfo_v2(unsigned long *free, unsigned long *all) {\n\
                *free = *all = 99; return 0; }\n\
                int cuLaunchKernel(int a, int b, int c, int d, int e, int f, int g, int h) {\n\
                return a + 10 * b + 100 * (c + d + e + f) + 1000 * g + 10000 * h; }\n";
    fs::write(&source, code).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&driver).arg(&source);
    let built = output(&mut compiler).and_then(|_| build(folder.path(), driver.to_str().unwrap()));
    if let Err(reason) = built {
        leave_out(&reason);
        return None;
    }
    let path = folder.path().join("libcuda.so").to_str().unwrap().to_owned();
    Some((folder, path))
}

type Allocate = unsafe extern "C" fn(*mut u64, u64) -> c_int;
type Free = unsafe extern "C" fn(u64) -> c_int;

#[test]
fn the_library_passes_calls_on_counts_and_refuses_them() {
    let Some((_folder, library)) = empty_driver() else { return };
    let (library, faults) = (library.as_str(), Faults::load(&library));
    type AllocateFrom = unsafe extern "C" fn(*mut u64, u64, usize, usize) -> c_int;
    type Ask = unsafe extern "C" fn(*mut u64, *mut u64) -> c_int;
    type Start =
        unsafe extern "C" fn(c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int) -> c_int;
    // SAFETY: the functions have these types.
    let (allocate, allocate_from, free, ask, start) = unsafe {
        (
            function::<Allocate>(library, c"cuMemAlloc_v2"),
            function::<AllocateFrom>(library, c"cuMemAllocFromPoolAsync"),
            function::<Free>(library, c"cuMemFree_v2"),
            function::<Ask>(library, c"cuMemGetInfo_v2"),
            function::<Start>(library, c"cuLaunchKernel"),
        )
    };
    let mut to = 0;
    // SAFETY: as above.
    let mut calls = || unsafe {
        [allocate(&mut to, 7), start(1, 2, 3, 4, 5, 6, 7, 8), allocate(&mut to, 7), free(7)]
    };
    let started = 1 + 20 + 1800 + 7000 + 80000;
    faults.arm(9, Faults::ALL[0]);
    assert_eq!((calls(), faults.counted(), faults.allocated()), ([0, started, 0, 0], 2, 1));
    faults.arm(1, Faults::ALL[0]);
    assert_eq!((calls(), faults.allocated()), ([0, started, 2, 0], 1));
    faults.arm(1, Faults::ALL[1]);
    assert_eq!((calls(), faults.counted()), ([0, 700, 0, 0], 3));
    faults.arm(1, Faults::ALL[2]);
    assert_eq!((calls(), faults.counted()), ([0, 719, 719, 0], 3));
    faults.disarm();
    assert_eq!((calls(), to), ([0, started, 0, 0], 7));
    let before = faults.allocated();
    faults.arm(1, Faults::ALL[0]);
    // SAFETY: as above.
    let results = unsafe { [(); 2].map(|()| allocate_from(&mut to, 5, 1, 0)) };
    assert_eq!((results, to, faults.allocated()), ([0, 2], 5, before + 1));
    faults.disarm();
    let (mut left, mut all) = (0, 0);
    // SAFETY: as above.
    let mut allocate_and_ask = |bytes| unsafe {
        let result = allocate(&mut to, bytes);
        ask(&mut left, &mut all);
        (result, left, all)
    };
    faults.allow(20);
    assert_eq!([9, 12, 11].map(&mut allocate_and_ask), [(0, 99, 99), (2, 11, 99), (0, 0, 99)]);
    // SAFETY: as above.
    unsafe { free(9) };
    assert_eq!(allocate_and_ask(5), (0, 4, 99));
    faults.allow(0);
    assert_eq!(allocate_and_ask(1 << 40), (0, 99, 99));
}

#[test]
fn errors_that_are_lost_and_memory_that_is_lost_are_noticed() {
    let Some((_folder, library)) = empty_driver() else { return };
    let faults = Faults::load(&library);
    // SAFETY: the functions have these types.
    let (allocate, free) = unsafe {
        (
            function::<Allocate>(&library, c"cuMemAlloc_v2"),
            function::<Free>(&library, c"cuMemFree_v2"),
        )
    };
    let checked = |code: c_int| match code {
        0 => Ok(()),
        code => Err(Error::Gpu {
            device: "cuda:0".to_owned(),
            action: "allocate".to_owned(),
            code: Some(code as u32),
            message: "it fails".to_owned(),
        }),
    };
    let trial = |ignores_errors: bool, frees: bool| {
        let run = || {
            let (right, kinds) = (vec![vec![7.0]], &[ErrorKind::Gpu]);
            let trial = Trial { name: "own", right: &right, kinds, failures: Some(3), gpus: 1 };
            let work = |op: &mut Option<u64>, done: &mut Results| {
                for _ in 0..10 {
                    let mut to = 0;
                    // SAFETY: writes and reads numbers.
                    let result = checked(unsafe { allocate(&mut to, 7) });
                    let allocated = result.is_ok();
                    result.or_else(|error| if ignores_errors { Ok(()) } else { Err(error) })?;
                    if frees && allocated {
                        // SAFETY: as above.
                        unsafe { free(7) };
                    }
                    *op = Some(to);
                    done.push(vec![to as f64]);
                    done.truncate(1);
                }
                Ok(())
            };
            trial.run(&faults, work, |to| Ok(vec![*to as f64]));
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_ok()
    };
    assert_eq!([trial(false, true), trial(true, true), trial(false, false)], [true, false, false]);
}

#[test]
fn every_call_of_the_driver_may_fail() {
    in_process_with_library("every_call_of_the_driver_may_fail", &[], every_failure);
}

#[test]
fn every_call_of_the_driver_may_fail_while_a_gpu_packs() {
    let test = "every_call_of_the_driver_may_fail_while_a_gpu_packs";
    in_process_with_library(test, &[], failures_in_packing);
}

/// Operators are built while another process takes the memory of the GPU: percentages of the bytes
/// of CSR are left for them.
fn little_is_left(faults: &Faults) {
    let a: CsrMatrix<f64> = "fem3d,n=40".parse::<gallery::Spec>().unwrap().generate().unwrap();
    let (x, mut right) = (vec![1.0; a.ncols()], vec![0.0; a.nrows()]);
    let cpu = SparseOpBuilder::new().device(Device::Cpu).build(&a).unwrap();
    cpu.apply(&x, &mut right).unwrap();
    let csr = (a.nnz() * 12) as u64;
    for tuning in [Tuning::Predict, Tuning::Check] {
        // Loads the kernels.
        let builder = SparseOpBuilder::new().tuning(tuning.clone());
        builder.build(&a).unwrap();
        let mut fallbacks = [0; 2];
        for percent in [200, 130, 115, 105, 98, 95, 90, 85, 80, 75, 70, 60, 40, 10] {
            faults.allow(csr * percent / 100);
            let op = builder.build(&a).unwrap();
            let mut y = vec![0.0; a.nrows()];
            op.apply(&x, &mut y).unwrap();
            faults.allow(0);
            let near = y.iter().zip(&right).all(|(y, e)| (y - e).abs() <= 1e-9 * e.abs().max(1.0));
            let fallback = op.decision().fallback.as_deref();
            let what =
                format!("{percent} % of CSR: {} on {}, {fallback:?}", op.plan(), op.device());
            println!("CHILD {tuning:?}, {what}");
            assert!(near, "{what}");
            let is_on_cpu = *op.device() == Device::Cpu;
            assert!(fallback.is_some() || !is_on_cpu, "{what}");
            fallbacks[usize::from(is_on_cpu)] += usize::from(fallback.is_some());
        }
        assert!(
            fallbacks[1] > 0 && (fallbacks[0] > 0 || matches!(tuning, Tuning::Check)),
            "{fallbacks:?}"
        );
    }
}

#[test]
fn memory_that_another_process_takes_makes_plans_smaller() {
    let test = "memory_that_another_process_takes_makes_plans_smaller";
    in_process_with_library(test, &[], little_is_left);
}
