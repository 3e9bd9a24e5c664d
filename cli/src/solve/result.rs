//! The result of `solve`: its answer in words, or as JSON.

use super::{Name, Preconditioner, SolveArgs, spelling};
use crate::console::{Console, count, duration};
use anyhow::Result;
use serde::Serialize;
use sparseop::matrix::market;
use sparseop::tuning::stopwatch::{Policy, time_batch, time_interleaved};
use sparseop::{DeviceVec, Precision, Scalar, ScalarKind, SparseOp, Stream};
use sparseop_solvers::{Outcome, Report};

/// The result as JSON.
#[derive(Serialize)]
struct Solved<'a> {
    matrix: String,
    nrows: usize,
    nnz: u64,
    dtype: ScalarKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_precision: Option<Precision>,
    device: String,
    plan: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ranks: Option<usize>,
    method: &'a str,
    preconditioner: &'a str,
    converged: bool,
    outcome: &'static str,
    iterations: usize,
    restarts: usize,
    residual: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    eigenvalue: Option<f64>,
    /// Analysis, packing, allocation of the vectors and capture of the iterations.
    prepare_seconds: f64,
    seconds: f64,
    seconds_per_iteration: Option<f64>,
    #[serde(flatten)]
    timing: Option<Timing>,
}

/// Times that an iteration is compared with.
#[derive(Serialize)]
pub(super) struct Timing {
    product_us: f64,
    /// Bytes of vectors that an iteration reads and writes, besides its products.
    vector_bytes: u64,
    copy_gbps: Option<f64>,
    /// Products and, if the bandwidth of copies is known, vectors at that bandwidth.
    bound_us: Option<f64>,
    over_bound: Option<f64>,
}

/// Result of either kind of solver.
pub(super) struct SolveResult<T> {
    pub(super) x: Vec<T>,
    pub(super) history: Vec<f64>,
    pub(super) outcome: Outcome,
    pub(super) restarts: usize,
    pub(super) residual: f64,
    pub(super) eigenvalue: Option<f64>,
    pub(super) iterations: usize,
    pub(super) prepare: f64,
    pub(super) seconds: f64,
    pub(super) failure: Option<sparseop::Error>,
    /// Products and bytes of vectors per iteration, if known.
    pub(super) cost: Option<(u32, u64)>,
}

impl<T: Scalar> SolveResult<T> {
    /// Result of a solver of linear systems: the solution, the report, and the seconds of the
    /// preparation.
    pub(super) fn of(x: Vec<T>, report: Report, prepare: f64, cost: Option<(u32, u64)>) -> Self {
        let failure = report.clone().converged().err();
        let Report { outcome, iterations, residual, history, restarts, seconds, .. } = report;
        Self {
            x,
            history,
            outcome,
            restarts,
            residual,
            eigenvalue: None,
            iterations,
            prepare,
            seconds,
            failure,
            cost,
        }
    }

    /// Writes the files that the arguments name.
    pub(super) fn write(&self, args: &SolveArgs) -> Result<()> {
        if let Some(file) = &args.out {
            market::write_vector(file, &self.x)?;
        }
        if let Some(file) = &args.history {
            market::write_vector(file, &self.history)?;
        }
        Ok(())
    }
}

/// Times the product alone, and compares an iteration of `iteration` seconds with its bound.
pub(super) fn time<T: Scalar>(
    op: &SparseOp<T>,
    (products, vector_bytes): (u32, u64),
    iteration: f64,
) -> Result<Timing> {
    let (device, stream) = (op.device(), Stream::new(op.device())?);
    let x = DeviceVec::from_slice(device, &sparseop::filled(op.ncols(), T::ONE)?)?;
    let mut y = DeviceVec::zeros(device, op.nrows())?;
    let mut product = |n| time_batch(&stream, n, || op.apply_device(&stream, &x, &mut y));
    let mut times = time_interleaved(&mut [&mut product], Policy::of(device));
    let product = times.swap_remove(0)?.median();
    let copies = device.copy_bandwidth()?;
    let bound = copies.map(|speed| f64::from(products) * product + vector_bytes as f64 / speed);
    Ok(Timing {
        product_us: product * 1e6,
        vector_bytes,
        copy_gbps: copies.map(|speed| speed * 1e-9),
        bound_us: bound.map(|bound| bound * 1e6),
        over_bound: bound.map(|bound| iteration / bound),
    })
}

/// Description of an operator.
pub(super) struct OpText {
    pub(super) nrows: usize,
    pub(super) nnz: u64,
    /// Name of the device, and its spelling.
    pub(super) device: [String; 2],
    pub(super) plan: String,
    /// Number of MPI ranks.
    pub(super) ranks: Option<usize>,
}

impl OpText {
    pub(super) fn of<T: Scalar>(op: &SparseOp<T>) -> Self {
        Self {
            nrows: op.nrows(),
            nnz: op.nnz(),
            device: [op.device().spec().name, op.device().to_string()],
            plan: op.plan().to_string(),
            ranks: None,
        }
    }
}

/// Prints the result of the method, with the reason for it if there is one.
pub(super) fn print<T: Scalar>(
    args: &SolveArgs,
    (name, why): (Name, Option<String>),
    op: &OpText,
    done: &SolveResult<T>,
    timing: Option<Timing>,
    console: &Console,
) -> Result<()> {
    let each = (done.iterations > 0).then(|| done.seconds / done.iterations as f64);
    let method = spelling(&name);
    let preconditioner =
        if name == Name::Power { Preconditioner::None } else { args.preconditioner };
    if args.json {
        return console.print_json(&Solved {
            matrix: args.matrix.name(),
            nrows: op.nrows,
            nnz: op.nnz,
            dtype: T::KIND,
            value_precision: args.choice.value_precision,
            device: op.device[0].clone(),
            plan: op.plan.clone(),
            ranks: op.ranks,
            method: &method,
            preconditioner: &spelling(&preconditioner),
            converged: done.outcome == Outcome::Converged,
            outcome: done.outcome.name(),
            iterations: done.iterations,
            restarts: done.restarts,
            residual: done.residual,
            eigenvalue: done.eigenvalue,
            prepare_seconds: done.prepare,
            seconds: done.seconds,
            seconds_per_iteration: each,
            timing,
        });
    }
    let outcome = match done.outcome {
        Outcome::Converged => "converged".to_owned(),
        other => format!("not converged ({other})"),
    };
    let mut text = format!(
        "{}: {outcome}, {} of {method} in {}{}\n",
        args.matrix.name(),
        count(done.iterations as u64, "iteration"),
        duration(done.seconds),
        each.map_or_else(String::new, |each| format!(", {} each", duration(each))),
    );
    if let Some(value) = done.eigenvalue {
        text += &format!("eigenvalue {value:?}\n");
    }
    let norm = if name == Name::Power { "|A v - l v| / |l|" } else { "|b - A x| / |b|" };
    text += &format!("residual {:.2e}, as {norm}\n", done.residual);
    if let Some(why) = why {
        text += &format!("method   {method}: {why}\n");
    }
    text += &format!(
        "plan     {} on {}, prepared in {}\n",
        op.plan,
        op.device[1],
        duration(done.prepare)
    );
    if let Some(Timing { product_us, vector_bytes, bound_us, over_bound, .. }) = timing {
        text += &format!(
            "product {}, vectors {vector_bytes} bytes per iteration\n",
            duration(product_us * 1e-6)
        );
        if let (Some(bound), Some(over)) = (bound_us, over_bound) {
            text += &format!(
                "products and vectors at copy bandwidth: {}; an iteration takes {over:.3} times \
                 as long\n",
                duration(bound * 1e-6)
            );
        }
    }
    console.print(&text)
}
