//! Parallel parsing of the body of a file in chunks, with the errors of a sequential parser.

use super::scan::{line_end, next_line, skip_blanks};
use super::window::{WindowedText, count_line_ends};
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
    pub(super) content: P,
    /// Number of lines with an entry, up to the first invalid one.
    pub(super) lines: u64,
    /// Error in the first invalid line, if any.
    pub(super) problem: Option<ParseProblem>,
}

impl Reader<'_> {
    /// Parses the text from `body` on, window by window. It should have `declared` lines with an
    /// entry if that is known. Returns the contents in order.
    ///
    /// `scratch` creates working memory that a thread reuses from one call of `parse` to the next.
    pub(super) fn in_chunks<S: Send, P: Send>(
        &self,
        text: &mut WindowedText<'_>,
        body: usize,
        declared: Option<u64>,
        scratch: impl Fn() -> S + Sync,
        parse: impl Fn(&mut S, &[u8], Range<usize>) -> ParsedChunk<P> + Sync,
    ) -> Result<Vec<P>, ParseProblem> {
        let (mut contents, mut lines, mut start) = (Vec::new(), 0, body);
        let spare = SparePool::new(scratch);
        loop {
            let (end, is_last) = (text.whole_lines(), text.is_last());
            let window = &text.bytes()[..end];
            let ranges = split(window, start, self.chunk_size(end - start));
            let failed = AtomicUsize::new(usize::MAX);
            let done = AtomicU64::new(text.bytes_before() + start as u64);
            let total = text.len().unwrap_or(text.bytes_before() + end as u64);
            let chunks = parallel::map(ranges.len(), 1, |k| {
                // Chunks behind the first error are skipped; those before it must be parsed, so
                // that the line number is right.
                if k > failed.load(Relaxed) {
                    return None;
                }
                let chunk = spare.with(|scratch| parse(scratch, window, ranges[k].clone()));
                if chunk.problem.is_some() {
                    failed.fetch_min(k, Relaxed);
                }
                // Of the last window they are counted only for an error.
                let ends = if is_last { 0 } else { count_line_ends(&window[ranges[k].clone()]) };
                let bytes = ranges[k].len() as u64;
                self.report(ReadStage::Parse, done.fetch_add(bytes, Relaxed) + bytes, total);
                Some((chunk, ends))
            });
            let mut line_ends = count_line_ends(&window[..start]);
            for (range, chunk) in ranges.iter().zip(chunks) {
                // Only chunks after one with a problem are missing.
                let Some((chunk, ends)) = chunk else { break };
                if let Some(declared) = declared.filter(|&most| lines + chunk.lines > most) {
                    return Err(surplus(text, range, declared - lines, declared));
                }
                (lines, line_ends) = (lines + chunk.lines, line_ends + ends);
                if let Some(problem) = chunk.problem {
                    return Err(problem);
                }
                contents.push(chunk.content);
            }
            if is_last {
                break;
            }
            text.advance(end, line_ends)?;
            start = 0;
        }
        if let Some(declared) = declared.filter(|&declared| lines < declared) {
            let message =
                format!("the file ends after {lines} of the {declared} entries it declares");
            return Err(ParseProblem::at(text.bytes().len(), message));
        }
        Ok(contents)
    }

    /// Size of the chunks of so many bytes.
    fn chunk_size(&self, bytes: usize) -> usize {
        self.chunk_bytes.unwrap_or_else(|| {
            let per_task = bytes / (4 * rayon::current_num_threads());
            per_task.clamp(MIN_CHUNK_BYTES, CHUNK_BYTES)
        })
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

/// Error about the first surplus line: line number `first` (from 0) with an entry in a range of the
/// window.
fn surplus(
    text: &mut WindowedText<'_>,
    range: &Range<usize>,
    first: u64,
    declared: u64,
) -> ParseProblem {
    fn lines_from(text: &[u8], start: usize, end: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(next_line(text, start, end), move |&line| {
            next_line(text, line_end(text, line) + 1, end)
        })
    }
    let (bytes, end) = (text.bytes(), text.whole_lines());
    let offset = lines_from(bytes, range.start, range.end).nth(first as usize);
    let offset = offset.unwrap_or(range.start);
    let mut found = declared + lines_from(bytes, offset, end).count() as u64;
    let line = text.line_of(offset);
    let mut len = end;
    while !text.is_last() {
        if let Err(error) = text.advance(len, 0) {
            return error.into();
        }
        len = text.whole_lines();
        found += lines_from(text.bytes(), 0, len).count() as u64;
    }
    ParseProblem {
        line: Some(line),
        ..ParseProblem::new(format!(
            "the file declares {declared} entries, but has {found}; this is the first too many"
        ))
    }
}
