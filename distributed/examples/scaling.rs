//! Products and conjugate gradients on 1 to all GPUs of this host, or on 1 to 4 parts of the CPU,
//! beside one operator on the first device. Problems with `values=laplacian` are also solved.
//!
//! ```text
//! cargo run --release -p sparseop-distributed --example scaling -- road,n=3000 fem3d,n=60
//! cargo run --release -p sparseop-distributed --example scaling -- --weak \
//!     poisson3d,n=250,values=laplacian poisson3d,n=315,values=laplacian
//! ```
//!
//! With `--weak`, each problem is run on as many devices as its position says, with `--parts 1,4`
//! on these numbers of devices.

use sparseop::matrix::{CsrMatrix, gallery};
use sparseop::{Device, DeviceVec, Error, SparseOp, Stream};
use sparseop_distributed::{Devices, DistributedBuilder, DistributedOp};
use sparseop_solvers::{Method, Settings, SolverBuilder, SystemOperator};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Largest number of iterations of a run, entries of all its iterations, products of a run, and of
/// a graph.
const ITERATIONS: usize = 1024;
const ENTRIES: u64 = 1 << 38;
const PRODUCTS: usize = 64;
const IN_GRAPH: usize = 16;

/// Longest wait of a part for another one.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs, of which the fastest counts.
const RUNS: usize = 5;

fn main() -> Result<(), Error> {
    let mut specs: Vec<String> = std::env::args().skip(1).collect();
    let weak = specs.first().is_some_and(|first| first == "--weak");
    specs.drain(..usize::from(weak));
    let counts: Option<Vec<usize>> = match specs.first().map(String::as_str) {
        Some("--parts") if specs.len() > 1 => {
            let option: Vec<String> = specs.drain(..2).collect();
            Some(option[1].split(',').map(|count| count.parse().expect("a number")).collect())
        }
        _ => None,
    };
    if specs.is_empty() {
        specs.push("poisson3d,n=64,values=laplacian".to_owned());
    }
    let devices: Vec<Devices> = match Device::gpus() {
        gpus if gpus.is_empty() => (1..=4).map(Devices::cpu).collect(),
        gpus => (1..=gpus.len()).map(|count| gpus[..count].to_vec().into()).collect(),
    };
    let mut base = None;
    for (at, spec) in specs.iter().enumerate() {
        let a = spec.parse::<gallery::Spec>()?.generate::<f64>()?;
        println!("{spec}: {} rows, {} entries", a.nrows(), a.nnz());
        let solved = spec.contains("laplacian");
        if !weak || at == 0 {
            base = Some(one_operator(&a, solved)?);
        }
        let mut solution = None;
        let on = |count: usize| match &counts {
            Some(counts) => counts.contains(&count),
            None => !weak || count == at + 1,
        };
        for devices in devices.iter().filter(|devices| on(devices.len())) {
            let op = DistributedBuilder::new(devices).time_limit(LIMIT).build(&a)?;
            print!("{}", op.explain());
            let times = several_parts(&op, solved, &mut solution)?;
            let share = if weak { 1.0 } else { devices.len() as f64 };
            times.print(base.as_ref().unwrap_or(&times), share);
        }
        println!();
    }
    Ok(())
}

/// Microseconds of a product, launched by itself and in a graph of several, and of an iteration of
/// conjugate gradients.
struct Times {
    products: [f64; 2],
    iteration: f64,
}

impl Times {
    /// Prints times and efficiencies, for `share` times as many devices as `base` has.
    fn print(&self, base: &Self, share: f64) {
        let of = |base: f64, own: f64| {
            let efficiency = base / own / share * 100.0;
            format!("{own:.1} µs ({efficiency:.0} %)")
        };
        let [product, in_graph] = [0, 1].map(|at| of(base.products[at], self.products[at]));
        let iteration = of(base.iteration, self.iteration);
        println!("product {product}, in a graph {in_graph}, iteration {iteration}");
    }
}

/// The least of several runs.
fn least<const N: usize>(
    mut run: impl FnMut() -> Result<[f64; N], Error>,
) -> Result<[f64; N], Error> {
    (0..RUNS).try_fold([f64::INFINITY; N], |least, _| Ok(pairs(least, run()?, f64::min)))
}

/// A function of the elements of two arrays.
fn pairs<const N: usize>(a: [f64; N], b: [f64; N], of: impl Fn(f64, f64) -> f64) -> [f64; N] {
    std::array::from_fn(|at| of(a[at], b[at]))
}

/// Settings that no residual satisfies: every run has all iterations. Large systems have fewer.
fn settings(entries: u64) -> Settings {
    let fitting = (ENTRIES / entries.max(1)) as usize;
    let max_iterations = fitting.clamp(64, ITERATIONS);
    Settings { tolerance: 1e-300, max_iterations, ..Settings::default() }
}

/// Times of one operator on the first device.
fn one_operator(a: &CsrMatrix<f64>, solved: bool) -> Result<Times, Error> {
    let op = SparseOp::auto(a)?;
    let barrier = Barrier::new(1);
    let products = least(|| products(&op, a.ncols(), a.nrows(), &barrier))?;
    let [iteration] = match solved {
        false => [f64::NAN],
        true => least(|| {
            let mut solver =
                SolverBuilder::new(Method::Cg).settings(settings(a.nnz() as u64)).build(&op)?;
            let report = solver.solve(&vec![1.0; a.nrows()], &mut vec![0.0; a.ncols()])?;
            Ok([report.seconds / report.iterations.max(1) as f64 * 1e6])
        })?,
    };
    let times = Times { products, iteration };
    print!("one operator, {}: ", op.plan());
    times.print(&times, 1.0);
    Ok(times)
}

/// Times of an operator with several parts, whose solutions have the bits of `solution`.
fn several_parts(
    op: &DistributedOp<f64>,
    solved: bool,
    solution: &mut Option<Vec<f64>>,
) -> Result<Times, Error> {
    let barrier = Barrier::new(op.parts().len());
    let products = least(|| {
        std::thread::scope(|scope| {
            let barrier = &barrier;
            let run = |part| scope.spawn(move || own_products(part, barrier));
            let threads: Vec<_> = op.parts().iter().map(run).collect();
            let mut times = threads.into_iter().map(|thread| thread.join().expect("no panic"));
            times.try_fold([0.0; 2], |most, times| Ok(pairs(most, times?, f64::max)))
        })
    })?;
    let [iteration] = match solved {
        false => [f64::NAN],
        true => least(|| {
            let mut x = vec![0.0; op.ncols()];
            let b = vec![1.0; op.nrows()];
            let report = op.solve(Method::Cg, settings(op.nnz()), false, &b, &mut x)?;
            assert!(*solution.get_or_insert(x.clone()) == x, "the bits of one part");
            Ok([report.seconds / report.iterations.max(1) as f64 * 1e6])
        })?,
    };
    Ok(Times { products, iteration })
}

/// As [`products`], of a part while the other parts multiply their rows.
fn own_products(
    part: &sparseop_distributed::PartOp<f64>,
    barrier: &Barrier,
) -> Result<[f64; 2], Error> {
    products(part, part.own_columns().len(), part.own_rows().len(), barrier)
}

/// Microseconds of a product, from the beginning of the first to the end of the last: of products
/// launched one by one, and in graphs of several.
fn products(
    op: &impl SystemOperator<f64>,
    columns: usize,
    rows: usize,
    barrier: &Barrier,
) -> Result<[f64; 2], Error> {
    let device = op.device().clone();
    let (stream, x) = (Stream::new(&device)?, DeviceVec::from_slice(&device, &vec![1.0; columns])?);
    let mut y = DeviceVec::zeros(&device, rows)?;
    let mut multiply = || op.apply_device(&stream, &x, &mut y);
    multiply()?;
    let launched = timed(&stream, barrier, PRODUCTS, &mut multiply)?;
    if device == Device::Cpu {
        return Ok([launched; 2]);
    }
    let graph = stream.capture(&mut || (0..IN_GRAPH).try_for_each(|_| multiply()))?;
    graph.launch(&stream)?;
    let graphs = timed(&stream, barrier, PRODUCTS / IN_GRAPH, &mut || graph.launch(&stream))?;
    Ok([launched, graphs / IN_GRAPH as f64])
}

/// Microseconds of one of `count` enqueued pieces of work.
fn timed(
    stream: &Stream,
    barrier: &Barrier,
    count: usize,
    work: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<f64, Error> {
    stream.synchronize()?;
    barrier.wait();
    let begin = Instant::now();
    (0..count).try_for_each(|_| work())?;
    stream.synchronize()?;
    Ok(begin.elapsed().as_secs_f64() * 1e6 / count as f64)
}
