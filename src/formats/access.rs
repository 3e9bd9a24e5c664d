//! Access to single entries of a packed matrix, in formats that can find and insert them.

use crate::Scalar;

/// Access to single entries of a packed matrix, for formats that find them without searching all
/// entries. Slots are numbered as in [`HostMatrix::values_mut`](super::HostMatrix::values_mut),
/// through both arrays.
pub(crate) trait Access<T: Scalar> {
    /// Calls `visit(slot, column, value)` for the entries of a row, in order.
    fn visit_row(&self, row: usize, visit: &mut dyn FnMut(usize, u32, T));

    /// Number of slots, padding included.
    fn slot_count(&self) -> usize;

    /// Row and column of the entry in a slot. None for padding.
    fn position(&self, slot: usize) -> Option<(usize, u32)>;

    /// Inserts an entry behind the others of its row, or returns the reason why there is no room
    /// for it and which formats have room.
    fn insert(&mut self, row: usize, col: u32, value: T) -> Result<(), &'static str>;
}

/// Reason why a row-major format cannot insert an entry.
pub(crate) const COMPACT: &str =
    "every entry behind it would have to move; `hyb` and `coo` take any entry";

/// Reason why a padded format cannot insert an entry into a full row.
pub(crate) const NO_PADDING: &str =
    "its row has no padded slot left; `hyb` and `coo` take any entry";
