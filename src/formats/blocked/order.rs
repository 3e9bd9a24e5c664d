//! Order of the entries of rows that are not sorted by column.

use super::panel::Panel;
use crate::device::cpu::last_at_most;
use crate::matrix::{CsrColumns, CsrMatrix, CsrView};
use crate::memory::{check_room, joined, try_copied, try_zeroed};
use crate::parallel;
use crate::{Error, Scalar};
use std::ops::Range;

/// Rows plus entries of a task.
pub(super) const TASK: usize = 1 << 15;

/// Sorts the entries of every row by window. Returns their original positions in the rows, and the
/// sorted matrix; nothing if rows are sorted by column, and so by window.
pub(super) fn by_windows<T: Scalar>(
    a: CsrView<'_, T>,
    panels: &[(Panel, u32)],
) -> Result<(Vec<u32>, Option<CsrMatrix<T>>), Error> {
    if a.columns().are_sorted() {
        return Ok((Vec::new(), None));
    }
    let of = |row| &panels[panels.partition_point(|(panel, _)| panel.rows.start <= row) - 1].0;
    let order = positions(a.columns(), |row, col| of(row).window(col).0)?;
    let (mut col_idx, mut values) = (try_zeroed(a.nnz())?, try_zeroed(a.nnz())?);
    for row in 0..a.nrows() {
        let (cols, of_row) = a.row(row);
        for k in a.row_range(row) {
            let from = order[k] as usize;
            (col_idx[k], values[k]) = (cols[from], of_row[from]);
        }
    }
    let row_ptr = try_copied(a.row_ptr())?;
    // SAFETY: every row has the same entries as in a checked matrix.
    let arranged =
        unsafe { CsrMatrix::new_unchecked(a.nrows(), a.ncols(), row_ptr, col_idx, values) };
    Ok((order, Some(arranged)))
}

/// Original positions in their rows of entries that are sorted by `place(row, col)`. Entries of the
/// same place keep their order.
pub(super) fn positions(
    a: CsrColumns<'_>,
    place: impl Fn(usize, u32) -> u32 + Sync,
) -> Result<Vec<u32>, Error> {
    check_room(a.nnz().saturating_mul(2 * size_of::<u32>()))?;
    let tasks: Vec<_> = tasks(a.row_ptr(), 0..a.nrows()).collect();
    let positions = parallel::map(tasks.len(), 1, |task| {
        let mut positions = Vec::new();
        for row in tasks[task].clone() {
            let (start, cols) = (positions.len(), a.row(row));
            positions.extend(0..cols.len() as u32);
            positions[start..].sort_by_key(|&k| place(row, cols[k as usize]));
        }
        positions
    });
    joined(&positions)
}

/// Cuts consecutive rows into ranges of about equal work.
pub(super) fn tasks(row_ptr: &[usize], rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut start = rows.start;
    std::iter::from_fn(move || {
        let work = |row: usize| row_ptr[row] + row;
        let limit = work(start) + TASK;
        let end = last_at_most(start..rows.end + 1, limit, work);
        let task = start..end.max(start + 1);
        (start < rows.end).then(|| {
            start = task.end;
            task
        })
    })
}
