//! Structures drawn from a seed: any law and order of row lengths, with any placement of columns.

use super::columns::{Columns, Placing};
use super::lengths::{LengthLaw, LengthOrder, lengths};
use super::pattern::GeneratedPattern;
use super::random::{Purpose, Random};
use super::{MatrixSize, Values};
use crate::Error;
use std::fmt::{Display, Formatter};

/// Range of the number of entries, if the seed draws it.
const ENTRIES: [f64; 2] = [6e4, 1e7];
/// Maximum mean row length, over rows that are not empty by design.
const LONGEST_MEAN: f64 = 1000.0;
/// Maximum ratio of the sides of a matrix that is not square.
const LONGEST_SIDE: f64 = 100.0;
/// Numbers of unknowns of a node, each equally likely.
const UNKNOWNS: [usize; 10] = [1, 1, 1, 1, 1, 2, 3, 3, 4, 6];
/// Least ratio of the entries of a matrix to those of a block: below it, blocks have a single
/// entry.
const ENTRIES_PER_BLOCK: usize = 50;

/// A structure. Nodes are rows and columns of blocks; with one unknown per node they are rows and
/// columns.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RandomStructure {
    /// Number of rows of blocks.
    nrows: usize,
    /// Number of columns of blocks.
    ncols: usize,
    /// Number of blocks.
    nnz: usize,
    /// Number of rows and of columns of a block.
    pub(super) unknowns: usize,
    pub(super) law: LengthLaw,
    pub(super) order: LengthOrder,
    pub(super) columns: Columns,
    pub(super) values: Values,
    /// Maximum number of blocks of a row.
    longest: usize,
}

impl RandomStructure {
    /// Draws the structure of a seed, with `nnz` entries; the seed draws that number too if it
    /// is 0.
    pub(super) fn draw(nnz: usize, seed: u64) -> Self {
        let mut random = Random::new(seed, Purpose::Structure, 0);
        // Every seed draws the same kind of structure at any size: the number of draws never
        // depends on `nnz`.
        let drawn = random.spread_over(ENTRIES[0], ENTRIES[1]) as usize;
        let nnz = if nnz == 0 { drawn } else { nnz };
        let unknowns = UNKNOWNS[random.below(UNKNOWNS.len())];
        let unknowns = if unknowns * unknowns * ENTRIES_PER_BLOCK <= nnz { unknowns } else { 1 };
        let nnz = (nnz / (unknowns * unknowns)).max(1);
        let aspect = match (random.below(8), random.spread_over(1.0, LONGEST_SIDE)) {
            (0, longer) => longer,
            (1, longer) => 1.0 / longer,
            _ => 1.0,
        };
        let mut law = LengthLaw::draw(&mut random);
        let filled = law.filled();
        // At most two rows or columns per entry, and rows of at most a quarter of the columns.
        let shortest = (0.5 / (filled * aspect.min(1.0))).max(1.0);
        let longest = (nnz as f64 / (4.0 * filled * aspect)).sqrt();
        let longest = longest.min(LONGEST_MEAN / unknowns as f64).min(nnz as f64).max(1.0);
        let mean = random.spread_over(shortest.min(longest), longest).round().max(1.0);
        let nrows = (nnz as f64 / (mean * filled)).round().max((1.0 / filled).ceil());
        let ncols = (nrows / aspect).round().max(mean);
        let (nrows, ncols) = (nrows as usize, ncols as usize);
        let quarter = (ncols / 4).max(mean as usize);
        let share = random.between(0.05, 0.6);
        law.fit(nrows, mean, |rows| (share * nnz as f64 / rows as f64).min(quarter as f64));
        let mut order = LengthOrder::draw(&mut random);
        order.fit(&law, nrows);
        let columns = Columns::draw(ncols, mean as usize, &mut random);
        let values =
            [Values::Random, Values::Random, Values::Few, Values::Pattern][random.below(4)];
        let longest = match law {
            LengthLaw::Huge { .. } => quarter,
            LengthLaw::Pareto { .. } => {
                let least = 4.0 * mean;
                ncols.min(random.spread_over(least, least.max(quarter as f64)) as usize)
            }
            _ => ncols,
        };
        Self { nrows, ncols, nnz, unknowns, law, order, columns, values, longest }
    }

    /// Number of rows, columns and entries; that of the entries within a few percent.
    pub(super) fn shape(&self) -> MatrixSize {
        let of = |blocks: usize| blocks.saturating_mul(self.unknowns);
        MatrixSize { nrows: of(self.nrows), ncols: of(self.ncols), nnz: of(of(self.nnz)) }
    }

    /// Pattern of the matrix.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub(super) fn pattern(&self, seed: u64) -> Result<GeneratedPattern, Error> {
        let lengths = lengths(&self.law, self.order, self.nrows, self.nnz, self.longest, seed)?;
        let placing = Placing::new(self.nrows, self.ncols, seed);
        let nodes = GeneratedPattern::by_rows(self.nrows, &|row, columns| {
            self.columns.place(row, lengths[row] as usize, &placing, columns)
        })?;
        nodes.with_unknowns(self.unknowns)
    }
}

impl Display for RandomStructure {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let MatrixSize { nrows, ncols, nnz } = self.shape();
        let Self { unknowns, law, order, columns, .. } = self;
        write!(f, "{nrows} x {ncols}, {:.1} entries a row; ", nnz as f64 / nrows as f64)?;
        write!(f, "row lengths: {law}; rows {order}; columns {columns}")?;
        if *unknowns > 1 {
            write!(f, "; all in {unknowns} x {unknowns} blocks")?;
        }
        Ok(())
    }
}
