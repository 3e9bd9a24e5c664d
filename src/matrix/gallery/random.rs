//! Random numbers that depend on the seed and on the place they are for, never on the thread: a
//! gallery matrix is therefore the same on any number of threads.

use crate::{Error, memory};
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rand_xoshiro::{SplitMix64, Xoshiro256PlusPlus};
use std::ops::{Range, RangeInclusive};

/// Purpose of random numbers: streams of different purposes are independent even if their seeds and
/// places are equal.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// Columns of one row, or of the rows of one node.
    Row,
    /// Edge of a graph, or a block of edges.
    Edge,
    /// Block of values.
    Value,
    /// Permutation.
    Shuffle,
    /// Structure drawn by a seed of `random`.
    Structure,
    /// Columns that a group of rows has in common.
    Group,
}

/// Hash of a seed, a purpose and a place.
pub(super) fn hash(seed: u64, purpose: Purpose, place: usize) -> u64 {
    let mix = |word| SplitMix64::seed_from_u64(word).next_u64();
    mix(mix(mix(seed) ^ purpose as u64) ^ place as u64)
}

/// A stream of random numbers: Xoshiro256++, seeded by the [`hash`] of its place.
#[derive(Debug, Clone)]
pub(super) struct Random(Xoshiro256PlusPlus);

impl Random {
    pub(super) fn new(seed: u64, purpose: Purpose, place: usize) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(hash(seed, purpose, place)))
    }

    /// 64 random bits.
    pub(super) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in `0 .. n`. The high half of a product, as by Lemire (2019); at 64 bits the bias he
    /// removes is below n / 2⁶⁴ and does not justify his second draw.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// Uniform in `range`.
    pub(super) fn within(&mut self, range: RangeInclusive<usize>) -> usize {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// Uniform in `[0, 1)`.
    pub(super) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `[low, high)`.
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Log-uniform in `[low, high)`; both are above 0.
    pub(super) fn spread_over(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.unit())
    }

    /// Of the standard normal distribution, by Box and Muller.
    pub(super) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Stores in `chosen` `count` different numbers of `range`, ascending, every such choice
    /// equally likely; the whole range if it is no longer than that. Takes time linear in `count`,
    /// except for the sorting.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub(super) fn distinct(
        &mut self,
        range: Range<usize>,
        count: usize,
        chosen: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let size = range.len();
        chosen.clear();
        memory::reserve(chosen, count.min(size))?;
        if count >= size {
            chosen.extend(range.map(|c| c as u32));
        } else if count > size / 2 {
            // Redrawing repeated numbers would take long: Knuth's algorithm S decides one by one.
            for (i, candidate) in range.enumerate() {
                if self.below(size - i) < count - chosen.len() {
                    chosen.push(candidate as u32);
                }
            }
        } else {
            self.draw(count, usize::MAX, chosen, |random| range.start + random.below(size))?;
        }
        Ok(())
    }

    /// Adds draws of `next` to `chosen` until it holds `count` different numbers, ascending. Gives
    /// up after `rounds`, because `next` may have fewer different values.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub(super) fn draw(
        &mut self,
        count: usize,
        rounds: usize,
        chosen: &mut Vec<u32>,
        next: impl Fn(&mut Self) -> usize,
    ) -> Result<(), Error> {
        memory::reserve(chosen, count.saturating_sub(chosen.len()))?;
        for _ in 0..rounds {
            if chosen.len() >= count {
                break;
            }
            for _ in chosen.len()..count {
                chosen.push(next(self) as u32);
            }
            chosen.sort_unstable();
            chosen.dedup();
        }
        Ok(())
    }
}

/// A keyed permutation of the numbers below `count` that is computed, not stored: rounds of an
/// affine map with an odd factor and a shift-xor, both of them one-to-one on the numbers of as many
/// bits, repeated until the number is below `count` again.
#[derive(Debug, Clone)]
pub(super) struct Shuffle {
    count: u64,
    mask: u64,
    shift: u32,
    rounds: [(u64, u64); 4],
}

impl Shuffle {
    /// Creates a permutation of the numbers below `count`, at most 2⁶³.
    pub(super) fn below(seed: u64, count: usize) -> Self {
        let bits = count.next_power_of_two().trailing_zeros();
        let mut random = Random::new(seed, Purpose::Shuffle, 0);
        let rounds = std::array::from_fn(|_| (random.bits() | 1, random.bits()));
        // Shifting by half the width moves the high bits, which the product has mixed, to the low
        // ones, which it has not.
        Self { count: count as u64, mask: (1 << bits) - 1, shift: (bits / 2).max(1), rounds }
    }

    /// Image of `number`, which is below the count.
    pub(super) fn of(&self, number: u64) -> u64 {
        let round = |n: u64, &(factor, term): &(u64, u64)| {
            let n = n.wrapping_mul(factor).wrapping_add(term) & self.mask;
            n ^ (n >> self.shift)
        };
        let mut image = self.rounds.iter().fold(number, round);
        while image >= self.count {
            image = self.rounds.iter().fold(image, round);
        }
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_numbers_rise_and_reach_every_place() {
        let mut random = Random::new(1, Purpose::Row, 0);
        let mut chosen = Vec::new();
        for (size, count) in
            [(0, 0), (0, 3), (1, 1), (5, 9), (10, 2), (10, 5), (10, 7), (10, 10), (1000, 400)]
        {
            let mut hits = vec![0; size];
            for _ in 0..200 {
                random.distinct(7..7 + size, count, &mut chosen).unwrap();
                assert_eq!(chosen.len(), count.min(size));
                assert!(chosen.is_sorted_by(|a, b| a < b));
                chosen.iter().for_each(|&c| hits[c as usize - 7] += 1);
            }
            assert!(hits.iter().all(|&h| h > 0));
        }
    }

    #[test]
    fn a_shuffle_loses_nothing_and_moves_most() {
        for count in [1, 2, 3, 4, 100, 128, 4096, 4097, 5000] {
            let shuffle = Shuffle::below(3, count);
            let mut image: Vec<u64> = (0..count as u64).map(|n| shuffle.of(n)).collect();
            let fixed = image.iter().enumerate().filter(|&(n, &m)| n as u64 == m).count();
            assert!(count < 100 || fixed < 10, "{fixed} of {count} stay");
            image.sort_unstable();
            assert!(image.into_iter().eq(0..count as u64));
        }
    }

    #[test]
    fn the_normal_has_mean_0_and_variance_1() {
        let mut random = Random::new(1, Purpose::Row, 0);
        let draws: Vec<f64> = (0..100_000).map(|_| random.normal()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
