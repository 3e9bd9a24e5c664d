//! Distributions of row lengths and orders of rows, drawn by a seed of `random`.

use super::random::{Random, Shuffle};
use crate::{Error, memory};
use rayon::prelude::*;
use statrs::function::erf::erf_inv;
use std::fmt::{Display, Formatter};

/// Number of quantiles from which the mean of a law is computed if there are more strata.
const POINTS: usize = 1 << 13;
/// Minimum number of quantiles of runs or periods, so that they include the tail of a law.
const MIN_STRATA: f64 = 48.0;

/// A distribution of row lengths, up to a common factor.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LengthLaw {
    /// All rows of equal length.
    Constant,
    /// Uniform in 1 ± `spread`.
    Uniform { spread: f64 },
    /// Normal with mean 1, cut off at 0.
    Normal { deviation: f64 },
    /// The exponential of a normal number.
    Lognormal { sigma: f64 },
    /// Pareto: longer than l with probability l^−`exponent`, up to a cut-off.
    Pareto { exponent: f64 },
    /// Short rows, and a `share` of rows that are `factor` times as long.
    Bimodal { share: f64, factor: f64 },
    /// Short rows, and a few that are `factor` times as long.
    Huge { rows: usize, share: f64, factor: f64 },
    /// A `share` of empty rows; the others by another law.
    Empty { share: f64, rest: Box<Self> },
    /// A `share` of rows by one law; the others by another, `factor` times as long.
    Mixture { share: f64, first: Box<Self>, factor: f64, second: Box<Self> },
}

impl LengthLaw {
    /// Draws a law. For [`LengthLaw::Huge`], share and factor must still be [set](Self::fit).
    pub(super) fn draw(random: &mut Random) -> Self {
        match random.below(10) {
            0 => {
                Self::Huge { rows: random.spread_over(1.0, 50.0) as usize, share: 0.0, factor: 0.0 }
            }
            1 | 2 => Self::Empty {
                share: random.between(0.1, 0.95),
                rest: Box::new(Self::draw_simple(random.below(6), random)),
            },
            3 => Self::Mixture {
                share: random.between(0.2, 0.9),
                first: Box::new(Self::draw_simple(random.below(3), random)),
                factor: random.spread_over(2.0, 30.0),
                second: Box::new(Self::draw_simple(random.below(6), random)),
            },
            _ => Self::draw_simple(random.below(6), random),
        }
    }

    /// Law of a single component, by number.
    fn draw_simple(number: usize, random: &mut Random) -> Self {
        match number {
            0 => Self::Constant,
            1 => Self::Uniform { spread: random.between(0.05, 1.0) },
            2 => Self::Normal { deviation: random.between(0.05, 0.6) },
            3 => Self::Lognormal { sigma: random.between(0.2, 1.6) },
            4 => Self::Pareto { exponent: random.between(0.9, 2.6) },
            _ => Self::Bimodal {
                share: random.spread_over(0.0005, 0.03),
                factor: random.spread_over(5.0, 500.0),
            },
        }
    }

    /// Share of rows that are not empty by design.
    pub(super) fn filled(&self) -> f64 {
        match self {
            Self::Empty { share, .. } => 1.0 - share,
            _ => 1.0,
        }
    }

    /// Sets the share of huge rows among `nrows` and their length. `mean` is the mean length, and
    /// `huge` returns that of huge rows.
    pub(super) fn fit(&mut self, nrows: usize, mean: f64, huge: impl FnOnce(usize) -> f64) {
        if let Self::Huge { rows, share, factor } = self {
            *rows = (*rows).min(nrows.div_ceil(20));
            *share = *rows as f64 / nrows as f64;
            *factor = (huge(*rows) / mean).max(1.0);
        }
    }

    /// Length at the quantile `u`, in `(0, 1)`, up to the common factor.
    fn quantile(&self, u: f64) -> f64 {
        let normal = |u: f64| std::f64::consts::SQRT_2 * erf_inv(2.0 * u - 1.0);
        match self {
            Self::Constant => 1.0,
            Self::Uniform { spread } => 1.0 + spread * (2.0 * u - 1.0),
            Self::Normal { deviation } => (1.0 + deviation * normal(u)).max(0.0),
            Self::Lognormal { sigma } => (sigma * normal(u)).exp(),
            Self::Pareto { exponent } => (1.0 - u).powf(-1.0 / exponent),
            Self::Bimodal { share, factor } | Self::Huge { share, factor, .. } => {
                if u < 1.0 - share { 1.0 } else { *factor }
            }
            Self::Empty { share, .. } if u < *share => 0.0,
            Self::Empty { share, rest } => rest.quantile((u - share) / (1.0 - share)),
            Self::Mixture { share, first, .. } if u < *share => first.quantile(u / share),
            Self::Mixture { share, factor, second, .. } => {
                factor * second.quantile((u - share) / (1.0 - share))
            }
        }
    }

    /// Least number of strata that contain every kind of row of the law.
    fn least_strata(&self) -> f64 {
        match self {
            Self::Bimodal { share, .. } | Self::Huge { share, .. } => 1.0 / share,
            Self::Empty { share, rest } | Self::Mixture { share, second: rest, .. } => {
                rest.least_strata() / (1.0 - share)
            }
            _ => MIN_STRATA,
        }
    }
}

impl Display for LengthLaw {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Constant => write!(f, "constant"),
            Self::Uniform { spread } => write!(f, "uniform, ± {:.0} %", 100.0 * spread),
            Self::Normal { deviation } => write!(f, "normal, deviation {:.0} %", 100.0 * deviation),
            Self::Lognormal { sigma } => write!(f, "lognormal, sigma {sigma:.2}"),
            Self::Pareto { exponent } => write!(f, "power law, exponent {exponent:.2}"),
            Self::Bimodal { share, factor } => {
                write!(f, "bimodal, {:.2} % of the rows {factor:.0} times as long", 100.0 * share)
            }
            Self::Huge { rows, factor, .. } => {
                write!(f, "constant but for {rows} huge, {factor:.0} times as long")
            }
            Self::Empty { share, rest } => {
                write!(f, "{:.0} % empty, the others {rest}", 100.0 * share)
            }
            Self::Mixture { share, first, factor, second } => {
                let share = 100.0 * share;
                write!(
                    f,
                    "mixed, {share:.0} % {first}, the others {factor:.1} times as long and {second}"
                )
            }
        }
    }
}

/// Order of rows of different lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LengthOrder {
    /// As drawn.
    Drawn,
    /// Shortest first.
    Ascending,
    /// Longest first.
    Descending,
    /// Runs of consecutive rows of the same length; `rows` is the length of a run, which
    /// [`fit`](Self::fit) adjusts.
    Runs { rows: usize },
    /// The same lengths repeat after `rows` rows.
    Periodic { rows: usize },
}

impl LengthOrder {
    /// Draws an order.
    pub(super) fn draw(random: &mut Random) -> Self {
        match random.below(8) {
            0 => Self::Ascending,
            1 => Self::Descending,
            2 => Self::Runs { rows: random.spread_over(4.0, 20_000.0) as usize },
            3 => Self::Periodic { rows: random.spread_over(2.0, 2000.0) as usize },
            _ => Self::Drawn,
        }
    }

    /// Shortens runs, and lengthens periods, until they contain every kind of row of the law.
    pub(super) fn fit(&mut self, law: &LengthLaw, nrows: usize) {
        // Rounding must not leave a share of 1/n without its row.
        let least = (law.least_strata() - 1e-6).ceil() as usize;
        match self {
            Self::Runs { rows } => *rows = (*rows).min(nrows / least).max(1),
            Self::Periodic { rows } => *rows = (*rows).max(least).min(nrows),
            Self::Drawn | Self::Ascending | Self::Descending => {}
        }
    }

    /// Number of different quantiles; each is that of equally many rows.
    fn strata(self, nrows: usize) -> usize {
        match self {
            Self::Runs { rows } => nrows / rows,
            Self::Periodic { rows } => rows,
            Self::Drawn | Self::Ascending | Self::Descending => nrows,
        }
    }
}

impl Display for LengthOrder {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Drawn => write!(f, "in no order"),
            Self::Ascending => write!(f, "shortest first"),
            Self::Descending => write!(f, "longest first"),
            Self::Runs { rows } => write!(f, "in runs of {rows} alike"),
            Self::Periodic { rows } => write!(f, "with a period of {rows}"),
        }
    }
}

/// Lengths of `nrows` rows with `total` entries, as nearly as rounded lengths allow, none longer
/// than `longest`. `nrows * longest` is at least `total`.
///
/// # Errors
///
/// [`Error::HostMemory`].
pub(super) fn lengths(
    law: &LengthLaw,
    order: LengthOrder,
    nrows: usize,
    total: usize,
    longest: usize,
    seed: u64,
) -> Result<Vec<u32>, Error> {
    let strata = order.strata(nrows);
    let factor = common_factor(law, strata, total as f64 / nrows as f64, longest as f64)?;
    let shuffle = Shuffle::below(seed, strata);
    let length = |row: usize| {
        let stratum = match order {
            LengthOrder::Drawn => shuffle.of(row as u64),
            LengthOrder::Ascending => row as u64,
            LengthOrder::Descending => (nrows - 1 - row) as u64,
            LengthOrder::Runs { .. } => {
                shuffle.of((row as u128 * strata as u128 / nrows as u128) as u64)
            }
            LengthOrder::Periodic { rows } => shuffle.of((row % rows) as u64),
        };
        scaled(law.quantile((stratum as f64 + 0.5) / strata as f64), factor, longest as f64) as u32
    };
    let mut lengths = memory::collected(nrows, length)?;
    // The quantiles of a mixture are not monotonic where one law ends and the other begins.
    if matches!(order, LengthOrder::Ascending | LengthOrder::Descending) {
        lengths.par_sort_unstable();
    }
    if order == LengthOrder::Descending {
        lengths.reverse();
    }
    Ok(lengths)
}

/// Length rounded to an integer of at most `longest`.
fn scaled(quantile: f64, factor: f64, longest: f64) -> f64 {
    (quantile * factor).round().min(longest)
}

/// Factor by which rows have a mean length of `mean` after rounding and cutting off.
fn common_factor(law: &LengthLaw, strata: usize, mean: f64, longest: f64) -> Result<f64, Error> {
    // Quantile and weight. If there are too many strata to evaluate all, those of the longest rows
    // are sampled more densely.
    let points: Vec<(f64, f64)> = if strata <= 2 * POINTS {
        let all = (0..strata)
            .map(|k| (law.quantile((k as f64 + 0.5) / strata as f64), 1.0 / strata as f64));
        memory::listed(all)?
    } else {
        let top = 1.0 - 0.5 / strata as f64;
        let point = |k| {
            let t: f64 = 1.0 - (k as f64 + 0.5) / POINTS as f64;
            (law.quantile((1.0 - t.powi(4)).min(top)), 4.0 * t.powi(3) / POINTS as f64)
        };
        memory::listed((0..POINTS).map(point))?
    };
    let found =
        |factor| points.iter().map(|&(q, weight)| weight * scaled(q, factor, longest)).sum::<f64>();
    // Binary logarithms: a length is below 2^32, a quantile is 0 or above 2^-32.
    let (mut low, mut high) = (-32.0f64, 64.0f64);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if found(middle.exp2()) < mean { low = middle } else { high = middle }
    }
    let [below, above] = [low.exp2(), high.exp2()];
    Ok(if mean - found(below) < found(above) - mean { below } else { above })
}
