//! A `coordinate` file, parsed in pieces by several processes.

use super::coordinate::{above, parse_chunk};
use super::header::{MarketHeader, MarketLayout};
use super::{ParseProblem, excerpt};
use crate::{Error, Scalar, listed};
use std::path::Path;

/// Header of a `coordinate` file: parses pieces of its other lines.
#[derive(Debug, Clone, Copy)]
pub struct MarketPieces {
    header: MarketHeader,
}

/// Entries of some lines, in the order of the lines, each entry of a symmetric matrix followed by
/// its mirror image.
#[derive(Debug)]
pub struct MarketEntries<T> {
    /// Row of each entry.
    pub rows: Vec<u32>,
    /// Column of each entry.
    pub columns: Vec<u32>,
    /// Value of each entry.
    pub values: Vec<T>,
    /// Number of lines with an entry.
    pub lines: u64,
    /// Number of listed entries above the diagonal of a symmetric file.
    pub above: u64,
}

impl MarketPieces {
    /// Parses the banner and the size line. `head` is the beginning of the file: all of it, or at
    /// least one byte more than the size line.
    ///
    /// # Errors
    ///
    /// [`Error::Market`], also for an `array` file.
    pub fn parse(path: &Path, head: &[u8]) -> Result<Self, Error> {
        let header = MarketHeader::parse(head).map_err(|problem| problem.locate(path, head, 0))?;
        if header.layout == MarketLayout::Array {
            let message = "an array file is not read in pieces; write it as coordinate";
            return Err(ParseProblem::at(0, message).locate(path, head, 0));
        }
        Ok(Self { header })
    }

    /// Numbers of rows and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.header.nrows, self.header.ncols)
    }

    /// Number of entries that the size line declares.
    pub fn declared(&self) -> u64 {
        self.header.declared
    }

    /// Offset of the first line after the size line.
    pub fn body(&self) -> usize {
        self.header.body
    }

    /// Parses complete lines.
    ///
    /// # Errors
    ///
    /// [`Error::Market`] with the first invalid line.
    pub fn entries<T: Scalar>(&self, path: &Path, lines: &[u8]) -> Result<MarketEntries<T>, Error> {
        T::market_entries(self, path, lines)
    }

    pub(crate) fn entries_impl<T: Scalar>(
        &self,
        path: &Path,
        lines: &[u8],
    ) -> Result<MarketEntries<T>, Error> {
        let mut entries = Vec::new();
        let (lines_read, problem) = parse_chunk(lines, 0..lines.len(), &self.header, &mut entries);
        if let Some(ParseProblem { message, offset, other, .. }) = problem {
            let line = lines[offset.unwrap_or(0)..].split(|&byte| byte == b'\n').next();
            let message = format!("in the line {}: {message}", excerpt(line.unwrap_or_default()));
            return Err(ParseProblem { other, ..ParseProblem::new(message) }.of_file(path));
        }
        Ok(MarketEntries {
            rows: listed(entries.iter().map(|entry| entry.row))?,
            columns: listed(entries.iter().map(|entry| entry.col))?,
            values: listed(entries.iter().map(|entry| entry.value))?,
            lines: lines_read,
            above: above(&self.header, &entries),
        })
    }
}
