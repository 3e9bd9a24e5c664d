//! `sparseop bench`.

mod baseline;
mod comparison;
mod cusparse;
mod engine;
mod failure;
mod first;
mod noise;
mod page;
mod plans;
mod report;
mod task;

use super::choice::{ChoiceArgs, parse_seconds};
use super::console::Console;
use super::matrix_arg::{Matrices, MatrixSource};
use super::report::{Page, ReportArg};
use anyhow::{Result, bail};
use baseline::{Baseline, Peer, Peers, Task};
use comparison::{Comparison, compare};
use plans::{PlanRequest, Plans};
use report::{BenchReport, PrepareUs, Summary};
use sparseop::analysis::Analysis;
use sparseop::formats::FormatKind;
use sparseop::matrix::CsrMatrix;
use sparseop::tuning::calibrate::Calibration;
use sparseop::tuning::decision::{Candidate, Decision, TimingRun, Verdict};
use sparseop::tuning::explain::{Explanation, Preparation, size};
use sparseop::tuning::stopwatch::timed;
use sparseop::{Device, Plan, SparseOpBuilder, Tuning};
use task::{CacheArg, LayoutArg, MultivectorShape};

/// End of the help.
const HELP: &str = "\
`auto` is the plan that is chosen by default, predicted and checked with a few products; \
`predicted` that of the prediction alone, `calibrated` the winner of a timing run of the \
shortlist, `all` every plan that may be chosen for the matrix, `every` the excluded ones too.

The environment variable SPARSEOP_CUSPARSE is the path of the cuSPARSE baseline, such as
SPARSEOP_CUSPARSE=/path/libcusparse.so.12. SpMVOp (spmvop_alg1, spmvop_alg2) needs version 12.8 or
newer and its libnvJitLink on the library path (LD_LIBRARY_PATH).

Examples:
  sparseop bench cant.mtx
  sparseop bench cant.mtx --plans auto,predicted,calibrated,csr
  sparseop bench cant.mtx --plans 'auto,sell(c:32,sigma:512),csr' --seconds 3
  sparseop bench matrices/ --plans all --baselines none --dtype f32
  sparseop bench cant.mtx --cache company
  sparseop bench cant.mtx --vectors 8 --plans auto
  sparseop bench cant.mtx --transpose --plans auto
  sparseop bench cant.mtx --first
  sparseop bench matrices/ --json > results.jsonl
  sparseop bench matrices/ --plans all --report results.html";

/// A spelling of a plan of each format.
fn examples() -> String {
    let first = FormatKind::ALL.iter().filter_map(|kind| kind.examples().first().copied());
    first.collect::<Vec<_>>().join(", ")
}

/// Timing of the requested plans and baselines, after a check of their results
///
/// Candidates are timed in turn, round after round, so that drift of the machine affects all of
/// them equally; the median is quoted. A candidate with a wrong result is reported and not timed,
/// and the exit code is 1.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("Plans are spelled name(key:value,...): {}.\n\n{HELP}", examples()))]
pub(super) struct BenchArgs {
    #[command(flatten)]
    matrices: Matrices,
    /// Plans to time, separated by commas: auto, predicted, calibrated, all, every, or spelled
    /// plans
    #[arg(long, value_name = "PLAN,...", default_value = "auto,csr")]
    plans: Plans,
    /// Baselines to compare with [default: cusparse on a GPU, sprs on the CPU]
    #[arg(long, value_name = "BASELINE,...", value_delimiter = ',')]
    baselines: Option<Vec<Baseline>>,
    /// Number of vectors of a product (SpMM), compared with one vector and with cuSPARSE's SpMM in
    /// both layouts
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(2..))]
    #[arg(conflicts_with = "path")]
    vectors: Option<u16>,
    /// Layout of the vectors in memory
    #[arg(long, value_name = "LAYOUT", default_value = "row", requires = "vectors")]
    layout: LayoutArg,
    /// Multiply by the transposed matrix: plans of the explicitly transposed matrix, and the
    /// transposed product of the operator
    #[arg(long, conflicts_with_all = ["vectors", "path"])]
    transpose: bool,
    /// State of the last-level cache (the L2 of a GPU) before timed products
    ///
    /// Applies to plans and baselines. The cache is filled by ordinary reads and writes of twice
    /// its size, which are not timed. The timing run of `calibrated` uses --cold instead.
    #[arg(long, value_name = "STATE", default_value = "warm")]
    cache: CacheArg,
    /// Launch products on a GPU as graphs of 128, where a batch has as many: as applications do
    /// that capture their loops. By default they are launched one by one
    #[arg(long)]
    graphs: bool,
    /// Time from the start of a process to its first product and its parts, in new processes: with
    /// an empty and with a filled cache of kernels, and for a matrix in GPU memory
    #[arg(long, conflicts_with_all = ["plans", "baselines", "vectors", "transpose", "cache"])]
    #[arg(conflicts_with_all = ["path", "seconds", "graphs"])]
    first: bool,
    /// Approximate time for each plan and baseline, in seconds; short products take less, as there
    /// are at most 200 rounds a second
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    seconds: f64,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    report: ReportArg,
    #[command(flatten)]
    choice: ChoiceArgs,
}

pub(super) fn run(args: &BenchArgs, console: &Console) -> Result<()> {
    if args.first {
        return first::run(args, console);
    }
    let mut summary = Summary::default();
    let mut page = args.report.begin("Benchmark")?;
    args.matrices.for_each(console, |source| {
        let report = by_scalar!(args.choice.dtype, bench(args, source, page.as_mut(), console))?;
        if args.json {
            console.print_json(&report)?;
        } else {
            console.print(&report.table(console.is_verbose())?)?;
            summary.add(&report);
        }
        Ok(())
    })?;
    if !args.json {
        console.print(&summary.text())?;
    }
    args.report.finish(page, console)
}

impl BenchArgs {
    /// The task that the arguments describe.
    fn task(&self) -> Task {
        let multivector =
            |count| MultivectorShape { count: usize::from(count), layout: self.layout.into() };
        Task {
            vectors_shape: self.vectors.map_or(MultivectorShape::ONE, multivector),
            transposed: self.transpose,
        }
    }
}

fn bench<T: Peers>(
    args: &BenchArgs,
    source: &MatrixSource,
    page: Option<&mut Page>,
    console: &Console,
) -> Result<BenchReport> {
    let (builder, task) = (args.choice.builder()?, args.task());
    let loaded = args.choice.rounded(source.load::<T>(console)?)?;
    let transposed = task.transposed.then(|| loaded.transpose());
    let (a, original) = match &transposed {
        Some(transposed) => (transposed, Some(&loaded)),
        None => (&loaded, None),
    };
    check_room::<T>(a, task.vectors_shape.count)?;
    Analysis::check_memory(a.view())?;
    let doing = || format!("preparing {}", source.name());
    let (analysis, analyze) = console.during(doing(), || timed(|| Analysis::of(a.view())));
    // Dropped at once: its memory belongs to the comparison.
    let auto = console.during(doing(), || builder.build_analyzed(a, &analysis))?;
    let preparation = Preparation { analyze, ..*auto.preparation() };
    let words = Explanation { preparation: Some(&preparation), ..auto.explain() }.to_string();
    console.detail(|| words.clone());
    let prepare_us = PrepareUs::of(&preparation);
    let (decision, device) = (auto.decision().clone(), auto.device().clone());
    drop(auto);
    let calibrated = match args.plans.iter().any(|asked| *asked == PlanRequest::Calibrated) {
        true => Some(calibrated(&builder, args, a, &analysis, console)?),
        false => None,
    };
    let plans = asked_plans(&args.plans, &decision, calibrated.as_ref());
    let baselines =
        args.baselines.clone().unwrap_or_else(|| vec![Baseline::default_of(&device, console)]);
    let others = baselines.into_iter().flat_map(|b| b.peers(task, &device, console));
    let peers: Vec<Peer> = Peer::own(task).into_iter().chain(others).collect();
    // Every candidate may take the memory that the chosen plan was allowed, whatever other
    // candidates hold.
    let limit = decision.request.memory_limit;
    let entered = Comparison {
        a,
        original,
        task,
        analysis: &analysis,
        builder: &builder.device(device.clone()).memory_limit(limit),
        limit,
        device: &device,
        plans: &plans.iter().map(|p| p.0.clone()).collect::<Vec<_>>(),
        peers: &peers,
        seconds: args.seconds,
        cache: args.cache.into(),
        graphs: args.graphs,
    };
    let before = noise::others();
    let runs = compare(&entered, console)?;
    let contention = noise::contention([before, noise::others()], device.spec().threads);
    for (i, run) in runs.iter().enumerate() {
        // A candidate of many that is too large is not reported; a plan asked for by name is.
        let expected = plans.get(i).is_none_or(|(_, by_name)| !by_name) && run.is_refused();
        if let (Some(error), false) = (run.error(), expected) {
            console.error(&format!("{}: {error}", source.name()));
        }
    }
    let mut report = BenchReport {
        matrix: source.name(),
        nrows: a.nrows(),
        ncols: a.ncols(),
        nnz: a.nnz(),
        dtype: T::KIND,
        value_precision: args.choice.value_precision,
        device: device.spec().name,
        cache: entered.cache,
        graphs: entered.graphs,
        vectors: args.vectors.map(usize::from),
        layout: args.vectors.map(|_| args.layout),
        transposed: task.transposed,
        auto_plan: decision.plan.clone(),
        predicted_plan: predicted(&decision),
        calibrated_plan: calibrated,
        prepare_us,
        runs,
        busy: None,
    };
    let contention = contention.filter(|_| device == Device::Cpu);
    let mut busy = noise::spread(&report.runs).or(contention);
    if let Some(page) = page {
        let mut matrix = page::matrix(&report, &entered, &decision, words, source)?;
        busy = busy.or_else(|| noise::slow_copy(&decision, matrix.bandwidth));
        matrix.busy.clone_from(&busy);
        page.add(matrix);
    }
    if let Some(busy) = &busy {
        console.warn(&format!("{}: {busy}", source.name()));
    }
    report.busy = busy;
    Ok(report)
}

/// Refuses more vectors than there is memory for.
fn check_room<T: Peers>(a: &CsrMatrix<T>, count: usize) -> Result<()> {
    /// Copies of every vector at a time: in both layouts, during the copy, and the oracle's result.
    const COPIES: u64 = 4;
    let elements = ((a.nrows() + a.ncols()) as u64).saturating_mul(count as u64);
    let (needed, there) =
        (elements.saturating_mul(COPIES * size_of::<T>() as u64), Device::Cpu.memory()?);
    if needed > there {
        let (vectors, remedy) = match count {
            1 => ("a vector and its product".to_owned(), "use a smaller matrix"),
            _ => (format!("{count} vectors and their products"), "use fewer vectors"),
        };
        let verb = if count == 1 { "needs" } else { "need" };
        bail!(
            "{vectors} {verb} {}, and this process may use {}; {remedy}",
            size(needed),
            size(there)
        );
    }
    Ok(())
}

/// The winner of a calibration, whether the expected calls pay for it or not.
fn calibrated<T: Peers>(
    builder: &SparseOpBuilder,
    args: &BenchArgs,
    a: &CsrMatrix<T>,
    analysis: &Analysis,
    console: &Console,
) -> Result<Plan> {
    let calibration = Calibration { always: true, ..args.choice.calibration() };
    let op = builder
        .clone()
        .tuning(Tuning::Calibrate)
        .calibration(calibration)
        .build_analyzed(a, analysis)?;
    console.explain(&op);
    Ok(op.plan().clone())
}

/// The plan that was chosen before any was timed.
fn predicted(decision: &Decision) -> Plan {
    decision.timing_run().map_or(&decision.plan, TimingRun::predicted).clone()
}

/// Every requested plan once, in the order of the request; true if it is requested by name.
fn asked_plans(asked: &Plans, decision: &Decision, calibrated: Option<&Plan>) -> Vec<(Plan, bool)> {
    let mut plans: Vec<(Plan, bool)> = Vec::new();
    for asked in asked.iter() {
        let (more, by_name) = match asked {
            PlanRequest::Auto => (vec![decision.plan.clone()], true),
            PlanRequest::Predicted => (vec![predicted(decision)], true),
            PlanRequest::Calibrated => (calibrated.cloned().into_iter().collect(), true),
            PlanRequest::All => {
                let may_be_chosen = |c: &&Candidate| {
                    !matches!(c.verdict, Verdict::OutOfBounds { .. } | Verdict::OnRequest)
                };
                let candidates = decision.candidates.iter().filter(may_be_chosen);
                (candidates.map(|c| c.plan.clone()).collect(), false)
            }
            PlanRequest::Every => {
                (decision.candidates.iter().map(|c| c.plan.clone()).collect(), false)
            }
            PlanRequest::Plan(plan) => (vec![plan.clone()], true),
        };
        for plan in more {
            match plans.iter_mut().find(|known| known.0 == plan) {
                Some(known) => known.1 |= by_name,
                None => plans.push((plan, by_name)),
            }
        }
    }
    plans
}
