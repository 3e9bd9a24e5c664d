//! Offsets of the diagonals of a matrix.

use crate::Error;
use crate::analysis::{Analysis, GpuColumns, PARALLEL_MIN, RowStats, Sampler};
use crate::device::kernels::dia::Diagonals;
use crate::device::{Launch, Ptr};
use crate::matrix::CsrColumns;
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Kernel file of the format.
pub(super) const FILE: &str = "dia";

/// Kernel that counts the diagonals of a matrix in the memory of a GPU.
pub(super) const KERNEL: &str = "dia_diagonals";

/// Slots per entry above which a matrix is refused, besides [`FREE_SLOTS`].
const MAX_SLOTS: usize = 4;

/// Slots that are always allowed.
const FREE_SLOTS: usize = 1 << 17;

/// Entries per task of a large matrix.
const ENTRIES_PER_TASK: usize = 1 << 17;

/// Largest number of diagonals of a matrix that is not refused.
pub(super) fn most_diagonals(nrows: usize, nnz: usize) -> usize {
    nnz.saturating_mul(MAX_SLOTS).saturating_add(FREE_SLOTS) / nrows.max(1)
}

/// Number of diagonals of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DiagonalCount {
    /// The number. None if it exceeds `most`.
    exact: Option<usize>,
    /// Largest number of a matrix that is not refused.
    most: usize,
}

impl DiagonalCount {
    /// Count of the diagonals of `a`, by the returned function. A GPU that has the matrix in its
    /// memory begins before.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(super) fn begin<'a>(
        a: Sampler<'a>,
        rows: &RowStats,
    ) -> Result<impl FnOnce() -> Result<Self, Error> + 'a, Error> {
        let most = most_diagonals(a.nrows(), a.nnz());
        let on_gpu = match a {
            // A row has as many diagonals as entries.
            Sampler::Gpu(a) if rows.max as usize <= most => Some((a, begin_on_gpu(a, most)?)),
            _ => None,
        };
        Ok(move || {
            let exact = match (a, on_gpu) {
                (Sampler::Host(a), _) => offsets(a).map(|offsets| offsets.len()),
                (Sampler::Gpu(_), None) => None,
                (Sampler::Gpu(_), Some((a, found))) => {
                    let mut count = [0];
                    a.work.read(found, &mut count)?;
                    usize::try_from(count[0]).ok().filter(|&count| count <= most)
                }
            };
            Ok(Self { exact, most })
        })
    }

    /// The count of an analysed matrix.
    pub(super) fn of(analysis: &Analysis) -> &Self {
        analysis.probes.get().expect("every format probes every matrix")
    }

    /// True if there are too many.
    pub(super) const fn is_refused(self) -> bool {
        self.exact.is_none()
    }

    /// The number, or the least that it may be.
    pub(super) fn at_least(self) -> usize {
        self.exact.unwrap_or(self.most + 1)
    }
}

/// Enqueues the count of the diagonals of a matrix in the memory of a GPU: their number, or any
/// number above `most`.
fn begin_on_gpu(a: &GpuColumns<'_>, most: usize) -> Result<Ptr<u64>, Error> {
    let words = (a.nrows + a.ncols).div_ceil(u32::BITS as usize);
    let slots = (2 * most + 2).next_power_of_two();
    let found = a.work.cleared::<u64>(1)?;
    let launch = Launch::over(a.nrows, 1).with(Diagonals {
        row_ptr: a.row_ptr(),
        cols: a.col_idx(),
        nrows: a.nrows as u32,
        most: most as u64,
        occupied: a.work.cleared(words)?,
        later: a.work.cleared(slots)?,
        slots: slots as u64,
        found,
    });
    // SAFETY: there is a thread for every row, a bit for every diagonal, and more slots than keys.
    unsafe { a.work.run(FILE, KERNEL, launch)? };
    Ok(found)
}

/// Offsets of the diagonals that hold the entries of every row in their order. The columns of a row
/// are ascending sequences, one after the other. The offsets are an ascending sequence for the
/// first one of every row, another for the second, and so on. None if they are more than
/// [`most_diagonals`].
pub(super) fn offsets(a: CsrColumns<'_>) -> Option<Vec<i64>> {
    let most = most_diagonals(a.nrows(), a.nnz());
    let first = OffsetSet::new(a, most);
    let tasks = a.nnz().max(a.nrows()).div_ceil(ENTRIES_PER_TASK);
    let range = |task: usize| a.nrows() * task / tasks..a.nrows() * (task + 1) / tasks;
    let later = if a.nnz().max(a.nrows()) < PARALLEL_MIN {
        first.scan(0..a.nrows())?
    } else {
        (0..tasks).into_par_iter().map(|task| first.scan(range(task))).try_reduce(
            BTreeSet::new,
            |mut one, mut other| {
                one.append(&mut other);
                Some(one)
            },
        )?
    };
    let sorted = first.offsets();
    let fits = sorted.len() + later.len() <= most;
    fits.then(|| sorted.into_iter().chain(later.into_iter().map(|(_, offset)| offset)).collect())
}

/// True if each column is the one to the right of the column above. All are compared, so that the
/// compiler uses SIMD.
fn is_shifted(cols: &[u32], above: &[u32]) -> bool {
    let differences = cols.iter().zip(above).map(|(col, above)| col.wrapping_sub(*above) ^ 1);
    differences.fold(0, |all, difference| all | difference) == 0
}

/// Number of the ascending sequence in its row, from 0, and offset of an entry.
type RowDiagonal = (u32, i64);

/// Offsets of entries in the first sequences of their rows: a bit for each that occurs.
struct OffsetSet<'a> {
    a: CsrColumns<'a>,
    bits: Vec<AtomicU64>,
    count: AtomicUsize,
    most: usize,
}

impl<'a> OffsetSet<'a> {
    fn new(a: CsrColumns<'a>, most: usize) -> Self {
        let words = (a.nrows() + a.ncols()).div_ceil(u64::BITS as usize);
        let bits = std::iter::repeat_with(AtomicU64::default).take(words).collect();
        Self { a, bits, count: AtomicUsize::new(0), most }
    }

    /// Adds the rows of a range, and returns the places of entries in later sequences. None if
    /// there are too many diagonals.
    fn scan(&self, rows: Range<usize>) -> Option<BTreeSet<RowDiagonal>> {
        let mut later = BTreeSet::new();
        let mut above: &[u32] = &[];
        for row in rows {
            let cols = self.a.row(row);
            // Most rows of a matrix with few diagonals are the one above, shifted.
            if cols.len() != above.len() || !is_shifted(cols, above) {
                self.add(row, cols, &mut later);
                if self.count.load(Relaxed) + later.len() > self.most {
                    return None;
                }
            }
            above = cols;
        }
        Some(later)
    }

    fn add(&self, row: usize, cols: &[u32], later: &mut BTreeSet<RowDiagonal>) {
        let mut sequence = 0;
        for (k, &col) in cols.iter().enumerate() {
            sequence += u32::from(k > 0 && col <= cols[k - 1]);
            if sequence > 0 {
                later.insert((sequence, i64::from(col) - row as i64));
                continue;
            }
            let place = col as usize + self.a.nrows() - row;
            let (word, bit) = (&self.bits[place / 64], 1 << (place % 64));
            if word.load(Relaxed) & bit == 0 && word.fetch_or(bit, Relaxed) & bit == 0 {
                self.count.fetch_add(1, Relaxed);
            }
        }
    }

    /// The offsets, ascending.
    fn offsets(&self) -> Vec<i64> {
        let nrows = self.a.nrows() as i64;
        let words = self.bits.iter().enumerate();
        let places = words.flat_map(|(at, word)| {
            let mut rest = word.load(Relaxed);
            std::iter::from_fn(move || {
                let bit = i64::from(rest.trailing_zeros());
                rest &= rest.wrapping_sub(1);
                (bit < 64).then_some(at as i64 * 64 + bit)
            })
        });
        places.map(|place| place - nrows).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{CsrMatrix, gallery};

    #[test]
    fn large_matrices_are_counted_by_all_threads() {
        for (spec, expected) in [("poisson2d,n=500", 5), ("poisson3d,n=60", 7)] {
            let a = spec.parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
            assert!(a.nnz() > PARALLEL_MIN);
            let found = offsets(a.view().columns()).unwrap();
            assert_eq!(found.len(), expected, "{spec}");
            assert!(found.is_sorted());
        }
    }

    #[test]
    fn places_at_the_corners_are_counted() {
        let a = CsrMatrix::try_new(3, 5, vec![0, 1, 1, 2], vec![4, 0], vec![1.0f32; 2]).unwrap();
        assert_eq!(offsets(a.view().columns()).unwrap(), [-2, 4]);
        let none = CsrMatrix::<f32>::zeros(0, 0).unwrap();
        assert!(offsets(none.view().columns()).unwrap().is_empty());
    }
}
