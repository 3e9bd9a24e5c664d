//! `sparseop profile check`.

use super::{DeviceArg, Profile, device_for, is_current, name, printable, rounded, scalars};
use crate::console::Console;
use anyhow::{Result, bail};
use serde::Serialize;
use sparseop::ScalarKind;
use sparseop::tuning::profile::Fit;
use sparseop::tuning::record::{Record, RecordedRun, Regret};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Regret above which that of a CPU's profile is remarked on.
const CPU_BARS: Bars = Bars([1.06, 1.2, 1.5]);

/// As [`CPU_BARS`], of a GPU, whose times vary less.
const GPU_BARS: Bars = Bars([1.04, 1.2, 1.5]);

/// Largest plausible read bandwidth, over the copy bandwidth. Reads may be faster than copies: on
/// CPUs a write also reads its line, which the copy bandwidth does not count.
const FASTEST: f64 = 1.5;

/// Least plausible bandwidth of the fastest plan, over the copy bandwidth: a matrix without
/// locality reaches it.
const SLOWEST: f64 = 0.01;

/// Ratio of a product's bytes to the cache size above which memory limits the product.
const FROM_MEMORY: f64 = 4.0;

/// Maximum number of reported problems of one kind. The rest is counted.
const SHOWN: usize = 5;

/// Validation of profiles; exit code 1 with the reasons if one fails
///
/// A profile fails if it cannot be read or has an unknown schema; if it was measured with other
/// kernels or on another device; if kernels are missing; if runs failed or were faster or slower
/// than the ceilings of the device allow; or if its regret (held-out regret if known) exceeds
/// --bars. Without --bars a large regret is remarked on.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sparseop profile check ~/.config/sparseop/profiles/*.ron
  sparseop profile check models/*.ron --any-device      profiles of other devices
  sparseop profile check mine.ron --bars 1.04,1.2,1.5 --json")]
pub(super) struct ProfileCheckArgs {
    /// Profiles, in RON
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Device to check against: auto, cpu, cuda or cuda:N [default: the first of the profile's
    /// kind]
    #[arg(long, value_name = "DEVICE", value_parser = DeviceArg::parse)]
    device: Option<DeviceArg>,
    /// Accept profiles of any device
    #[arg(long, conflicts_with = "device")]
    any_device: bool,
    /// Largest accepted regret: geometric mean, 95th percentile and worst [default: any]
    #[arg(long, value_name = "MEAN,P95,WORST", value_parser = Bars::parse)]
    bars: Option<Bars>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Upper bounds of the regret: geometric mean, 95th percentile and worst.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bars([f64; 3]);

impl Bars {
    fn parse(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<f64>> =
            text.split(',').map(|number| number.trim().parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[mean, p95, worst]) if [mean, p95, worst].iter().all(|&bar| bar >= 1.0) => {
                Ok(Self([mean, p95, worst]))
            }
            _ => Err("write three numbers of at least 1, such as 1.05,1.2,1.5".to_owned()),
        }
    }
}

/// A problem of a profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct ProfileProblem {
    /// Kind of the problem: `unreadable`, `kernels`, `device`, `missing`, `failed`, `outlier`,
    /// `regret`.
    #[serde(rename = "what")]
    kind: &'static str,
    /// Description of the problem and of the remedy.
    #[serde(rename = "why")]
    reason: String,
}

/// A line of `--json`.
#[derive(Serialize)]
struct CheckedProfile {
    file: String,
    ok: bool,
    problems: Vec<ProfileProblem>,
    /// A large regret, if none is excluded.
    #[serde(skip_serializing_if = "Option::is_none")]
    remark: Option<String>,
}

pub(super) fn run(args: &ProfileCheckArgs, console: &Console) -> Result<()> {
    let mut bad = 0;
    for file in &args.files {
        let (problems, remark) = check(file, args)?;
        bad += usize::from(!problems.is_empty());
        if args.json {
            console.print_json(&CheckedProfile {
                file: name(file),
                ok: problems.is_empty(),
                problems,
                remark,
            })?;
        } else {
            console.print(&text(&name(file), &problems, remark.as_deref())?)?;
        }
    }
    if bad > 0 {
        let count = args.files.len();
        bail!("{bad} of {count} profile{} failed the check", if count == 1 { "" } else { "s" });
    }
    Ok(())
}

fn text(file: &str, problems: &[ProfileProblem], remark: Option<&str>) -> Result<String> {
    let mut out = if problems.is_empty() { format!("{file}: ok\n") } else { format!("{file}:\n") };
    if let Some(remark) = remark {
        writeln!(out, "  large regret: {remark}")?;
    }
    for ProfileProblem { kind, reason } in problems {
        writeln!(out, "  {kind:<11}{reason}")?;
    }
    Ok(out)
}

/// Returns all problems of a file, and a remark.
fn check(file: &Path, args: &ProfileCheckArgs) -> Result<(Vec<ProfileProblem>, Option<String>)> {
    let profile = match Profile::read(file) {
        Ok(profile) => profile,
        Err(error) => {
            let reason = printable(&error.to_string());
            return Ok((vec![ProfileProblem { kind: "unreadable", reason }], None));
        }
    };
    let mut problems: Vec<ProfileProblem> = kernels(&profile).into_iter().collect();
    if !(args.any_device || profile.is_generic()) {
        problems.extend(device(&profile, args)?);
    }
    problems.extend(missing(&profile));
    problems.extend(failed(&profile.records));
    problems.extend(outliers(&profile));
    let usual = if profile.device.gpu.is_some() { GPU_BARS } else { CPU_BARS };
    let excess = excess(&profile, args.bars.unwrap_or(usual));
    if args.bars.is_none() {
        return Ok((problems, excess));
    }
    problems.extend(excess.map(|reason| ProfileProblem { kind: "regret", reason }));
    Ok((problems, None))
}

fn kernels(profile: &Profile) -> Option<ProfileProblem> {
    let ours = profile.device.kernels();
    let reason = format!(
        "measured with kernels {}, this program has {ours}: make it again with `sparseop tune`",
        profile.kernels
    );
    (!is_current(profile)).then_some(ProfileProblem { kind: "kernels", reason })
}

fn device(profile: &Profile, args: &ProfileCheckArgs) -> Result<Option<ProfileProblem>> {
    let measured = &profile.device;
    let reason = match device_for(profile, args.device.as_ref())? {
        None => format!(
            "measured on {measured}, and there is no GPU here; --any-device skips this check"
        ),
        Some(device) if profile.fit(&device.spec()) == Fit::Exact => return Ok(None),
        // Outdated kernels are reported by `kernels`.
        Some(device)
            if device.spec().name == measured.name && device.spec().threads == measured.threads =>
        {
            return Ok(None);
        }
        Some(device) => format!("measured on {measured}, and {device} is {}", device.spec()),
    };
    Ok(Some(ProfileProblem { kind: "device", reason: printable(&reason) }))
}

fn missing(profile: &Profile) -> Vec<ProfileProblem> {
    let absent =
        ScalarKind::ALL.into_iter().filter(|&scalar| !scalars(profile).any(|s| s == scalar));
    let mut reasons: Vec<String> =
        absent.map(|scalar| format!("no measurements in {scalar}")).collect();
    for scalar in scalars(profile) {
        let kernels = profile.missing_kernels(scalar);
        if !kernels.is_empty() {
            reasons.push(format!(
                "no coefficients in {scalar} for {}: never chosen",
                kernels.join(", ")
            ));
        }
    }
    reasons.into_iter().map(|reason| ProfileProblem { kind: "missing", reason }).collect()
}

/// The first few problems of a kind, and the number of the others.
fn first_few(kind: &'static str, reasons: Vec<String>) -> Vec<ProfileProblem> {
    let more = reasons.len().saturating_sub(SHOWN);
    let rest = (more > 0).then(|| format!("and {more} more"));
    let shown = reasons.into_iter().take(SHOWN).chain(rest);
    shown.map(|reason| ProfileProblem { kind, reason }).collect()
}

/// Name of a run in messages.
fn run_name(record: &Record, run: &RecordedRun) -> String {
    printable(&format!("{} in {}, {}", record.matrix, record.scalar, run.plan))
}

fn failed(records: &[Record]) -> Vec<ProfileProblem> {
    let runs = records.iter().flat_map(|record| record.runs.iter().map(move |run| (record, run)));
    let failures = runs.filter_map(|(record, run)| {
        let reason = run.failed.as_ref()?;
        Some(format!("{}: {}", run_name(record, run), printable(reason)))
    });
    first_few("failed", failures.collect())
}

/// Runs that are faster than the device can read, and matrices whose fastest run is slower than the
/// device's lower bound.
fn outliers(profile: &Profile) -> Vec<ProfileProblem> {
    let Some(ceiling) = profile.ceilings.copy_bandwidth else { return Vec::new() };
    let bandwidth = |run: &RecordedRun| {
        let from_memory = run.traffic_bytes as f64 > FROM_MEMORY * profile.cache_bytes;
        Some(run.traffic_bytes as f64 / (run.time()? * 1e-6)).filter(|_| from_memory)
    };
    let message = |record: &Record, run: &RecordedRun, reached: f64, bound: &str| {
        let [reached, ceiling] = [reached, ceiling].map(|b| rounded(b * 1e-9));
        let name = run_name(record, run);
        format!("{name}: {reached} GB/s, {bound} {ceiling} GB/s of copies; measure it again")
    };
    let too_fast = |record, run| {
        let reached = bandwidth(run).filter(|reached| *reached > FASTEST * ceiling)?;
        Some(message(record, run, reached, "above the limit set by the"))
    };
    let too_slow = |record, run| {
        let reached = bandwidth(run).filter(|reached| *reached < SLOWEST * ceiling)?;
        Some(message(record, run, reached, "below the limit set by the"))
    };
    let mut reasons = Vec::new();
    for record in &profile.records {
        reasons.extend(record.runs.iter().filter_map(|run| too_fast(record, run)));
        reasons.extend(record.fastest().and_then(|run| too_slow(record, run)));
    }
    first_few("outlier", reasons)
}

/// Describes a regret above the bars.
fn excess(profile: &Profile, bars: Bars) -> Option<String> {
    let regret: &Regret = profile.validation.judged();
    let found = [regret.geometric_mean, regret.p95, regret.worst];
    let names = ["geometric mean", "95th percentile", "worst"];
    let exceeding: Vec<String> = (names.into_iter().zip(found).zip(bars.0))
        .filter(|((_, found), bar)| found > bar)
        .map(|((name, found), bar)| format!("{name} {found:.3} exceeds {bar}"))
        .collect();
    let how = if profile.validation.held_out.is_some() { "held-out" } else { "in-sample" };
    (!exceeding.is_empty()).then(|| format!("{how} {}", exceeding.join(", ")))
}
