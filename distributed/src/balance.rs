//! Partitions into parts of equal predicted time.

use crate::blocks::block_rows;
use crate::choice::{RowLengths, SlicedPlan, SummationOrder};
use crate::comm::{Communicator, agree, gather_words, reported, sum_words};
use crate::partition::Partition;
use crate::rows::RowSelection;
use crate::transpose::EntryArrays;
use sparseop::analysis::Analysis;
use sparseop::matrix::{CsrMatrix, CsrView};
use sparseop::{Device, Error, Scalar, SparseOpBuilder, filled, listed};
use std::ops::Range;

/// Quantity that is balanced between parts of consecutive rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Balance {
    /// Entries, and one more for every row.
    #[default]
    Entries,
    /// Predicted time of the product: parts of equally many entries are analysed, and divided again
    /// by the times that the profile predicts for them. Takes another analysis of the matrix; ranks
    /// exchange their rows once more. The profile of each rank predicts its own part.
    PredictedTime,
}

/// Units of work in all.
const UNITS: f64 = (1u64 << 40) as f64;

/// Partition into parts of about equal predicted time: parts of equally many entries are divided
/// again by their predicted times. As [`Partition::of_rows`] if the profile does not predict them.
pub(crate) fn by_predicted_time<T: Scalar>(
    a: CsrView<'_, T>,
    parts: usize,
    builder: &SparseOpBuilder,
    device: &Device,
    sliced: Option<&SlicedPlan>,
) -> Result<Partition, Error> {
    let (nrows, row_ptr) = (a.nrows(), a.row_ptr());
    let order = SummationOrder::of(RowLengths::of(row_ptr), device);
    let times = RowTimes { builder, device, order, sliced };
    let even = Partition::of_rows(row_ptr, parts)?;
    let of = |part| times.of_range(a, even.rows(part));
    let seconds = (0..parts).map(of);
    let Some(units) = units(&seconds.collect::<Result<Vec<f64>, Error>>()?) else {
        return Ok(even);
    };
    let mut work = filled(nrows.div_ceil(block_rows(nrows)), 0)?;
    for (part, &units) in units.iter().enumerate() {
        let rows = even.rows(part);
        divide(units, &row_ptr[rows.start..=rows.end], rows.start, nrows, &mut work);
    }
    Partition::of_blocks(nrows, parts, &work)
}

/// As [`by_predicted_time`], for rows that are distributed over the ranks, which send them to their
/// new owners.
pub(crate) fn rows_by_predicted_time<T: Scalar>(
    comm: &dyn Communicator,
    even: Partition,
    own: CsrMatrix<T>,
    builder: &SparseOpBuilder,
    device: &Device,
    sliced: Option<&SlicedPlan>,
) -> Result<(Partition, CsrMatrix<T>), Error> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let order = SummationOrder::of(RowLengths::of_ranks(comm, own.row_ptr())?, device);
    let times = RowTimes { builder, device, order, sliced };
    let seconds = times.of_range(own.view(), 0..own.nrows());
    let seconds = gather_words(comm, &[agree(comm, seconds)?.to_bits()])?;
    let seconds: Vec<f64> = seconds.iter().map(|bits| f64::from_bits(bits[0])).collect();
    let Some(units) = units(&seconds) else { return Ok((even, own)) };
    let (nrows, first) = (even.offsets()[ranks], even.rows(rank).start);
    let mut work = reported(comm, filled(nrows.div_ceil(block_rows(nrows)), 0))?;
    divide(units[rank], own.row_ptr(), first, nrows, &mut work);
    let partition = Partition::of_blocks(nrows, ranks, &sum_words(comm, &work)?)?;
    let own = moved_rows(comm, own, first, &partition)?;
    Ok((partition, own))
}

/// Rows that are distributed over the ranks, in parts on GPUs, whose sums have the same bits for
/// any number of parts.
pub(crate) fn rounded_rows<T: Scalar>(
    comm: &dyn Communicator,
    partition: Partition,
    own: CsrMatrix<T>,
) -> Result<(Partition, CsrMatrix<T>), Error> {
    let first = partition.rows(comm.rank()).start;
    let rounded = partition.for_gpus();
    let own = moved_rows(comm, own, first, &rounded)?;
    Ok((rounded, own))
}

/// The rows of this rank in a partition, from rows that begin with row `first` on this rank. The
/// ranks send them to their owners.
fn moved_rows<T: Scalar>(
    comm: &dyn Communicator,
    own: CsrMatrix<T>,
    first: usize,
    to: &Partition,
) -> Result<CsrMatrix<T>, Error> {
    let ncols = own.ncols();
    let entries = reported(comm, EntryArrays::of_rows(own.view(), first))?;
    drop(own);
    let entries = entries.redistribute(comm, to.offsets())?;
    agree(comm, entries.to_csr(to.rows(comm.rank()).len(), ncols))
}

/// Units of each part, in proportion to its seconds. `None` if a part has no prediction.
fn units(seconds: &[f64]) -> Option<Vec<f64>> {
    let total: f64 = seconds.iter().sum();
    let predicted = total.is_finite() && total > 0.0;
    predicted.then(|| seconds.iter().map(|seconds| UNITS * seconds / total).collect())
}

/// Divides the units of a part, whose rows begin at row `first` of `nrows`, among its blocks, by
/// entries and rows.
fn divide(units: f64, row_ptr: &[usize], first: usize, nrows: usize, work: &mut [u64]) {
    let (block, rows) = (block_rows(nrows), row_ptr.len() - 1);
    let entries_and_rows = |row: usize| (row_ptr[row] - row_ptr[0] + row) as f64;
    let before = |row: usize| (units * entries_and_rows(row) / entries_and_rows(rows)) as u64;
    for start in (0..rows).step_by(block) {
        work[(first + start) / block] = before((start + block).min(rows)) - before(start);
    }
}

/// Predicted times of the rows of parts.
#[derive(Clone, Copy)]
pub(crate) struct RowTimes<'a> {
    pub(crate) builder: &'a SparseOpBuilder,
    pub(crate) device: &'a Device,
    pub(crate) order: SummationOrder,
    /// Plan of all rows, if it is not chosen for them.
    pub(crate) sliced: Option<&'a SlicedPlan>,
}

impl RowTimes<'_> {
    /// Predicted seconds of the product of some rows, NaN if the profile does not predict them.
    pub(crate) fn of<T: Scalar>(self, a: CsrView<'_, T>, rows: &[u32]) -> Result<f64, Error> {
        if rows.is_empty() {
            return Ok(0.0);
        }
        // The elements of x that the rows use.
        let mut place = filled(a.ncols() + 1, 0u32)?;
        for &row in rows {
            a.row(row as usize).0.iter().for_each(|&column| place[column as usize + 1] = 1);
        }
        for column in 0..a.ncols() {
            place[column + 1] += place[column];
        }
        let used = place[a.ncols()] as usize;
        let own = RowSelection::new(a, rows, used, Some(|column| place[column as usize]))?;
        let own = own.view()?;
        Analysis::check_memory(own)?;
        let (analysis, Self { builder, device, order, sliced }) = (Analysis::of(own), self);
        let seconds = match sliced {
            Some(sliced) => sliced.predicted(builder, device, &analysis, T::KIND)?,
            None => order.choose(builder, device, &analysis, T::KIND)?.1,
        };
        Ok(seconds.unwrap_or(f64::NAN))
    }

    /// As [`of`](Self::of), of consecutive rows.
    fn of_range<T: Scalar>(self, a: CsrView<'_, T>, rows: Range<usize>) -> Result<f64, Error> {
        self.of(a, &listed(rows.map(|row| row as u32))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{ThreadRank, on_threads};
    use std::time::Duration;

    /// Rows whose entries are near the diagonal, and as many with scattered ones.
    fn halves(rows: u32) -> CsrMatrix<f64> {
        let column = |row: u32, k: u32| match row < rows / 2 {
            true => (row + k) % rows,
            false => (row.wrapping_mul(2_654_435_761).wrapping_add(k * 7919)) % rows,
        };
        let columns = (0..rows).flat_map(|row| (0..8).map(move |k| column(row, k))).collect();
        let ends = (0..=rows as usize).map(|row| 8 * row).collect();
        let n = rows as usize;
        CsrMatrix::try_new(n, n, ends, columns, (0..8 * n).map(|k| k as f64).collect()).unwrap()
    }

    #[test]
    fn slower_rows_make_smaller_parts() {
        let a = halves(60_000);
        let builder = SparseOpBuilder::new();
        let timed = by_predicted_time(a.view(), 2, &builder, &Device::Cpu, None).unwrap();
        let even = Partition::of_rows(a.row_ptr(), 2).unwrap();
        let order = SummationOrder::of(RowLengths::of(a.row_ptr()), &Device::Cpu);
        let times = RowTimes { builder: &builder, device: &Device::Cpu, order, sliced: None };
        let slowest = |partition: &Partition| {
            let seconds = |part| times.of_range(a.view(), partition.rows(part)).unwrap();
            f64::max(seconds(0), seconds(1))
        };
        assert!(slowest(&timed) < slowest(&even), "{timed:?}");
        assert!(timed.rows(0).len() > even.rows(0).len(), "{timed:?}");
        for (nrows, parts) in [(0, 3), (1, 1), (2, 5)] {
            let zeros = CsrMatrix::<f64>::zeros(nrows, nrows).unwrap();
            let cpu = &Device::Cpu;
            let partition = by_predicted_time(zeros.view(), parts, &builder, cpu, None).unwrap();
            assert_eq!((partition.parts(), partition.offsets()[parts]), (parts, nrows));
        }
    }

    #[test]
    fn ranks_have_the_rows_of_the_partition_of_one_process() {
        let builder = SparseOpBuilder::new();
        for (a, count) in [(halves(60_000), 2), (halves(3000), 3), (halves(2), 4)] {
            let ranks = ThreadRank::group(count, Duration::from_secs(60), None);
            let even = Partition::of_rows(a.row_ptr(), count).unwrap();
            let cpu = &Device::Cpu;
            let expected = by_predicted_time(a.view(), count, &builder, cpu, None).unwrap();
            let rows_of = |rank: usize, partition: &Partition| {
                let rows: Vec<u32> = partition.rows(rank).map(|row| row as u32).collect();
                RowSelection::unchanged(a.view(), &rows).unwrap().into_owned().unwrap()
            };
            on_threads(&ranks, ranks.clone(), |rank| {
                let own = rows_of(rank.rank(), &even);
                let (found, own) =
                    rows_by_predicted_time(&*rank, even.clone(), own, &builder, cpu, None)?;
                assert_eq!(found, expected);
                assert_eq!(own, rows_of(rank.rank(), &found));
                Ok(())
            })
            .unwrap();
        }
    }
}
