//! Rows in the order of their lengths.

use rayon::prelude::*;

/// The order of rows in slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// As they are.
    Natural,
    /// Sorted by length, longest first, within windows of so many rows; equal lengths keep their order.
    Windows(usize),
}

impl Order {
    /// The rows in this order; none where they stay as they are. `len(row)` is the length of a row.
    pub(crate) fn perm(self, nrows: usize, len: impl Fn(u32) -> u32 + Sync) -> Option<Vec<u32>> {
        match self {
            Self::Natural => None,
            Self::Windows(sigma) => Some(sorted_in_windows(nrows, sigma, len)),
        }
    }
}

/// The rows, sorted by length downwards within windows of `sigma`; equal lengths keep their order.
pub(crate) fn sorted_in_windows(nrows: usize, sigma: usize, len: impl Fn(u32) -> u32 + Sync) -> Vec<u32> {
    if sigma >= nrows {
        return rows_by_length((0..nrows as u32).map(|row| len(row)));
    }
    let mut perm: Vec<u32> = (0..nrows as u32).collect();
    perm.par_chunks_mut(sigma).for_each(|window| window.sort_by_key(|&row| std::cmp::Reverse(len(row))));
    perm
}

/// The row indices `0..nrows`, longest row first, equal lengths in their order (a stable counting sort).
pub(crate) fn rows_by_length(row_lengths: impl Iterator<Item = u32> + Clone) -> Vec<u32> {
    let longest = row_lengths.clone().max().unwrap_or(0) as usize;
    let mut next = vec![0u32; longest + 2];
    for len in row_lengths.clone() {
        next[longest - len as usize + 1] += 1;
    }
    for class in 0..=longest {
        next[class + 1] += next[class];
    }
    let mut perm = vec![0; next[longest + 1] as usize];
    for (row, len) in row_lengths.enumerate() {
        let slot = &mut next[longest - len as usize];
        perm[*slot as usize] = row as u32;
        *slot += 1;
    }
    perm
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_sorted_on_their_own_and_equal_rows_keep_their_order() {
        let lengths = [1u32, 3, 3, 0, 2, 9, 2];
        let perm = |order: Order| order.perm(lengths.len(), |row| lengths[row as usize]);
        assert_eq!(perm(Order::Natural), None);
        assert_eq!(perm(Order::Windows(3)).unwrap(), [1, 2, 0, 5, 4, 3, 6]);
        assert_eq!(perm(Order::Windows(100)).unwrap(), [5, 1, 2, 4, 6, 0, 3]);
        assert_eq!(Order::Windows(2).perm(0, |_| 0), Some(Vec::new()));
    }
}
