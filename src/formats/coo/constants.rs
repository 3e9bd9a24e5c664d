//! Constants of the kernels of COO. `build.rs` writes them to the header
//! `constants.cuh`, in the namespace `coo`.

/// Entries per GPU block.
pub(super) const CHUNK: usize = 2048;
