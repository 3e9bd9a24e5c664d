//! Sorting of rows by length.

use crate::Error;
use crate::memory::try_zeroed;
use crate::order;
use crate::parallel::{self, SparePool};
use std::ops::{Range, RangeInclusive};

/// Largest difference of lengths in a window that is sorted by one pass per length: no pass waits
/// for a counter.
const NARROW: u32 = 4;

/// Least number of rows that a task sorts: some 100 µs, the time to wake a thread pool and to
/// wait for it.
const ROWS_PER_TASK: usize = 1 << 16;

/// Sorts the rows by descending length within windows of `sigma`; equal lengths keep their order.
///
/// # Errors
///
/// [`Error::HostMemory`].
pub(crate) fn sorted_in_windows(
    nrows: usize,
    sigma: usize,
    len: impl Fn(u32) -> u32 + Sync,
) -> Result<Vec<u32>, Error> {
    let mut perm = try_zeroed(nrows)?;
    let spare = SparePool::new(Vec::new);
    let sort = |lengths: &mut Vec<u32>, first: usize, window: &mut [u32]| {
        let rows = first as u32..(first + window.len()) as u32;
        lengths.clear();
        lengths.extend(rows.clone().map(&len));
        let (least, most) =
            lengths.iter().fold((u32::MAX, 0), |(a, b), &len| (a.min(len), b.max(len)));
        if most - least <= NARROW {
            by_passes(window, rows, lengths, least..=most);
        } else if most as usize <= window.len() * (1 + window.len().ilog2() as usize) / 2 {
            // Counting sort takes a step per length, comparison sort several per row.
            let sorted = rows_by_length(lengths.iter().copied())?;
            window.iter_mut().zip(sorted).for_each(|(row, i)| *row = rows.start + i);
        } else {
            window.iter_mut().zip(rows.clone()).for_each(|(place, row)| *place = row);
            order::longest_first(window, rows.start, lengths);
        }
        Ok(())
    };
    let size = sigma * (ROWS_PER_TASK / sigma).max(1);
    parallel::try_for_each_item(perm.chunks_mut(size).enumerate(), |(i, windows)| {
        let mut windows = windows.chunks_mut(sigma).enumerate();
        spare.with(|lengths| {
            windows.try_for_each(|(w, window)| sort(lengths, i * size + w * sigma, window))
        })
    })?;
    Ok(perm)
}

/// Writes `rows` of these lengths to `window`, longest first; equal lengths keep their order.
fn by_passes(window: &mut [u32], rows: Range<u32>, lengths: &[u32], all: RangeInclusive<u32>) {
    let mut next = 0;
    for length in all.rev() {
        for (row, &len) in rows.clone().zip(lengths) {
            // Written even if the row does not belong there: the last row written is the right one.
            if let Some(place) = window.get_mut(next) {
                *place = row;
            }
            next += usize::from(len == length);
        }
    }
}

/// Returns the row indices `0..nrows`, longest row first; equal lengths keep their order (a stable
/// counting sort).
///
/// # Errors
///
/// [`Error::HostMemory`].
pub(crate) fn rows_by_length(
    row_lengths: impl Iterator<Item = u32> + Clone,
) -> Result<Vec<u32>, Error> {
    let longest = row_lengths.clone().max().unwrap_or(0) as usize;
    let mut next = try_zeroed::<u32>(longest + 2)?;
    for len in row_lengths.clone() {
        next[longest - len as usize + 1] += 1;
    }
    for class in 0..=longest {
        next[class + 1] += next[class];
    }
    let mut perm = try_zeroed(next[longest + 1] as usize)?;
    for (row, len) in row_lengths.enumerate() {
        let slot = &mut next[longest - len as usize];
        perm[*slot as usize] = row as u32;
        *slot += 1;
    }
    Ok(perm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_and_comparing_give_the_same_order() {
        for most in [0, 4, 5, 19, 20, 21, 5000] {
            let len = |row: u32| row * 7919 % (most + 1);
            let found = sorted_in_windows(95, 10, len).unwrap();
            let mut expected: Vec<u32> = (0..95).collect();
            expected
                .chunks_mut(10)
                .for_each(|window| window.sort_by_key(|&row| std::cmp::Reverse(len(row))));
            assert_eq!(found, expected, "{most}");
        }
    }
}
