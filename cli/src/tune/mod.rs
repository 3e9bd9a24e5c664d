//! `sparseop tune`.

mod page;
mod report;
mod timing_runs;
mod unfitted;
mod worst;

use super::choice::{DeviceArg, dtype_parser, parse_ratio, parse_seconds};
use super::console::{Console, cause_chain, duration};
use super::matrix_arg::{self, MatrixArg, MatrixSource};
use super::report::{Page, ReportArg};
use anyhow::{Result, bail};
use report::{TuningReport, unmeasured};
use sparseop::analysis::Fingerprint;
use sparseop::device::Ceilings;
use sparseop::tuning::ceilings;
use sparseop::tuning::stopwatch::{Clock, Policy, WallClock};
use sparseop::tuning::store::Store;
use sparseop::{Device, Scalar, ScalarKind};
use sparseop_tune::calibrated::{Calibrated, Calibrations};
use sparseop_tune::calibrating::Calibrating;
use sparseop_tune::campaign::{Campaign, CampaignResult};
use sparseop_tune::collection::{self, Classes};
use sparseop_tune::measurements::{
    self, Journal, JournalFile, MeasurementsHeader, Opened, StoredMeasurements,
};
use sparseop_tune::offline::Measured;
use sparseop_tune::refit::{self, Provenance};
use sparseop_tune::repeat::{Repeat, Repeatability};
use sparseop_tune::trial::load_kernels;
use sparseop_tune::unfitted::learning_curve;
use std::path::{Path, PathBuf};
use timing_runs::WORST;

/// Offline tuning: measures all plans on a collection of matrices and fits the cost model
///
/// The cost model is fitted to the times of all candidates on all matrices and written as a
/// profile, in RON, for `--profile`. Use matrices like those of the application, small and large,
/// on an otherwise idle machine. The regret of the profile is cross-validated: each class of
/// matrices is held out in turn.
///
/// An interrupted run is resumed by the same command: measurements are kept in a journal beside
/// --out until the profile is written. The fastest plan of every matrix is stored for --remember.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sparseop tune --suite 100000,1000000,10000000 --out cpu.ron
  sparseop tune matrices/ --suite 1000000 --sweep 1000000 --budget 20m --out mine.ron
  sparseop tune matrices/ --classes matrices/INDEX.tsv --records mine.zst --out mine.ron
  sparseop tune --from mine.zst --explain-worst 3 --out mine.ron --report mine.html
  sparseop tune --from mine.zst --validate others.zst
  sparseop tune matrices/ --repeat 10 --seconds 0.2 --no-remember --out mine.ron
  sparseop tune matrices/ --calibrate --held-out mine.zst --out again.ron
  sparseop bench matrices/ --plans all --profile mine.ron")]
pub(super) struct TuneArgs {
    /// Matrix Market files, folders of them, or gallery:NAME[,key=value...]; values may be ranges:
    /// seed=1..4 (1, 2, 3) or seed=1..=4
    #[arg(value_name = "MATRIX", value_parser = matrix_arg::several())]
    #[arg(required_unless_present_any = ["suite", "sweep", "from"])]
    matrices: Vec<MatrixArg>,
    /// Number of entries of each of the fifteen matrices of the gallery's suite, measured too
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    suite: Vec<usize>,
    /// Number of entries of matrices with a range of row lengths, row-length CVs and localities;
    /// fitted to, not included in the regret
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    sweep: Vec<usize>,
    /// Fit to the measurements of a file of --records, without measuring
    #[arg(long, value_name = "FILE", conflicts_with_all = ["matrices", "suite", "sweep", "budget"])]
    #[arg(conflicts_with_all = ["fresh", "dtype", "repeat", "calibrate"])]
    from: Vec<PathBuf>,
    /// Measurements of matrices that are not fitted to (files of --records): the regret of the
    /// profile on each file, and how it falls with the number of structures of the fit
    #[arg(long, value_name = "FILE")]
    validate: Vec<PathBuf>,
    /// Output file of the profile
    #[arg(long, value_name = "FILE", required_unless_present = "from")]
    out: Option<PathBuf>,
    /// Output file of the measurements, for --from; compressed if the name ends in .zst
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
    /// Omit the measured times from the profile, for a smaller file
    #[arg(long)]
    no_records: bool,
    /// Table of the classes of files, for held-out regret: tab-separated, with columns `name` and
    /// `class` [default: each file is a class]
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    /// Time limit of the measurements, such as 90s, 10m or 2h [default: none]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    budget: Option<f64>,
    /// Ignore the journal of an interrupted run
    #[arg(long)]
    fresh: bool,
    /// Scalar type of the computation [default: both]
    #[arg(long, value_name = "TYPE", value_parser = dtype_parser())]
    dtype: Option<ScalarKind>,
    /// Device to measure: auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceArg::parse)]
    device: DeviceArg,
    /// Approximate time for the plans of one matrix, in seconds
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    seconds: f64,
    /// Number of timing runs per matrix, with a report of how often their decisions agree:
    /// successive, each starting from the decision of the previous one, and fresh, each starting
    /// from the prediction. The profile is fitted to the first [default: 1]
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    repeat: u16,
    /// Calibrate for every matrix too, without stored decisions, and report the regret of
    /// calibration
    #[arg(long)]
    calibrate: bool,
    /// Measurements of this device (a file of --records) for --calibrate: each class of matrices is
    /// predicted by a profile fitted to the other classes [default: the profile in use]
    #[arg(long, value_name = "FILE", requires = "calibrate")]
    held_out: Vec<PathBuf>,
    /// Leave out three of four plans that are predicted to take more than RATIO times as long as
    /// the fastest, for more matrices in the same time [default: none is left out]
    #[arg(long, value_name = "RATIO", value_parser = parse_ratio)]
    #[arg(conflicts_with_all = ["from", "repeat", "calibrate"])]
    leave_out: Option<f64>,
    /// Neither store decisions nor start from stored ones
    #[arg(long)]
    no_remember: bool,
    /// Number of worst choices to print with predicted terms and measured times [default: 0]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    explain_worst: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    report: ReportArg,
}

impl TuneArgs {
    /// Files that are read.
    pub(super) fn inputs(&self) -> Vec<PathBuf> {
        let matrices = self.matrices.iter().filter_map(MatrixArg::file);
        let measurements = self.from.iter().chain(&self.validate).chain(&self.held_out);
        matrices.chain(measurements.chain(&self.classes).cloned()).collect()
    }

    /// Files of the results, and the journal.
    pub(super) fn outputs(&self) -> Vec<PathBuf> {
        let results = self.out.iter().chain(&self.records).chain(self.report.path()).cloned();
        results.chain(self.out.as_deref().map(journal_of)).collect()
    }
}

/// The journal of the measurements for a profile.
fn journal_of(out: &Path) -> PathBuf {
    let mut journal = out.as_os_str().to_owned();
    journal.push(".journal");
    journal.into()
}

/// Parses a time such as `90s`, `10m` or `1.5h`, in seconds.
fn parse_duration(text: &str) -> Result<f64, String> {
    let units = [('s', 1.0), ('m', 60.0), ('h', 3600.0)];
    let unit =
        units.into_iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)));
    let (digits, unit) = unit.unwrap_or((text, 1.0));
    let seconds =
        digits.parse::<f64>().ok().map(|n| n * unit).filter(|s| s.is_finite() && *s > 0.0);
    seconds.ok_or_else(|| "write a time above 0 with its unit, such as 90s, 10m or 1.5h".to_owned())
}

/// Measurements of this run and of earlier ones.
struct Collected {
    header: MeasurementsHeader,
    measured: Vec<Measured>,
    reused: usize,
    left_out: Vec<String>,
    /// Agreement of the repeated timing runs of every matrix.
    repeats: Vec<Repeat>,
    /// Choices of calibration, if requested; true if their predictions are held-out ones.
    calibrated: Option<(Vec<Calibrated>, bool)>,
    /// The journal of the new measurements.
    journal: Option<Journal>,
}

pub(super) fn run(args: &TuneArgs, console: &Console) -> Result<()> {
    for file in [&args.out, &args.records].into_iter().flatten() {
        let folder = file.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            bail!("{} is not a folder: {} could not be written", folder.display(), file.display());
        }
        if file.metadata().is_ok_and(|found| found.permissions().readonly()) {
            bail!("{} is read-only; change its permissions or write another file", file.display());
        }
    }
    let page = args.report.begin("Tuning")?;
    // Read before anything is measured or written.
    let kept = args.validate.iter().map(|file| read_kept(std::slice::from_ref(file), console));
    let validation = kept.collect::<Result<Vec<_>>>()?;
    let classes = args.classes.as_deref().map(Classes::read).transpose()?;
    let collected = match &args.out {
        Some(out) if args.from.is_empty() => {
            measure_all(args, out, classes.unwrap_or_default(), console)?
        }
        _ => {
            let StoredMeasurements { header, mut measured, .. } = read_kept(&args.from, console)?;
            if let Some(classes) = classes {
                classes.assign(&mut measured);
            }
            let (reused, left_out) = (measured.len(), Vec::new());
            let (repeats, calibrated, journal) = (Vec::new(), None, None);
            Collected { header, measured, reused, left_out, repeats, calibrated, journal }
        }
    };
    finish(args, collected, validation, page, console)
}

/// Fits the coefficients, writes the profile and reports.
fn finish(
    args: &TuneArgs,
    collected: Collected,
    validation: Vec<StoredMeasurements>,
    page: Option<Page>,
    console: &Console,
) -> Result<()> {
    let Collected { header, measured, reused, left_out, repeats, calibrated, journal } = collected;
    if measured.is_empty() {
        bail!("no matrix was measured; there is nothing to fit to");
    }
    if let Some(path) = &args.records {
        measurements::write(path, &header, &measured)?;
    }
    let mut refit = console.during("fitting", || refit::profile(&measured, &header.provenance));
    let calibrations = calibrated.map(|(all, held_out)| Calibrations::of(&all, held_out, WORST));
    refit.profile.validation.calibrated =
        calibrations.as_ref().map(|calibrations| calibrations.regret);
    if args.no_records {
        refit.profile.records.clear();
    }
    for scalar in ScalarKind::ALL.into_iter().filter(|&s| measured.iter().any(|m| m.scalar == s)) {
        if let Some(formats) = unmeasured(&refit.profile, scalar) {
            console.warn(&format!(
                "these matrices have no measurements in {scalar} of {formats}: the profile never \
                 chooses them"
            ));
        }
    }
    if let Some(out) = &args.out {
        refit.profile.write(out)?;
        let out = out.display();
        console.note(&format!("wrote {out}; commands use it with --profile {out}"));
    }
    if !left_out.is_empty() {
        console.warn(&format!(
            "the time limit was reached before {} of the matrices: {}",
            left_out.len(),
            left_out.join(", ")
        ));
    }
    // The journal is kept if there is work left for a later run.
    if let Some(journal) = journal.filter(|_| left_out.is_empty()) {
        journal.remove().unwrap_or_else(|error| console.warn(&cause_chain(&error)));
    }
    let unfitted = unfitted::sets(&args.validate, validation, &measured, &refit.profile)?;
    let learning = if unfitted.is_empty() {
        Vec::new()
    } else {
        console.during("fitting", || learning_curve(&measured, &refit.profile, &unfitted))
    };
    let out = args.out.as_ref().map(|out| out.display().to_string());
    let repeatability = (args.repeat > 1).then(|| Repeatability::of(args.repeat.into(), &repeats));
    let (measured, left_out, refit) = (&measured, &left_out, &refit);
    let run = TuningReport {
        measured,
        reused,
        left_out,
        refit,
        out,
        unfitted,
        learning,
        repeatability,
        calibrations,
    };
    if let Some(mut page) = page {
        run.further().for_each(|(heading, text)| page.say(heading, text));
        run.matrices().for_each(|matrix| page.add(matrix));
        args.report.finish(Some(page), console)?;
    }
    if args.json {
        return console.print_json(&run.json());
    }
    console.print(&(run.explain_worst(args.explain_worst) + &run.text()))
}

/// Measures everything that earlier runs have not measured.
fn measure_all(
    args: &TuneArgs,
    out: &Path,
    classes: Classes,
    console: &Console,
) -> Result<Collected> {
    // Locked before anything is measured.
    let journal_file = JournalFile::lock(journal_of(out))?;
    let items = collect(args, &classes, console)?;
    let scalars = args.dtype.map_or(ScalarKind::ALL.to_vec(), |scalar| vec![scalar]);
    let device = args.device.get()?;
    // After the first few rounds only the candidates near the fastest continue.
    let rounds = Policy { warmup: 1, min_rounds: 10, max_rounds: 50, ..Policy::of(&device) };
    let policy = Policy { seconds: args.seconds, ..rounds };
    let header = MeasurementsHeader::new(format!("{policy:?}"), provenance(&device, console));
    for scalar in &scalars {
        by_scalar!(scalar, load_kernels(&device))?
    }
    let Opened { mut journal, measured: earlier, discarded } =
        journal_file.open(&header, args.fresh)?;
    discarded.iter().for_each(|sentence| console.note(sentence));
    if !earlier.is_empty() {
        console.note(&format!("using {} measurements of an earlier run", earlier.len()));
    }

    let bar = console.bar("{msg} {wide_bar} {pos} of {len}, {eta} left");
    bar.set_length((items.len() * scalars.len()) as u64);
    let clock = WallClock::start();
    let calibrating =
        args.calibrate.then(|| calibrating(&args.held_out, &classes, &device, console));
    let calibrating = calibrating.transpose()?;
    let (timing_runs, store) = (args.repeat.into(), store(args, console));
    let leave_out = args.leave_out;
    let campaign = Campaign { device: &device, policy, timing_runs, store, leave_out, calibrating };
    let (mut measured, mut repeats, mut left_out, mut reused) =
        (Vec::new(), Vec::new(), Vec::new(), 0);
    let mut calibrated = Vec::new();
    for (item, &scalar) in
        items.iter().flat_map(|item| scalars.iter().map(move |scalar| (item, scalar)))
    {
        bar.set_message(format!("{} {scalar}", item.name));
        // Repeated timing runs keep only the first one, and calibrations are not kept at all.
        let is_kept = args.repeat == 1 && !args.calibrate;
        let known = earlier.iter().find(|m| is_kept && m.matrix == item.name && m.scalar == scalar);
        let is_over =
            !measured.is_empty() && args.budget.is_some_and(|budget| clock.seconds() > budget);
        if known.is_none() && is_over {
            left_out.push(format!("{} {scalar}", item.name));
            continue;
        }
        let measure = match scalar {
            ScalarKind::F32 => measure::<f32>,
            ScalarKind::F64 => measure::<f64>,
        };
        match measure(&campaign, item, known, console) {
            Ok(Some(found)) => {
                repeats.extend(found.repeat);
                calibrated.extend(found.calibrated);
                journal.append(&found.measured)?;
                report_failures(&found.measured, console);
                measured.push(found.measured);
            }
            Ok(None) => {
                let reuse =
                    |known: &Measured| Measured { class: item.class.clone(), ..known.clone() };
                let known = known.map(reuse);
                known.iter().for_each(|known| report_failures(known, console));
                reused += known.iter().len();
                measured.extend(known);
            }
            Err(error) => console.error(&cause_chain(&error)),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    console.detail(|| format!("measured for {}", duration(clock.seconds())));
    let calibrated = campaign.calibrating.map(|by| (calibrated, by.is_held_out()));
    Ok(Collected {
        header,
        measured,
        reused,
        left_out,
        repeats,
        calibrated,
        journal: Some(journal),
    })
}

/// The store of the winners, if they are to be stored.
fn store(args: &TuneArgs, console: &Console) -> Option<Store> {
    let store = (!args.no_remember).then(Store::of_user)?;
    if store.is_none() {
        console.detail(|| "there is no folder for stored decisions".to_owned());
    }
    store
}

/// Record of the machine and of the run.
fn provenance(device: &Device, console: &Console) -> Provenance {
    let ceilings = ceilings::measure(device).unwrap_or_else(|error| {
        console.warn(&format!("the ceilings of the device are not known: {error}"));
        Ceilings::default()
    });
    let (command, device) = (super::command_line(), device.spec());
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    Provenance { kernels: device.kernels().to_owned(), device, ceilings, date, command }
}

/// A matrix to measure.
struct Item {
    source: MatrixSource,
    name: String,
    class: String,
}

/// The matrices of the arguments, then the suite and the sweep.
fn collect(args: &TuneArgs, classes: &Classes, console: &Console) -> Result<Vec<Item>> {
    let given = args.matrices.iter().flat_map(|given| given.expand_or_report(console));
    let generated =
        collection::generated(&args.suite, &args.sweep).into_iter().map(MatrixSource::Gallery);
    let item = |source: MatrixSource| {
        let name = source.name();
        Item { class: classes.of(&name), name, source }
    };
    let items: Vec<Item> = given.chain(generated).map(item).collect();
    if items.is_empty() {
        bail!("there is no matrix to measure: give MATRIX or --suite");
    }
    Ok(items)
}

/// Reads stored measurements, with a warning for every file that was read in part.
fn read_kept(files: &[PathBuf], console: &Console) -> Result<StoredMeasurements> {
    let kept = measurements::read_all(files)?;
    kept.incomplete.iter().for_each(|sentence| console.warn(sentence));
    Ok(kept)
}

/// Calibration by profiles that are fitted to stored measurements, or by the profile in use if
/// there are no files.
fn calibrating(
    files: &[PathBuf],
    classes: &Classes,
    device: &Device,
    console: &Console,
) -> Result<Calibrating> {
    if files.is_empty() {
        return Ok(Calibrating::default());
    }
    let StoredMeasurements { header, mut measured, .. } = read_kept(files, console)?;
    classes.assign(&mut measured);
    console.during("fitting", || Calibrating::held_out(&header, measured, device))
}

/// Measures a matrix. None if the known measurements are of the same structure.
fn measure<T: Scalar>(
    campaign: &Campaign<'_>,
    item: &Item,
    known: Option<&Measured>,
    console: &Console,
) -> Result<Option<CampaignResult>> {
    // The specification of a generated matrix determines its structure.
    if known.is_some() && matches!(item.source, MatrixSource::Gallery(_)) {
        return Ok(None);
    }
    let a = item.source.load::<T>(console)?;
    if known.is_some_and(|known| known.fingerprint == Fingerprint::of(a.view())) {
        return Ok(None);
    }
    let found = campaign.measure(&a, &item.name, &item.class)?;
    found.problems.iter().for_each(|problem| console.warn(&cause_chain(problem)));
    Ok(Some(found))
}

fn report_failures(measured: &Measured, console: &Console) {
    for (plan, reason) in &measured.failed {
        console.warn(&format!("{} {}: {plan} failed: {reason}", measured.matrix, measured.scalar));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(
            ["90s", "10m", "1.5h", "7"].map(|t| parse_duration(t).unwrap()),
            [90.0, 600.0, 5400.0, 7.0]
        );
        for wrong in ["", "m", "-1s", "0m", "10 minutes", "infs", "1d"] {
            assert!(parse_duration(wrong).unwrap_err().contains("10m"), "{wrong}");
        }
    }
}
