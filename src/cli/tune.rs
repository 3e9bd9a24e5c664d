//! `sparseop tune`.

use super::choice::{DeviceArg, dtype_parser, parse_seconds};
use super::console::{Console, Left, Right, cause_chain, duration, table};
use super::matrix_arg::{self, Source};
use super::report::{self, Raster, ReportArg, Thresholds};
use anyhow::{Result, bail};
use sparseop::analysis::Analysis;
use sparseop::formats::Weights;
use sparseop::matrix::{CsrMatrix, gallery};
use sparseop::tuning::offline::{self, Measured};
use sparseop::tuning::profile::Profile;
use sparseop::tuning::stopwatch::Policy;
use sparseop::{Device, Plan, Scalar, ScalarKind};
use std::path::{Path, PathBuf};

/// Measures every plan on a collection of matrices and writes the coefficients of the cost model
///
/// The times of all candidates on all matrices are fitted by the cost model; the profile, in RON, is what `--profile` takes. Choose
/// matrices like those to be multiplied, small and large; measure on a machine that does nothing else.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sparseop tune --suite 100000,1000000,10000000 --out cpu.ron
  sparseop tune matrices/ gallery:webbase,rows=500k --out mine.ron
  sparseop tune matrices/ --out mine.ron --report mine.html
  sparseop bench matrices/ --plans all --profile mine.ron")]
pub(super) struct Args {
    /// Matrix Market files, folders of them, or gallery:NAME[,key=value...]
    #[arg(value_name = "MATRIX", required_unless_present = "suite", value_parser = matrix_arg::parser())]
    matrices: Vec<Source>,
    /// Also the fifteen matrices of the gallery, each scaled to so many entries
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    suite: Vec<usize>,
    /// Where to write the profile
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Numbers to compute with; both when not given
    #[arg(long, value_name = "TYPE", value_parser = dtype_parser())]
    dtype: Option<ScalarKind>,
    /// What to measure: auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceArg::parse)]
    device: DeviceArg,
    /// Seconds to time the plans of one matrix, about
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    seconds: f64,
    #[command(flatten)]
    report: ReportArg,
}

/// What was measured on one matrix.
struct Subject {
    name: String,
    scalar: ScalarKind,
    times: Measured,
    /// What the page shows of it, predictions excepted; none where no page is asked for.
    picture: Option<report::Matrix>,
}

pub(super) fn run(args: &Args, console: &Console) -> Result<()> {
    let mut sources: Vec<Source> =
        args.matrices.iter().flat_map(|given| given.expand_or_report(console)).collect();
    for &entries in &args.suite {
        // What cannot be scaled would be measured again for every size.
        let scaled = gallery::suite().map(|spec| (spec.scaled_to(entries), spec));
        let new = scaled.filter(|(scaled, spec)| scaled != spec || entries == args.suite[0]);
        sources.extend(new.map(|(scaled, _)| Source::Gallery(scaled)));
    }
    let scalars = args.dtype.map_or(ScalarKind::ALL.to_vec(), |scalar| vec![scalar]);
    let device = args.device.get()?;
    let rounds = Policy { warmup: 1, min_rounds: 5, max_rounds: 50, ..Policy::of(&device) };
    let policy = Policy { seconds: args.seconds, ..rounds };

    let folder = args.out.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        bail!("{} is not a folder: the profile could not be written", folder.display());
    }
    let mut page = args.report.begin("Tuning")?;
    let bar = console.bar("{msg} {wide_bar} {pos} of {len}, {eta} left");
    bar.set_length((sources.len() * scalars.len()) as u64);
    let mut measured: Vec<Subject> = Vec::new();
    for source in &sources {
        bar.set_message(source.name());
        for &scalar in &scalars {
            let result = match scalar {
                ScalarKind::F32 => measure::<f32>(source, &device, policy, page.is_some(), console),
                ScalarKind::F64 => measure::<f64>(source, &device, policy, page.is_some(), console),
            };
            match result {
                Ok(subject) => measured.push(subject),
                Err(error) => console.error(&cause_chain(&error)),
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();

    let command = super::command_line();
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    let times: Vec<Measured> = measured.iter().map(|m| m.times.clone()).collect();
    if times.is_empty() {
        bail!("no matrix was measured: name some, or give --suite");
    }
    let profile = offline::profile(&times, &device, &date, &command);
    for kernel in offline::kernels(&device) {
        if let Some(scalar) = scalars.iter().find(|&&scalar| profile.coefficients(scalar, kernel).is_none()) {
            console.warn(&format!("no matrix was suited to {kernel} in {scalar}: it will never be chosen"));
        }
    }
    profile.write(&args.out)?;
    console.print(&report(&measured, &profile))?;
    if let Some(page) = &mut page {
        measured
            .into_iter()
            .filter_map(|subject| subject.judged(&profile))
            .for_each(|matrix| page.add(matrix));
    }
    args.report.finish(page, console)
}

fn measure<T: Scalar>(
    source: &Source,
    device: &Device,
    policy: Policy,
    pictured: bool,
    console: &Console,
) -> Result<Subject> {
    let a = source.load::<T>(console)?;
    let times = Measured::of(&a, device, policy)?;
    let picture = pictured.then(|| picture(source, &a, device, &times)).transpose()?;
    Ok(Subject { name: source.name(), scalar: T::KIND, times, picture })
}

/// What the page shows of a matrix before there is a profile to predict from.
fn picture<T: Scalar>(
    source: &Source,
    a: &CsrMatrix<T>,
    device: &Device,
    times: &Measured,
) -> Result<report::Matrix> {
    let analysis = Analysis::of(a.view());
    let plans: Vec<_> = times.times().collect();
    let run = |&(plan, product, _): &(&Plan, f64, f64)| report::Run {
        name: plan.to_string(),
        format: Some(plan.format()),
        chosen: false,
        measured: Some(product),
        predicted: None,
        bytes: Some(plan.traffic(&analysis, T::KIND).bytes()),
        remark: None,
    };
    let mut fastest_first = plans.clone();
    fastest_first.sort_by(|a, b| a.1.total_cmp(&b.1));
    let order = fastest_first.iter().map(|timed| timed.0);
    let (histogram, weights) = (&analysis.rows.histogram, Weights::default());
    Ok(report::Matrix {
        name: source.name(),
        class: source.class(),
        scalar: T::KIND,
        device: device.spec().name,
        thresholds: Some(Thresholds::of(order, histogram, &weights, T::KIND)),
        pattern: Some(Raster::of(a.view())?),
        bandwidth: report::copy_bandwidth(device)?,
        runs: plans.iter().map(run).collect(),
        decision: String::new(),
        rows: analysis.rows,
    })
}

impl Subject {
    /// What the page shows, with the predictions and the choice of the profile.
    fn judged(self, profile: &Profile) -> Option<report::Matrix> {
        let mut matrix = self.picture?;
        let chosen = self.times.choice(profile);
        for (run, predicted) in matrix.runs.iter_mut().zip(self.times.predictions(profile)) {
            run.predicted = predicted;
        }
        for (run, (plan, product, prepare)) in matrix.runs.iter_mut().zip(self.times.times()) {
            run.chosen = Some(plan) == chosen;
            if run.chosen {
                let [product, prepare] = [product, prepare].map(duration);
                matrix.decision =
                    format!("The profile chooses {plan}: {product} a product, {prepare} to pack.");
            }
        }
        Some(matrix)
    }
}

/// What each matrix would lose by the choice of the profile, worst first, and the summary.
fn report(measured: &[Subject], profile: &Profile) -> String {
    let mut rows: Vec<(f64, Vec<String>)> = measured
        .iter()
        .filter_map(|Subject { name, scalar, times, .. }| {
            let regret = times.regret(profile)?;
            let fastest = times.times().min_by(|a, b| a.1.total_cmp(&b.1))?;
            let chosen = times.choice(profile)?;
            let cells = [
                name.clone(),
                scalar.to_string(),
                format!("{regret:.3}"),
                chosen.to_string(),
                fastest.0.to_string(),
            ];
            Some((regret, cells.to_vec()))
        })
        .collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    let columns = [("matrix", Left), ("dtype", Left), ("regret", Right), ("chosen", Left), ("fastest", Left)];
    let v = &profile.validation.in_sample;
    let summary = format!(
        "regret over {} matrices: geometric mean {:.3}, 95th percentile {:.3}, worst {:.3}\n",
        v.matrices, v.geometric_mean, v.p95, v.worst
    );
    table(&columns, rows.into_iter().map(|r| r.1)) + &summary
}
