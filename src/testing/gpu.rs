//! Tests of GPU-specific behaviour. Without a GPU every test prints a message and passes.

use super::conformance::{fits, product, scattered};
use super::devices::{few_cases, gpu};
use super::{Oracle, x_vector};
use crate::analysis::Analysis;
use crate::device::{CsrSource, Device, DeviceVec, Stream};
use crate::formats::{FormatKind, Plan, ResidentMatrix, Updater};
use crate::matrix::{CsrMatrix, gallery};
use crate::tuning::caches::CacheState;
use crate::tuning::plan_timer::{DevicePlanTimer, PlanTimer, Ready};
use crate::tuning::stopwatch::time_batch;
use crate::{Error, Scalar, SparseOp, SparseOpBuilder, Tuning};
use rayon::prelude::*;
use std::time::Instant;

#[test]
fn ceilings_are_those_of_a_gpu_and_measured_once() {
    let Some(device) = gpu() else { return };
    let ceilings = crate::tuning::ceilings::measure(device).unwrap();
    eprintln!("{ceilings:?}");
    assert!(ceilings.is_valid());
    assert!(ceilings.copy_bandwidth.unwrap() > ceilings.upload_bandwidth.unwrap());
    assert!((0.1..100.0).contains(&ceilings.launch_us.unwrap()));
    assert_eq!(crate::tuning::ceilings::measure(device).unwrap(), ceilings);
}

/// Rows of all lengths, one of them split many times.
fn skewed<T: Scalar>() -> CsrMatrix<T> {
    scattered(9000, 5000, |row| if row == 4000 { 90_000 } else { row % 23 })
}

/// Every plan within the memory limit for the matrix.
fn plans<T: Scalar>(a: &CsrMatrix<T>) -> Vec<Plan> {
    let analysis = Analysis::of(a.view());
    let examples = FormatKind::ALL.iter().flat_map(|kind| kind.examples());
    let mut plans: Vec<Plan> = examples.map(|text| text.parse().unwrap()).collect();
    plans.retain(|plan| fits(plan, &analysis, T::KIND));
    plans
}

#[test]
fn expected_kernels_are_those_that_are_loaded() {
    let Some(Device::Cuda(gpu)) = gpu() else { return };
    let specs = ["poisson3d,n=12", "fem3d,n=6", "rmat,scale=10", "banded,rows=70k,values=pattern"];
    let plans = ["csr(balanced)", "csr(vector:2)", "psell(sigma:512,group:4,values:packed)"];
    let mut expected = Vec::new();
    for (spec, plan) in specs.iter().flat_map(|spec| plans.map(|plan| (spec, plan))) {
        let plan: Plan = plan.parse().unwrap();
        let a = spec.parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
        let analysis = Analysis::of(a.view());
        let bytes = plan.work(&analysis, f64::KIND).matrix_bytes;
        let kernels = plan.gpu_kernels::<f64>(&analysis, bytes, *gpu);
        assert!(kernels.len() > 1, "{plan}");
        operator(&Device::Cuda(*gpu), &plan, &a);
        expected.extend(kernels);
    }
    // Some matrices do not need all kernels that pack. Offsets are made narrow on the GPU only if
    // the matrix is copied before the choice.
    for (module, name) in expected.into_iter().filter(|(_, name)| !name.contains("narrow")) {
        assert!(gpu.is_loaded(module, &name), "{name} of {module}");
    }
}

fn operator<T: Scalar>(device: &Device, plan: &Plan, a: &CsrMatrix<T>) -> SparseOp<T> {
    SparseOpBuilder::new()
        .device(device.clone())
        .tuning(Tuning::Fixed(plan.clone()))
        .build(a)
        .unwrap()
}

#[test]
fn one_row_of_a_million() {
    let Some(device) = gpu() else { return };
    let a = scattered::<f32>(40, 1 << 20, |row| if row == 17 { 1 << 20 } else { row % 3 });
    let x = x_vector(a.ncols());
    let oracle = Oracle::of(a.view(), &x);
    for plan in plans(&a) {
        let resident = ResidentMatrix::on(device, plan.pack(a.view()).unwrap()).unwrap();
        oracle
            .check(&product(device, &resident, a.nrows(), &x))
            .unwrap_or_else(|wrong| panic!("{plan}: {wrong}"));
    }
}

#[test]
fn many_streams_and_threads_share_an_operator() {
    let Some(device) = gpu() else { return };
    let a = skewed::<f64>();
    for plan in plans(&a) {
        let op = operator(device, &plan, &a);
        // Two of the threads share it.
        let shared = Stream::new(device).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (op, a, shared) = (&op, &a, &shared);
                scope.spawn(move || {
                    let mut x = x_vector::<f64>(a.ncols());
                    x.rotate_left(thread);
                    let oracle = Oracle::of(a.view(), &x);
                    let stream =
                        if thread < 2 { shared.clone() } else { Stream::new(device).unwrap() };
                    let on_gpu = DeviceVec::from_slice(device, &x).unwrap();
                    let mut y = DeviceVec::zeros(device, a.nrows()).unwrap();
                    let mut host_y = vec![f64::NAN; a.nrows()];
                    for _ in 0..20 {
                        op.apply_device(&stream, &on_gpu, &mut y).unwrap();
                        op.apply(&x, &mut host_y).unwrap();
                        oracle.check(&host_y).unwrap();
                        stream.synchronize().unwrap();
                        oracle.check(&y.to_vec().unwrap()).unwrap();
                    }
                });
            }
        });
    }
}

#[test]
fn a_captured_chain_gives_the_same_and_owns_its_inputs() {
    let Some(device) = gpu() else { return };
    captured_chain(device, &scattered(3000, 3000, |row| row % 19));
    // One row is split many times.
    captured_chain(device, &scattered(3000, 3000, |row| if row == 7 { 20_000 } else { row % 19 }));
}

fn captured_chain(device: &Device, a: &CsrMatrix<f64>) {
    let x = x_vector::<f64>(3000);
    for plan in plans(a) {
        let op = operator(device, &plan, a);
        let stream = Stream::new(device).unwrap();
        let start = DeviceVec::from_slice(device, &x).unwrap();
        let (mut middle, mut end) =
            (DeviceVec::zeros(device, 3000).unwrap(), DeviceVec::zeros(device, 3000).unwrap());
        op.apply_device(&stream, &start, &mut middle).unwrap();
        op.apply_device(&stream, &middle, &mut end).unwrap();
        let expected = end.to_vec().unwrap();
        end.copy_from(&vec![f64::NAN; 3000]).unwrap();
        let captured = stream.capture(&mut || {
            op.apply_device(&stream, &start, &mut middle)?;
            op.apply_device(&stream, &middle, &mut end)
        });
        let graph = match captured {
            Ok(graph) => graph,
            // The host takes part in these products.
            Err(error) if plan.to_string().contains("host") => {
                assert!(error.to_string().contains("graph"), "{error}");
                // The stream remains usable.
                op.apply_device(&stream, &start, &mut middle).unwrap();
                stream.synchronize().unwrap();
                continue;
            }
            Err(error) => panic!("{plan}: {error}"),
        };
        drop((op, start, middle));
        for _ in 0..3 {
            graph.launch(&stream).unwrap();
        }
        stream.synchronize().unwrap();
        let got = end.to_vec().unwrap();
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * (1.0 + b.abs());
        assert!(got.iter().zip(&expected).all(near), "{plan}");
        if plan.is_deterministic() {
            assert_eq!(got, expected, "{plan}");
        }
    }
}

#[test]
fn while_one_thread_captures_others_wait_for_their_own_and_are_refused_on_its_stream() {
    let Some(device) = gpu() else { return };
    let a = scattered::<f64>(3000, 3000, |row| row % 19);
    let op = operator(device, &"csr(balanced)".parse().unwrap(), &a);
    let (stream, other) = (Stream::new(device).unwrap(), Stream::new(device).unwrap());
    let x = DeviceVec::from_slice(device, &x_vector::<f64>(3000)).unwrap();
    let y = || DeviceVec::<f64>::zeros(device, 3000).unwrap();
    let (mut before, mut inside, mut beside) = (y(), y(), y());
    op.apply_device(&stream, &x, &mut before).unwrap();
    let graph = stream.capture(&mut || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let refused = op.apply_device(&stream, &x, &mut y()).unwrap_err().to_string();
                assert!(refused.contains("another thread captures"), "{refused}");
                op.apply_device(&other, &x, &mut beside).unwrap();
                assert_eq!(beside.to_vec().unwrap(), before.to_vec().unwrap());
            });
        });
        let refused = stream.seconds(&mut || Ok(())).unwrap_err().to_string();
        assert!(refused.contains("time a launch of the graph"), "{refused}");
        op.apply_device(&stream, &x, &mut inside)
    });
    assert_eq!(inside.to_vec().unwrap(), [0.0; 3000], "a capture does nothing yet");
    graph.unwrap().launch(&stream).unwrap();
    assert_eq!(inside.to_vec().unwrap(), before.to_vec().unwrap());
}

#[test]
fn work_on_a_stream_whose_wrapper_is_dropped_is_waited_for() {
    let Some(device) = gpu() else { return };
    let a = skewed::<f64>();
    let op = operator(device, &"csr(balanced)".parse().unwrap(), &a);
    let stream = Stream::new(device).unwrap();
    let x = DeviceVec::from_slice(device, &x_vector::<f64>(a.ncols())).unwrap();
    let zeros = || DeviceVec::zeros(device, a.nrows()).unwrap();
    let (mut other, mut y) = (zeros(), zeros());
    let products = &mut || (0..1000).try_for_each(|_| op.apply_device(&stream, &x, &mut other));
    let busy = stream.capture(products).unwrap();
    // SAFETY: the legacy default stream always exists.
    let wrapped = unsafe { Stream::from_raw(device, std::ptr::null_mut()) }.unwrap();
    // The first product on a stream allocates.
    op.apply_device(&wrapped, &x, &mut y).unwrap();
    y.copy_from(&vec![f64::NAN; a.nrows()]).unwrap();
    (0..20).for_each(|_| busy.launch(&wrapped).unwrap());
    op.apply_device(&wrapped, &x, &mut y).unwrap();
    drop(wrapped);
    Oracle::of(a.view(), &x_vector(a.ncols())).check(&y.to_vec().unwrap()).unwrap();
    // SAFETY: it is refused before anything is done with it.
    let per_thread = unsafe { Stream::from_raw(device, 2 as *mut std::ffi::c_void) };
    assert!(per_thread.unwrap_err().to_string().contains("per-thread"));
}

#[test]
fn memory_of_a_pool_is_freed_after_the_work_with_it() {
    let Some(device) = gpu() else { return };
    let a = "banded,rows=200k".parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
    let packed = "csr(scalar)".parse::<Plan>().unwrap().pack(a.view()).unwrap();
    let ResidentMatrix::Gpu(gpu, matrix) = ResidentMatrix::on(device, packed).unwrap() else {
        unreachable!("the device is a GPU")
    };
    let x = DeviceVec::from_slice(device, &x_vector::<f64>(a.ncols())).unwrap();
    let y = gpu.zeroed_for::<f64>(&[gpu], a.nrows()).unwrap();
    for _ in 0..500 {
        // SAFETY: the vectors have the lengths of the matrix; the test waits for the products.
        unsafe { matrix.spmv(gpu.queue(), x.ptr(), y.ptr()).unwrap() };
    }
    let begin = Instant::now();
    drop(y);
    let freed = begin.elapsed();
    gpu.queue().synchronize().unwrap();
    let done = begin.elapsed();
    // Times under a tool are those of the tool.
    assert!(few_cases() || 2 * freed > done, "freed after {freed:?}, done after {done:?}");
}

#[test]
fn vectors_of_other_devices_are_refused() {
    let Some(device) = gpu() else { return };
    let op = operator(device, &"csr".parse().unwrap(), &super::chapter::matrix::<f32>());
    let (here, there) = (Stream::new(device).unwrap(), Stream::new(&Device::Cpu).unwrap());
    let on = |device| DeviceVec::<f32>::zeros(device, 4).unwrap();
    let (good, mut y) = (on(device), on(device));
    for (result, expected) in [
        (op.apply_device(&here, &on(&Device::Cpu), &mut y), "`x` is on cpu"),
        (op.apply_device(&here, &good, &mut on(&Device::Cpu)), "`y` is on cpu"),
        (op.apply_device(&there, &good, &mut y), "`stream` is on cpu"),
    ] {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    op.apply_device(&here, &good, &mut y).unwrap();
}

#[test]
fn more_than_the_gpu_has_is_refused_with_both_numbers() {
    let Some(device) = gpu() else { return };
    let huge = DeviceVec::<f64>::zeros(device, 1 << 40).unwrap_err();
    assert!(
        matches!(huge, Error::GpuMemory { needed, free, .. } if needed == 8 << 40 && free > 0),
        "{huge}"
    );
}

#[test]
fn operators_of_packed_slices_are_packed_on_the_gpu() {
    let Some(device) = gpu() else { return };
    for spec in ["poisson3d,n=24", "webbase,rows=30k", "fem3d,n=9"] {
        let a = spec.parse::<crate::matrix::gallery::Spec>().unwrap().generate::<f64>().unwrap();
        let x = x_vector(a.ncols());
        let oracle = Oracle::of(a.view(), &x);
        // Values in fewer bytes are packed on the host.
        let narrow = |plan: &str| {
            ["bf16", "f16", "f32"].iter().any(|kind| plan.contains(&format!("values:{kind}")))
        };
        let packed = |plan: &Plan| plan.format() == FormatKind::Psell && !narrow(&plan.to_string());
        for plan in plans(&a).into_iter().filter(packed) {
            assert!(
                ResidentMatrix::<f64>::packs_on_device(&plan, a.nrows(), a.nnz()),
                "{plan} on {spec}"
            );
            let there = Ready::pack(&plan, a.view(), device).unwrap().matrix;
            assert_eq!(there.unpack().unwrap(), a, "{plan} on {spec}");
            let here = ResidentMatrix::on(device, plan.pack(a.view()).unwrap()).unwrap();
            assert_eq!(there.bytes(), here.bytes(), "{plan} on {spec}");
            let y = product(device, &there, a.nrows(), &x);
            oracle.check(&y).unwrap_or_else(|wrong| panic!("{plan} on {spec}: {wrong}"));
            assert_eq!(y, product(device, &here, a.nrows(), &x), "{plan} on {spec}");
        }
    }
}

/// Seconds of a product of a packed matrix, the least of five batches.
pub(super) fn least_product<T: Scalar>(
    timer: &DevicePlanTimer<'_, T>,
    matrix: &ResidentMatrix<T>,
    (warm_up, repeats): (u32, u32),
) -> f64 {
    let batch = |_| timer.products(matrix, warm_up, repeats).unwrap() / f64::from(repeats);
    (0..5).map(batch).fold(f64::INFINITY, f64::min)
}

/// Seconds of a product of the best plan of CSR.
pub(super) fn csr_product<T: Scalar>(timer: &DevicePlanTimer<'_, T>) -> f64 {
    let seconds = |plan: &str| {
        let ready = timer.pack(&plan.parse().unwrap()).unwrap();
        least_product(timer, &ready.matrix, (0, 20))
    };
    ["csr(balanced)", "csr(vector:4)", "csr(vector:8)"]
        .map(seconds)
        .into_iter()
        .fold(f64::INFINITY, f64::min)
}

/// Prints the time of packing on the GPU, warm, in products of the best plan of CSR; at most 40.
#[test]
fn packing_on_the_gpu_takes_few_products() {
    const MAX: f64 = 40.0;
    const PLANS: [&str; 7] = [
        "psell(sigma:1,group:4)",
        "psell(sigma:512,group:4)",
        "psell(sigma:512,values:packed,group:4,split:256)",
        "psell(sigma:4294967294,group:4)",
        "sell(c:32,sigma:512)",
        "jds",
        "jds(diagonals)",
    ];
    let Some(device) = gpu() else { return };
    if is_left_out("it takes minutes") {
        return;
    }
    let Device::Cuda(the_gpu) = device else { return };
    let mut slow = Vec::new();
    for class in ["poisson2d", "fem3d", "femrandom", "road", "uniform", "webbase", "lp"] {
        let entry =
            crate::matrix::gallery::list().iter().find(|entry| entry.name == class).unwrap();
        let a = entry.spec().scaled_to(20_000_000).generate::<f32>().unwrap();
        let timer = DevicePlanTimer::new(a.view(), device, CacheState::Warm).unwrap();
        let csr = csr_product(&timer);
        let there = CsrSource::upload(a.view(), *the_gpu).unwrap();
        for text in PLANS {
            let plan = text.parse().unwrap();
            let once = || {
                let start = std::time::Instant::now();
                assert!(
                    ResidentMatrix::packed_on_device(&plan, &there).unwrap().is_some(),
                    "{text} on {class}"
                );
                start.elapsed().as_secs_f64()
            };
            let least = (0..5).map(|_| once()).fold(f64::INFINITY, f64::min);
            eprintln!(
                "{class}, {} entries: {text} packed in {:.2} ms, {:.1} products of {:.0} us",
                a.nnz(),
                least * 1e3,
                least / csr,
                csr * 1e6
            );
            if least > MAX * csr {
                slow.push(format!("{text} on {class}"));
            }
        }
    }
    assert!(slow.is_empty(), "more than {MAX} products: {slow:?}");
}

/// Prints the time of an update from values on the GPU, in products of the best plan of CSR, for
/// every kind of plan that is chosen for a matrix of 30 million entries; at most three.
fn update_times<T: Scalar>() {
    const MAX: f64 = 3.0;
    const PLANS: [&str; 11] = [
        "csr(balanced)",
        "coo",
        "ell",
        "sell(c:32,sigma:1)",
        "sell(c:32,sigma:512)",
        "psell(sigma:512,group:4,split:64)",
        "jds",
        "jds(diagonals)",
        "hyb(width:auto)",
        "tiles",
        "blocked(hot:192)",
    ];
    let Some(device) = gpu() else { return };
    if is_left_out("it takes a minute") {
        return;
    }
    let mut slow = Vec::new();
    eprintln!(
        "| matrix | type | plan | update, µs | CSR product, µs | ratio |\n| --- | --- | --- | \
         --- | --- | --- |"
    );
    for class in ["stencil27", "fem3d", "femrandom", "banded", "webbase", "rmat"] {
        let entry =
            crate::matrix::gallery::list().iter().find(|entry| entry.name == class).unwrap();
        let a = entry.spec().scaled_to(30_000_000).generate::<T>().unwrap();
        let timer = DevicePlanTimer::new(a.view(), device, CacheState::Warm).unwrap();
        let (csr, analysis) = (csr_product(&timer), Analysis::of(a.view()));
        let limit = 8 * a.nnz() as u64 * (4 + size_of::<T>() as u64);
        let (stream, values) =
            (Stream::new(device).unwrap(), DeviceVec::from_slice(device, a.values()).unwrap());
        for text in PLANS {
            let plan: Plan = text.parse().unwrap();
            if plan.work(&analysis, T::KIND).matrix_bytes > limit {
                continue;
            }
            let mut matrix = timer.pack(&plan).unwrap().matrix;
            let updater = Updater::new(&plan, &mut matrix, a.view(), false).unwrap();
            let mut once = || {
                time_batch(&stream, 20, || updater.enqueue(&mut matrix, &stream, &values)).unwrap()
                    / 20.0
            };
            let update = (0..5).map(|_| once()).fold(f64::INFINITY, f64::min);
            let line = format!(
                "| {class} | {} | `{text}` | {:.0} | {:.0} | {:.2} |",
                T::KIND,
                update * 1e6,
                csr * 1e6,
                update / csr
            );
            eprintln!("{line}");
            if update > MAX * csr {
                slow.push(line);
            }
        }
    }
    assert!(slow.is_empty(), "more than {MAX} products:\n{}", slow.join("\n"));
}

#[test]
fn updating_values_takes_few_products_in_f32() {
    update_times::<f32>();
}

#[test]
fn updating_values_takes_few_products_in_f64() {
    update_times::<f64>();
}

/// True if a test is left out, and prints why: those that take minutes, or tens of gigabytes of
/// host and device memory, run where a variable is set.
pub(super) fn is_left_out(why: &str) -> bool {
    const VARIABLE: &str = "SPARSEOP_TEST_LARGE";
    let left_out = std::env::var_os(VARIABLE).is_none();
    if left_out {
        eprintln!("left out: {why}; set {VARIABLE}=1");
    }
    left_out
}

#[test]
fn more_than_two_billion_slots() {
    let Some(device) = gpu() else { return };
    if is_left_out("it takes 60 GB of host memory") {
        return;
    }
    // 2.2 · 10⁹ entries: row `i` has `len` entries at columns that can be recomputed for any
    // row.
    let (nrows, len, ncols) = (34_000_000usize, 66usize, 1usize << 20);
    let row_ptr: Vec<usize> = (0..=nrows).map(|row| row * len).collect();
    let mut col_idx = vec![0u32; nrows * len];
    col_idx.par_chunks_mut(len).enumerate().for_each(|(row, cols)| {
        cols.iter_mut()
            .enumerate()
            .for_each(|(k, col)| *col = ((row * 13 + k * 7919) % ncols) as u32);
    });
    let values = vec![1.0f32; nrows * len];
    let a = CsrMatrix::try_new(nrows, ncols, row_ptr, col_idx, values).unwrap();
    let x: Vec<f32> = (0..ncols).map(|col| (col % 5) as f32 - 2.0).collect();
    let expected = |row: usize| {
        (0..len).map(|k| (((row * 13 + k * 7919) % ncols) % 5) as f32 - 2.0).sum::<f32>()
    };
    for text in [
        "csr(vector:16)",
        "csr(balanced)",
        "ell",
        "sell(c:32,sigma:1)",
        "jds(sections:auto)",
        "jds(diagonals)",
        "coo",
        "hyb(width:65)",
    ] {
        let plan: Plan = text.parse().unwrap();
        let resident = ResidentMatrix::on(device, plan.pack(a.view()).unwrap()).unwrap();
        let y = product(device, &resident, nrows, &x);
        let wrong = (0..nrows).find(|&row| y[row] != expected(row));
        assert_eq!(wrong, None, "{plan}: the first wrong row");
        eprintln!("{plan}: right on {} slots", nrows * len);
    }
}
