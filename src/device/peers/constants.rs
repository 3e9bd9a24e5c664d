//! Constants of communication among GPUs. `build.rs` writes them to the header `constants.cuh`, in
//! the namespace `peers`.

/// Words of a neighbour in the table of an exchange.
pub(super) const NEIGHBOUR: usize = 4;

/// Words of the table of sums in front of the addresses of the parts, and words of a part.
pub(super) const SUMS_HEAD: usize = 11;
pub(super) const SUMS_PART: usize = 2;
