//! Text of a file, read window by window.

use super::header::MarketHeader;
use super::source::{self, ByteStream};
use super::{ParseProblem, Reader};
use crate::{Error, memory};
use std::path::Path;

/// Bytes of a window, in which every line fits, and the banner, comments and sizes together.
const WINDOW: usize = 1 << 24;

/// A text whose lines are parsed in windows. A short text is a single window.
pub(super) struct WindowedText<'a> {
    /// Text that the caller has in memory: a single window.
    in_memory: Option<&'a [u8]>,
    /// Memory of the window of any other text.
    buffer: Vec<u8>,
    /// Number of bytes of the window in `buffer`.
    filled: usize,
    /// Bytes after the window. None at the end of the text.
    rest: Option<Box<dyn ByteStream + 'a>>,
    /// Number of bytes before the window.
    bytes_before: u64,
    /// Number of line ends before the window.
    line_ends_before: u64,
    path: &'a Path,
    reader: &'a Reader<'a>,
}

impl<'a> WindowedText<'a> {
    fn new(path: &'a Path, reader: &'a Reader<'a>) -> Self {
        Self {
            in_memory: None,
            buffer: Vec::new(),
            filled: 0,
            rest: None,
            bytes_before: 0,
            line_ends_before: 0,
            path,
            reader,
        }
    }

    /// A text in memory.
    pub(super) fn of(text: &'a [u8], reader: &'a Reader<'a>) -> Self {
        Self { in_memory: Some(text), ..Self::new(Path::new(""), reader) }
    }

    /// The first window of a file. An archive is a single window.
    pub(super) fn open(path: &'a Path, reader: &'a Reader<'a>) -> Result<Self, Error> {
        let (buffer, rest) = source::open(path, reader)?;
        let filled = buffer.len();
        let mut text = Self { buffer, filled, rest, ..Self::new(path, reader) };
        text.fill(WINDOW)?;
        Ok(text)
    }

    /// A text of unknown length.
    #[cfg(test)]
    pub(super) fn streamed(text: &'a [u8], reader: &'a Reader<'a>) -> Result<Self, Error> {
        let rest = Some(source::sequential(text, "read"));
        let mut text = Self { rest, ..Self::new(Path::new(""), reader) };
        text.fill(WINDOW)?;
        Ok(text)
    }

    /// The bytes of the window.
    pub(super) fn bytes(&self) -> &[u8] {
        self.in_memory.unwrap_or(&self.buffer[..self.filled])
    }

    /// True if the text ends with the window.
    pub(super) fn is_last(&self) -> bool {
        self.rest.is_none()
    }

    /// Number of bytes before the window.
    pub(super) fn bytes_before(&self) -> u64 {
        self.bytes_before
    }

    /// Number of bytes of the whole text, if it is known.
    pub(super) fn len(&self) -> Option<u64> {
        let read = self.bytes_before + self.bytes().len() as u64;
        self.rest.as_ref().map_or(Some(read), |rest| Some(read + rest.left()?))
    }

    /// Number of bytes of the complete lines at the beginning of the window.
    pub(super) fn whole_lines(&self) -> usize {
        let bytes = self.bytes();
        let last = || bytes.iter().rposition(|&byte| byte == b'\n');
        if self.is_last() { bytes.len() } else { last().map_or(0, |at| at + 1) }
    }

    /// Moves the beginning of the window by `len` bytes, which contain `line_ends` line ends. With
    /// a `len` of 0 the window grows.
    pub(super) fn advance(&mut self, len: usize, line_ends: u64) -> Result<(), Error> {
        self.bytes_before += len as u64;
        self.line_ends_before += line_ends;
        self.buffer.copy_within(len..self.filled, 0);
        self.filled -= len;
        self.fill(WINDOW)
    }

    /// Parses the banner and the size line. The window grows until it contains both.
    pub(super) fn header(&mut self) -> Result<MarketHeader, ParseProblem> {
        loop {
            let lines = &self.bytes()[..self.whole_lines()];
            match MarketHeader::parse(lines) {
                // The error is at the end of the window: the text continues behind it.
                Err(problem)
                    if !self.is_last() && problem.offset.is_none_or(|at| at >= lines.len()) =>
                {
                    self.fill(WINDOW)?;
                }
                parsed => return parsed,
            }
        }
    }

    /// Extends the first window to the whole text.
    pub(super) fn read_all(&mut self) -> Result<&[u8], Error> {
        while !self.is_last() {
            self.fill(usize::MAX)?;
        }
        Ok(self.bytes())
    }

    /// Reads bytes up to the end of the buffer, which is enlarged if it is full with less than
    /// `most` bytes.
    fn fill(&mut self, most: usize) -> Result<(), Error> {
        let (window, filled) = (self.reader.window_bytes.unwrap_or(WINDOW), self.filled);
        if self.rest.is_some() && filled >= most && filled == self.buffer.len() {
            let (path, line) = (self.path.to_owned(), Some(self.line_of(filled)));
            let message = format!(
                "a line, or the lines up to the sizes, have more than {most} bytes; remove \
                 comments or blanks"
            );
            return Err(Error::Market { path, line, message });
        }
        let Some(rest) = &mut self.rest else { return Ok(()) };
        if self.buffer.len() < window || filled == self.buffer.len() {
            let left = rest.left().and_then(|left| usize::try_from(left).ok());
            let limit = left.map_or(usize::MAX, |left| filled.saturating_add(left));
            let mut larger = memory::try_zeroed((2 * filled).max(window).min(limit.max(1)))?;
            larger[..filled].copy_from_slice(&self.buffer[..filled]);
            self.buffer = larger;
        }
        let read = rest.fill(&mut self.buffer[filled..]);
        let (count, is_end) = read.map_err(|error| Error::io(rest.action(), self.path, error))?;
        self.filled += count;
        if self.bytes_before + self.filled as u64 > self.reader.memory_limit {
            return Err(source::too_long(self.path, self.reader));
        }
        if is_end {
            self.rest = None;
        }
        Ok(())
    }

    /// Number of the line that contains a byte of the window, counted from 1.
    pub(super) fn line_of(&self, offset: usize) -> u64 {
        let bytes = self.bytes();
        self.line_ends_before + count_line_ends(&bytes[..offset.min(bytes.len())]) + 1
    }

    /// Converts a problem in the window to an error with the path and the line.
    pub(super) fn locate(&self, problem: ParseProblem) -> Error {
        problem.locate(self.path, self.bytes(), self.line_ends_before)
    }
}

/// Number of line ends.
pub(super) fn count_line_ends(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}
