//! `sparseop profile diff`.

use super::{Profile, ceilings, device_line, name, printable, rounded};
use crate::console::{Console, Left, Right, table};
use anyhow::Result;
use serde::Serialize;
use sparseop::ScalarKind;
use sparseop::analysis::Fingerprint;
use sparseop::tuning::cost::Coefficients;
use sparseop::tuning::decision::TIE_BAND;
use sparseop::tuning::record::{Record, Regret};
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::PathBuf;

/// Number of changes that are listed by default.
const LISTED: usize = 20;

/// Differences of two profiles: device, ceilings, regret, coefficients, and choices on common
/// matrices
///
/// Choices are compared on matrices of which both profiles keep records. Two plans are tied if
/// their times in the second profile differ by at most 2 %.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sparseop profile diff models/cpu.ron mine.ron
  sparseop profile diff yesterday.ron today.ron --percent 5 --all")]
pub(super) struct ProfileDiffArgs {
    /// The first profile, in RON
    #[arg(value_name = "A")]
    first: PathBuf,
    /// The second profile, in RON
    #[arg(value_name = "B")]
    second: PathBuf,
    /// Least change of the listed coefficients, in per cent
    #[arg(long, value_name = "N", default_value = "10", value_parser = parse_percent)]
    percent: f64,
    /// List all changes instead of the 20 largest
    #[arg(long)]
    all: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.parse::<f64>().ok().filter(|p| p.is_finite() && *p >= 0.0);
    percent.ok_or_else(|| "write a percentage of at least 0, such as 10".to_owned())
}

/// The differences of two profiles.
#[derive(Serialize)]
struct Diff {
    /// Single values: `(what, A, B)`.
    properties: Vec<(&'static str, String, String)>,
    coefficients: Vec<Change>,
    choices: Choices,
}

/// A coefficient that changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Change {
    dtype: ScalarKind,
    kernel: String,
    coefficient: &'static str,
    /// Nanoseconds.
    a: f64,
    b: f64,
}

impl Change {
    /// Size of the change as a logarithmic ratio. Infinite for a change from or to zero.
    fn size(&self) -> f64 {
        if self.a > 0.0 && self.b > 0.0 { (self.b / self.a).ln().abs() } else { f64::INFINITY }
    }

    fn percent(&self) -> String {
        if self.a > 0.0 {
            format!("{:+.0} %", (self.b / self.a - 1.0) * 100.0)
        } else {
            String::new()
        }
    }
}

/// Comparison of the choices on common matrices.
#[derive(Debug, Default, Serialize)]
struct Choices {
    /// Records that both profiles have, of the same structure in the same scalar.
    common: usize,
    /// Equal plans.
    same: usize,
    /// Different plans, equally good by the times of B.
    tied: usize,
    /// Different plans; that of A is slower by the times of B.
    different: Vec<DifferentChoice>,
}

/// A matrix on which the profiles choose differently.
#[derive(Debug, Serialize)]
struct DifferentChoice {
    matrix: String,
    dtype: ScalarKind,
    a: String,
    b: String,
    /// The time of A's plan over that of B's, by B's times. None if B has not measured it.
    ratio: Option<f64>,
}

pub(super) fn run(args: &ProfileDiffArgs, console: &Console) -> Result<()> {
    let (a, b) = (Profile::read(&args.first)?, Profile::read(&args.second)?);
    let diff = Diff {
        properties: properties(&a, &b),
        coefficients: coefficients(&a, &b, args.percent),
        choices: choices(&a.records, &b.records),
    };
    if args.json {
        return console.print_json(&diff);
    }
    let names = [&args.first, &args.second].map(|path| name(path));
    console.print(&text(&diff, &names, args)?)
}

fn properties(a: &Profile, b: &Profile) -> Vec<(&'static str, String, String)> {
    let regret = |r: Option<&Regret>| {
        r.map_or("not known".to_owned(), |r| {
            let Regret { matrices, geometric_mean, p95, worst } = r;
            format!("{geometric_mean:.3}, 95th percentile {p95:.3}, worst {worst:.3} of {matrices}")
        })
    };
    let of = |p: &Profile| {
        let mut properties = vec![
            ("device", device_line(&p.device)),
            ("kernels", p.kernels.clone()),
            ("date", p.date.clone()),
            ("command", printable(&p.command)),
        ];
        properties.extend(ceilings(&p.ceilings));
        properties.push(("cache", format!("{} MB", rounded(p.cache_bytes * 1e-6))));
        properties.push(("in-sample regret", regret(Some(&p.validation.in_sample))));
        properties.push(("held-out regret", regret(p.validation.held_out.as_ref())));
        properties.push(("records", p.records.len().to_string()));
        properties
    };
    let only = |p: &Profile, other: &Profile| {
        let all =
            p.coefficients.iter().flat_map(|(s, kernels)| kernels.keys().map(move |k| (*s, k)));
        let lacking = all.filter(|(scalar, kernel)| other.coefficients(*scalar, kernel).is_none());
        lacking
            .map(|(scalar, kernel)| format!("{kernel} in {scalar}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let kernels = ("only in this one", only(a, b), only(b, a));
    let pairs = of(a).into_iter().zip(of(b));
    let properties = pairs.map(|(a, b)| (a.0, a.1, b.1)).chain([kernels]);
    properties.filter(|(_, a, b)| a != b).collect()
}

/// The coefficients of common kernels that changed by more than `percent`, the largest change
/// first.
fn coefficients(a: &Profile, b: &Profile, percent: f64) -> Vec<Change> {
    let named = |c: &Coefficients| {
        let packing = Coefficients::PACKING_NAMES.into_iter().zip(c.packing());
        Coefficients::NAMES.into_iter().zip(c.terms()).chain(packing).collect::<Vec<_>>()
    };
    let mut changes = Vec::new();
    for (&dtype, kernels) in &a.coefficients {
        for (kernel, of_a) in kernels {
            let Some(of_b) = b.coefficients(dtype, kernel) else { continue };
            for ((coefficient, a), (_, b)) in named(of_a).into_iter().zip(named(of_b)) {
                changes.push(Change { dtype, kernel: kernel.clone(), coefficient, a, b });
            }
        }
    }
    changes.retain(|change| change.a != change.b && change.size() > (percent / 100.0).ln_1p());
    changes.sort_by(|a, b| b.size().total_cmp(&a.size()));
    changes
}

/// The plan chosen by a record's profile, or else the fastest one.
fn choice(record: &Record) -> Option<&str> {
    record.chosen.as_deref().or_else(|| Some(record.fastest()?.plan.as_str()))
}

fn choices(a: &[Record], b: &[Record]) -> Choices {
    let key =
        |record: &Record| -> (Fingerprint, ScalarKind) { (record.fingerprint, record.scalar) };
    let of_b: BTreeMap<_, &Record> = b.iter().map(|record| (key(record), record)).collect();
    let mut choices = Choices::default();
    for ours in a {
        let Some(theirs) = of_b.get(&key(ours)) else { continue };
        let (Some(plan_a), Some(plan_b)) = (choice(ours), choice(theirs)) else { continue };
        choices.common += 1;
        let time = |plan: &str| theirs.run(plan).and_then(|run| run.time());
        let ratio = time(plan_a).zip(time(plan_b)).map(|(a, b)| a / b);
        if plan_a == plan_b {
            choices.same += 1;
        } else if ratio.is_some_and(|ratio| ratio <= 1.0 + TIE_BAND) {
            choices.tied += 1;
        } else {
            let (matrix, dtype) = (printable(&theirs.matrix), theirs.scalar);
            choices.different.push(DifferentChoice {
                matrix,
                dtype,
                a: printable(plan_a),
                b: printable(plan_b),
                ratio,
            });
        }
    }
    choices.different.sort_by(|x, y| y.ratio.unwrap_or(0.0).total_cmp(&x.ratio.unwrap_or(0.0)));
    choices
}

fn text(diff: &Diff, names: &[String; 2], args: &ProfileDiffArgs) -> Result<String, fmt::Error> {
    let mut out = format!("A  {}\nB  {}\n\n", names[0], names[1]);
    if diff.properties.is_empty() {
        writeln!(out, "device, kernels, date, ceilings and regret are equal")?;
    }
    for (what, a, b) in &diff.properties {
        writeln!(out, "{what:<20}A  {a}\n{:<20}B  {b}", "")?;
    }
    let listed = if args.all { usize::MAX } else { LISTED };
    let (count, percent) = (diff.coefficients.len(), args.percent);
    writeln!(out, "\n{count} coefficients changed by more than {percent} %")?;
    if count > 0 {
        let lines = diff.coefficients.iter().take(listed).map(|c| {
            let what = [c.dtype.to_string(), c.kernel.clone(), c.coefficient.to_owned()];
            what.into_iter().chain([rounded(c.a), rounded(c.b), c.percent()]).collect()
        });
        let columns = [
            ("dtype", Left),
            ("kernel", Left),
            ("coefficient", Left),
            ("A, ns", Right),
            ("B, ns", Right),
            ("change", Right),
        ];
        out += &table(&columns, lines);
        if count > listed {
            writeln!(out, "and {} more; --all lists them", count - listed)?;
        }
    }
    choices_text(&mut out, &diff.choices, listed)?;
    Ok(out)
}

fn choices_text(out: &mut String, choices: &Choices, listed: usize) -> fmt::Result {
    if choices.common == 0 {
        return writeln!(out, "\nno records of the same matrices");
    }
    let Choices { common, same, tied, different } = choices;
    writeln!(
        out,
        "\n{common} common matrices and precisions: {same} with the same plan, {tied} tied, {} \
         different",
        different.len()
    )?;
    if different.is_empty() {
        return Ok(());
    }
    let lines = different.iter().take(listed).map(|c| {
        let ratio = c.ratio.map_or("not measured".to_owned(), |ratio| format!("{ratio:.3}"));
        vec![c.matrix.clone(), c.dtype.to_string(), c.a.clone(), c.b.clone(), ratio]
    });
    let columns =
        [("matrix", Left), ("dtype", Left), ("A", Left), ("B", Left), ("A over B, by B", Right)];
    *out += &table(&columns, lines);
    if different.len() > listed {
        writeln!(out, "and {} more; --all lists them", different.len() - listed)?;
    }
    Ok(())
}
