//! Chunks: the entries and row ends of a matrix, in order, cut into equal parts (Merrill &
//! Garland, SC'16). A chunk of empty rows thus costs no more than one of entries.

use crate::Error;
use crate::device::cpu::last_at_most;
use crate::memory::collected;

/// Number of chunks of `chunk` entries and row ends.
pub(crate) fn chunk_count(nrows: u64, nnz: u64, chunk: u64) -> u64 {
    (nrows + nnz).div_ceil(chunk)
}

/// Number of rows that end before each chunk, and the number of all rows.
///
/// # Errors
///
/// [`Error::HostMemory`].
pub(crate) fn chunk_rows(row_ptr: &[usize], chunk: u64) -> Result<Vec<u32>, Error> {
    let nrows = row_ptr.len() - 1;
    let chunks = chunk_count(nrows as u64, row_ptr[nrows] as u64, chunk) as usize;
    let rows_ended = |before| last_at_most(0..nrows + 1, before, |row| row_ptr[row] + row);
    collected(chunks + 1, |i| rows_ended(i * chunk as usize) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_hold_equally_many_entries_and_row_ends() {
        assert_eq!(chunk_rows(&[0], 2048).unwrap(), [0], "no rows, no chunks");
        assert_eq!(chunk_rows(&[0; 5], 2048).unwrap(), [0, 4], "four row ends in one chunk");
        // An entry, its row's end, 5000 entries and their row's end, three empty rows.
        let rows = chunk_rows(&[0, 1, 5001, 5001, 5001, 5001], 2048).unwrap();
        assert_eq!(rows, [0, 1, 1, 5]);
    }
}
