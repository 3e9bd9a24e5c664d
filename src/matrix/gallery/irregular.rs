//! Random patterns: unstructured meshes, bands, graphs, circuits, linear programs.

use super::pattern::GeneratedPattern;
use super::random::{Purpose, Random, Shuffle};
use crate::{Error, memory, parallel};
use std::ops::Range;

/// R-MAT's probabilities of the four quadrants, row by row; those of Graph500.
const QUADRANTS: [f64; 4] = [0.57, 0.19, 0.19, 0.05];
/// Edges of an R-MAT graph that share a stream of random numbers.
const EDGES_PER_STREAM: usize = 1 << 16;
/// Tail exponent and scale of `webbase`'s row lengths, a Lomax distribution: together they give
/// rows of 4.8 entries and, in four million, a longest one of a few thousand.
const WEBBASE_LENGTHS: (f64, f64) = (2.5, 6.45);
/// Share of `webbase`'s links that stay on the site, and the reach of a site.
const WEBBASE_LOCAL: (f64, usize) = (0.7, 300);
/// Exponent of the preference of `webbase`'s other links for few columns: column n·uᵏ of a
/// uniform u.
const WEBBASE_SKEW: i32 = 3;
/// Number of times that repeated columns are drawn again before a row is left shorter.
pub(super) const ROUNDS: usize = 16;

/// The positions at most `reach` away from `centre`, out of `0 .. n`.
pub(super) fn window(centre: usize, reach: usize, n: usize) -> Range<usize> {
    centre.saturating_sub(reach)..n.min(centre + reach + 1)
}

/// The diagonal and `count` other columns at most `reach` away from it.
fn around(
    diagonal: usize,
    reach: usize,
    n: usize,
    count: usize,
    random: &mut Random,
    columns: &mut Vec<u32>,
) -> Result<(), Error> {
    let Range { start, end } = window(diagonal, reach, n);
    // Drawn without the diagonal; the columns past it then move up by one.
    random.distinct(start..end - 1, count, columns)?;
    let before = columns.partition_point(|&c| (c as usize) < diagonal);
    columns[before..].iter_mut().for_each(|c| *c += 1);
    memory::reserve(columns, 1)?;
    columns.insert(before, diagonal as u32);
    Ok(())
}

/// Finite elements on an unstructured mesh: 3 unknowns per node, 10 to 35 neighbour nodes at most
/// 3000 away.
pub(super) fn femrandom(nodes: usize, seed: u64) -> Result<GeneratedPattern, Error> {
    let nodes = GeneratedPattern::by_rows(nodes, &|node, columns| {
        let mut random = Random::new(seed, Purpose::Row, node);
        let neighbours = random.within(10..=35);
        around(node, 3000, nodes, neighbours, &mut random, columns)
    })?;
    nodes.with_unknowns(3)
}

/// The diagonal and 8 to 24 more entries per row, at most 1000 away from it.
pub(super) fn banded(rows: usize, seed: u64) -> Result<GeneratedPattern, Error> {
    GeneratedPattern::by_rows(rows, &|row, columns| {
        let mut random = Random::new(seed, Purpose::Row, row);
        let count = random.within(8..=24);
        around(row, 1000, rows, count, &mut random, columns)
    })
}

/// 10 to 22 entries per row, anywhere.
pub(super) fn uniform(rows: usize, seed: u64) -> Result<GeneratedPattern, Error> {
    GeneratedPattern::by_rows(rows, &|row, columns| {
        let mut random = Random::new(seed, Purpose::Row, row);
        let count = random.within(10..=22);
        random.distinct(0..rows, count, columns)
    })
}

/// R-MAT graph (Chakrabarti, Zhan and Faloutsos, SDM'04) of 2^`scale` vertices, shuffled, with
/// `degree` edges per vertex; repeated edges count one time.
pub(super) fn rmat(scale: usize, degree: usize, seed: u64) -> Result<GeneratedPattern, Error> {
    let shuffle = Shuffle::below(seed, 1 << scale);
    let threshold = |share: f64| (share * 2f64.powi(64)) as u64;
    let [a, b, c, _] = QUADRANTS;
    let [right, lower, last] = [threshold(a), threshold(a + b), threshold(a + b + c)];
    let mut edges = memory::try_zeroed(degree << scale)?;
    let blocks = edges.chunks_mut(EDGES_PER_STREAM).enumerate();
    parallel::for_each_item(blocks, |(block, edges)| {
        let mut random = Random::new(seed, Purpose::Edge, block);
        for edge in edges {
            let (mut row, mut col) = (0u64, 0u64);
            for _ in 0..scale {
                let u = random.bits();
                // Branches would be mispredicted half the time, so all three comparisons are
                // evaluated.
                row = row << 1 | u64::from(u >= lower);
                col = col << 1 | u64::from((u >= right) & (u < lower) | (u >= last));
            }
            *edge = (shuffle.of(row) as u32, shuffle.of(col) as u32);
        }
    });
    GeneratedPattern::by_edges(1 << scale, edges)
}

/// Power-law rows; most links are near the diagonal, the others go to few columns.
pub(super) fn webbase(rows: usize, seed: u64) -> Result<GeneratedPattern, Error> {
    let (exponent, scale) = WEBBASE_LENGTHS;
    let (local, reach) = WEBBASE_LOCAL;
    GeneratedPattern::by_rows(rows, &|row, columns| {
        let mut random = Random::new(seed, Purpose::Row, row);
        let tail = (1.0 - random.unit()).powf(-1.0 / exponent) - 1.0;
        let count = rows.min(1 + (scale * tail) as usize);
        let near = window(row, reach, rows);
        random.draw(count, ROUNDS, columns, |random| {
            if random.unit() < local {
                near.start + random.below(near.len())
            } else {
                (random.unit().powi(WEBBASE_SKEW) * rows as f64) as usize
            }
        })
    })
}

/// The diagonal and 2 to 6 entries at most 100 away; `dense` rows, evenly spread, have instead
/// `length` draws from all columns, of which repeated ones count one time.
pub(super) fn circuit(
    rows: usize,
    dense: usize,
    length: usize,
    seed: u64,
) -> Result<GeneratedPattern, Error> {
    let (dense, length) = (dense.min(rows), length.min(rows));
    GeneratedPattern::by_rows(rows, &|row, columns| {
        let mut random = Random::new(seed, Purpose::Row, row);
        // The dense rows are in the middle of equal sections.
        let section = row * dense / rows;
        if dense > 0 && row == (2 * section + 1) * rows / (2 * dense) {
            random.draw(length, 1, columns, |random| random.below(rows))
        } else {
            let count = random.within(2..=6);
            around(row, 100, rows, count, &mut random, columns)
        }
    })
}

/// Rows of 200 to 8200 entries, the short ones more frequent, anywhere in `columns` columns.
pub(super) fn lp(rows: usize, columns: usize, seed: u64) -> Result<GeneratedPattern, Error> {
    GeneratedPattern::by_rows(rows, &|row, row_columns| {
        let mut random = Random::new(seed, Purpose::Row, row);
        let count = 200 + (random.unit().powi(2) * 8001.0) as usize;
        random.distinct(0..columns, count, row_columns)
    })
}

/// Row lengths exp(N(2.5, 1.2)), rounded down, at most 20 000 away from the diagonal.
pub(super) fn lognormal(rows: usize, seed: u64) -> Result<GeneratedPattern, Error> {
    GeneratedPattern::by_rows(rows, &|row, columns| {
        let mut random = Random::new(seed, Purpose::Row, row);
        let count = (2.5 + 1.2 * random.normal()).exp() as usize;
        random.distinct(window(row, 20_000, rows), count, columns)
    })
}

/// Rows with `length` entries on average, lognormal with a deviation of `spread` percent of it, at
/// most `reach` away from the diagonal.
pub(super) fn sweep(
    rows: usize,
    length: usize,
    spread: usize,
    reach: usize,
    seed: u64,
) -> Result<GeneratedPattern, Error> {
    // Parameters of the logarithms that give the requested mean and deviation.
    let variance = (1.0 + (spread as f64 / 100.0).powi(2)).ln();
    let mean = (length.max(1) as f64).ln() - variance / 2.0;
    GeneratedPattern::by_rows(rows, &|row, columns| {
        let mut random = Random::new(seed, Purpose::Row, row);
        let drawn = (mean + variance.sqrt() * random.normal()).exp();
        let count = if length == 0 { 0 } else { drawn.round() as usize };
        random.distinct(window(row, reach, rows), count, columns)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_cut_at_the_borders_and_keeps_its_diagonal() {
        assert_eq!([window(0, 2, 9), window(4, 2, 9), window(8, 2, 9)], [0..3, 2..7, 6..9]);
        let mut random = Random::new(1, Purpose::Row, 0);
        let mut columns = Vec::new();
        for diagonal in 0..9 {
            around(diagonal, 2, 9, 100, &mut random, &mut columns).unwrap();
            assert!(columns.iter().map(|&c| c as usize).eq(window(diagonal, 2, 9)));
            around(diagonal, 2, 9, 1, &mut random, &mut columns).unwrap();
            assert!(
                columns.len() == 2
                    && columns.contains(&(diagonal as u32))
                    && columns[0] < columns[1]
            );
        }
    }

    #[test]
    fn circuits_have_the_requested_dense_rows() {
        for (rows, dense) in [(1000, 5), (1000, 0), (1000, 7), (997, 4)] {
            let p = circuit(rows, dense, 200, 1).unwrap();
            assert_eq!(p.row_ptr.windows(2).filter(|w| w[1] - w[0] > 100).count(), dense);
        }
    }

    #[test]
    fn sweeps_have_the_wished_lengths() {
        let lengths = |length, spread| {
            let p = sweep(20_000, length, spread, 5000, 1).unwrap();
            let lengths: Vec<f64> = p.row_ptr.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
            let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
            let variance =
                lengths.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / lengths.len() as f64;
            (mean, variance.sqrt() / mean)
        };
        assert_eq!([lengths(16, 0), lengths(1, 0)], [(16.0, 0.0), (1.0, 0.0)]);
        assert_eq!(lengths(0, 50).0, 0.0);
        let (mean, deviation) = lengths(40, 100);
        assert!(
            (mean / 40.0 - 1.0).abs() < 0.05 && (deviation - 1.0).abs() < 0.1,
            "{mean} {deviation}"
        );
    }

    #[test]
    fn fem_rows_come_in_equal_threes_of_full_blocks() {
        let p = femrandom(200, 1).unwrap();
        for node in 0..200 {
            let row = |r: usize| &p.col_idx[p.row_ptr[r]..p.row_ptr[r + 1]];
            assert!(row(3 * node) == row(3 * node + 1) && row(3 * node) == row(3 * node + 2));
            assert!(row(3 * node).chunks(3).all(|b| b[0] % 3 == 0 && b[2] == b[0] + 2));
        }
    }
}
