//! Constants of the kernels of cache blocks. `build.rs` writes them to the header
//! `constants.cuh`, in the namespace `blocked`.

/// Consecutive entries of a lane.
pub(super) const LANE: usize = 8;

/// Batches of a piece.
pub(super) const BATCHES: usize = 2;

/// Threads of a block that stages `x` in shared memory.
pub(super) const WINDOW_THREADS: u32 = 1024;
