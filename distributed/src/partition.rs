//! Partitions of rows and columns into parts.

use crate::blocks::{block_rows, gpu_part_rows, is_aligned};
use sparseop::{Error, filled};
use std::ops::Range;
use std::sync::Arc;

/// Partition of the rows of a matrix: every part has consecutive rows, of the matrix or of its
/// reordered rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// First row of each part, and the number of rows.
    offsets: Vec<usize>,
    /// Row of the matrix at each position of the reordered matrix; `None` if it is not reordered.
    order: Option<Vec<u32>>,
}

impl Partition {
    /// Divides rows into parts of about equal work. `work_before(i)` is the work of the first `i`
    /// rows and must not decrease.
    ///
    /// Parts consist of whole blocks of rows, whose size depends on `nrows` alone: the sum over a
    /// block has the same bits in every partition.
    ///
    /// # Errors
    ///
    /// [`Error::Partition`] for 0 parts.
    pub fn balanced(
        nrows: usize,
        parts: usize,
        work_before: impl Fn(usize) -> u64,
    ) -> Result<Self, Error> {
        check_parts(parts)?;
        let block = block_rows(nrows);
        let blocks = nrows.div_ceil(block);
        let at = |number: usize| (number * block).min(nrows);
        let total = u128::from(work_before(nrows));
        let mut offsets = vec![0];
        let mut from = 0;
        for part in 1..parts {
            let target = (total * part as u128 / parts as u128) as u64;
            let (mut low, mut high) = (from, blocks);
            while low < high {
                let middle = usize::midpoint(low, high);
                if work_before(at(middle)) < target { low = middle + 1 } else { high = middle }
            }
            // The nearer of the two boundaries, unless the part would be empty.
            let beyond = work_before(at(low)) - target.min(work_before(at(low)));
            let before = low > from + 1 && target - work_before(at(low - 1)).min(target) < beyond;
            from = low - usize::from(before);
            offsets.push(at(from));
        }
        offsets.push(nrows);
        Ok(Self { offsets, order: None })
    }

    /// The partition with the nearest boundaries at which sums on GPUs have the same bits with any
    /// number of parts, for ranks on GPUs that make their own rows.
    #[must_use]
    pub fn for_gpus(self) -> Self {
        let rows = gpu_part_rows(self.offsets[self.parts()]);
        self.rounded(rows)
    }

    /// The partition with consecutive parts that begin at the nearest multiples of `rows`.
    pub(crate) fn rounded(mut self, rows: usize) -> Self {
        let nrows = self.offsets[self.parts()];
        for offset in &mut self.offsets {
            *offset = ((*offset + rows / 2) / rows * rows).min(nrows);
        }
        self.offsets.iter_mut().last().into_iter().for_each(|last| *last = nrows);
        self
    }

    /// Divides the rows of a matrix into parts of about equal work: one unit for each entry and for
    /// each row.
    pub(crate) fn of_rows(row_ptr: &[usize], parts: usize) -> Result<Self, Error> {
        Self::balanced(row_ptr.len() - 1, parts, |row| (row_ptr[row] + row) as u64)
    }

    /// Divides rows into parts of about equal work, from the work of each block of rows.
    pub(crate) fn of_blocks(nrows: usize, parts: usize, work: &[u64]) -> Result<Self, Error> {
        let mut before = vec![0];
        before.extend(work.iter().scan(0, |sum, work| {
            *sum += work;
            Some(*sum)
        }));
        Self::balanced(nrows, parts, |row| before[row.div_ceil(block_rows(nrows))])
    }

    /// Partition by the part of every row. Rows of a part keep their order.
    ///
    /// # Errors
    ///
    /// [`Error::Partition`] for 0 parts, and for the first row whose part does not
    /// exist.
    pub fn given(part_of_row: &[u32], parts: usize) -> Result<Self, Error> {
        check_parts(parts)?;
        if let Some(row) = part_of_row.iter().position(|&part| part as usize >= parts) {
            let message = format!(
                "row {row} is in part {}, but the {parts} parts are numbered from 0",
                part_of_row[row]
            );
            return Err(Error::Partition { message });
        }
        let mut offsets = vec![0; parts + 1];
        part_of_row.iter().for_each(|&part| offsets[part as usize + 1] += 1);
        for part in 0..parts {
            offsets[part + 1] += offsets[part];
        }
        if part_of_row.is_sorted() && is_aligned(&offsets) {
            return Ok(Self { offsets, order: None });
        }
        let (mut order, mut next) = (filled(part_of_row.len(), 0)?, offsets.clone());
        for (row, &part) in part_of_row.iter().enumerate() {
            order[next[part as usize]] = row as u32;
            next[part as usize] += 1;
        }
        Ok(Self { offsets, order: Some(order) })
    }

    /// Number of parts, empty ones included.
    pub fn parts(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Rows of a part, in the reordered matrix if [`order`](Self::order) is not `None`.
    pub fn rows(&self, part: usize) -> Range<usize> {
        self.offsets[part]..self.offsets[part + 1]
    }

    /// Row of the matrix at each position of the reordered matrix; `None` if it is not reordered.
    pub fn order(&self) -> Option<&[u32]> {
        self.order.as_deref()
    }

    /// First column of each part, and the number of columns. Those of a square matrix are equal to
    /// the rows.
    pub(crate) fn columns(&self, ncols: usize) -> Result<Arc<[usize]>, Error> {
        if self.offsets[self.parts()] == ncols {
            return Ok(self.offsets[..].into());
        }
        let even = Self::balanced(ncols, self.parts(), |column| column as u64)?;
        Ok(even.offsets.into())
    }

    /// First row of each part, and the number of rows.
    pub(crate) fn offsets(&self) -> &[usize] {
        &self.offsets
    }
}

/// Part that contains a row.
pub(crate) fn owner(offsets: &[usize], row: usize) -> usize {
    offsets.partition_point(|&first| first <= row) - 1
}

fn check_parts(parts: usize) -> Result<(), Error> {
    if (1..=u32::MAX as usize).contains(&parts) {
        return Ok(());
    }
    Err(Error::Partition { message: format!("a matrix has one part or more, not {parts}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_balanced_in_whole_blocks() {
        let even = Partition::balanced(10, 4, |row| row as u64).unwrap();
        assert_eq!(even.offsets(), [0, 2, 5, 7, 10]);
        // Row 0 has most of the work.
        let skewed = Partition::balanced(6, 3, |row| if row == 0 { 0 } else { 100 + row as u64 });
        assert_eq!(skewed.unwrap().offsets(), [0, 1, 1, 6]);
        let rows = 1 << 20;
        let large = Partition::balanced(rows, 3, |row| row as u64).unwrap();
        assert!(is_aligned(large.offsets()) && block_rows(rows) == 64, "{large:?}");
    }

    #[test]
    fn more_parts_than_rows_leave_parts_empty() {
        for nrows in [0, 1, 2] {
            let partition = Partition::balanced(nrows, 5, |row| row as u64).unwrap();
            assert_eq!((partition.parts(), partition.offsets()[5]), (5, nrows));
            assert!(partition.offsets().is_sorted());
        }
    }

    #[test]
    fn a_given_partition_reorders_rows() {
        let partition = Partition::given(&[1, 0, 1, 2, 0], 4).unwrap();
        assert_eq!(partition.offsets(), [0, 2, 4, 5, 5]);
        assert_eq!(partition.order(), Some(&[1, 4, 0, 2, 3][..]));
        assert_eq!(Partition::given(&[0, 0, 2], 3).unwrap().order(), None);
        let owners: Vec<usize> = (0..5).map(|row| owner(partition.offsets(), row)).collect();
        assert_eq!(owners, [0, 0, 1, 1, 2]);
        assert_eq!(owner(&[0, 0, 3, 3], 1), 1, "the parts beside it are empty");
    }

    #[test]
    fn bad_partitions_are_refused() {
        let refused = |result: Result<Partition, Error>| result.unwrap_err().to_string();
        let none = refused(Partition::balanced(3, 0, |_| 0));
        assert_eq!(none, "not a valid partition: a matrix has one part or more, not 0");
        let beyond = refused(Partition::given(&[0, 2], 2));
        assert!(beyond.contains("row 1 is in part 2"), "{beyond}");
    }
}
