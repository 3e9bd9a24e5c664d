//! Targets of the segments, and the contents of the pieces.

use super::{BlockPacker, CountedCells, FILE, PieceSource, Tile};
use crate::device::kernels::blocked_pack::{PiecePtr, Rows, Segments, Split, Targets, Window};
use crate::device::{Buffer, Launch, Ptr, WARP};
use crate::formats::blocked::cuda::{DeviceArrays, DeviceBlocked, UploadedPieces};
use crate::formats::blocked::{BATCHES, LANE, PIECE, SlotValues};
use crate::{Error, Scalar};

impl<T: Scalar> BlockPacker<'_, T> {
    /// Assigns targets and fills the pieces. `None` if there are too many segments.
    pub(super) fn finish(
        &self,
        hot: Buffer<u32>,
        near: (CountedCells, PieceSource),
        far: (CountedCells, PieceSource),
        order: Buffer<u32>,
        equal: Option<T>,
    ) -> Result<Option<DeviceBlocked<T>>, Error> {
        let (work, gpu, nrows) = (&self.work, self.a.gpu, self.a.nrows);
        let n = nrows as u32;
        let segments = work.cleared::<u32>(nrows)?;
        for CountedCells { panels, panel_count: count, tile_table: tiles, before, .. } in
            [&near.0, &far.0]
        {
            let (panels, tiles, before) = (*panels, *tiles, *before);
            let add = Segments { panels, count: *count, tiles, before, nrows: n, segments };
            let rows = if *count == 0 { 0 } else { nrows };
            // SAFETY: the panels have all rows, and the tiles all cells.
            unsafe { work.run(FILE, "blocked_pack_segments", Launch::over(rows, 1).with(add))? };
        }
        let before = self.sums(nrows, |numbers| {
            let launch = Launch::over(nrows, 1).with(Split { segments, nrows: n, numbers });
            // SAFETY: there is a number for every row.
            unsafe { work.run(FILE, "blocked_pack_split", launch) }
        })?;
        let mut all = [0];
        work.read(before.add(nrows), &mut all)?;
        let (partial_sums, split) = ((all[0] >> u32::BITS) as usize, all[0] as u32 as usize);
        if u32::try_from(nrows + partial_sums).is_err() {
            return Ok(None);
        }
        let (split_rows, split_ptr) = (gpu.uninitialised(split)?, gpu.uninitialised(split + 1)?);
        let (rows, ptr) = (split_rows.ptr(), split_ptr.ptr());
        let assign = Rows { segments, nrows: n, before, split_rows: rows, split_ptr: ptr };
        // SAFETY: there is room for as many rows as were counted, and for the number of sums.
        unsafe { work.run(FILE, "blocked_pack_rows", Launch::over(nrows + 1, 1).with(assign))? };
        let (near_pieces, far_pieces) =
            (self.filled(&near, segments, equal)?, self.filled(&far, segments, equal)?);
        let ends = near.0.tiles.iter().skip(1).map(|tile| tile.first_piece);
        let ends = ends.chain([near.0.pieces as u32]);
        let has_pieces = |(tile, end): &(&Tile, u32)| tile.first_piece < *end;
        let tiles: Vec<&Tile> =
            near.0.tiles.iter().zip(ends).filter(has_pieces).map(|(tile, _)| tile).collect();
        let tile_ptr: Vec<u32> =
            tiles.iter().map(|tile| tile.first_piece).chain([near.0.pieces as u32]).collect();
        let windows: Vec<[u32; 2]> =
            tiles.iter().map(|tile| [tile.first_col, tile.width]).collect();
        // The uploads wait for all launches.
        let packed = DeviceArrays {
            hot,
            tile_ptr: gpu.upload(&tile_ptr)?,
            windows: gpu.upload(&windows)?,
            near: near_pieces,
            far: far_pieces,
            split_rows,
            split_ptr,
            order,
        };
        let widest = windows.iter().map(|window| window[1]).max().unwrap_or(0);
        let shape = (nrows, self.a.ncols);
        DeviceBlocked::of_arrays(gpu, shape, packed, widest, partial_sums).map(Some)
    }

    /// Fills the pieces of near or far entries. `next` has the next target of every row.
    fn filled<C: Copy>(
        &self,
        (counted, source): &(CountedCells, PieceSource),
        next: Ptr<u32>,
        equal: Option<T>,
    ) -> Result<UploadedPieces<T, C>, Error> {
        let (work, gpu, n) = (&self.work, self.a.gpu, self.a.nrows as u32);
        let CountedCells { panels, panel_count, tile_table: tiles, before, cuts, .. } = *counted;
        let (pieces, slots) = (counted.pieces as u32, counted.pieces * PIECE);
        let (mut nonempty, mut cut) = ([0], [0]);
        work.read(before.add(counted.cells), &mut nonempty)?;
        work.read(cuts.add(counted.pieces), &mut cut)?;
        let nonempty = nonempty[0] as u32;
        let (piece_ptr, targets) = (
            gpu.uninitialised::<u32>(counted.pieces + 1)?,
            gpu.uninitialised::<u32>(nonempty as usize + cut[0] as usize)?,
        );
        let find = PiecePtr {
            before,
            cells: counted.piece_cells,
            cuts,
            pieces,
            all: nonempty,
            piece_ptr: piece_ptr.ptr(),
        };
        let assign = Targets {
            panels,
            count: panel_count,
            tiles,
            before,
            nrows: n,
            piece_ptr: piece_ptr.ptr(),
            cuts,
            next,
            targets: targets.ptr(),
        };
        let rows = Launch::over(if panel_count == 0 { 0 } else { self.a.nrows }, 1);
        // SAFETY: there is room for as many pieces and segments as were counted.
        unsafe {
            let over = Launch::over(counted.pieces + 1, 1);
            work.run(FILE, "blocked_pack_piece_ptr", over.with(find))?;
            work.run(FILE, "blocked_pack_targets", rows.with(assign))?;
        }
        let cols = gpu.uninitialised::<C>(slots)?;
        let flags = gpu.uninitialised::<u16>(slots / LANE)?;
        let values = match equal {
            Some(value) => SlotValues::Equal(value),
            None => SlotValues::Plain(gpu.uninitialised::<T>(slots)?),
        };
        let (stored, _) = values.params();
        let launch = Launch::over(counted.pieces * BATCHES, WARP).with(Window {
            row_ptr: self.row_ptr(),
            col_idx: self.a.col_idx.ptr(),
            values: self.a.values.ptr(),
            tiles,
            count: counted.tiles.len() as u32,
            before,
            pieces,
            firsts: source.firsts,
            order: source.order,
            masks: source.hot.masks,
            hot_before: source.hot.before,
            nnz: self.a.nnz() as u64,
            places: source.hot.places,
            cols: cols.ptr(),
            stored,
            flags: flags.ptr(),
        });
        // SAFETY: every batch has a warp, and the arrays have a slot for each of its entries.
        unsafe { work.run(FILE, &format!("blocked_pack_{}_{}", source.kernel, T::KIND), launch)? };
        Ok(UploadedPieces { cols, values, flags, piece_ptr, targets })
    }
}
