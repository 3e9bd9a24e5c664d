//! `sparseop profile show`.

use super::{DeviceArg, Profile, ScalarKind, ceilings, device_for, device_line, is_current, name};
use super::{printable, rounded};
use crate::console::{Console, Left, Right, cause_chain, is_output_error, regret_cells, table};
use anyhow::Result;
use serde::Serialize;
use sparseop::tuning::cost::Coefficients;
use sparseop::tuning::lookup::{self, Origin, ResolvedProfile};
use sparseop::tuning::profile::Fit;
use sparseop::tuning::record::{Record, Regret};
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

/// Number of listed matrices, those with the largest regret.
const WORST: usize = 5;

/// Contents of a profile: device, fit to this device, regret by class, coefficients
///
/// Regret is the time of the chosen plan over that of the fastest; 1 is optimal. Held-out choices
/// use coefficients fitted to other classes of matrices. Without FILE: the profile in use, and the
/// profiles that were skipped.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sparseop profile show                    the profile in use
  sparseop profile show --device cpu       the profile in use on the CPU
  sparseop profile show mine.ron --json    everything, as JSON")]
pub(super) struct ProfileShowArgs {
    /// Profiles, in RON
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Device to compare with: auto, cpu, cuda or cuda:N [default: the first of the profile's kind]
    #[arg(long, value_name = "DEVICE", value_parser = DeviceArg::parse)]
    device: Option<DeviceArg>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// A line of `--json`.
#[derive(Serialize)]
struct ShownProfile<'a> {
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'a Origin>,
    fit: Option<Fit>,
    current_kernels: bool,
    warnings: &'a [String],
    profile: &'a Profile,
}

pub(super) fn run(args: &ProfileShowArgs, console: &Console) -> Result<()> {
    if args.files.is_empty() {
        return used(args, console);
    }
    for file in &args.files {
        match show(file, args, console) {
            Err(error) if is_output_error(&error) => return Err(error),
            Err(error) => console.error(&printable(&cause_chain(&error))),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Shows the profile in use on a device.
fn used(args: &ProfileShowArgs, console: &Console) -> Result<()> {
    let device =
        args.device.as_ref().map_or_else(|| "auto".parse().map_err(Into::into), DeviceArg::get)?;
    let spec = device.spec();
    // Usually the same for all scalar types. If profiles differ, all of them are shown.
    let mut shown: Option<ResolvedProfile> = None;
    for scalar in ScalarKind::ALL {
        let found = lookup::find(&device, scalar, None)?;
        if shown.as_ref().is_some_and(|before| before.origin == found.origin) {
            continue;
        }
        let fit = found.profile.fit(&spec);
        if args.json {
            console.print_json(&ShownProfile {
                file: None,
                origin: Some(&found.origin),
                fit: Some(fit),
                current_kernels: is_current(&found.profile),
                warnings: &found.warnings,
                profile: &found.profile,
            })?;
        } else {
            let mut out = format!("used on {device} in {scalar}: {}\n", found.origin);
            for warning in &found.warnings {
                writeln!(out, "skipped: {warning}")?;
            }
            if let Some(folder) = lookup::user_folder() {
                writeln!(
                    out,
                    "yours go to {}, or are named by {}\n",
                    folder.display(),
                    lookup::VARIABLE
                )?;
            }
            text(&mut out, &found.profile, Some(fit))?;
            console.print(&out)?;
        }
        shown = Some(found);
    }
    Ok(())
}

fn show(file: &Path, args: &ProfileShowArgs, console: &Console) -> Result<()> {
    let profile = Profile::read(file)?;
    let fit = device_for(&profile, args.device.as_ref())?.map(|device| profile.fit(&device.spec()));
    if args.json {
        return console.print_json(&ShownProfile {
            file: Some(name(file)),
            origin: None,
            fit,
            current_kernels: is_current(&profile),
            warnings: &[],
            profile: &profile,
        });
    }
    let mut out = format!("{}\n", name(file));
    text(&mut out, &profile, fit)?;
    console.print(&out)
}

fn text(out: &mut String, profile: &Profile, fit: Option<Fit>) -> fmt::Result {
    writeln!(out, "device       {}", device_line(&profile.device))?;
    writeln!(out, "fit          {}", fit.map_or("no such device here", Fit::describe))?;
    let current =
        if is_current(profile) { "those of this program" } else { "not those of this program" };
    writeln!(out, "kernels      {}, {current}", profile.kernels)?;
    writeln!(out, "made         {}, {}", profile.date, printable(&profile.command))?;
    let reached = ceilings(&profile.ceilings).map(|(what, value)| format!("{what} {value}"));
    writeln!(out, "ceilings     {}", reached.join(", "))?;
    writeln!(out, "cache        {} MB kept between products", rounded(profile.cache_bytes * 1e-6))?;
    records(out, &profile.records)?;
    writeln!(out)?;
    *out += &regrets(profile);
    worst(out, &profile.records)?;
    for (scalar, kernels) in &profile.coefficients {
        writeln!(out, "\ncoefficients in {scalar}, ns")?;
        *out += &coefficients(kernels.iter().map(|(kernel, c)| (kernel.as_str(), c)));
    }
    writeln!(out)
}

fn records(out: &mut String, records: &[Record]) -> fmt::Result {
    if records.is_empty() {
        return writeln!(out, "records      none");
    }
    let runs: usize = records.iter().map(|record| record.runs.len()).sum();
    let failed =
        records.iter().flat_map(|record| &record.runs).filter(|run| run.failed.is_some()).count();
    writeln!(
        out,
        "records      {}, one per matrix and precision; {runs} runs, {failed} failed",
        records.len()
    )
}

/// Table of the regrets, with a line for every held-out class.
fn regrets(profile: &Profile) -> String {
    let validation = &profile.validation;
    let line = |name: String, regret: &Regret| {
        std::iter::once(name).chain(regret_cells(regret)).collect::<Vec<_>>()
    };
    let mut lines = vec![line("in-sample".to_owned(), &validation.in_sample)];
    lines.extend(validation.held_out.iter().map(|regret| line("held-out".to_owned(), regret)));
    lines.extend(validation.calibrated.iter().map(|regret| line("calibrated".to_owned(), regret)));
    let classes = validation.held_out_classes.iter();
    lines.extend(classes.map(|(class, regret)| line(format!("  {class}"), regret)));
    let columns = [
        ("regret", Left),
        ("matrices", Right),
        ("geometric mean", Right),
        ("95th percentile", Right),
        ("worst", Right),
    ];
    table(&columns, lines)
}

/// Lists the matrices with the largest regret, held-out if that is known.
fn worst(out: &mut String, records: &[Record]) -> fmt::Result {
    let mut losses: Vec<(f64, &Record, &str)> = records
        .iter()
        .filter_map(|record| {
            let chosen = record.held_out.as_deref().or(record.chosen.as_deref())?;
            Some((record.regret(chosen)?, record, chosen))
        })
        .collect();
    losses.sort_by(|a, b| b.0.total_cmp(&a.0));
    if losses.is_empty() {
        return Ok(());
    }
    let lines = losses.iter().take(WORST).map(|(regret, record, chosen)| {
        let fastest = record.fastest().map_or("", |run| &run.plan);
        let matrix = printable(&record.matrix);
        let plans = [*chosen, fastest].map(printable);
        [matrix, record.scalar.to_string(), format!("{regret:.3}")]
            .into_iter()
            .chain(plans)
            .collect()
    });
    let columns = [
        ("worst matrices", Left),
        ("dtype", Left),
        ("regret", Right),
        ("chosen", Left),
        ("fastest", Left),
    ];
    writeln!(out)?;
    *out += &table(&columns, lines);
    Ok(())
}

/// Table of the coefficients: a line for every kernel, a column for every coefficient in use.
fn coefficients<'a>(kernels: impl Iterator<Item = (&'a str, &'a Coefficients)>) -> String {
    let lines: Vec<(&str, Vec<f64>)> = kernels
        .map(|(kernel, c)| (kernel, c.terms().into_iter().chain(c.packing()).collect()))
        .collect();
    let names: Vec<&str> =
        Coefficients::NAMES.into_iter().chain(Coefficients::PACKING_NAMES).collect();
    let used: Vec<usize> =
        (0..names.len()).filter(|&i| lines.iter().any(|line| line.1[i] > 0.0)).collect();
    let columns: Vec<_> =
        std::iter::once(("kernel", Left)).chain(used.iter().map(|&i| (names[i], Right))).collect();
    let cell = |value: f64| if value == 0.0 { String::new() } else { rounded(value) };
    let rows = lines.iter().map(|(kernel, values)| {
        std::iter::once((*kernel).to_owned()).chain(used.iter().map(|&i| cell(values[i]))).collect()
    });
    table(&columns, rows)
}
