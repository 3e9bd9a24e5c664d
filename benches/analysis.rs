//! Time of an analysis, and of an analysis with a choice by predictions, in products with the plain
//! CSR plan. Both should stay below five products.
//!
//! `cargo bench --bench analysis [-- CLASS]`. With `SPARSEOP_MATRICES=FOLDER`, the files of a
//! folder replace the classes of the gallery.

use criterion::{Criterion, criterion_group, criterion_main};
use sparseop::analysis::Analysis;
use sparseop::matrix::{CsrMatrix, gallery, market};
use sparseop::tuning::decision::Request;
use sparseop::tuning::profile::Profile;
use sparseop::tuning::select::select;
use sparseop::tuning::stopwatch::{Policy, time_batch, time_interleaved};
use sparseop::{Device, ScalarKind, SparseOp, SparseOpBuilder, Stream, Tuning};
use sparseop_testkit::x_vector;
use std::ffi::OsStr;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Least number of entries of a compared file: the minimum for a matrix that profiles are judged
/// by.
const MIN_ENTRIES: u64 = 100_000;

/// Approximate number of entries to which the matrices of the suite are scaled.
const ENTRIES: usize = 10_000_000;

fn plain_csr(a: &CsrMatrix<f64>) -> SparseOp<f64> {
    let plan = "csr(scalar)".parse().expect("a plan");
    let builder = SparseOpBuilder::new().device(Device::Cpu).tuning(Tuning::Fixed(plan));
    builder.build(a).expect("CSR fits")
}

/// Prints the time of an analysis of `a`, and of an analysis with a choice. Returns the latter in
/// products.
fn compare(name: &str, a: &CsrMatrix<f64>, csr: &SparseOp<f64>) -> f64 {
    let cpu = Stream::new(&Device::Cpu).expect("the CPU has streams enough");
    let (device, profile) = (Device::Cpu.spec(), Profile::builtin(&Device::Cpu));
    let memory = Device::Cpu.memory().expect("the CPU has memory");
    let (x, mut y) = (x_vector(a.ncols()), vec![0.0; a.nrows()]);
    let mut product = |n| time_batch(&cpu, n, || csr.apply(&x, &mut y));
    let mut measure = |n| {
        time_batch(&cpu, n, || {
            black_box(Analysis::of(a.view()));
            Ok(())
        })
    };
    let mut both = |n| {
        time_batch(&cpu, n, || {
            let analysis = Analysis::of(a.view());
            let request = Request::new(&analysis, ScalarKind::F64, memory);
            select(&analysis, &device, profile.clone(), request)
                .map(|decision| drop(black_box(decision)))
        })
    };
    let policy = Policy { seconds: 0.5, ..Policy::default() };
    let times = time_interleaved(&mut [&mut product, &mut measure, &mut both], policy);
    let ms: Vec<f64> =
        times.iter().map(|t| t.as_ref().expect("the lengths fit").median() * 1e3).collect();
    let (product, measure, both) = (ms[0], ms[1], ms[2]);
    eprintln!(
        "{name}: {measure:.3} ms, {:.2} CSR products of {product:.3} ms; with the choice {both:.3} \
         ms, {:.2}",
        measure / product,
        both / product
    );
    both / product
}

fn classes(criterion: &mut Criterion) {
    for spec in gallery::suite() {
        let name = spec.entry().name;
        let a = spec.scaled_to(ENTRIES).generate::<f64>().expect("the suite is valid");
        let csr = plain_csr(&a);
        compare(name, &a, &csr);
        let (x, mut y) = (x_vector(a.ncols()), vec![0.0; a.nrows()]);
        let mut group = criterion.benchmark_group(name);
        group.bench_function("csr product", |b| b.iter(|| csr.apply(&x, &mut y)));
        group.bench_function("analysis", |b| b.iter(|| Analysis::of(a.view())));
        group.finish();
    }
}

fn files(folder: &Path) {
    let entries = folder.read_dir().unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| market::is_matrix_path(path));
    paths.sort();
    let mut costs = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or(OsStr::new("")).to_string_lossy();
        match market::read::<f64>(&path) {
            Ok(a) if (a.nnz() as u64) < MIN_ENTRIES => {}
            Ok(a) => {
                costs.push(compare(&format!("{name}, {} entries", a.nnz()), &a, &plain_csr(&a)))
            }
            Err(error) => eprintln!("{error}"),
        }
    }
    let within = costs.iter().filter(|cost| **cost <= 5.0).count();
    eprintln!("{within} of {} within five products", costs.len());
}

fn analysis(criterion: &mut Criterion) {
    match std::env::var_os("SPARSEOP_MATRICES") {
        Some(folder) => files(Path::new(&folder)),
        None => classes(criterion),
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = analysis
}
criterion_main!(benches);
