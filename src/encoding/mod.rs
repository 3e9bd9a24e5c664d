//! Packed slices: the columns and values of a matrix in as few bytes as hold them exactly.
//!
//! ```text
//! 3 . 1 .     a slice of 32 rows, of which there are 4, sorted by length:
//! . . . .     perm     2 0 3 1
//! . 2 4 1     header   value_at 0, index_at 0, base 0, 8-bit indices, steps 0 full, 3 in all
//! 1 . . 1     index    7 7 1 0 (masks: the lanes with a 1st, 2nd, 3rd entry)   1 0 0  2 2 3  3
//!             values   2 3 1  4 1 1  1
//!
//!             in their order, as slots along diagonals (48 bytes with the padding, so that it keeps its 32 of indices):
//!             index    delta -3 -1  0  1  2
//!                      lanes  3  2  0  2  0      (as masks: 8 4 13 4 1)
//!                                   2
//!                                   3
//!             values   1  2  3 4 1  1  1
//! ```
//!
//! A slice of 32 rows, the lanes, has a [`Header`] of 16 bytes and stretches of two arrays, the values and the index, which begin at
//! multiples of 16 bytes; what lies between is zero. Nothing else is padded: a slice has as many values as its rows have entries, and
//! nothing that is not an entry is ever multiplied. The lanes past the last row hold nothing.
//!
//! *Diagonal* slices, of rows in their order with strictly ascending columns, have slots of `{delta: i32, mask: u32}`, deltas ascending: the
//! lanes of the mask have an entry in column row + delta. Slots are taken `group` at a time; groups of slots that every lane has stand
//! first among the values, lane by lane, a lane's values side by side; then the other slots, one by one, each with the values of the lanes
//! that have it. Slices with the same slots share them.
//!
//! *Relative* slices have rows packed to the left. A step is a run of 1, 2 or 3 consecutive columns of a row, the same number in all rows of
//! the slice and the largest that is possible, with one index: its first column, counted in 8 or 16 bits from the slice's smallest
//! column, or in 32 bits from 0. The index holds the masks of the steps that not every lane has, padded to 16 bytes, then the
//! indices: of steps that every lane has, `group` steps a time, lane by lane (where a step has one slot), and what is left of them step by step;
//! then of the others, step by step, with the lanes of the mask. Values stand alike, and slot by slot where a step has several.
//!
//! A slice gets the kind with the fewest bytes of index, diagonal rather than relative, and diagonal only with at most twice as many slots as
//! its longest row has entries. Values are stored as they are; or, `packed`, as codes of a dictionary of up to 256, or not at all when all
//! have the same bits.
//!
//! Rows longer than the plan's `long` are kept apart, as in CSR, and are empty in their slice.

mod cpu;
mod cuda;
mod index;
mod layout;
mod long;
mod order;
mod sizes;
mod slice;
mod slices;
mod unpack;
mod value;

pub(crate) use cuda::Uploaded;
pub(crate) use index::{Chooser, LANES};
pub(crate) use long::long_bytes;
pub(crate) use order::{Order, rows_by_length, sorted_in_windows};
pub use sizes::SliceSizes;
pub(crate) use slices::{Chunk, PackedSlices, SlicedRows};
pub(crate) use value::{DICTIONARY, ValueSet};

use index::{MAX_WIDTH, Shape};

/// Bytes that can be read behind the last value and the last index of a packed matrix: what is left of a vector.
const SLACK: usize = 64;

/// How entries are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// How values are stored.
    pub values: ValueEncoding,
    /// Slots of a row that are stored side by side where every row of the slice has them: 1 or 4.
    pub group: u32,
    /// Rows with more entries are kept apart, not in slices; at most [`Packing::MAX_LONG`].
    pub long: u32,
}

/// How values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueEncoding {
    /// As they are.
    Plain,
    /// As codes of a dictionary when there are at most 256 values, not at all when there is one, else as they are.
    Packed,
}

impl Packing {
    /// The longest rows that slices can hold.
    pub const MAX_LONG: u32 = MAX_WIDTH;

    /// What [`group`](Self::group) may be.
    pub const GROUPS: [u32; 2] = [1, 4];
}

impl Default for Packing {
    /// Plain values, one slot at a time, every row in a slice that can be.
    fn default() -> Self {
        Self { values: ValueEncoding::Plain, group: 1, long: Self::MAX_LONG }
    }
}

/// What is known of a slice; 16 bytes that a GPU reads at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Header {
    /// Where its values begin, in units of 16 bytes; 0 when there are none to store.
    pub(crate) value_at: u32,
    /// Where its index begins, in units of 16 bytes.
    pub(crate) index_at: u32,
    /// The column that indices are counted from.
    pub(crate) base: u32,
    /// See [`Shape::to_bits`].
    pub(crate) shape: u32,
}

/// Bytes of the tables of so many slices, with or without the lanes that are not theirs to write.
pub(crate) const fn slice_table_bytes(slices: u64, skip: bool) -> u64 {
    let skip = if skip { size_of::<u32>() } else { 0 };
    slices * (size_of::<Header>() + skip) as u64
}

impl Header {
    fn shape(&self) -> Shape {
        Shape::from_bits(self.shape)
    }
}
