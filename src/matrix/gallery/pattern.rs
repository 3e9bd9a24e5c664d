//! Patterns, generated row by row and in parallel.

use crate::{Error, memory, parallel};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Rows per task: enough to outweigh its start, few enough to distribute a matrix of few long rows.
const ROWS_PER_TASK: usize = 256;

/// Edges per task.
const EDGES_PER_TASK: usize = 1 << 14;

/// Places of the entries of a matrix, in CSR; columns ascend in every row.
#[derive(Debug)]
pub(super) struct GeneratedPattern {
    pub(super) row_ptr: Vec<usize>,
    pub(super) col_idx: Vec<u32>,
}

/// Appends the columns of a row to a vector. Not generic, so that generation is compiled once.
type RowColumns<'a> = dyn Fn(usize, &mut Vec<u32>) -> Result<(), Error> + Sync + 'a;

/// Rows of one task.
#[derive(Debug, Default)]
struct RowBlock {
    lengths: Vec<u32>,
    columns: Vec<u32>,
}

impl GeneratedPattern {
    /// Builds a pattern row by row: `columns` is given the row and an empty vector, and appends the
    /// columns, ascending.
    ///
    /// # Errors
    ///
    /// That of `columns`, and [`Error::HostMemory`].
    pub(super) fn by_rows(nrows: usize, columns: &RowColumns<'_>) -> Result<Self, Error> {
        let count = nrows.div_ceil(ROWS_PER_TASK);
        let mut blocks = memory::listed((0..count).map(|_| RowBlock::default()))?;
        parallel::try_for_each_item(blocks.iter_mut().enumerate(), |(i, block)| {
            let first = i * ROWS_PER_TASK;
            let mut row_columns = Vec::new();
            for row in first..nrows.min(first + ROWS_PER_TASK) {
                row_columns.clear();
                columns(row, &mut row_columns)?;
                debug_assert!(row_columns.is_sorted_by(|a, b| a < b), "row {row}: {row_columns:?}");
                block.lengths.push(row_columns.len() as u32);
                memory::reserve(&mut block.columns, row_columns.len())?;
                block.columns.extend_from_slice(&row_columns);
            }
            Ok(())
        })?;
        Self::join(nrows, blocks)
    }

    /// Joins the rows of all blocks to one matrix; each block is freed after it is copied.
    fn join(nrows: usize, blocks: Vec<RowBlock>) -> Result<Self, Error> {
        let mut row_ptr = memory::reserved(nrows + 1)?;
        let mut nnz = 0;
        row_ptr.push(nnz);
        for &len in blocks.iter().flat_map(|b| &b.lengths) {
            nnz += len as usize;
            row_ptr.push(nnz);
        }
        let mut col_idx = memory::try_zeroed(nnz)?;
        let mut rest = &mut col_idx[..];
        let mut copies = memory::reserved(blocks.len())?;
        for block in blocks {
            let (target, tail) = rest.split_at_mut(block.columns.len());
            copies.push((target, block.columns));
            rest = tail;
        }
        let copy = |(target, columns): (&mut [u32], Vec<u32>)| target.copy_from_slice(&columns);
        parallel::for_each_item(copies.into_iter(), copy);
        Ok(Self { row_ptr, col_idx })
    }

    /// Replaces every entry by a full square block of `unknowns` rows.
    pub(super) fn with_unknowns(self, unknowns: usize) -> Result<Self, Error> {
        if unknowns == 1 {
            return Ok(self);
        }
        let nodes = self.row_ptr.len() - 1;
        Self::by_rows(nodes * unknowns, &|row, columns| {
            let ends = [self.row_ptr[row / unknowns], self.row_ptr[row / unknowns + 1]];
            let nodes = self.col_idx[ends[0]..ends[1]].iter();
            memory::reserve(columns, nodes.len() * unknowns)?;
            columns.extend(nodes.flat_map(|node| {
                let first = node * unknowns as u32;
                first..first + unknowns as u32
            }));
            Ok(())
        })
    }

    /// Matrix of the `(row, column)` edges of a graph: a counting sort by row, then every row is
    /// sorted and its repeated columns are removed. The threads fill a row in no particular order,
    /// which the sorting corrects.
    pub(super) fn by_edges(nrows: usize, edges: Vec<(u32, u32)>) -> Result<Self, Error> {
        let mut next = memory::listed((0..nrows).map(|_| AtomicUsize::new(0)))?;
        parallel::for_each_item(edges.chunks(EDGES_PER_TASK), |edges| {
            for edge in edges {
                next[edge.0 as usize].fetch_add(1, Relaxed);
            }
        });
        let mut start = 0;
        for slot in &mut next {
            let len = std::mem::replace(slot.get_mut(), start);
            start += len;
        }
        let slots = memory::collected(edges.len(), |_| AtomicU32::new(0))?;
        parallel::for_each_item(edges.chunks(EDGES_PER_TASK), |edges| {
            for &(row, col) in edges {
                slots[next[row as usize].fetch_add(1, Relaxed)].store(col, Relaxed);
            }
        });
        drop(edges);
        // Here the next slot of every row has advanced to the beginning of the following row.
        let end = |row: usize| next[row].load(Relaxed);
        Self::by_rows(nrows, &|row, columns| {
            let start = if row == 0 { 0 } else { end(row - 1) };
            let drawn = &slots[start..end(row)];
            memory::reserve(columns, drawn.len())?;
            columns.extend(drawn.iter().map(|c| c.load(Relaxed)));
            columns.sort_unstable();
            columns.dedup();
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_become_sorted_rows_without_repetition() {
        let edges = vec![(3, 1), (0, 2), (3, 0), (0, 2), (3, 1), (1, 3)];
        let p = GeneratedPattern::by_edges(4, edges).unwrap();
        assert_eq!((&p.row_ptr[..], &p.col_idx[..]), (&[0, 1, 2, 2, 4][..], &[2, 3, 0, 1][..]));
        let none = GeneratedPattern::by_edges(0, vec![]).unwrap();
        assert_eq!((&none.row_ptr[..], none.col_idx.len()), (&[0][..], 0));
    }

    #[test]
    fn rows_of_many_tasks_stay_in_order() {
        let nrows = 3 * ROWS_PER_TASK + 5;
        let columns = |row, columns: &mut Vec<u32>| {
            columns.extend(0..(row % 4) as u32);
            Ok(())
        };
        let p = GeneratedPattern::by_rows(nrows, &columns).unwrap();
        assert_eq!(p.row_ptr.len(), nrows + 1);
        assert!(p.row_ptr.windows(2).enumerate().all(|(row, w)| w[1] - w[0] == row % 4));
        assert_eq!(&p.col_idx[..7], &[0, 0, 1, 0, 1, 2, 0]);
    }
}
