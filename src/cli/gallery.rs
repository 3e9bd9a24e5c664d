//! `sparseop gallery`.

use super::choice::dtype_parser;
use super::console::{Console, Left, Right, table};
use anyhow::Result;
use clap::Subcommand;
use serde::Serialize;
use sparseop::matrix::gallery::{self, Entry, Spec};
use sparseop::matrix::market;
use sparseop::{Scalar, ScalarKind};
use std::path::{Path, PathBuf};

/// Generated matrices that stand for the structures people have
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sparseop gallery list
  sparseop gallery write circuit,rows=30k circuit.mtx.zst
  sparseop analyze gallery:circuit,rows=30k          without writing it")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What there is, and its sizes in the benchmark suite
    List {
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Generate a matrix and write it as a Matrix Market file
    Write {
        /// NAME[,key=value...]; numbers may end in k or M. Keys: those of `gallery list`, `values` (random, pattern, few,
        /// laplacian), `seed`
        spec: Spec,
        /// The file; a name that ends in .gz or .zst is compressed. It appears when it is complete
        file: PathBuf,
        /// Numbers to generate
        #[arg(long, value_name = "TYPE", default_value = "f64", value_parser = dtype_parser())]
        dtype: ScalarKind,
    },
}

pub(super) fn run(args: &Args, console: &Console) -> Result<()> {
    match &args.command {
        Command::List { json } => list(*json, console),
        Command::Write { spec, file, dtype: ScalarKind::F32 } => write::<f32>(spec, file, console),
        Command::Write { spec, file, dtype: ScalarKind::F64 } => write::<f64>(spec, file, console),
    }
}

/// A generator, for programs.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    structure: &'static str,
    parameters: Vec<Parameter>,
    nrows: usize,
    ncols: usize,
    nnz: usize,
}

#[derive(Serialize)]
struct Parameter {
    key: &'static str,
    meaning: &'static str,
    default: usize,
}

fn list(json: bool, console: &Console) -> Result<()> {
    if json {
        for entry in gallery::list() {
            let parameters = entry.parameters.iter();
            let parameters = parameters
                .map(|p| Parameter { key: p.key, meaning: p.meaning, default: p.default })
                .collect();
            let shape = entry.spec().shape();
            let (nrows, ncols, nnz) = (shape.nrows, shape.ncols, shape.nnz);
            let (name, structure) = (entry.name, entry.structure);
            console.print_json(&Listed { name, structure, parameters, nrows, ncols, nnz })?;
        }
        return Ok(());
    }
    let columns = [("name", Left), ("sizes", Left), ("rows", Right), ("entries", Right), ("structure", Left)];
    let row = |entry: &'static Entry| {
        let sizes: Vec<_> = entry.parameters.iter().map(|p| format!("{}={}", p.key, p.default)).collect();
        let shape = entry.spec().shape();
        let name = entry.name.to_owned();
        vec![
            name,
            sizes.join(","),
            shape.nrows.to_string(),
            shape.nnz.to_string(),
            entry.structure.to_owned(),
        ]
    };
    console.print(&table(&columns, gallery::list().iter().map(row)))
}

fn write<T: Scalar>(spec: &Spec, file: &Path, console: &Console) -> Result<()> {
    let spinner = console.spinner(format!("generating {spec}"));
    let matrix = spec.generate::<T>()?;
    spinner.set_message(format!("writing {}", file.display()));
    let written = market::write(file, matrix.view());
    spinner.finish_and_clear();
    written?;
    let (nrows, ncols, nnz) = (matrix.nrows(), matrix.ncols(), matrix.nnz());
    console.note(&format!("wrote {}: {nrows} x {ncols}, {nnz} entries", file.display()));
    Ok(())
}
