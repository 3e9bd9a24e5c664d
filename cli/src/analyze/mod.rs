//! `sparseop analyze`.

mod json;
mod page;
mod text;

use super::choice::{ChoiceArgs, TuningMethod};
use super::console::Console;
use super::matrix_arg::{Matrices, MatrixSource};
use super::report::{Page, ReportArg};
use anyhow::Result;
use sparseop::analysis::{Analysis, Fingerprint, Histogram, Pattern, Symmetry};
use sparseop::formats::hyb::{Rule, Width};
use sparseop::formats::jds::{BoundaryMethod, Sectioning};
use sparseop::formats::{FormatKind, Work, hyb};
use sparseop::tuning::decision::Decision;
use sparseop::tuning::stopwatch::timed;
use sparseop::{Plan, Scalar, ScalarKind};

/// The recommended plan for a matrix, its time, its gain and the reason
///
/// With -v also the statistics of the matrix, the sizes of all formats and every candidate. Times
/// are predictions from measured coefficients. Products are timed with --tuning check, as by other
/// commands, and with --tuning calibrate.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sparseop analyze cant.mtx
  sparseop analyze cant.mtx -v                statistics, sizes and all candidates too
  sparseop analyze cant.mtx --dtype f32 --symmetry
  sparseop analyze gallery:webbase,rows=100k --expected-calls 10
  sparseop analyze cant.mtx --tuning calibrate
  sparseop analyze matrices/ --json > analysis.jsonl
  sparseop analyze cant.mtx --report cant.html")]
pub(super) struct AnalyzeArgs {
    #[command(flatten)]
    matrices: Matrices,
    /// Measure the symmetry too; needs memory for a transposed copy of the matrix
    #[arg(long)]
    symmetry: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    report: ReportArg,
    #[command(flatten)]
    choice: ChoiceArgs,
}

pub(super) fn run(args: &AnalyzeArgs, console: &Console) -> Result<()> {
    let mut page = args.report.begin("Analysis")?;
    args.matrices.for_each(console, |source| {
        by_scalar!(args.choice.dtype, analyze(args, source, page.as_mut(), console))
    })?;
    args.report.finish(page, console)
}

/// Findings about a matrix.
struct Findings {
    matrix: String,
    scalar: ScalarKind,
    device: String,
    fingerprint: Fingerprint,
    analysis: Analysis,
    pattern: Pattern,
    symmetry: Option<Symmetry>,
    decision: Decision,
    times: StepTimes,
}

/// Seconds of the steps up to a decision.
#[derive(Debug, Clone, Copy)]
struct StepTimes {
    analyze: f64,
    /// Prediction and choice, without calibration.
    select: f64,
}

fn analyze<T: Scalar>(
    args: &AnalyzeArgs,
    source: &MatrixSource,
    page: Option<&mut Page>,
    console: &Console,
) -> Result<()> {
    let builder = args.choice.builder()?;
    let a = args.choice.rounded(source.load::<T>(console)?)?;
    Analysis::check_memory(a.view())?;
    let doing = || format!("analysing {}", source.name());
    let (analysis, analyze) = console.during(doing(), || timed(|| Analysis::of(a.view())));
    let (decision, select) = match args.choice.tuning {
        None | Some(TuningMethod::Predict) if !args.choice.remember => {
            let (decision, seconds) = timed(|| builder.decide(&analysis, T::KIND));
            (decision?, seconds)
        }
        _ => {
            let op = console.during(doing(), || builder.build_analyzed(&a, &analysis))?;
            (op.decision().clone(), op.preparation().select)
        }
    };
    let findings = Findings {
        matrix: source.name(),
        scalar: T::KIND,
        device: args.choice.device()?.spec().name,
        decision,
        fingerprint: Fingerprint::of(a.view()),
        pattern: Pattern::of(a.view()),
        symmetry: args.symmetry.then(|| Symmetry::of(a.view())).transpose()?,
        times: StepTimes { analyze, select },
        analysis,
    };
    if let Some(page) = page {
        page.add(page::matrix(&findings, source, a.view(), &args.choice)?);
    }
    if args.json {
        console.print_json(&json::report(&findings))
    } else {
        console.print(&text::report(&findings, console.is_verbose())?)
    }
}

impl Findings {
    fn histogram(&self) -> &Histogram {
        &self.analysis.rows.histogram
    }

    /// Time of analysis and choice together, in products of the chosen plan. None if no time of
    /// that plan is known.
    fn products(&self) -> Option<f64> {
        let measured = self
            .decision
            .timing_run()
            .and_then(|timing_run| timing_run.timed_plan(&self.decision.plan)?.product);
        let predicted = || Some(self.decision.chosen()?.prediction?.product() * 1e-9);
        let product = measured.or_else(predicted).filter(|product| *product > 0.0)?;
        Some((self.times.analyze + self.times.select) / product)
    }

    /// Work of every format with its default parameters.
    fn formats(&self) -> impl Iterator<Item = (Plan, Work)> {
        // The name of a format alone is a plan of it. A name that does not parse is left out, and
        // so is a format that cannot hold the matrix.
        let plans = FormatKind::ALL.iter().filter_map(|kind| kind.name().parse::<Plan>().ok());
        let plans = plans.filter(|plan| plan.refusal(&self.analysis).is_none());
        plans.map(|plan| (plan.clone(), plan.work(&self.analysis, self.scalar)))
    }

    /// Width of the ELL part by every rule, and the work of a hybrid of that width.
    fn hyb_widths(&self) -> impl Iterator<Item = (String, u32, Work)> {
        let costs = self.decision.profile.costs(self.scalar);
        let measured = hyb::fastest(self.histogram(), Some(&costs));
        let rules = Rule::WORDS
            .iter()
            .map(|&(name, rule)| (name.to_owned(), rule.width(self.histogram(), self.scalar)));
        std::iter::once(("predicted fastest".to_owned(), measured)).chain(rules).map(
            |(name, width)| {
                let plan = Plan::Hyb(hyb::HybPlan::new(Width::Fixed(width)));
                (name, width, plan.work(&self.analysis, self.scalar))
            },
        )
    }

    /// Sections of JDS: at their optimum with a free number, and by every method with that number.
    /// Each comes with its number of slots.
    fn sectionings(&self) -> impl Iterator<Item = (Sectioning, usize, u64)> {
        let free = Sectioning::default();
        let best = u32::try_from(free.outcome(self.histogram()).0).unwrap_or(u32::MAX).max(1);
        let with = move |method| Sectioning { method, sections: Some(best), cost: None };
        let sectionings =
            [free, with(BoundaryMethod::EqualRows), with(BoundaryMethod::EqualLengths)];
        sectionings.into_iter().map(|sectioning| {
            let (sections, slots) = sectioning.outcome(self.histogram());
            (sectioning, sections, slots)
        })
    }
}

/// Number of slots per entry. 1 for a matrix without entries.
fn padding_ratio(slots: u64, nnz: u64) -> f64 {
    if nnz == 0 { 1.0 } else { slots as f64 / nnz as f64 }
}
