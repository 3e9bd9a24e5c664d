//! Program `sparseop` of auto-tuned sparse matrix–vector products (SpMV): one file for each
//! subcommand, and shared code.
//!
//! A library, so that packages for other languages can contain the program; [`run`] is all of
//! it.

#[macro_use]
mod scalars;

mod analyze;
mod apply;
mod bench;
mod choice;
mod console;
mod devices;
mod gallery;
#[cfg(feature = "mpi")]
mod job;
mod launcher;
mod matrix_arg;
mod plan_distributed;
mod profile;
mod rank;
mod report;
mod signals;
mod solve;
mod tune;

use clap::{CommandFactory, Parser, Subcommand};
use console::{Console, Verbosity, cause_chain, is_broken_pipe, print_help};
use sparseop::Device;
use sparseop::device::DEVICE_VARIABLE;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{self, Path, PathBuf};
use std::sync::OnceLock;

/// Exit codes.
const SUCCESS: u8 = 0;
const FAILURE: u8 = 1;
const USAGE: u8 = 2;

/// The arguments of the program, recorded in profiles.
static ARGUMENTS: OnceLock<Vec<OsString>> = OnceLock::new();

/// Auto-tuned sparse matrix-vector products (SpMV) for CPUs and NVIDIA GPUs
///
/// Analyses a sparse matrix, predicts the time of every storage plan, packs the fastest one, and
/// explains the choice.
#[derive(Debug, Parser)]
#[command(name = "sparseop", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    verbosity: Verbosity,
}

const EXAMPLES: &str = "\
MATRIX is a Matrix Market file (.mtx, .mtx.gz, .mtx.zst), an archive of the SuiteSparse
collection (.tar.gz), a folder of such files, or generated: gallery:NAME[,key=value...].

Results go to standard output, everything else to standard error.
The exit code is 0 for success, 1 for failed work, 2 for wrong usage.

Examples:
  sparseop analyze cant.mtx                         the recommended plan, its time, the reason
  sparseop bench cant.mtx --plans auto,csr          time of the chosen plan and of CSR
  sparseop bench matrices/ --json > results.jsonl   every matrix of a folder, as JSON lines
  sparseop apply cant.mtx --x x.mtx --out y.mtx     one product
  sparseop solve cant.mtx --rhs b.mtx --out x.mtx   a linear system
  sparseop analyze gallery:circuit,rows=30k         a generated matrix";

#[derive(Debug, Subcommand)]
enum Command {
    Analyze(analyze::AnalyzeArgs),
    Bench(bench::BenchArgs),
    Apply(apply::ApplyArgs),
    Solve(solve::SolveArgs),
    Rank(rank::RankArgs),
    PlanDistributed(plan_distributed::PlanDistributedArgs),
    Tune(tune::TuneArgs),
    Profile(profile::ProfileArgs),
    Gallery(gallery::GalleryArgs),
    Devices(devices::DevicesArgs),
}

impl Command {
    /// A sentence about a file that is named for two outputs, or for an input and an output.
    fn repeated_file(&self) -> Option<String> {
        let (inputs, outputs) = match self {
            Self::Apply(args) => (args.inputs(), args.outputs()),
            Self::Solve(args) => (args.inputs(), args.outputs()),
            Self::Tune(args) => (args.inputs(), args.outputs()),
            _ => return None,
        };
        let sentence = |file: &Path, what: &str| {
            let file = file.display().to_string();
            Some(format!("{} is the file of {what}", sparseop::printable(&file)))
        };
        let mut known: BTreeSet<PathBuf> = inputs.iter().map(|file| resolved(file)).collect();
        let read = known.clone();
        for file in &outputs {
            // A device or a pipe takes several outputs.
            if !file.metadata().is_ok_and(|f| !f.is_file()) && !known.insert(resolved(file)) {
                let is_read = read.contains(&resolved(file));
                let what = if is_read { "an input and of an output" } else { "two outputs" };
                return sentence(file, what);
            }
        }
        None
    }
}

/// The path of a file, which need not exist, without symbolic links.
fn resolved(file: &Path) -> PathBuf {
    let absolute = path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let below = || Some(absolute.parent()?.canonicalize().ok()?.join(absolute.file_name()?));
    absolute.canonicalize().ok().or_else(below).unwrap_or(absolute)
}

/// Runs the program with its arguments, the first of which is its name, and returns the exit code:
/// 0 success, 1 failed work, 2 wrong usage. Results go to standard output, everything else to
/// standard error.
///
/// To be called a single time in a process, before it starts threads: interrupts are handled from
/// then on.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments = ARGUMENTS.get_or_init(|| arguments.into_iter().collect());
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        // Help and the version are results.
        Err(help) if !help.use_stderr() => return print_help(&help),
        Err(usage) => {
            // If nothing can be printed, the exit code reports the error.
            let _ = usage.print();
            return USAGE;
        }
    };
    if let Some(message) = cli.command.repeated_file() {
        let usage = Cli::command().error(clap::error::ErrorKind::ArgumentConflict, message);
        let _ = usage.print();
        return USAGE;
    }
    let console = Console::new(cli.verbosity);
    signals::handle(&console);
    warn_of_device(&console);
    let done = match &cli.command {
        Command::Analyze(args) => analyze::run(args, &console),
        Command::Bench(args) => bench::run(args, &console),
        Command::Apply(args) => apply::run(args, &console),
        Command::Solve(args) => solve::run(args, &console),
        Command::Rank(args) => rank::run(args, &console),
        Command::PlanDistributed(args) => plan_distributed::run(args, &console),
        Command::Tune(args) => tune::run(args, &console),
        Command::Profile(args) => profile::run(args, &console),
        Command::Gallery(args) => gallery::run(args, &console),
        Command::Devices(args) => devices::run(args, &console),
    };
    for warning in sparseop::file_warnings() {
        console.warn(&warning);
    }
    for event in sparseop::device::kernel_log() {
        console.detail(|| format!("kernel {event}"));
    }
    match done {
        Ok(()) if console.failed() => FAILURE,
        Ok(()) => SUCCESS,
        // The reader of standard output has closed it.
        Err(error) if is_broken_pipe(&error) => SUCCESS,
        Err(error) => {
            console.error(&cause_chain(&error));
            FAILURE
        }
    }
}

/// Warns if the environment asks for a GPU that cannot be used.
fn warn_of_device(console: &Console) {
    let asked = std::env::var(DEVICE_VARIABLE).unwrap_or_default();
    if matches!(&*asked, "" | "auto" | "cpu") {
        return;
    }
    if let Some(reason) = Device::why_no_gpu() {
        let asked = sparseop::printable(&asked);
        let said = if reason.contains(DEVICE_VARIABLE) {
            reason
        } else {
            format!("{DEVICE_VARIABLE}={asked}: {reason}")
        };
        console.warn(&format!("{said}; the device `auto` is the CPU"));
    }
}

/// The command line, recorded in profiles.
fn command_line() -> String {
    let arguments = ARGUMENTS.get().map_or(&[] as &[OsString], Vec::as_slice).iter().skip(1);
    let arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    std::iter::once("sparseop".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}
