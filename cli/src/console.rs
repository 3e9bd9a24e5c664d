//! Output: results on standard output, messages on standard error.

mod output;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use output::StandardOutput;
pub(super) use output::{OutputError, print_help};
use serde::Serialize;
use sparseop::tuning::record::Regret;
use sparseop::{Scalar, SparseOp};
use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

pub(super) use comfy_table::CellAlignment::{Left, Right};
pub(super) use sparseop::tuning::explain::duration;

/// Amount of messages besides the results.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Verbosity {
    /// Print details: more columns and statistics to standard output, times of the steps and the
    /// reasons for a choice to standard error
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    verbose: bool,
    /// Print only errors to standard error
    #[arg(short, long, global = true)]
    quiet: bool,
}

/// The output streams of the program.
#[derive(Debug)]
pub(super) struct Console {
    verbosity: Verbosity,
    failed: Cell<bool>,
}

impl Console {
    pub(super) fn new(verbosity: Verbosity) -> Self {
        Self { verbosity, failed: Cell::new(false) }
    }

    /// Prints a result to standard output.
    pub(super) fn print(&self, text: &str) -> Result<()> {
        Ok(StandardOutput::open().and_then(|mut out| out.write(&printable_lines(text)))?)
    }

    /// Prints a result as one line of JSON.
    pub(super) fn print_json(&self, value: &impl Serialize) -> Result<()> {
        self.print(&format!("{}\n", serde_json::to_string(value)?))
    }

    /// Reports an error; the program will exit with 1.
    pub(super) fn error(&self, message: &str) {
        self.failed.set(true);
        say(&format!("error: {message}"));
    }

    /// Prints a warning.
    pub(super) fn warn(&self, message: &str) {
        if !self.verbosity.quiet {
            say(&format!("warning: {message}"));
        }
    }

    /// Prints a note.
    pub(super) fn note(&self, message: &str) {
        if !self.verbosity.quiet {
            say(message);
        }
    }

    /// Prints a message of `--verbose`.
    pub(super) fn detail(&self, message: impl FnOnce() -> String) {
        if self.verbosity.verbose {
            say(&message());
        }
    }

    /// Explains the choice of an operator with `--verbose`, and in any case warns if the preferred
    /// GPU failed.
    pub(super) fn explain<T: Scalar>(&self, op: &SparseOp<T>) {
        if let Some(fallback) = &op.decision().fallback {
            self.warn(fallback);
        }
        self.detail(|| op.explain().to_string());
    }

    /// True with `--verbose`.
    pub(super) fn is_verbose(&self) -> bool {
        self.verbosity.verbose
    }

    /// True if an error was reported.
    pub(super) fn failed(&self) -> bool {
        self.failed.get()
    }

    /// Progress bar for work of known size, in bytes or in steps.
    pub(super) fn bar(&self, template: &'static str) -> ProgressBar {
        self.progress(ProgressBar::no_length(), template)
    }

    /// Spinner for work of unknown length.
    pub(super) fn spinner(&self, message: String) -> ProgressBar {
        /// Slow enough to take no time from the work.
        const TICK: Duration = Duration::from_millis(200);
        let spinner = self.progress(ProgressBar::new_spinner(), "{spinner} {msg} ({elapsed})");
        spinner.set_message(message);
        if !spinner.is_hidden() {
            let shown = spinner.downgrade();
            let turn = move || {
                while let Some(spinner) = shown.upgrade().filter(|shown| !shown.is_finished()) {
                    spinner.tick();
                    drop(spinner);
                    thread::sleep(TICK);
                }
            };
            // If the system refuses the thread, the spinner stands still.
            let _ = thread::Builder::new().spawn(turn);
        }
        spinner
    }

    /// Does work of unknown length under a spinner.
    pub(super) fn during<R>(&self, message: impl Into<String>, work: impl FnOnce() -> R) -> R {
        let spinner = self.spinner(message.into());
        let done = work();
        spinner.finish_and_clear();
        done
    }

    fn progress(&self, bar: ProgressBar, template: &'static str) -> ProgressBar {
        if self.verbosity.quiet || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        // A template that does not parse is a mistake of this program, and no reason to fail the
        // work.
        ProgressStyle::with_template(template)
            .map(|style| bar.with_style(style))
            .unwrap_or_else(|_| ProgressBar::hidden())
    }
}

/// Writes a line to standard error. Errors of the stream are ignored.
fn say(message: &str) {
    // One write, which those of other processes do not cut.
    let line = printable_lines(message.trim_end()) + "\n";
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Escapes the control characters of a text except the ends of its lines: names and reasons may
/// come from files.
fn printable_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(sparseop::printable).collect();
    lines.join("\n")
}

/// The error and its causes in one line, without those that the text already quotes.
pub(super) fn cause_chain(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(|cause| sparseop::printable(&cause.to_string()).into_owned())
        .reduce(|said, cause| if said.contains(&cause) { said } else { format!("{said}: {cause}") })
        .unwrap_or_default()
}

/// True if standard output cannot be written.
pub(super) fn is_output_error(error: &anyhow::Error) -> bool {
    error.is::<OutputError>()
}

/// True if the reader of standard output has closed it.
pub(super) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<OutputError>().is_some_and(OutputError::is_broken_pipe)
}

/// Cells of a regret: number of matrices, geometric mean, 95th percentile, worst.
pub(crate) fn regret_cells(regret: &Regret) -> [String; 4] {
    let Regret { matrices, geometric_mean, p95, worst } = regret;
    let [mean, p95, worst] = [geometric_mean, p95, worst].map(|r| format!("{r:.3}"));
    [matrices.to_string(), mean, p95, worst]
}

/// Formats a table with a heading, its columns two spaces apart.
pub(super) fn table(
    columns: &[(&str, CellAlignment)],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(columns.iter().map(|column| column.0))
        .add_rows(rows);
    for (column, (_, alignment)) in table.column_iter_mut().zip(columns) {
        column.set_padding((0, 2));
        column.set_cell_alignment(*alignment);
    }
    table.trim_fmt() + "\n"
}

/// A number of things: `1 entry`, `2 entries`.
pub(super) fn count(number: u64, noun: &str) -> String {
    match (number, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) => format!("{number} {noun}s"),
    }
}

/// Formats a share as a percentage.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_cause_is_printed_once() {
        let io = io::Error::new(io::ErrorKind::NotFound, "no such file");
        let error = Err::<(), _>(io)
            .context("cannot open a.mtx: no such file")
            .context("a.mtx")
            .unwrap_err();
        assert_eq!(cause_chain(&error), "a.mtx: cannot open a.mtx: no such file");
    }

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(printable_lines("σ\u{1b}]0;x\u{7}\n\ny\r\n"), "σ\\u{1b}]0;x\\u{7}\n\ny\\r\n");
    }
}
