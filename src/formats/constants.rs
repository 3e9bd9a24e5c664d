//! Constants of the services for all formats. `build.rs` writes them to the header
//! `constants.cuh`, in the namespace `formats`.

/// Slots of a sector, which an update writes whole: 32 bytes in f32.
pub(super) const SECTOR: usize = 8;

/// Marks a slot without an entry.
pub(super) const NONE: u32 = u32::MAX;

/// Values that a thread scatters.
pub(super) const PER_THREAD: usize = 8;

/// Bytes per column of the vectors that are copied to row-major order at a time.
pub(super) const ROW_MAJOR_BYTES: usize = 64;

/// Rows that a block sorts in shared memory.
pub(super) const SORTED: usize = 8192;

/// Bits of the length of a row that a block sorts in shared memory.
pub(super) const LENGTH_BITS: u32 = 18;

/// Largest length of a row that a block sorts in shared memory.
pub(super) const MAX_LENGTH: u32 = (1 << LENGTH_BITS) - 1;

/// Values per digit for sorting larger windows.
pub(super) const DIGITS: usize = 256;

/// Rows of a tile per thread, for sorting larger windows.
pub(super) const DIGIT_ROUNDS: usize = 16;

/// Entries of a row that a thread copies to their slots.
pub(super) const ROW_PORTION: usize = 64;

/// Number of rows whose loads a thread has in flight together, where rows have few slots.
pub(super) const ROWS_TOGETHER: u32 = 4;
