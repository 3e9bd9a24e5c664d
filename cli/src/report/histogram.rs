//! Histogram of row lengths: rows and entries by length, and the thresholds of HYB and JDS.

use super::axis::{AxisScale, px};
use super::{Matrix, grouped};
use crate::console::percent;
use maud::{Markup, html};
use sparseop::analysis::{Bin, Histogram};
use sparseop::formats::jds::{JdsLayout, Sectioning};
use sparseop::formats::{Costs, hyb, jds};
use sparseop::{Plan, ScalarKind};

/// Size of the drawing in units, and margins of the plot for its labels.
const WIDTH: f64 = 680.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = 8.0;
const TOP: f64 = 24.0;

/// Units below the plot, for upright and for slanted labels.
const BOTTOM: (f64, f64) = (44.0, 74.0);

/// Maximum number of bins.
const BINS: usize = 24;

/// Share of a bin's width that its two bars take together.
const FILLED: f64 = 0.8;

/// Width of a character of a label below a bar.
const CHARACTER: f64 = 7.0;

/// Number of boundaries above which they are drawn thinner, so that the bars stay visible.
const CROWDED: usize = 24;

/// Approximate number of ticks on the axis.
const TICKS: f64 = 5.0;

/// Minimum height of a bar that is not empty.
const MIN: f64 = 1.5;

/// Thresholds of HYB and of JDS with sections.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Thresholds {
    /// Maximum number of entries of a row in the ELL part of HYB.
    ell_width: u32,
    /// The plan with this width.
    hyb: Plan,
    /// Length of the longest row of every JDS section, longest section first.
    sections: Vec<u32>,
    /// The plan with these sections.
    jds: Plan,
}

impl Thresholds {
    /// Thresholds of the first HYB and the first sectioned JDS among `plans`, which are ordered
    /// best first. If there is none, the best ones by `costs`.
    pub(crate) fn of<'a>(
        plans: impl Iterator<Item = &'a Plan> + Clone,
        histogram: &Histogram,
        costs: Costs<'_>,
        scalar: ScalarKind,
    ) -> Self {
        let hybrid = plans
            .clone()
            .find_map(|plan| if let Plan::Hyb(plan) = plan { Some(*plan) } else { None });
        let best = || hyb::HybPlan::new(hyb::Width::Fixed(hyb::fastest(histogram, costs)));
        let hybrid = hybrid.unwrap_or_else(best);
        let sectioned = plans.into_iter().find_map(|plan| match plan {
            Plan::Jds(plan) if matches!(plan.layout, JdsLayout::Sections(..)) => Some(*plan),
            _ => None,
        });
        let sectioned = sectioned.unwrap_or(jds::JdsPlan {
            layout: JdsLayout::Sections(Sectioning::by_costs(costs), jds::Launches::default()),
            tail: None,
        });
        Self {
            ell_width: hybrid.width.resolve(histogram, scalar),
            hyb: Plan::Hyb(hybrid),
            sections: sectioned.section_widths(histogram),
            jds: Plan::Jds(sectioned),
        }
    }
}

/// Draws the histogram. Empty if the row lengths are not known.
pub(super) fn draw(matrix: &Matrix) -> Markup {
    let bins = matrix.rows.histogram.bins(BINS);
    if bins.is_empty() {
        return Markup::default();
    }
    let chart = HistogramChart::new(&bins, matrix);
    let rows = &matrix.rows;
    let said = format!(
        "Histogram of row lengths from {} to {}, mean {:.1}, in {} bins",
        rows.min,
        rows.max,
        rows.mean,
        bins.len()
    );
    html! {
        figure class="lengths" {
            h4 { "Row lengths" }
            p class="legend" {
                span { i class="swatch rows" {} "share of the rows" }
                span { i class="swatch entries" {} "share of the entries" }
                @if let Some(at) = &matrix.thresholds {
                    span {
                        i class="swatch line ell" {}
                        "ELL width " (at.ell_width) " of " code { (at.hyb) }
                    }
                    span {
                        i class="swatch line section" {}
                        (sections_in_words(at)) " of " code { (at.jds) }
                    }
                }
            }
            svg role="img" aria-label=(said) viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } {
                (chart.draw())
                @if let Some(at) = &matrix.thresholds { (chart.thresholds(at)) }
            }
        }
    }
}

fn sections_in_words(at: &Thresholds) -> String {
    match at.sections.len() {
        1 => "one section".to_owned(),
        n => format!("boundaries of the {n} sections"),
    }
}

/// The bins and the layout of the chart.
struct HistogramChart<'a> {
    bins: &'a [Bin],
    rows: f64,
    entries: f64,
    /// True if upright labels below the bars would touch.
    slanted: bool,
    /// Vertical position of the bars' base.
    base: f64,
    y: AxisScale,
    step: f64,
}

impl<'a> HistogramChart<'a> {
    fn new(bins: &'a [Bin], matrix: &Matrix) -> Self {
        let (rows, entries) = (matrix.rows.nrows.max(1) as f64, matrix.rows.nnz.max(1) as f64);
        let shares =
            bins.iter().map(|bin| (bin.rows as f64 / rows).max(bin.entries as f64 / entries));
        let step = (WIDTH - LEFT - RIGHT) / bins.len() as f64;
        let longest = bins.iter().map(|bin| label(bin).chars().count()).max().unwrap_or(0);
        let slanted = longest as f64 * CHARACTER > step;
        let base = HEIGHT - if slanted { BOTTOM.1 } else { BOTTOM.0 };
        let y = AxisScale::linear((0.0, shares.fold(0.0, f64::max)), (base, TOP));
        Self { bins, rows, entries, slanted, base, y, step }
    }

    /// Left edge of a bin.
    fn left(&self, bin: usize) -> f64 {
        LEFT + bin as f64 * self.step
    }

    fn draw(&self) -> Markup {
        let base = self.base;
        let axis = px(LEFT + (WIDTH - LEFT - RIGHT) / 2.0);
        html! {
            @for tick in self.y.ticks(TICKS) {
                @let at = self.y.at(tick);
                line class="grid" x1=(LEFT) x2=(WIDTH - RIGHT) y1=(at) y2=(at) {}
                text class="tick" x=(LEFT - 6.0) y=(px(at + 4.0)) text-anchor="end" {
                    (tick_label(tick))
                }
            }
            @for (i, bin) in self.bins.iter().enumerate() { (self.bin(i, bin)) }
            line class="base" x1=(LEFT) x2=(WIDTH - RIGHT) y1=(base) y2=(base) {}
            (self.labels())
            text class="axis" x=(axis) y=(HEIGHT - 6.0) text-anchor="middle" { "entries in a row" }
        }
    }

    fn bin(&self, i: usize, bin: &Bin) -> Markup {
        let width = self.step * FILLED / 2.0;
        let left = self.left(i) + self.step * (1.0 - FILLED) / 2.0;
        let [rows, entries] = [bin.rows as f64 / self.rows, bin.entries as f64 / self.entries];
        let bar = |class: &str, x: f64, share: f64| {
            let base = self.base;
            let height = (base - self.y.at(share)).max(if share > 0.0 { MIN } else { 0.0 });
            html! {
                rect class=(class) x=(px(x)) y=(px(base - height)) width=(px(width))
                    height=(px(height)) {}
            }
        };
        html! {
            g class="bin" {
                title {
                    "rows of " (label(bin)) ": " (grouped(bin.rows)) " (" (percent(rows))
                    "), with " (grouped(bin.entries)) " entries ("
                    (percent(entries)) ")"
                }
                (bar("rows", left, rows))
                (bar("entries", left + width, entries))
            }
        }
    }

    /// The lengths below the bars, slanted if they would touch.
    fn labels(&self) -> Markup {
        let y = self.base + if self.slanted { 12.0 } else { 16.0 };
        html! {
            @for (i, bin) in self.bins.iter().enumerate() {
                @let x = px(self.left(i) + self.step / 2.0);
                @if self.slanted {
                    text class="tick" x=(x) y=(y) text-anchor="end"
                        transform={ "rotate(-40 " (x) " " (y) ")" } {
                        (label(bin))
                    }
                } @else {
                    text class="tick" x=(x) y=(y) text-anchor="middle" { (label(bin)) }
                }
            }
        }
    }

    /// Position behind the rows of at most `length` entries.
    fn after(&self, length: u32) -> f64 {
        let before = self.bins.partition_point(|bin| bin.to <= length);
        let inside = self.bins.get(before).filter(|bin| bin.from <= length);
        let part = inside
            .map_or(0.0, |bin| f64::from(length - bin.from + 1) / f64::from(bin.to - bin.from + 1));
        px(LEFT + (before as f64 + part) * self.step)
    }

    fn thresholds(&self, at: &Thresholds) -> Markup {
        let longest = self.bins.last().map_or(0, |bin| bin.to);
        let mut boundaries = at.sections.clone();
        boundaries.retain(|&width| width < longest);
        boundaries.dedup();
        let class = if boundaries.len() > CROWDED { "section crowded" } else { "section" };
        let base = self.base;
        let ell = self.after(at.ell_width);
        html! {
            @for width in boundaries {
                @let x = self.after(width);
                line class=(class) x1=(x) x2=(x) y1=(TOP) y2=(base) {
                    title {
                        "Section boundary of " (at.jds) ": rows of more than " (width) " entries"
                    }
                }
            }
            line class="ell" x1=(ell) x2=(ell) y1=(TOP - 6.0) y2=(base) {
                title {
                    (at.hyb) " stores " (at.ell_width) " entries of a row in ELL, the rest in COO"
                }
            }
            text class="ell" x=(ell) y=(TOP - 10.0)
                text-anchor=(if ell > WIDTH / 2.0 { "end" } else { "start" }) {
                "ELL width " (at.ell_width)
            }
        }
    }
}

/// Label of a bin: its lengths.
fn label(bin: &Bin) -> String {
    if bin.from == bin.to { bin.from.to_string() } else { format!("{}–{}", bin.from, bin.to) }
}

/// Label of a share on the axis, in per cent.
fn tick_label(share: f64) -> String {
    let percent = (share * 1000.0).round() / 10.0;
    format!("{percent} %")
}
