//! `sparseop apply`.

use super::choice::ChoiceArgs;
use super::console::{Console, duration};
use super::matrix_arg::{MatrixSource, parser};
use anyhow::Result;
use serde::{Serialize, Serializer};
use sparseop::matrix::market;
use sparseop::tuning::stopwatch::timed;
use sparseop::{Plan, Precision, Scalar, ScalarKind};
use std::fmt::Write;
use std::path::PathBuf;

/// One product: y = A x
///
/// Without --x, x is all ones and y holds the row sums. Without --out, y is printed to standard
/// output as a Matrix Market array.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sparseop apply cant.mtx | head                       row sums
  sparseop apply cant.mtx --x x.mtx --out y.mtx.zst    a product, compressed
  sparseop apply cant.mtx --plan 'sell(c:32,sigma:512)' --expected-calls 1")]
pub(super) struct ApplyArgs {
    /// A Matrix Market file or gallery:NAME[,key=value...]
    #[arg(value_parser = parser())]
    matrix: MatrixSource,
    /// Vector x: a Matrix Market file of one column, or one number per line [default: all ones]
    #[arg(long, value_name = "FILE")]
    x: Option<PathBuf>,
    /// Output file of y, a Matrix Market array, written atomically [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Storage plan to use instead of the chosen one
    #[arg(long, value_name = "PLAN")]
    plan: Option<Plan>,
    /// Print one JSON object, including y unless --out is given, with "NaN", "Infinity" and
    /// "-Infinity" for elements that are not finite
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    choice: ChoiceArgs,
}

impl ApplyArgs {
    /// Files that are read.
    pub(super) fn inputs(&self) -> Vec<PathBuf> {
        self.matrix.file().into_iter().chain(self.x.clone()).collect()
    }

    /// Files of the results.
    pub(super) fn outputs(&self) -> Vec<PathBuf> {
        self.out.iter().cloned().collect()
    }
}

/// The product as JSON.
#[derive(Serialize)]
struct Applied {
    matrix: String,
    nrows: usize,
    ncols: usize,
    nnz: u64,
    dtype: ScalarKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_precision: Option<Precision>,
    device: String,
    plan: Plan,
    out: Option<String>,
    y: Option<Vec<JsonNumber>>,
}

/// A number of JSON, which has none that are not finite: they are texts.
struct JsonNumber(f64);

impl Serialize for JsonNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            number if number.is_finite() => serializer.serialize_f64(number),
            number if number.is_nan() => serializer.serialize_str("NaN"),
            number => serializer.serialize_str(if number > 0.0 { "Infinity" } else { "-Infinity" }),
        }
    }
}

pub(super) fn run(args: &ApplyArgs, console: &Console) -> Result<()> {
    by_scalar!(args.choice.dtype, apply(args, console))
}

fn apply<T: Scalar>(args: &ApplyArgs, console: &Console) -> Result<()> {
    let builder = args.choice.builder_for(args.plan.as_ref())?;
    args.choice.warn_of_ignored_options(args.plan.is_some(), console);
    let a = args.choice.rounded(args.matrix.load::<T>(console)?)?;
    let x = match &args.x {
        Some(file) => market::read_vector_of(file, a.ncols())?,
        None => {
            console.note("x is all ones; give another with --x");
            sparseop::filled(a.ncols(), T::ONE)?
        }
    };
    let op = console.during(format!("preparing {}", args.matrix.name()), || builder.build(&a))?;
    drop(a);
    console.explain(&op);
    let mut y = sparseop::try_zeroed(op.nrows())?;
    let (applied, seconds) = timed(|| op.apply(&x, &mut y));
    applied?;
    console.detail(|| format!("the product took {}", duration(seconds)));
    if let Some(file) = &args.out {
        market::write_vector(file, &y)?;
    }
    if args.json {
        return console.print_json(&Applied {
            matrix: args.matrix.name(),
            nrows: op.nrows(),
            ncols: op.ncols(),
            nnz: op.nnz(),
            dtype: T::KIND,
            value_precision: args.choice.value_precision,
            device: op.device().spec().name,
            plan: op.plan().clone(),
            out: args.out.as_ref().map(|file| file.display().to_string()),
            y: args.out.is_none().then(|| y.iter().map(|v| JsonNumber(v.to_f64())).collect()),
        });
    }
    if args.out.is_none() {
        let mut text = format!("%%MatrixMarket matrix array real general\n{} 1\n", y.len());
        for value in &y {
            // An exponent if that is shorter, and enough digits to read the same number back.
            writeln!(text, "{value:?}")?;
        }
        console.print(&text)?;
    }
    Ok(())
}
