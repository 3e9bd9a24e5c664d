//! Constants of the kernels of tiles. `build.rs` writes them to the header
//! `constants.cuh`, in the namespace `tiles`.

/// Slots of a group: with 4-byte scalars a sector of GPU memory, the smallest unit it writes whole.
pub(super) const GROUP: usize = 8;

/// Position of a padded slot: beyond every chunk.
pub(super) const UNUSED: u16 = u16::MAX;

/// Maximum length of a chunk: its products in `f64` take 128 KiB of shared memory.
pub(super) const MAX_CHUNK: u32 = 16384;

/// Threads of the blocks that multiply.
pub(super) const MULTIPLY_THREADS: u32 = 1024;

/// Threads of the blocks that sum.
pub(super) const SUM_THREADS: u32 = 512;

/// Bytes of scalars that a thread processes at a time.
pub(super) const RUN_BYTES: usize = 16;
