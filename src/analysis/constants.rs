//! Constants of value statistics that kernels use. `build.rs` writes them to the header
//! `constants.cuh`, in the namespace `analysis`.

/// Largest number of values of a dictionary: the range of an 8-bit code.
pub(crate) const DICTIONARY: usize = 256;

/// Slots of a hash table of values: four times the limit, so that a search seldom meets a second
/// key. A power of two.
pub(crate) const VALUE_SLOTS: usize = 4 * DICTIONARY;
