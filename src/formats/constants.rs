//! Constants of the services for all formats. `build.rs` writes them to the header
//! `constants.cuh`, in the namespace `formats`.

/// Slots of a unit of an update, which are written together: a sector of 32 bytes in f32.
pub(super) const UNIT: usize = 8;

/// Marks a slot without an entry.
pub(super) const NONE: u32 = u32::MAX;

/// Values that a thread scatters.
pub(super) const PER_THREAD: usize = 8;

/// Bytes per column of the vectors that are copied to row-major order at a time.
pub(super) const ROW_MAJOR_BYTES: usize = 64;
