//! Tests that a GPU analyses a matrix in its memory as the host does. Nothing is tested without a
//! GPU.

use super::conformance::{awkward, scattered};
use super::devices::gpu;
use super::foreign::Arrays;
use super::gpu::{csr_product, is_left_out};
use crate::analysis::Analysis;
use crate::device::{CsrSource, Device, Gpu};
use crate::formats;
use crate::matrix::{CsrMatrix, gallery};
use crate::tuning::caches::CacheState;
use crate::tuning::plan_timer::DevicePlanTimer;
use crate::{Scalar, SparseOpBuilder, Stream, Tuning};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

fn the_gpu() -> Option<Gpu> {
    match gpu()? {
        Device::Cuda(gpu) => Some(*gpu),
        Device::Cpu => None,
    }
}

/// Compares the analyses of both sides.
fn check<T: Scalar>(gpu: Gpu, a: &CsrMatrix<T>, name: &str) {
    let (there, found) = {
        let analyze = |there: &CsrSource<T>, has_values: &dyn Fn() -> bool| {
            formats::analyze_on_gpu(there, Some(has_values))
        };
        CsrSource::upload_during(a.view(), gpu, analyze).unwrap()
    };
    let found = found.unwrap();
    assert!(
        there.values.to_vec().unwrap().iter().zip(a.values()).all(|(a, b)| a.bits() == b.bits())
    );
    let expected = Analysis { row_lengths: Vec::new(), ..formats::analyze(a.view()) };
    let context = format!("{name} in {}", T::KIND);
    assert_eq!(found.rows, expected.rows, "{context}");
    assert_eq!(found.structure, expected.structure, "{context}");
    assert_eq!(found.slices, expected.slices, "{context}");
    assert_eq!(found.probes, expected.probes, "{context}");
    assert_eq!(found, expected, "{context}");
}

fn check_spec<T: Scalar>(gpu: Gpu, spec: &str) {
    check(gpu, &spec.parse::<gallery::Spec>().unwrap().generate::<T>().unwrap(), spec);
}

#[test]
fn awkward_matrices_are_analysed_alike() {
    let Some(gpu) = the_gpu() else { return };
    awkward::<f32>().into_iter().for_each(|(name, a)| check(gpu, &a, name));
    awkward::<f64>().into_iter().for_each(|(name, a)| check(gpu, &a, name));
    // One huge row; unsorted and repeated columns; many rows without entries.
    let huge = |row| if row == 17 { 1 << 20 } else { row % 3 };
    check(gpu, &scattered::<f32>(40, 1 << 20, huge), "a row of a million");
    check(gpu, &scattered::<f64>(9000, 300, |row| row % 500), "unsorted rows");
    let sparse = |row| if row % 100 == 0 { 3 } else { 0 };
    check(gpu, &scattered::<f32>(200_000, 9000, sparse), "empty rows");
}

#[test]
fn the_gallery_is_analysed_alike() {
    let Some(gpu) = the_gpu() else { return };
    for entries in [2000, 40_000, 300_000, 3_000_000] {
        for spec in gallery::suite() {
            let (name, spec) = (spec.entry().name, spec.scaled_to(entries));
            check(gpu, &spec.generate::<f32>().unwrap(), name);
            check(gpu, &spec.generate::<f64>().unwrap(), name);
        }
    }
    for spec in ["poisson2d,n=1200", "rmat,scale=18", "banded,rows=70k,values=pattern"] {
        check_spec::<f32>(gpu, spec);
        check_spec::<f64>(gpu, spec);
    }
}

#[cfg(feature = "cuda")]
#[test]
fn matrices_are_analysed_alike_without_room_in_host_memory() {
    use crate::device::host_arrays;

    let Some(gpu) = the_gpu() else { return };
    for bytes in [0, 5000, 100_000, 1_000_000] {
        host_arrays::with_room(bytes, || {
            for spec in ["road,n=300", "uniform,rows=70k", "stencil27,n=20", "lp,rows=500"] {
                check_spec::<f32>(gpu, spec);
            }
        });
    }
}

#[test]
fn random_matrices_are_analysed_alike() {
    let Some(gpu) = the_gpu() else { return };
    let lengths = || prop::collection::vec(prop_oneof![8 => 0usize..9, 1 => 0usize..3000], 0..2000);
    let cases = (lengths(), 1usize..70_000, any::<u32>(), 1u32..600);
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let run = TestRunner::new(config).run(&cases, |(lengths, ncols, seed, distinct)| {
        let ends = lengths.iter().scan(0, |end, len| {
            *end += len;
            Some(*end)
        });
        let row_ptr: Vec<usize> = std::iter::once(0).chain(ends).collect();
        let nnz = row_ptr[lengths.len()];
        let mix = |k: usize| (k as u32 ^ seed).wrapping_mul(0x9e37_79b9).rotate_left(13);
        // Half of the seeds give diagonals, all of them long runs in between.
        let column = |k: usize| match k / 64 % 2 {
            0 if seed % 2 == 0 => (k % ncols) as u32,
            _ => mix(k) % ncols as u32,
        };
        let cols: Vec<u32> = (0..nnz).map(column).collect();
        let values: Vec<f64> =
            (0..nnz).map(|k| f64::from(mix(k) % distinct) * f64::from(seed % 3)).collect();
        let a = CsrMatrix::try_new(lengths.len(), ncols, row_ptr, cols, values).unwrap();
        check(gpu, &a, "random");
        Ok(())
    });
    run.unwrap();
}

#[test]
fn values_are_representable_alike() {
    let Some(gpu) = the_gpu() else { return };
    let odd = [1.0, -0.0, 1e-40, 1e-8, 65504.0, 1e10, 2049.0 / 2048.0, 1025.0 / 1024.0, 0.1];
    let special =
        [f64::NAN, f64::INFINITY, f64::from_bits(0x7ff0_0000_0000_0001), f64::MIN_POSITIVE];
    for value in odd.into_iter().chain(special) {
        // Few distinct values, and many.
        for many in [false, true] {
            let number = |k: usize| match k {
                777 => value,
                _ if many => (k % 1000) as f64 * 0.25,
                _ => 0.5,
            };
            let values: Vec<f64> = (0..100_000).map(number).collect();
            let row_ptr: Vec<usize> = (0..=100_000).collect();
            let cols: Vec<u32> = (0..100_000).collect();
            let narrow = values.iter().map(|&value| value as f32).collect();
            let wide = CsrMatrix::try_new(100_000, 100_000, row_ptr.clone(), cols.clone(), values);
            check(gpu, &wide.unwrap(), &format!("{value:e}"));
            let narrow = CsrMatrix::try_new(100_000, 100_000, row_ptr, cols, narrow);
            check::<f32>(gpu, &narrow.unwrap(), &format!("{value:e}"));
        }
    }
}

/// Prints the time of an analysis on a GPU and on the host, and of operators of matrices in GPU
/// memory, also in products of the best plan of CSR.
#[test]
fn a_gpu_analyses_large_matrices_faster_than_the_host() {
    let Some(gpu) = the_gpu() else { return };
    if is_left_out("it takes minutes") {
        return;
    }
    let device = Device::Cuda(gpu);
    let mut slow = Vec::new();
    for class in ["poisson3d", "stencil27", "fem3d", "road", "uniform", "webbase", "rmat", "lp"] {
        let entry = gallery::list().iter().find(|entry| entry.name == class).unwrap();
        for entries in [10_000_000, 40_000_000] {
            let a = entry.spec().scaled_to(entries).generate::<f32>().unwrap();
            let least = |once: &mut dyn FnMut()| {
                let seconds = (0..5).map(|_| {
                    let start = std::time::Instant::now();
                    once();
                    start.elapsed().as_secs_f64()
                });
                seconds.fold(f64::INFINITY, f64::min)
            };
            let product =
                csr_product(&DevicePlanTimer::new(a.view(), &device, CacheState::Warm).unwrap());
            let there = CsrSource::upload(a.view(), gpu).unwrap();
            let analysis = least(&mut || drop(formats::analyze_on_gpu(&there, None).unwrap()));
            let host = least(&mut || drop(formats::analyze(a.view())));
            let (arrays, stream) = (Arrays::of(&device, &a), Stream::new(&device).unwrap());
            let mut plan = String::new();
            let [predicted, checked] = [Tuning::Predict, Tuning::Check].map(|tuning| {
                let builder = SparseOpBuilder::new().tuning(tuning);
                let mut build = || {
                    let op = arrays.build(&builder, &stream, &a, true);
                    plan = format!("{} {:?}", op.plan(), op.preparation());
                };
                least(&mut build)
            });
            eprintln!(
                "{class}, {} entries: product {:.0} us, analysis {:.2} ms (host {:.2}), predicted \
                 {:.2} ms, checked {:.2} ms, {:.0} products; {plan}",
                a.nnz(),
                product * 1e6,
                analysis * 1e3,
                host * 1e3,
                predicted * 1e3,
                checked * 1e3,
                checked / product
            );
            if analysis > host {
                slow.push(class);
            }
        }
    }
    assert!(slow.is_empty(), "{slow:?}");
}
