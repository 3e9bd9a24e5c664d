//! Packed SELL: columns and values of a matrix, encoded losslessly in as few bytes as possible.
//!
//! ```text
//! 3 . 1 .     a slice of 32 rows, of which there are 4, sorted by length:
//! . . . .     perm     2 0 3 1
//! . 2 4 1     header   value_at 0, index_at 0, base 0, 8-bit indices, runs of 1, 0 of 3 steps full
//! 1 . . 1     index    7 7 1 0 (masks: the lanes with a 1st, 2nd, 3rd entry)   1 0 0  2 2 3  3
//!             values   2 3 1  4 1 1  1
//!
//! x x . . .   rows in their order, along diagonals; here a slice of three rows, not of 32:
//! x x x . .   header   value_at 0, index_at 0, base 0, diagonal, 2 of 3 slots full
//! . x x x .   index    0 1 _ _ (deltas of all lanes)   -1 _ _ _ (other)   2+4 _ _ _ (its lanes)
//! ```
//!
//! A slice of 32 rows, the lanes, has a [`Header`] of 16 bytes and a range in each of two arrays,
//! the values and the index. Both ranges begin at multiples of 16 bytes. The gaps between ranges
//! are zero, and so are 16 bytes behind the last value. Nothing else is padded: a slice has as many
//! values as its rows have entries, and padding is never multiplied. The lanes past the last row
//! are empty.
//!
//! *Diagonal* slices consist of rows in natural order with strictly ascending columns. They have
//! slots: a delta, which is column minus row, and the lanes with an entry there. The index holds
//! the deltas (i32) of the slots that every lane has, ascending, those of the others, ascending,
//! and the masks of the others, each of the three padded to 16 bytes. Slices with the same slots
//! share them.
//!
//! *Relative* slices have rows packed to the left. A step is a run of 1, 2 or 3 consecutive columns
//! of a row; the length of the runs is the same in all rows of the slice and as large as possible.
//! A step has one index: its first column, in 8 or 16 bits relative to the slice's smallest column,
//! or in 32 bits relative to 0. The index holds the masks of the steps that some lanes lack, padded
//! to 16 bytes, then the indices.
//!
//! Values have the same order in both. The slots that every lane has come first: groups of `group`
//! slots lane by lane, those of a lane adjacent, then the remaining ones slot by slot. The other
//! slots follow slot by slot, those of their lanes without gaps. Indices have the order of values,
//! one per step. In steps with several slots, `group` counts as 1.
//!
//! Values are stored in one of these forms: in the matrix's own type; with `packed`, as codes of a
//! dictionary of up to 256 values (the array always has 256), or not at all if all have the same
//! bits; or in a narrower type that holds all of them exactly, and widened when they are read.
//!
//! A slice gets the kind with the fewest bytes of index, and a diagonal one in a tie. It is
//! diagonal only with at most twice as many slots as its longest row has entries, and only if every
//! row number is also a column number, so that a lane that lacks a slot can load that column.
//!
//! Rows longer than the plan's `long` are stored outside of the slices, as in CSR, cut into pieces.
//! They are empty in their slice.
//!
//! Slices and σ: Kreutzer, Hager, Wellein, Fehske & Bishop, SIAM J. Sci. Comput. 36 (2014).
//! Indices in fewer bits: Willcock & Lumsdaine, ICS'06. Diagonals: Bell & Garland, SC'09, §4.1,
//! here for each slice separately.

mod cpu;
mod cuda;
mod device;
mod index;
mod layout;
mod long;
mod order;
mod sink;
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

/// Bytes that can be read behind the last value and the last index of a packed matrix: the rest of
/// a vector.
const SLACK: usize = 64;

/// Parameters of packed SELL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// Encoding of the values.
    pub values: ValueEncoding,
    /// Slots of a row that are stored adjacently if every row of the slice has them: 1 or 4.
    pub group: u32,
    /// Rows with more entries are long rows, stored outside of the slices; at most
    /// [`Packing::MAX_LONG`].
    pub long: u32,
}

/// Encoding of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueEncoding {
    /// In the matrix's own type.
    Plain,
    /// As codes of a dictionary if there are at most 256 values, not at all if there is one,
    /// otherwise in the matrix's own type.
    Packed,
    /// In a narrower precision if it holds all of them exactly, otherwise in the matrix's own type.
    /// Products are computed in the matrix's own type.
    Narrow(Precision),
}

impl Packing {
    /// Length of the longest rows that slices can hold.
    pub const MAX_LONG: u32 = MAX_WIDTH;

    /// Allowed values of [`group`](Self::group).
    pub const GROUPS: [u32; 2] = [1, 4];
}

impl Default for Packing {
    /// Plain values, one slot at a time, all rows in slices that slices can hold.
    fn default() -> Self {
        Self { values: ValueEncoding::Plain, group: 1, long: Self::MAX_LONG }
    }
}

/// Header of a slice; 16 bytes, read by a GPU at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Header {
    /// Position of its values, in units of 16 bytes; 0 if none are stored.
    pub(crate) value_at: u32,
    /// Position of its index, in units of 16 bytes.
    pub(crate) index_at: u32,
    /// Column that indices are relative to.
    pub(crate) base: u32,
    /// Packed shape; see [`Shape::to_bits`].
    pub(crate) shape: u32,
}

/// Size of the tables of `slices` slices in bytes, with or without the masks of lanes that hold
/// long rows.
pub(crate) const fn slice_table_bytes(slices: u64, skip: bool) -> u64 {
    let skip = if skip { size_of::<u32>() } else { 0 };
    slices * (size_of::<Header>() + skip) as u64
}

impl Header {
    fn shape(&self) -> Shape {
        Shape::from_bits(self.shape)
    }
}
