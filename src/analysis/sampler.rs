//! Samples of the positions of entries, of a matrix in host memory or in that of a GPU.

use super::gpu::GpuColumns;
use crate::Error;
use crate::matrix::CsrColumns;
use std::borrow::Cow;
use std::ops::Range;

/// Row offsets and columns of a matrix, of which samples are read. In host memory samples are
/// borrowed; from the memory of a GPU they are copied.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Sampler<'a> {
    /// In host memory.
    Host(CsrColumns<'a>),
    /// In the memory of a GPU.
    Gpu(&'a GpuColumns<'a>),
}

/// Ranges of an array.
#[derive(Debug)]
pub(crate) struct Sample<'a, E: Clone> {
    elements: Cow<'a, [E]>,
    /// The ranges, in `elements`.
    ranges: Vec<Range<usize>>,
}

impl<'a> Sampler<'a> {
    /// Number of rows.
    pub(crate) fn nrows(self) -> usize {
        match self {
            Self::Host(a) => a.nrows(),
            Self::Gpu(a) => a.nrows,
        }
    }

    /// Number of columns.
    pub(crate) fn ncols(self) -> usize {
        match self {
            Self::Host(a) => a.ncols(),
            Self::Gpu(a) => a.ncols,
        }
    }

    /// Number of entries.
    pub(crate) fn nnz(self) -> usize {
        match self {
            Self::Host(a) => a.nnz(),
            Self::Gpu(a) => a.nnz(),
        }
    }

    /// Ranges of the row offsets.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(crate) fn offsets(self, ranges: Vec<Range<usize>>) -> Result<Sample<'a, usize>, Error> {
        match self {
            Self::Host(a) => Ok(Sample { elements: a.row_ptr().into(), ranges }),
            Self::Gpu(a) => a.offsets(&ranges),
        }
    }

    /// Ranges of the columns.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(crate) fn columns(self, ranges: Vec<Range<usize>>) -> Result<Sample<'a, u32>, Error> {
        match self {
            Self::Host(a) => Ok(Sample { elements: a.col_idx().into(), ranges }),
            Self::Gpu(a) => a.columns(&ranges),
        }
    }

    /// Ranges of the entries of ranges of rows.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(crate) fn entries(
        self,
        rows: impl Iterator<Item = Range<usize>>,
    ) -> Result<Vec<Range<usize>>, Error> {
        let ends = rows.flat_map(|rows| [rows.start..rows.start + 1, rows.end..rows.end + 1]);
        let ends = self.offsets(ends.collect())?;
        let range = |i: usize| ends.get(2 * i)[0]..ends.get(2 * i + 1)[0];
        Ok((0..ends.len() / 2).map(range).collect())
    }
}

impl<E: Clone> Sample<'_, E> {
    /// Copies of ranges, which follow one another in `elements`.
    pub(super) fn of_copies(elements: Vec<E>, ranges: &[Range<usize>]) -> Self {
        let mut end = 0;
        let own = |range: &Range<usize>| {
            let start = end;
            end += range.len();
            start..end
        };
        Self { ranges: ranges.iter().map(own).collect(), elements: Cow::Owned(elements) }
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Elements of range number `i`.
    pub(crate) fn get(&self, i: usize) -> &[E] {
        &self.elements[self.ranges[i].clone()]
    }
}
