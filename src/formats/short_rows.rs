//! Rows of few slots: a thread of a GPU multiplies several of them together. The loads of a single
//! short row keep too few bytes in flight.

use super::constants::ROWS_TOGETHER;
use crate::device::Launch;

/// Largest number of slots of such rows.
const FEW_SLOTS: usize = 4;

/// Smallest number of rows: two blocks for each multiprocessor of an H200.
const MANY_ROWS: usize = 1 << 18;

/// Cost key of the fallback kernel of one for short rows: that for all rows.
pub(super) fn without_short(key: &str) -> Vec<String> {
    key.strip_suffix(".short").map(str::to_owned).into_iter().collect()
}

/// True if a thread multiplies several of `nrows` rows of `slots` slots.
pub(super) fn are_short(nrows: usize, slots: usize) -> bool {
    slots <= FEW_SLOTS && nrows >= many_rows()
}

/// Launch for rows, of which a thread multiplies several if they are short.
pub(super) fn launch(nrows: usize, short: bool) -> Launch {
    let threads = if short { nrows.div_ceil(ROWS_TOGETHER as usize) } else { nrows };
    Launch::over(threads, 1)
}

/// [`MANY_ROWS`], or 1 in tests of the kernels of large matrices on small ones.
fn many_rows() -> usize {
    #[cfg(test)]
    if std::env::var_os(crate::device::TEST_L2_BYTES).is_some() {
        return 1;
    }
    MANY_ROWS
}
