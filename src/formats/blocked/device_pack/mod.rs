//! Packing on a GPU, from CSR arrays in its memory. The buffers are the same, bit for bit, as those
//! of a matrix packed on the host.
//!
//! A *cell* has the entries of a row in a tile, or its far entries, perhaps none:
//!
//! 1. Tiles are found: with `kib` the windows of all panels, with `hot` one of the hot columns and
//!    one of the others.
//! 2. The entries of every cell are counted; those of rows that are not sorted by column are put in
//!    the order of their cells.
//! 3. Prefix sums over the cells, tile by tile, give every entry its slot and every non-empty cell
//!    its number.
//! 4. Cells that continue in another piece are counted: every piece gets the number of its first
//!    segment, and the segments of every row get their targets.
//! 5. The host reads the sums and allocates the arrays, and a warp per batch fills them.

mod cells;
mod fill;

use super::cuda::DeviceBlocked;
use super::panel::Panel;
use super::{BlockedPlan, PIECE, TileColumns};
use crate::device::kernels::blocked_cells::{Classes, Count, Firsts, HotOrder, Order, Sorted};
use crate::device::kernels::blocked_pack::{Pieces, Tiles};
use crate::device::{CsrSource, Launch, Ptr, SCAN, WARP, WorkingMemory};
use crate::formats::values::common_on_gpu;
use crate::memory::push;
use crate::{Error, Scalar};

/// Kernel files for packing.
pub(super) const MODULES: [&str; 3] = [CELLS, FILE, SCAN];

/// Kernel file of panels, hot columns and cells.
const CELLS: &str = "blocked_cells";

/// Kernel file of pieces.
const FILE: &str = "blocked_pack";

/// Packs a matrix in GPU memory with tiles of at most `columns` columns. `None` if the host has to
/// pack it: because it has 2³¹ entries, rows or columns, because most cells would be empty, or
/// because the GPU cannot say which columns are hot (`hottest`).
///
/// # Errors
///
/// Errors of allocation, launches and kernel compilation.
pub(super) fn pack<T: Scalar>(
    plan: &BlockedPlan,
    columns: u32,
    a: &CsrSource<T>,
) -> Result<Option<DeviceBlocked<T>>, Error> {
    let most = i32::MAX as usize;
    let fits = a.nnz() < most && a.nrows < most && a.ncols < most;
    if !fits || size_of::<usize>() != size_of::<u64>() {
        return Ok(None);
    }
    // Spans, segments, split rows, and some cells.
    let room = 24 * a.nrows + 8 * a.ncols + 3 * a.nnz() + (1 << 20);
    let packer = BlockPacker { work: WorkingMemory::new(a.gpu, room)?, a };
    let (spans, sorted) = packer.spans()?;
    let equal = if plan.packed { common_on_gpu(&packer.work, &a.values)? } else { None };
    match plan.x {
        TileColumns::Windows => {
            if !sorted {
                packer.unsorted_spans(spans)?;
            }
            packer.windows(&packer.panels(spans, columns)?, sorted, equal)
        }
        TileColumns::Hot => packer.hot(columns, sorted, equal),
    }
}

/// A tile of `rows` rows and `width` columns. The kernels use the same layout.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Tile {
    first_cell: u32,
    rows: u32,
    first_row: u32,
    first_col: u32,
    width: u32,
    /// Number of entries before the tile.
    first_entry: u32,
    /// Number of pieces before the tile.
    first_piece: u32,
}

/// Tiles of a panel, one for each of its windows. The kernels use the same layout.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct PanelTiles {
    first_row: u32,
    windows: u32,
    first_tile: u32,
}

/// Tiles, and their copy on the GPU.
struct UploadedTiles {
    table: Ptr<Tile>,
    tiles: Vec<Tile>,
}

impl UploadedTiles {
    const NONE: Self = Self { table: Ptr::NULL, tiles: Vec::new() };
}

/// Tiles with the sums over their cells, and the assignment of pieces. A tile may be empty.
struct CountedCells {
    panels: Ptr<PanelTiles>,
    panel_count: u32,
    tiles: Vec<Tile>,
    tile_table: Ptr<Tile>,
    cells: usize,
    /// Number of entries (upper half) and of non-empty cells (lower half) before every cell, and of
    /// all.
    before: Ptr<u64>,
    pieces: usize,
    /// First cell that begins in each piece or behind it.
    piece_cells: Ptr<u32>,
    /// Number of earlier pieces that a cell continues in, for every piece and behind the last one.
    cuts: Ptr<u64>,
}

/// Hot entries of a matrix. Null pointers without hot columns.
#[derive(Clone, Copy)]
struct HotEntries {
    /// Mask of the hot entries in every word of 32.
    masks: Ptr<u32>,
    /// Number of hot entries before every word, and of all.
    before: Ptr<u64>,
    /// Number of every column among the hot ones.
    places: Ptr<u32>,
}

impl HotEntries {
    const NONE: Self = Self { masks: Ptr::NULL, before: Ptr::NULL, places: Ptr::NULL };
}

/// Arrays from which pieces are filled, and the kernel.
struct PieceSource {
    /// Word in the name of the kernel: `window`, `near` or `far`.
    kernel: &'static str,
    /// For windows the number of entries before each cell in its row.
    firsts: Ptr<u32>,
    /// Original positions of the entries in their rows; null if rows are sorted.
    order: Ptr<u32>,
    hot: HotEntries,
}

/// Number of cells of all panels.
fn cells_of(panels: &[Panel]) -> u64 {
    panels.iter().map(|panel| panel.rows.len() as u64 * u64::from(panel.windows)).sum()
}

/// Largest number of cells that a GPU packs. With many empty ones the host needs less memory.
fn most_cells(nnz: usize) -> u64 {
    (2 * nnz as u64).max(1 << 20).min(i32::MAX as u64)
}

/// A matrix that is being packed.
struct BlockPacker<'a, T: Scalar> {
    work: WorkingMemory,
    a: &'a CsrSource<T>,
}

impl<T: Scalar> BlockPacker<'_, T> {
    /// Packs panels and windows.
    fn windows(
        &self,
        panels: &[Panel],
        sorted: bool,
        equal: Option<T>,
    ) -> Result<Option<DeviceBlocked<T>>, Error> {
        let (mut rows_of, mut tiles, mut cells) = (Vec::new(), Vec::new(), 0u64);
        if cells_of(panels) > most_cells(self.a.nnz()) {
            return Ok(None);
        }
        for panel in panels {
            let (first_row, rows) = (panel.rows.start as u32, panel.rows.len() as u32);
            let (windows, first_tile) = (panel.windows, tiles.len() as u32);
            push(&mut rows_of, PanelTiles { first_row, windows, first_tile })?;
            for window in 0..windows {
                let first_col = panel.first_col + window * panel.width;
                let width = panel.width.min(self.a.ncols as u32 - first_col);
                let (first_cell, first_entry, first_piece) = (cells as u32, 0, 0);
                let tile = Tile {
                    first_cell,
                    rows,
                    first_row,
                    first_col,
                    width,
                    first_entry,
                    first_piece,
                };
                push(&mut tiles, tile)?;
                cells += u64::from(rows);
            }
        }
        let tiles = UploadedTiles { table: self.table(&tiles)?, tiles };
        let panels = (self.table(&rows_of)?, rows_of.len() as u32);
        let (cells, firsts) = (cells as usize, self.work.take::<u32>(cells as usize)?);
        let (row_ptr, col_idx, nrows) = (self.row_ptr(), self.a.col_idx.ptr(), self.a.nrows as u32);
        let order = self.a.gpu.uninitialised(if sorted { 0 } else { self.a.nnz() })?;
        let before = self.sums(cells, |numbers| {
            if sorted {
                let (count, cells) = (tiles.tiles.len() as u32, cells as u32);
                let tiles = tiles.table;
                let launch = Launch::over(cells as usize, 1);
                let find = Sorted { row_ptr, col_idx, tiles, count, cells, firsts, numbers };
                // SAFETY: there is a number and a first entry for every cell, here and below.
                return unsafe { self.work.run(CELLS, "blocked_cells_sorted", launch.with(find)) };
            }
            self.work.clear(numbers, cells)?;
            let ((panels, count), tiles) = (panels, tiles.table);
            let next = self.work.take::<u32>(cells)?;
            let find = Count { row_ptr, col_idx, panels, count, tiles, nrows, numbers };
            let add = Firsts { panels, count, tiles, nrows, numbers, firsts, next };
            let order = order.ptr();
            let arrange = Order { row_ptr, col_idx, panels, count, tiles, nrows, next, order };
            // SAFETY: as above, and there is a position for every entry.
            unsafe {
                self.work.run(CELLS, "blocked_cells_count", self.warps().with(find))?;
                let rows = Launch::over(self.a.nrows, 1);
                self.work.run(CELLS, "blocked_cells_firsts", rows.with(add))?;
                self.work.run(CELLS, "blocked_cells_order", self.warps().with(arrange))
            }
        })?;
        let near = self.pieces(panels, tiles, (cells, before), self.a.nnz())?;
        let nothing = (Ptr::NULL, 0);
        let far = self.pieces(nothing, UploadedTiles::NONE, (0, self.sums(0, |_| Ok(()))?), 0)?;
        let source = |kernel| {
            let order = if sorted { Ptr::NULL } else { order.ptr() };
            PieceSource { kernel, firsts, order, hot: HotEntries::NONE }
        };
        let (near, far) = ((near, source("window")), (far, source("far")));
        self.finish(self.a.gpu.uninitialised(0)?, near, far, order, equal)
    }

    /// Packs the entries in hot columns and the others.
    fn hot(
        &self,
        columns: u32,
        sorted: bool,
        equal: Option<T>,
    ) -> Result<Option<DeviceBlocked<T>>, Error> {
        let Some((hot, entries)) = self.hottest(columns)? else { return Ok(None) };
        let (nrows, nnz) = (self.a.nrows, self.a.nnz());
        let mut near_entries = [0];
        self.work.read(entries.before.add(nnz.div_ceil(WARP as usize)), &mut near_entries)?;
        let near_entries = near_entries[0] as usize;
        let counted = |is_hot: bool, count: usize| {
            let before = self.sums(nrows, |numbers| {
                let launch = Launch::over(nrows, 1).with(Classes {
                    row_ptr: self.row_ptr(),
                    nrows: nrows as u32,
                    masks: entries.masks,
                    before: entries.before,
                    nnz: nnz as u64,
                    hot: u32::from(is_hot),
                    numbers,
                });
                // SAFETY: there is a number for every row.
                unsafe { self.work.run(CELLS, "blocked_cells_classes", launch) }
            })?;
            let (rows, width) = (nrows as u32, if is_hot { hot.len() as u32 } else { 0 });
            let (first_row, first_cell, first_col, first_entry) = (0, 0, 0, 0);
            let (first_tile, first_piece) = (0, 0);
            let tile =
                Tile { first_cell, rows, first_row, first_col, width, first_entry, first_piece };
            let (tiles, windows) = if count > 0 { (vec![tile], 1) } else { (Vec::new(), 0) };
            let panels = (self.table(&[PanelTiles { first_row, windows, first_tile }])?, 1);
            let tiles = UploadedTiles { table: self.table(&tiles)?, tiles };
            self.pieces(panels, tiles, (nrows, before), count)
        };
        let (near, far) = (counted(true, near_entries)?, counted(false, nnz - near_entries)?);
        let order = self.a.gpu.uninitialised(if sorted { 0 } else { nnz })?;
        if !sorted {
            let launch = self.warps().with(HotOrder {
                row_ptr: self.row_ptr(),
                nrows: nrows as u32,
                masks: entries.masks,
                before: entries.before,
                nnz: nnz as u64,
                order: order.ptr(),
            });
            // SAFETY: there is a position for every entry.
            unsafe { self.work.run(CELLS, "blocked_cells_hot_order", launch)? };
        }
        let source =
            |kernel| PieceSource { kernel, firsts: Ptr::NULL, order: Ptr::NULL, hot: entries };
        self.finish(hot, (near, source("near")), (far, source("far")), order, equal)
    }

    /// Writes `count` numbers by `write`, and returns the sums before each of them and of all.
    fn sums(
        &self,
        count: usize,
        write: impl FnOnce(Ptr<u64>) -> Result<(), Error>,
    ) -> Result<Ptr<u64>, Error> {
        if count == 0 {
            return self.work.cleared(1);
        }
        let numbers = self.work.take::<u64>(count + 1)?;
        write(numbers)?;
        // SAFETY: there are `count` numbers, and room for their sum.
        unsafe { self.work.scan(numbers, count, 1, numbers.add(count))? };
        Ok(numbers)
    }

    /// Copies a table to the GPU.
    fn table<N: Copy>(&self, table: &[N]) -> Result<Ptr<N>, Error> {
        let copy = self.work.take(table.len())?;
        if !table.is_empty() {
            self.work.write(copy, table)?;
        }
        Ok(copy)
    }

    /// Assigns pieces to tiles, given the sums before their cells.
    fn pieces(
        &self,
        (panels, panel_count): (Ptr<PanelTiles>, u32),
        UploadedTiles { table: tile_table, mut tiles }: UploadedTiles,
        (cells, before): (usize, Ptr<u64>),
        entries: usize,
    ) -> Result<CountedCells, Error> {
        let work = &self.work;
        let count = tiles.len() as u32;
        let firsts = work.take::<u32>(tiles.len())?;
        let find = Tiles { tiles: tile_table, count, before, first_entries: firsts };
        // SAFETY: there is a number for every tile.
        unsafe { work.run(FILE, "blocked_pack_tiles", Launch::over(tiles.len(), 1).with(find))? };
        let mut firsts = work.read_vec(firsts, tiles.len())?;
        firsts.push(entries as u32);
        let mut pieces = 0;
        for (tile, ends) in tiles.iter_mut().zip(firsts.windows(2)) {
            (tile.first_entry, tile.first_piece) = (ends[0], pieces as u32);
            pieces += ((ends[1] - ends[0]) as usize).div_ceil(PIECE);
        }
        if count > 0 {
            work.write(tile_table, &tiles)?;
        }
        let piece_cells = work.take::<u32>(pieces)?;
        let cuts = self.sums(pieces, |cuts| {
            let launch = Launch::over(pieces, 1).with(Pieces {
                tiles: tile_table,
                count,
                before,
                pieces: pieces as u32,
                cells: piece_cells,
                cuts,
            });
            // SAFETY: there is a cell and a number for every piece.
            unsafe { work.run(FILE, "blocked_pack_pieces", launch) }
        })?;
        Ok(CountedCells {
            panels,
            panel_count,
            tiles,
            tile_table,
            cells,
            before,
            pieces,
            piece_cells,
            cuts,
        })
    }

    /// A launch with a warp per row.
    fn warps(&self) -> Launch {
        Launch::over(self.a.nrows, WARP)
    }

    /// Row offsets in the type of the kernels.
    fn row_ptr(&self) -> Ptr<u64> {
        self.a.row_ptr.ptr().cast()
    }
}

#[cfg(test)]
mod tests;
