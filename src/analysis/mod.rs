//! Features of a matrix: a pass over its row offsets, as many of its values as necessary, and
//! samples of its columns. Every choice of a format reads an [`Analysis`] and never the matrix.
//! Features that no choice reads are measured only on request: [`Pattern`], [`Fingerprint`] and
//! [`Symmetry`].

mod blocks;
mod constants;
mod contiguity;
mod distinct;
mod fingerprint;
mod frequency;
mod gpu;
mod gpu_columns;
mod histogram;
mod locality;
mod pattern;
mod probes;
mod rows;
mod sample;
mod sampler;
mod slices;
mod structure;
mod symmetry;
pub(crate) mod value_set;

pub use blocks::BlockFill;
use contiguity::Contiguity;
pub use distinct::Distinct;
pub use fingerprint::{Fingerprint, ParseFingerprintError};
pub(crate) use gpu_columns::GpuColumns;
pub use histogram::{Bin, Histogram};
pub use locality::Reuse;
pub use pattern::Pattern;
pub(crate) use probes::{FormatProbe, Measure, Probes};
pub(crate) use rows::ratio;
pub use rows::{Quantiles, RowStats, TAIL_MULTIPLES};
pub(crate) use sample::{PendingSample, Sample};
pub(crate) use sampler::Sampler;
pub(crate) use slices::{SliceSums, SortedSlices};
pub use structure::Structure;
use structure::ValueStatistics;
pub use symmetry::Symmetry;

use crate::device::cpu::{prepare_threads, run_all};
use crate::matrix::CsrView;
use crate::trace::span;
use crate::{Error, Scalar, memory};

/// Number of rows or entries from which on an analysis uses all threads. A smaller one runs as a
/// few single-threaded tasks: a thread pool takes some 100 µs to wake and to wait for.
pub(crate) const PARALLEL_MIN: usize = 1 << 19;

/// Least number of items per task of the analysis of `size` rows or entries: all of them below
/// [`PARALLEL_MIN`], else `least`.
pub(crate) fn task_size(size: usize, least: usize) -> usize {
    if size < PARALLEL_MIN { usize::MAX } else { least }
}

/// Measured features of one matrix: the same on any number of threads. The analysis of a
/// large matrix takes as long as a few SpMVs, that of a small one some hundred µs.
///
/// ```
/// # use sparseop::{analysis::Analysis, matrix::CsrMatrix};
/// // 3 0 1
/// // 0 3 0
/// let a = CsrMatrix::try_new(2, 3, vec![0, 2, 3], vec![0, 2, 1], vec![3.0, 1.0, 3.0])?;
/// let analysis = Analysis::of(a.view());
/// assert_eq!(analysis.row_lengths, [2, 1]);
/// assert_eq!((analysis.rows.max, analysis.rows.mean), (2, 1.5));
/// assert_eq!((analysis.structure.all_ones, analysis.structure.shifted), (false, 1.0 / 3.0));
/// # Ok::<(), sparseop::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Analysis {
    /// Statistics of the row lengths.
    pub rows: RowStats,
    /// Length of every row, in row order. Empty if a GPU has measured the matrix.
    pub row_lengths: Vec<u32>,
    /// Longest rows of slices of sorted rows.
    pub(crate) slices: SortedSlices,
    /// Column contiguity, values and reuse distances.
    pub structure: Structure,
    /// Measurements of the storage formats.
    pub(crate) probes: Probes,
}

impl Analysis {
    /// Measures `a`.
    pub fn of<T: Scalar>(a: CsrView<'_, T>) -> Self {
        T::analyze(a)
    }

    /// Checks that there is memory for an analysis of `a`: it takes some bytes for each row, and
    /// for each group of columns on every thread.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub fn check_memory<T: Scalar>(a: CsrView<'_, T>) -> Result<(), Error> {
        prepare_threads();
        let of_rows = a.nrows().saturating_mul(size_of::<u64>());
        memory::check_room(of_rows.saturating_add(Reuse::stamp_bytes(a.ncols(), a.nnz())))
    }

    /// Measures `a`, also what the storage formats measure themselves.
    pub(crate) fn with_probes<T: Scalar>(
        a: CsrView<'_, T>,
        formats: &[Option<FormatProbe>],
    ) -> Self {
        let _span = span!(DEBUG, "analyze", rows = a.nrows(), cols = a.ncols(), nnz = a.nnz());
        if a.nnz().max(a.nrows()) < PARALLEL_MIN {
            Self::measured(a, formats)
        } else {
            // Runs in the pool, whose threads split the tasks further.
            rayon::scope(|_| Self::measured(a, formats))
        }
    }

    fn measured<T: Scalar>(a: CsrView<'_, T>, formats: &[Option<FormatProbe>]) -> Self {
        const BORROWED: &str = "samples of a matrix in host memory are borrowed";
        let (mut rows, mut row_lengths, mut slices) = Default::default();
        let mut probes = Probes::default();
        let (mut reuse, mut contiguity, mut values) = Default::default();
        // Each of two threads starts with one half, the longer task first, and continues with the
        // rest of the other.
        run_all([
            &mut || {
                let pass = rows::pass(a.row_ptr());
                rows = RowStats::from_histogram(a.ncols(), pass.histogram, pass.changes);
                (row_lengths, slices) = (pass.row_lengths, pass.slices);
                let sampler = Sampler::Host(a.columns());
                probes =
                    probes::begin(formats, sampler, &rows).and_then(Probes::of).expect(BORROWED);
            },
            &mut || contiguity = Contiguity::of(a.columns()),
            &mut || reuse = Reuse::of(a.ncols(), a.col_idx()),
            &mut || values = ValueStatistics::of(a.values()),
        ]);
        let structure = Structure::new(contiguity, values, reuse);
        let sampler = Sampler::Host(a.columns());
        probes.measure(formats, sampler, &rows, &structure).expect(BORROWED);
        Self { rows, row_lengths, slices, structure, probes }
    }

    /// Analysis of a matrix with this pattern and the values of `a`.
    pub(crate) fn with_values_of<T: Scalar>(&self, a: CsrView<'_, T>) -> Self {
        let structure = self.structure.with_values(a.values());
        Self { structure, ..self.clone() }
    }
}

#[cfg(test)]
mod tests;
