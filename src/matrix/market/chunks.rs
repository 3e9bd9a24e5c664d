//! Parallel parsing of the body of a file in chunks, with the errors of a sequential parser.

use super::scan::{line_end, next_line, skip_blanks};
use super::{ParseProblem, ReadStage, Reader};
use crate::parallel::{self, SparePool};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Bytes of text parsed at a time: the entries of a megabyte stay in the second-level cache while
/// they are sorted.
const CHUNK_BYTES: usize = 1 << 20;
/// Minimum size of a chunk: a smaller one does not justify a task.
const MIN_CHUNK_BYTES: usize = 1 << 15;

/// Result of parsing one chunk.
pub(super) struct ParsedChunk<P> {
    /// Parsed entries.
    pub(super) part: P,
    /// Number of lines with an entry, up to the first invalid one.
    pub(super) lines: u64,
    /// Error in the first invalid line, if any.
    pub(super) problem: Option<ParseProblem>,
}

impl Reader<'_> {
    /// Parses `text[body..]`, which should have `declared` lines with an entry if that is known,
    /// and returns the parts in order.
    ///
    /// `scratch` creates working memory that a thread reuses from one call of `parse` to the next.
    pub(super) fn in_chunks<S: Send, P: Send>(
        &self,
        text: &[u8],
        body: usize,
        declared: Option<u64>,
        scratch: impl Fn() -> S + Sync,
        parse: impl Fn(&mut S, Range<usize>) -> ParsedChunk<P> + Sync,
    ) -> Result<Vec<P>, ParseProblem> {
        let size = self.chunk_bytes.unwrap_or_else(|| {
            let per_task = (text.len() - body) / (4 * rayon::current_num_threads());
            per_task.clamp(MIN_CHUNK_BYTES, CHUNK_BYTES)
        });
        let ranges = split(text, body, size);
        let failed = AtomicUsize::new(usize::MAX);
        let done = AtomicU64::new(body as u64);
        let spare = SparePool::new(scratch);
        let chunks: Vec<Option<ParsedChunk<P>>> = parallel::map(ranges.len(), 1, |k| {
            // Chunks behind the first error are skipped; those before it must be parsed, so that
            // the line number is right.
            if k > failed.load(Relaxed) {
                return None;
            }
            let chunk = spare.with(|scratch| parse(scratch, ranges[k].clone()));
            if chunk.problem.is_some() {
                failed.fetch_min(k, Relaxed);
            }
            let bytes = ranges[k].len() as u64;
            self.report(
                ReadStage::Parse,
                done.fetch_add(bytes, Relaxed) + bytes,
                text.len() as u64,
            );
            Some(chunk)
        });
        join(text, &ranges, chunks, declared)
    }
}

/// Passes the entry of each line in a range of whole lines to `take`. Returns the number of valid
/// lines, and the error in the next one.
///
/// `quick` reads the entry at a position in its usual spelling and returns its end; `careful` reads
/// a whole line in any spelling, or returns the error.
#[inline]
pub(super) fn each_line<E>(
    text: &[u8],
    range: Range<usize>,
    quick: impl Fn(usize) -> Option<(E, usize)>,
    careful: impl Fn(&[u8]) -> Result<E, String>,
    mut take: impl FnMut(E),
) -> (u64, Option<ParseProblem>) {
    let (mut pos, mut lines) = (range.start, 0);
    while let Some(start) = next_line(text, pos, range.end) {
        let quick = quick(start).map(|(entry, after)| (entry, skip_blanks(text, after)));
        match quick.filter(|&(_, end)| text.get(end).is_none_or(|&byte| byte == b'\n')) {
            Some((entry, end)) => {
                take(entry);
                pos = end + 1;
            }
            None => {
                let end = line_end(text, start);
                match careful(&text[start..end]) {
                    Ok(entry) => take(entry),
                    Err(message) => return (lines, Some(ParseProblem::at(start, message))),
                }
                pos = end + 1;
            }
        }
        lines += 1;
    }
    (lines, None)
}

/// Cuts `text[body..]` at line ends into pieces of about `size` bytes.
fn split(text: &[u8], body: usize, size: usize) -> Vec<Range<usize>> {
    let mut ranges = Vec::with_capacity((text.len() - body) / size + 1);
    let mut start = body;
    while start < text.len() {
        let end = match text.len() - start {
            left if left <= size => text.len(),
            _ => (line_end(text, start + size - 1) + 1).min(text.len()),
        };
        ranges.push(start..end);
        start = end;
    }
    ranges
}

/// Joins the parts of the chunks, or returns the first error in the order of the file.
fn join<P>(
    text: &[u8],
    ranges: &[Range<usize>],
    chunks: Vec<Option<ParsedChunk<P>>>,
    declared: Option<u64>,
) -> Result<Vec<P>, ParseProblem> {
    let mut parts = Vec::with_capacity(chunks.len());
    let mut lines = 0;
    for (range, chunk) in ranges.iter().zip(chunks) {
        // Only chunks after one with a problem are missing.
        let Some(chunk) = chunk else { break };
        if let Some(declared) = declared.filter(|&declared| lines + chunk.lines > declared) {
            return Err(surplus(text, range, declared - lines, declared));
        }
        lines += chunk.lines;
        if let Some(problem) = chunk.problem {
            return Err(problem);
        }
        parts.push(chunk.part);
    }
    if let Some(declared) = declared.filter(|&declared| lines < declared) {
        let message = format!("the file ends after {lines} of the {declared} entries it declares");
        return Err(ParseProblem::at(text.len(), message));
    }
    Ok(parts)
}

/// Error about the first surplus line: line number `first` (from 0) with an entry in `range`.
fn surplus(text: &[u8], range: &Range<usize>, first: u64, declared: u64) -> ParseProblem {
    let lines_from = |start, end| {
        std::iter::successors(next_line(text, start, end), move |&line| {
            next_line(text, line_end(text, line) + 1, end)
        })
    };
    let offset = lines_from(range.start, range.end).nth(first as usize).unwrap_or(range.start);
    let found = declared + lines_from(offset, text.len()).count() as u64;
    ParseProblem::at(
        offset,
        format!(
            "the file declares {declared} entries, but has {found}; this is the first too many"
        ),
    )
}
