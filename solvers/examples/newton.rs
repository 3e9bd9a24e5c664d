//! Newton's method for a nonlinear equation: the pattern of the Jacobian is constant, so that every
//! step only updates the values of the operator.
//!
//! ```text
//! cargo run --release -p sparseop-solvers --example newton           # 48 x 48 x 48 points
//! cargo run --release -p sparseop-solvers --example newton -- 100    # more
//! ```
//!
//! The equation is Bratu's, -Δu = λ exp(u) in a cube with u = 0 on its sides.

use sparseop::matrix::{CsrMatrix, gallery};
use sparseop::{Error, SparseOp, SparseOpBuilder, Tuning};
use sparseop_solvers::{Method, Settings, SolverBuilder};
use std::time::Instant;

/// The parameter λ; above about 9.9 there is no solution.
const LAMBDA: f64 = 5.0;

/// Result of Newton's method.
struct Done {
    u: Vec<f64>,
    steps: usize,
    iterations: usize,
    /// Seconds of the iterations, and of the value updates.
    solving: f64,
    updating: f64,
}

/// Iterates from u = 0 until the residual is negligible. `laplacian` is the matrix of the operator
/// when it was built.
fn solve(op: &mut SparseOp<f64>, laplacian: &CsrMatrix<f64>, n: usize) -> Result<Done, Error> {
    let scale = LAMBDA / ((n + 1) * (n + 1)) as f64;
    let diagonal: Vec<usize> = (0..laplacian.nrows())
        .map(|row| {
            let cols = laplacian.view().row(row).0;
            laplacian.row_ptr()[row] + cols.iter().position(|&col| col as usize == row).unwrap_or(0)
        })
        .collect();
    let settings = Settings { tolerance: 1e-8, ..Settings::default() };
    let mut done = Done { u: op.zeros_x(), steps: 0, iterations: 0, solving: 0.0, updating: 0.0 };
    for _ in 0..20 {
        // The Jacobian at u is L - scale diag(exp(u)).
        let mut values = laplacian.values().to_vec();
        for (&k, u) in diagonal.iter().zip(&done.u) {
            values[k] -= scale * u.exp();
        }
        let start = Instant::now();
        op.update_values(&values)?;
        done.updating += start.elapsed().as_secs_f64();
        // -F(u) = scale exp(u) - L u, and L u = J u + scale exp(u) u.
        let mut right: Vec<f64> = done.u.iter().map(|u| scale * u.exp() * (1.0 - u)).collect();
        op.apply_with(-1.0, &done.u, 1.0, &mut right)?;
        if right.iter().map(|r| r * r).sum::<f64>().sqrt() < 1e-10 {
            break;
        }
        let mut change = op.zeros_x();
        let mut solver = SolverBuilder::new(Method::Cg).settings(settings).build(op)?;
        let report = solver.solve(&right, &mut change)?.converged()?;
        done.u.iter_mut().zip(&change).for_each(|(u, change)| *u += change);
        done.steps += 1;
        done.iterations += report.iterations;
        done.solving += report.seconds;
    }
    Ok(done)
}

fn main() -> Result<(), Error> {
    let n = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(48);
    let laplacian =
        format!("poisson3d,n={n},values=laplacian").parse::<gallery::Spec>()?.generate::<f64>()?;
    let builder = SparseOpBuilder::new().updatable(true);
    let start = Instant::now();
    let mut op = builder.build(&laplacian)?;
    let building = start.elapsed().as_secs_f64();
    println!("auto chose {} on {}", op.plan(), op.device());
    let found = solve(&mut op, &laplacian, n)?;
    println!(
        "{} Newton steps, {} iterations: u is {:.6} in the middle",
        found.steps,
        found.iterations,
        found.u.iter().copied().fold(0.0, f64::max)
    );
    println!(
        "new values take {:.2} ms, a new operator {:.2} ms",
        found.updating / (found.steps + 1) as f64 * 1e3,
        building * 1e3
    );
    let mut csr = builder.tuning(Tuning::Fixed("csr".parse()?)).build(&laplacian)?;
    let plain = solve(&mut csr, &laplacian, n)?;
    let each = |done: &Done| done.solving / done.iterations.max(1) as f64;
    println!(
        "{:.1} µs an iteration, {:.1} µs with plain CSR: {:.2} times as fast, vectors included",
        each(&found) * 1e6,
        each(&plain) * 1e6,
        each(&plain) / each(&found)
    );
    Ok(())
}
