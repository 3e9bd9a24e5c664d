//! Blocks of rows: the smallest units of partitions and of sums.

/// Largest number of blocks of a matrix: parts can begin at each of them.
const MAX_BLOCKS: usize = 1 << 14;

/// Number of rows of a block.
pub(crate) fn block_rows(nrows: usize) -> usize {
    nrows.div_ceil(MAX_BLOCKS).next_power_of_two()
}

/// True if every part has whole blocks of rows.
pub(crate) fn is_aligned(offsets: &[usize]) -> bool {
    let nrows = offsets[offsets.len() - 1];
    let block = block_rows(nrows);
    offsets.iter().all(|&row| row == nrows || row % block == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_a_power_of_two_of_rows() {
        assert_eq!([0, 1, 16_384, 16_385, 1 << 20].map(block_rows), [1, 1, 1, 2, 64]);
    }
}
