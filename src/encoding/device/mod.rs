//! Packing on a GPU, from CSR arrays that are there: the same buffers, bit for bit, as uploading what the host packs.
//!
//! A matrix takes some fifteen launches and, without packed values, two waits: the rows are put in order and the long ones counted, a warp a
//! slice, or a part of a wide one, chooses how each is stored, slices with the same slots find one another in a hash table, running sums give every slice its place;
//! then the host, which is told the sums, allocates, and the slices are written.

mod order;
mod slices;
mod values;
mod wide;
mod work;

use super::cuda::{Parts, Uploaded};
use super::index::{LANES, UNIT};
use super::order::Order;
use super::{Packing, ValueEncoding};
use crate::device::{Buffer, Device, ForeignCsr, Gpu, Ptr};
use crate::matrix::CsrView;
use crate::{Error, Scalar};
use wide::Chosen;
use work::Work;

/// A matrix in CSR in the memory of a GPU.
#[derive(Debug)]
pub(crate) struct DeviceCsr<T> {
    pub(crate) gpu: Gpu,
    nrows: usize,
    ncols: usize,
    row_ptr: Buffer<usize>,
    col_idx: Buffer<u32>,
    values: Buffer<T>,
}

impl<T: Scalar> DeviceCsr<T> {
    /// Copies a matrix to the memory of a GPU.
    ///
    /// # Errors
    ///
    /// What allocating and copying give.
    pub(crate) fn upload(a: CsrView<'_, T>, gpu: Gpu) -> Result<Self, Error> {
        Ok(Self {
            gpu,
            nrows: a.nrows(),
            ncols: a.ncols(),
            row_ptr: gpu.upload(a.row_ptr())?,
            col_idx: gpu.upload(a.col_idx())?,
            values: gpu.upload(a.values())?,
        })
    }

    /// A matrix that is there already, in arrays of somebody else; of `a`, which is the same, the offsets are copied if they are not there in
    /// 64 bits. None when the arrays are in host memory.
    ///
    /// # Errors
    ///
    /// What allocating and copying give.
    ///
    /// # Safety
    ///
    /// It is not used after `foreign` is dropped.
    pub(crate) unsafe fn around(a: CsrView<'_, T>, foreign: &ForeignCsr<T>) -> Result<Option<Self>, Error> {
        let (Device::Cuda(gpu), Some(arrays)) = (foreign.device(), foreign.on_gpu()) else { return Ok(None) };
        // SAFETY: the caller's promise. Where offsets in host memory have 64 bits, they are the same.
        let (row_ptr, col_idx, values) = unsafe {
            let row_ptr = match arrays.row_ptr {
                Some(there) if size_of::<usize>() == size_of::<u64>() => there.alias(),
                _ => gpu.upload(a.row_ptr())?,
            };
            (row_ptr, arrays.col_idx.alias(), arrays.values.alias())
        };
        Ok(Some(Self { gpu: *gpu, nrows: a.nrows(), ncols: a.ncols(), row_ptr, col_idx, values }))
    }

    /// The matrix in packed slices, in the memory of the same GPU; none where the host has to pack it, because there is too much for
    /// slices to address, different slots have the same hash, or values are to take fewer bytes.
    ///
    /// # Errors
    ///
    /// What allocating, launching and compiling give.
    pub(crate) fn pack(&self, order: Order, packing: Packing) -> Result<Option<Uploaded<T>>, Error> {
        if !Self::packs(packing) {
            return Ok(None);
        }
        let packer =
            Packer { work: Work::new(self.gpu, self.room(packing.long))?, a: self, limit: packing.long };
        packer.pack(order, packing)
    }

    /// Whether there is a way to pack so here: offsets are copied as they are, and values are not brought to fewer bytes.
    pub(crate) fn packs(packing: Packing) -> bool {
        size_of::<usize>() == size_of::<u64>() && !matches!(packing.values, ValueEncoding::Narrow(_))
    }

    /// Bytes of working memory that are enough for most matrices.
    fn room(&self, limit: u32) -> usize {
        const ROW: usize = size_of::<u32>();
        // What is chosen, hashes, units of two arrays, owners, and two to four places of the table.
        const SLICE: usize = 16 + 8 + 2 * 8 + 4 + 4 * (8 + 4);
        const SMALL: usize = 1 << 16;
        let parts = wide::most_parts(self.nrows, self.col_idx.len(), limit);
        self.nrows * ROW + self.nrows.div_ceil(LANES) * SLICE + wide::bytes(parts) + SMALL
    }
}

/// What is found before anything is written; the kernels know the places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Found {
    value_units: u64,
    index_units: u64,
    long_rows: u64,
    long_pieces: u64,
    long_entries: u64,
    /// Whether a slice is not diagonal.
    relative: u64,
    /// Whether slices with the same hash have different slots.
    wrong: u64,
    /// Parts of wide slices.
    parts: u64,
}

impl Found {
    const NOTHING: Self = Self {
        value_units: 0,
        index_units: 0,
        long_rows: 0,
        long_pieces: 0,
        long_entries: 0,
        relative: 0,
        wrong: 0,
        parts: 0,
    };

    /// Where the numbers of long rows stand.
    const LONG: usize = 2;

    /// Whether headers and pieces can say it.
    fn fits(&self) -> bool {
        // Behind the last value a unit is added.
        let most = u64::from(u32::MAX);
        self.wrong == 0 && self.value_units < most && self.index_units < most && self.long_pieces < most
    }
}

/// A matrix that is being packed.
struct Packer<'a, T> {
    work: Work,
    a: &'a DeviceCsr<T>,
    /// Rows with more entries are kept apart.
    limit: u32,
}

impl<T: Scalar> Packer<'_, T> {
    fn pack(&self, order: Order, packing: Packing) -> Result<Option<Uploaded<T>>, Error> {
        let Self { work, a, .. } = self;
        let found = work.cleared::<u64>(size_of::<Found>() / size_of::<u64>())?;
        let perm = self.order(order)?;
        let perm_ptr = perm.as_ref().map_or(Ptr::NULL, Buffer::ptr);
        let coder = self.coder(packing.values)?;
        let tiles = self.count_long(found.add(Found::LONG))?;
        let chosen = self.choose(perm_ptr, coder.size() as u32, found)?;
        let sums = self.found(found)?;
        if !sums.fits() {
            return Ok(None);
        }
        let index = work.output::<u32>(sums.index_units as usize * UNIT / size_of::<u32>())?;
        // What kernels load for lanes without an entry may stand behind the last value.
        let units = sums.value_units as usize + usize::from(sums.value_units > 0);
        let values = self.room_for(&coder, units * UNIT / coder.size().max(1))?;
        let table = self.table(&coder)?;
        let parts = sums.parts as usize;
        self.write_slots(&chosen, index.ptr(), parts)?;
        self.write(&chosen, (perm_ptr, packing.group), index.ptr(), (&values, &table), (found, parts))?;
        let long = self.long(&sums, tiles, &coder, &table)?;
        let dictionary = a.gpu.upload(&coder.into_dictionary())?;
        // Waits for everything.
        if self.found(found)?.wrong != 0 {
            return Ok(None);
        }
        let Chosen { headers, skip, .. } = chosen;
        let parts =
            Parts { headers, values, dictionary, index, perm, skip: long.is_some().then_some(skip), long };
        let shape = (a.nrows, a.ncols);
        Uploaded::from_parts(a.gpu, shape, packing.group as usize, parts, sums.relative == 0).map(Some)
    }

    /// What the kernels have found so far; waits for them.
    fn found(&self, found: Ptr<u64>) -> Result<Found, Error> {
        let mut sums = [Found::NOTHING];
        self.work.read(Ptr::<Found>::from_address(found.address()), &mut sums)?;
        Ok(sums[0])
    }

    fn nrows(&self) -> u32 {
        // Rows are counted in 32 bits.
        self.a.nrows as u32
    }

    fn ncols(&self) -> u32 {
        // There are at most 2³² columns, which are compared with rows.
        u32::try_from(self.a.ncols).unwrap_or(u32::MAX)
    }

    fn slices(&self) -> usize {
        self.a.nrows.div_ceil(LANES)
    }

    /// The offsets as kernels read them.
    fn row_ptr(&self) -> Ptr<u64> {
        Ptr::from_address(self.a.row_ptr.ptr().address())
    }
}

#[cfg(test)]
mod tests;
