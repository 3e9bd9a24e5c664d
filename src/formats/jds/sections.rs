//! Section boundaries of a JDS matrix: the exact optimum, and the simple rules that it is compared
//! with.

use crate::Error;
use crate::analysis::Histogram;
use crate::formats::{Costs, PlanArgs, Work};
use std::collections::VecDeque;
use std::fmt::{self, Display};

/// Default cost of a section beyond its slots, in slots: on average a strip of 64 rows is half
/// empty at the beginning and at the end of a section.
const DEFAULT_SECTION_SLOTS: u64 = 64;

/// Kernel of all sections in one launch.
pub(super) const KERNEL: &str = "jds.sections";

/// Partition of sorted rows into sections: `sections:auto` or `sections:N`, with `bounds:` and
/// `cost:`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sectioning {
    /// Method that finds the boundaries.
    pub method: BoundaryMethod,
    /// Maximum number of sections, for [`BoundaryMethod::Optimal`]; the exact number (or the number
    /// of rows or lengths, if smaller) for the others. None leaves the number to the cost.
    pub sections: Option<u32>,
    /// Cost of a section beyond its slots, in slots, for [`BoundaryMethod::Optimal`]; 64 if not
    /// given.
    pub cost: Option<u64>,
}

/// Method that finds section boundaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BoundaryMethod {
    /// Minimises padded slots plus the cost of sections, exactly, by dynamic programming over the
    /// row lengths.
    #[default]
    Optimal,
    /// `bounds:rows`: equally many rows per section.
    EqualRows,
    /// `bounds:lengths`: equally many distinct row lengths per section.
    EqualLengths,
}

const METHODS: &[(&str, BoundaryMethod)] = &[
    ("optimal", BoundaryMethod::Optimal),
    ("rows", BoundaryMethod::EqualRows),
    ("lengths", BoundaryMethod::EqualLengths),
];

/// Default number of sections of the simple rules: the examples of Kirk & Hwu have a handful.
const DEFAULT_SECTIONS: u32 = 8;

impl Default for Sectioning {
    fn default() -> Self {
        Self { method: BoundaryMethod::Optimal, sections: None, cost: None }
    }
}

impl Display for Sectioning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sections {
            None => f.write_str("sections:auto")?,
            Some(n) => write!(f, "sections:{n}")?,
        }
        match self.method {
            BoundaryMethod::Optimal => {}
            BoundaryMethod::EqualRows => f.write_str(",bounds:rows")?,
            BoundaryMethod::EqualLengths => f.write_str(",bounds:lengths")?,
        }
        self.cost.map_or(Ok(()), |cost| write!(f, ",cost:{cost}"))
    }
}

/// Consecutive sorted rows, stored as an ELL of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Section {
    /// First of its rows, in sorted order.
    pub(super) first_row: usize,
    /// Number of rows.
    pub(super) rows: usize,
    /// Slots per row: the length of its longest row.
    pub(super) width: usize,
    /// Length of its shortest row: no padding before this slot.
    pub(super) full: usize,
    /// Position of its first slot.
    pub(super) start: usize,
}

impl Section {
    /// Position behind its last slot, saturated at the maximum.
    pub(super) fn slots_end(&self) -> u64 {
        self.start.saturating_add(self.rows.saturating_mul(self.width)) as u64
    }
}

impl Sectioning {
    /// Parses `sections`, `bounds` and `cost`. None if none of them is given.
    pub(super) fn parse(args: &mut PlanArgs<'_>) -> Result<Option<Self>, Error> {
        let text = args.value("sections")?;
        let sections = match text {
            None | Some("auto") => None,
            Some(text) => Some(args.to_number("sections", text)?),
        };
        let method = args.word("bounds", METHODS)?;
        let cost = args.number("cost")?.map(u64::from);
        if cost.is_some()
            && matches!(method, Some(BoundaryMethod::EqualRows | BoundaryMethod::EqualLengths))
        {
            return Err(args.error("`cost` applies to optimal bounds alone".to_owned()));
        }
        let given = text.is_some() || method.is_some() || cost.is_some();
        Ok(given.then(|| Self { method: method.unwrap_or_default(), sections, cost }))
    }

    /// Optimal boundaries for the measured cost of a section, or for its default.
    pub fn by_costs(costs: Costs<'_>) -> Self {
        /// Least cost of a section: that of its partly empty strips.
        const MIN: f64 = DEFAULT_SECTION_SLOTS as f64;
        /// Largest cost of a section: the largest number that a plan can be spelled with.
        const MAX: f64 = (u32::MAX - 1) as f64;
        let section = Work { starts: 1, ..Work::default() };
        let measured = costs.and_then(|costs| costs.in_slots(KERNEL, &section));
        let cost = measured.map_or(DEFAULT_SECTION_SLOTS, |cost| cost.clamp(MIN, MAX) as u64);
        Self { cost: Some(cost), ..Self::default() }
    }

    /// Number of sections for rows of these lengths, and the number of their slots.
    pub fn outcome(&self, histogram: &Histogram) -> (usize, u64) {
        let sections = self.sections(histogram);
        (sections.len(), sections.last().map_or(0, |s| s.slots_end()))
    }

    /// Sections of rows of these lengths.
    pub(super) fn sections(&self, histogram: &Histogram) -> Vec<Section> {
        let classes: Vec<(u32, u64)> = histogram.classes().iter().rev().copied().collect();
        let nrows = histogram.nrows() as usize;
        let requested = self.sections.unwrap_or(DEFAULT_SECTIONS) as usize;
        // More sections than rows or lengths would be empty.
        let at_most = |most: usize| requested.clamp(1, most.max(1));
        let bounds: Vec<usize> = match self.method {
            BoundaryMethod::EqualRows => equal_bounds(nrows, at_most(nrows)),
            _ => {
                let cuts = match self.method {
                    BoundaryMethod::EqualLengths => {
                        equal_bounds(classes.len(), at_most(classes.len()))
                    }
                    _ => {
                        optimal(&classes, self.cost.unwrap_or(DEFAULT_SECTION_SLOTS), self.sections)
                    }
                };
                let mut rows_before = Vec::with_capacity(classes.len() + 1);
                rows_before.push(0);
                for class in &classes {
                    rows_before.push(rows_before[rows_before.len() - 1] + class.1 as usize);
                }
                cuts.into_iter().map(|class: usize| rows_before[class]).collect()
            }
        };
        lay_out(&classes, &bounds)
    }
}

/// Bounds of `count` ranges of equal length that cover `items`.
fn equal_bounds(items: usize, count: usize) -> Vec<usize> {
    (0..=count).map(|i| (items as u128 * i as u128 / count as u128) as usize).collect()
}

/// Sections between the given row bounds; empty ones are dropped.
fn lay_out(classes: &[(u32, u64)], bounds: &[usize]) -> Vec<Section> {
    let mut ends = Vec::with_capacity(classes.len());
    for class in classes {
        ends.push(ends.last().map_or(0, |&e| e) + class.1 as usize);
    }
    let length_of = |row: usize| classes[ends.partition_point(|&end| end <= row)].0 as usize;
    let mut start = 0;
    let mut sections = Vec::with_capacity(bounds.len());
    for pair in bounds.windows(2).filter(|w| w[1] > w[0]) {
        let (first_row, rows) = (pair[0], pair[1] - pair[0]);
        let (width, full) = (length_of(first_row), length_of(pair[1] - 1));
        sections.push(Section { first_row, rows, width, full, start });
        start = start.saturating_add(rows.saturating_mul(width));
    }
    sections
}

/// Returns the cuts, in classes, that minimise Σ rows·width over the sections + `cost` ·
/// sections, with at most `limit` sections.
///
/// `classes` are `(length, rows)`, longest first. With `R(j)` rows in the first `j` classes and
/// lengths `L`, the least cost of the first `j` classes is
/// `D(j) = min over i < j of D(i) + L(i)·(R(j) − R(i)) + cost`: for a fixed `i` a line in
/// `R(j)`, with slopes that fall as `i` grows and queries that rise with `j`. The lower envelope of
/// the lines therefore answers every query in amortised constant time, and a pass over the classes
/// is linear. With a limit there is one pass for every number of sections.
fn optimal(classes: &[(u32, u64)], cost: u64, limit: Option<u32>) -> Vec<usize> {
    let mut rows_before = Vec::with_capacity(classes.len() + 1);
    rows_before.push(0i128);
    for class in classes {
        rows_before.push(rows_before[rows_before.len() - 1] + i128::from(class.1));
    }
    let slopes: Vec<i128> = classes.iter().map(|c| i128::from(c.0)).collect();
    let line =
        |i: usize, best: i128| (slopes[i], best - slopes[i] * rows_before[i] + i128::from(cost));
    let count = classes.len();
    match limit {
        None => {
            let mut envelope = Envelope { lines: VecDeque::with_capacity(count) };
            let (mut best, mut from) = (vec![0i128; count + 1], vec![0; count + 1]);
            for j in 1..=count {
                envelope.push(line(j - 1, best[j - 1]), j - 1);
                (best[j], from[j]) = envelope.least(rows_before[j]);
            }
            walk_back(count, |j, _| from[j])
        }
        // Most limits do not bind; only those that do need a pass for each number of sections.
        Some(limit) if limit > 0 && optimal(classes, cost, None).len() <= limit as usize + 1 => {
            optimal(classes, cost, None)
        }
        Some(limit) => {
            let passes = (limit as usize).clamp(1, count.max(1));
            let mut best: Vec<Option<i128>> = vec![None; count + 1];
            best[0] = Some(0);
            let mut from = Vec::with_capacity(passes);
            let mut found = (i128::MAX, 0);
            for pass in 0..passes {
                let mut envelope = Envelope { lines: VecDeque::with_capacity(count) };
                let (mut next, mut froms) = (vec![None; count + 1], vec![0; count + 1]);
                for j in 1..=count {
                    if let Some(best) = best[j - 1] {
                        envelope.push(line(j - 1, best), j - 1);
                    }
                    if !envelope.lines.is_empty() {
                        let (cost, i) = envelope.least(rows_before[j]);
                        (next[j], froms[j]) = (Some(cost), i);
                    }
                }
                from.push(froms);
                best = next;
                if let Some(total) = best[count].filter(|&total| total < found.0) {
                    found = (total, pass + 1);
                }
            }
            walk_back(count, |j, back| from[found.1 - 1 - back][j])
        }
    }
}

/// Traces the choices back from the last class: `from(j, steps)` is the beginning of the section
/// that ends at `j`.
fn walk_back(count: usize, from: impl Fn(usize, usize) -> usize) -> Vec<usize> {
    let mut cuts = vec![count];
    let mut j = count;
    while j > 0 {
        j = from(j, cuts.len() - 1);
        cuts.push(j);
    }
    cuts.reverse();
    cuts
}

/// Lower envelope of lines `slope · r + offset` with falling slopes, queried at rising `r`.
struct Envelope {
    /// Slope, offset and label, steepest first.
    lines: VecDeque<((i128, i128), usize)>,
}

impl Envelope {
    fn push(&mut self, line: (i128, i128), label: usize) {
        // The middle line is nowhere the lowest if its neighbours cross before it crosses the
        // first.
        while self.lines.len() >= 2 {
            let (a, b) = (self.lines[self.lines.len() - 2].0, self.lines[self.lines.len() - 1].0);
            if (line.1 - a.1) * (a.0 - b.0) > (b.1 - a.1) * (a.0 - line.0) {
                break;
            }
            self.lines.pop_back();
        }
        self.lines.push_back((line, label));
    }

    /// Lowest value at `r`, and the label of its line.
    fn least(&mut self, r: i128) -> (i128, usize) {
        let at = |line: (i128, i128)| line.0 * r + line.1;
        while self.lines.len() >= 2 && at(self.lines[1].0) <= at(self.lines[0].0) {
            self.lines.pop_front();
        }
        (at(self.lines[0].0), self.lines[0].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Cost of the given cuts.
    fn cost_of(classes: &[(u32, u64)], cuts: &[usize], cost: u64) -> u64 {
        cuts.windows(2)
            .map(|w| {
                u64::from(classes[w[0]].0) * classes[w[0]..w[1]].iter().map(|c| c.1).sum::<u64>()
                    + cost
            })
            .sum()
    }

    /// Least cost over all possible cuts.
    fn exhaustive(classes: &[(u32, u64)], cost: u64, limit: usize) -> u64 {
        let n = classes.len();
        (0u32..1 << (n - 1))
            .filter(|mask| (mask.count_ones() as usize) < limit)
            .map(|mask| {
                let inner = (1..n).filter(|i| mask >> (i - 1) & 1 == 1);
                let cuts: Vec<usize> = std::iter::once(0).chain(inner).chain([n]).collect();
                cost_of(classes, &cuts, cost)
            })
            .min()
            .unwrap()
    }

    proptest! {
        #[test]
        fn the_optimum_is_exact(
            lengths in prop::collection::btree_map(0u32..50, 1u64..40, 1..9),
            cost in 0u64..200,
            limit in 1u32..6,
        ) {
            let classes: Vec<(u32, u64)> = lengths.into_iter().rev().collect();
            let free = optimal(&classes, cost, None);
            prop_assert_eq!(cost_of(&classes, &free, cost), exhaustive(&classes, cost, usize::MAX));
            let few = optimal(&classes, cost, Some(limit));
            prop_assert!(few.len() <= limit as usize + 1);
            let least = exhaustive(&classes, cost, limit as usize);
            prop_assert_eq!(cost_of(&classes, &few, cost), least);
        }

        #[test]
        fn every_sectioning_covers_every_row_once(
            lengths in prop::collection::vec(0u32..30, 0..300),
            n in 1u32..9,
        ) {
            let histogram = Histogram::of(&lengths);
            for (_, method) in METHODS.iter().copied() {
                let given = Sectioning { method, sections: Some(n), cost: None };
                let sections = given.sections(&histogram);
                let mut next = (0, 0);
                for s in &sections {
                    prop_assert_eq!((s.first_row, s.start), next);
                    prop_assert!(s.rows > 0 && s.full <= s.width);
                    next = (s.first_row + s.rows, s.start + s.rows * s.width);
                }
                prop_assert_eq!(next.0, lengths.len());
                prop_assert!(sections.len() <= n as usize);
            }
        }
    }

    #[test]
    fn an_empty_matrix_has_no_sections() {
        assert!(Sectioning::default().sections(&Histogram::of(&[])).is_empty());
    }
}
