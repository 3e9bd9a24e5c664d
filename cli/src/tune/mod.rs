//! `sparseop tune`.

mod calibrating;
mod collection;
mod measurements;
mod page;
mod races;
mod report;

use super::choice::{DeviceArg, dtype_parser, parse_seconds};
use super::console::{Console, cause_chain, duration};
use super::matrix_arg::{self, Given, Source};
use super::report::{Page, ReportArg};
use anyhow::{Result, bail};
use calibrating::Calibrating;
use collection::{Classes, Item, collect};
use measurements::{Header, Journal};
use report::{Run, WORST};
use sparseop::analysis::{Analysis, Fingerprint};
use sparseop::device::Ceilings;
use sparseop::tuning::calibrated::{Calibrated, Calibrations};
use sparseop::tuning::ceilings;
use sparseop::tuning::offline::Measured;
use sparseop::tuning::refit::{self, Provenance};
use sparseop::tuning::repeat::{Repeat, Repeatability};
use sparseop::tuning::stopwatch::{Clock, Policy, WallClock};
use sparseop::tuning::store::{Entry, Key, Store};
use sparseop::tuning::trial::{Known, Subject, Trial, load_kernels};
use sparseop::{Device, Plan, Scalar, ScalarKind, SparseOp, SparseOpBuilder};
use std::path::{Path, PathBuf};

/// Measures every plan on a collection of matrices and writes the coefficients of the cost model
///
/// The times of all candidates on all matrices are fitted by the cost model; the profile, in RON, is what `--profile` takes. Choose
/// matrices like those to be multiplied, small and large; measure on a machine that does nothing else. How well the profile chooses is
/// judged on matrices it was not fitted to: each class of matrices is held out in turn.
///
/// A run that was interrupted goes on where it stopped when the same command is given again: what is measured is kept in a journal
/// beside --out until the profile is written. The fastest plan of every matrix is remembered, so that --remember needs no race.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sparseop tune --suite 100000,1000000,10000000 --out cpu.ron
  sparseop tune matrices/ --suite 1000000 --sweep 1000000 --budget 20m --out mine.ron
  sparseop tune matrices/ --classes matrices/INDEX.tsv --records mine.zst --out mine.ron
  sparseop tune --from mine.zst --explain-worst 3 --out mine.ron --report mine.html
  sparseop tune matrices/ --repeat 10 --seconds 0.2 --no-remember --out mine.ron
  sparseop tune matrices/ --calibrate --held-out mine.zst --classes matrices/INDEX.tsv --out again.ron
  sparseop bench matrices/ --plans all --profile mine.ron")]
pub(super) struct Args {
    /// Matrix Market files, folders of them, or gallery:NAME[,key=value...]; a value may be a range,
    /// seed=1..4 (1, 2, 3) or seed=1..=4
    #[arg(value_name = "MATRIX", required_unless_present_any = ["suite", "sweep", "from"], value_parser = matrix_arg::several())]
    matrices: Vec<Given>,
    /// Also the fifteen matrices of the gallery's suite, each scaled to so many entries
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    suite: Vec<usize>,
    /// Also matrices of so many entries that spread row length, evenness and locality: to fit to, not to be judged by
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    sweep: Vec<usize>,
    /// Fit to the measurements that --records has kept, without measuring
    #[arg(long, value_name = "FILE", conflicts_with_all = ["matrices", "suite", "sweep", "budget", "fresh", "dtype", "repeat", "calibrate"])]
    from: Vec<PathBuf>,
    /// Where to write the profile
    #[arg(long, value_name = "FILE", required_unless_present = "from")]
    out: Option<PathBuf>,
    /// Where to keep the measurements, to fit to them again; compressed when it ends in .zst
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
    /// Leave the times out of the profile: it is smaller, and `sparseop profile` says less about it
    #[arg(long)]
    no_records: bool,
    /// A table of the files' classes, which are held out together: tab-separated, with columns `name` and `class`. When not given, each
    /// file is held out by itself
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    /// Stop measuring after such a time, and fit to what there is: 90s, 10m, 2h
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    budget: Option<f64>,
    /// Do not go on where an earlier run stopped
    #[arg(long)]
    fresh: bool,
    /// Numbers to compute with; both when not given
    #[arg(long, value_name = "TYPE", value_parser = dtype_parser())]
    dtype: Option<ScalarKind>,
    /// What to measure: auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceArg::parse)]
    device: DeviceArg,
    /// Seconds to time the plans of one matrix, about
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    seconds: f64,
    /// Race the plans of every matrix so many times, packed once, and say how often all races decide for the same plan: in succession, each
    /// beginning with what the one before has decided, as runs that remember do; and afresh, each beginning with the prediction. The
    /// profile is fitted to the first
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true, value_parser = clap::value_parser!(u16).range(1..))]
    repeat: u16,
    /// Also calibrate for every matrix, as an application would that remembers nothing, and compare what that chooses with all plans
    #[arg(long)]
    calibrate: bool,
    /// Have each class of matrices predicted, for --calibrate, by a profile that is fitted to the other classes of the measurements that
    /// --records has kept on this device; when not given, by the profile in use
    #[arg(long, value_name = "FILE", requires = "calibrate")]
    held_out: Vec<PathBuf>,
    /// Do not remember the plans that were found, and do not begin with those that were found before
    #[arg(long)]
    no_remember: bool,
    /// Show for the N worst choices what was predicted, term by term, and what was measured
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    explain_worst: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    report: ReportArg,
}

/// A time such as `90s`, `10m` or `1.5h`, in seconds.
fn parse_duration(text: &str) -> Result<f64, String> {
    let units = [('s', 1.0), ('m', 60.0), ('h', 3600.0)];
    let unit = units.into_iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)));
    let (digits, unit) = unit.unwrap_or((text, 1.0));
    let seconds = digits.parse::<f64>().ok().map(|n| n * unit).filter(|s| s.is_finite() && *s > 0.0);
    seconds.ok_or_else(|| "write a time above 0 with its unit, such as 90s, 10m or 1.5h".to_owned())
}

/// What was measured, now or earlier.
struct Collected {
    header: Header,
    measured: Vec<Measured>,
    reused: usize,
    left_out: Vec<String>,
    /// How the races of every matrix agree.
    repeats: Vec<Repeat>,
    /// What calibration has chosen, where it was asked for, and whether classes were held out of its predictions.
    calibrated: Option<(Vec<Calibrated>, bool)>,
    /// The journal of what was measured now.
    journal: Option<Journal>,
}

pub(super) fn run(args: &Args, console: &Console) -> Result<()> {
    let folders = [&args.out, &args.records].into_iter().flatten();
    for file in folders {
        let folder = file.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            bail!("{} is not a folder: {} could not be written", folder.display(), file.display());
        }
    }
    let page = args.report.begin("Tuning")?;
    let classes = args.classes.as_deref().map(Classes::read).transpose()?;
    let collected = match &args.out {
        Some(out) if args.from.is_empty() => measure_all(args, out, classes.unwrap_or_default(), console)?,
        _ => {
            let (header, mut measured) = measurements::read_all(&args.from, console)?;
            if let Some(classes) = classes {
                classes.assign(&mut measured);
            }
            let (reused, left_out) = (measured.len(), Vec::new());
            let (repeats, calibrated, journal) = (Vec::new(), None, None);
            Collected { header, measured, reused, left_out, repeats, calibrated, journal }
        }
    };
    finish(args, collected, page, console)
}

/// Fits, writes and reports.
fn finish(args: &Args, collected: Collected, page: Option<Page>, console: &Console) -> Result<()> {
    let Collected { header, measured, reused, left_out, repeats, calibrated, journal } = collected;
    if measured.is_empty() {
        bail!("no matrix was measured, so there is nothing to fit to");
    }
    if let Some(path) = &args.records {
        measurements::write(path, &header, &measured)?;
    }
    let spinner = console.spinner("fitting".to_owned());
    let mut refit = refit::profile(&measured, &header.provenance);
    spinner.finish_and_clear();
    let calibrations = calibrated.map(|(all, held_out)| Calibrations::of(&all, held_out, WORST));
    refit.profile.validation.calibrated = calibrations.as_ref().map(|calibrations| calibrations.regret);
    if args.no_records {
        refit.profile.records.clear();
    }
    for scalar in ScalarKind::ALL.into_iter().filter(|&s| measured.iter().any(|m| m.scalar == s)) {
        for kernel in refit.profile.missing_kernels(scalar) {
            console.warn(&format!("no matrix was suited to {kernel} in {scalar}: it will never be chosen"));
        }
    }
    if let Some(out) = &args.out {
        refit.profile.write(out)?;
    }
    if !left_out.is_empty() {
        console.warn(&format!(
            "the time was up before {} of the matrices: {}",
            left_out.len(),
            left_out.join(", ")
        ));
    }
    // What a later run could go on from is kept where something is left to do.
    if let Some(journal) = journal.filter(|_| left_out.is_empty()) {
        journal.remove()?;
    }
    let out = args.out.as_ref().map(|out| out.display().to_string());
    let repeatability = (args.repeat > 1).then(|| Repeatability::of(args.repeat.into(), &repeats));
    let (measured, left_out, refit) = (&measured, &left_out, &refit);
    let run = Run { measured, reused, left_out, refit, out, repeatability, calibrations };
    if let Some(mut page) = page {
        run.races().for_each(|(heading, text)| page.say(heading, text));
        run.matrices().for_each(|matrix| page.add(matrix));
        args.report.finish(Some(page), console)?;
    }
    if args.json {
        return console.print_json(&run.json());
    }
    console.print(&(run.explain_worst(args.explain_worst) + &run.text()))
}

/// Measures what no earlier run has measured.
fn measure_all(args: &Args, out: &Path, classes: Classes, console: &Console) -> Result<Collected> {
    let items = collect(&args.matrices, &args.suite, &args.sweep, &classes, console)?;
    let scalars = args.dtype.map_or(ScalarKind::ALL.to_vec(), |scalar| vec![scalar]);
    let device = args.device.get()?;
    // After the first few rounds only those near the fastest go on.
    let rounds = Policy { warmup: 1, min_rounds: 10, max_rounds: 50, ..Policy::of(&device) };
    let policy = Policy { seconds: args.seconds, ..rounds };
    let header = Header::new(format!("{policy:?}"), provenance(&device, console));
    for scalar in &scalars {
        match scalar {
            ScalarKind::F32 => load_kernels::<f32>(&device)?,
            ScalarKind::F64 => load_kernels::<f64>(&device)?,
        }
    }
    let mut journal_path = out.as_os_str().to_owned();
    journal_path.push(".journal");
    let (mut journal, earlier) = Journal::open(journal_path.into(), &header, args.fresh, console)?;
    if !earlier.is_empty() {
        console.note(&format!("{} measurements of an earlier run are used", earlier.len()));
    }

    let bar = console.bar("{msg} {wide_bar} {pos} of {len}, {eta} left");
    bar.set_length((items.len() * scalars.len()) as u64);
    let clock = WallClock::start();
    let calibrating = args.calibrate.then(|| Calibrating::by(&args.held_out, &classes, &device, console));
    let calibrating = calibrating.transpose()?;
    let how = How { device: &device, policy, args, store: store(args, console), calibrating };
    let (mut measured, mut repeats, mut left_out, mut reused) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let mut calibrated = Vec::new();
    for (item, &scalar) in items.iter().flat_map(|item| scalars.iter().map(move |scalar| (item, scalar))) {
        bar.set_message(format!("{} {scalar}", item.name));
        // Of several races only one is kept, and of calibrations none.
        let is_kept = args.repeat == 1 && !args.calibrate;
        let known = earlier.iter().find(|m| is_kept && m.matrix == item.name && m.scalar == scalar);
        let is_over = !measured.is_empty() && args.budget.is_some_and(|budget| clock.seconds() > budget);
        if known.is_none() && is_over {
            left_out.push(format!("{} {scalar}", item.name));
            continue;
        }
        let measure = match scalar {
            ScalarKind::F32 => How::measure::<f32>,
            ScalarKind::F64 => How::measure::<f64>,
        };
        match measure(&how, item, known, console) {
            Ok(found) => {
                repeats.extend(found.repeat);
                calibrated.extend(found.calibrated);
                if found.is_new {
                    journal.append(&found.measured)?;
                } else {
                    reused += 1;
                }
                report_failures(&found.measured, console);
                measured.push(found.measured);
            }
            Err(error) => console.error(&cause_chain(&error)),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    console.detail(|| format!("measured for {}", duration(clock.seconds())));
    let calibrated = how.calibrating.map(|by| (calibrated, by.is_held_out()));
    Ok(Collected { header, measured, reused, left_out, repeats, calibrated, journal: Some(journal) })
}

/// Where the plans that are found are remembered, if they are to be.
fn store(args: &Args, console: &Console) -> Option<Store> {
    let store = (!args.no_remember).then(Store::of_user)?;
    if store.is_none() {
        console.detail(|| "there is no folder to remember decisions in".to_owned());
    }
    store
}

/// What is recorded of the machine and the run.
fn provenance(device: &Device, console: &Console) -> Provenance {
    let ceilings = ceilings::measure(device).unwrap_or_else(|error| {
        console.warn(&format!("what the device reaches at best is not known: {error}"));
        Ceilings::default()
    });
    let (command, device) = (super::command_line(), device.spec());
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
    Provenance { kernels: device.kernels().to_owned(), device, ceilings, date, command }
}

/// How matrices are measured.
struct How<'a> {
    device: &'a Device,
    policy: Policy,
    args: &'a Args,
    store: Option<Store>,
    calibrating: Option<Calibrating>,
}

/// What was found on a matrix.
struct Found {
    /// The times of the first race.
    measured: Measured,
    /// Whether they are new.
    is_new: bool,
    repeat: Option<Repeat>,
    calibrated: Option<Calibrated>,
}

impl How<'_> {
    /// Races a matrix; what is known is taken when it is of the same structure.
    fn measure<T: Scalar>(&self, item: &Item, known: Option<&Measured>, console: &Console) -> Result<Found> {
        let reuse = |known: &Measured| Found {
            measured: Measured { class: item.class.clone(), ..known.clone() },
            is_new: false,
            repeat: None,
            calibrated: None,
        };
        // The specification of a generated matrix says all of it.
        if let (Some(known), Source::Gallery(_)) = (known, &item.source) {
            return Ok(reuse(known));
        }
        let a = item.source.load::<T>(console)?;
        let structure = Fingerprint::of(a.view());
        if let Some(known) = known.filter(|known| known.fingerprint == structure) {
            return Ok(reuse(known));
        }
        let analysis = Analysis::of(a.view());
        let name = format!("{} {}", item.name, T::KIND);
        let warn = |what: &str, error: anyhow::Error| {
            console.warn(&format!("{name} is not {what}: {}", cause_chain(&error)));
        };
        let calibrate = |by: &Calibrating| by.operator(self.device, &a, &analysis, &item.class);
        let op = self.calibrating.as_ref().map(calibrate);
        let op = op.and_then(|op| op.map_err(|error| warn("calibrated", error)).ok());
        let before = self.before(structure, &analysis, T::KIND);
        let before = before.map_err(|error| warn("remembered", error)).ok();
        let also: Vec<Plan> = before.iter().map(|(known, _)| known.predicted.plan.clone()).collect();
        let subject = Subject {
            matrix: &item.name,
            class: &item.class,
            device: self.device,
            policy: self.policy,
            races: self.args.repeat.into(),
            also: &also,
        };
        let mut trial = Trial::of(a.view(), &analysis, subject)?;
        let repeat = before.and_then(|(known, key)| self.decided(&trial, &known, key, console));
        let measured = trial.races.swap_remove(0);
        let judge = |op: &SparseOp<T>| calibrating::judge(op, &a, &analysis, &measured, self.policy);
        let calibrated = op.as_ref().map(judge).and_then(|calibrated| {
            calibrated.map_err(|error| warn("judged by its calibration", error)).ok().flatten()
        });
        Ok(Found { measured, is_new: true, repeat, calibrated })
    }

    /// What is known of a matrix before it is raced: the choice of the defaults, and what is remembered under their key.
    fn before(
        &self,
        structure: Fingerprint,
        analysis: &Analysis,
        scalar: ScalarKind,
    ) -> Result<(Known, Key)> {
        let spec = self.device.spec();
        let predicted = SparseOpBuilder::new().device(self.device.clone()).decide(analysis, scalar)?;
        let key = Key::new(structure, analysis, &spec, &predicted.request, None, false);
        // What is damaged or out of date is as good as nothing, and replaced.
        let entry = self.store.as_ref().and_then(|store| store.find(&key, &spec).ok());
        let remembered = entry.map(|entry| entry.race.winner);
        Ok((Known { predicted, remembered }, key))
    }

    /// What the races of a matrix decide for; the last decision is kept, as a race of the defaults would be kept.
    fn decided(&self, trial: &Trial, known: &Known, key: Key, console: &Console) -> Option<Repeat> {
        let (spec, calls) = (self.device.spec(), known.predicted.request.expected_calls);
        let decisions = trial.decisions(known)?;
        let race = decisions.successive.last().and_then(|winner| trial.race(known, winner));
        if let (Some(store), Some(race)) = (&self.store, race)
            && let Err(error) = store.keep(&Entry::now(key, &spec, race))
        {
            console.warn(&format!("a decision is not remembered: {error}"));
        }
        Repeat::of(&trial.races, &decisions, calls, &spec)
    }
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
