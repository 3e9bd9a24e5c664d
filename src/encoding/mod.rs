//! Packed slices: the columns and values of a matrix in as few bytes as hold them exactly.
//!
//! ```text
//! 3 . 1 .     a slice of 32 rows, of which there are 4, sorted by length:
//! . . . .     perm     2 0 3 1
//! . 2 4 1     header   value_at 0, index_at 0, base 0, 8-bit indices, runs of 1, steps 0 full, 3 in all
//! 1 . . 1     index    7 7 1 0 (masks: the lanes with a 1st, 2nd, 3rd entry)   1 0 0  2 2 3  3
//!             values   2 3 1  4 1 1  1
//!
//! x x . . .   rows in their order, along diagonals; here a slice of three rows, not of 32:
//! x x x . .   header   value_at 0, index_at 0, base 0, diagonal, slots 2 full, 3 in all
//! . x x x .   index    0 1 _ _ (deltas that every lane has)   -1 _ _ _ (the other's)   2+4 _ _ _ (its lanes)
//! ```
//!
//! A slice of 32 rows, the lanes, has a [`Header`] of 16 bytes and stretches of two arrays, the values and the index, which begin at
//! multiples of 16 bytes; what lies between is zero, and so are 16 bytes behind the last value. Nothing else is padded: a slice has as many
//! values as its rows have entries, and nothing that is not an entry is ever multiplied. The lanes past the last row hold nothing.
//!
//! *Diagonal* slices, of rows in their order with strictly ascending columns, have slots: a delta, which is column minus row, and the lanes
//! that have an entry there. The index holds the deltas (i32) of the slots that every lane has, ascending, those of the others, ascending,
//! and the masks of the others, each of the three padded to 16 bytes. Slices with the same slots share them.
//!
//! *Relative* slices have rows packed to the left. A step is a run of 1, 2 or 3 consecutive columns of a row, as many in all rows of
//! the slice and the most that are possible, with one index: its first column, counted in 8 or 16 bits from the slice's smallest
//! column, or in 32 bits from 0. The index holds the masks of the steps that not every lane has, padded to 16 bytes, then the indices.
//!
//! Values stand alike in both: first the slots that every lane has, `group` of them lane by lane, a lane's side by side, then what is left of them
//! slot by slot; then the others slot by slot, those of their lanes without gaps. Indices stand like values, one for a step; where a step
//! has several slots, `group` counts as 1. Values are stored as they are; or, `packed`, as codes of a dictionary of up to 256 (the
//! array has always 256), or not at all when all have the same bits; or in a type of fewer bytes that holds all of them exactly, and
//! widened when they are read.
//!
//! A slice gets the kind with the fewest bytes of index, diagonal rather than relative; diagonal only with at most twice as many slots as its
//! longest row has entries, and where every row has a column of its number, so that a lane that lacks a slot can load that.
//!
//! Rows longer than the plan's `long` are kept apart, as in CSR, cut into pieces, and are empty in their slice.
//!
//! Slices and σ: Kreutzer, Hager, Wellein, Fehske & Bishop, SIAM J. Sci. Comput. 36 (2014). Indices in fewer bits: Willcock & Lumsdaine,
//! ICS'06. Diagonals: Bell & Garland, SC'09, §4.1, here for every slice on its own.

mod cpu;
mod cuda;
mod device;
mod index;
mod layout;
mod long;
mod order;
mod sizes;
mod slice;
mod slices;
mod unpack;
mod value;

pub(crate) use cuda::{DeviceVectors, Several, Uploaded, warps_shift};
pub(crate) use device::DeviceCsr;
pub(crate) use index::{Chooser, LANES};
pub(crate) use long::long_bytes;
pub(crate) use order::{Order, rows_by_length, sorted_in_windows};
pub use sizes::SliceSizes;
pub(crate) use slices::{Chunk, PackedSlices, SlicedRows};
pub(crate) use value::{DICTIONARY, Narrowed, ValueSet, coded, narrowed};

use crate::Precision;
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
    /// As numbers of a precision with fewer bytes when it holds all of them exactly, else as they are. Products are computed in the matrix's
    /// own type.
    Narrow(Precision),
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
