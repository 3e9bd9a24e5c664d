//! `sparseop solve`.

mod method;
#[cfg(feature = "mpi")]
mod ranks;
mod result;

use super::choice::ChoiceArgs;
use super::console::Console;
use super::launcher;
use super::matrix_arg::{MatrixSource, parser_with};
use anyhow::{Result, bail};
use clap::ValueEnum;
use clap::builder::TypedValueParser;
use method::{Suitability, needs_positive_definite};
use result::{OpText, SolveResult, print, time};
use sparseop::matrix::gallery::Values;
use sparseop::matrix::{CsrMatrix, market};
use sparseop::tuning::stopwatch::timed;
use sparseop::{Plan, Scalar, SparseOp};
use sparseop_solvers::{Jacobi, Method, Outcome, Progress, Settings, SolverBuilder, power};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Iterative solution of A x = b, or with --method power of A x = l x
///
/// Without --rhs, b is A times all ones, and the solution is all ones. The initial x is zero.
/// Without --out and --json a summary is printed. If the method does not converge, the exit code is
/// 1, and the x with the least residual is written: after no progress the initial one.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Methods:
  auto        cg if the matrix is symmetric and its diagonal above 0, gmres if it is symmetric only,
              bicgstab otherwise, and gmres if cg or bicgstab cannot go on; needs memory for a
              transposed copy of the matrix
  cg          conjugate gradients, for symmetric positive definite matrices
  single-reduction-cg
              the same matrices, on many ranks: one reduction per iteration in place of two
  chebyshev   the same matrices, without inner products; bounds of the eigenvalues by --eigenvalues,
              or estimated
  bicgstab    any matrix, with little memory
  gmres       any matrix; monotone residual, with --restart more vectors
  power       power iteration: the eigenvalue of largest magnitude and its eigenvector

Examples:
  sparseop solve cant.mtx --rhs b.mtx --out x.mtx          to a residual of 1e-8
  sparseop solve gallery:poisson2d,n=100,values=laplacian  a generated system
  sparseop solve a.mtx --method gmres --preconditioner jacobi --tol 1e-10
  sparseop solve gallery:poisson3d,n=160,values=laplacian --timing --json
                                                           compared with product and copy times")]
pub(super) struct SolveArgs {
    /// A square matrix: a Matrix Market file or gallery:NAME[,key=value...], with values=laplacian
    /// unless it names others
    #[arg(value_parser = parser_with(Values::Laplacian))]
    matrix: MatrixSource,
    /// Iterative method, listed below
    #[arg(long, value_name = "METHOD", default_value = "auto")]
    method: Name,
    /// Right-hand side b: a Matrix Market file of one column, or one number per line [default: A
    /// times all ones]
    #[arg(long, value_name = "FILE")]
    rhs: Option<PathBuf>,
    /// Relative residual at convergence: |b - A x| / |b|, or |A v - l v| / |l| of power
    #[arg(long, value_name = "TOL", default_value_t = 1e-8, value_parser = parse_tolerance)]
    tol: f64,
    /// Largest number of iterations
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = at_least_one())]
    max_iter: u64,
    /// Preconditioner
    #[arg(long, value_name = "NAME", default_value = "none")]
    preconditioner: Preconditioner,
    /// Number of iterations of gmres between restarts [default: 30]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=Method::MAX_RESTART as u64))]
    restart: Option<u64>,
    /// Bounds of the (preconditioned) eigenvalues, for chebyshev [default: estimated]
    #[arg(long, value_name = "MIN,MAX", value_parser = parse_bounds)]
    eigenvalues: Option<(f64, f64)>,
    /// Iterations between convergence checks by the host [default: 1 on the CPU, 32 on a GPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=128))]
    check_every: Option<u64>,
    /// Output file of x, a Matrix Market array
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Output file of the residuals of all iterations, a Matrix Market array
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Time the product alone too, and compare an iteration with products and copies of its vectors
    #[arg(long)]
    timing: bool,
    /// Storage plan to use instead of the chosen one
    #[arg(long, value_name = "PLAN")]
    plan: Option<Plan>,
    /// Seconds after which an MPI rank no longer waits for the others
    #[cfg(feature = "mpi")]
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    #[arg(value_parser = super::choice::parse_seconds)]
    rank_seconds: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    choice: ChoiceArgs,
}

impl SolveArgs {
    /// Files that are read.
    pub(super) fn inputs(&self) -> Vec<PathBuf> {
        self.matrix.file().into_iter().chain(self.rhs.clone()).collect()
    }

    /// Files of the results.
    pub(super) fn outputs(&self) -> Vec<PathBuf> {
        self.out.iter().chain(&self.history).cloned().collect()
    }
}

/// Methods of `--method`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    Auto,
    Cg,
    SingleReductionCg,
    Bicgstab,
    Gmres,
    Chebyshev,
    Power,
}

/// Preconditioners of `--preconditioner`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Preconditioner {
    /// None
    None,
    /// The inverse of the diagonal
    Jacobi,
}

/// Parser of a number of at least 1.
pub(super) fn at_least_one() -> impl TypedValueParser<Value = u64> {
    clap::value_parser!(u64).range(1..)
}

pub(super) fn parse_tolerance(text: &str) -> Result<f64, String> {
    let tolerance = text.parse::<f64>().ok().filter(|t| t.is_finite() && *t > 0.0);
    tolerance.ok_or_else(|| "write a number above 0, such as 1e-8".to_owned())
}

fn parse_bounds(text: &str) -> Result<(f64, f64), String> {
    let bounds = text
        .split_once(',')
        .and_then(|(low, high)| Some((low.trim().parse().ok()?, high.trim().parse().ok()?)));
    let valid =
        bounds.filter(|(low, high): &(f64, f64)| *low > 0.0 && high > low && high.is_finite());
    valid.ok_or_else(|| "write two numbers above 0, the lower one first, such as 0.01,8".to_owned())
}

pub(super) fn run(args: &SolveArgs, console: &Console) -> Result<()> {
    #[cfg(feature = "mpi")]
    if launcher::ranks().is_some() {
        return by_scalar!(args.choice.dtype, ranks::solve(args, console));
    }
    #[cfg(not(feature = "mpi"))]
    launcher::refuse_jobs()?;
    by_scalar!(args.choice.dtype, solve(args, console))
}

fn solve<T: Scalar>(args: &SolveArgs, console: &Console) -> Result<()> {
    let builder = args.choice.builder_for(args.plan.as_ref())?;
    args.warn_of_ignored_options(console);
    let a = args.choice.rounded(args.matrix.load::<T>(console)?)?;
    let (mut name, mut why) = method_for(args, &a)?;
    let doing = format!("preparing {}", args.matrix.name());
    let (op, built) = console.during(doing, || timed(|| builder.build(&a)));
    let op = op?;
    console.explain(&op);
    let mut done = if name == Name::Power {
        find_eigenvalue(args, &op, console)?
    } else {
        let b = right_hand_side(args, &op, console)?;
        let done = solve_system(args, name, (&a, &b), &op, console)?;
        match next_method(args, done.outcome) {
            Some((next, reason)) => {
                (name, why) = (next, Some(reason));
                solve_system(args, name, (&a, &b), &op, console)?
            }
            None => done,
        }
    };
    drop(a);
    done.prepare += built;
    done.write(args)?;
    let timing = match done.cost.filter(|_| args.timing) {
        Some(cost) => Some(time(&op, cost, done.seconds / done.iterations.max(1) as f64)?),
        None => None,
    };
    print(args, (name, why), &OpText::of(&op), &done, timing, console)?;
    if let Some(failure) = done.failure {
        console.error(&failure.to_string());
    }
    Ok(())
}

impl SolveArgs {
    /// Warns of options that the method does not use.
    fn warn_of_ignored_options(&self, console: &Console) {
        let (power, chebyshev) = (self.method == Name::Power, self.method == Name::Chebyshev);
        let restarts = matches!(self.method, Name::Gmres | Name::Auto);
        self.choice.warn_of_ignored_options(self.plan.is_some(), console);
        for (option, ignored) in [
            ("--rhs", power && self.rhs.is_some()),
            ("--preconditioner", power && self.preconditioner != Preconditioner::None),
            ("--timing", power && self.timing),
            ("--restart", !restarts && self.restart.is_some()),
            ("--eigenvalues", !chebyshev && self.eigenvalues.is_some()),
        ] {
            if ignored {
                let method = spelling(&self.method);
                console.warn(&format!("{option} is ignored: {method} does not use it"));
            }
        }
    }
}

/// Spelling of a value on the command line.
fn spelling(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The method for a matrix, with the reason if it is chosen here.
///
/// # Errors
///
/// If the matrix is not square, or the requested method needs a symmetric positive definite matrix,
/// and this is none.
fn method_for<T: Scalar>(args: &SolveArgs, a: &CsrMatrix<T>) -> Result<(Name, Option<String>)> {
    let (name, is_auto) = (args.method, args.method == Name::Auto);
    check_square(args, (a.nrows(), a.ncols()))?;
    let looked = (is_auto || needs_positive_definite(name)).then(|| Suitability::of(a)).flatten();
    suitable(args, looked)
}

/// Checks that the matrix of the arguments is square.
fn check_square(args: &SolveArgs, (nrows, ncols): (usize, usize)) -> Result<()> {
    if nrows == ncols {
        return Ok(());
    }
    let matrix = args.matrix.name();
    bail!("{matrix}: solve needs a square matrix, and this one is {nrows} x {ncols}");
}

/// The method for a matrix with these properties, if they are known.
fn suitable(args: &SolveArgs, looked: Option<Suitability>) -> Result<(Name, Option<String>)> {
    let (name, is_auto) = (args.method, args.method == Name::Auto);
    match looked {
        None if is_auto => Ok((Name::Bicgstab, None)),
        None => Ok((name, None)),
        Some(looked) if is_auto => {
            let (name, why) = looked.method();
            Ok((name, Some(why)))
        }
        Some(looked) => match looked.refusal(name) {
            Some(refusal) => bail!("{}: {refusal}", args.matrix.name()),
            None => Ok((name, None)),
        },
    }
}

/// The method that solves the system anew, with the reason, if the automatic one cannot.
fn next_method(args: &SolveArgs, outcome: Outcome) -> Option<(Name, String)> {
    if args.method != Name::Auto {
        return None;
    }
    let reason = match outcome {
        Outcome::NotPositiveDefinite => {
            "the matrix is symmetric, but not positive definite, as cg finds"
        }
        Outcome::Breakdown => "bicgstab, for matrices that are not symmetric, has broken down",
        _ => return None,
    };
    Some((Name::Gmres, reason.to_owned()))
}

fn settings(args: &SolveArgs) -> Settings {
    Settings {
        tolerance: args.tol,
        // No history of residuals is longer than the memory of a machine.
        max_iterations: usize::try_from(args.max_iter).unwrap_or(usize::MAX),
        check_every: args.check_every.map(|every| every as usize),
    }
}

/// A spinner, and an observer that shows the progress in it.
fn spinner(
    args: &SolveArgs,
    console: &Console,
) -> (indicatif::ProgressBar, impl FnMut(Progress) -> ControlFlow<()> + 'static) {
    let bar = console.spinner(format!("solving {}", args.matrix.name()));
    let shown = bar.clone();
    let observer = move |Progress { iterations, residual }: Progress| {
        shown.set_message(format!("iteration {iterations}, residual {residual:.2e}"));
        ControlFlow::Continue(())
    };
    (bar, observer)
}

/// The vector b of --rhs, or A times all ones.
fn right_hand_side<T: Scalar>(
    args: &SolveArgs,
    op: &SparseOp<T>,
    console: &Console,
) -> Result<Vec<T>> {
    if let Some(file) = &args.rhs {
        return Ok(market::read_vector_of(file, op.nrows())?);
    }
    console.note("b is A times all ones; give another with --rhs");
    let mut b = sparseop::try_zeroed(op.nrows())?;
    op.apply(&sparseop::filled(op.ncols(), T::ONE)?, &mut b)?;
    Ok(b)
}

/// The method of a name, with its parameters.
fn method_of(args: &SolveArgs, name: Name) -> Method {
    match name {
        Name::SingleReductionCg => Method::SingleReductionCg,
        Name::Bicgstab => Method::BiCgStab,
        Name::Gmres => Method::Gmres { restart: args.restart.unwrap_or(30) as usize },
        Name::Chebyshev => Method::Chebyshev { bounds: args.eigenvalues },
        Name::Auto | Name::Cg | Name::Power => Method::Cg,
    }
}

fn solve_system<T: Scalar>(
    args: &SolveArgs,
    name: Name,
    (a, b): (&CsrMatrix<T>, &[T]),
    op: &SparseOp<T>,
    console: &Console,
) -> Result<SolveResult<T>> {
    let method = method_of(args, name);
    let (bar, observer) = spinner(args, console);
    let (solver, prepare) = timed(|| {
        let builder = SolverBuilder::new(method).settings(settings(args)).progress(observer);
        let builder = match args.preconditioner {
            Preconditioner::None => builder,
            Preconditioner::Jacobi => builder.jacobi(Jacobi::of(a.view())?),
        };
        builder.build(op)
    });
    let mut solver = solver?;
    if let Method::Chebyshev { bounds: Some((low, high)) } = solver.method() {
        console.detail(|| format!("bounds of the eigenvalues: {low:.6e} and {high:.6e}"));
    }
    let mut x = sparseop::try_zeroed(op.ncols())?;
    let report = solver.solve(b, &mut x);
    bar.finish_and_clear();
    let cost = Some((solver.products_per_iteration(), solver.vector_bytes_per_iteration()));
    Ok(SolveResult::of(x, report?, prepare, cost))
}

fn find_eigenvalue<T: Scalar>(
    args: &SolveArgs,
    op: &SparseOp<T>,
    console: &Console,
) -> Result<SolveResult<T>> {
    // Not all ones, which are an eigenvector of many graphs: fixed numbers without a pattern.
    let start: Vec<T> = (0..op.ncols())
        .map(|i| T::from_f64(1.0 + (i as f64 * 0.618_033_988_749_895).fract()))
        .collect();
    let (bar, observer) = spinner(args, console);
    let pair = power(op, &start, settings(args), observer);
    bar.finish_and_clear();
    let pair = pair?;
    let failure = pair.clone().converged().err();
    Ok(SolveResult {
        residual: pair.residual(),
        x: pair.vector,
        history: pair.history,
        outcome: pair.outcome,
        restarts: 0,
        eigenvalue: Some(pair.value),
        iterations: pair.iterations,
        prepare: 0.0,
        seconds: pair.seconds,
        failure,
        cost: None,
    })
}
