//! The heat equation: implicit time steps. Each solves a linear system by conjugate gradients,
//! starting from the previous temperatures.
//!
//! ```text
//! cargo run --release -p sparseop-solvers --example heat           # a cube of 64 x 64 x 64 points
//! cargo run --release -p sparseop-solvers --example heat -- 160    # larger
//! ```

use sparseop::matrix::{CsrMatrix, gallery};
use sparseop::{Error, SparseOp, SparseOpBuilder, Tuning};
use sparseop_solvers::{Method, Settings, SolverBuilder};

/// Length of a time step, in squares of the distance between points.
const STEP: f64 = 2.0;

/// Number of time steps.
const STEPS: usize = 10;

/// Computes the steps; returns the temperatures, the number of iterations, and their seconds.
fn simulate(op: &SparseOp<f64>, n: usize) -> Result<(Vec<f64>, usize, f64), Error> {
    let settings = Settings { tolerance: 1e-10, ..Settings::default() };
    let mut solver = SolverBuilder::new(Method::Cg).settings(settings).build(op)?;
    // A hot spot in the middle of a cold cube with cold sides.
    let mut heat = vec![0.0; n * n * n];
    heat[(n / 2) * (n * n + n + 1)] = 1.0;
    let (mut iterations, mut seconds) = (0, 0.0);
    for _ in 0..STEPS {
        let before = heat.clone();
        let report = solver.solve(&before, &mut heat)?.converged()?;
        iterations += report.iterations;
        seconds += report.seconds;
    }
    Ok((heat, iterations, seconds))
}

fn main() -> Result<(), Error> {
    let n = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(64);
    // I + STEP L, where L is the Laplacian of the grid.
    let laplacian =
        format!("poisson3d,n={n},values=laplacian").parse::<gallery::Spec>()?.generate::<f64>()?;
    let (row_ptr, col_idx, mut values) = laplacian.into_parts();
    values
        .iter_mut()
        .for_each(|value| *value = STEP * *value + if *value > 0.0 { 1.0 } else { 0.0 });
    let a = CsrMatrix::try_new(n * n * n, n * n * n, row_ptr, col_idx, values)?;

    let op = SparseOp::auto(&a)?;
    let csr = SparseOpBuilder::new().tuning(Tuning::Fixed("csr".parse()?)).build(&a)?;
    println!("auto chose {} on {}", op.plan(), op.device());
    let (heat, iterations, chosen) = simulate(&op, n)?;
    let (_, plain_iterations, plain) = simulate(&csr, n)?;
    println!(
        "{STEPS} steps, {iterations} iterations: {:.4} of the heat is left, {:.1e} where it was \
         highest",
        heat.iter().sum::<f64>(),
        heat.iter().copied().fold(0.0, f64::max)
    );
    let each = |seconds: f64, iterations: usize| seconds / iterations.max(1) as f64;
    println!(
        "{:.1} µs an iteration, {:.1} µs with plain CSR: {:.2} times as fast, vectors included",
        each(chosen, iterations) * 1e6,
        each(plain, plain_iterations) * 1e6,
        each(plain, plain_iterations) / each(chosen, iterations)
    );
    Ok(())
}
