//! The page that `--report` writes: pictures of matrices, times and choices in one HTML file that needs nothing else.
//!
//! Plain data in, [`Page`], one file out. The subcommands fill the data; every file here draws one picture of it.

mod axis;
mod bars;
mod collection;
mod histogram;
mod page;
mod raster;
mod regret;
mod scatter;
mod section;

pub(super) use histogram::Thresholds;
pub(super) use raster::Raster;

use super::console::Console;
use anyhow::{Result, bail};
use sparseop::analysis::RowStats;
use sparseop::formats::FormatKind;
use sparseop::tuning::ceilings;
use sparseop::{Device, ScalarKind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where the page goes, if there is to be one.
#[derive(Debug, clap::Args)]
pub(super) struct ReportArg {
    /// Also write a page with pictures: row lengths, pattern, times against the roofline, predictions, regret
    #[arg(long = "report", value_name = "FILE.html")]
    path: Option<PathBuf>,
}

impl ReportArg {
    /// An empty page, if there is to be one.
    ///
    /// # Errors
    ///
    /// When its folder is not there: better said before the work than after it.
    pub(super) fn begin(&self, subject: &'static str) -> Result<Option<Page>> {
        let Some(path) = &self.path else { return Ok(None) };
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            bail!("{} is not a folder: the report could not be written", folder.display());
        }
        Ok(Some(Page::new(subject)))
    }

    /// Writes the page, whole or not at all; one without a matrix is not written.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub(super) fn finish(&self, page: Option<Page>, console: &Console) -> Result<()> {
        let (Some(path), Some(page)) = (&self.path, page) else { return Ok(()) };
        if page.matrices.is_empty() {
            console.warn(&format!("{} is not written: there is no matrix to show", path.display()));
            return Ok(());
        }
        let text = page.render().into_string();
        sparseop::write_atomically(path, |file| file.write_all(text.as_bytes()))?;
        console.note(&format!("wrote {}", path.display()));
        Ok(())
    }
}

/// What a page shows.
#[derive(Debug)]
pub(super) struct Page {
    /// What was done, to begin its title with.
    subject: &'static str,
    /// In the order in which they are shown.
    matrices: Vec<Matrix>,
    /// What is said of all of them, under headings; lines in columns.
    words: Vec<(&'static str, String)>,
}

impl Page {
    fn new(subject: &'static str) -> Self {
        Self { subject, matrices: Vec::new(), words: Vec::new() }
    }

    /// Says something of all matrices, under a heading; lines in columns.
    pub(super) fn say(&mut self, heading: &'static str, text: String) {
        self.words.push((heading, text));
    }

    /// Shows one more matrix. A time that is not a positive number, as of a clock too coarse, is none.
    pub(super) fn add(&mut self, mut matrix: Matrix) {
        let positive = |time: &f64| time.is_finite() && *time > 0.0;
        for run in &mut matrix.runs {
            run.measured = run.measured.filter(positive);
            run.predicted = run.predicted.filter(positive);
        }
        self.matrices.push(matrix);
    }
}

/// What is shown of one matrix in one precision.
#[derive(Debug)]
pub(super) struct Matrix {
    pub(super) name: String,
    /// Matrices of one class are summed up together: the generator's name, or the folder's.
    pub(super) class: String,
    pub(super) scalar: ScalarKind,
    pub(super) device: String,
    /// How it was measured, in names and values; empty where nothing was.
    pub(super) measurement: Vec<(&'static str, String)>,
    /// Row lengths are drawn where there is a histogram.
    pub(super) rows: RowStats,
    pub(super) thresholds: Option<Thresholds>,
    /// Where the entries are; none where the matrix is no longer at hand.
    pub(super) pattern: Option<Raster>,
    /// Bytes a second that a copy reads and writes there.
    pub(super) bandwidth: Option<f64>,
    pub(super) runs: Vec<Run>,
    /// Why the plan was chosen, in words; lines in columns.
    pub(super) decision: String,
}

/// A plan or a way of a baseline, and its time.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// The plan as it is spelled, after the engine where that is not ours.
    pub(super) name: String,
    /// The plan's format; none for a baseline.
    pub(super) format: Option<FormatKind>,
    /// Whether it was chosen.
    pub(super) chosen: bool,
    /// Seconds a product took.
    pub(super) measured: Option<f64>,
    /// Seconds a product was predicted to take.
    pub(super) predicted: Option<f64>,
    /// Bytes of matrix and vectors.
    pub(super) bytes: Option<u64>,
    /// Why there is no time, or why it was not eligible.
    pub(super) remark: Option<String>,
}

impl Run {
    /// The time to draw: the measured one, or else the predicted one.
    fn time(&self) -> Option<f64> {
        self.measured.or(self.predicted)
    }
}

impl Matrix {
    /// The chosen plan.
    fn chosen(&self) -> Option<&Run> {
        self.runs.iter().find(|run| run.chosen)
    }

    /// The fastest of our plans that were timed, and how many there are.
    fn fastest(&self) -> Option<(&Run, usize)> {
        let own = || self.runs.iter().filter(|run| run.format.is_some());
        Some((least(own())?.0, own().filter(|run| run.measured.is_some()).count()))
    }

    /// The time of the chosen plan over that of the fastest; none where there was nothing to choose from.
    fn regret(&self) -> Option<f64> {
        let (fastest, plans) = self.fastest()?;
        (plans > 1).then(|| Some(self.chosen()?.measured? / fastest.measured?)).flatten()
    }

    /// The time of the fastest baseline over that of the chosen plan.
    fn speed_up(&self) -> Option<f64> {
        let (_, baseline) = least(self.runs.iter().filter(|run| run.format.is_none()))?;
        Some(baseline / self.chosen()?.measured?)
    }

    /// The least time there can be for so many bytes, in seconds.
    fn roofline(&self, run: &Run) -> Option<f64> {
        Some(run.bytes? as f64 / self.bandwidth?)
    }

    /// Whether anything was timed.
    fn is_measured(&self) -> bool {
        self.runs.iter().any(|run| run.measured.is_some())
    }
}

/// The run of least measured time.
fn least<'a>(runs: impl Iterator<Item = &'a Run>) -> Option<(&'a Run, f64)> {
    runs.filter_map(|run| Some((run, run.measured?))).min_by(|a, b| a.1.total_cmp(&b.1))
}

/// Bytes a second that a copy in the memory of a device reads and writes: what the roofline is drawn from; measured once.
///
/// # Errors
///
/// When a GPU fails.
pub(super) fn copy_bandwidth(device: &Device) -> Result<Option<f64>> {
    static CPU: OnceLock<Option<f64>> = OnceLock::new();
    match device {
        Device::Cpu => Ok(*CPU.get_or_init(|| ceilings::measure(device).ok()?.copy_bandwidth)),
        gpu => Ok(gpu.copy_bandwidth()?),
    }
}

/// A whole number with its digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What stands in a cell of a table, or a dash.
fn cell<V>(value: Option<V>, text: impl FnOnce(V) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), text)
}

#[cfg(test)]
mod tests;
