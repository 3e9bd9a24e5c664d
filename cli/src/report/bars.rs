//! Bar chart of the times of plans and baselines, fastest first, with the roofline.

use super::axis::{AxisScale, px, time_label};
use super::{Matrix, PlottedRun, cell};
use crate::console::duration;
use maud::{Markup, html};
use std::fmt::Write;

/// Width of the drawing in units, which are pixels if the page is wide enough.
const WIDTH: f64 = 1040.0;

/// Units from one bar to the next, and height of the bar itself.
const ROW: f64 = 23.0;
const BAR: f64 = 13.0;

/// Length of the roofline's mark in units.
const MARK: f64 = 19.0;

/// Top of the first bar's row.
const TOP: f64 = 26.0;

/// Height of the axis below the last bar.
const BOTTOM: f64 = 24.0;

/// Right edges of the columns of numbers: time, bytes per second, share of the roofline.
const COLUMNS: [f64; 3] = [WIDTH - 182.0, WIDTH - 88.0, WIDTH];

/// Width of the numbers on the right.
const NUMBERS: f64 = 276.0;

/// Width of a character of a name, and maximum number of characters shown.
const CHARACTER: f64 = 7.0;
const LONGEST_NAME: usize = 46;

/// Bars longer than this multiple of the shortest are cut off, so that the others stay
/// distinguishable.
const OVERLONG: f64 = 5.0;

/// Approximate number of ticks on the axis.
const TICKS: f64 = 5.0;

/// Draws the bars, a legend and the list of plans without a time.
pub(super) fn draw(matrix: &Matrix) -> Markup {
    let mut rows: Vec<(&PlottedRun, f64)> =
        matrix.runs.iter().filter_map(|run| Some((run, run.time()?))).collect();
    rows.sort_by(|a, b| a.1.total_cmp(&b.1));
    let title =
        if matrix.is_measured() { "Time of a product" } else { "Predicted time of a product" };
    html! {
        figure class="wide" {
            h4 { (title) }
            @if rows.is_empty() {
                p { "Nothing was timed." }
            } @else {
                (legend(matrix, &rows))
                (BarChart::new(matrix, rows).draw())
            }
            (untimed(matrix))
        }
    }
}

fn legend(matrix: &Matrix, rows: &[(&PlottedRun, f64)]) -> Markup {
    let any = |test: fn(&PlottedRun) -> bool| rows.iter().any(|row| test(row.0));
    html! {
        p class="legend" {
            @if any(|run| run.chosen) { span { i class="swatch chosen" {} "chosen plan" } }
            @if any(|run| run.format.is_some() && !run.chosen) {
                span { i class="swatch own" {} "other plans" }
            }
            @if any(|run| run.format.is_none()) { span { i class="swatch peer" {} "baselines" } }
            @if any(|run| run.measured.is_some() && run.predicted.is_some()) {
                span { i class="key" { "◆" } "predicted" }
            }
            @if let Some(bandwidth) = matrix.bandwidth {
                span {
                    i class="swatch line roofline" {}
                    "roofline: the plan's bytes at the measured copy bandwidth of "
                    (format!("{:.1}", bandwidth / 1e9)) " GB/s; data in a cache are faster"
                }
            }
        }
    }
}

/// Lists the plans without a bar and those that were not eligible, with the reasons.
fn untimed(matrix: &Matrix) -> Markup {
    let remarks: Vec<(&PlottedRun, &String)> =
        matrix.runs.iter().filter_map(|run| Some((run, run.remark.as_ref()?))).collect();
    html! {
        @if !remarks.is_empty() {
            ul class="remarks" {
                @for (run, remark) in remarks { li { code { (run.name) } ": " (remark) } }
            }
        }
    }
}

/// The rows and the layout of the chart.
struct BarChart<'a> {
    matrix: &'a Matrix,
    rows: Vec<(&'a PlottedRun, f64)>,
    scale: AxisScale,
    left: f64,
    bottom: f64,
}

impl<'a> BarChart<'a> {
    fn new(matrix: &'a Matrix, rows: Vec<(&'a PlottedRun, f64)>) -> Self {
        let longest = rows.iter().map(|(run, _)| run.name.chars().count()).max().unwrap_or(0);
        let left = (longest.min(LONGEST_NAME) + 1) as f64 * CHARACTER;
        let limit = rows.iter().map(|row| row.1).fold(f64::INFINITY, f64::min) * OVERLONG;
        let drawn =
            rows.iter().flat_map(|&(run, time)| [Some(time), matrix.roofline(run)]).flatten();
        let most = drawn.map(|time| time.min(limit)).fold(0.0, f64::max);
        let scale = AxisScale::linear((0.0, most), (left, WIDTH - NUMBERS));
        let bottom = TOP + rows.len() as f64 * ROW;
        Self { matrix, rows, scale, left, bottom }
    }

    fn draw(&self) -> Markup {
        let height = self.bottom + BOTTOM;
        let said = self.in_words();
        let tick_y = px(self.bottom + 16.0);
        let heads =
            [if self.matrix.is_measured() { "median" } else { "predicted" }, "GB/s", "of roofline"];
        html! {
            div class="scroll" {
                svg class="bars" role="img" aria-label=(said)
                    viewBox={ "0 0 " (WIDTH) " " (px(height)) } {
                    @for (x, head) in COLUMNS.iter().zip(heads) {
                        text class="head" x=(x) y=(TOP - 10.0) text-anchor="end" { (head) }
                    }
                    @for tick in self.scale.ticks(TICKS) {
                        @let x = self.scale.at(tick);
                        line class="grid" x1=(x) x2=(x) y1=(TOP) y2=(px(self.bottom)) {}
                        @if tick > 0.0 {
                            text class="tick" x=(x) y=(tick_y) text-anchor="middle" {
                                (time_label(tick))
                            }
                        } @else {
                            text class="tick" x=(x) y=(tick_y) text-anchor="middle" { "0" }
                        }
                    }
                    @for (i, &(run, time)) in self.rows.iter().enumerate() {
                        (self.row(i, run, time))
                    }
                    @if self.matrix.bandwidth.is_some() {
                        path class="roofline" d=(self.roofline()) {}
                    }
                }
            }
        }
    }

    /// Vertical middle of a row.
    fn middle(i: usize) -> f64 {
        TOP + (i as f64 + 0.5) * ROW
    }

    fn row(&self, i: usize, run: &PlottedRun, time: f64) -> Markup {
        let middle = Self::middle(i);
        let kind = match run {
            PlottedRun { chosen: true, .. } => "bar chosen",
            PlottedRun { format: Some(_), .. } => "bar own",
            _ => "bar peer",
        };
        let end = self.scale.at(time);
        let top = px(middle - BAR / 2.0);
        let rate = cell(run.bytes, |bytes| format!("{:.1}", bytes as f64 / time / 1e9));
        let share = cell(self.matrix.share(run, time), |share| share);
        let text = px(middle + 4.0);
        let cut = time > self.scale.to();
        let predicted = run.predicted.filter(|&p| run.measured.is_some() && p <= self.scale.to());
        html! {
            g {
                title { (run.name) ": " (duration(time)) }
                text class=(if run.chosen { "name chosen" } else { "name" }) x="0" y=(text) {
                    (shortened(&run.name))
                }
                rect class=(kind) x=(px(self.left)) y=(top) width=(px((end - self.left).max(1.0)))
                    height=(BAR) {}
                @if cut {
                    path class="cut" d={
                        "M" (px(end - 14.0)) " " (px(top + BAR + 2.0))
                        "l5 " (-BAR - 4.0) "m4 0l-5 " (BAR + 4.0)
                    } {}
                }
                @if let Some(predicted) = predicted {
                    @let x = self.scale.at(predicted);
                    path class="predicted" d={
                        "M" (px(x - 4.0)) " " (px(middle)) "l4 -4l4 4l-4 4z"
                    } {}
                }
                @for (x, number) in COLUMNS.iter().zip([duration(time), rate, share]) {
                    text class="number" x=(x) y=(text) text-anchor="end" { (number) }
                }
            }
        }
    }

    /// Draws a mark across every bar, at the time that memory needs for its bytes. No mark if that
    /// is off the axis or the bytes are not known.
    fn roofline(&self) -> String {
        let mut path = String::new();
        for (i, (run, _)) in self.rows.iter().enumerate() {
            if let Some(least) = self.matrix.roofline(run).filter(|&least| least <= self.scale.to())
            {
                let (x, from) = (self.scale.at(least), px(Self::middle(i) - MARK / 2.0));
                // Writing to a string does not fail.
                let _ = write!(path, "M{x} {from}v{MARK}");
            }
        }
        path
    }

    fn in_words(&self) -> String {
        let (first, least) = (self.rows[0].0, self.rows[0].1);
        let mut said = format!(
            "Bar chart of {} plans, fastest {} with {}",
            self.rows.len(),
            first.name,
            duration(least)
        );
        if let Some(chosen) = self.matrix.chosen().filter(|run| run.name != first.name)
            && let Some(time) = chosen.time()
        {
            said += &format!("; chosen {} with {}", chosen.name, duration(time));
        }
        said
    }
}

/// Cuts a name to the maximum length.
fn shortened(name: &str) -> String {
    if name.chars().count() <= LONGEST_NAME {
        return name.to_owned();
    }
    name.chars().take(LONGEST_NAME - 1).chain(['…']).collect()
}
