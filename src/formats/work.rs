//! Work of an SpMV under a plan: bytes, slots, rows and lower bounds of its time.

use crate::ScalarKind;
use crate::analysis::Analysis;
use serde::{Deserialize, Serialize};

/// Work and memory traffic of one SpMV `y = A x` under a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Work {
    /// Bytes of the packed matrix. An SpMV reads all of them except the padding that its kernel
    /// skips.
    pub matrix_bytes: u64,
    /// Bytes of `x` and `y`, each counted one time.
    pub vector_bytes: u64,
    /// Bytes of intermediate data that an SpMV writes and reads again.
    pub scratch_bytes: u64,
    /// Stored slots, padding included and the COO part excluded.
    pub slots: u64,
    /// Of `slots`, those whose `x` is gathered individually; the others are part of a run of
    /// columns that is loaded whole.
    pub gathered: u64,
    /// Of `slots`, the dependent additions: entries past the first few of a row that is summed
    /// sequentially.
    pub dependent_adds: u64,
    /// Of `slots`, the masked ones: they may be padding, which the kernel tests before it
    /// multiplies.
    pub masked_slots: u64,
    /// Of `slots`, those in column-major arrays, past the columns that hardware prefetchers follow.
    pub strided_slots: u64,
    /// Number of entries outside of the slots: in a COO part, or in long rows.
    pub outside: u64,
    /// Number of row sums written.
    pub rows: u64,
    /// Scatter distance of the row sums: rows times the binary logarithm of the sorted window.
    pub scattered: u64,
    /// Number of starts: of slices, sections, jagged diagonals, tiles, chunks, segments and long
    /// rows, and rows of a COO part.
    pub starts: u64,
    /// Slots of the largest unit of work that no two threads can share.
    pub serial_slots: u64,
    /// Maximum number of slots that one thread of a GPU processes.
    pub critical_path: u64,
    /// Of `slots` and `outside`, those whose value is looked up by its code.
    pub decoded: u64,
    /// Of `rows`, those whose length no branch depends on.
    pub branchless: u64,
    /// Number of kernels that an SpMV on a GPU launches after the first, plus other enqueued
    /// operations, plus 1 if launches that could overlap do not.
    pub relaunches: u64,
    /// Number of blocks of a GPU kernel whose launches overlap; 0 for other kernels.
    pub overlapping: u64,
    /// Number of long rows, which are multiplied separately from the others in the same launch.
    pub long_rows: u64,
    /// True if a thread of a GPU multiplies several rows, each of a few slots.
    #[serde(default)]
    pub short_rows: bool,
}

impl Work {
    /// Masked slots whose `x` is gathered, if they are spread evenly.
    pub(crate) fn masked_gathers(&self) -> u64 {
        let share = self.gathered as f64 / self.slots.max(1) as f64;
        (self.masked_slots as f64 * share.min(1.0)) as u64
    }

    /// Total bytes of matrix, vectors and scratch.
    pub const fn bytes(&self) -> u64 {
        self.matrix_bytes.saturating_add(self.vector_bytes).saturating_add(self.scratch_bytes)
    }

    /// Padding ratio: stored slots over entries. 1 without padding and for a matrix without
    /// entries.
    pub fn padding_ratio(&self, nnz: u64) -> f64 {
        if nnz == 0 { 1.0 } else { (self.slots + self.outside) as f64 / nnz as f64 }
    }
}

/// Time of the critical path on an H200, in µs, if a slot takes `near` with the matrix in the L2,
/// and `far` more if it does not fit.
pub(crate) fn critical_path_us(work: &Work, near: f64, far: f64) -> f64 {
    /// Largest size of a matrix that stays in the L2, in bytes.
    const L2_BYTES: u64 = 30_000_000;
    let step = if work.matrix_bytes > L2_BYTES { near + far } else { near };
    work.critical_path as f64 * step
}

/// Megabytes of the packed matrix.
pub(crate) fn megabytes(work: &Work) -> f64 {
    millions(work.matrix_bytes)
}

/// A count in millions.
pub(crate) fn millions(count: u64) -> f64 {
    count as f64 / 1e6
}

/// Number of `slots` that are not in a whole vector of contiguous columns, if `share` of the
/// entries are contiguous.
pub(crate) fn gathered(slots: u64, share: f64) -> u64 {
    /// Lanes of the narrowest vector: all of them must be contiguous.
    const LANES: i32 = 8;
    (slots as f64 * (1.0 - share.powi(LANES))) as u64
}

/// Columns of a column-major array that the prefetchers follow: each is two streams, and the
/// prefetchers of current cores follow about a dozen.
pub(crate) const STREAMS: u32 = 6;

/// Scatter distance of `rows` sorted within windows of `window`; see [`Work::scattered`].
pub(crate) fn scattered(rows: u64, window: u64) -> u64 {
    rows * u64::from(window.clamp(1, rows.max(1)).ilog2())
}

/// Bytes of `x` and `y`.
pub(crate) fn vector_bytes(analysis: &Analysis, scalar: ScalarKind) -> u64 {
    (analysis.rows.nrows as u64 + analysis.rows.ncols as u64) * scalar.size() as u64
}

/// Bytes of one slot: a column index and a value.
pub(crate) const fn slot_bytes(scalar: ScalarKind) -> u64 {
    size_of::<u32>() as u64 + scalar.size() as u64
}
