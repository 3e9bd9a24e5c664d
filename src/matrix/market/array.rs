//! `array` files: every element on a line of its own, column by column.

use super::chunks::{ParsedChunk, each_line};
use super::header::{Field, MarketHeader, MarketSymmetry};
use super::scan::{self, quick_integer, quick_real, words};
use super::window::WindowedText;
use super::{ParseProblem, Reader, excerpt};
use crate::matrix::assemble::{Buckets, MatrixEntry, SortedRun};
use crate::{Error, Scalar, memory, parallel};
use std::ops::Range;

/// Parses the body into runs of the nonzero elements, mirroring those of symmetric matrices.
pub(super) fn parse<T: Scalar>(
    reader: &Reader<'_>,
    text: &mut WindowedText<'_>,
    header: &MarketHeader,
    buckets: Buckets,
) -> Result<Vec<SortedRun<T>>, ParseProblem> {
    let parts = elements(reader, text, header.body, Some(header.declared), header.field)?;
    let mut first = 0;
    let parts: Vec<_> = parts
        .into_iter()
        .map(|part| {
            let start = first;
            first += part.len() as u64;
            (start, part)
        })
        .collect();
    let runs = parallel::map(parts.len(), 1, |i| {
        let (first, part) = &parts[i];
        let mut entries = Vec::new();
        let mut place = ArrayPosition::of(*first, header);
        for &value in part {
            let (row, col) = (place.row as u32, place.col as u32);
            if value != T::ZERO {
                let entry = MatrixEntry { row, col, value };
                memory::push(&mut entries, entry)?;
                if let Some(mirrored) = header.symmetry.mirror(entry) {
                    memory::push(&mut entries, mirrored)?;
                }
            }
            place.advance(header);
        }
        SortedRun::new(buckets, &entries)
    });
    Ok(runs.into_iter().collect::<Result<_, Error>>()?)
}

/// Parses one number per line, from `body` on, and checks that their number is the declared one.
/// Returns the list in parts.
pub(super) fn elements<T: Scalar>(
    reader: &Reader<'_>,
    text: &mut WindowedText<'_>,
    body: usize,
    declared: Option<u64>,
    field: Field,
) -> Result<Vec<Vec<T>>, ParseProblem> {
    let parse = |(): &mut (), text: &[u8], range| elements_of_chunk(text, range, field);
    reader.in_chunks(text, body, declared, || (), parse)
}

/// Parses one number per line in a range of whole lines.
fn elements_of_chunk<T: Scalar>(
    text: &[u8],
    range: Range<usize>,
    field: Field,
) -> ParsedChunk<Vec<T>> {
    let quick = |start| match field {
        Field::Integer => quick_integer(text, start),
        Field::Real | Field::Pattern => quick_real(text, start),
    };
    let mut content = Vec::new();
    let (lines, problem) =
        each_line(text, range, quick, |line| element(line, field), |value| content.push(value));
    ParsedChunk { content, lines, problem }
}

/// Number of a line in any spelling, or the error.
fn element<T: Scalar>(line: &[u8], field: Field) -> Result<T, String> {
    let mut words = words(line);
    let word = words.next().unwrap_or_default();
    let value = match field {
        Field::Integer => scan::integer(word)?,
        Field::Real | Field::Pattern => scan::real(word)?,
    };
    match words.next() {
        Some(extra) => {
            Err(format!("unexpected {} after the number; a line has one", excerpt(extra)))
        }
        None => Ok(value),
    }
}

/// Position of an element of the list in the matrix, counted from 0.
struct ArrayPosition {
    row: u64,
    col: u64,
}

impl ArrayPosition {
    /// Position of element `k` of the list.
    fn of(k: u64, header: &MarketHeader) -> Self {
        let n = header.nrows as u64;
        if header.symmetry == MarketSymmetry::General {
            return Self { row: k % n.max(1), col: k / n.max(1) };
        }
        // A column begins at the diagonal or one row below it; column `j` has `longest - j`
        // elements.
        let below = u64::from(header.symmetry == MarketSymmetry::SkewSymmetric);
        let longest = n.saturating_sub(below);
        let before = |j: u64| j * longest - j * j.saturating_sub(1) / 2;
        let (mut col, mut too_far) = (0, longest + 1);
        while col + 1 < too_far {
            let middle = col.midpoint(too_far);
            if before(middle) <= k { col = middle } else { too_far = middle }
        }
        Self { row: col + below + (k - before(col)), col }
    }

    /// Advances to the next element.
    fn advance(&mut self, header: &MarketHeader) {
        self.row += 1;
        if self.row == header.nrows as u64 {
            self.col += 1;
            self.row = match header.symmetry {
                MarketSymmetry::General => 0,
                MarketSymmetry::Symmetric => self.col,
                MarketSymmetry::SkewSymmetric => self.col + 1,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::MarketLayout;
    use super::*;

    #[test]
    fn the_place_of_an_element_can_be_jumped_to() {
        for symmetry in
            [MarketSymmetry::General, MarketSymmetry::Symmetric, MarketSymmetry::SkewSymmetric]
        {
            for n in 1..6usize {
                let (layout, field, body) = (MarketLayout::Array, Field::Real, 0);
                let declared = match symmetry {
                    MarketSymmetry::General => n * n,
                    MarketSymmetry::Symmetric => n * (n + 1) / 2,
                    MarketSymmetry::SkewSymmetric => n * (n - 1) / 2,
                } as u64;
                let header =
                    MarketHeader { layout, field, symmetry, nrows: n, ncols: n, declared, body };
                let mut walked = ArrayPosition::of(0, &header);
                for k in 0..declared {
                    let jumped = ArrayPosition::of(k, &header);
                    assert_eq!(
                        (jumped.row, jumped.col),
                        (walked.row, walked.col),
                        "{symmetry:?} {n} {k}"
                    );
                    assert!(walked.row < n as u64 && walked.col < n as u64);
                    walked.advance(&header);
                }
            }
        }
    }
}
