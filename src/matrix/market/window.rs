//! Text of a file, of which a window is in memory at a time.

use super::header::MarketHeader;
use super::source::{self, ByteStream};
use super::{ParseProblem, Reader};
use crate::{Error, memory};
use std::path::Path;

/// Bytes of a window, unless a line is longer.
const WINDOW: usize = 1 << 24;

/// A text whose lines are parsed in windows. A short one is a single window.
pub(super) struct WindowedText<'a> {
    /// The window is its first `filled` bytes, unless the text is given.
    buffer: Vec<u8>,
    filled: usize,
    given: Option<&'a [u8]>,
    /// The bytes after the window. None at the end of the text.
    rest: Option<Box<dyn ByteStream + 'a>>,
    /// Bytes and ends of lines before the window.
    before: (u64, u64),
    path: &'a Path,
    reader: &'a Reader<'a>,
}

impl<'a> WindowedText<'a> {
    /// A text in memory.
    pub(super) fn of(text: &'a [u8], reader: &'a Reader<'a>) -> Self {
        let (buffer, path) = (Vec::new(), Path::new(""));
        Self { buffer, filled: 0, given: Some(text), rest: None, before: (0, 0), path, reader }
    }

    /// The beginning of a file. An archive is a single window.
    pub(super) fn open(path: &'a Path, reader: &'a Reader<'a>) -> Result<Self, Error> {
        let (buffer, rest) = source::open(path, reader)?;
        let filled = buffer.len();
        let mut text = Self { buffer, filled, given: None, rest, before: (0, 0), path, reader };
        text.fill()?;
        Ok(text)
    }

    /// A text of unknown length.
    #[cfg(test)]
    pub(super) fn streamed(text: &'a [u8], reader: &'a Reader<'a>) -> Result<Self, Error> {
        let rest = Some(source::sequential(text, "read"));
        let mut text = Self { rest, given: None, ..Self::of(&[], reader) };
        text.fill()?;
        Ok(text)
    }

    /// The bytes of the window.
    pub(super) fn bytes(&self) -> &[u8] {
        self.given.unwrap_or(&self.buffer[..self.filled])
    }

    /// True if the text ends with the window.
    pub(super) fn is_last(&self) -> bool {
        self.rest.is_none()
    }

    /// Bytes before the window.
    pub(super) fn before(&self) -> u64 {
        self.before.0
    }

    /// Bytes of the whole text, if they are known.
    pub(super) fn len(&self) -> Option<u64> {
        let there = self.before.0 + self.bytes().len() as u64;
        self.rest.as_ref().map_or(Some(there), |rest| Some(there + rest.left()?))
    }

    /// End of the lines that are whole.
    pub(super) fn whole_lines(&self) -> usize {
        let bytes = self.bytes();
        let last = || bytes.iter().rposition(|&byte| byte == b'\n');
        if self.is_last() { bytes.len() } else { last().map_or(0, |at| at + 1) }
    }

    /// Moves the window behind the first `len` bytes, which have so many ends of lines. If they are
    /// none, the window grows.
    pub(super) fn advance(&mut self, len: usize, line_ends: u64) -> Result<(), Error> {
        self.before.0 += len as u64;
        self.before.1 += line_ends;
        self.buffer.copy_within(len..self.filled, 0);
        self.filled -= len;
        self.fill()
    }

    /// Parses the first lines. The window grows until it has all of them.
    pub(super) fn header(&mut self) -> Result<MarketHeader, ParseProblem> {
        loop {
            let lines = &self.bytes()[..self.whole_lines()];
            match MarketHeader::parse(lines) {
                // It is the end of the window that is wrong.
                Err(problem)
                    if !self.is_last() && problem.offset.is_none_or(|at| at >= lines.len()) =>
                {
                    self.fill()?;
                }
                parsed => return parsed,
            }
        }
    }

    /// Reads all of the text, for what needs it whole. The window is the first one.
    pub(super) fn read_all(&mut self) -> Result<&[u8], Error> {
        while !self.is_last() {
            self.fill()?;
        }
        Ok(self.bytes())
    }

    /// Fills the window, which grows if it is full.
    fn fill(&mut self) -> Result<(), Error> {
        let Some(rest) = &mut self.rest else { return Ok(()) };
        let (window, filled) = (self.reader.window_bytes.unwrap_or(WINDOW), self.filled);
        if self.buffer.len() < window || filled == self.buffer.len() {
            let left = rest.left().and_then(|left| usize::try_from(left).ok());
            // One byte more, so that the end is seen.
            let most = left.map_or(usize::MAX, |left| filled.saturating_add(left));
            let mut larger = memory::try_zeroed((2 * filled).max(window).min(most.max(1)))?;
            larger[..filled].copy_from_slice(&self.buffer[..filled]);
            self.buffer = larger;
        }
        let read = rest.fill(&mut self.buffer[filled..]);
        let (count, is_end) = read.map_err(|error| Error::io(rest.action(), self.path, error))?;
        self.filled += count;
        let known = self.before.0 + self.filled as u64;
        if known > self.reader.memory_limit {
            return Err(source::too_long(self.path, self.reader));
        }
        if is_end {
            self.rest = None;
        }
        Ok(())
    }

    /// Number of the line that holds a byte of the window, counted from 1.
    pub(super) fn line_of(&self, offset: usize) -> u64 {
        let bytes = self.bytes();
        self.before.1 + count_line_ends(&bytes[..offset.min(bytes.len())]) + 1
    }

    /// The error of the window, with the path and the line.
    pub(super) fn locate(&self, problem: ParseProblem) -> Error {
        problem.locate(self.path, self.bytes(), self.before.1)
    }
}

/// Number of ends of lines.
pub(super) fn count_line_ends(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}
