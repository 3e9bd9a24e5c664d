//! Sorting. Each function is compiled for few types: a sort is long, and every closure that
//! compares makes another one.

use std::cmp::Reverse;

/// Sorts numbers in descending order.
pub(crate) fn descending(numbers: &mut [u32]) {
    numbers.sort_unstable();
    numbers.reverse();
}

/// Sorts entries by column; those of the same column keep their order.
pub(crate) fn by_column<T>(entries: &mut [(u32, T)]) {
    entries.sort_by_key(|entry| entry.0);
}

/// Sorts by a number in ascending order; equal ones keep their order.
pub(crate) fn ascending<T>(items: &mut [T], number: &dyn Fn(&T) -> f64) {
    items.sort_by(|a, b| number(a).total_cmp(&number(b)));
}

/// Sorts rows by length in descending order; equal ones keep their order. The lengths begin with
/// that of row `first`.
pub(crate) fn longest_first(rows: &mut [u32], first: u32, lengths: &[u32]) {
    rows.sort_by_key(|&row| Reverse(lengths[(row - first) as usize]));
}
