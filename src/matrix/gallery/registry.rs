//! Registry of generators: names, parameters, defaults, listing and parsing follow from it.

use super::artificial::Statistics;
use super::pattern::GeneratedPattern;
use super::regular::{ROAD_SHARE, Stencil, dense, road};
use super::structure::RandomStructure;
use super::{Spec, irregular};
use crate::Error;
use crate::matrix::MAX_DIMENSION;

/// A generator of the gallery: its name, its matrices and its parameters.
#[derive(Debug)]
#[non_exhaustive]
pub struct Entry {
    /// Name in a specification: `poisson2d`.
    pub name: &'static str,
    /// Structure of the matrix, in one line.
    pub structure: &'static str,
    /// Size parameters; the first is the one that scales the matrix. Every generator also takes
    /// `values` and `seed`.
    pub parameters: &'static [Parameter],
    /// True if [`Spec::scaled_to`] changes the size; false if the matrix is small on purpose.
    pub(super) scales: bool,
    /// True if it represents a structure of practical problems, and is therefore in the suite.
    pub(super) in_suite: bool,
    /// Shape and expected nonzeros for given sizes and seed.
    pub(super) shape: fn(&[usize], u64) -> MatrixSize,
    /// Places of the entries for given sizes and seed.
    pub(super) pattern: fn(&[usize], u64) -> Result<GeneratedPattern, Error>,
}

/// A size parameter of a generator.
#[derive(Debug)]
#[non_exhaustive]
pub struct Parameter {
    /// Key in a specification: `n`.
    pub key: &'static str,
    /// Quantity that it counts.
    pub meaning: &'static str,
    /// Value at full size.
    pub default: usize,
    /// Maximum value.
    pub(super) max: usize,
    /// True if its default keeps the full-size ratio to the first parameter.
    pub(super) follows: bool,
}

/// Size of a generated matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixSize {
    /// Number of rows, saturated at `usize::MAX`.
    pub nrows: usize,
    /// Number of columns, saturated at `usize::MAX`.
    pub ncols: usize,
    /// Number of entries: exact for stencils and `dense`, expected for random patterns; `rmat` and
    /// `circuit` count draws, of which a few percent coincide.
    pub nnz: usize,
}

impl Entry {
    /// Returns the specification of the generator at full size, with its own values and seed 1.
    pub fn spec(&'static self) -> Spec {
        let sizes = self.sizes(self.parameters[0].default);
        Spec { entry: self, sizes, values: None, seed: Spec::DEFAULT_SEED }
    }

    /// All sizes if only the first is given.
    pub(super) fn sizes(&self, first: usize) -> Vec<usize> {
        let full = self.parameters[0].default;
        let later = self.parameters[1..].iter();
        let later =
            later.map(|p| if p.follows { proportional(p.default, first, full) } else { p.default });
        std::iter::once(first).chain(later).collect()
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Entry {}

/// `size` · `numerator` / `denominator`, rounded to the nearest, clamped to the range of a
/// parameter.
pub(super) fn proportional(size: usize, numerator: usize, denominator: usize) -> usize {
    let scaled =
        (size as u128 * numerator as u128 + denominator as u128 / 2) / (denominator as u128).max(1);
    scaled.min(MAX_DIMENSION as u128) as usize
}

const fn size(key: &'static str, default: usize, meaning: &'static str) -> Parameter {
    Parameter { key, meaning, default, max: MAX_DIMENSION, follows: false }
}

const fn following(key: &'static str, default: usize, meaning: &'static str) -> Parameter {
    Parameter { follows: true, ..size(key, default, meaning) }
}

const fn percentage(key: &'static str, default: usize, meaning: &'static str) -> Parameter {
    Parameter { max: 100, ..size(key, default, meaning) }
}

fn square(nrows: usize, nnz: usize) -> MatrixSize {
    MatrixSize { nrows, ncols: nrows, nnz }
}

/// Square matrix of rows with `mean` entries on average.
fn rows_of(nrows: usize, mean: f64) -> MatrixSize {
    square(nrows, (nrows as f64 * mean) as usize)
}

/// `n`ᵏ points connected along each axis, and to themselves: 2k + 1 entries per row, fewer at the
/// border.
fn star(n: usize, k: u32) -> MatrixSize {
    let row = (2 * k as usize + 1).saturating_mul(n).saturating_sub(2 * k as usize);
    square(n.saturating_pow(k), n.saturating_pow(k - 1).saturating_mul(row))
}

/// `n`³ nodes of some unknowns each, connected to all 27 around, themselves included.
fn brick(n: usize, unknowns: usize) -> MatrixSize {
    let pairs = n.saturating_mul(3).saturating_sub(2).saturating_pow(3);
    square(n.saturating_pow(3).saturating_mul(unknowns), pairs.saturating_mul(unknowns * unknowns))
}

/// Name of the generator whose structure is drawn from the seed.
pub(super) const RANDOM: &str = "random";

pub(super) static ENTRIES: [Entry; 18] = [
    Entry {
        name: "poisson2d",
        structure: "5-point stencil on an n x n grid",
        parameters: &[size("n", 2048, "points along a side")],
        scales: true,
        in_suite: true,
        shape: |s, _| star(s[0], 2),
        pattern: |s, _| Stencil::new([s[0], s[0], 1], 1, 1).pattern(),
    },
    Entry {
        name: "poisson3d",
        structure: "7-point stencil on an n x n x n grid",
        parameters: &[size("n", 160, "points along a side")],
        scales: true,
        in_suite: true,
        shape: |s, _| star(s[0], 3),
        pattern: |s, _| Stencil::new([s[0]; 3], 1, 1).pattern(),
    },
    Entry {
        name: "stencil27",
        structure: "27-point stencil on an n x n x n grid",
        parameters: &[size("n", 128, "points along a side")],
        scales: true,
        in_suite: true,
        shape: |s, _| brick(s[0], 1),
        pattern: |s, _| Stencil::new([s[0]; 3], 3, 1).pattern(),
    },
    Entry {
        name: "fem3d",
        structure: "elasticity on an n x n x n grid: 3 unknowns a node, 27-point coupling by full \
                    3 x 3 blocks",
        parameters: &[size("n", 64, "nodes along a side")],
        scales: true,
        in_suite: true,
        shape: |s, _| brick(s[0], 3),
        pattern: |s, _| Stencil::new([s[0]; 3], 3, 3).pattern(),
    },
    Entry {
        name: "femrandom",
        structure: "mesh without a grid: 3 x 3 blocks, 10-35 neighbour nodes within 3000",
        parameters: &[size("nodes", 300_000, "nodes, of 3 rows each")],
        scales: true,
        in_suite: true,
        shape: |s, _| rows_of(s[0].saturating_mul(3), 70.5),
        pattern: |s, seed| irregular::femrandom(s[0], seed),
    },
    Entry {
        name: "banded",
        structure: "the diagonal and 8-24 entries a row at random within 1000 of it",
        parameters: &[size("rows", 2_000_000, "rows and columns")],
        scales: true,
        in_suite: true,
        shape: |s, _| rows_of(s[0], 17.0),
        pattern: |s, seed| irregular::banded(s[0], seed),
    },
    Entry {
        name: "road",
        structure: "n x n grid graph, each edge kept with probability 0.62",
        parameters: &[size("n", 2400, "junctions along a side")],
        scales: true,
        in_suite: true,
        shape: |s, _| rows_of(s[0].saturating_pow(2), 4.0 * ROAD_SHARE),
        pattern: |s, seed| road(s[0], seed),
    },
    Entry {
        name: "uniform",
        structure: "10-22 entries a row, anywhere",
        parameters: &[size("rows", 2_000_000, "rows and columns")],
        scales: true,
        in_suite: true,
        shape: |s, _| rows_of(s[0], 16.0),
        pattern: |s, seed| irregular::uniform(s[0], seed),
    },
    Entry {
        name: "rmat",
        structure: "R-MAT graph (0.57, 0.19, 0.19, 0.05), vertices shuffled",
        parameters: &[
            Parameter {
                max: 31,
                ..size("scale", 21, "binary logarithm of the number of vertices")
            },
            size("degree", 16, "edges per vertex, before repeated ones fall together"),
        ],
        scales: true,
        in_suite: true,
        shape: |s, _| rows_of(1 << s[0], s[1] as f64),
        pattern: |s, seed| irregular::rmat(s[0], s[1], seed),
    },
    Entry {
        name: "webbase",
        structure: "power-law rows; 70 % of the entries within 300 of the diagonal, the rest in \
                    few columns",
        parameters: &[size("rows", 4_000_000, "rows and columns")],
        scales: true,
        in_suite: true,
        shape: |s, _| rows_of(s[0], 4.8),
        pattern: |s, seed| irregular::webbase(s[0], seed),
    },
    Entry {
        name: "circuit",
        structure: "3-7 entries a row near the diagonal, and a few dense rows",
        parameters: &[
            size("rows", 3_000_000, "rows and columns"),
            size("dense", 5, "dense rows"),
            following(
                "length",
                400_000,
                "entries of a dense row, before repeated ones fall together",
            ),
        ],
        scales: true,
        in_suite: true,
        shape: |s, _| {
            square(s[0], s[0].saturating_mul(5).saturating_add(s[1].saturating_mul(s[2])))
        },
        pattern: |s, seed| irregular::circuit(s[0], s[1], s[2], seed),
    },
    Entry {
        name: "lp",
        structure: "wide rectangle of rows with 200-8200 entries, anywhere",
        parameters: &[size("rows", 4284, "rows"), following("columns", 1_100_000, "columns")],
        scales: true,
        in_suite: true,
        shape: |s, _| MatrixSize { ncols: s[1], ..rows_of(s[0], 200.0 + 8000.0 / 3.0) },
        pattern: |s, seed| irregular::lp(s[0], s[1], seed),
    },
    Entry {
        name: "lognormal",
        structure: "row lengths exp(N(2.5, 1.2)), within 20000 of the diagonal",
        parameters: &[size("rows", 1_000_000, "rows and columns")],
        scales: true,
        in_suite: true,
        shape: |s, _| rows_of(s[0], 24.5),
        pattern: |s, seed| irregular::lognormal(s[0], seed),
    },
    Entry {
        name: "dense",
        structure: "every place of an n x n matrix",
        parameters: &[size("n", 6000, "rows and columns")],
        scales: true,
        in_suite: true,
        shape: |s, _| square(s[0], s[0].saturating_pow(2)),
        pattern: |s, _| dense(s[0]),
    },
    Entry {
        name: "small",
        structure: "5-point stencil on an n x n grid that fits every cache",
        parameters: &[size("n", 100, "points along a side")],
        scales: false,
        in_suite: true,
        shape: |s, _| star(s[0], 2),
        pattern: |s, _| Stencil::new([s[0], s[0], 1], 1, 1).pattern(),
    },
    Entry {
        name: "sweep",
        structure: "rows of any length, row-length CV and reach, for measuring their cost",
        parameters: &[
            size("rows", 250_000, "rows and columns"),
            size("length", 16, "entries a row, on average"),
            size("spread", 0, "standard deviation of the row lengths, in percent of their mean"),
            size("reach", 1000, "farthest column from the diagonal"),
        ],
        scales: true,
        in_suite: false,
        shape: |s, _| rows_of(s[0], s[1].min(s[3].saturating_mul(2).saturating_add(1)) as f64),
        pattern: |s, seed| irregular::sweep(s[0], s[1], s[2], s[3], seed),
    },
    Entry {
        name: "artificial",
        structure: "matrix with given statistics, such as those of a published one",
        parameters: &[
            size("rows", 171_000, "rows and columns"),
            following("nnz", 959_000, "entries"),
            size("deviation", 4, "standard deviation of the row lengths, in entries"),
            size("longest", 353, "entries of the longest row"),
            percentage(
                "band",
                30,
                "columns of the band around the diagonal, in percent; longer rows have a wider one",
            ),
            percentage("adjacent", 30, "contiguous entries, in percent"),
            Parameter {
                max: 99,
                ..size("similar", 60, "rows with the columns of the row above, in percent")
            },
        ],
        scales: true,
        in_suite: false,
        shape: |s, _| rows_of(s[0], Statistics::new(s).mean_length()),
        pattern: |s, seed| Statistics::new(s).pattern(seed),
    },
    Entry {
        name: RANDOM,
        structure: "random structure: the seed draws size, shape, row lengths and their order, \
                    columns, blocks and values",
        parameters: &[size("nnz", 0, "entries; 0: as the seed draws, 60 thousand to 10 million")],
        scales: true,
        in_suite: false,
        shape: |s, seed| RandomStructure::draw(s[0], seed).shape(),
        pattern: |s, seed| RandomStructure::draw(s[0], seed).pattern(seed),
    },
];
