//! Order of the rows, and the long rows, on a GPU.

use super::super::Coder;
use super::super::cuda::DeviceLongRows;
use super::super::long::Piece;
use super::super::order::Order;
use super::values::CodeTable;
use super::{Packer, PackingCounts};
use crate::device::kernels::psell_pack_rows::{
    CopyLongEntries, PsellPackLongCount, PsellPackLongPieces, PsellPackLongRows,
};
use crate::device::{BLOCK, Buffer, Launch, Ptr, SCANNED};
use crate::formats::device_sorting::RowSort;
use crate::{Error, Scalar};

/// Rows per block for counting long rows.
const BLOCK_ROWS: usize = SCANNED * BLOCK as usize;

/// Prefix sums over the blocks, of long rows, of their pieces and of their entries.
pub(super) struct LongRowSums {
    sums: Ptr<u64>,
    blocks: u32,
}

impl<T: Scalar> Packer<'_, T> {
    /// Returns the rows in `order`; `None` for the natural order.
    pub(super) fn order(&self, order: Order) -> Result<Option<Buffer<u32>>, Error> {
        let Order::Windows(sigma) = order else { return Ok(None) };
        let sort = RowSort {
            work: &self.work,
            row_ptr: self.row_ptr(),
            nrows: self.a.nrows,
            limit: self.split,
        };
        sort.windows(sigma).map(Some)
    }

    /// Counts the long rows, their pieces and their entries.
    pub(super) fn count_long(&self, totals: Ptr<u64>) -> Result<LongRowSums, Error> {
        const ARRAYS: u32 = 3;
        let blocks = self.a.nrows.div_ceil(BLOCK_ROWS);
        let sums = self.work.take::<u64>(blocks * ARRAYS as usize)?;
        let (row_ptr, nrows, split) = (self.row_ptr(), self.nrows(), self.split);
        let count = Launch::new(blocks as u32, BLOCK).with(PsellPackLongCount {
            row_ptr,
            nrows,
            split,
            sums,
        });
        // SAFETY: there is a number for every block and array.
        unsafe {
            self.work.run("psell_pack_rows", "psell_pack_long_count", count)?;
            self.work.scan_blocks(sums, blocks as u32, ARRAYS, totals)?;
        }
        Ok(LongRowSums { sums, blocks: blocks as u32 })
    }

    /// Packs the long rows, if any.
    pub(super) fn long(
        &self,
        counts: &PackingCounts,
        LongRowSums { sums, blocks }: LongRowSums,
        coder: &Coder<T>,
        table: &Option<CodeTable>,
    ) -> Result<Option<DeviceLongRows<T>>, Error> {
        let [rows, pieces, entries] =
            [counts.long_rows, counts.long_pieces, counts.long_entries].map(|n| n as usize);
        if rows == 0 {
            return Ok(None);
        }
        let (work, gpu) = (&self.work, self.a.gpu);
        let (numbers, firsts) = (work.take::<u32>(rows)?, work.take::<u32>(rows)?);
        let begins = work.take::<u64>(rows)?;
        let piece_table = gpu.uninitialised::<Piece>(pieces)?;
        let (col_idx, values) = self.allocate(coder, entries, entries)?;
        let find = Launch::new(blocks, BLOCK).with(PsellPackLongRows {
            row_ptr: self.row_ptr(),
            nrows: self.nrows(),
            split: self.split,
            sums,
            long_rows: numbers,
            firsts,
            begins,
        });
        let cut = Launch::over(rows, LANES).with(PsellPackLongPieces {
            row_ptr: self.row_ptr(),
            long_rows: numbers,
            firsts,
            begins,
            count: rows as u32,
            pieces: piece_table.ptr(),
        });
        let (keys, codes) = CodeTable::ptrs(table);
        let copy = Launch::over(pieces, LANES).with(CopyLongEntries {
            row_ptr: self.row_ptr(),
            col_idx: self.a.col_idx.ptr(),
            values: self.a.values.ptr(),
            pieces: piece_table.ptr(),
            count: pieces as u32,
            cols: col_idx.ptr(),
            stored: values.ptr(),
            keys,
            codes,
        });
        // SAFETY: the buffers hold as many rows, pieces and entries as were counted.
        unsafe {
            work.run("psell_pack_rows", "psell_pack_long_rows", find)?;
            work.run("psell_pack_rows", "psell_pack_long_pieces", cut)?;
            work.run("psell_pack_rows", &format!("psell_pack_long_entries_{}", T::KIND), copy)?;
        }
        Ok(Some(DeviceLongRows::from_buffers(work.gpu, piece_table, col_idx, values)))
    }
}

/// Threads per warp.
const LANES: u32 = super::LANES as u32;
