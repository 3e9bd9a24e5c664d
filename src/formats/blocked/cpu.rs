//! Cache blocks on the CPU: the pieces are multiplied one by one, then partial sums are added.
//! Reference implementation, not tuned: the caches of a core need no blocking, and sums do not use
//! vectors.

use super::{HostBlocked, Pieces, SplitRows};
use crate::device::cpu::{Output, for_each_task};
use crate::memory::filled;
use crate::{Error, Scalar};
use std::sync::{Mutex, PoisonError};

/// Working memory of SpMVs: one array for each SpMV that runs at the same time.
#[derive(Debug)]
pub(super) struct Spare<T>(Mutex<Vec<Vec<T>>>);

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Scalar> Spare<T> {
    /// Numbers for one product at a time; others that run meanwhile allocate theirs.
    pub(super) fn of(len: usize) -> Result<Self, Error> {
        Ok(Self(Mutex::new(vec![filled(len, T::ZERO)?])))
    }

    /// Calls `with` with `len` numbers of arbitrary value.
    fn with(&self, len: usize, with: impl FnOnce(&mut [T])) {
        let spare = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = spare().pop();
        let mut numbers = taken.unwrap_or_else(|| vec![T::ZERO; len]);
        with(&mut numbers);
        spare().push(numbers);
    }
}

/// `y = A x`.
pub(super) fn spmv<T: Scalar>(a: &HostBlocked<T>, x: &[T], y: &mut [T]) {
    let count = a.split.ptr[a.split.ptr.len() - 1] as usize;
    a.scratch.with(count + a.hot.len(), |scratch| {
        let (partial_sums, hot) = scratch.split_at_mut(count);
        hot.iter_mut().zip(&a.hot).for_each(|(hot, &col)| *hot = x[col as usize]);
        let sums =
            SumOutput { nrows: y.len(), y: Output::new(y), partial: Output::new(partial_sums) };
        let from = if a.hot.is_empty() { x } else { hot };
        for_each_task(&a.near.bounds, |pieces| {
            for piece in pieces {
                let [first_col, width] = a.tiles.windows[a.tiles.of_piece(piece)];
                let window = &from[first_col as usize..(first_col + width) as usize];
                multiply(&a.near, piece, window, sums);
            }
        });
        for_each_task(&a.far.bounds, |pieces| {
            pieces.for_each(|piece| multiply(&a.far, piece, x, sums))
        });
        add_partial_sums(&a.split, partial_sums, sums.y);
    });
}

/// Destination of the sums of segments.
#[derive(Clone, Copy)]
struct SumOutput<T> {
    nrows: usize,
    y: Output<T>,
    partial: Output<T>,
}

/// Sums the segments in a piece.
#[inline(always)]
fn multiply<T: Scalar, C: Copy + Into<u32>>(
    a: &Pieces<T, C>,
    piece: usize,
    x: &[T],
    sums: SumOutput<T>,
) {
    let mut sum = T::ZERO;
    a.for_each_entry(piece, |col, value, target| {
        sum += value * x[col as usize];
        if let Some(target) = target {
            let target = target as usize;
            // SAFETY: every row and every partial sum is the target of at most one segment.
            unsafe {
                match target.checked_sub(sums.nrows) {
                    None => sums.y.set(target, sum),
                    Some(number) => sums.partial.set(number, sum),
                }
            }
            sum = T::ZERO;
        }
    });
}

/// Adds the partial sums of every split row, and writes zero to empty rows.
fn add_partial_sums<T: Scalar>(split: &SplitRows, partial_sums: &[T], y: Output<T>) {
    for_each_task(&split.bounds, |range| {
        for i in range {
            let own = &partial_sums[split.ptr[i] as usize..split.ptr[i + 1] as usize];
            let sum = own.iter().fold(T::ZERO, |sum, &partial| sum + partial);
            // SAFETY: a row is in the list only once, and is the target of no segment.
            unsafe { y.set(split.rows[i] as usize, sum) };
        }
    });
}
