//! Packing on a GPU, from CSR arrays in its memory. The buffers are the same, bit for bit, as those
//! of a matrix packed on the host.
//!
//! A matrix takes about fifteen launches and, unless values are packed, two synchronisations:
//!
//! 1. The rows are sorted and the long rows counted.
//! 2. A warp per slice, or per portion of a wide slice, chooses how the slice is stored.
//! 3. Slices with the same slots are matched in a hash table.
//! 4. Prefix sums give every slice its position.
//! 5. The host reads the sums and allocates the arrays, and the slices are written.

mod order;
mod slices;
mod values;
mod wide;

use super::constants::{COUNT_HASH_COLLISION, COUNT_PORTIONS, COUNT_RELATIVE};
use super::cuda::{DevicePsell, PsellBuffers};
use super::index::{ALIGNMENT, LANES};
use super::order::Order;
use super::{Packing, ValueEncoding};
use crate::device::{Buffer, CsrSource, Ptr, SCAN, WorkingMemory};
use crate::formats::device_sorting::SORT;
use crate::{Error, Scalar};
use std::mem::offset_of;
use wide::Chosen;

/// Packs a matrix in GPU memory. `None` if the host has to pack it, because it is too large for the
/// addresses of slices, because different slots have the same hash, or because values are to be
/// stored in a narrower precision.
///
/// # Errors
///
/// Errors of allocation, launches and kernel compilation.
pub(super) fn pack<T: Scalar>(
    a: &CsrSource<T>,
    order: Order,
    packing: Packing,
) -> Result<Option<DevicePsell<T>>, Error> {
    if !supports(packing) {
        return Ok(None);
    }
    let split = packing.split;
    Packer { work: WorkingMemory::new(a.gpu, scratch_bytes(a, split))?, a, split }
        .pack(order, packing)
}

/// Kernel files for packing.
pub(super) const MODULES: [&str; 4] = [SORT, "psell_pack_rows", "psell_pack_slices", SCAN];

/// True if a GPU packs so: offsets are copied unchanged, and values are not narrowed.
pub(super) fn supports(packing: Packing) -> bool {
    size_of::<usize>() == size_of::<u64>() && !matches!(packing.values, ValueEncoding::Narrow(_))
}

/// Scratch memory that is sufficient for most matrices, in bytes.
fn scratch_bytes<T: Scalar>(a: &CsrSource<T>, split: u32) -> usize {
    const ROW: usize = size_of::<u32>();
    // Encodings, hashes, units of two arrays, owners, and two to four places of the hash table.
    const SLICE: usize = 16 + 8 + 2 * 8 + 4 + 4 * (8 + 4);
    const SMALL: usize = 1 << 16;
    let portions = wide::most_portions(a.nrows, a.col_idx.len(), split);
    a.nrows * ROW + a.nrows.div_ceil(LANES) * SLICE + wide::bytes(portions) + SMALL
}

/// Counts and sums that are known before anything is written. The kernels use the same layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct PackingCounts {
    value_units: u64,
    index_units: u64,
    long_rows: u64,
    long_pieces: u64,
    long_entries: u64,
    /// Not zero if a slice is not diagonal.
    relative: u64,
    /// Not zero if slices with the same hash have different slots.
    hash_collision: u64,
    /// Number of portions of wide slices.
    portions: u64,
}

const _: () = {
    assert!(offset_of!(PackingCounts, relative) == COUNT_RELATIVE * size_of::<u64>());
    assert!(offset_of!(PackingCounts, hash_collision) == COUNT_HASH_COLLISION * size_of::<u64>());
    assert!(offset_of!(PackingCounts, portions) == COUNT_PORTIONS * size_of::<u64>());
};

impl PackingCounts {
    const NOTHING: Self = Self {
        value_units: 0,
        index_units: 0,
        long_rows: 0,
        long_pieces: 0,
        long_entries: 0,
        relative: 0,
        hash_collision: 0,
        portions: 0,
    };

    /// Position of the first number of the long rows.
    const LONG: usize = 2;

    /// True if they fit the fields of headers and pieces.
    fn fits(&self) -> bool {
        // One unit is added behind the last value.
        let most = u64::from(u32::MAX);
        self.hash_collision == 0
            && self.value_units < most
            && self.index_units < most
            && self.long_pieces < most
    }
}

/// A matrix that is being packed.
struct Packer<'a, T: Scalar> {
    work: WorkingMemory,
    a: &'a CsrSource<T>,
    /// Rows with more entries are long rows, stored outside of the slices.
    split: u32,
}

impl<T: Scalar> Packer<'_, T> {
    fn pack(&self, order: Order, packing: Packing) -> Result<Option<DevicePsell<T>>, Error> {
        let Self { work, a, .. } = self;
        let counts_ptr = work.cleared::<u64>(size_of::<PackingCounts>() / size_of::<u64>())?;
        let perm = self.order(order)?;
        let perm_ptr = perm.as_ref().map_or(Ptr::NULL, Buffer::ptr);
        let coder = self.coder(packing.values)?;
        let long_sums = self.count_long(counts_ptr.add(PackingCounts::LONG))?;
        let chosen = self.choose(perm_ptr, coder.size() as u32, counts_ptr)?;
        let counts = self.read_counts(counts_ptr)?;
        if !counts.fits() {
            return Ok(None);
        }
        let words = counts.index_units as usize * ALIGNMENT / size_of::<u32>();
        // Kernels may load behind the last value for lanes without an entry.
        let units = counts.value_units as usize + usize::from(counts.value_units > 0);
        let (index, values) =
            self.allocate(&coder, words, units * ALIGNMENT / coder.size().max(1))?;
        let table = self.table(&coder)?;
        let portions = counts.portions as usize;
        self.write_slots(&chosen, index.ptr(), portions)?;
        self.write(
            &chosen,
            (perm_ptr, packing.group),
            index.ptr(),
            (&values, &table),
            (counts_ptr, portions),
        )?;
        let long = self.long(&counts, long_sums, &coder, &table)?;
        let dictionary = a.gpu.upload(&coder.into_dictionary())?;
        // Waits for all launches.
        if self.read_counts(counts_ptr)?.hash_collision != 0 {
            return Ok(None);
        }
        let Chosen { headers, skip, .. } = chosen;
        let buffers = PsellBuffers {
            headers,
            values,
            dictionary,
            index,
            perm,
            skip: long.is_some().then_some(skip),
            long,
        };
        let shape = (a.nrows, a.ncols);
        let arrangement = (packing.group as usize, packing.warps);
        DevicePsell::from_buffers(a.gpu, shape, arrangement, buffers, counts.relative == 0)
            .map(Some)
    }

    /// Reads the counts of the kernels so far. Waits for them.
    fn read_counts(&self, counts: Ptr<u64>) -> Result<PackingCounts, Error> {
        let mut read = [PackingCounts::NOTHING];
        self.work.read(counts.cast::<PackingCounts>(), &mut read)?;
        Ok(read[0])
    }

    fn nrows(&self) -> u32 {
        // Row numbers have 32 bits.
        self.a.nrows as u32
    }

    fn ncols(&self) -> u32 {
        // There are at most 2³² columns, which are compared with rows.
        u32::try_from(self.a.ncols).unwrap_or(u32::MAX)
    }

    fn slices(&self) -> usize {
        self.a.nrows.div_ceil(LANES)
    }

    /// Row offsets in the type of the kernels.
    fn row_ptr(&self) -> Ptr<u64> {
        self.a.row_ptr.ptr().cast()
    }
}

#[cfg(test)]
mod tests;
