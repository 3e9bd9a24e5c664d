//! Constants of the kernels of cache blocks. `build.rs` writes them to the header
//! `constants.cuh`, in the namespace `blocked`.

/// Consecutive entries of a lane.
pub(super) const LANE: usize = 8;

/// Batches of a piece.
pub(super) const BATCHES: usize = 2;

/// Threads of a block that stages `x` in shared memory.
pub(super) const WINDOW_THREADS: u32 = 1024;

/// Alignment of a window's first column, in columns, so that a window is loaded by 16 bytes.
pub(super) const PANEL_ALIGN: u32 = 8;

/// Entries of a panel per column in its span: a panel gets no further row beyond
/// [`MOST_DENSITY`], nor beyond this number if the row would need another window. On an H200 panels
/// of 2 took a tenth longer than those of 4, and of 8 hardly less.
pub(super) const LEAST_DENSITY: u64 = 4;

/// Entries of a panel per column in its span beyond which it gets no further row.
pub(super) const MOST_DENSITY: u64 = 8;

/// Threads of the block that cuts rows into panels.
pub(super) const PANEL_THREADS: u32 = 1024;

/// Numbers of entries of a column that are distinguished where a GPU chooses the hot columns.
pub(super) const BINS: u32 = 1 << 16;

/// Marks a column that is not hot, in place of its number among the hot ones.
pub(super) const COLD: u32 = u32::MAX;
