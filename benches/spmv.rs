//! Time of one product with the plan that `auto` chooses and with plain CSR, on every class of the
//! suite, in both precisions.
//!
//! `cargo bench --bench spmv [-- CLASS]`. `sparseop bench` and `benches/peers/spmv.py` compare with
//! other libraries.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sparseop::matrix::gallery;
use sparseop::tuning::stopwatch::time_batch;
use sparseop::{DeviceVec, Scalar, SparseOp, SparseOpBuilder, Stream, Tuning};
use sparseop_testkit::x_vector;
use std::time::Duration;

/// Approximate number of entries to which the matrices of the suite are scaled.
const ENTRIES: usize = 10_000_000;

fn product<T: Scalar>(criterion: &mut Criterion) {
    for spec in gallery::suite() {
        let a = spec.scaled_to(ENTRIES).generate::<T>().expect("the suite is valid");
        let plan = "csr(scalar)".parse().expect("a plan");
        let csr = SparseOpBuilder::new().tuning(Tuning::Fixed(plan)).build(&a).expect("CSR fits");
        let auto = SparseOp::auto(&a).expect("some plan fits");
        let stream = Stream::new(auto.device()).expect("a stream");
        let x = DeviceVec::from_slice(auto.device(), &x_vector::<T>(a.ncols())).expect("x fits");
        let mut y = DeviceVec::zeros(auto.device(), a.nrows()).expect("y fits");
        let mut products = |op: &SparseOp<T>, n: u64| {
            let seconds = time_batch(&stream, n as u32, || op.apply_device(&stream, &x, &mut y));
            Duration::from_secs_f64(seconds.expect("the lengths fit"))
        };

        let mut group = criterion.benchmark_group(format!("{} {}", spec.entry().name, T::KIND));
        group.throughput(Throughput::Elements(a.nnz() as u64));
        group.bench_function(format!("auto, {}", auto.plan()), |b| {
            b.iter_custom(|n| products(&auto, n))
        });
        group.bench_function("csr(scalar)", |b| b.iter_custom(|n| products(&csr, n)));
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = product::<f32>, product::<f64>
}
criterion_main!(benches);
