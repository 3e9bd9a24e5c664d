//! Constants of the kernels of CSR. `build.rs` writes them to the header
//! `constants.cuh`, in the namespace `csr`.

/// Entries of a row that a lane of a GPU loads together. Few, since rows are short and their lanes
/// share them; a launch overlaps with the previous one only if no lane has more.
pub(super) const LANE_ENTRIES: u64 = 4;

/// Part of the capacity of a chunk, as a divisor, that is reserved for cuts that move back and for
/// loads of four entries that begin up to three early.
pub(super) const RESERVE: u32 = 16;
