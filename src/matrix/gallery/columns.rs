//! Column placements drawn by a seed of `random`.

use super::irregular::window;
use super::random::{Purpose, Random, Shuffle, hash};
use crate::{Error, memory};
use std::fmt::{Display, Formatter};

/// Rounds in which repeated columns are redrawn, before the row is filled up in order.
const ROUNDS: usize = 4;
/// Maximum number of diagonals of a stencil.
const DIAGONALS: usize = 27;

/// Placement of the columns of a row. A row that is too long for its band or block extends beyond
/// it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Columns {
    /// At most `reach` away from the diagonal.
    Band { reach: usize },
    /// In square blocks along the diagonal.
    Blocks { size: usize },
    /// On diagonals: a shorter row has the first ones, a longer row continues beside them.
    Diagonals { offsets: Vec<usize> },
    /// Anywhere.
    Anywhere,
    /// Column n·uᵏ for a uniform u: few columns are in most rows. Contiguous, or scattered over
    /// the matrix.
    Popular { power: f64, scattered: bool },
    /// Runs of contiguous columns at most `reach` away from the diagonal.
    Runs { length: usize, reach: usize },
    /// Groups of rows that have a `share` of their columns in common, at most `reach` away from the
    /// diagonal.
    Shared { rows: usize, share: f64, reach: usize },
}

impl Columns {
    /// Draws a placement in `ncols` columns and rows of `mean` entries.
    pub(super) fn draw(ncols: usize, mean: usize, random: &mut Random) -> Self {
        let far = |random: &mut Random| {
            let nearest = (mean as f64 / 2.0).max(1.0);
            random.spread_over(nearest, ncols as f64) as usize
        };
        match random.below(7) {
            0 => Self::Band { reach: far(random) },
            1 => Self::Blocks { size: mean + random.spread_over(4.0, 4000.0) as usize },
            2 => {
                let count = mean.min(random.within(3..=DIAGONALS)).max(1);
                // Pairs to the left and to the right of the diagonal, like those of a stencil;
                // columns wrap around.
                let mut offsets = vec![0];
                for _ in 0..DIAGONALS / 2 {
                    let offset = far(random) % ncols;
                    offsets.extend([offset, ncols - offset]);
                }
                offsets.truncate(count);
                Self::Diagonals { offsets }
            }
            3 => Self::Anywhere,
            4 => Self::Popular { power: random.between(1.5, 6.0), scattered: random.below(2) == 0 },
            5 => Self::Runs { length: random.spread_over(2.0, 64.0) as usize, reach: far(random) },
            _ => Self::Shared {
                rows: random.spread_over(2.0, 100.0) as usize,
                share: random.between(0.3, 1.0),
                reach: far(random),
            },
        }
    }

    /// Stores `length` different columns of `matrix` in `columns`, ascending. `length` is at most
    /// the number of columns.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub(super) fn place(
        &self,
        row: usize,
        length: usize,
        matrix: &Placing,
        columns: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let ncols = matrix.ncols;
        let diagonal = matrix.diagonal(row);
        let near = |reach: usize| window(diagonal, reach.max(length), ncols);
        let mut random = Random::new(matrix.seed, Purpose::Row, row);
        match self {
            Self::Band { reach } => random.distinct(near(*reach), length, columns)?,
            Self::Blocks { size } => {
                let first = diagonal / size * size;
                let block = first..ncols.min(first + size);
                let range = if length <= block.len() { block } else { near(0) };
                random.distinct(range, length, columns)?;
            }
            Self::Diagonals { offsets } => {
                let places = (0..length).map(|k| {
                    let (beside, offset) = (k / offsets.len(), offsets[k % offsets.len()]);
                    ((diagonal + offset + beside) % ncols) as u32
                });
                memory::reserve(columns, length)?;
                columns.extend(places);
                columns.sort_unstable();
                columns.dedup();
            }
            Self::Anywhere => random.distinct(0..ncols, length, columns)?,
            Self::Popular { power, scattered } => {
                let column = |rank: usize| {
                    if *scattered { matrix.shuffle.of(rank as u64) as usize } else { rank }
                };
                random.draw(length, ROUNDS, columns, |random| {
                    column((random.unit().powf(*power) * ncols as f64) as usize)
                })?;
                fill(columns, length, (0..ncols).map(column))?;
            }
            Self::Runs { length: run, reach } => {
                let near = near(*reach);
                let runs = length.div_ceil(*run);
                // Drawn as if runs were one column wide; then all but the last are shifted apart.
                random.distinct(0..near.len() - length + runs, runs, columns)?;
                memory::reserve(columns, length - runs)?;
                columns.resize(length, 0);
                for k in (0..length).rev() {
                    let first = columns[k / run] as usize + k / run * (run - 1);
                    columns[k] = (near.start + first + k % run) as u32;
                }
            }
            Self::Shared { rows, share, reach } => {
                let group = row / rows;
                let common = (share * length as f64).round() as usize;
                let near = window(matrix.diagonal(group * rows), (*reach).max(length), ncols);
                // Every row of the group has the first `common` of the same numbers.
                let mut shared = Random::new(matrix.seed, Purpose::Group, group);
                shared.distinct(near.clone(), common, columns)?;
                let next = |random: &mut Random| near.start + random.below(near.len());
                random.draw(length, ROUNDS, columns, next)?;
            }
        }
        fill(columns, length, (diagonal..ncols).chain(0..diagonal))
    }
}

impl Display for Columns {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Band { reach } => write!(f, "within {reach} of the diagonal"),
            Self::Blocks { size } => write!(f, "in diagonal blocks of {size}"),
            Self::Diagonals { offsets } => write!(f, "on {} diagonals", offsets.len()),
            Self::Anywhere => write!(f, "anywhere"),
            Self::Popular { power, scattered } => {
                let place = if *scattered { "anywhere" } else { "on the left" };
                write!(f, "mostly in few columns {place} (power {power:.1})")
            }
            Self::Runs { length, reach } => {
                write!(f, "in runs of {length} within {reach} of the diagonal")
            }
            Self::Shared { rows, share, reach } => {
                let share = 100.0 * share;
                write!(f, "{share:.0} % shared by {rows} rows, within {reach} of the diagonal")
            }
        }
    }
}

/// Dimensions of the matrix and random numbers by which its columns are placed.
#[derive(Debug)]
pub(super) struct Placing {
    nrows: usize,
    ncols: usize,
    seed: u64,
    /// A permutation of the columns.
    shuffle: Shuffle,
}

impl Placing {
    pub(super) fn new(nrows: usize, ncols: usize, seed: u64) -> Self {
        let shuffle = Shuffle::below(hash(seed, Purpose::Shuffle, 1), ncols);
        Self { nrows, ncols, seed, shuffle }
    }

    /// Column of the diagonal, which runs from the upper left to the lower right corner.
    fn diagonal(&self, row: usize) -> usize {
        (row as u128 * self.ncols as u128 / self.nrows as u128) as usize
    }
}

/// Adds elements of `others` that are absent, in order, until there are `length`.
fn fill(
    columns: &mut Vec<u32>,
    length: usize,
    others: impl Iterator<Item = usize>,
) -> Result<(), Error> {
    let present = columns.len();
    if present < length {
        let drawn = memory::listed(columns.iter().copied())?;
        memory::reserve(columns, length - present)?;
        let absent = others.map(|column| column as u32).filter(|c| drawn.binary_search(c).is_err());
        columns.extend(absent.take(length - present));
        columns.sort_unstable();
    }
    Ok(())
}
