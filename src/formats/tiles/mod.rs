//! Tiles: products are computed column block by column block, then brought into row order and
//! summed.
//!
//! ```text
//! 3 . 1 .     column blocks of 2, chunks of 6 entries and row ends:   3 1 | | 2 4   1 | 1 1 |
//! . . . .     tile order                      chunk order             (groups of 2, not 8)
//! . 2 4 1     tile_ptr 0     2                chunk_ptr 0     2
//! 1 . . 1     cols     0 1  0 _   0 0  1 1    positions 0 2  1 3   1 _  0 2
//!             values   3 2  1 _   1 4  1 1    home      0    2     1    3
//!                                             chunk_rows 0 2 4   row_ends 2 2  1 3
//! ```
//!
//! The entries are cut twice: by column into *column blocks*, so that the part of `x` that one
//! needs fits in the shared memory of a GPU, and in row order, together with the row ends, into
//! equal *chunks*. The entries of a chunk in a column block are a *cell*, padded to whole *groups*
//! of 8 slots. An SpMV takes two passes. The first processes the groups in *tile order*, by column
//! block and then by chunk, multiplies, and writes the products of every group to its position in
//! *chunk order*, by chunk and then by column block. The second reads them in that order, puts the
//! products of a chunk into row order in shared memory, and sums the rows. `x` is therefore only
//! gathered from shared memory, and all other reads and writes are runs of whole sectors.
//!
//! Consecutive chunks may be grouped into *stripes*, whose products stay in a cache from one pass
//! to the other: then tile order is by stripe, column block and chunk. A *tile* is the part of a
//! column block in a stripe.
//!
//! Invariants: `tile_ptr` and `chunk_ptr` rise from 0 to the number of groups. `home` maps each
//! group in chunk order to its number in tile order (a GPU stores the inverse). `cols` counts from
//! the first column of the block, `positions` and `row_ends` from the first entry of the chunk; the
//! position of a padded slot is `UNUSED`, its column and value are 0.
//!
//! The working memory on a GPU is a product for every slot of a stripe, and a sum for every chunk.
//! There is no kernel with the axpby epilogue.
//!
//! Source: propagation blocking, Beamer, Asanović & Patterson, IPDPS 2017; Buono et al., ICS 2016.
//! There bins are filled while the graph is traversed; here they are laid out in advance, for a
//! matrix that is multiplied many times.
#![doc = include_str!("operations.md")]

mod constants;
mod cpu;
mod cuda;
mod device_pack;
mod pack;

use super::values::{SlotValues, is_equal, without_same};
use super::{
    Costs, DeviceMatrix, Format, HostMatrix, HostValueArrays, PlanArgs, PlanProperties, Target,
    ValueArrays, Work, chunk_count, chunk_rows, megabytes, vector_bytes,
};
use crate::analysis::Analysis;
use crate::device::{CsrSource, Gpu, Module};
use crate::matrix::{CsrMatrix, CsrView};
use crate::memory::try_zeroed;
use crate::{Error, Scalar, ScalarKind};
use constants::{GROUP, MAX_CHUNK, UNUSED};
use std::fmt::{self, Display};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// The tiled format.
pub(crate) struct Tiles;

/// Plan `tiles`, `tiles(cols:W,chunk:C,stripe:S,values:packed)`; every parameter is optional.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TilesPlan {
    /// `cols:W`: columns of a block, at most 65536. None stands for 64 KiB of `x`.
    cols: Option<u32>,
    /// `chunk:C`: entries and row ends of a chunk, from 32 to 16384. None stands for 60 KiB of
    /// products.
    chunk: Option<u32>,
    /// `stripe:S`: entries and row ends of a stripe, rounded down to whole chunks. None stands for
    /// a single stripe.
    stripe: Option<u32>,
    /// `values:packed`: if all values have the same bits, only one is stored.
    packed: bool,
}

/// Minimum length of a chunk: each has a table row.
const MIN_CHUNK: u32 = 32;

/// Maximum number of columns of a block: 16 bits distinguish as many.
const MAX_COLS: u32 = 1 << 16;

/// Default bytes of `x` of a column block: available to a block on every GPU, to two resident
/// blocks from A100 on.
const X_BYTES: u32 = 64 << 10;

/// Default bytes of products of a chunk: the remainder on the smallest of those GPUs beside the
/// kernel's own shared memory.
const CHUNK_BYTES: u32 = 60 << 10;

impl Display for TilesPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = [("cols", self.cols), ("chunk", self.chunk), ("stripe", self.stripe)];
        let numbers = numbers.into_iter().filter_map(|(key, n)| n.map(|n| format!("{key}:{n}")));
        let all: Vec<_> = numbers.chain(self.packed.then(|| "values:packed".to_owned())).collect();
        if all.is_empty() { Ok(()) } else { write!(f, "({})", all.join(",")) }
    }
}

impl Format for Tiles {
    type Plan = TilesPlan;
    type Host<T: Scalar> = HostTiles<T>;

    const EXAMPLES: &'static [&'static str] = &[
        "tiles",
        "tiles(values:packed)",
        "tiles(cols:32,chunk:2000)",
        "tiles(cols:256,chunk:512,stripe:4096)",
        "tiles(cols:100,chunk:1000,stripe:1,values:packed)",
    ];

    #[cfg(test)]
    fn any_plan() -> proptest::strategy::BoxedStrategy<String> {
        tests::any_plan()
    }

    fn parse(args: &mut PlanArgs<'_>) -> Result<TilesPlan, Error> {
        let mut number = |key, least, most| match args.value(key)? {
            None | Some("auto") => Ok(None),
            Some(text) => match args.to_number(key, text)? {
                n if (least..=most).contains(&n) => Ok(Some(n)),
                n => Err(args.error(format!("`{key}` may be {least} to {most} or auto, not {n}"))),
            },
        };
        let cols = number("cols", 1, MAX_COLS)?;
        let chunk = number("chunk", MIN_CHUNK, MAX_CHUNK)?;
        let stripe = args.number("stripe")?;
        let packed = args.word("values", &[("plain", false), ("packed", true)])?.unwrap_or(false);
        Ok(TilesPlan { cols, chunk, stripe, packed })
    }

    fn candidates(analysis: &Analysis, _: Costs<'_>, on: Target) -> Vec<TilesPlan> {
        /// Number of entries below which two or three launches cost more than gathers do.
        const MIN: u64 = 1 << 20;
        /// Reuse distance, in entries, within which a multiprocessor still has a part of `x` in its
        /// L1, as the cost model takes it.
        const NEAR: f64 = 8192.0;
        /// Minimum share of the gathers that miss.
        const MISSING: f64 = 0.2;
        /// Slots per entry beyond which the passes transfer more bytes than gathers do.
        const PADDED: f64 = 1.5;
        /// Entries of a stripe: 16 MB of products in `f32` and 32 MB in `f64` stay in an L2 of 60
        /// MB beside the data that streams through it.
        const STRIPE: u32 = 4 << 20;
        let rows = &analysis.rows;
        let missing = 1.0 - analysis.structure.reuse.share_within(NEAR);
        if on != Target::Gpu || rows.nnz < MIN || missing < MISSING {
            return Vec::new();
        }
        let packed = is_equal(analysis);
        let shape = TilesShape::new(
            &TilesPlan::default(),
            rows.nrows,
            rows.ncols,
            rows.nnz as usize,
            ScalarKind::F32,
        );
        let groups = shape.expected_groups();
        if (groups * GROUP as u64) as f64 > PADDED * rows.nnz as f64 || groups > u64::from(u32::MAX)
        {
            return Vec::new();
        }
        let whole = TilesPlan { packed, ..TilesPlan::default() };
        let striped =
            (rows.nnz > u64::from(STRIPE)).then_some(TilesPlan { stripe: Some(STRIPE), ..whole });
        std::iter::once(whole).chain(striped).collect()
    }

    fn estimate_us(_: &TilesPlan, _: &Analysis, work: &Work) -> f64 {
        12.0 + 0.24 * megabytes(work)
    }

    fn work(plan: &TilesPlan, analysis: &Analysis, scalar: ScalarKind) -> Work {
        let rows = &analysis.rows;
        let shape = TilesShape::new(plan, rows.nrows, rows.ncols, rows.nnz as usize, scalar);
        let slots = shape.expected_groups().saturating_mul(GROUP as u64);
        let size = scalar.size() as u64;
        let value = if plan.packed && is_equal(analysis) { 0 } else { size };
        let tables = 2 * rows.nrows as u64
            + 8 * (shape.chunk_count() as u64 + 1)
            + 4 * (shape.tiles() as u64 + 1);
        // A column and a position of 2 bytes each, and an eighth of a destination.
        let slot_bytes = 2 + 2 + value;
        Work {
            matrix_bytes: tables
                .saturating_add(slots.saturating_mul(slot_bytes))
                .saturating_add(slots / GROUP as u64 * 4),
            vector_bytes: vector_bytes(analysis, scalar),
            scratch_bytes: slots.saturating_mul(2 * size),
            slots,
            rows: rows.nrows as u64,
            starts: shape.tiles() as u64 + shape.chunk_count() as u64,
            ..Work::default()
        }
    }

    fn estimate_bounds(_: &TilesPlan, _: &Analysis) -> Result<RangeInclusive<f64>, String> {
        // The entries of a cell are estimated from sizes alone.
        Ok(0.5..=8.0)
    }

    fn cost_key(plan: &TilesPlan, _: Target) -> &'static str {
        match (plan.stripe.is_some(), plan.packed) {
            (false, false) => "tiles",
            (false, true) => "tiles.same",
            (true, false) => "tiles.striped",
            (true, true) => "tiles.striped.same",
        }
    }

    fn fallback_cost_keys(key: &str) -> Vec<String> {
        without_same(key)
    }

    fn pack<T: Scalar>(plan: &TilesPlan, a: CsrView<'_, T>) -> Result<HostTiles<T>, Error> {
        pack::pack(plan, a)
    }

    fn gpu_kernels<T: Scalar>(
        plan: &TilesPlan,
        analysis: &Analysis,
        bytes: u64,
        gpu: Gpu,
    ) -> Vec<(Module, String)> {
        let packing = device_pack::modules(plan).map(|module| (module.into(), String::new()));
        packing.chain(cuda::expected_kernels::<T>(plan, analysis, bytes, gpu)).collect()
    }

    fn properties(_: &TilesPlan) -> PlanProperties {
        PlanProperties { packs_on_device: true, ..PlanProperties::default() }
    }

    fn pack_on_device<T: Scalar>(
        plan: &TilesPlan,
        source: &CsrSource<T>,
    ) -> Result<Option<Arc<dyn DeviceMatrix<T>>>, Error> {
        let packed = device_pack::pack(plan, source)?;
        Ok(packed.map(|packed| Arc::new(packed) as Arc<dyn DeviceMatrix<T>>))
    }
}

/// Sizes of a matrix and its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TilesShape {
    nrows: usize,
    ncols: usize,
    nnz: usize,
    /// Columns of a block.
    width: u32,
    /// Entries and row ends of a chunk.
    chunk: u32,
    /// Chunks of a stripe.
    stripe: usize,
}

impl TilesShape {
    fn new(plan: &TilesPlan, nrows: usize, ncols: usize, nnz: usize, scalar: ScalarKind) -> Self {
        let size = scalar.size() as u32;
        let chunk = plan.chunk.unwrap_or(CHUNK_BYTES / size);
        let stripe = plan.stripe.map_or(usize::MAX, |entries| (entries / chunk).max(1) as usize);
        Self { nrows, ncols, nnz, width: plan.cols.unwrap_or(X_BYTES / size), chunk, stripe }
    }

    /// Number of column blocks.
    fn blocks(&self) -> usize {
        self.ncols.div_ceil(self.width as usize)
    }

    /// Number of chunks.
    fn chunk_count(&self) -> usize {
        chunk_count(self.nrows as u64, self.nnz as u64, u64::from(self.chunk)) as usize
    }

    /// Number of stripes.
    fn stripes(&self) -> usize {
        self.chunk_count().div_ceil(self.stripe)
    }

    /// Number of tiles of all stripes.
    fn tiles(&self) -> usize {
        self.stripes().saturating_mul(self.blocks())
    }

    /// Chunks of a stripe.
    fn chunks_of(&self, stripe: usize) -> Range<usize> {
        let first = stripe * self.stripe;
        first..first.saturating_add(self.stripe).min(self.chunk_count())
    }

    /// Tiles that contain the cells of a chunk, by column block.
    fn tiles_of(&self, chunk: usize) -> Range<usize> {
        let first = chunk / self.stripe * self.blocks();
        first..first + self.blocks()
    }

    /// Entries of a chunk.
    fn entries(&self, chunk: usize, chunk_rows: &[u32]) -> Range<usize> {
        let items = |chunk: usize| (chunk * self.chunk as usize).min(self.nrows + self.nnz);
        items(chunk) - chunk_rows[chunk] as usize..items(chunk + 1) - chunk_rows[chunk + 1] as usize
    }

    /// Expected number of groups if the column of every entry is random. Nothing else is known
    /// without reading the columns; the maximum is not 1.6 times as many (a single entry in each of
    /// as many cells), the minimum an eighth.
    fn expected_groups(&self) -> u64 {
        /// Mean size of a cell from which the number of its entries is taken as uniform modulo the
        /// slots of a group.
        const MANY: f64 = 64.0;
        let cells = self.chunk_count() as f64 * self.blocks() as f64;
        if self.nnz == 0 {
            return 0;
        }
        let mean = self.nnz as f64 / cells;
        let groups_of_cell = if mean > MANY {
            (mean + (GROUP - 1) as f64 / 2.0) / GROUP as f64
        } else {
            // Poisson distribution, up to terms that vanish.
            let mut share = (-mean).exp();
            (1..=4 * MANY as usize).fold(0.0, |sum, n| {
                share *= mean / n as f64;
                sum + share * n.div_ceil(GROUP) as f64
            })
        };
        let least = self.nnz.div_ceil(GROUP) as u64;
        ((cells * groups_of_cell).ceil() as u64).clamp(least, self.nnz as u64)
    }
}

/// A tiled matrix.
#[derive(Debug)]
pub(crate) struct HostTiles<T> {
    shape: TilesShape,
    /// In chunk order: the number of rows that end before each chunk, its first group, and the
    /// position in tile order of every group.
    chunk_rows: Vec<u32>,
    chunk_ptr: Vec<u32>,
    home: Vec<u32>,
    positions: Vec<u16>,
    /// Number of entries of the chunk before the end of each row.
    row_ends: Vec<u16>,
    /// In tile order: the first group of each tile.
    tile_ptr: Vec<u32>,
    cols: Vec<u16>,
    /// In tile order as well.
    values: SlotValues<T>,
    /// Bounds of the tasks, in chunks.
    tasks: Box<[usize]>,
}

impl<T: Scalar> HostTiles<T> {
    /// Calls `visit` for every group of a chunk with its first slot in chunk order, its first slot
    /// in tile order, and the first column of its block.
    #[inline(always)]
    fn for_each_group(&self, chunk: usize, mut visit: impl FnMut(usize, usize, usize)) {
        let tiles = self.shape.tiles_of(chunk);
        let tile_ends = &self.tile_ptr[tiles.start + 1..=tiles.end];
        let mut block = 0;
        for group in self.chunk_ptr[chunk] as usize..self.chunk_ptr[chunk + 1] as usize {
            let home = self.home[group];
            if tile_ends[block] <= home {
                block += tile_ends[block..].partition_point(|&end| end <= home);
            }
            visit(group * GROUP, home as usize * GROUP, block * self.shape.width as usize);
        }
    }
}

impl<T: Scalar> HostMatrix<T> for HostTiles<T> {
    fn spmv(&self, x: &[T], y: &mut [T]) {
        cpu::spmv(self, x, y);
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        let shape = &self.shape;
        let mut row_ptr = try_zeroed(shape.nrows + 1)?;
        let (mut col_idx, mut values) = (try_zeroed(shape.nnz)?, try_zeroed(shape.nnz)?);
        for chunk in 0..shape.chunk_count() {
            let first = shape.entries(chunk, &self.chunk_rows).start;
            for row in self.chunk_rows[chunk] as usize..self.chunk_rows[chunk + 1] as usize {
                row_ptr[row + 1] = first + self.row_ends[row] as usize;
            }
            self.for_each_group(chunk, |slot, home, first_col| {
                for (i, &position) in self.positions[slot..slot + GROUP].iter().enumerate() {
                    if position != UNUSED {
                        let entry = first + position as usize;
                        col_idx[entry] = (first_col + self.cols[home + i] as usize) as u32;
                        values[entry] = self.values.at(home + i);
                    }
                }
            });
        }
        // SAFETY: these are the entries of a checked matrix, each at its original position.
        Ok(unsafe { CsrMatrix::new_unchecked(shape.nrows, shape.ncols, row_ptr, col_idx, values) })
    }

    fn values_mut(&mut self) -> HostValueArrays<'_, T> {
        Ok(ValueArrays::Plain([self.values.array_mut()?, &mut []]))
    }

    fn matrix_bytes(&self) -> u64 {
        let words = [&self.chunk_rows, &self.chunk_ptr, &self.home, &self.tile_ptr];
        let halves = [&self.positions, &self.row_ends, &self.cols];
        let words: usize = words.iter().map(|array| size_of_val(&***array)).sum();
        let halves: usize = halves.iter().map(|array| size_of_val(&***array)).sum();
        (words + halves + self.values.bytes()) as u64
    }

    fn upload(&self, gpu: Gpu) -> Result<Box<dyn DeviceMatrix<T>>, Error> {
        let arrays = cuda::TileArrays::upload(self, gpu)?;
        Ok(Box::new(cuda::DeviceTiles::new(arrays, gpu)?))
    }
}

#[cfg(test)]
mod tests;
