//! Scatter plot of predicted against measured times.

use super::axis::{AxisScale, px, time_label};
use super::{Matrix, PlottedRun};
use crate::console::duration;
use maud::{Markup, html};
use sparseop::formats::FormatKind;
use std::fmt::Write;

/// Units along a side, and margins of the plot for its labels. Half of the last label extends to
/// the right of the plot.
const SIDE: f64 = 420.0;
const LEFT: f64 = 66.0;
const BOTTOM: f64 = 48.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 10.0;

/// Margin around the outermost points, as a factor.
const ROOM: f64 = 1.3;

/// Approximate number of ticks on an axis.
const TICKS: f64 = 5.0;

/// Factor of the lines beside the diagonal.
const BAND: f64 = 2.0;

/// Number of points above which they are drawn together and without names, for a small page.
const NAMED: usize = 400;

/// Number of colours in the style sheet. Formats take them in order.
const COLOURS: usize = 8;

/// A point: predicted and measured seconds of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point<'a> {
    predicted: f64,
    measured: f64,
    format: FormatKind,
    matrix: &'a str,
    run: &'a PlottedRun,
}

/// Points of a matrix: the runs with both times.
pub(super) fn points(matrix: &Matrix) -> impl Iterator<Item = Point<'_>> {
    matrix.runs.iter().filter_map(|run| {
        let (predicted, measured, format) = (run.predicted?, run.measured?, run.format?);
        Some(Point { predicted, measured, format, matrix: &matrix.name, run })
    })
}

/// Draws the points with the diagonal. Empty without points.
pub(super) fn draw(points: &[Point<'_>]) -> Markup {
    let times = || points.iter().flat_map(|p| [p.predicted, p.measured]);
    let (least, most) =
        (times().fold(f64::INFINITY, f64::min) / ROOM, times().fold(0.0, f64::max) * ROOM);
    if points.is_empty() {
        return Markup::default();
    }
    let x = AxisScale::logarithmic((least, most), (LEFT, SIDE - RIGHT));
    let y = AxisScale::logarithmic((least, most), (SIDE - BOTTOM, TOP));
    let plans = if points.len() == 1 {
        "1 product".to_owned()
    } else {
        format!("{} products", points.len())
    };
    let within =
        points.iter().filter(|p| (p.measured / p.predicted).ln().abs() <= BAND.ln()).count();
    let said =
        format!("Predicted against measured times of {plans}; {within} within a factor of {BAND}");
    let formats =
        || FormatKind::ALL.iter().filter(|&&kind| points.iter().any(|p| p.format == kind));
    html! {
        figure class="scatter" {
            h4 { "Predicted against measured" }
            p class="legend" {
                @for kind in formats() {
                    span { i class={ "swatch dot " (colour(*kind)) } {} (kind) }
                }
            }
            svg role="img" aria-label=(said) viewBox={ "0 0 " (SIDE) " " (SIDE) } {
                (grid(&x, &y))
                (diagonals((least, most), &x, &y))
                @for kind in formats() {
                    @let of_kind = || points.iter().filter(|p| p.format == *kind);
                    @if points.len() <= NAMED {
                        g class={ "points " (colour(*kind)) } {
                            @for p in of_kind() {
                                circle class=[p.run.chosen.then_some("chosen")]
                                    cx=(x.at(p.predicted)) cy=(y.at(p.measured)) r="4" {
                                    title {
                                        (p.matrix) ", " (p.run.name) ": "
                                        (duration(p.predicted)) " predicted, "
                                        (duration(p.measured)) " measured"
                                    }
                                }
                            }
                        }
                    } @else {
                        path class={ "many " (colour(*kind)) } d=(dots(of_kind(), &x, &y)) {}
                    }
                }
            }
            figcaption {
                (within) " of " (plans) " within a factor of " (BAND) " (dashed). "
                "Above the diagonal, slower than predicted."
            }
        }
    }
}

/// CSS class with the colour of a format.
fn colour(kind: FormatKind) -> String {
    let place = FormatKind::ALL.iter().position(|&other| other == kind).unwrap_or_default();
    format!("series-{}", place % COLOURS)
}

fn grid(x: &AxisScale, y: &AxisScale) -> Markup {
    let (right, bottom) = (SIDE - RIGHT, SIDE - BOTTOM);
    let middle = px((TOP + bottom) / 2.0);
    html! {
        @for tick in x.ticks(TICKS) {
            @let (across, down) = (x.at(tick), y.at(tick));
            line class="grid" x1=(across) x2=(across) y1=(TOP) y2=(bottom) {}
            line class="grid" x1=(LEFT) x2=(right) y1=(down) y2=(down) {}
            text class="tick" x=(across) y=(bottom + 16.0) text-anchor="middle" {
                (time_label(tick))
            }
            text class="tick" x=(LEFT - 6.0) y=(px(down + 4.0)) text-anchor="end" {
                (time_label(tick))
            }
        }
        rect class="frame" x=(LEFT) y=(TOP) width=(right - LEFT) height=(bottom - TOP) {}
        text class="axis" x=(px((LEFT + right) / 2.0)) y=(SIDE - 8.0) text-anchor="middle" {
            "predicted"
        }
        text class="axis" x="12" y=(middle) text-anchor="middle"
            transform={ "rotate(-90 12 " (middle) ")" } {
            "measured"
        }
    }
}

/// Draws the diagonal, and the lines at a factor from it.
fn diagonals((least, most): (f64, f64), x: &AxisScale, y: &AxisScale) -> Markup {
    let near = most / BAND > least;
    html! {
        line class="diagonal" x1=(x.at(least)) y1=(y.at(least)) x2=(x.at(most)) y2=(y.at(most)) {}
        @if near {
            line class="band" x1=(x.at(least)) y1=(y.at(least * BAND)) x2=(x.at(most / BAND))
                y2=(y.at(most)) {}
            line class="band" x1=(x.at(least * BAND)) y1=(y.at(least)) x2=(x.at(most))
                y2=(y.at(most / BAND)) {}
        }
    }
}

/// Draws all points as one path of lines without length, whose round ends are the dots.
fn dots<'a>(points: impl Iterator<Item = &'a Point<'a>>, x: &AxisScale, y: &AxisScale) -> String {
    points.fold(String::new(), |mut path, p| {
        // Writing to a string does not fail.
        let _ = write!(path, "M{} {}h0", x.at(p.predicted), y.at(p.measured));
        path
    })
}
