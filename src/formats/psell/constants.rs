//! Constants of the kernels of packed SELL. `build.rs` writes them to the header
//! `constants.cuh`, in the namespace `psell`.

/// Alignment of the values and of the index of a slice, in bytes: the unit of their offsets.
pub(crate) const ALIGNMENT: usize = 16;

/// Bits of a width in a header's `shape`.
pub(crate) const WIDTH_BITS: u32 = 14;

/// Kind of a slice with slots along diagonals, in a header's `shape`.
pub(crate) const DIAGONAL: u32 = 0;

/// Kind of a slice with 8-bit indices, in a header's `shape`.
pub(crate) const RELATIVE8: u32 = 1;

/// Kind of a slice with 16-bit indices, in a header's `shape`.
pub(crate) const RELATIVE16: u32 = 2;

/// Kind of a slice with 32-bit columns, in a header's `shape`.
pub(crate) const RELATIVE32: u32 = 3;

/// Largest number of slots or steps of a slice, and of entries of its rows: the range of
/// [`WIDTH_BITS`] bits.
pub(crate) const MAX_WIDTH: u32 = (1 << WIDTH_BITS) - 1;

/// Largest number of slots of a diagonal slice per entry of its longest row: with more, most lanes
/// would idle.
pub(crate) const DIAGONAL_SLOTS: usize = 2;

/// Steps of a slice that a warp loads together in an SpMV.
pub(crate) const BATCH_STEPS: usize = 8;

/// Entries per piece of a long row: two rounds of eight entries per lane for a warp of a GPU.
pub(crate) const PIECE: u64 = 512;

/// Entries of a row in a portion of a wide slice, a multiple of the numbers of columns in a step.
pub(crate) const PORTION: usize = 192;

/// Position in `PackingCounts` of the word for a slice that is not diagonal.
pub(crate) const COUNT_RELATIVE: usize = 5;

/// Position in `PackingCounts` of the word for slices with the same hash but different slots.
pub(crate) const COUNT_HASH_COLLISION: usize = 6;

/// Position in `PackingCounts` of the number of portions of wide slices.
pub(crate) const COUNT_PORTIONS: usize = 7;

/// Largest number of consumer warps of a block of the sliding-window SpMM, which multiply.
pub(crate) const CONSUMERS: usize = 14;

/// Number of producer warps of a block of the sliding-window SpMM, which load columns.
pub(crate) const PRODUCERS: usize = 2;

/// Number of stages: producer warps are at most as many iterations ahead.
pub(crate) const STAGES: usize = 2;

/// Units of vectors of a column in a ring buffer.
pub(crate) const COLUMN_UNITS: usize = 2;

/// Number of columns in the halo of a ring buffer: its first columns, repeated after its end, so
/// that reads of a warp never wrap around.
pub(crate) const HALO: usize = 16;

/// Bytes that a warp stores for a slot.
pub(crate) const SLOT_BYTES: usize = 16;

/// Marks a slot on the diagonal directly above that of the previous slot, which reuses its column:
/// its column for the first row is that of the previous slot for the second row.
pub(crate) const REUSES_COLUMN: u32 = 1 << 31;
