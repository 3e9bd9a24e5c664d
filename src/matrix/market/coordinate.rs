//! `coordinate` files: one line `row column value` per entry.

use super::chunks::{ParsedChunk, each_line};
use super::header::{Field, MarketHeader, MarketSymmetry};
use super::scan::{self, index, quick_index, quick_integer, quick_real, words};
use super::window::{WindowedText, count_line_ends};
use super::{ParseProblem, Reader, excerpt};
use crate::matrix::assemble::{Buckets, MatrixEntry, SortedRun};
use crate::{Scalar, memory};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Parses the body into runs, mirroring entries of symmetric matrices.
pub(super) fn parse<T: Scalar>(
    reader: &Reader<'_>,
    text: &mut WindowedText<'_>,
    header: &MarketHeader,
    buckets: Buckets,
) -> Result<Vec<SortedRun<T>>, ParseProblem> {
    let declared = Some(header.declared);
    let collected = AtomicUsize::new(0);
    reader.in_chunks(text, header.body, declared, Vec::new, |entries, text, range| {
        entries.clear();
        let (lines, problem) = parse_chunk(text, range, header, entries);
        if let Some(count) = reader.above {
            count.fetch_add(above(header, entries), Relaxed);
        }
        match SortedRun::new(buckets, entries) {
            Ok(content) => {
                let count = collected.fetch_add(content.len(), Relaxed) + content.len();
                let bytes = text.len() + count.saturating_mul(size_of::<MatrixEntry<T>>());
                let problem = problem
                    .or_else(|| reader.check_memory::<T>(header, count).err())
                    .or_else(|| Some(memory::check_growth(bytes as u64).err()?.into()));
                ParsedChunk { content, lines, problem }
            }
            Err(error) => {
                let problem = Some(problem.unwrap_or_else(|| error.into()));
                ParsedChunk { content: SortedRun::empty(), lines, problem }
            }
        }
    })
}

/// Number of listed entries above the diagonal, given the entries with their mirror images. 0 for a
/// file that is not symmetric.
pub(super) fn above<T: Scalar>(header: &MarketHeader, entries: &[MatrixEntry<T>]) -> u64 {
    if header.symmetry == MarketSymmetry::General {
        return 0;
    }
    let mut listed = 0;
    let mut left = entries.iter();
    while let Some(entry) = left.next() {
        listed += u64::from(entry.col > entry.row);
        // Its mirror image follows.
        if entry.col != entry.row {
            left.next();
        }
    }
    listed
}

/// Appends the entries of a range of whole lines. Returns the number of valid lines, and the error
/// in the next one.
pub(super) fn parse_chunk<T: Scalar>(
    text: &[u8],
    range: Range<usize>,
    header: &MarketHeader,
    entries: &mut Vec<MatrixEntry<T>>,
) -> (u64, Option<ParseProblem>) {
    let lines = count_line_ends(&text[range.clone()]) as usize + 1;
    let most = if header.symmetry == MarketSymmetry::General { lines } else { 2 * lines };
    if let Err(error) = memory::reserve(entries, most) {
        return (0, Some(error.into()));
    }
    each_line(
        text,
        range,
        |start| quick_entry(text, start, header),
        |line| entry(line, header),
        |entry| {
            entries.push(entry);
            // Not `extend`, which would reserve capacity again for each entry.
            if let Some(mirrored) = header.symmetry.mirror(entry) {
                entries.push(mirrored);
            }
        },
    )
}

/// Parses the entry that begins at `start`, in its usual spelling, and returns its end.
#[inline]
fn quick_entry<T: Scalar>(
    text: &[u8],
    start: usize,
    header: &MarketHeader,
) -> Option<(MatrixEntry<T>, usize)> {
    let (row, pos) = quick_index(text, start, header.nrows)?;
    let (col, pos) = quick_index(text, pos, header.ncols)?;
    let (value, pos) = match header.field {
        Field::Real => quick_real(text, pos)?,
        Field::Integer => quick_integer(text, pos)?,
        Field::Pattern => (T::ONE, pos),
    };
    let forbidden = row == col && header.symmetry == MarketSymmetry::SkewSymmetric;
    (!forbidden).then_some((MatrixEntry { row, col, value }, pos))
}

/// Parses the entry of a line in any spelling, or returns the error.
fn entry<T: Scalar>(line: &[u8], header: &MarketHeader) -> Result<MatrixEntry<T>, String> {
    let mut words = words(line);
    let row = index("row", words.next(), header.nrows)?;
    let col = index("column", words.next(), header.ncols)?;
    let mut word =
        || words.next().ok_or_else(|| format!("the value is missing after {}", excerpt(line)));
    let value = match header.field {
        Field::Real => scan::real(word()?)?,
        Field::Integer => scan::integer(word()?)?,
        Field::Pattern => T::ONE,
    };
    if let Some(extra) = words.next() {
        let hint = if header.field == Field::Pattern { "; a pattern has no values" } else { "" };
        return Err(format!("unexpected {} after the entry{hint}", excerpt(extra)));
    }
    if row == col && header.symmetry == MarketSymmetry::SkewSymmetric {
        let message = format!(
            "entry {0}, {0} is on the diagonal, which is zero in a skew-symmetric matrix",
            row + 1
        );
        return Err(format!("{message} and must not be listed"));
    }
    Ok(MatrixEntry { row, col, value })
}
