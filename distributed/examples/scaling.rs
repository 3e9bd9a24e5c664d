//! Products and conjugate gradients on 1 to all GPUs of this host, or on 1 to 4 parts of the CPU:
//!
//! ```text
//! cargo run --release -p sparseop-distributed --example scaling -- poisson3d,n=160
//! ```

use sparseop::matrix::gallery;
use sparseop::{Device, Error};
use sparseop_distributed::{Devices, DistributedBuilder};
use sparseop_solvers::{Method, Settings};
use std::time::Duration;

/// Iterations of a run.
const ITERATIONS: usize = 2048;

/// Longest wait of a part for another one.
const LIMIT: Duration = Duration::from_secs(10);

/// Runs, of which the fastest counts.
const RUNS: usize = 5;

fn main() -> Result<(), Error> {
    let spec = std::env::args().nth(1).unwrap_or_else(|| "poisson3d,n=64".to_owned());
    let a = format!("{spec},values=laplacian").parse::<gallery::Spec>()?.generate::<f64>()?;
    let groups: Vec<Devices> = match Device::gpus() {
        gpus if gpus.is_empty() => (1..=4).map(Devices::cpu).collect(),
        gpus => (1..=gpus.len()).map(|count| gpus[..count].to_vec().into()).collect(),
    };
    // No residual is that small: every run has all iterations.
    let settings =
        Settings { tolerance: 1e-300, max_iterations: ITERATIONS, ..Settings::default() };
    let (b, mut first, mut alone) = (vec![1.0; a.nrows()], None, f64::NAN);
    for devices in groups {
        let op = DistributedBuilder::new(&devices).time_limit(LIMIT).build(&a)?;
        print!("{}", op.explain());
        let mut least = f64::INFINITY;
        for _ in 0..RUNS {
            let mut x = vec![0.0; a.ncols()];
            let report = op.solve(Method::Cg, settings, false, &b, &mut x)?;
            least = least.min(report.seconds / report.iterations.max(1) as f64);
            assert!(*first.get_or_insert(x.clone()) == x, "the bits of one part");
        }
        if devices.len() == 1 {
            alone = least;
        }
        let efficiency = alone / least / devices.len() as f64 * 100.0;
        println!("cg: {:.1} µs an iteration, efficiency {efficiency:.0} %\n", least * 1e6);
    }
    Ok(())
}
