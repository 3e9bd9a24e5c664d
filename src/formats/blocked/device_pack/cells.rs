//! Panels and hot columns, found on a GPU.

use super::{BlockPacker, CELLS, HotEntries};
use crate::device::kernels::blocked_cells::{
    Bins, Columns, Descents, Hot, HotMasks, Hottest, Panels, Ranks, Spans, UnsortedSpans,
};
use crate::device::{BLOCK, Buffer, Launch, Ptr, WARP};
use crate::formats::blocked::constants::{BINS, LEAST_DENSITY, PANEL_THREADS};
use crate::formats::blocked::panel::{ColumnSpan, Panel};
use crate::{Error, Scalar};

/// Entries that a thread compares with the previous ones.
const EXAMINED: usize = 8;

impl<T: Scalar> BlockPacker<'_, T> {
    /// Columns of the first and of the last entry of every row, and true if all rows are sorted by
    /// column: they are the least and the largest one then.
    pub(super) fn spans(&self) -> Result<(Ptr<[u32; 2]>, bool), Error> {
        let (work, nrows, nnz) = (&self.work, self.a.nrows, self.a.nnz());
        let (spans, descents) = (work.take(nrows)?, work.cleared::<u64>(1)?);
        let (row_ptr, col_idx) = (self.row_ptr(), self.a.col_idx.ptr());
        let of_rows = Spans { row_ptr, col_idx, nrows: nrows as u32, spans, descents };
        let of_entries = Descents { col_idx, nnz: nnz as u64, descents };
        let over_entries = Launch::over(nnz.div_ceil(EXAMINED), 1);
        // SAFETY: there is a span for every row.
        unsafe {
            work.run(CELLS, "blocked_cells_spans", Launch::over(nrows, 1).with(of_rows))?;
            work.run(CELLS, "blocked_cells_descents", over_entries.with(of_entries))?;
        }
        let mut left = [0];
        work.read(descents, &mut left)?;
        Ok((spans, left == [0]))
    }

    /// Writes the least and the largest column of every row.
    pub(super) fn unsorted_spans(&self, spans: Ptr<[u32; 2]>) -> Result<(), Error> {
        let (row_ptr, col_idx, nrows) = (self.row_ptr(), self.a.col_idx.ptr(), self.a.nrows as u32);
        let launch = self.warps().with(UnsortedSpans { row_ptr, col_idx, nrows, spans });
        // SAFETY: there is a span for every row.
        unsafe { self.work.run(CELLS, "blocked_cells_unsorted_spans", launch) }
    }

    /// Panels of rows with these spans, of at most `widest` columns per window.
    pub(super) fn panels(&self, spans: Ptr<[u32; 2]>, widest: u32) -> Result<Vec<Panel>, Error> {
        /// Words before the panels, the first of which is their number.
        const HEAD: usize = 4;
        let (work, nrows) = (&self.work, self.a.nrows as u32);
        // Every panel but the last has at least that density.
        let most = self.a.nnz() / (LEAST_DENSITY as usize * widest as usize) + 1;
        let found = work.cleared::<u32>(HEAD + 4 * most)?;
        let (row_ptr, panels) = (self.row_ptr(), found.add(HEAD).cast::<[u32; 4]>());
        let cut = Panels { row_ptr, spans, nrows, widest, panels, count: found };
        // SAFETY: there is room for as many panels as there may be.
        unsafe {
            work.run(CELLS, "blocked_cells_panels", Launch::new(1, PANEL_THREADS).with(cut))?
        };
        let found = work.read_vec(found, HEAD + 4 * most)?;
        let panels = found[HEAD..].chunks_exact(4).take(found[0] as usize);
        let panels = panels.map(|panel| {
            let span = ColumnSpan { min: panel[2], max: panel[3] };
            Panel::covering(panel[0] as usize..panel[1] as usize, span, widest)
        });
        Ok(panels.collect())
    }

    /// The columns with the most entries, at most `columns`, and their entries. `None` if
    /// more than `columns` of them have at least [`BINS`] - 1 entries, which are not distinguished.
    pub(super) fn hottest(&self, columns: u32) -> Result<Option<(Buffer<u32>, HotEntries)>, Error> {
        let (work, ncols, nnz) = (&self.work, self.a.ncols, self.a.nnz());
        let (counts, bins) = (work.cleared::<u32>(ncols)?, work.cleared::<u32>(BINS as usize)?);
        // See the kernel `blocked_cells_hottest`.
        let found = work.cleared::<u32>(3)?;
        let (col_idx, n) = (self.a.col_idx.ptr(), ncols as u32);
        let of_columns = Launch::over(ncols, 1);
        let few =
            Launch::new(of_columns.blocks().min(4 * self.a.gpu.multiprocessors() as u32), BLOCK);
        let count = Launch::over(nnz, 1).with(Columns { col_idx, nnz: nnz as u64, counts });
        // SAFETY: there is a count for every column, and a bin for every number.
        unsafe {
            work.run(CELLS, "blocked_cells_columns", count)?;
            work.run(CELLS, "blocked_cells_bins", few.with(Bins { counts, ncols: n, bins }))?;
            let choose = Launch::new(1, BLOCK).with(Hottest { bins, most: columns, found });
            work.run(CELLS, "blocked_cells_hottest", choose)?;
        }
        let before = self.sums(ncols, |numbers| {
            let launch = of_columns.with(Ranks { counts, ncols: n, found, numbers });
            // SAFETY: there is a number for every column.
            unsafe { work.run(CELLS, "blocked_cells_ranks", launch) }
        })?;
        let (mut bounds, mut all) = ([0; 3], [0]);
        work.read(found, &mut bounds)?;
        work.read(before.add(ncols), &mut all)?;
        let [_, ties, is_unknown] = bounds;
        if is_unknown != 0 {
            return Ok(None);
        }
        let hot = self.a.gpu.uninitialised((all[0] >> u32::BITS) as usize + ties as usize)?;
        let places = work.take::<u32>(ncols)?;
        let words = nnz.div_ceil(WARP as usize);
        let masks = work.take::<u32>(words)?;
        let list = Hot { counts, ncols: n, found, before, hot: hot.ptr(), places };
        // SAFETY: there is room for every hot column, and a place for every column.
        unsafe { work.run(CELLS, "blocked_cells_hot", of_columns.with(list))? };
        let before = self.sums(words, |numbers| {
            let find = HotMasks { col_idx, nnz: nnz as u64, places, masks, numbers };
            // SAFETY: there is a mask and a number for every 32 entries.
            unsafe { work.run(CELLS, "blocked_cells_hot_masks", Launch::over(nnz, 1).with(find)) }
        })?;
        Ok(Some((hot, HotEntries { masks, before, places })))
    }
}
