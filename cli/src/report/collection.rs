//! Summary of all matrices.

use super::regret::{self, Ratios, lost, times};
use super::section::anchor;
use super::{Matrix, cell, grouped, scatter};
use crate::console::duration;
use maud::{Markup, html};

/// Draws the summary of several matrices, or only the headline numbers of a single one.
pub(super) fn draw(matrices: &[Matrix]) -> Markup {
    let points: Vec<_> = matrices.iter().flat_map(scatter::points).collect();
    html! {
        (cards(matrices))
        @if matrices.len() > 1 {
            section class="collection" {
                h2 { "All matrices" }
                div class="pair" {
                    (regret::curve(matrices))
                    (scatter::draw(&points))
                }
                (regret::table(matrices))
                (index(matrices))
            }
        }
    }
}

/// A headline number and its meaning.
struct Card {
    value: String,
    meaning: String,
    /// True if the value is a plan, which takes more space.
    is_plan: bool,
}

fn cards(matrices: &[Matrix]) -> Markup {
    let card = |value, meaning: &str| Card { value, meaning: meaning.to_owned(), is_plan: false };
    let speed_up = Ratios::of(matrices.iter().filter_map(Matrix::speed_up));
    let regret = Ratios::of(matrices.iter().filter_map(Matrix::quiet_regret));
    let share = |m: &Matrix| {
        let chosen = m.chosen().filter(|_| m.busy.is_none())?;
        Some(m.roofline(chosen)? / chosen.measured?)
    };
    let roofline = Ratios::of(matrices.iter().filter_map(share));
    let mut cards = Vec::new();
    if let [one] = matrices
        && let Some(chosen) = one.chosen()
    {
        cards.push(Card { is_plan: true, ..card(chosen.name.clone(), "chosen plan") });
        if let Some(time) = chosen.time() {
            let meaning =
                if chosen.measured.is_some() { "a product" } else { "a product, predicted" };
            cards.push(card(duration(time), meaning));
        }
    }
    let mean = if matrices.len() > 1 { ", geometric mean" } else { "" };
    if let Some(r) = speed_up {
        let least =
            if r.count > 1 { format!(" (least {})", times(r.least)) } else { String::new() };
        cards.push(card(times(r.mean), &format!("speed-up over the best baseline{mean}{least}")));
    }
    if let Some(r) = regret {
        let worst = if r.count > 1 { format!(" (worst {})", lost(r.most)) } else { String::new() };
        cards
            .push(card(lost(r.mean), &format!("lost against the fastest plan timed{mean}{worst}")));
    }
    // The bandwidth of the memory is no bound for data in a cache.
    if let Some(r) = roofline.filter(|r| r.most <= 1.0) {
        cards.push(card(format!("{:.0} %", r.mean * 100.0), &format!("of the roofline{mean}")));
    }
    html! {
        @if !cards.is_empty() {
            div class="cards" {
                @for card in cards {
                    div class=(if card.is_plan { "card plan" } else { "card" }) {
                        strong { (card.value) }
                        span { (card.meaning) }
                    }
                }
            }
        }
    }
}

/// Table of the matrices, with links to their sections.
fn index(matrices: &[Matrix]) -> Markup {
    let measured = matrices.iter().any(Matrix::is_measured);
    html! {
        div class="scroll long" tabindex="0" {
            table class="index" {
                caption { "By matrix" }
                thead {
                    tr {
                        @for head in ["matrix", "numbers", "chosen plan"] {
                            th scope="col" { (head) }
                        }
                        @for head in ["rows", "entries"] {
                            th scope="col" class="number" { (head) }
                        }
                        th scope="col" class="number" {
                            @if measured { "a product" } @else { "predicted" }
                        }
                        @if measured {
                            @for head in ["speed-up", "time lost"] {
                                th scope="col" class="number" { (head) }
                            }
                        }
                    }
                }
                tbody {
                    @for (i, matrix) in matrices.iter().enumerate() {
                        tr {
                            th scope="row" { a href={ "#" (anchor(i)) } { (matrix.name) } }
                            td { (matrix.scalar) }
                            td { code { (cell(matrix.chosen(), |run| run.name.clone())) } }
                            td class="number" { (grouped(matrix.rows.nrows as u64)) }
                            td class="number" { (grouped(matrix.rows.nnz)) }
                            td class="number" {
                                (cell(matrix.chosen().and_then(|run| run.time()), duration))
                            }
                            @if measured {
                                td class="number" { (cell(matrix.speed_up(), times)) }
                                td class="number" { (cell(matrix.quiet_regret(), lost)) }
                            }
                        }
                    }
                }
            }
        }
    }
}
