//! Work of a product under a plan: bytes, slots, rows and lower bounds of its time.

use crate::ScalarKind;
use crate::analysis::Analysis;
use serde::{Deserialize, Serialize};

/// What one product `y = A x` reads, writes and does under a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes of the packed matrix. A product reads all of them but the padding that its kernel skips.
    pub matrix_bytes: u64,
    /// Bytes of `x` and `y`, each once.
    pub vector_bytes: u64,
    /// Bytes of what a product writes and reads again itself.
    pub scratch_bytes: u64,
    /// Stored slots, padding included and the COO part excluded.
    pub slots: u64,
    /// Of `slots`, those whose `x` is gathered one by one; the others are part of a run of columns that is loaded whole.
    pub gathered: u64,
    /// Of `slots`, those that wait for the one before: entries past the first few of a row that is summed alone.
    pub chained: u64,
    /// Of `slots`, those that may be padding, so that the kernel looks before it multiplies.
    pub guarded: u64,
    /// Of `slots`, those in column-major arrays beyond the columns that are read side by side without effort.
    pub strided: u64,
    /// Entries in the COO part.
    pub tail: u64,
    /// Row sums written.
    pub rows: u64,
    /// How far row sums are written from one another: rows times the binary logarithm of the window that was sorted.
    pub scattered: u64,
    /// Slices, sections or jagged diagonals walked, and rows with entries in the COO part.
    pub groups: u64,
    /// Slots of the largest piece that no two threads can share.
    pub serial: u64,
    /// Slots that one thread of a GPU goes through at most.
    pub depth: u64,
    /// Of `slots` and `tail`, those whose value is looked up by its code.
    #[serde(default)]
    pub decoded: u64,
    /// Of `rows`, those whose length no branch depends on.
    #[serde(default)]
    pub branchless: u64,
    /// Kernels that a product on a GPU launches after the first, what else it enqueues, and 1 where launches that overlap cannot.
    #[serde(default)]
    pub relaunches: u64,
    /// Blocks of a kernel of a GPU whose launches overlap; none of others.
    #[serde(default)]
    pub overlapping: u64,
}

impl Traffic {
    /// Bytes of matrix, vectors and scratch together.
    pub const fn bytes(&self) -> u64 {
        self.matrix_bytes.saturating_add(self.vector_bytes).saturating_add(self.scratch_bytes)
    }

    /// Stored slots over entries: 1 without padding; also 1 for a matrix without entries.
    pub fn padding_ratio(&self, nnz: u64) -> f64 {
        if nnz == 0 { 1.0 } else { (self.slots + self.tail) as f64 / nnz as f64 }
    }
}

/// Slots of a row that a thread of a GPU loads together: `BATCH` in `kernels/common.cuh`.
pub(crate) const ROW_BATCH: u64 = 8;

/// Time of a chain of loads on a GPU, in µs: so many entries of a row, `batch` of them at a time, each
/// batch an index and what it points at. On an H200 a batch takes 0.5 µs where nothing else is done.
pub(crate) fn chain_us(entries: u64, batch: u64) -> f64 {
    const BATCH_US: f64 = 0.4;
    entries.div_ceil(batch) as f64 * BATCH_US
}

/// Of `slots`, how many are not in a whole vector of columns that follow one another, when `share` of the entries follow another.
pub(crate) fn gathered(slots: u64, share: f64) -> u64 {
    /// Lanes of the narrowest vector: all of them have to follow.
    const LANES: i32 = 8;
    (slots as f64 * (1.0 - share.powi(LANES))) as u64
}

/// Columns of a column-major array that are read side by side without effort: each is two streams, and the prefetchers of
/// current cores follow about a dozen.
pub(crate) const STREAMS: u32 = 6;

/// `rows` that were sorted within windows of `window`; see [`Traffic::scattered`].
pub(crate) fn scattered(rows: u64, window: u64) -> u64 {
    rows * u64::from(window.clamp(1, rows.max(1)).ilog2())
}

/// Bytes of `x` and `y`.
pub(crate) fn vector_bytes(analysis: &Analysis, scalar: ScalarKind) -> u64 {
    (analysis.rows.nrows as u64 + analysis.rows.ncols as u64) * scalar.size() as u64
}

/// Bytes of one slot of a column index and a value.
pub(crate) const fn slot_bytes(scalar: ScalarKind) -> u64 {
    size_of::<u32>() as u64 + scalar.size() as u64
}
