//! Rows too long for slices, one after the other as in CSR.

use super::value::{Coder, Sink, Stored};
use crate::Scalar;
use crate::device::cpu::{for_each_part, partition};
use crate::matrix::CsrView;
use crate::memory::zeroed;
use rayon::prelude::*;

/// The rows that are longer than a limit. Row `rows[i]` has the entries `row_ptr[i] .. row_ptr[i + 1]` of `col_idx` and of the values.
#[derive(Debug)]
pub(crate) struct LongRows<T> {
    /// Ascending.
    pub(crate) rows: Vec<u32>,
    pub(crate) row_ptr: Vec<u64>,
    pub(crate) col_idx: Vec<u32>,
    pub(crate) values: Stored<T>,
    /// Bounds of the parts, in entries.
    pub(crate) parts: Box<[usize]>,
}

impl<T: Scalar> LongRows<T> {
    /// The rows of `a` with more than `limit` entries; none when there are no such rows.
    pub(crate) fn of(a: CsrView<'_, T>, limit: u32, coder: &Coder<T>) -> Option<Self> {
        let is_long = |&row: &u32| a.row_len(row as usize) > limit as usize;
        let rows: Vec<u32> = (0..a.nrows() as u32).into_par_iter().filter(is_long).collect();
        if rows.is_empty() {
            return None;
        }
        let mut row_ptr = vec![0];
        row_ptr.extend(rows.iter().scan(0, |end, &row| {
            *end += a.row_len(row as usize) as u64;
            Some(*end)
        }));
        let entries = row_ptr[rows.len()] as usize;
        let (mut col_idx, mut values) = (zeroed(entries), Stored::zeroed(coder, entries));
        let sink = Sink::new(&mut values, coder);
        for (&row, &start) in rows.iter().zip(&row_ptr) {
            let (cols, vals) = a.row(row as usize);
            let start = start as usize;
            col_idx[start..start + cols.len()].copy_from_slice(cols);
            for_each_part(&partition(vals.len(), 1, |k| k as u64), |range| {
                // SAFETY: positions of this row, each in one part.
                range.for_each(|k| unsafe { sink.put(start + k, vals[k]) });
            });
        }
        let parts = partition(entries, 1, |k| k as u64);
        Some(Self { rows, row_ptr, col_idx, values, parts })
    }

    /// Row numbers and the entries of each.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
        let entries = self.row_ptr.windows(2).map(|ends| ends[0] as usize..ends[1] as usize);
        self.rows.iter().map(|&row| row as usize).zip(entries)
    }

    /// Bytes of the arrays.
    pub(crate) fn bytes(&self) -> u64 {
        let table = size_of_val(&*self.rows) + size_of_val(&*self.row_ptr);
        (table + size_of_val(&*self.col_idx) + self.values.bytes()) as u64
    }
}

/// Bytes of so many long rows with so many entries, each value taking `value_size` bytes.
pub(crate) const fn long_bytes(rows: u64, entries: u64, value_size: usize) -> u64 {
    if rows == 0 {
        return 0;
    }
    rows * 4 + (rows + 1) * 8 + entries * (4 + value_size as u64)
}
