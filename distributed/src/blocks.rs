//! Blocks of rows: the smallest units of partitions and of sums.

/// Maximum number of blocks of a matrix, on the CPU and on GPUs. On the CPU parts begin at any
/// block, on GPUs at multiples of [`gpu_part_rows`].
const MAX_BLOCKS: usize = 1 << 14;
const MAX_GPU_BLOCKS: usize = 1 << 13;

/// Number of blocks on GPUs that is exceeded only if blocks would have more than
/// [`LONG_GPU_ROWS`] rows: every GPU adds the sums of all blocks.
const PREFERRED_GPU_BLOCKS: usize = 1 << 11;

/// Number of rows of a block beyond which a part has too few of them, and more are better.
const LONG_GPU_ROWS: usize = 1 << 12;

/// Minimum number of blocks, if there are as many rows.
const MIN_BLOCKS: usize = 1 << 6;

/// Rows per block with which sums reach full speed, on the CPU and on GPUs, where a block of 256
/// threads sums a block of rows.
const FAST_ROWS: usize = 64;
const FAST_GPU_ROWS: usize = 1024;

/// Granularity of parts on GPUs in rows, for large matrices.
const GPU_PART_ROWS: usize = 1024;

/// Number of rows of a block, a power of two.
pub(crate) fn block_rows(nrows: usize) -> usize {
    rows(nrows, MAX_BLOCKS, FAST_ROWS)
}

/// Number of rows of a block of sums on GPUs, a multiple of [`block_rows`].
pub(crate) fn gpu_block_rows(nrows: usize) -> usize {
    let preferred = rows(nrows, PREFERRED_GPU_BLOCKS, FAST_GPU_ROWS).min(LONG_GPU_ROWS);
    preferred.max(rows(nrows, MAX_GPU_BLOCKS, FAST_GPU_ROWS))
}

/// Number of rows of which a part on a GPU is a multiple; a multiple of [`gpu_block_rows`].
pub(crate) fn gpu_part_rows(nrows: usize) -> usize {
    rows(nrows, PREFERRED_GPU_BLOCKS, GPU_PART_ROWS)
}

fn rows(nrows: usize, most: usize, fast: usize) -> usize {
    let least = 1 << (nrows / MIN_BLOCKS).clamp(1, fast).ilog2();
    nrows.div_ceil(most).next_power_of_two().max(least)
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
        let rows = [0, 1, 127, 128, 1000, 1024, 4096, 1 << 20, (1 << 20) + 1, 1 << 22];
        assert_eq!(rows.map(block_rows), [1, 1, 1, 2, 8, 16, 64, 64, 128, 256]);
        let of_gpus = rows.map(gpu_block_rows);
        assert_eq!(of_gpus, [1, 1, 1, 2, 8, 16, 64, 1024, 1024, 2048]);
        let of_parts = rows.map(gpu_part_rows);
        assert_eq!(of_parts, [1, 1, 1, 2, 8, 16, 64, 1024, 1024, 2048]);
        let large = [15_625_000, 31_255_875, 62_570_773, 256_000_000];
        assert_eq!(large.map(gpu_block_rows), [1 << 12, 1 << 12, 1 << 13, 1 << 15]);
        assert!((0..1 << 16).map(|i| i * i / 4).all(|rows| {
            let block = gpu_block_rows(rows);
            rows.div_ceil(block) <= MAX_GPU_BLOCKS && gpu_part_rows(rows).is_multiple_of(block)
        }));
    }
}
