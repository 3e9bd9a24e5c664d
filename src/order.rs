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

/// Sorts a few items by a number in ascending order; equal ones keep their order.
pub(crate) fn ascending<T>(items: &mut [T], number: &dyn Fn(&T) -> f64) {
    for end in 1..items.len() {
        let mut at = end;
        while at > 0 && number(&items[at - 1]).total_cmp(&number(&items[at])).is_gt() {
            items.swap(at - 1, at);
            at -= 1;
        }
    }
}

/// Adds items to a set or a map one by one. `collect` sorts them first.
pub(crate) fn inserted<I, C: Default + Extend<I>>(items: impl IntoIterator<Item = I>) -> C {
    let mut all = C::default();
    all.extend(items);
    all
}

/// Sorts rows by length in descending order; equal ones keep their order. The lengths begin with
/// that of row `first`.
pub(crate) fn longest_first(rows: &mut [u32], first: u32, lengths: &[u32]) {
    rows.sort_by_key(|&row| Reverse(lengths[(row - first) as usize]));
}
