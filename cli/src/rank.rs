//! `sparseop rank`.

#[cfg(feature = "mpi")]
mod ranks;

use super::choice::ChoiceArgs;
use super::console::{Console, Left, Right, count, duration, table};
use super::launcher;
use super::matrix_arg::{MatrixSource, parser_with};
use super::solve::{at_least_one, parse_tolerance};
use anyhow::{Result, bail};
use serde::Serialize;
use sparseop::matrix::gallery::Values;
use sparseop::matrix::{CsrMatrix, market};
use sparseop::tuning::stopwatch::timed;
use sparseop::{Precision, Scalar, ScalarKind};
use sparseop_solvers::{Outcome, PageRank, Progress, Ranking, Settings};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// PageRank of a graph: the stationary distribution of a random walk along its links
///
/// Entry (i, j) is a link from page i to page j; its value is the weight of the link, at least 0.
/// Values of pattern files are 1. The rank of pages without links is distributed equally over all
/// pages. Pages are numbered from 1, as in the file.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sparseop rank web.mtx                              the ten pages with the highest rank
  sparseop rank web.mtx.gz --top 100 --json          a hundred pages, as JSON
  sparseop rank web.mtx --damping 0.5 --out r.mtx    all ranks, to a file
  sparseop rank gallery:rmat,values=pattern          a generated graph")]
pub(super) struct RankArgs {
    /// A square Matrix Market file or gallery:NAME[,key=value...], with values=pattern unless it
    /// names others
    #[arg(value_name = "GRAPH", value_parser = parser_with(Values::Pattern))]
    graph: MatrixSource,
    /// Number of pages to print, highest rank first
    #[arg(long, value_name = "K", default_value_t = 10)]
    top: usize,
    /// Damping factor: probability of following a link, at least 0 and below 1
    #[arg(long, value_name = "D", default_value_t = 0.85, value_parser = parse_damping)]
    damping: f64,
    /// Convergence tolerance: L1 norm of the change of the ranks, whose sum is 1
    #[arg(long, value_name = "TOL", default_value_t = 1e-8, value_parser = parse_tolerance)]
    tol: f64,
    /// Largest number of iterations
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = at_least_one())]
    max_iter: u64,
    /// Output file of all ranks, a Matrix Market array
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
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

/// The ranking as JSON.
#[derive(Serialize)]
struct RankingJson {
    graph: String,
    pages: usize,
    links: u64,
    dtype: ScalarKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_precision: Option<Precision>,
    device: String,
    plan: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ranks: Option<usize>,
    damping: f64,
    converged: bool,
    iterations: usize,
    /// Amount of rank moved by the last iteration.
    residual: f64,
    prepare_seconds: f64,
    seconds: f64,
    top: Vec<RankedPage>,
}

#[derive(Serialize)]
struct RankedPage {
    page: usize,
    rank: f64,
}

/// The operator that ranked the pages.
struct Ranked {
    pages: usize,
    links: u64,
    /// Name of the device, and its spelling.
    device: [String; 2],
    plan: String,
    /// Number of MPI ranks.
    ranks: Option<usize>,
    prepare_seconds: f64,
}

fn settings(args: &RankArgs) -> Settings {
    Settings {
        tolerance: args.tol,
        max_iterations: usize::try_from(args.max_iter).unwrap_or(usize::MAX),
        check_every: None,
    }
}

fn parse_damping(text: &str) -> Result<f64, String> {
    let damping = text.parse::<f64>().ok().filter(|d| (0.0..1.0).contains(d));
    damping.ok_or_else(|| "write a number of at least 0 and below 1, such as 0.85".to_owned())
}

pub(super) fn run(args: &RankArgs, console: &Console) -> Result<()> {
    #[cfg(feature = "mpi")]
    if launcher::ranks().is_some() {
        return by_scalar!(args.choice.dtype, ranks::rank(args, console));
    }
    #[cfg(not(feature = "mpi"))]
    launcher::refuse_jobs()?;
    by_scalar!(args.choice.dtype, rank(args, console))
}

/// Refuses weights that are no weights, by the numbers of the pages that the output has.
fn check_weights<T: Scalar>(graph: &CsrMatrix<T>) -> Result<()> {
    let view = graph.view();
    for row in 0..graph.nrows() {
        let weights = || view.row(row).1.iter().map(|weight| weight.to_f64());
        let page = row + 1;
        if let Some(weight) = weights().find(|weight| !(*weight >= 0.0 && weight.is_finite())) {
            bail!(
                "the weight of a link is a finite number from 0 on, but page {page} has one of \
                 {weight}"
            );
        }
        // The sum is that of the scalar type.
        if T::from_f64(weights().sum()).to_f64().is_infinite() {
            bail!(
                "the weights of the links of page {page} add up to more than a number can hold; \
                 scale them"
            );
        }
    }
    Ok(())
}

fn rank<T: Scalar>(args: &RankArgs, console: &Console) -> Result<()> {
    let builder = args.choice.builder()?;
    let graph = args.graph.load::<T>(console)?;
    check_weights(&graph)?;
    let doing = format!("preparing {}", args.graph.name());
    let prepared = console.during(doing, || timed(|| PageRank::new(graph.view(), &builder)));
    let (prepared, prepare_seconds) = prepared;
    let pagerank = prepared?;
    drop(graph);
    let op = pagerank.op();
    console.explain(op);
    let bar = console.spinner(format!("ranking {}", args.graph.name()));
    let shown = bar.clone();
    let ranking =
        pagerank.rank(args.damping, settings(args), |Progress { iterations, residual }| {
            shown.set_message(format!("iteration {iterations}, change {residual:.2e}"));
            ControlFlow::Continue(())
        });
    bar.finish_and_clear();
    let ranking = ranking?;
    let op = Ranked {
        pages: op.nrows(),
        links: op.nnz(),
        device: [op.device().spec().name, op.device().to_string()],
        plan: op.plan().to_string(),
        ranks: None,
        prepare_seconds,
    };
    print(args, &op, ranking, console)
}

/// Writes and prints the ranks.
fn print<T: Scalar>(
    args: &RankArgs,
    op: &Ranked,
    ranking: Ranking<T>,
    console: &Console,
) -> Result<()> {
    if let Some(file) = &args.out {
        market::write_vector(file, &ranking.ranks)?;
    }
    let top = ranking
        .top(args.top)
        .into_iter()
        .map(|(page, rank)| RankedPage { page: page + 1, rank: rank.to_f64() });
    let residual = ranking.history.last().copied().unwrap_or(0.0);
    if args.json {
        console.print_json(&RankingJson {
            graph: args.graph.name(),
            pages: op.pages,
            links: op.links,
            dtype: T::KIND,
            value_precision: args.choice.value_precision,
            device: op.device[0].clone(),
            plan: op.plan.clone(),
            ranks: op.ranks,
            damping: args.damping,
            converged: ranking.outcome == Outcome::Converged,
            iterations: ranking.iterations,
            residual,
            prepare_seconds: op.prepare_seconds,
            seconds: ranking.seconds,
            top: top.collect(),
        })?;
    } else {
        let rows =
            top.map(|RankedPage { page, rank }| vec![page.to_string(), format!("{rank:.6e}")]);
        console.print(&table(&[("page", Right), ("rank", Left)], rows))?;
        let (pages, links) = (count(op.pages as u64, "page"), count(op.links, "link"));
        let iterations = count(ranking.iterations as u64, "iteration");
        console.note(&format!(
            "{pages}, numbered from 1, and {links}: {iterations} in {}, the last one with a change \
             of {residual:.2e}",
            duration(ranking.seconds)
        ));
        console.note(&format!(
            "plan {} on {}, prepared in {}",
            op.plan,
            op.device[1],
            duration(op.prepare_seconds)
        ));
    }
    if let Err(failure) = ranking.converged() {
        console.error(&failure.to_string());
    }
    Ok(())
}
