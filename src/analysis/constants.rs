//! Constants of the analysis that kernels use. `build.rs` writes them to the header
//! `constants.cuh`, in the namespace `analysis`.

/// Largest number of values of a dictionary: the range of an 8-bit code.
pub(crate) const DICTIONARY: usize = 256;

/// Bits of the number of a slot in a hash table of values.
pub(crate) const VALUE_SLOT_BITS: u32 = 10;

/// Slots of a hash table of values: four times the limit, so that a search seldom meets a second
/// key.
pub(crate) const VALUE_SLOTS: usize = 1 << VALUE_SLOT_BITS;

/// 2⁶⁴ over the golden ratio: multiplying by it spreads numbers over the upper bits (Knuth,
/// volume 3, 6.4).
pub(crate) const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Flag of a value that BF16 does not hold.
pub(crate) const NOT_BF16: u32 = 1;

/// Flag of a value that F16 does not hold.
pub(crate) const NOT_F16: u32 = 2;

/// Flag of a value that `f32` does not hold.
pub(crate) const NOT_F32: u32 = 4;

/// Rows of a block in the analysis on a GPU, a multiple of all measured windows.
pub(crate) const BLOCK_ROWS: usize = 4096;

/// Row lengths that are counted in a table; longer ones are listed.
pub(crate) const HISTOGRAM: usize = 2048;

/// Sums of slices: three for each pair of a slice and a window.
pub(crate) const SLICE_SUMS: usize = 21;

/// Entries per section of the sample of column contiguity.
pub(crate) const SECTION: usize = 128;

/// Columns of a group whose reuse is measured, as a power of two: 8 numbers are a 32-byte sector in
/// `f32`, a 64-byte line in `f64`.
pub(crate) const GROUP_BITS: u32 = 3;

/// 2¹⁶ over the golden ratio: multiplying by it distributes numbers over the upper bits (Knuth,
/// TAOCP 3, 6.4).
pub(crate) const GROUP_SPREAD: u16 = 0x9e37;

/// Number of classes of reuse distances, by binary logarithm: those within a window lie below
/// `2^CLASSES`.
pub(crate) const CLASSES: usize = 20;

/// Bits of a place in all windows.
pub(crate) const PLACE_BITS: u32 = 24;

/// Values per digit for sorting touches.
pub(crate) const TOUCH_DIGITS: usize = 256;

/// Touches per thread, for sorting touches.
pub(crate) const TOUCH_ROUNDS: usize = 16;

/// Consecutive entries that are sampled together for the frequencies of columns: a line of the
/// cache.
pub(crate) const FREQUENCY_RUN: usize = 16;

/// Numbers of times that a column may occur in a sample, from 0; the last one stands for more, too.
pub(crate) const FREQUENCIES: usize = 1024;
