//! Order of the rows in slices.

use crate::Error;
use crate::formats::sorted_in_windows;

/// Order of the rows in slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The order of the matrix.
    Natural,
    /// Sorted by length, longest first, within windows of this many rows; equal lengths keep their
    /// order.
    Windows(usize),
}

impl Order {
    /// Returns the rows in this order, in which rows with more than `split` entries count as empty.
    /// `None` for the natural order.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub(crate) fn permutation(
        self,
        row_ptr: &[usize],
        split: u32,
    ) -> Result<Option<Vec<u32>>, Error> {
        let len = |row: u32| match row_ptr[row as usize + 1] - row_ptr[row as usize] {
            len if len > split as usize => 0,
            len => len as u32,
        };
        match self {
            Self::Natural => Ok(None),
            Self::Windows(sigma) => sorted_in_windows(row_ptr.len() - 1, sigma, len).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_sorted_on_their_own_and_equal_rows_keep_their_order() {
        // Lengths 1 3 3 0 2 9 2.
        let perm =
            |order: Order, long| order.permutation(&[0, 1, 4, 7, 7, 9, 18, 20], long).unwrap();
        assert_eq!(perm(Order::Natural, 9), None);
        assert_eq!(perm(Order::Windows(3), 9).unwrap(), [1, 2, 0, 5, 4, 3, 6]);
        assert_eq!(perm(Order::Windows(100), 9).unwrap(), [5, 1, 2, 4, 6, 0, 3]);
        assert_eq!(perm(Order::Windows(100), 8).unwrap(), [1, 2, 4, 6, 0, 3, 5]);
        assert_eq!(Order::Windows(2).permutation(&[0], 9).unwrap(), Some(Vec::new()));
    }
}
