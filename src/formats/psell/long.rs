//! Long rows, too long for slices: stored consecutively as in CSR, and cut into pieces.

pub(crate) use super::constants::PIECE;
use super::plan::too_large;
use super::{Coder, Sink, Stored};
use crate::device::cpu::{for_each_task, partition};
use crate::matrix::CsrView;
use crate::memory::{reserved, try_zeroed};
use crate::parallel::map_ranges;
use crate::{Error, Scalar};
use std::ops::Range;

/// Rows whose lengths a thread reads at a time.
const TASK: usize = 1 << 14;

/// Piece of a long row: at most [`PIECE`] consecutive entries; 24 bytes, read by a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Piece {
    /// First entry, counted over all long rows.
    pub(crate) begin: u64,
    /// Number of entries.
    pub(crate) count: u32,
    pub(crate) row: u32,
    /// First piece of the row.
    pub(crate) first: u32,
    /// Number of pieces of the row.
    pub(crate) pieces: u32,
}

/// The rows longer than `split`: the pieces in the order of the rows, and the entries of all of
/// them.
#[derive(Debug)]
pub(crate) struct LongRows<T> {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) col_idx: Vec<u32>,
    pub(crate) values: Stored<T>,
    /// Bounds of the tasks, in pieces.
    pub(crate) tasks: Box<[usize]>,
}

impl<T: Scalar> LongRows<T> {
    /// Collects the rows of `a` with more than `split` entries, if any.
    ///
    /// # Errors
    ///
    /// [`Error::PlanLimit`] if the pieces exceed the range of addresses;
    /// [`Error::HostMemory`].
    pub(crate) fn of(
        a: CsrView<'_, T>,
        split: u32,
        coder: &Coder<T>,
    ) -> Result<Option<Self>, Error> {
        let is_long = |&row: &u32| a.row_len(row as usize) > split as usize;
        let rows = map_ranges(a.nrows(), TASK, |rows| {
            (rows.start as u32..rows.end as u32).filter(is_long).collect::<Vec<_>>()
        });
        let rows = rows.concat();
        if rows.is_empty() {
            return Ok(None);
        }
        let lengths = rows.iter().map(|&row| a.row_len(row as usize) as u64);
        let count = check_pieces(lengths.map(|len| len.div_ceil(PIECE)).sum())?;
        let (mut pieces, mut entries) = (reserved::<Piece>(count as usize)?, 0);
        for &row in &rows {
            // Both are at most the checked number of all pieces.
            let (first, len) = (pieces.len() as u32, a.row_len(row as usize) as u64);
            let count = len.div_ceil(PIECE) as u32;
            pieces.extend((0..len).step_by(PIECE as usize).map(|start| Piece {
                begin: entries + start,
                count: (len - start).min(PIECE) as u32,
                row,
                first,
                pieces: count,
            }));
            entries += len;
        }
        let mut col_idx = try_zeroed(entries as usize)?;
        let mut values = Stored::zeroed(coder, entries as usize)?;
        let sink = Sink::new(&mut values, coder);
        let mut start = 0;
        for &row in &rows {
            let (cols, vals) = a.row(row as usize);
            col_idx[start..start + cols.len()].copy_from_slice(cols);
            for_each_task(&partition(vals.len(), 1, |k| k as u64), |range| {
                // SAFETY: positions of this row, each in one task.
                range.for_each(|k| unsafe { sink.put(start + k, vals[k]) });
            });
            start += cols.len();
        }
        let before = |p: usize| pieces.get(p).map_or(entries, |piece| piece.begin);
        let tasks = partition(pieces.len(), 1, before);
        Ok(Some(Self { pieces, col_idx, values, tasks }))
    }

    /// Row numbers, each with the range of its entries.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.pieces
            .chunk_by(|one, next| one.row == next.row)
            .map(|pieces| (pieces[0].row as usize, entries(pieces)))
    }

    /// Size of the arrays, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (size_of_val(&*self.pieces) + size_of_val(&*self.col_idx) + self.values.bytes()) as u64
    }
}

/// Number of pieces as the 32 bits in which every piece stores positions among them.
fn check_pieces(pieces: u64) -> Result<u32, Error> {
    let limit = u64::from(u32::MAX) * PIECE * size_of::<u32>() as u64;
    u32::try_from(pieces).map_err(|_| too_large("indices of long rows", limit))
}

/// Range of entries of successive pieces.
pub(crate) fn entries(pieces: &[Piece]) -> Range<usize> {
    let end = |piece: &Piece| piece.begin as usize + piece.count as usize;
    pieces.first().map_or(0, |piece| piece.begin as usize)..pieces.last().map_or(0, end)
}

/// Size of long rows in bytes, for pairs of length and number of rows, when a value takes
/// `value_size` bytes.
pub(crate) fn long_bytes(lengths: &[(u32, u64)], value_size: usize) -> u64 {
    let entry = (size_of::<u32>() + value_size) as u64;
    let row = |len: u64| len.div_ceil(PIECE) * size_of::<Piece>() as u64 + len * entry;
    lengths.iter().map(|&(len, rows)| rows * row(u64::from(len))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_pieces_than_their_positions_can_count_are_refused() {
        assert_eq!(check_pieces(u64::from(u32::MAX)).unwrap(), u32::MAX);
        let refused = check_pieces(1 << 32).unwrap_err();
        assert!(matches!(refused, Error::PlanLimit { .. }));
        assert!(refused.to_string().contains("bytes of indices of long rows"), "{refused}");
    }
}
