//! Latency of the first product on a GPU, beyond the context: its kernels come from the build or
//! from the cache.

use sparseop::matrix::gallery;
use sparseop::tuning::stopwatch::timed;
use sparseop::{Device, SparseOpBuilder, Tuning};
use sparseop_testkit::gpu;

/// Maximum time of a first call with compiled kernels, in seconds.
const LIMIT: f64 = 0.05;

#[test]
fn the_first_call_is_quick_when_kernels_are_there() {
    let (_, context) = timed(|| Device::cuda(0));
    let (device, trial) = timed(gpu);
    let Some(device) = device else { return };
    eprintln!("context {:.1} ms, then the trial of the GPU {:.1} ms", context * 1e3, trial * 1e3);
    let a = "small".parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
    let (x, mut y) = (vec![1.0; a.ncols()], vec![0.0; a.nrows()]);
    // A fixed plan: choosing one takes as long on the CPU.
    let mut first_call = |plan: &str| {
        let builder = SparseOpBuilder::new()
            .device(device.clone())
            .tuning(Tuning::Fixed(plan.parse().unwrap()));
        let op = builder.build(&a).unwrap();
        op.apply(&x, &mut y).unwrap();
    };
    // The kernels of another format run first, so that all kernels are compiled and the driver has
    // loaded a module.
    let ((), cold) = timed(|| first_call("ell"));
    let ((), hot) = timed(|| first_call("sell"));
    eprintln!(
        "first call with ELL {:.1} ms, then first call with SELL {:.1} ms",
        cold * 1e3,
        hot * 1e3
    );
    let log = sparseop::device::kernel_log();
    let compiled: Vec<String> =
        log.iter().map(ToString::to_string).filter(|e| e.contains("compiled")).collect();
    if compiled.is_empty() {
        assert!(
            cold < LIMIT && hot < LIMIT && trial < LIMIT,
            "{:.1} ms, {:.1} ms and {:.1} ms",
            cold * 1e3,
            hot * 1e3,
            trial * 1e3
        );
    } else {
        eprintln!(
            "nothing is asserted, kernels had to be compiled; run it again: {}",
            compiled.join("; ")
        );
    }
}
