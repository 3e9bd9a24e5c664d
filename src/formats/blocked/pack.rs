//! Packing: the cells of all tiles are listed and sorted by tile, which gives the position of each.
//! Then all pieces are filled independently.

use super::constants::COLD;
use super::cpu::Spare;
use super::order::{self, TASK, tasks};
use super::panel::{Panel, PanelRows};
use super::{
    BATCH, BlockedPlan, HostBlocked, LANE, PIECE, Pieces, SlotValues, SplitRows, TileColumns,
    TileTable, place,
};
use crate::device::cpu::{Output, partition};
use crate::formats::values::common;
use crate::matrix::{CsrColumns, CsrMatrix, CsrView};
use crate::memory::{check_room, collected, filled, joined, push, reserve, reserved, try_zeroed};
use crate::parallel;
use crate::{Error, Scalar};
use bytemuck::Zeroable;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Largest number of entries of a row in a [`CellRange`] with `hot`. A piece that begins or ends
/// inside a range classifies the entries of that range again.
const MAX_ENTRIES: usize = 1024;

/// Consecutive entries of a cell: with `kib` all, with `hot` those among [`MAX_ENTRIES`] entries of
/// the row.
#[derive(Debug, Clone, Copy)]
struct CellRange {
    /// Number of its window, then of its tile; with `hot` 0 for near and 1 for far entries.
    tile: u32,
    row: u32,
    /// Its first entry in the row.
    first: u32,
    count: u32,
}

/// Packs a matrix.
pub(super) fn pack<T: Scalar>(
    plan: &BlockedPlan,
    a: CsrView<'_, T>,
) -> Result<HostBlocked<T>, Error> {
    pack_columns(plan, plan.columns(T::KIND), a)
}

/// Packs a matrix with tiles of at most `columns` columns, a multiple of 8.
pub(super) fn pack_columns<T: Scalar>(
    plan: &BlockedPlan,
    columns: u32,
    a: CsrView<'_, T>,
) -> Result<HostBlocked<T>, Error> {
    let equal = plan.packed.then(|| common(a.values())).flatten();
    let (order, packed) = match plan.x {
        TileColumns::Windows => {
            let panels = panels(a.columns(), columns, plan)?;
            let (order, arranged) = order::by_windows(a, &panels)?;
            let a = arranged.as_ref().map_or(a, CsrMatrix::view);
            let (cells, windows) = cells(a.columns(), &panels)?;
            let entries = Contiguous { a: a.columns(), windows: &windows };
            let filler = Filler { plan, a, equal };
            let (tile_ptr, near) = filler.fill(&cells, &entries)?;
            let (_, far) = filler.fill::<u32>(&[], &entries)?;
            let tiles = TileTable { tile_ptr, windows };
            (order, Packed { hot: Vec::new(), tiles, near, far })
        }
        TileColumns::Hot => {
            let hot = hottest(a.columns(), columns as usize)?;
            let mut numbers = filled(a.ncols(), COLD)?;
            (0..).zip(&hot).for_each(|(number, &col)| numbers[col as usize] = number);
            let (near, far) = hot_and_other_cells(a.columns(), &numbers)?;
            let windows = if near.is_empty() { Vec::new() } else { vec![[0, hot.len() as u32]] };
            let entries = |hot| Classified { a: a.columns(), numbers: &numbers, hot };
            let filler = Filler { plan, a, equal };
            let (tile_ptr, near) = filler.fill(&near, &entries(true))?;
            let (_, far) = filler.fill(&far, &entries(false))?;
            let order = match a.columns().are_sorted() {
                true => Vec::new(),
                false => order::positions(a.columns(), |_, col| {
                    u32::from(numbers[col as usize] == COLD)
                })?,
            };
            (order, Packed { hot, tiles: TileTable { tile_ptr, windows }, near, far })
        }
    };
    let Packed { hot, tiles, mut near, mut far } = packed;
    let split = targets(plan, a.nrows(), [&mut near.targets, &mut far.targets])?;
    let partial_sums = split.ptr[split.ptr.len() - 1] as usize;
    let (nrows, ncols, scratch) = (a.nrows(), a.ncols(), Spare::of(partial_sums + hot.len())?);
    Ok(HostBlocked { nrows, ncols, hot, tiles, near, far, split, order, scratch })
}

/// Packed matrix without the targets of the sums.
struct Packed<T> {
    hot: Vec<u32>,
    tiles: TileTable,
    near: Pieces<T, u16>,
    far: Pieces<T, u32>,
}

/// Returns `found` as 32 bits, or an error if it is larger.
pub(super) fn check(plan: &BlockedPlan, what: &str, found: u64) -> Result<u32, Error> {
    u32::try_from(found).map_err(|_| {
        let message =
            format!("it would have {found} {what}, and there can be {}; take more KiB", u32::MAX);
        Error::PlanLimit { plan: format!("blocked{plan}"), message }
    })
}

/// The panels of a matrix, each with the number of its first window.
fn panels(a: CsrColumns<'_>, columns: u32, plan: &BlockedPlan) -> Result<Vec<(Panel, u32)>, Error> {
    let rows = PanelRows::all(a);
    let mut panels = Vec::new();
    let (mut row, mut number) = (0, 0u64);
    while row < a.nrows() {
        let (panel, _) = Panel::starting_at(&rows, row, columns);
        row = panel.rows.end;
        let next = number + u64::from(panel.windows);
        push(&mut panels, (panel, check(plan, "windows", number)?))?;
        number = next;
    }
    check(plan, "windows", number)?;
    Ok(panels)
}

/// Non-empty cells of all rows in the windows of their panels, by tile and then by row, and the
/// first column and the width of every tile. Rows are in the order of their windows.
fn cells(
    a: CsrColumns<'_>,
    panels: &[(Panel, u32)],
) -> Result<(Vec<CellRange>, Vec<[u32; 2]>), Error> {
    // A row has at most as many cells as windows and entries; joining the lists takes as much
    // again.
    let possible = panels.iter().map(|(panel, _)| panel.rows.len() * panel.windows as usize).sum();
    check_room(a.nnz().min(possible).saturating_mul(2 * size_of::<CellRange>()))?;
    let tasks: Vec<_> = panels
        .iter()
        .flat_map(|(panel, first)| {
            tasks(a.row_ptr(), panel.rows.clone()).map(move |rows| (panel, *first, rows))
        })
        .collect();
    let lists = parallel::map(tasks.len(), 1, |task| {
        let (panel, first_window, rows) = &tasks[task];
        let mut list = Vec::new();
        for row in rows.clone() {
            let mut first = 0;
            let most = a.row(row).len().min(panel.windows as usize);
            reserve(&mut list, most)?;
            panel.for_each_cell(a.row(row), |window, count| {
                let count = count as u32;
                list.push(CellRange { tile: first_window + window, row: row as u32, first, count });
                first += count;
            });
        }
        Ok(list)
    });
    let mut cells = joined(&lists.into_iter().collect::<Result<Vec<_>, Error>>()?)?;
    // A stable sort would need memory; the cells are in this order of rows.
    cells.par_sort_unstable_by_key(|cell| (cell.tile, cell.row, cell.first));
    let mut windows = Vec::new();
    for tile in cells.chunk_by_mut(|a, b| a.tile == b.tile) {
        let number = tile[0].tile;
        let (panel, first) = &panels[panels.partition_point(|(_, first)| *first <= number) - 1];
        let first_col = panel.first_col + (number - first) * panel.width;
        tile.iter_mut().for_each(|cell| cell.tile = windows.len() as u32);
        push(&mut windows, [first_col, panel.width.min(a.ncols() as u32 - first_col)])?;
    }
    Ok((cells, windows))
}

/// Columns with the most entries, in ascending order: at most `count`, none of them empty. Of
/// columns with equally many entries the first ones are taken.
fn hottest(a: CsrColumns<'_>, count: usize) -> Result<Vec<u32>, Error> {
    // A count beyond 32 bits wraps round, which costs time but does not affect correctness.
    let counts: Vec<AtomicU32> = collected(a.ncols(), |_| AtomicU32::new(0))?;
    parallel::for_each_item(a.col_idx().chunks(TASK), |cols| {
        cols.iter().for_each(|&col| {
            counts[col as usize].fetch_add(1, Relaxed);
        });
    });
    check_room(a.nnz().min(a.ncols()).saturating_mul(2 * size_of::<(u32, u32)>()))?;
    let filled = parallel::map_ranges(a.ncols(), TASK, |cols| {
        let counted = cols.map(|col| (counts[col].load(Relaxed), col as u32));
        counted.filter(|&(entries, _)| entries > 0).collect::<Vec<_>>()
    });
    let mut filled = joined(&filled)?;
    if filled.len() > count {
        filled
            .select_nth_unstable_by_key(count, |&(entries, col)| (std::cmp::Reverse(entries), col));
        filled.truncate(count);
    }
    let mut hot: Vec<u32> = filled.into_iter().map(|(_, col)| col).collect();
    hot.sort_unstable();
    Ok(hot)
}

/// Ranges of the cells of all rows: of near entries, and of far ones.
fn hot_and_other_cells(
    a: CsrColumns<'_>,
    numbers: &[u32],
) -> Result<(Vec<CellRange>, Vec<CellRange>), Error> {
    let tasks: Vec<_> = tasks(a.row_ptr(), 0..a.nrows()).collect();
    let cells = parallel::map(tasks.len(), 1, |task| {
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for row in tasks[task].clone() {
            for (i, cols) in a.row(row).chunks(MAX_ENTRIES).enumerate() {
                let (row, first) = (row as u32, (i * MAX_ENTRIES) as u32);
                let hot = cols.iter().filter(|&&col| numbers[col as usize] != COLD).count() as u32;
                let cold = cols.len() as u32 - hot;
                for (tile, count, cells) in [(0, hot, &mut near), (1, cold, &mut far)] {
                    if count > 0 {
                        push(cells, CellRange { tile, row, first, count })?;
                    }
                }
            }
        }
        Ok((near, far))
    });
    let (near, far): (Vec<_>, Vec<_>) = cells.into_iter().collect::<Result<_, Error>>()?;
    Ok((joined(&near)?, joined(&far)?))
}

/// Positions of the entries of a range.
trait EntrySource: Sync {
    /// Calls `visit` for a range of the entries, with the number of each in the matrix and its
    /// column in the tile.
    fn for_each(&self, cell: &CellRange, range: Range<u32>, visit: impl FnMut(usize, u32));
}

/// Ranges whose entries are consecutive in the matrix.
struct Contiguous<'a> {
    a: CsrColumns<'a>,
    windows: &'a [[u32; 2]],
}

impl EntrySource for Contiguous<'_> {
    #[inline(always)]
    fn for_each(&self, cell: &CellRange, range: Range<u32>, mut visit: impl FnMut(usize, u32)) {
        let first = self.a.row_ptr()[cell.row as usize] + cell.first as usize;
        let first_col = self.windows[cell.tile as usize][0];
        for k in first + range.start as usize..first + range.end as usize {
            visit(k, self.a.col_idx()[k] - first_col);
        }
    }
}

/// Ranges whose entries alternate with others in the matrix: the near entries, or the far ones.
struct Classified<'a> {
    a: CsrColumns<'a>,
    /// Number of each column among the hot ones, or [`COLD`].
    numbers: &'a [u32],
    hot: bool,
}

impl EntrySource for Classified<'_> {
    #[inline(always)]
    fn for_each(&self, cell: &CellRange, range: Range<u32>, mut visit: impl FnMut(usize, u32)) {
        let (mut k, mut counted) = (self.a.row_ptr()[cell.row as usize] + cell.first as usize, 0);
        while counted < range.end {
            let col = self.a.col_idx()[k];
            let number = self.numbers[col as usize];
            if (number != COLD) == self.hot {
                if counted >= range.start {
                    visit(k, if self.hot { number } else { col });
                }
                counted += 1;
            }
            k += 1;
        }
    }
}

/// Stored type of a column index within a tile.
trait Column: Copy + Zeroable + Send + Sync + Into<u32> {
    fn of(col: u32) -> Self;
}

impl Column for u16 {
    fn of(col: u32) -> Self {
        // A tile has no more than 2¹⁶ columns.
        col as u16
    }
}

impl Column for u32 {
    fn of(col: u32) -> Self {
        col
    }
}

/// Cells in the order of their tiles, and the first slot of each: the entries of a tile are
/// consecutive, and every tile begins with a new piece.
struct CellLayout<'a> {
    cells: &'a [CellRange],
    slots: Vec<usize>,
}

impl<'a> CellLayout<'a> {
    /// Assigns slots to cells. Also returns the first piece of every tile, and the number of
    /// pieces.
    fn new(cells: &'a [CellRange]) -> Result<(Self, Vec<usize>), Error> {
        let (mut slots, mut tile_ptr) = (reserved(cells.len())?, vec![0]);
        let mut slot = 0;
        for tile in cells.chunk_by(|a, b| a.tile == b.tile) {
            for cell in tile {
                slots.push(slot);
                slot += cell.count as usize;
            }
            slot = slot.next_multiple_of(PIECE);
            push(&mut tile_ptr, slot / PIECE)?;
        }
        Ok((Self { cells, slots }, tile_ptr))
    }

    /// Contents of a piece: each cell, the range of its entries in the piece, their first slot
    /// within the piece, and true if they end a segment.
    fn within(
        &self,
        piece: usize,
    ) -> impl Iterator<Item = (&'a CellRange, Range<u32>, usize, bool)> {
        let (start, end) = (piece * PIECE, (piece + 1) * PIECE);
        // The cell that begins before or with the piece contains its first slot: no piece has only
        // padding.
        let first = self.slots.partition_point(|&slot| slot <= start) - 1;
        let behind = first + self.slots[first..].partition_point(|&slot| slot < end);
        (first..behind).map(move |i| {
            let (cell, slot) = (&self.cells[i], self.slots[i]);
            let from = start.saturating_sub(slot);
            let to = (cell.count as usize).min(end - slot);
            let ends = i + 1 == behind || self.cells[i + 1].row != cell.row;
            (cell, from as u32..to as u32, slot + from - start, ends)
        })
    }

    /// Rows of the segments in a piece.
    fn rows_of(&self, piece: usize) -> impl Iterator<Item = u32> {
        self.within(piece).filter_map(|(cell, _, _, ends)| ends.then_some(cell.row))
    }

    /// Number of segments of every piece, and the rows of all segments, by piece.
    fn targets(&self, pieces: usize) -> (Vec<usize>, Vec<u32>) {
        let rows = parallel::map(pieces, 1, |piece| self.rows_of(piece).collect::<Vec<_>>());
        (rows.iter().map(Vec::len).collect(), rows.concat())
    }
}

/// Fills pieces with entries.
struct Filler<'a, T> {
    plan: &'a BlockedPlan,
    a: CsrView<'a, T>,
    equal: Option<T>,
}

impl<T: Scalar> Filler<'_, T> {
    /// Assigns slots to cells and fills the pieces. Also returns the first piece of every tile.
    /// In place of its target each segment has its row.
    fn fill<C: Column>(
        &self,
        cells: &[CellRange],
        entries: &impl EntrySource,
    ) -> Result<(Vec<u32>, Pieces<T, C>), Error> {
        let (layout, tile_ptr) = CellLayout::new(cells)?;
        let pieces = tile_ptr[tile_ptr.len() - 1];
        check(self.plan, "pieces", pieces as u64)?;
        let (counts, targets) = layout.targets(pieces);
        let mut piece_ptr = vec![0];
        let mut before = 0;
        for count in counts {
            before += count as u64;
            piece_ptr.push(check(self.plan, "segments", before)?);
        }
        let mut cols = try_zeroed::<C>(pieces * PIECE)?;
        let mut flags = try_zeroed::<u16>(pieces * PIECE / LANE)?;
        let mut values = match self.equal {
            Some(value) => SlotValues::Equal(value),
            None => SlotValues::Plain(try_zeroed(pieces * PIECE)?),
        };
        let shared = values.array_mut().ok().map(|values| Output::new(values));
        let slots = cols.chunks_mut(PIECE).zip(flags.chunks_mut(PIECE / LANE));
        parallel::for_each_item(slots.enumerate(), |(piece, (cols, flags))| {
            for (cell, range, first, ends) in layout.within(piece) {
                let last = first + range.len() - 1;
                let mut slot = first;
                entries.for_each(cell, range, |k, col| {
                    let batch = slot / BATCH * BATCH;
                    cols[batch + place(slot % BATCH, size_of::<C>())] = C::of(col);
                    if let Some(values) = shared {
                        let at = piece * PIECE + batch + place(slot % BATCH, size_of::<T>());
                        // SAFETY: the slots of a piece are this thread's, and every piece has its
                        // own.
                        unsafe { values.set(at, self.a.values()[k]) };
                    }
                    slot += 1;
                });
                flags[last / LANE] |= u16::from(ends) << (last % LANE);
            }
            count_ends(flags);
        });
        let tile_ptr = tile_ptr.into_iter().map(|piece| piece as u32).collect();
        let bounds = bounds(pieces);
        Ok((tile_ptr, Pieces { cols, values, flags, piece_ptr, targets, bounds }))
    }
}

/// Bounds of the pieces of each thread.
pub(super) fn bounds(pieces: usize) -> Box<[usize]> {
    partition(pieces, 1, |pieces| (pieces * PIECE) as u64)
}

/// Adds to the bits of every lane the number of bits set in the previous lanes of the batch.
fn count_ends(flags: &mut [u16]) {
    for batch in flags.chunks_mut(BATCH / LANE) {
        let mut before = 0;
        for lane in batch {
            let ends = lane.count_ones() as u16;
            *lane |= before << LANE;
            before += ends;
        }
    }
}

/// Replaces the rows of all segments by targets, in the given order.
fn targets(
    plan: &BlockedPlan,
    nrows: usize,
    segments: [&mut Vec<u32>; 2],
) -> Result<SplitRows, Error> {
    let mut next = try_zeroed::<u32>(nrows)?;
    segments.iter().for_each(|rows| rows.iter().for_each(|&row| next[row as usize] += 1));
    let (mut rows, mut ptr, mut sums) = (Vec::new(), vec![0], 0u64);
    for (row, next) in (0..).zip(&mut next) {
        let count = std::mem::replace(next, row);
        if count != 1 {
            *next = check(plan, "rows and partial sums", nrows as u64 + sums)?;
            sums += u64::from(count);
            rows.push(row);
            ptr.push(sums as u32);
        }
    }
    check(plan, "rows and partial sums", nrows as u64 + sums)?;
    for row in segments.into_iter().flatten() {
        let next = &mut next[*row as usize];
        *row = *next;
        *next += 1;
    }
    let bounds = split_bounds(&ptr);
    Ok(SplitRows { rows, ptr, bounds })
}

/// Bounds of the split rows of each thread, whose first partial sums are `ptr`.
pub(super) fn split_bounds(ptr: &[u32]) -> Box<[usize]> {
    partition(ptr.len() - 1, 1, |rows| rows as u64 + u64::from(ptr[rows]))
}
