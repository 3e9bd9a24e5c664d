//! Packing on a GPU, from CSR arrays in its memory. The buffers are the same, bit for bit, as those
//! of a matrix packed on the host.
//!
//! 1. Every chunk finds its first row, and counts the entries of its cells.
//! 2. Prefix sums over the cells in tile order, and over the chunks, give every cell its groups in
//!    either order.
//! 3. The host reads the first groups of the tiles and allocates the arrays. A warp for each chunk
//!    takes the entries in order, and writes each to its slot.

use super::cuda::{DeviceTiles, TileArrays};
use super::{GROUP, SlotValues, TilesPlan, TilesShape, pack};
use crate::device::kernels::tiles_pack::{Chunks, Count, Fill, Tables};
use crate::device::{BLOCK, CsrSource, Launch, SCAN, WARP, WorkingMemory};
use crate::formats::values::common_on_gpu;
use crate::{Error, Scalar};

/// Kernel files for packing.
pub(super) fn modules(plan: &TilesPlan) -> impl Iterator<Item = &'static str> {
    [FILE, SCAN].into_iter().chain(plan.packed.then_some("common_value"))
}

/// Kernel file of chunks and cells.
const FILE: &str = "tiles_pack";

/// Most column blocks, for which the kernels have numbers in shared memory.
const MAX_BLOCKS: usize = 4096;

/// Numbers in shared memory for a column block: of the kernel that counts, and of that which fills.
const COUNTED: usize = 1;
const FILLED: usize = 3;

/// Packs a matrix in GPU memory. `None` if the host has to pack it: because it has no entry or too
/// many column blocks, or because most cells would be empty.
///
/// # Errors
///
/// [`Error::PlanLimit`] as on the host, and errors of allocation, launches and kernel compilation.
pub(super) fn pack<T: Scalar>(
    plan: &TilesPlan,
    a: &CsrSource<T>,
) -> Result<Option<DeviceTiles<T>>, Error> {
    let (nrows, nnz) = (a.nrows, a.nnz());
    let shape = TilesShape::new(plan, nrows, a.ncols, nnz, T::KIND);
    let (chunk_count, blocks) = (shape.chunk_count(), shape.blocks());
    pack::check(plan, "chunks", chunk_count as u64, pack::MAX_CHUNKS)?;
    let cells = chunk_count.saturating_mul(blocks);
    let is_sparse = cells > (2 * nnz).max(1 << 20);
    if nnz == 0 || blocks > MAX_BLOCKS || is_sparse || size_of::<usize>() != size_of::<u64>() {
        return Ok(None);
    }
    let work = WorkingMemory::new(a.gpu, 8 * (cells + chunk_count) + (1 << 20))?;
    let equal = if plan.packed { common_on_gpu(&work, &a.values)? } else { None };
    let row_ptr = a.row_ptr.ptr().cast();
    let (col_idx, chunk) = (a.col_idx.ptr(), shape.chunk);
    let (nrows, nnz, chunks) = (nrows as u32, nnz as u64, chunk_count as u32);
    let (width, blocks) = (shape.width, blocks as u32);
    let stripe = shape.stripe.min(chunk_count) as u32;
    let shared = |numbers: usize| blocks * (numbers * size_of::<u32>()) as u32;

    let chunk_rows = a.gpu.uninitialised::<u32>(chunk_count + 1)?;
    let cell_groups = work.take::<u64>(cells + 1)?;
    let chunk_groups = work.take::<u64>(chunk_count + 1)?;
    let chunk_rows_at = chunk_rows.ptr();
    let find = Chunks { row_ptr, nrows, nnz, chunk, chunks, chunk_rows: chunk_rows_at };
    let count = Count {
        col_idx,
        chunk_rows: chunk_rows_at,
        nnz,
        nrows,
        chunk,
        width,
        chunks,
        stripe,
        blocks,
        cell_groups,
        chunk_groups,
    };
    let counting = Launch::over(chunk_count, BLOCK).with_shared(shared(COUNTED)).with(count);
    work.clear(cell_groups.add(cells), 1)?;
    work.clear(chunk_groups.add(chunk_count), 1)?;
    // SAFETY: there is a number for every cell, for every chunk, and for the sum of each; columns
    // are less than `ncols`, so that their blocks have counts.
    unsafe {
        work.run(FILE, "tiles_pack_chunks", Launch::over(chunk_count + 1, 1).with(find))?;
        work.run(FILE, "tiles_pack_count", counting)?;
        work.scan(cell_groups, cells, 1, cell_groups.add(cells))?;
        work.scan(chunk_groups, chunk_count, 1, chunk_groups.add(chunk_count))?;
    }
    let mut groups = [0u64];
    work.read(cell_groups.add(cells), &mut groups)?;
    pack::check(plan, "groups", groups[0], u64::from(u32::MAX))?;

    let chunk_ptr = a.gpu.uninitialised::<u32>(chunk_count + 1)?;
    let tile_ptr = a.gpu.uninitialised::<u32>(shape.tiles() + 1)?;
    let tables = Tables {
        chunk_groups,
        cell_groups,
        chunks,
        stripe,
        blocks,
        tiles: shape.tiles() as u64,
        chunk_ptr: chunk_ptr.ptr(),
        tile_ptr: tile_ptr.ptr(),
    };
    let most = shape.tiles().max(chunk_count) + 1;
    // SAFETY: there is room for a number for every chunk and every tile, and behind them.
    unsafe { work.run(FILE, "tiles_pack_tables", Launch::over(most, 1).with(tables))? };
    let slots = groups[0] as usize * GROUP;
    let arrays = TileArrays {
        shape,
        chunk_rows,
        chunk_ptr,
        positions: a.gpu.uninitialised(slots)?,
        row_ends: a.gpu.uninitialised(shape.nrows)?,
        cols: a.gpu.uninitialised(slots)?,
        values: match equal {
            Some(value) => SlotValues::Equal(value),
            None => SlotValues::Plain(a.gpu.uninitialised(slots)?),
        },
        destinations: a.gpu.uninitialised(slots / GROUP)?,
        stripe_ptr: {
            let tile_ptr = tile_ptr.to_vec()?;
            (0..=shape.stripes()).map(|stripe| tile_ptr[stripe * shape.blocks()]).collect()
        },
        tile_ptr,
    };
    let fill = Fill {
        row_ptr,
        col_idx,
        values: a.values.ptr(),
        chunk_rows: arrays.chunk_rows.ptr(),
        chunk_ptr: arrays.chunk_ptr.ptr(),
        cell_groups,
        nnz,
        nrows,
        chunk,
        width,
        chunks,
        stripe,
        blocks,
        positions: arrays.positions.ptr(),
        row_ends: arrays.row_ends.ptr(),
        cols: arrays.cols.ptr(),
        stored: arrays.values.params().0,
        destinations: arrays.destinations.ptr(),
    };
    let filling = Launch::new(chunks, WARP).with_shared(shared(FILLED)).with(fill);
    // SAFETY: every group of every cell has its slots in all arrays.
    unsafe { work.run(FILE, &format!("tiles_pack_fill_{}", T::KIND), filling)? };
    // Products may run on other streams, and the caller may free the CSR arrays.
    a.gpu.queue().synchronize()?;
    DeviceTiles::new(arrays, a.gpu).map(Some)
}
