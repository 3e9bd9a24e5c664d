//! Width of the ELL part of a HYB: published rules and one of this library, all functions of the
//! row-length histogram alone.

use crate::ScalarKind;
use crate::analysis::Histogram;
use crate::formats::{Costs, KernelCosts, Target, Work, coo};
use std::fmt::{self, Display};

/// Default cost of a COO entry, in ELL slots: the bytes of the one over those of the other, rounded
/// up for the row search.
const DEFAULT_TAIL_SLOTS: f64 = 2.0;

/// Width of the ELL part of a HYB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// A fixed number of entries per row; Ginkgo's column limit.
    Fixed(u32),
    /// Computed by a rule.
    Rule(Rule),
}

impl Width {
    /// Number of entries per row, for rows of these lengths and values of this type.
    pub fn resolve(self, histogram: &Histogram, scalar: ScalarKind) -> u32 {
        match self {
            Self::Fixed(width) => width,
            Self::Rule(rule) => rule.width(histogram, scalar),
        }
    }
}

impl Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(width) => write!(f, "{width}"),
            Self::Rule(rule) => write!(f, "{rule}"),
        }
    }
}

/// A rule for the width of the ELL part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// `auto`: the width that minimises the predicted time, slots of ELL against entries of COO,
    /// exactly over the histogram. As a spelled rule an entry of COO counts for two slots;
    /// candidates use the ratio measured in the profile.
    Auto,
    /// `bell-garland`: the smallest width that fewer than max(4096, nrows / 3) rows exceed (Bell &
    /// Garland, SC'09, §4.4).
    BellGarland,
    /// `ginkgo-imbalance`: the row length at the 80th percentile (Ginkgo's `imbalance_limit`).
    GinkgoImbalance,
    /// `ginkgo-bounded`: as `ginkgo-imbalance`, but at most nrows / 10,000 (Ginkgo's
    /// `imbalance_bounded_limit`).
    GinkgoBounded,
    /// `ginkgo-storage`: the row length at the percentile at which one more slot per row takes as
    /// many bytes as it saves in COO (Ginkgo's `minimal_storage_limit`).
    GinkgoStorage,
    /// `ginkgo-auto`: the row length at the 33rd percentile, but at most nrows / 1000 (Ginkgo's
    /// `automatic`).
    GinkgoAuto,
    /// `rocsparse-mean`: the mean row length, rounded up (rocSPARSE's automatic partition).
    RocsparseMean,
}

impl Rule {
    /// Every rule with its spelling.
    pub const WORDS: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("bell-garland", Self::BellGarland),
        ("ginkgo-imbalance", Self::GinkgoImbalance),
        ("ginkgo-bounded", Self::GinkgoBounded),
        ("ginkgo-storage", Self::GinkgoStorage),
        ("ginkgo-auto", Self::GinkgoAuto),
        ("rocsparse-mean", Self::RocsparseMean),
    ];

    /// Width for rows of these lengths; `scalar` is the type of the values, which only
    /// `ginkgo-storage` uses.
    pub fn width(self, histogram: &Histogram, scalar: ScalarKind) -> u32 {
        let nrows = histogram.nrows();
        // Ginkgo indexes the ascending row lengths at floor(nrows · share).
        let at_share = |share: f64| histogram.nth((nrows as f64 * share) as u64);
        let at_most = |width: u32, share: f64| width.min((nrows as f64 * share) as u32);
        match self {
            Self::Auto => fastest(histogram, None),
            // Fewer than 4096 rows are longer, or fewer than a third of them.
            Self::BellGarland => histogram.exceeded_by_fewer_than(nrows.div_ceil(3).max(4096)),
            Self::GinkgoImbalance => at_share(0.8),
            Self::GinkgoBounded => at_most(at_share(0.8), 1e-4),
            Self::GinkgoStorage => {
                let (index, value) = (size_of::<u32>() as f64, scalar.size() as f64);
                at_share(index / (value + 2.0 * index))
            }
            Self::GinkgoAuto => at_most(at_share(1.0 / 3.0), 1e-3),
            Self::RocsparseMean => histogram.entries_beyond(0).div_ceil(nrows.max(1)) as u32,
        }
    }
}

impl Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::WORDS.iter().find(|w| w.1 == *self).map(|w| w.0);
        f.write_str(word.unwrap_or_default())
    }
}

/// Returns the width that is predicted to be the fastest; the smallest of equal ones.
pub fn fastest(histogram: &Histogram, costs: Costs<'_>) -> u32 {
    cheapest(histogram, costs.and_then(tail_slots).unwrap_or(DEFAULT_TAIL_SLOTS))
}

/// Measured cost of a COO entry, in ELL slots. On a GPU, rows so uneven that they have COO entries
/// seldom have consecutive columns, and all slots are gathered. On the CPU neither the gathers of
/// slots nor the bytes of COO entries are counted: this offsets the rows of the COO part, which are
/// not counted either (counting gathers changed the width of the gallery's `circuit` in f64 from 6
/// to 5, a tenth slower on Zen 4).
fn tail_slots(costs: &dyn KernelCosts) -> Option<f64> {
    let matrix_bytes = match costs.on() {
        Target::Cpu => 0,
        Target::Gpu => coo::entry_bytes(costs.scalar()),
    };
    let entry = Work { outside: 1, matrix_bytes, ..Work::default() };
    // Below 1 no entry would stay in ELL, above 16 none would leave it: such a fit is noise.
    Some(costs.in_slots(super::KERNEL, &entry)?.clamp(1.0, 16.0))
}

/// Returns the width `w` that minimises `nrows · w + tail_slots · (entries beyond w)`; the
/// smallest of equal ones.
///
/// The cost is piecewise linear in `w` with its corners at the row lengths that occur, so that
/// trying those is exact.
fn cheapest(histogram: &Histogram, tail_slots: f64) -> u32 {
    let nrows = histogram.nrows() as f64;
    let cost = |width: u32, beyond: u64| nrows * f64::from(width) + tail_slots * beyond as f64;
    let mut beyond = histogram.entries_beyond(0);
    let mut longer = histogram.nrows();
    let mut best = (cost(0, beyond), 0);
    let mut width = 0;
    for &(len, rows) in histogram.classes() {
        beyond -= longer * u64::from(len - width);
        longer -= rows;
        width = len;
        let here = cost(width, beyond);
        if here < best.0 {
            best = (here, width);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 9000 rows of 4, 900 of 10, 99 of 50, one of 5000.
    fn skewed() -> Histogram {
        let lengths = [(4u32, 9000), (10, 900), (50, 99), (5000, 1)];
        Histogram::of(&lengths.iter().flat_map(|&(len, rows)| vec![len; rows]).collect::<Vec<_>>())
    }

    #[test]
    fn published_rules_by_hand() {
        let width = |rule: Rule| rule.width(&skewed(), ScalarKind::F64);
        assert_eq!(width(Rule::BellGarland), 4, "1000 rows are longer than 4, fewer than 4096");
        assert_eq!(width(Rule::GinkgoImbalance), 4);
        assert_eq!(width(Rule::GinkgoBounded), 1, "10,000 rows / 10,000");
        assert_eq!(width(Rule::GinkgoStorage), 4, "25th percentile");
        assert_eq!(width(Rule::GinkgoAuto), 4, "33rd percentile, at most 10");
        assert_eq!(width(Rule::RocsparseMean), 6, "54,950 entries / 10,000 rows = 5.5");
    }

    #[test]
    fn rules_of_an_empty_matrix_are_zero() {
        for (_, rule) in Rule::WORDS {
            assert_eq!(rule.width(&Histogram::of(&[]), ScalarKind::F32), 0);
            assert_eq!(rule.width(&Histogram::of(&[0, 0]), ScalarKind::F32), 0);
        }
    }

    proptest! {
        #[test]
        fn ours_is_the_exact_minimum(
            lengths in prop::collection::vec(0u32..60, 0..200),
            tail in 0.5f64..8.0,
        ) {
            let histogram = Histogram::of(&lengths);
            let cost = |w: u32| {
                lengths.len() as f64 * f64::from(w) + tail * histogram.entries_beyond(w) as f64
            };
            let found = cost(cheapest(&histogram, tail));
            for w in 0..=60 {
                prop_assert!(found <= cost(w) + 1e-9);
            }
        }
    }
}
