//! Samples of the positions of entries, of a matrix in host memory or in that of a GPU.

use super::frequency::{Frequencies, FrequencyCounts, Runs};
use super::gpu_columns::GpuColumns;
use super::sample::{PendingSample, Sample};
use crate::Error;
use crate::matrix::CsrColumns;
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
    pub(crate) fn offsets(
        self,
        ranges: Vec<Range<usize>>,
    ) -> Result<PendingSample<'a, usize>, Error> {
        match self {
            Self::Host(a) => Ok(PendingSample::of(a.row_ptr(), ranges)),
            Self::Gpu(a) => a.offsets(ranges),
        }
    }

    /// Ranges of the columns.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(crate) fn columns(
        self,
        ranges: Vec<Range<usize>>,
    ) -> Result<PendingSample<'a, u32>, Error> {
        match self {
            Self::Host(a) => Ok(PendingSample::of(a.col_idx(), ranges)),
            Self::Gpu(a) => a.columns(ranges),
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
        Ok(Self::between(&self.ends(rows)?.wait()?).collect())
    }

    /// First and last offsets of ranges of rows.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(crate) fn ends(
        self,
        rows: impl Iterator<Item = Range<usize>>,
    ) -> Result<PendingSample<'a, usize>, Error> {
        let ends = rows.flat_map(|rows| [rows.start..rows.start + 1, rows.end..rows.end + 1]);
        self.offsets(ends.collect())
    }

    /// Ranges of entries between these first and last offsets.
    pub(crate) fn between(ends: &Sample<'_, usize>) -> impl Iterator<Item = Range<usize>> {
        (0..ends.len() / 2).map(|i| ends.get(2 * i)[0]..ends.get(2 * i + 1)[0])
    }

    /// Frequencies of the columns of a matrix with at least two runs of entries, computed by the
    /// returned function. A GPU that has the matrix in its memory begins before.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(crate) fn frequencies(self) -> Result<impl FnOnce() -> Result<Frequencies, Error>, Error> {
        let runs = Runs::of(self.nnz());
        let on_gpu = match self {
            Self::Host(_) => None,
            Self::Gpu(a) => Some(a.begin_frequencies(runs)?),
        };
        Ok(move || {
            let counts = match (self, on_gpu) {
                (Self::Gpu(a), Some(counts)) => a.work.read_vec(counts, 1)?[0],
                (Self::Host(a), _) => FrequencyCounts::on_host(a.col_idx(), a.ncols(), runs),
                (Self::Gpu(_), None) => unreachable!("the GPU has begun"),
            };
            Ok(Frequencies::new(counts, runs))
        })
    }
}
