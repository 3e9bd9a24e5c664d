//! Constants of all kernels. `build.rs` writes them to the header
//! `constants.cuh`, in the namespace `device`.

/// Default number of threads per block.
pub(crate) const BLOCK: u32 = 256;

/// Threads per warp.
pub(crate) const WARP: u32 = 32;

/// Bytes of one word in each bank of shared memory.
pub(crate) const BANK_LINE: usize = 128;

/// Column of a padded slot. No matrix has it, because
/// [`MAX_DIMENSION`](crate::matrix::MAX_DIMENSION) is smaller.
pub(crate) const PADDING: u32 = u32::MAX;

/// Number of shares in which the blocks of a launch are counted for the residency in the L2.
pub(crate) const SHARES: u32 = 16;

/// Added to the shares that stay, which are fewer, if results are stored evict-first.
pub(crate) const STREAM_RESULTS: u32 = 32;

/// Columns that a thread checks.
pub(crate) const CHECKED: usize = 8;

/// Numbers per thread, for prefix sums.
pub(crate) const SCANNED: usize = 8;
