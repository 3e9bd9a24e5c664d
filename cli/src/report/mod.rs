//! The page of `--report`: charts of matrices, times and choices in one self-contained HTML file.
//!
//! The input is plain data, [`Page`]. The subcommands fill it, and every file here draws one chart
//! of it.

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

/// Path of the page, if requested.
#[derive(Debug, clap::Args)]
pub(super) struct ReportArg {
    /// Also write a page with pictures: row lengths, pattern, times against the roofline,
    /// predictions, regret
    #[arg(long = "report", value_name = "FILE.html")]
    path: Option<PathBuf>,
}

impl ReportArg {
    /// Output file of the page, if requested.
    pub(super) fn path(&self) -> Option<&PathBuf> {
        self.path.as_ref()
    }

    /// Returns an empty page if a report is requested.
    ///
    /// # Errors
    ///
    /// If its folder does not exist: the error comes before the work.
    pub(super) fn begin(&self, subject: &'static str) -> Result<Option<Page>> {
        let Some(path) = &self.path else { return Ok(None) };
        let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            bail!("{} is not a folder: the report could not be written", folder.display());
        }
        Ok(Some(Page::new(subject)))
    }

    /// Writes the page atomically. A page without a matrix is not written.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
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

/// Contents of a page.
#[derive(Debug)]
pub(super) struct Page {
    /// Subject of the page, the beginning of its title.
    subject: &'static str,
    /// The matrices in the order of the page.
    matrices: Vec<Matrix>,
    /// Texts about all matrices, with their headings. Lines are in columns.
    words: Vec<(&'static str, String)>,
}

impl Page {
    fn new(subject: &'static str) -> Self {
        Self { subject, matrices: Vec::new(), words: Vec::new() }
    }

    /// Adds a text about all matrices under a heading. Lines are in columns.
    pub(super) fn say(&mut self, heading: &'static str, text: String) {
        self.words.push((heading, text));
    }

    /// Adds a matrix. A time that is not a positive number, as from a clock too coarse, is dropped.
    pub(super) fn add(&mut self, mut matrix: Matrix) {
        let positive = |time: &f64| time.is_finite() && *time > 0.0;
        for run in &mut matrix.runs {
            run.measured = run.measured.filter(positive);
            run.predicted = run.predicted.filter(positive);
        }
        self.matrices.push(matrix);
    }
}

/// Contents of the page about one matrix in one precision.
#[derive(Debug)]
pub(super) struct Matrix {
    pub(super) name: String,
    /// Class under which matrices are summarised: the name of the generator or of the folder.
    pub(super) class: String,
    pub(super) scalar: ScalarKind,
    pub(super) device: String,
    /// Conditions of the measurement as names and values. Empty if nothing was measured.
    pub(super) measurement: Vec<(&'static str, String)>,
    /// Row lengths, drawn if there is a histogram.
    pub(super) rows: RowStats,
    pub(super) thresholds: Option<Thresholds>,
    /// Picture of the pattern. None if the matrix is not available any more.
    pub(super) pattern: Option<Raster>,
    /// Bytes per second that a copy on the device reads and writes.
    pub(super) bandwidth: Option<f64>,
    /// Sign that other work disturbed the measurement.
    pub(super) busy: Option<String>,
    pub(super) runs: Vec<PlottedRun>,
    /// Reasons of the choice in words. Lines are in columns.
    pub(super) decision: String,
}

/// A plan or an algorithm of a baseline, and its time.
#[derive(Debug, Clone)]
pub(super) struct PlottedRun {
    /// The plan's spelling, after the name of the engine if that is not ours.
    pub(super) name: String,
    /// The plan's format. None for a baseline.
    pub(super) format: Option<FormatKind>,
    /// True if it was chosen.
    pub(super) chosen: bool,
    /// Measured seconds of a product.
    pub(super) measured: Option<f64>,
    /// Predicted seconds of a product.
    pub(super) predicted: Option<f64>,
    /// Bytes of matrix and vectors.
    pub(super) bytes: Option<u64>,
    /// The reason why there is no time, or why it was not eligible.
    pub(super) remark: Option<String>,
}

impl PlottedRun {
    /// The time to draw: the measured one, or else the predicted one.
    fn time(&self) -> Option<f64> {
        self.measured.or(self.predicted)
    }
}

impl Matrix {
    /// The chosen plan.
    fn chosen(&self) -> Option<&PlottedRun> {
        self.runs.iter().find(|run| run.chosen)
    }

    /// The fastest of our own timed plans, and their number.
    fn fastest(&self) -> Option<(&PlottedRun, usize)> {
        let own = || self.runs.iter().filter(|run| run.format.is_some());
        Some((least(own())?.0, own().filter(|run| run.measured.is_some()).count()))
    }

    /// The time of the chosen plan over that of the fastest. None if there was no other plan.
    fn regret(&self) -> Option<f64> {
        let (fastest, plans) = self.fastest()?;
        (plans > 1).then(|| Some(self.chosen()?.measured? / fastest.measured?)).flatten()
    }

    /// The regret, if no other work disturbed the measurement.
    fn quiet_regret(&self) -> Option<f64> {
        self.regret().filter(|_| self.busy.is_none())
    }

    /// The share of the roofline that a run of `time` seconds reaches, in words. A plan whose data
    /// stay in a cache exceeds the bandwidth of the memory.
    fn share(&self, run: &PlottedRun, time: f64) -> Option<String> {
        let share = self.roofline(run).filter(|_| self.busy.is_none())? / time;
        let text = format!("{:.0} %", share * 100.0);
        Some(if share > 1.0 { "in cache".to_owned() } else { text })
    }

    /// The time of the fastest baseline over that of the chosen plan.
    fn speed_up(&self) -> Option<f64> {
        let (_, baseline) = least(self.runs.iter().filter(|run| run.format.is_none()))?;
        Some(baseline / self.chosen()?.measured?)
    }

    /// Lower bound of the time of a run by its bytes, in seconds.
    fn roofline(&self, run: &PlottedRun) -> Option<f64> {
        Some(run.bytes? as f64 / self.bandwidth?)
    }

    /// True if anything was timed.
    fn is_measured(&self) -> bool {
        self.runs.iter().any(|run| run.measured.is_some())
    }
}

/// The run with the least measured time.
fn least<'a>(runs: impl Iterator<Item = &'a PlottedRun>) -> Option<(&'a PlottedRun, f64)> {
    runs.filter_map(|run| Some((run, run.measured?))).min_by(|a, b| a.1.total_cmp(&b.1))
}

/// Bytes per second that a copy in the memory of a device reads and writes, the basis of the
/// roofline. Measured only once on a CPU.
///
/// # Errors
///
/// If a GPU fails.
pub(super) fn copy_bandwidth(device: &Device) -> Result<Option<f64>> {
    static CPU: OnceLock<Option<f64>> = OnceLock::new();
    match device {
        Device::Cpu => Ok(*CPU.get_or_init(|| ceilings::measure(device).ok()?.copy_bandwidth)),
        gpu => Ok(gpu.copy_bandwidth()?),
    }
}

/// Formats a whole number with its digits in groups of three.
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

/// Text of a table's cell, or a dash.
fn cell<V>(value: Option<V>, text: impl FnOnce(V) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), text)
}

#[cfg(test)]
mod tests;
