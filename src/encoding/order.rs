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
    /// The rows in this order, those with more than `long` entries as if they were empty; none where they stay as they are.
    pub(crate) fn short_rows(self, row_ptr: &[usize], long: u32) -> Option<Vec<u32>> {
        let len = |row: u32| match row_ptr[row as usize + 1] - row_ptr[row as usize] {
            len if len > long as usize => 0,
            len => len as u32,
        };
        match self {
            Self::Natural => None,
            Self::Windows(sigma) => Some(sorted_in_windows(row_ptr.len() - 1, sigma, len)),
        }
    }
}

/// A window is sorted by counting where its longest row has at most so many entries for each of its rows.
const COUNTED: usize = 4;

/// The rows, sorted by length downwards within windows of `sigma`; equal lengths keep their order.
pub(crate) fn sorted_in_windows(nrows: usize, sigma: usize, len: impl Fn(u32) -> u32 + Sync) -> Vec<u32> {
    if sigma >= nrows {
        return rows_by_length((0..nrows as u32).map(&len));
    }
    let mut perm: Vec<u32> = (0..nrows as u32).collect();
    perm.par_chunks_mut(sigma).for_each(|window| {
        let longest = window.iter().map(|&row| len(row)).max().unwrap_or(0);
        // Counting takes a step for every length.
        if longest as usize <= COUNTED * window.len() {
            let first = window[0];
            let sorted = rows_by_length(window.iter().map(|&row| len(row)));
            window.iter_mut().zip(sorted).for_each(|(row, i)| *row = first + i);
        } else {
            window.sort_by_key(|&row| std::cmp::Reverse(len(row)));
        }
    });
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
    fn counting_and_comparing_give_the_same_order() {
        for most in [3, 40, 41, 5000] {
            let len = |row: u32| row * 7919 % (most + 1);
            let found = sorted_in_windows(95, 10, len);
            let mut expected: Vec<u32> = (0..95).collect();
            expected.chunks_mut(10).for_each(|window| window.sort_by_key(|&row| std::cmp::Reverse(len(row))));
            assert_eq!(found, expected, "{most}");
        }
    }

    #[test]
    fn windows_are_sorted_on_their_own_and_equal_rows_keep_their_order() {
        // Lengths 1 3 3 0 2 9 2.
        let perm = |order: Order, long| order.short_rows(&[0, 1, 4, 7, 7, 9, 18, 20], long);
        assert_eq!(perm(Order::Natural, 9), None);
        assert_eq!(perm(Order::Windows(3), 9).unwrap(), [1, 2, 0, 5, 4, 3, 6]);
        assert_eq!(perm(Order::Windows(100), 9).unwrap(), [5, 1, 2, 4, 6, 0, 3]);
        assert_eq!(perm(Order::Windows(100), 8).unwrap(), [1, 2, 4, 6, 0, 3, 5]);
        assert_eq!(Order::Windows(2).short_rows(&[0], 9), Some(Vec::new()));
    }
}
