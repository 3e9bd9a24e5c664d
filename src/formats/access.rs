//! Single entries of a packed matrix: where a format lets them be found, and added.

use crate::Scalar;

/// What a packed matrix lets be done with single entries, where its format can find them without going through all of them. Slots are numbered
/// as in [`HostMatrix::values_mut`](super::HostMatrix::values_mut), through both arrays.
pub(crate) trait Access<T: Scalar> {
    /// Calls `visit(slot, column, value)` for the entries of a row, in order.
    fn visit_row(&self, row: usize, visit: &mut dyn FnMut(usize, u32, T));

    /// Slots, padding included.
    fn slot_count(&self) -> usize;

    /// The row and the column of the entry in a slot; none of padding.
    fn position(&self, slot: usize) -> Option<(usize, u32)>;

    /// Adds an entry behind the others of its row; or says why there is no room for it, and what has.
    fn insert(&mut self, row: usize, col: u32, value: T) -> Result<(), &'static str>;
}

/// Why a row-major format takes no entry.
pub(crate) const COMPACT: &str = "every entry behind it would have to move; `hyb` and `coo` take any, `ell` and `sell` where a row has padding";

/// Why a row in a padded format takes no entry.
pub(crate) const NO_PADDING: &str = "its row has no padded slot left; `hyb` and `coo` take any entry";
