//! Fingerprints: 128-bit hashes that identify the matrix of a stored decision.

use crate::Scalar;
use crate::device::cpu::prepare_threads;
use crate::matrix::{CsrColumns, CsrView};
use crate::parallel;
use serde::{Deserialize, Serialize};
use std::fmt::{Debug, Display, Formatter};
use std::str::FromStr;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Array elements per hashed block. Part of the definition: another value gives other fingerprints.
const BLOCK: usize = 1 << 12;

/// Elements converted to bytes at a time: at most 2 KiB, which stay in the first-level cache.
const BUFFER: usize = 256;

/// Hex digits of a fingerprint.
const HEX_DIGITS: usize = 32;

/// Hashes of consecutive blocks of one array.
type Digests = Vec<u128>;

/// 128-bit hash of the structure of a matrix, or of its values.
///
/// Every array is cut into blocks of 4096 elements, each hashed by XXH3-128 over its little-endian
/// bytes. The fingerprint is the XXH3-128 of a name, the lengths (as 64-bit integers) and those
/// hashes in order. It is therefore the same in every run, on any number of threads and on every
/// machine, independent of its byte order and the width of its `usize`. It is written as 32 hex
/// digits. XXH3 is not cryptographic: it gives no protection against matrices made to collide.
///
/// ```
/// # use sparseop::{analysis::Fingerprint, matrix::CsrMatrix};
/// let a = CsrMatrix::try_new(1, 2, vec![0, 1], vec![1], vec![3.0f32])?;
/// let structure = Fingerprint::of(a.view());
/// assert_eq!(structure.to_string().parse(), Ok(structure));
/// # Ok::<(), sparseop::Error>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// Hashes the structure: the shape, `row_ptr` (the last offset as the number of entries) and
    /// `col_idx`. Matrices that differ only in their values, or in the type of their values, have
    /// the same fingerprint.
    pub fn of<T: Scalar>(a: CsrView<'_, T>) -> Self {
        prepare_threads();
        Self::of_columns(a.columns())
    }

    fn of_columns(a: CsrColumns<'_>) -> Self {
        let offsets = digests(&a.row_ptr()[..a.nrows()], digest_offsets);
        let columns = digests(a.col_idx(), digest_columns);
        Self::combine(b"structure.1.....", &[a.nrows(), a.ncols(), a.nnz()], &[&offsets, &columns])
    }

    fn combine(name: &[u8; 16], sizes: &[usize], digests: &[&Digests]) -> Self {
        let mut bytes = name.to_vec();
        for &size in sizes {
            bytes.extend_from_slice(&(size as u64).to_le_bytes());
        }
        for digests in digests {
            for digest in *digests {
                bytes.extend_from_slice(&digest.to_le_bytes());
            }
        }
        Self(xxh3_128(&bytes))
    }
}

/// Digests of all blocks.
fn digests<E: Sync>(elements: &[E], digest: fn(&[E]) -> u128) -> Digests {
    parallel::map_ranges(elements.len(), BLOCK, |range| digest(&elements[range]))
}

/// Digest of one block of row offsets.
fn digest_offsets(offsets: &[usize]) -> u128 {
    digest(offsets, |offset| (offset as u64).to_le_bytes())
}

/// Digest of one block of column indices.
fn digest_columns(columns: &[u32]) -> u128 {
    digest(columns, u32::to_le_bytes)
}

/// Hashes one block. The copy through `buffer` costs little compared with the hash and needs
/// neither `unsafe` nor a second path for big-endian machines.
fn digest<E: Copy, const N: usize>(elements: &[E], to_bytes: impl Fn(E) -> [u8; N]) -> u128 {
    let mut hasher = Xxh3::new();
    let mut buffer = [[0; N]; BUFFER];
    for elements in elements.chunks(BUFFER) {
        for (bytes, &element) in buffer.iter_mut().zip(elements) {
            *bytes = to_bytes(element);
        }
        hasher.update(buffer[..elements.len()].as_flattened());
    }
    hasher.digest128()
}

impl Display for Fingerprint {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:0HEX_DIGITS$x}", self.0)
    }
}

impl Debug for Fingerprint {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

/// Error: a text is not 32 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a fingerprint: it must be {HEX_DIGITS} hex digits")]
pub struct ParseFingerprintError {
    text: String,
}

impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.len() == HEX_DIGITS && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or_else(|| ParseFingerprintError { text: text.to_owned() })
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = ParseFingerprintError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::CsrMatrix;

    /// 3 0 1 / 0 0 0 / 0 2 0, and one more column.
    fn small() -> CsrMatrix<f64> {
        CsrMatrix::try_new(3, 4, vec![0, 2, 2, 3], vec![0, 2, 1], vec![3.0, 1.0, 2.0]).unwrap()
    }

    /// Literals computed from the definition with the reference implementation of XXH3.
    #[test]
    fn golden() {
        let a = small();
        assert_eq!(Fingerprint::of(a.view()).to_string(), "22f659dead6d2878af7c2742c4d5bf7f");
        let zeros = CsrMatrix::<f32>::zeros(0, 0).unwrap();
        assert_eq!(Fingerprint::of(zeros.view()).to_string(), "cdd8b2eca67c5da0e4e3921e12d8cbea");
        // Several blocks: 10,000 rows of two entries, on the diagonal and beside it.
        let (row_ptr, col_idx) =
            ((0..=20_000).step_by(2).collect(), (0..10_000).flat_map(|i| [i, i + 1]).collect());
        let a = CsrMatrix::try_new(10_000, 10_001, row_ptr, col_idx, vec![1.0f32; 20_000]).unwrap();
        assert_eq!(Fingerprint::of(a.view()).to_string(), "6b087eb7521853ca7ebc9c2c8f2c1dcb");
    }

    #[test]
    fn every_part_of_the_structure_counts_and_values_do_not() {
        let base = Fingerprint::of(small().view());
        let of = |n, row_ptr: [usize; 4], col_idx: [u32; 3]| {
            let a = CsrMatrix::try_new(3, n, row_ptr.to_vec(), col_idx.to_vec(), vec![9.0f32; 3])
                .unwrap();
            Fingerprint::of(a.view())
        };
        assert_eq!(of(4, [0, 2, 2, 3], [0, 2, 1]), base);
        let others = [
            of(5, [0, 2, 2, 3], [0, 2, 1]),
            of(4, [0, 2, 3, 3], [0, 2, 1]),
            of(4, [0, 2, 2, 3], [2, 0, 1]),
        ];
        assert!(others.iter().all(|&other| other != base));
    }

    #[test]
    fn trailing_empty_rows_count() {
        let of = |nrows| Fingerprint::of(CsrMatrix::<f32>::zeros(nrows, 1).unwrap().view());
        assert!((1..20).all(|nrows| of(nrows) != of(nrows - 1)));
    }

    #[test]
    fn the_number_of_threads_does_not_count() {
        let columns = (0..5 * BLOCK as u32 + 7).collect::<Vec<_>>();
        let (n, values) = (columns.len(), vec![1.0f64; columns.len()]);
        let a = CsrMatrix::try_new(1, n, vec![0, n], columns, values).unwrap();
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| Fingerprint::of(a.view()))
        };
        assert_eq!(on(1), on(3));
    }

    #[test]
    fn text_and_serde_go_there_and_back() {
        let fingerprint = Fingerprint(0xabc);
        assert_eq!(fingerprint.to_string(), "00000000000000000000000000000abc");
        assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
        let json = serde_json::to_string(&fingerprint).unwrap();
        assert_eq!(json, "\"00000000000000000000000000000abc\"");
        assert_eq!(serde_json::from_str::<Fingerprint>(&json).unwrap(), fingerprint);
        for wrong in
            ["", "abc", "+0000000000000000000000000000abc", "g0000000000000000000000000000abc"]
        {
            assert!(
                wrong.parse::<Fingerprint>().unwrap_err().to_string().contains("32 hex digits")
            );
        }
    }
}
