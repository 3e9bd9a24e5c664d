//! Cache blocking: entries are ordered so that a part of `x` that many of them need is loaded only
//! once, into the shared memory of a GPU.
//!
//! ```text
//! 3 . 1 .     windows of 2 columns, batches of 4 entries, 2 lanes of 2       (_ is padding)
//! . . . .     tile          0               1
//! . 2 4 1     first_col     0               2
//! 1 . . 1     cols          0 1  0 _        0 0  1 1
//!             values        3 2  1 _        1 4  1 1
//!             ends          1 1  1 .        1 .  1 1
//!             ends before   0    2          0    1
//!             targets       4 6  8          5 7  9        (4 + number of the partial sum)
//!             split_rows  0 1 2 3    split_ptr  0 2 2 4 6
//! ```
//!
//! With `kib:K` the rows are grouped into *panels*. The column span of a panel is cut into equal
//! *windows* whose `x` takes at most K KiB, and the entries of a panel in a window are a *tile*.
//! With `hot:K` there is one tile, of the columns with the most entries, whose `x` is gathered into
//! one array first; the other entries follow in the same layout with columns of 32 bits.
//!
//! The entries of a tile are stored row by row, in *pieces* of two *batches* of 256; the last piece
//! is filled with padding. In a batch every lane of a warp has 8 consecutive entries, so that it
//! loads 16 bytes at a time and the loads of a warp are coalesced: columns of 16 bits are stored in
//! order, of wider numbers first 16 bytes of every lane, then the next 16 bytes of each. Each
//! lane has an end flag per entry, set at the last entry of a row within the piece, and the number
//! of end flags of the lower lanes.
//!
//! A *cell* has the entries of one row in one tile, or its far entries: those in no tile. A
//! *segment* has those of a cell in one piece. Its *target* is the row, if it has all entries of
//! the row. Otherwise the row is *split*, and the target is a partial sum. The partial sums of a
//! row are added in a second step, always in the same order.
//!
//! Each GPU block processes an equal share of the pieces and loads the windows that they need.
//! Warps take pieces one after the other, so that no warp waits for a long row. The result does not
//! depend on the assignment of pieces to warps.
//!
//! Invariants: `tile_ptr` and `piece_ptr` rise from 0 to the number of pieces and of segments;
//! every piece has an end flag. After the last end flag a piece has only padding, with column 0 and
//! value 0, whose products are never stored. The entries of a row are in the order of its tiles; if
//! its columns are not sorted, `order` has their original positions.
//!
//! The working memory on a GPU is a sum for every segment of a split row, and an element of `x` for
//! every hot column. There is no kernel with the axpby epilogue.
//!
//! Source: cache blocking, Im & Yelick, ICCS 2001, and Nishtala, Vuduc, Demmel & Yelick, AAECC 18,
//! 2007; sums by flags and targets as in CSR5, Liu & Vinter, ICS 2015.
#![doc = include_str!("operations.md")]

mod constants;
mod cpu;
mod cuda;
mod device_pack;
mod order;
mod pack;
mod panel;
mod plan;
mod probe;

pub use plan::BlockedPlan;
use plan::TileColumns;

use super::values::{SlotValues, is_equal, without_same};
use super::{
    Costs, DeviceMatrix, Format, HostMatrix, HostValueArrays, PlanArgs, PlanProperties, Target,
    ValueArrays, Work, megabytes, vector_bytes,
};
use crate::analysis::{Analysis, FormatProbe, Measure};
use crate::device::{CsrSource, Gpu, Module};
use crate::matrix::{CsrMatrix, CsrView};
use crate::memory::{filled, try_copied, try_zeroed};
use crate::order::by_column;
use crate::{Error, Scalar, ScalarKind};
use constants::{BATCHES, LANE};
use plan::KIB;
use probe::{Blocking, TileEstimate};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// The cache-blocked format.
pub(crate) struct Blocked;

/// Entries of a batch, 8 for every lane of a warp.
const BATCH: usize = 32 * LANE;

/// Entries of a piece.
const PIECE: usize = BATCHES * BATCH;

/// Bytes that a lane loads at a time.
const LOAD: usize = 16;

impl Format for Blocked {
    type Plan = BlockedPlan;
    type Host<T: Scalar> = HostBlocked<T>;

    const EXAMPLES: &'static [&'static str] = &[
        "blocked(kib:192)",
        "blocked(hot:192)",
        "blocked(kib:4,values:packed)",
        "blocked(hot:1,values:packed)",
        "blocked(kib:256)",
    ];
    const PROBE: Option<FormatProbe> = Some(FormatProbe {
        measure: Measure::AfterStructure(|a, rows, structure, probes| {
            Blocking::new(a, rows, structure)?.into_iter().for_each(|found| probes.add(found));
            Ok(())
        }),
        kernels: &[],
    });

    #[cfg(test)]
    fn any_plan() -> proptest::strategy::BoxedStrategy<String> {
        tests::any_plan()
    }

    fn parse(args: &mut PlanArgs<'_>) -> Result<BlockedPlan, Error> {
        BlockedPlan::parse(args)
    }

    fn candidates(analysis: &Analysis, _: Costs<'_>, on: Target) -> Vec<BlockedPlan> {
        /// Cells per entry beyond which writing and adding their sums costs more than gathers do.
        const CELLS: f64 = 0.2;
        /// Minimum share of the entries in the hot columns.
        const HOT: f64 = 0.35;
        /// Maximum number of entries of the longest row, because one warp adds its partial
        /// sums. With 40 rows of 214,000 an H200 takes 250 µs in place of 78.
        const LONGEST: u32 = 1 << 16;
        /// Number of entries below which smaller windows are candidates too: every multiprocessor
        /// loads windows, however few entries it has.
        const FEW: u64 = 1 << 23;
        let Some(blocking) = Blocking::of(analysis) else { return Vec::new() };
        if on != Target::Gpu || analysis.rows.max > LONGEST {
            return Vec::new();
        }
        let plan = |x, kib| BlockedPlan { x, kib, packed: is_equal(analysis) };
        // In f64 a tile has fewer columns: a promising candidate in f64 is promising in f32 too.
        let measured = blocking.with(plan(TileColumns::Windows, KIB).columns(ScalarKind::F64));
        match (measured.cells <= CELLS, analysis.rows.nnz < FEW) {
            (true, true) => {
                vec![plan(TileColumns::Windows, KIB), plan(TileColumns::Windows, KIB / 4)]
            }
            (true, false) => vec![plan(TileColumns::Windows, KIB)],
            (false, _) if measured.hot >= HOT => vec![plan(TileColumns::Hot, KIB)],
            (false, _) => Vec::new(),
        }
    }

    fn estimate_us(_: &BlockedPlan, _: &Analysis, work: &Work) -> f64 {
        12.0 + 0.24 * megabytes(work)
    }

    fn work(plan: &BlockedPlan, analysis: &Analysis, scalar: ScalarKind) -> Work {
        let estimate = Estimate::new(plan, analysis, scalar);
        let (near, far) =
            (estimate.near.div_ceil(PIECE as u64), estimate.far.div_ceil(PIECE as u64));
        let pieces = near + estimate.tiles + far;
        let segments = estimate.cells + pieces;
        let size = scalar.size() as u64;
        let slots = pieces * PIECE as u64;
        let value = if plan.packed && is_equal(analysis) { 0 } else { size };
        let flags = slots / LANE as u64 * 2;
        let tables = 4 * (segments + pieces + 2) + 12 * estimate.tiles + 8 * estimate.split_rows;
        let sorted = Blocking::of(analysis).is_none_or(|blocking| blocking.sorted);
        let order = if sorted { 0 } else { 4 * analysis.rows.nnz };
        let wide = far * PIECE as u64;
        Work {
            matrix_bytes: slots * (2 + value)
                + 2 * wide
                + flags
                + tables
                + order
                + 4 * estimate.hot,
            vector_bytes: vector_bytes(analysis, scalar),
            scratch_bytes: 2 * size * (segments.saturating_sub(estimate.whole_rows) + estimate.hot),
            slots,
            gathered: wide,
            rows: analysis.rows.nrows as u64,
            starts: segments,
            relaunches: match plan.x {
                TileColumns::Windows => 1,
                TileColumns::Hot => 3,
            },
            ..Work::default()
        }
    }

    fn estimate_bounds(_: &BlockedPlan, _: &Analysis) -> Result<RangeInclusive<f64>, String> {
        // The entries of a tile in a small matrix are estimated from sizes alone.
        Ok(0.5..=8.0)
    }

    fn cost_key(plan: &BlockedPlan, _: Target) -> &'static str {
        match (plan.x, plan.packed) {
            (TileColumns::Windows, false) => "blocked",
            (TileColumns::Windows, true) => "blocked.same",
            (TileColumns::Hot, false) => "blocked.hot",
            (TileColumns::Hot, true) => "blocked.hot.same",
        }
    }

    fn fallback_cost_keys(key: &str) -> Vec<String> {
        without_same(key)
    }

    fn pack<T: Scalar>(plan: &BlockedPlan, a: CsrView<'_, T>) -> Result<HostBlocked<T>, Error> {
        pack::pack(plan, a)
    }

    fn gpu_kernels<T: Scalar>(
        plan: &BlockedPlan,
        analysis: &Analysis,
        bytes: u64,
        gpu: Gpu,
    ) -> Vec<(Module, String)> {
        let packing = device_pack::MODULES.map(|module| (module.into(), String::new()));
        packing.into_iter().chain(cuda::expected_kernels::<T>(plan, analysis, bytes, gpu)).collect()
    }

    fn properties(_: &BlockedPlan) -> PlanProperties {
        PlanProperties { packs_on_device: true, ..PlanProperties::default() }
    }

    fn pack_on_device<T: Scalar>(
        plan: &BlockedPlan,
        source: &CsrSource<T>,
    ) -> Result<Option<Arc<dyn DeviceMatrix<T>>>, Error> {
        let packed = device_pack::pack(plan, plan.columns(T::KIND), source)?;
        Ok(packed.map(|packed| Arc::new(packed) as Arc<dyn DeviceMatrix<T>>))
    }
}

/// Estimated work of a plan.
#[derive(Debug, Default)]
struct Estimate {
    /// Entries with columns of 16 bits, and entries with columns of 32 bits.
    near: u64,
    far: u64,
    tiles: u64,
    /// Number of non-empty cells. Every piece cuts at most one cell, which then has one more
    /// segment.
    cells: u64,
    /// Rows whose sum is written directly, and rows that are split or empty.
    whole_rows: u64,
    split_rows: u64,
    /// Number of columns that are gathered first.
    hot: u64,
}

impl Estimate {
    fn new(plan: &BlockedPlan, analysis: &Analysis, scalar: ScalarKind) -> Self {
        let rows = &analysis.rows;
        let columns = plan.columns(scalar);
        let measured = Blocking::of(analysis)
            .map_or_else(|| Self::unmeasured(analysis, columns), |b| b.with(columns));
        let full = rows.nrows as u64 - rows.empty_rows;
        match plan.x {
            TileColumns::Windows => {
                let cells = ((measured.cells * rows.nnz as f64).ceil() as u64)
                    .clamp(full, rows.nnz.max(full));
                let tiles = ((measured.tiles * rows.nnz as f64).ceil() as u64).min(rows.nnz);
                // Rows with a second cell: at most the number of cells beyond the first of each
                // row.
                let cut = full.min(cells - full);
                let (whole_rows, split_rows) = (full - cut, rows.empty_rows + cut);
                Self { near: rows.nnz, tiles, cells, whole_rows, split_rows, ..Self::default() }
            }
            TileColumns::Hot => {
                let near = (measured.hot * rows.nnz as f64) as u64;
                // Rows with only hot entries or none, assuming that each entry is hot
                // independently.
                let in_one = |length: u32| {
                    measured.hot.powf(length.into()) + (1.0 - measured.hot).powf(length.into())
                };
                let classes = rows.histogram.classes().iter().filter(|(length, _)| *length > 0);
                let whole: f64 =
                    classes.map(|&(length, rows)| in_one(length).min(1.0) * rows as f64).sum();
                let whole_rows = (whole as u64).min(full);
                let split_rows = rows.nrows as u64 - whole_rows;
                let hot = u64::from(columns).min(rows.ncols as u64).min(rows.nnz);
                let (cells, tiles) = (2 * full - whole_rows, u64::from(rows.nnz > 0));
                Self { near, far: rows.nnz - near, tiles, cells, whole_rows, split_rows, hot }
            }
        }
    }

    /// Bound for matrices without a measurement.
    fn unmeasured(analysis: &Analysis, columns: u32) -> TileEstimate {
        let rows = &analysis.rows;
        let nnz = rows.nnz.max(1) as f64;
        let windows = (rows.ncols as f64 / f64::from(columns)).ceil();
        let full = (rows.nrows as u64 - rows.empty_rows) as f64;
        // A panel has at least four entries per column; the last panel has the remaining rows.
        let tiles = (0.25 / f64::from(columns) + windows / nnz).min(1.0);
        let hot = (f64::from(columns) / rows.ncols.max(1) as f64).min(1.0);
        TileEstimate { columns, cells: (full * windows / nnz).min(1.0), tiles, hot }
    }
}

/// A cache-blocked matrix.
#[derive(Debug)]
pub(crate) struct HostBlocked<T> {
    nrows: usize,
    ncols: usize,
    /// Columns that are gathered first; empty for windows.
    hot: Vec<u32>,
    tiles: TileTable,
    /// Entries with column indices relative to the first column of their tile.
    near: Pieces<T, u16>,
    /// Entries with column indices of the matrix.
    far: Pieces<T, u32>,
    split: SplitRows,
    /// Original position in its row of every entry, row by row in the order of the tiles; empty if
    /// rows are sorted by column.
    order: Vec<u32>,
    scratch: cpu::Spare<T>,
}

/// Tiles: entries whose `x` is in shared memory at the same time.
#[derive(Debug, Default)]
struct TileTable {
    /// First piece of each tile, and the number of pieces.
    tile_ptr: Vec<u32>,
    /// First column and number of columns of each window.
    windows: Vec<[u32; 2]>,
}

/// Entries in pieces.
#[derive(Debug)]
struct Pieces<T, C> {
    cols: Vec<C>,
    values: SlotValues<T>,
    /// One word per lane: a bit for each entry that ends a segment, above them the number of ends
    /// in the lanes before.
    flags: Vec<u16>,
    /// First segment of each piece, and the number of segments.
    piece_ptr: Vec<u32>,
    /// Target of every segment: a row, or the number of rows plus that of a partial sum.
    targets: Vec<u32>,
    /// Bounds of the pieces of each thread.
    bounds: Box<[usize]>,
}

/// Split rows, and rows without entries.
#[derive(Debug)]
struct SplitRows {
    rows: Vec<u32>,
    /// First partial sum of each row, and the number of partial sums.
    ptr: Vec<u32>,
    bounds: Box<[usize]>,
}

/// Position of entry `i` of a batch in an array of numbers of `size` bytes.
const fn place(i: usize, size: usize) -> usize {
    let load = LOAD / size;
    let (lane, entry) = (i / LANE, i % LANE);
    (entry / load * (BATCH / LANE) + lane) * load + entry % load
}

impl<T: Scalar, C: Copy + Into<u32>> Pieces<T, C> {
    fn pieces(&self) -> usize {
        self.piece_ptr.len() - 1
    }

    /// Calls `visit` for every entry of a piece with its column and value, and at the last entry of
    /// each segment with its target.
    #[inline(always)]
    fn for_each_entry(&self, piece: usize, mut visit: impl FnMut(u32, T, Option<u32>)) {
        let mut segment = self.piece_ptr[piece] as usize;
        let end = self.piece_ptr[piece + 1] as usize;
        for i in piece * PIECE..(piece + 1) * PIECE {
            if segment == end {
                return;
            }
            let batch = i / BATCH * BATCH;
            let col = self.cols[batch + place(i % BATCH, size_of::<C>())].into();
            let value = self.values.at(batch + place(i % BATCH, size_of::<T>()));
            let ends = self.flags[i / LANE] >> (i % LANE) & 1 == 1;
            visit(col, value, ends.then(|| self.targets[segment]));
            segment += usize::from(ends);
        }
    }

    /// Calls `visit` for every segment in a piece with its target and its columns and values.
    fn for_each_segment(&self, piece: usize, mut visit: impl FnMut(u32, &[(u32, T)])) {
        let mut entries = Vec::with_capacity(PIECE);
        self.for_each_entry(piece, |col, value, target| {
            entries.push((col, value));
            if let Some(target) = target {
                visit(target, &entries);
                entries.clear();
            }
        });
    }

    fn bytes(&self) -> usize {
        let words = size_of_val(&*self.piece_ptr) + size_of_val(&*self.targets);
        size_of_val(&*self.cols) + self.values.bytes() + size_of_val(&*self.flags) + words
    }
}

impl TileTable {
    fn len(&self) -> usize {
        self.windows.len()
    }

    /// Range of the pieces of a tile.
    fn pieces(&self, tile: usize) -> Range<usize> {
        self.tile_ptr[tile] as usize..self.tile_ptr[tile + 1] as usize
    }

    /// Index of the tile that contains a piece.
    fn of_piece(&self, piece: usize) -> usize {
        self.tile_ptr.partition_point(|&first| first as usize <= piece) - 1
    }
}

impl<T: Scalar> HostBlocked<T> {
    /// Row of a target.
    fn row_of(&self, target: u32) -> usize {
        match (target as usize).checked_sub(self.nrows) {
            None => target as usize,
            Some(sum) => {
                let after = self.split.ptr.partition_point(|&first| first as usize <= sum);
                self.split.rows[after - 1] as usize
            }
        }
    }

    /// Calls `visit` for every segment with its row, its columns in the matrix and its values.
    fn for_each_segment(&self, mut visit: impl FnMut(usize, &[(u32, T)])) {
        let mut global = Vec::new();
        for tile in 0..self.tiles.len() {
            let first_col = self.tiles.windows[tile][0];
            for piece in self.tiles.pieces(tile) {
                self.near.for_each_segment(piece, |target, entries| {
                    let col =
                        |col: u32| self.hot.get(col as usize).copied().unwrap_or(first_col + col);
                    global.clear();
                    global.extend(entries.iter().map(|&(c, value)| (col(c), value)));
                    visit(self.row_of(target), &global);
                });
            }
        }
        for piece in 0..self.far.pieces() {
            self.far.for_each_segment(piece, |target, entries| visit(self.row_of(target), entries));
        }
    }
}

impl<T: Scalar> HostMatrix<T> for HostBlocked<T> {
    fn spmv(&self, x: &[T], y: &mut [T]) {
        cpu::spmv(self, x, y);
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        let mut row_ptr = try_zeroed(self.nrows + 1)?;
        self.for_each_segment(|row, entries| row_ptr[row + 1] += entries.len());
        for row in 0..self.nrows {
            row_ptr[row + 1] += row_ptr[row];
        }
        let mut next = try_copied(&row_ptr)?;
        let mut entries = filled(row_ptr[self.nrows], (0, T::ZERO))?;
        self.for_each_segment(|row, segment| {
            entries[next[row]..next[row] + segment.len()].copy_from_slice(segment);
            next[row] += segment.len();
        });
        let (mut col_idx, mut values) = (try_zeroed(entries.len())?, try_zeroed(entries.len())?);
        for row in row_ptr.windows(2).map(|ends| ends[0]..ends[1]) {
            if self.order.is_empty() {
                by_column(&mut entries[row.clone()]);
            }
            for (k, &(col, value)) in row.clone().zip(&entries[row.clone()]) {
                let at = self.order.get(k).map_or(k, |&position| row.start + position as usize);
                (col_idx[at], values[at]) = (col, value);
            }
        }
        // SAFETY: these are the entries of a checked matrix, each at its original position.
        Ok(unsafe { CsrMatrix::new_unchecked(self.nrows, self.ncols, row_ptr, col_idx, values) })
    }

    fn values_mut(&mut self) -> HostValueArrays<'_, T> {
        let (near, far) = (self.near.values.array_mut()?, self.far.values.array_mut()?);
        Ok(ValueArrays::Plain([near, far]))
    }

    fn matrix_bytes(&self) -> u64 {
        let words =
            [&self.hot, &self.tiles.tile_ptr, &self.split.rows, &self.split.ptr, &self.order];
        let words: usize = words.iter().map(|array| size_of_val(&***array)).sum();
        (words + size_of_val(&*self.tiles.windows) + self.near.bytes() + self.far.bytes()) as u64
    }

    fn upload(&self, gpu: Gpu) -> Result<Box<dyn DeviceMatrix<T>>, Error> {
        Ok(Box::new(cuda::DeviceBlocked::new(self, gpu)?))
    }
}

#[cfg(test)]
mod tests;
