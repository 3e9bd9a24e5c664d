//! Regret: time of the chosen plan over that of the fastest.

use super::axis::{AxisScale, px};
use super::{Matrix, cell};
use maud::{Markup, html};
use statrs::statistics::{Data, OrderStatistics};
use std::collections::BTreeMap;

/// Size of the drawing in units, and margins of the plot for its labels.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 48.0;

/// Approximate number of ticks on an axis.
const TICKS: f64 = 5.0;

/// End of the axis if no matrix has regret.
const MIN_RANGE: f64 = 1.01;

/// Ratio beyond which the axis is logarithmic, so that one bad choice does not flatten the others.
const LINEAR_TO: f64 = 4.0;

/// The reported percentile.
const PERCENTILE: usize = 95;

/// Summary of ratios of times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ratios {
    pub(super) count: usize,
    pub(super) mean: f64,
    pub(super) p95: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Ratios {
    /// Summarises ratios. None if there are none.
    pub(super) fn of(ratios: impl Iterator<Item = f64>) -> Option<Self> {
        let ratios: Vec<f64> = ratios.collect();
        let mean = (ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len() as f64).exp();
        let least = ratios.iter().copied().reduce(f64::min)?;
        let most = ratios.iter().copied().reduce(f64::max)?;
        Some(Self {
            count: ratios.len(),
            mean,
            p95: Data::new(ratios).percentile(PERCENTILE),
            least,
            most,
        })
    }
}

/// Loss in per cent of the fastest time.
pub(super) fn lost(ratio: f64) -> String {
    format!("{:.1} %", (ratio - 1.0) * 100.0)
}

/// Text of a ratio of times.
pub(super) fn times(ratio: f64) -> String {
    format!("{ratio:.2}×")
}

/// Draws the regret of every matrix, least first. Empty for fewer than two matrices.
pub(super) fn curve(matrices: &[Matrix]) -> Markup {
    let mut regrets: Vec<(&Matrix, f64)> =
        matrices.iter().filter_map(|m| Some((m, m.regret()?))).collect();
    regrets.sort_by(|a, b| a.1.total_cmp(&b.1));
    let Some(all) = Ratios::of(regrets.iter().map(|r| r.1)).filter(|all| all.count > 1) else {
        return Markup::default();
    };
    let x = AxisScale::linear((0.0, regrets.len() as f64), (LEFT, WIDTH - RIGHT));
    let scale = if all.most > LINEAR_TO { AxisScale::logarithmic } else { AxisScale::linear };
    let y = scale((1.0, all.most.max(MIN_RANGE)), (HEIGHT - BOTTOM, TOP));
    let place = |(i, &(_, regret)): (usize, &(&Matrix, f64))| (x.at(i as f64 + 0.5), y.at(regret));
    let corners = regrets.iter().enumerate().map(place).map(|(x, y)| format!("{x},{y}"));
    let said = format!(
        "Regret of {} choices, sorted: geometric mean {}, {PERCENTILE}th percentile {}, worst {}",
        all.count,
        lost(all.mean),
        lost(all.p95),
        lost(all.most)
    );
    html! {
        figure class="regret" {
            h4 { "Regret of the choice" }
            p class="legend" {
                span { i class="swatch line mean" {} "geometric mean " (lost(all.mean)) }
                span { i class="swatch line p95" {} (PERCENTILE) "th percentile " (lost(all.p95)) }
                span { "worst " (lost(all.most)) }
            }
            svg role="img" aria-label=(said) viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } {
                (axes(&y))
                @for (class, ratio) in [("mean", all.mean), ("p95", all.p95)] {
                    @let at = y.at(ratio);
                    line class=(class) x1=(LEFT) x2=(WIDTH - RIGHT) y1=(at) y2=(at) {}
                }
                polyline class="curve" points=(corners.collect::<Vec<_>>().join(" ")) {}
                @for (i, entry) in regrets.iter().enumerate() {
                    @let (x, y) = place((i, entry));
                    circle class="regret" cx=(x) cy=(y) r="3.5" {
                        title { (entry.0.name) " in " (entry.0.scalar) ": " (lost(entry.1)) }
                    }
                }
            }
            figcaption {
                "Time of a product with the chosen plan over that with the fastest timed plan, for "
                (all.count) " choices, least first."
            }
        }
    }
}

fn axes(y: &AxisScale) -> Markup {
    let base = HEIGHT - BOTTOM;
    let middle = px((TOP + base) / 2.0);
    html! {
        @for tick in y.ticks(TICKS) {
            @let at = y.at(tick);
            line class="grid" x1=(LEFT) x2=(WIDTH - RIGHT) y1=(at) y2=(at) {}
            text class="tick" x=(LEFT - 6.0) y=(px(at + 4.0)) text-anchor="end" {
                (((tick - 1.0) * 1000.0).round() / 10.0) " %"
            }
        }
        line class="base" x1=(LEFT) x2=(WIDTH - RIGHT) y1=(base) y2=(base) {}
        text class="axis" x=(px((LEFT + WIDTH - RIGHT) / 2.0)) y=(HEIGHT - 14.0)
            text-anchor="middle" {
            "matrices, least regret first"
        }
        text class="axis" x="12" y=(middle) text-anchor="middle"
            transform={ "rotate(-90 12 " (middle) ")" } {
            "time lost"
        }
    }
}

/// Table of regret and speed-up by class and in total. Empty if nothing was timed.
pub(super) fn table(matrices: &[Matrix]) -> Markup {
    let mut classes: BTreeMap<&str, Vec<&Matrix>> = BTreeMap::new();
    for matrix in matrices.iter().filter(|m| m.is_measured()) {
        classes.entry(&matrix.class).or_default().push(matrix);
    }
    if classes.is_empty() {
        return Markup::default();
    }
    let all: Vec<&Matrix> = classes.values().flatten().copied().collect();
    html! {
        div class="scroll" {
            table class="classes" {
                caption { "By class" }
                thead {
                    tr {
                        th rowspan="2" scope="col" { "class" }
                        th rowspan="2" scope="col" class="number" { "matrices" }
                        th colspan="4" scope="colgroup" { "time lost by the choice" }
                        th colspan="2" scope="colgroup" { "speed-up over the best baseline" }
                    }
                    tr {
                        @for head in ["geometric mean", "95th percentile", "worst"] {
                            th scope="col" class="number" { (head) }
                        }
                        th scope="col" { "worst on" }
                        @for head in ["geometric mean", "least"] {
                            th scope="col" class="number" { (head) }
                        }
                    }
                }
                tbody { @for (class, matrices) in &classes { tr { (row(class, matrices)) } } }
                @if classes.len() > 1 { tfoot { tr { (row("all", &all)) } } }
            }
        }
    }
}

fn row(class: &str, matrices: &[&Matrix]) -> Markup {
    let regret = Ratios::of(matrices.iter().filter_map(|m| m.regret()));
    let speed_up = Ratios::of(matrices.iter().filter_map(|m| m.speed_up()));
    let worst =
        matrices.iter().filter_map(|m| Some((m, m.regret()?))).max_by(|a, b| a.1.total_cmp(&b.1));
    let of = |ratios: Option<Ratios>, part: fn(Ratios) -> String| cell(ratios, part);
    html! {
        th scope="row" { (class) }
        td class="number" { (matrices.len()) }
        td class="number" { (of(regret, |r| lost(r.mean))) }
        td class="number" { (of(regret, |r| lost(r.p95))) }
        td class="number" { (of(regret, |r| lost(r.most))) }
        td { (cell(worst.filter(|w| w.1 > 1.0), |w| format!("{} in {}", w.0.name, w.0.scalar))) }
        td class="number" { (of(speed_up, |r| times(r.mean))) }
        td class="number" { (of(speed_up, |r| times(r.least))) }
    }
}
