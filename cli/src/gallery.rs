//! `sparseop gallery`.

use super::choice::dtype_parser;
use super::console::{Console, Left, Right, table};
use anyhow::Result;
use clap::Subcommand;
use serde::Serialize;
use sparseop::matrix::gallery::{self, Spec, Values};
use sparseop::matrix::market;
use sparseop::tuning::explain::size;
use sparseop::{Scalar, ScalarKind};
use std::path::{Path, PathBuf};

/// Generated matrices with the structures of common applications
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sparseop gallery list
  sparseop gallery list random,seed=1..=40           properties of random matrices
  sparseop gallery write circuit,rows=30k circuit.mtx.zst
  sparseop analyze gallery:circuit,rows=30k          the same without a file")]
pub(super) struct GalleryArgs {
    #[command(subcommand)]
    command: GalleryCommand,
}

#[derive(Debug, Subcommand)]
enum GalleryCommand {
    /// Generators and their sizes in the benchmark suite, or the given matrices
    List {
        /// NAME[,key=value...]; values may be ranges: seed=1..4 (1, 2, 3) or seed=1..=4
        #[arg(value_name = "SPEC", value_parser = Spec::parse_all)]
        specs: Vec<Vec<Spec>>,
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Generate a matrix and write it as a Matrix Market file
    Write {
        /// NAME[,key=value...]; numbers may end in k or M. Keys: those of `gallery list`, `values`
        /// (random, pattern, few, laplacian), `seed`
        spec: Spec,
        /// Output file, written atomically; compressed if the name ends in .gz or .zst
        file: PathBuf,
        /// Scalar type of the values
        #[arg(long, value_name = "TYPE", default_value = "f64", value_parser = dtype_parser())]
        dtype: ScalarKind,
    },
}

pub(super) fn run(args: &GalleryArgs, console: &Console) -> Result<()> {
    match &args.command {
        GalleryCommand::List { specs, json } => list(&specs.concat(), *json, console),
        GalleryCommand::Write { spec, file, dtype: ScalarKind::F32 } => {
            write::<f32>(spec, file, console)
        }
        GalleryCommand::Write { spec, file, dtype: ScalarKind::F64 } => {
            write::<f64>(spec, file, console)
        }
    }
}

/// A generator as JSON.
#[derive(Serialize)]
struct Listed {
    name: String,
    structure: String,
    parameters: Vec<ListedParameter>,
    nrows: usize,
    ncols: usize,
    nnz: usize,
}

#[derive(Serialize)]
struct ListedParameter {
    key: &'static str,
    meaning: &'static str,
    default: usize,
}

fn list(given: &[Spec], json: bool, console: &Console) -> Result<()> {
    let generators = gallery::list().iter().map(|entry| (entry.spec(), entry.structure.to_owned()));
    let listed: Vec<(Spec, String)> = match given {
        [] => generators.collect(),
        _ => given.iter().map(|spec| (spec.clone(), spec.structure())).collect(),
    };
    if json {
        for (spec, structure) in listed {
            let parameters = spec.entry().parameters.iter();
            let parameters = parameters
                .map(|p| ListedParameter { key: p.key, meaning: p.meaning, default: p.default })
                .collect();
            let (name, shape) = (spec.to_string(), spec.shape());
            let (nrows, ncols, nnz) = (shape.nrows, shape.ncols, shape.nnz);
            console.print_json(&Listed { name, structure, parameters, nrows, ncols, nnz })?;
        }
        return Ok(());
    }
    let columns =
        [("name", Left), ("sizes", Left), ("rows", Right), ("entries", Right), ("structure", Left)];
    let row = |(spec, structure): (Spec, String)| {
        let sizes = spec.entry().parameters.iter().zip(spec.sizes());
        let sizes: Vec<_> = sizes.map(|(p, size)| format!("{}={size}", p.key)).collect();
        let shape = spec.shape();
        vec![
            spec.to_string(),
            sizes.join(","),
            shape.nrows.to_string(),
            shape.nnz.to_string(),
            structure,
        ]
    };
    console.print(&table(&columns, listed.into_iter().map(row)))
}

/// Size from which a file is announced.
const LARGE: u64 = 16 << 20;

/// Estimated bytes of a matrix as text: row, column and value of every entry.
fn estimated_bytes<T: Scalar>(spec: &Spec) -> u64 {
    let shape = spec.shape();
    // Mean number of digits of the numbers from 1 to n: those below a power of ten have fewer.
    let digits = |n: usize| {
        let n = n.max(1) as f64;
        let powers = std::iter::successors(Some(10.0), |power| Some(power * 10.0));
        let fewer: f64 = powers.take_while(|power| *power <= n).map(|power| power - 1.0).sum();
        n.log10().floor() + 1.0 - fewer / n
    };
    // Random values have as many digits as necessary to read the same number again.
    let value = match (spec.values(), T::KIND) {
        (Values::Random, ScalarKind::F64) => 20.0,
        (Values::Random, ScalarKind::F32) => 12.0,
        _ => 4.0,
    };
    // Two blanks and the end of the line.
    (shape.nnz as f64 * (digits(shape.nrows) + digits(shape.ncols) + value + 3.0)) as u64
}

fn write<T: Scalar>(spec: &Spec, file: &Path, console: &Console) -> Result<()> {
    let about = estimated_bytes::<T>(spec);
    if about >= LARGE {
        let text = file.display();
        let is_compressed = file.extension().is_some_and(|end| end == "gz" || end == "zst");
        let when = if is_compressed { ", before compression" } else { "" };
        console.note(&format!("{text} takes about {}{when}", size(about)));
    }
    let spinner = console.spinner(format!("generating {spec}"));
    let matrix = spec.generate::<T>()?;
    spinner.set_message(format!("writing {}", file.display()));
    let written = market::write(file, matrix.view());
    spinner.finish_and_clear();
    written?;
    console.detail(|| format!("{spec}: {}", spec.structure()));
    let (nrows, ncols, nnz) = (matrix.nrows(), matrix.ncols(), matrix.nnz());
    console.note(&format!("wrote {}: {nrows} x {ncols}, {nnz} entries", file.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_file_is_estimated_within_a_quarter() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.mtx");
        for text in ["banded,rows=500", "uniform,rows=2k,values=few", "small,values=laplacian"] {
            let spec: Spec = text.parse().unwrap();
            let a = spec.generate::<f64>().unwrap();
            market::write(&file, a.view()).unwrap();
            let ratio = estimated_bytes::<f64>(&spec) as f64
                / std::fs::metadata(&file).unwrap().len() as f64;
            assert!((0.75..1.33).contains(&ratio), "{text}: {ratio}");
        }
    }
}
