//! Choice of the encoding and position of every slice, and writing of slices, on a GPU.

use super::super::Header;
use super::super::cuda::DeviceValues;
use super::values::CodeTable;
use super::wide::Chosen;
use super::{LANES, Packer};
use crate::device::{Launch, Ptr};
use crate::{Error, Scalar};

/// Hash table of the slots shared by slices.
struct SlotTable {
    keys: Ptr<u64>,
    firsts: Ptr<u32>,
    mask: u32,
}

impl SlotTable {
    /// The empty table, if there are no diagonal slices.
    const NONE: Self = Self { keys: Ptr::NULL, firsts: Ptr::NULL, mask: 0 };
}

impl<T: Scalar> Packer<'_, T> {
    /// Chooses the encoding and the position of every slice. Writes to `found` the units of the
    /// values, of `value_size` bytes each, and of the index.
    pub(super) fn choose(
        &self,
        perm: Ptr<u32>,
        value_size: u32,
        found: Ptr<u64>,
    ) -> Result<Chosen, Error> {
        let (work, gpu, slices) = (&self.work, self.a.gpu, self.slices());
        let (headers, skip) =
            (gpu.uninitialised::<Header>(slices)?, gpu.uninitialised::<u32>(slices)?);
        let (encoded, hashes) = (work.take::<[u32; 4]>(slices)?, work.take::<u64>(slices)?);
        let (owners, units) = (work.take::<u32>(slices)?, work.take::<u64>(2 * slices)?);
        let wide = self.wide(perm)?;
        let choose = Launch::over(slices, LANES as u32)
            .arg(self.row_ptr())
            .arg(self.a.col_idx.ptr())
            .arg(perm);
        let choose =
            choose.arg(self.nrows()).arg(self.ncols()).arg(self.limit).arg(encoded).arg(hashes);
        let choose = choose.arg(skip.ptr()).arg(wide.parts).arg(found);
        // SAFETY: these are the parameters of the kernels; all arrays have an element for every
        // slice, and for every part of one.
        unsafe {
            work.run("psell_pack_slices", "pack_choose", choose)?;
            self.choose_wide(wide, perm, (encoded, hashes), found)?;
            let shared = match perm.address() {
                0 => self.share(encoded, hashes)?,
                _ => SlotTable::NONE,
            };
            let over = Launch::over(slices, 1).arg(encoded);
            let unit = over
                .arg(hashes)
                .arg(slices as u32)
                .arg(shared.keys)
                .arg(shared.firsts)
                .arg(shared.mask);
            let unit = unit.arg(value_size).arg(owners).arg(units).arg(found);
            work.run("psell_pack_slices", "pack_units", unit)?;
            work.scan(units, slices, 2, found)?;
            let place = over.arg(owners).arg(units).arg(slices as u32).arg(headers.ptr());
            work.run("psell_pack_slices", "pack_headers", place)?;
        }
        Ok(Chosen { headers, skip, owners, wide })
    }

    /// Finds slices with the same slots.
    ///
    /// # Safety
    ///
    /// Both arrays have an element for every slice.
    unsafe fn share(&self, encoded: Ptr<[u32; 4]>, hashes: Ptr<u64>) -> Result<SlotTable, Error> {
        /// Smallest number of places per slice: a search seldom meets a second key.
        const PLACES: usize = 2;
        let slices = self.slices();
        let places = (PLACES * slices).next_power_of_two();
        let (keys, firsts) = (self.work.cleared::<u64>(places)?, self.work.cleared::<u32>(places)?);
        let mask = (places - 1) as u32;
        let launch = Launch::over(slices, 1).arg(encoded).arg(hashes).arg(slices as u32);
        // SAFETY: these are the parameters of the kernel, and the caller's promise.
        unsafe {
            self.work.run(
                "psell_pack_slices",
                "pack_share",
                launch.arg(keys).arg(firsts).arg(mask),
            )?
        };
        Ok(SlotTable { keys, firsts, mask })
    }

    /// Writes the slots of the slices that own theirs. Wide slices have `parts` parts.
    pub(super) fn write_slots(
        &self,
        chosen: &Chosen,
        index: Ptr<u32>,
        parts: usize,
    ) -> Result<(), Error> {
        let launch =
            Launch::over(self.slices(), LANES as u32).arg(self.row_ptr()).arg(self.a.col_idx.ptr());
        let launch =
            launch.arg(self.nrows()).arg(self.limit).arg(chosen.headers.ptr()).arg(chosen.owners);
        // SAFETY: these are the parameters of the kernel; the index has as many units as were
        // counted. If rows are sorted, no slice is diagonal.
        unsafe { self.work.run("psell_pack_slices", "pack_slots", launch.arg(index))? };
        self.write_wide_slots(chosen, index, parts)
    }

    /// Writes the values of all slices, and the index of the relative slices. Wide slices have
    /// `parts` parts.
    pub(super) fn write(
        &self,
        chosen: &Chosen,
        (perm, group): (Ptr<u32>, u32),
        index: Ptr<u32>,
        (values, table): (&DeviceValues<T>, &Option<CodeTable>),
        (found, parts): (Ptr<u64>, usize),
    ) -> Result<(), Error> {
        let launch = |items| {
            let launch =
                Launch::over(items, LANES as u32).arg(self.row_ptr()).arg(self.a.col_idx.ptr());
            let launch =
                launch.arg(self.a.values.ptr()).arg(perm).arg(self.nrows()).arg(self.limit);
            let launch = launch.arg(chosen.headers.ptr()).arg(group.ilog2()).arg(index);
            CodeTable::add(table, launch.arg(values.ptr())).arg(found)
        };
        let wide = launch(parts).arg(chosen.wide.parts).arg(parts as u32);
        let name = format!("pack_write_{}", T::KIND);
        // SAFETY: these are the parameters of the kernels; values and index have as many units as
        // were counted, and there are `parts` parts.
        unsafe {
            self.work.run("psell_pack_slices", &name, launch(self.slices()))?;
            self.work.run("psell_pack_slices", &format!("{name}_wide"), wide)
        }
    }
}
