//! Artificial matrices with given statistics.

use super::irregular::{ROUNDS, window};
use super::pattern::GeneratedPattern;
use super::random::{Purpose, Random, Shuffle};
use crate::Error;
use std::cell::Cell;

/// Statistics of an artificial matrix, as in Mpakos et al. (IPDPS 2023).
#[derive(Debug, Clone, Copy)]
pub(super) struct Statistics {
    rows: usize,
    nnz: usize,
    /// Standard deviation of the row lengths, in entries.
    deviation: usize,
    /// Length of the longest row.
    longest: usize,
    /// Columns of the band around the diagonal, in percent of all.
    band: usize,
    /// Entries that follow another one of their row directly, in percent.
    adjacent: usize,
    /// Rows with the first columns of the row above, in percent.
    similar: usize,
}

/// Row lengths: the sum of a normal part, with a deviation of at most half the mean, and of a tail
/// that falls exponentially from the longest row.
#[derive(Debug, Clone, Copy)]
struct Lengths {
    normal_mean: f64,
    normal_deviation: f64,
    tail_mean: f64,
    decay: f64,
    longest: f64,
}

impl Lengths {
    /// Length of the row at `rank`, from 0, the longest row, to 1.
    fn draw(self, rank: f64, random: &mut Random) -> usize {
        // The decay is infinite without a tail.
        let tail = if rank == 0.0 { 1.0 } else { (-self.decay * rank).exp() };
        let normal = self.normal_mean + self.normal_deviation * random.normal();
        (self.longest * tail + normal.max(0.0)).round().min(self.longest) as usize
    }
}

impl Statistics {
    /// Creates statistics of the parameters of the registry, in their order.
    pub(super) fn new(parameters: &[usize]) -> Self {
        let [rows, nnz, deviation, longest, band, adjacent, similar] =
            std::array::from_fn(|i| parameters[i]);
        Self { rows, nnz, deviation, longest, band, adjacent, similar }
    }

    /// Expected mean row length: more than requested if the tail alone has more, less if rows may
    /// not be long enough.
    pub(super) fn mean_length(self) -> f64 {
        let lengths = self.lengths();
        (lengths.normal_mean + lengths.tail_mean).min(lengths.longest)
    }

    /// Distribution of the row lengths.
    fn lengths(self) -> Lengths {
        let Self { rows, nnz, .. } = self;
        let mean = nnz as f64 / rows.max(1) as f64;
        let (deviation, longest) = (self.deviation as f64, self.longest.min(rows) as f64);
        let normal_deviation = deviation.min(mean / 2.0);
        let tail_variance = deviation.powi(2) - normal_deviation.powi(2);
        // Of longest · exp(−decay · x), x uniform in [0, 1): mean longest / decay, mean square
        // longest² / (2 decay), but for what is left at x = 1.
        let decay = longest.powi(2) / (2.0 * tail_variance);
        let tail_mean = if decay.is_finite() { longest / decay * -(-decay).exp_m1() } else { 0.0 };
        let normal_mean = (mean - tail_mean).max(0.0);
        let normal_deviation = normal_deviation.min(normal_mean);
        Lengths { normal_mean, normal_deviation, tail_mean, decay, longest }
    }

    /// Pattern with about these statistics.
    pub(super) fn pattern(self, seed: u64) -> Result<GeneratedPattern, Error> {
        let (rows, lengths, shuffle) = (self.rows, self.lengths(), Shuffle::below(seed, self.rows));
        let share = |percent: usize| percent as f64 / 100.0;
        let similar = |row| Random::new(seed, Purpose::Row, row).unit() < share(self.similar);
        let reach = (rows as f64 * share(self.band) / 2.0) as usize;
        GeneratedPattern::by_rows(rows, &|row, columns| {
            let rank = shuffle.of(row as u64) as f64 / rows as f64;
            let count = lengths.draw(rank, &mut Random::new(seed, Purpose::Structure, row));
            // Similar rows draw from the stream of the first of them.
            let first = (1..=row).rev().find(|&row| !similar(row)).unwrap_or(0);
            let mut random = Random::new(seed, Purpose::Group, first);
            // The band of a long row is wider.
            let near = window(first, reach.max(count), rows);
            if 2 * count > near.len() {
                return random.distinct(near, count, columns);
            }
            let next = Cell::new(near.end);
            random.draw(count, ROUNDS, columns, |random| {
                let column = if random.unit() < share(self.adjacent) && next.get() < near.end {
                    next.get()
                } else {
                    near.start + random.below(near.len())
                };
                next.set(column + 1);
                column
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artificial_matrices_have_the_requested_statistics() {
        let requested = [20_000, 200_000, 20, 1000, 20, 60, 50];
        let p = Statistics::new(&requested).pattern(1).unwrap();
        let rows: Vec<&[u32]> = p.row_ptr.windows(2).map(|w| &p.col_idx[w[0]..w[1]]).collect();
        let mean = p.col_idx.len() as f64 / 20_000.0;
        let square = |row: &&[u32]| (row.len() as f64 - mean).powi(2);
        let deviation = (rows.iter().map(square).sum::<f64>() / 20_000.0).sqrt();
        assert!((mean - 10.0).abs() < 1.0 && (deviation - 20.0).abs() < 4.0, "{mean} {deviation}");
        assert_eq!(rows.iter().map(|row| row.len()).max(), Some(1000));
        let adjacent = |row: &&[u32]| row.windows(2).filter(|w| w[1] == w[0] + 1).count();
        let adjacent = rows.iter().map(adjacent).sum::<usize>() as f64 / p.col_idx.len() as f64;
        assert!((adjacent - 0.6).abs() < 0.1, "{adjacent}");
        let similar = rows.windows(2).filter(|w| w[1].len() > 1 && w[0].contains(&w[1][0]));
        let similar = similar.count() as f64 / 20_000.0;
        assert!(similar > 0.25 && similar < 0.6, "{similar}");
        let outside = |(row, columns): (usize, &&[u32])| {
            columns.len() < 500 && columns.iter().any(|&c| row.abs_diff(c as usize) > 2500)
        };
        assert!(!rows.iter().enumerate().any(outside));
    }
}
