//! Residency in the L2 cache of a GPU: the part of a matrix that stays there between products.
//!
//! A product touches the matrix, `x` and `y`. If all of it fits, the matrix is read by normal loads
//! and stays. Normal loads of more than fits evict one another before the next product. In that
//! case one part is read by normal loads and stays, and the rest is read evict-first. `x` is always
//! read by normal loads, and small results are stored by normal stores. Beside a matrix that is
//! streamed, large results are stored evict-first, so that they displace less of `x`. Thread blocks
//! are counted in shares of 16, so that loads from the L2 and from memory are in flight at the same
//! time.
//!
//! Measured on an H200 (L2 of 60 MiB; packed SELL and CSR, f32 and f64, 10 to 210 MB): all stays up
//! to 0.64 of the L2. That is less than all of it because an H200's L2 has two halves, and data
//! read by multiprocessors of both is held twice. Above, the best part, vectors counted, shrinks
//! from 28 MB of 50 to 15 of 140; of larger products any part costs more than it saves. Results
//! stored evict-first gain up to 9 % where the vectors take half of the L2 to all of it, nothing
//! where they take more. The rule is stated in units of the L2, so it scales to GPUs with another
//! size; it was measured on this one.

use super::constants::{SHARES, STREAM_RESULTS};
use super::{Gpu, Queue};
use crate::Scalar;
use std::fmt::{self, Display};
use std::sync::atomic::Ordering::Relaxed;

/// Largest product of which everything stays, in units of the L2.
const ALL: f64 = 0.64;

/// Part of a larger product that stays, in units of the L2: `PART - SHRINK` × its size.
const PART: f64 = 0.55;
const SHRINK: f64 = 0.14;

/// Smallest vectors of which results are stored evict-first, in units of the L2.
const VECTORS: f64 = 0.25;

/// Environment variable: bytes of the L2 in place of those of the GPU, for kernels of large
/// matrices on small ones.
#[cfg(test)]
pub(crate) const TEST_L2_BYTES: &str = "SPARSEOP_TEST_L2_BYTES";

/// Part of a matrix that stays in the L2 of its GPU between products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Residency {
    /// Bytes that a product touches, and those of them that are vectors.
    bytes: u64,
    vectors: u64,
    l2_bytes: u64,
    /// Shares of the matrix that stay, out of [`SHARES`].
    shares: u32,
    /// True if results are stored evict-first.
    stream_results: bool,
}

impl Residency {
    /// The residency of a matrix of `matrix_bytes` bytes and of this shape.
    pub(crate) fn of<T: Scalar>(
        gpu: Gpu,
        matrix_bytes: u64,
        (nrows, ncols): (usize, usize),
    ) -> Self {
        let vectors = (nrows + ncols) * size_of::<T>();
        #[cfg(test)]
        if let Ok(bytes) = std::env::var(TEST_L2_BYTES) {
            let bytes = bytes.parse().expect("a number of bytes");
            return Self::of_bytes(matrix_bytes, vectors as u64, bytes);
        }
        Self::of_bytes(matrix_bytes, vectors as u64, gpu.l2_bytes())
    }

    /// The residency if a product touches `matrix` bytes of the matrix and `vectors` bytes of
    /// vectors.
    fn of_bytes(matrix: u64, vectors: u64, l2_bytes: u64) -> Self {
        let bytes = matrix + vectors;
        let all = Self { bytes, vectors, l2_bytes, shares: SHARES, stream_results: false };
        match bytes as f64 / l2_bytes.max(1) as f64 {
            ..=ALL => all,
            _ => Self { shares: all.part(0), ..all },
        }
    }

    /// Shares that stay of a product of which not all stays, if `other` bytes of other data
    /// pass through it between two products.
    fn part(self, other: u64) -> u32 {
        let in_l2 = |bytes: u64| bytes as f64 / self.l2_bytes.max(1) as f64;
        let stays = PART - SHRINK * in_l2(self.bytes) - in_l2(self.vectors.saturating_add(other));
        let of_matrix = stays / in_l2(self.bytes - self.vectors);
        (of_matrix * f64::from(SHARES)).round().clamp(0.0, SHARES.into()) as u32
    }

    /// The same residency for a kernel that stores every result once, where no later kernel of the
    /// product reads them: large results beside a streamed matrix are stored evict-first.
    pub(crate) fn with_final_results(self) -> Self {
        let large = self.vectors as f64 >= VECTORS * self.l2_bytes as f64;
        Self { stream_results: self.streams() && large, ..self }
    }

    /// The same product with everything read by normal loads, for kernels that read a cache line
    /// several times.
    pub(crate) const fn without_streaming(self) -> Self {
        Self { shares: SHARES, stream_results: false, ..self }
    }

    /// Rounds to all or nothing, for kernels that cannot keep a part.
    pub(crate) const fn whole(self) -> Self {
        Self { shares: if self.shares * 2 < SHARES { 0 } else { SHARES }, ..self }
    }

    /// True if some of the matrix is read evict-first.
    pub(crate) const fn streams(self) -> bool {
        self.shares < SHARES
    }

    /// Shares that stay.
    pub(crate) const fn shares(self) -> u32 {
        self.shares
    }

    /// Shares that stay and whether results are stored evict-first, as a parameter of kernels on a
    /// queue: fewer stay if the vectors of a solver pass through the L2, too.
    pub(crate) fn l2_shares(self, queue: &Queue) -> u32 {
        self.l2_shares_beside(queue.other_bytes().load(Relaxed))
    }

    fn l2_shares_beside(self, other: u64) -> u32 {
        let part = if self.streams() && other > 0 { self.part(other) } else { self.shares };
        self.shares.min(part) + if self.stream_results { STREAM_RESULTS } else { 0 }
    }
}

impl Display for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let (bytes, l2) = (mb(self.bytes), mb(self.l2_bytes));
        write!(f, "a product touches {bytes:.1} MB, the L2 holds {l2:.0}: ")?;
        match self.shares {
            SHARES if self.bytes <= self.l2_bytes => f.write_str("all stays"),
            SHARES => f.write_str("all read by normal loads"),
            0 => f.write_str("the matrix is streamed"),
            shares => write!(f, "{shares}/{SHARES} of the matrix stay, the rest is streamed"),
        }?;
        f.write_str(if self.stream_results { ", and so are results" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: u64 = 60 << 20;

    fn shares(megabytes: u64) -> u32 {
        Residency::of_bytes(megabytes * 950_000, megabytes * 50_000, H200).shares
    }

    #[test]
    fn all_of_a_small_product_stays_a_part_of_a_larger_one_and_nothing_of_a_huge_one() {
        assert_eq!([0, 1, 20, 40].map(shares), [SHARES; 4]);
        assert_eq!([48, 59, 78, 102, 139].map(shares), [9, 7, 4, 3, 1]);
        assert_eq!([180, 1_000, 1_000_000].map(shares), [0; 3]);
        let long_vectors = Residency::of_bytes(36_000_000, 23_000_000, H200);
        assert_eq!(long_vectors.shares, 1, "vectors stay before any of the matrix");
        let every: Vec<u32> = (1..400).map(shares).collect();
        assert!(every.windows(2).all(|pair| pair[1] <= pair[0]), "{every:?}");
    }

    #[test]
    fn large_final_results_beside_a_streamed_matrix_are_streamed() {
        let l2_shares = |matrix: u64, vectors: u64| {
            let residency = Residency::of_bytes(matrix << 20, vectors << 20, H200);
            let last = residency.with_final_results();
            assert_eq!(residency.l2_shares_beside(0), last.l2_shares_beside(0) % STREAM_RESULTS);
            assert_eq!(last.without_streaming().l2_shares_beside(0), SHARES);
            last.l2_shares_beside(0)
        };
        assert_eq!(l2_shares(300, 15), STREAM_RESULTS);
        assert_eq!(l2_shares(35, 20), 2 + STREAM_RESULTS);
        assert_eq!(l2_shares(300, 14), 0, "small results stay");
        assert_eq!(l2_shares(10, 20), SHARES, "all stays");
    }

    #[test]
    fn vectors_of_a_solver_leave_less_room_for_the_matrix() {
        // CG on a grid of 120³ in f32: two vectors besides those of the product.
        let (matrix, vector) = (48_400_000, 6_912_000);
        let shares =
            |other| Residency::of_bytes(matrix, 2 * vector, H200).l2_shares_beside(other * vector);
        assert_eq!([0, 1, 2, 3].map(shares), [4, 2, 0, 0]);
        let small = Residency::of_bytes(10_000_000, 2_000_000, H200);
        assert_eq!(small.l2_shares_beside(100_000_000), SHARES, "read by normal loads");
        assert_eq!(shares(u64::MAX / vector), 0);
        let results = Residency::of_bytes(300 << 20, 15 << 20, H200).with_final_results();
        assert_eq!(results.l2_shares_beside(1 << 20), STREAM_RESULTS);
    }

    #[test]
    fn a_gpu_of_unknown_cache_size_streams() {
        assert_eq!(Residency::of_bytes(1_000_000, 1_000, 0).shares, 0);
    }

    #[test]
    fn display_states_the_resident_share() {
        let text = |megabytes: u64| Residency::of_bytes(megabytes * 1_000_000, 0, H200).to_string();
        assert_eq!(text(20), "a product touches 20.0 MB, the L2 holds 63: all stays");
        assert!(
            text(59).ends_with("7/16 of the matrix stay, the rest is streamed"),
            "{}",
            text(59)
        );
        assert!(text(500).ends_with("the matrix is streamed"));
        let long_vectors = Residency::of_bytes(500_000_000, 50_000_000, H200).with_final_results();
        assert!(long_vectors.to_string().ends_with("the matrix is streamed, and so are results"));
        let all = Residency::of_bytes(500_000_000, 0, H200).without_streaming();
        assert!(!all.streams() && all.to_string().ends_with("all read by normal loads"));
    }
}
