//! Assembly of CSR from entries in any order: a stable, parallel bucket sort by rows.
//!
//! The entries arrive in runs, each a part of the sequence. A run is sorted by bucket (a block of
//! neighbouring rows) while it is still in the cache. Then every bucket collects its entries from
//! all runs and builds its rows independently. Both steps keep the order of the sequence, so that
//! the result does not depend on the number of threads.
//!
//! The entries take 10 or 14 bytes each in the runs, and 8 or 12 in CSR. Buckets are built from the
//! last one on, in groups, after each of which the runs return the memory of its entries to the
//! system: both together take little more than the runs alone.

use super::CsrMatrix;
use crate::memory::{filled, listed, release_spare, reserve, return_freed, try_zeroed};
use crate::order;
use crate::parallel::{self, SparePool};
use crate::{Error, Scalar};

/// Maximum number of buckets, unless they would have more than 2¹⁶ rows: enough to occupy many
/// cores, few enough that the write position of each stays in the L1 cache.
const MAX_BUCKETS: usize = 256;

/// Number of entries up to which the runs are freed at the end.
const SMALL: usize = 1 << 20;

/// One entry, counted from 0.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MatrixEntry<T> {
    pub(crate) row: u32,
    pub(crate) col: u32,
    pub(crate) value: T,
}

/// Treatment of entries with the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeated {
    /// Summed in the order of the sequence.
    Summed,
    /// Stored individually, in the order of the sequence.
    Separate,
}

/// An entry of a bucket, without padding: all entries of a matrix are held in this form beside the
/// arrays that they become.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, packed)]
struct BucketEntry<T> {
    /// Row, counted from the first of the bucket.
    row: u16,
    col: u32,
    value: T,
}

/// Assignment of rows to buckets: `2^shift` neighbouring rows each, at most 2¹⁶.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buckets {
    shift: u32,
    count: usize,
}

impl Buckets {
    pub(crate) fn new(nrows: usize) -> Self {
        let shift = nrows.div_ceil(MAX_BUCKETS).next_power_of_two().trailing_zeros().min(u16::BITS);
        Self { shift, count: nrows.div_ceil(1 << shift) }
    }

    fn of(self, row: u32) -> usize {
        row as usize >> self.shift
    }

    /// Number of the row in its bucket.
    fn within(self, row: u32) -> u16 {
        (row & ((1 << self.shift) - 1)) as u16
    }
}

/// A run of consecutive entries, sorted by bucket: bucket `b` is `starts[b] .. starts[b + 1]`.
pub(crate) struct SortedRun<T> {
    entries: Vec<BucketEntry<T>>,
    starts: Vec<usize>,
}

impl<T: Scalar> SortedRun<T> {
    /// Sorts the next entries of the sequence by bucket. Every row must be below the number given
    /// to `buckets`.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub(crate) fn new(buckets: Buckets, sequence: &[MatrixEntry<T>]) -> Result<Self, Error> {
        let mut starts = filled(buckets.count + 1, 0)?;
        for entry in sequence {
            starts[buckets.of(entry.row) + 1] += 1;
        }
        for b in 0..buckets.count {
            starts[b + 1] += starts[b];
        }
        let mut next = listed(starts.iter().copied())?;
        let mut entries = filled(sequence.len(), BucketEntry::default())?;
        for &MatrixEntry { row, col, value } in sequence {
            let slot = &mut next[buckets.of(row)];
            entries[*slot] = BucketEntry { row: buckets.within(row), col, value };
            *slot += 1;
        }
        Ok(Self { entries, starts })
    }

    /// A run of an assembly that has failed.
    pub(crate) const fn empty() -> Self {
        Self { entries: Vec::new(), starts: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn bucket(&self, b: usize) -> &[BucketEntry<T>] {
        &self.entries[self.starts[b]..self.starts[b + 1]]
    }

    /// Frees the entries from a bucket on.
    fn truncate(&mut self, bucket: usize) {
        self.entries.truncate(self.starts[bucket]);
        release_spare(&mut self.entries);
    }
}

/// Output of one bucket: the ends of its rows and its share of the other two arrays.
struct Share<'a, T> {
    bucket: usize,
    row_ends: &'a mut [usize],
    col_idx: &'a mut [u32],
    values: &'a mut [T],
}

/// Working memory of one thread, reused for each bucket.
struct SortScratch<T> {
    /// Next position of each row.
    next: Vec<usize>,
    /// Entries of a row, sorted by column.
    sorted: Vec<(u32, T)>,
}

/// Builds the matrix of all runs: columns ascending in every row, explicit zeros kept. Every column
/// must be below `ncols`.
///
/// # Errors
///
/// [`Error::HostMemory`].
pub(crate) fn to_csr<T: Scalar>(
    nrows: usize,
    ncols: usize,
    buckets: Buckets,
    mut runs: Vec<SortedRun<T>>,
    repeated: Repeated,
) -> Result<CsrMatrix<T>, Error> {
    let nnz = runs.iter().map(SortedRun::len).sum();
    let mut row_ptr = try_zeroed::<usize>(nrows + 1)?;
    let (mut col_idx, mut values) = (try_zeroed::<u32>(nnz)?, try_zeroed::<T>(nnz)?);
    if nnz == 0 {
        return Ok(CsrMatrix { nrows, ncols, row_ptr, col_idx, values });
    }
    let sizes: Vec<usize> =
        (0..buckets.count).map(|b| runs.iter().map(|run| run.bucket(b).len()).sum()).collect();
    let (mut cols_left, mut values_left) = (&mut col_idx[..], &mut values[..]);
    let shares: Vec<_> = row_ptr[1..]
        .chunks_mut(1 << buckets.shift)
        .zip(&sizes)
        .enumerate()
        .map(|(bucket, (row_ends, &size))| Share {
            bucket,
            row_ends,
            col_idx: cols_left.split_off_mut(..size).expect("the sizes add up to nnz"),
            values: values_left.split_off_mut(..size).expect("the sizes add up to nnz"),
        })
        .collect();
    let spare = SparePool::new(|| SortScratch { next: Vec::new(), sorted: Vec::new() });
    let mut kept = vec![0; sizes.len()];
    let mut left = shares.into_iter().zip(&mut kept).rev();
    while left.len() > 0 {
        let group = group_len::<T>(&sizes[..left.len()], nnz);
        parallel::try_for_each_item(left.by_ref().take(group), |(share, kept)| {
            *kept = spare.with(|scratch| fill_bucket(&runs, share, scratch, repeated))?;
            Ok::<_, Error>(())
        })?;
        if nnz > SMALL {
            parallel::for_each_item(runs.iter_mut(), |run| run.truncate(left.len()));
        }
    }
    drop(left);
    drop(runs);
    if nnz > SMALL {
        return_freed();
    }
    close_gaps(&sizes, &kept, &mut col_idx, &mut values);
    let starts = kept.iter().scan(0, |start, &n| Some(std::mem::replace(start, *start + n)));
    let starts: Vec<usize> = starts.collect();
    let rows = row_ptr[1..].chunks_mut(1 << buckets.shift).zip(starts);
    parallel::for_each_item(rows, |(row_ends, start)| {
        row_ends.iter_mut().for_each(|end| *end += start);
    });
    Ok(CsrMatrix { nrows, ncols, row_ptr, col_idx, values })
}

/// Number of buckets at the end of those that are left to be built together: as many as write the
/// memory that the runs have freed, and a share of the matrix.
fn group_len<T>(left: &[usize], nnz: usize) -> usize {
    /// Share of the matrix that is allocated before anything is freed.
    const AHEAD: usize = 40;
    if nnz <= SMALL {
        return left.len();
    }
    let csr = size_of::<u32>() + size_of::<T>();
    let built = nnz - left.iter().sum::<usize>();
    let room = nnz / AHEAD + built * (size_of::<BucketEntry<T>>() - csr) / csr;
    let sums = left.iter().rev().scan(0, |sum, size| {
        *sum += size;
        Some(*sum)
    });
    sums.take_while(|&sum| sum <= room).count().max(1)
}

/// Builds the rows of one bucket at the front of its share and returns the number of their entries.
fn fill_bucket<T: Scalar>(
    runs: &[SortedRun<T>],
    share: Share<'_, T>,
    scratch: &mut SortScratch<T>,
    repeated: Repeated,
) -> Result<usize, Error> {
    let Share { bucket, row_ends, col_idx, values } = share;
    let entries = || runs.iter().flat_map(|run| run.bucket(bucket));
    let SortScratch { next, sorted } = scratch;
    refill(next, row_ends.len() + 1, 0)?;
    for entry in entries() {
        next[usize::from(entry.row) + 1] += 1;
    }
    for row in 0..row_ends.len() {
        next[row + 1] += next[row];
    }
    for entry in entries() {
        let slot = &mut next[usize::from(entry.row)];
        (col_idx[*slot], values[*slot]) = (entry.col, entry.value);
        *slot += 1;
    }
    // Here each start has advanced to the end of its row.
    let (mut start, mut kept) = (0, 0);
    for (row_end, &end) in row_ends.iter_mut().zip(&*next) {
        let (row, row_start) = (start..end, kept);
        start = end;
        if col_idx[row.clone()].is_sorted_by(|a, b| a < b) {
            kept += row.len();
            if row.start > row_start {
                col_idx.copy_within(row.clone(), row_start);
                values.copy_within(row, row_start);
            }
        } else {
            sorted.clear();
            reserve(sorted, row.len())?;
            sorted.extend(row.map(|k| (col_idx[k], values[k])));
            order::by_column(sorted);
            for &(col, value) in &*sorted {
                if repeated == Repeated::Summed && kept > row_start && col_idx[kept - 1] == col {
                    values[kept - 1] += value;
                } else {
                    (col_idx[kept], values[kept]) = (col, value);
                    kept += 1;
                }
            }
        }
        *row_end = kept;
    }
    Ok(kept)
}

/// Replaces the elements of a vector by `len` equal ones.
fn refill<E: Clone>(list: &mut Vec<E>, len: usize, element: E) -> Result<(), Error> {
    list.clear();
    if list.capacity() < len {
        *list = filled(len, element)?;
    } else {
        list.resize(len, element);
    }
    Ok(())
}

/// Closes the gaps between shares that summing has shortened.
fn close_gaps<T: Scalar>(
    sizes: &[usize],
    kept: &[usize],
    col_idx: &mut Vec<u32>,
    values: &mut Vec<T>,
) {
    let (mut from, mut to) = (0, 0);
    for (size, &kept) in sizes.iter().zip(kept) {
        if from != to {
            col_idx.copy_within(from..from + kept, to);
            values.copy_within(from..from + kept, to);
        }
        from += size;
        to += kept;
    }
    if from != to {
        col_idx.truncate(to);
        values.truncate(to);
        col_idx.shrink_to_fit();
        values.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_every_row() {
        for nrows in [0, 1, 2, 255, 256, 257, 511, 512, 513, 100_000, super::super::MAX_DIMENSION] {
            let buckets = Buckets::new(nrows);
            assert!(buckets.count <= MAX_BUCKETS.max(nrows.div_ceil(1 << 16)));
            assert!(buckets.shift <= 16);
            if nrows > 0 {
                assert_eq!(buckets.of(nrows as u32 - 1), buckets.count - 1);
            }
        }
    }

    #[test]
    fn runs_are_joined_in_order() {
        let (nrows, buckets) = (1000, Buckets::new(1000));
        // Rounding makes the order of the sum visible: (1 + 1e16) - 1e16 = 0, but 1e16 - 1e16 + 1
        // = 1.
        let entry = |row, col, value| MatrixEntry { row, col, value };
        let first = [entry(999, 3, 1.0), entry(0, 2, 4.0), entry(999, 3, 1e16)];
        let second =
            [entry(999, 3, -1e16), entry(500, 1, 0.0), entry(999, 0, 7.0), entry(0, 2, 0.5)];
        let runs = [&first[..], &second].map(|run| SortedRun::new(buckets, run).unwrap());
        let a = to_csr::<f64>(nrows, 4, buckets, runs.into(), Repeated::Summed).unwrap();
        assert_eq!((a.col_idx(), a.values()), (&[2, 1, 0, 3][..], &[4.5, 0.0, 7.0, 0.0][..]));
        assert_eq!(
            (a.row_ptr()[1], a.row_ptr()[500], a.row_ptr()[501], a.row_ptr()[999]),
            (1, 1, 2, 2)
        );
        assert!(CsrMatrix::try_new(nrows, 4, a.row_ptr, a.col_idx, a.values).is_ok());
    }
}
