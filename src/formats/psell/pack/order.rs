//! Sorting of rows by length, and the long rows, on a GPU.

use super::super::Coder;
use super::super::constants::{DIGIT_ROUNDS, DIGITS, SCANNED, SORTED};
use super::super::cuda::DeviceLongRows;
use super::super::long::Piece;
use super::super::order::Order;
use super::values::CodeTable;
use super::{Packer, PackingCounts};
use crate::device::{BLOCK, Buffer, Launch, Ptr};
use crate::{Error, Scalar};

/// Rows that a block sorts if windows are small.
const TOGETHER: usize = 1024;

/// Rows per tile for sorting larger windows.
const DIGIT_TILE: usize = DIGIT_ROUNDS * BLOCK as usize;

/// Rows per tile for counting long rows.
const LONG_TILE: usize = SCANNED * BLOCK as usize;

/// Prefix sums over the tiles, of long rows, of their pieces and of their entries.
pub(super) struct LongTiles {
    sums: Ptr<u64>,
    tiles: u32,
}

impl<T: Scalar> Packer<'_, T> {
    /// Returns the rows in `order`; `None` for the natural order.
    pub(super) fn order(&self, order: Order) -> Result<Option<Buffer<u32>>, Error> {
        let Order::Windows(sigma) = order else { return Ok(None) };
        let nrows = self.a.nrows;
        let sigma = sigma.min(nrows).max(1);
        let perm = self.a.gpu.uninitialised(nrows)?;
        if nrows > 0 && sigma <= SORTED {
            self.sort_windows(sigma, &perm)?;
        } else if nrows > 0 {
            self.sort_digits(sigma, &perm)?;
        }
        Ok(Some(perm))
    }

    /// Kernel parameters of the rows.
    fn rows(&self, blocks: usize) -> Launch {
        // There are fewer than 2³² rows.
        Launch::new(blocks as u32, BLOCK).arg(self.row_ptr()).arg(self.nrows()).arg(self.limit)
    }

    /// Sorts windows that fit a block.
    fn sort_windows(&self, sigma: usize, perm: &Buffer<u32>) -> Result<(), Error> {
        let windows = (TOGETHER / sigma).max(1);
        let (size, bits) =
            ((windows * sigma).next_power_of_two(), sigma.next_power_of_two().ilog2());
        let launch =
            self.rows(self.a.nrows.div_ceil(windows * sigma)).arg(sigma as u32).arg(windows as u32);
        let launch = launch.arg(size as u32).arg(bits).arg(perm.ptr());
        // SAFETY: these are the parameters of the kernel; `perm` has an element for every row, and
        // the shared memory of a block holds its windows.
        unsafe { self.work.run("psell_pack_rows", "pack_sort_windows", launch) }
    }

    /// Sorts by window and length, 8 bits at a time.
    fn sort_digits(&self, sigma: usize, perm: &Buffer<u32>) -> Result<(), Error> {
        let nrows = self.a.nrows;
        let width = |most: u64| u64::BITS - most.leading_zeros();
        let bits = width(u64::from(self.limit));
        let last_window = (nrows.div_ceil(sigma) - 1) as u64;
        let passes = (bits + width(last_window)).div_ceil(DIGITS.ilog2()).max(1);
        let tiles = nrows.div_ceil(DIGIT_TILE);
        let counts = self.work.take::<u64>(tiles * DIGITS)?;
        let all = self.work.cleared::<u64>(1)?;
        let other = self.work.take::<u32>(if passes > 1 { nrows } else { 0 })?;
        let mut from = Ptr::NULL;
        for pass in 0..passes {
            let to = if (passes - pass) % 2 == 1 { perm.ptr() } else { other };
            let launch =
                self.rows(tiles).arg(sigma as u32).arg(bits).arg(pass * DIGITS.ilog2()).arg(from);
            // SAFETY: these are the parameters of the kernels; there is a count for every digit of
            // every tile, and an element for every row.
            unsafe {
                self.work.run("psell_pack_rows", "pack_sort_count", launch.arg(counts))?;
                self.work.scan(counts, tiles * DIGITS, 1, all)?;
                self.work.run("psell_pack_rows", "pack_sort_place", launch.arg(counts).arg(to))?;
            }
            from = to;
        }
        Ok(())
    }

    /// PackingCounts the long rows, their pieces and their entries.
    pub(super) fn count_long(&self, totals: Ptr<u64>) -> Result<LongTiles, Error> {
        const ARRAYS: u32 = 3;
        let tiles = self.a.nrows.div_ceil(LONG_TILE);
        let sums = self.work.take::<u64>(tiles * ARRAYS as usize)?;
        // SAFETY: these are the parameters of the kernel; there is a number for every tile and
        // array.
        unsafe {
            self.work.run("psell_pack_rows", "pack_long_count", self.rows(tiles).arg(sums))?;
            self.work.scan_tiles(sums, tiles as u32, ARRAYS, totals)?;
        }
        Ok(LongTiles { sums, tiles: tiles as u32 })
    }

    /// Packs the long rows, if any.
    pub(super) fn long(
        &self,
        found: &PackingCounts,
        LongTiles { sums, tiles }: LongTiles,
        coder: &Coder<T>,
        table: &Option<CodeTable>,
    ) -> Result<Option<DeviceLongRows<T>>, Error> {
        let [rows, pieces, entries] =
            [found.long_rows, found.long_pieces, found.long_entries].map(|n| n as usize);
        if rows == 0 {
            return Ok(None);
        }
        let (work, gpu) = (&self.work, self.a.gpu);
        let (numbers, firsts) = (work.take::<u32>(rows)?, work.take::<u32>(rows)?);
        let begins = work.take::<u64>(rows)?;
        let (piece_table, col_idx) =
            (gpu.uninitialised::<Piece>(pieces)?, gpu.uninitialised::<u32>(entries)?);
        let values = self.room_for(coder, entries)?;
        let launch = self.rows(tiles as usize).arg(sums).arg(numbers).arg(firsts).arg(begins);
        let cut =
            Launch::over(rows, LANES).arg(self.row_ptr()).arg(numbers).arg(firsts).arg(begins);
        let copied = Launch::over(pieces, LANES).arg(self.row_ptr()).arg(self.a.col_idx.ptr());
        let copied = copied
            .arg(self.a.values.ptr())
            .arg(piece_table.ptr())
            .arg(pieces as u32)
            .arg(col_idx.ptr());
        let copied = CodeTable::add(table, copied.arg(values.ptr()));
        // SAFETY: these are the parameters of the kernels; the buffers hold as many rows, pieces
        // and entries as were counted.
        unsafe {
            work.run("psell_pack_rows", "pack_long_rows", launch)?;
            work.run(
                "psell_pack_rows",
                "pack_long_pieces",
                cut.arg(rows as u32).arg(piece_table.ptr()),
            )?;
            work.run("psell_pack_rows", &format!("pack_long_entries_{}", T::KIND), copied)?;
        }
        Ok(Some(DeviceLongRows::from_parts(work.gpu, piece_table, col_idx, values)))
    }
}

/// Threads per warp.
const LANES: u32 = super::LANES as u32;
