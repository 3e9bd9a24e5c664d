//! Sorting of rows by length on a GPU, with the result of [`sorted_in_windows`].
//!
//! [`sorted_in_windows`]: super::sorted_in_windows

use super::constants::{DIGIT_ROUNDS, DIGITS, LENGTH_BITS, MAX_LENGTH, SORTED};
use crate::Error;
use crate::device::kernels::sort_rows::{Count, Place, Windows};
use crate::device::{BLOCK, Buffer, Launch, Ptr, WorkingMemory};

/// Kernel file.
pub(crate) const SORT: &str = "sort_rows";

/// Rows that a block sorts if windows are small: those of all windows that fit.
const SMALL_SORT_ROWS: usize = 1024;

/// Rows per block for sorting larger windows.
const BLOCK_ROWS: usize = DIGIT_ROUNDS * BLOCK as usize;

/// A key consists of a length, and of a position in a window or, with several windows, of up to
/// one bit more.
const _: () = assert!(SORTED.ilog2() + LENGTH_BITS < u32::BITS);
const _: () = assert!(SMALL_SORT_ROWS.ilog2() < SORTED.ilog2());

/// Rows in GPU memory that are to be sorted.
pub(crate) struct RowSort<'a> {
    pub(crate) work: &'a WorkingMemory,
    /// Offsets of the rows.
    pub(crate) row_ptr: Ptr<u64>,
    /// Number of rows, below 2³².
    pub(crate) nrows: usize,
    /// Rows with more entries count as empty.
    pub(crate) limit: u32,
}

impl RowSort<'_> {
    /// Sorts the rows, longest first, within windows of `sigma`; equal lengths keep their order.
    ///
    /// # Errors
    ///
    /// Errors of allocation, launches and kernel compilation.
    pub(crate) fn windows(&self, sigma: usize) -> Result<Buffer<u32>, Error> {
        let sigma = sigma.min(self.nrows).max(1);
        let perm = self.work.gpu.uninitialised(self.nrows)?;
        if self.nrows > 0 && sigma <= SORTED && self.limit <= MAX_LENGTH {
            self.by_blocks(sigma, &perm)?;
        } else if self.nrows > 0 {
            self.by_digits(sigma, &perm)?;
        }
        Ok(perm)
    }

    /// Sorts windows that fit a block.
    fn by_blocks(&self, sigma: usize, perm: &Buffer<u32>) -> Result<(), Error> {
        let windows = (SMALL_SORT_ROWS / sigma).max(1);
        let (size, bits) =
            ((windows * sigma).next_power_of_two(), sigma.next_power_of_two().ilog2());
        // There are fewer than 2³² rows.
        let blocks = self.nrows.div_ceil(windows * sigma) as u32;
        let launch = Launch::new(blocks, BLOCK).with(Windows {
            row_ptr: self.row_ptr,
            nrows: self.nrows as u32,
            limit: self.limit,
            sigma: sigma as u32,
            windows: windows as u32,
            size: size as u32,
            bits,
            perm: perm.ptr(),
        });
        // SAFETY: `perm` has an element for every row, and the shared memory of a block holds its
        // windows.
        unsafe { self.work.run(SORT, "sort_rows_windows", launch) }
    }

    /// Sorts by window and length, 8 bits at a time.
    fn by_digits(&self, sigma: usize, perm: &Buffer<u32>) -> Result<(), Error> {
        let Self { work, row_ptr, nrows, limit } = *self;
        let width = |most: u64| u64::BITS - most.leading_zeros();
        let bits = width(u64::from(limit));
        let last_window = (nrows.div_ceil(sigma) - 1) as u64;
        let passes = (bits + width(last_window)).div_ceil(DIGITS.ilog2()).max(1);
        let blocks = nrows.div_ceil(BLOCK_ROWS);
        let counts = work.take::<u64>(blocks * DIGITS)?;
        let all = work.cleared::<u64>(1)?;
        let other = work.take::<u32>(if passes > 1 { nrows } else { 0 })?;
        let mut from = Ptr::NULL;
        for pass in 0..passes {
            let to = if (passes - pass) % 2 == 1 { perm.ptr() } else { other };
            let (nrows, sigma, shift) = (nrows as u32, sigma as u32, pass * DIGITS.ilog2());
            let over = Launch::new(blocks as u32, BLOCK);
            let count = Count { row_ptr, nrows, limit, sigma, bits, shift, from, counts };
            let before = counts;
            let place = Place { row_ptr, nrows, limit, sigma, bits, shift, from, before, to };
            // SAFETY: there is a count for every digit of every block, and an element for every
            // row.
            unsafe {
                work.run(SORT, "sort_rows_count", over.with(count))?;
                work.scan(counts, blocks * DIGITS, 1, all)?;
                work.run(SORT, "sort_rows_place", over.with(place))?;
            }
            from = to;
        }
        Ok(())
    }
}
