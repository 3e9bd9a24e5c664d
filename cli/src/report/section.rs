//! The section about one matrix.

use super::regret::{lost, times};
use super::{Matrix, bars, cell, grouped, histogram, scatter};
use crate::console::{duration, percent};
use maud::{Markup, html};
use sparseop::tuning::explain::size;

/// Anchor of a matrix within the page.
pub(super) fn anchor(index: usize) -> String {
    format!("matrix-{}", index + 1)
}

/// Draws the charts of one matrix, and the decision in words.
pub(super) fn draw(index: usize, matrix: &Matrix, open: bool) -> Markup {
    let points: Vec<_> = scatter::points(matrix).collect();
    html! {
        details class="matrix" open[open] {
            summary {
                h2 { (matrix.name) }
                span { (headline(matrix)) }
            }
            div class="inside" id=(anchor(index)) {
                (features(matrix))
                @if let Some(busy) = &matrix.busy { p class="busy" { (busy) } }
                div class="pair" {
                    (histogram::draw(matrix))
                    @if let Some(pattern) = &matrix.pattern { (pattern.draw(&matrix.name)) }
                }
                (bars::draw(matrix))
                div class="pair" {
                    (scatter::draw(&points))
                    (numbers(matrix))
                }
                figure class="wide decision" {
                    h4 { "The decision" }
                    pre class="scroll" tabindex="0" { (matrix.decision) }
                }
            }
        }
    }
}

/// The result in one line.
fn headline(matrix: &Matrix) -> Markup {
    let chosen = matrix.chosen();
    html! {
        (matrix.scalar)
        @if let Some(chosen) = chosen { " · " code { (chosen.name) } }
        @if let Some(time) = chosen.and_then(|run| run.time()) {
            " · " (duration(time)) @if !matrix.is_measured() { " predicted" }
        }
        @if let Some(ratio) = matrix.speed_up() {
            " · " (times(ratio)) " as fast as the best baseline"
        }
        @if let Some(regret) = matrix.quiet_regret() { " · " (lost(regret)) " lost" }
        @if matrix.busy.is_some() { " · busy machine" }
    }
}

fn features(matrix: &Matrix) -> Markup {
    let rows = &matrix.rows;
    // Records of a profile have only some of the statistics.
    let is_whole = !rows.histogram.classes().is_empty() || rows.nrows == 0;
    let least = if is_whole { rows.min.to_string() } else { String::new() };
    let half = is_whole.then(|| {
        let share = percent(rows.half_rows as f64 / rows.nrows.max(1) as f64);
        ("half of the entries", format!("in {share} of the rows"))
    });
    let features = [
        ("shape", format!("{} × {}", grouped(rows.nrows as u64), grouped(rows.ncols as u64))),
        ("entries", grouped(rows.nnz)),
        ("numbers", matrix.scalar.to_string()),
        (
            "row lengths",
            format!("{least} to {}, mean {:.1}", grouped(u64::from(rows.max)), rows.mean)
                .trim()
                .to_owned(),
        ),
        ("variation", format!("{:.2}", rows.cv)),
        ("empty rows", grouped(rows.empty_rows)),
        ("device", matrix.device.clone()),
    ];
    let measurement = matrix.measurement.iter().cloned();
    html! {
        dl {
            @for (name, value) in features.into_iter().chain(half).chain(measurement) {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

/// The times as numbers, for screen readers and copying.
fn numbers(matrix: &Matrix) -> Markup {
    let measured = matrix.is_measured();
    let mut runs: Vec<_> = matrix.runs.iter().filter(|run| run.time().is_some()).collect();
    runs.sort_by(|a, b| a.time().unwrap_or_default().total_cmp(&b.time().unwrap_or_default()));
    html! {
        @if !runs.is_empty() {
            figure class="numbers" {
                h4 { "In numbers" }
                div class="scroll" {
                    table {
                        thead {
                            tr {
                                th scope="col" { "plan" }
                                th scope="col" class="number" { "predicted" }
                                @if measured { th scope="col" class="number" { "measured" } }
                                th scope="col" class="number" { "bytes" }
                                th scope="col" class="number" { "roofline" }
                            }
                        }
                        tbody {
                            @for run in runs {
                                tr class=[run.chosen.then_some("chosen")] {
                                    th scope="row" { code { (run.name) } }
                                    td class="number" { (cell(run.predicted, duration)) }
                                    @if measured {
                                        td class="number" { (cell(run.measured, duration)) }
                                    }
                                    td class="number" { (cell(run.bytes, size)) }
                                    td class="number" { (cell(matrix.roofline(run), duration)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
