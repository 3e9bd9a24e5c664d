//! Choice of the encoding and position of every slice, and writing of slices, on a GPU.

use super::super::{DeviceValues, Header};
use super::values::CodeTable;
use super::wide::Chosen;
use super::{LANES, Packer};
use crate::device::kernels::psell_pack_slices::{
    PsellPackChoose, PsellPackHeaders, PsellPackShare, PsellPackSlots, PsellPackUnits, Write,
    WriteWide,
};
use crate::device::{Launch, Ptr};
use crate::{Error, Scalar};

/// Hash table of the slots of diagonal slices, each with the first slice that has them.
struct SlotTable {
    keys: Ptr<u64>,
    firsts: Ptr<u32>,
    mask: u32,
}

impl SlotTable {
    /// Empty table, if there are no diagonal slices.
    const NONE: Self = Self { keys: Ptr::NULL, firsts: Ptr::NULL, mask: 0 };
}

impl<T: Scalar> Packer<'_, T> {
    /// Chooses the encoding and the position of every slice. Writes to `counts` the units of the
    /// values, of `value_size` bytes each, and of the index.
    pub(super) fn choose(
        &self,
        perm: Ptr<u32>,
        value_size: u32,
        counts: Ptr<u64>,
    ) -> Result<Chosen, Error> {
        let (work, gpu, slices) = (&self.work, self.a.gpu, self.slices());
        let (headers, skip) =
            (gpu.uninitialised::<Header>(slices)?, gpu.uninitialised::<u32>(slices)?);
        let (encoded, hashes) = (work.take::<[u32; 4]>(slices)?, work.take::<u64>(slices)?);
        let (owners, units) = (work.take::<u32>(slices)?, work.take::<u64>(2 * slices)?);
        let wide = self.wide(perm)?;
        let choose = Launch::over(slices, LANES as u32).with(PsellPackChoose {
            row_ptr: self.row_ptr(),
            col_idx: self.a.col_idx.ptr(),
            perm,
            nrows: self.nrows(),
            ncols: self.ncols(),
            split: self.split,
            encoded,
            hashes,
            skip: skip.ptr(),
            portions: wide.portions,
            counts,
        });
        // SAFETY: all arrays have an element for every slice, and for every portion of one.
        unsafe {
            work.run("psell_pack_slices", "psell_pack_choose", choose)?;
            self.choose_wide(wide, perm, (encoded, hashes), counts)?;
            let shared = match perm.address() {
                0 => self.match_slices(encoded, hashes)?,
                _ => SlotTable::NONE,
            };
            let SlotTable { keys, firsts, mask } = shared;
            let (over, count) = (Launch::over(slices, 1), slices as u32);
            let count_units = PsellPackUnits {
                encoded,
                hashes,
                slices: count,
                keys,
                firsts,
                mask,
                value_size,
                owners,
                units,
                counts,
            };
            work.run("psell_pack_slices", "psell_pack_units", over.with(count_units))?;
            work.scan(units, slices, 2, counts)?;
            let headers = headers.ptr().cast();
            let write_headers = PsellPackHeaders { encoded, owners, units, slices: count, headers };
            work.run("psell_pack_slices", "psell_pack_headers", over.with(write_headers))?;
        }
        Ok(Chosen { headers, skip, owners, wide })
    }

    /// Finds slices with the same slots: a table from their hashes to the first such slice.
    ///
    /// # Safety
    ///
    /// Both arrays have an element for every slice.
    unsafe fn match_slices(
        &self,
        encoded: Ptr<[u32; 4]>,
        hashes: Ptr<u64>,
    ) -> Result<SlotTable, Error> {
        /// Smallest number of places per slice: a search seldom meets a second key.
        const PLACES: usize = 2;
        let slices = self.slices();
        let places = (PLACES * slices).next_power_of_two();
        let (keys, firsts) = (self.work.cleared::<u64>(places)?, self.work.cleared::<u32>(places)?);
        let mask = (places - 1) as u32;
        let params = PsellPackShare { encoded, hashes, slices: slices as u32, keys, firsts, mask };
        let launch = Launch::over(slices, 1).with(params);
        // SAFETY: the caller's promise; a place is free for every slice.
        unsafe { self.work.run("psell_pack_slices", "psell_pack_share", launch)? };
        Ok(SlotTable { keys, firsts, mask })
    }

    /// Writes the slots of the slices that own theirs. Wide slices have `portions` portions.
    pub(super) fn write_slots(
        &self,
        chosen: &Chosen,
        index: Ptr<u32>,
        portions: usize,
    ) -> Result<(), Error> {
        let launch = Launch::over(self.slices(), LANES as u32).with(PsellPackSlots {
            row_ptr: self.row_ptr(),
            col_idx: self.a.col_idx.ptr(),
            nrows: self.nrows(),
            ncols: self.ncols(),
            split: self.split,
            headers: chosen.headers.ptr().cast(),
            owners: chosen.owners,
            index: index.cast(),
        });
        // SAFETY: the index has as many units as were counted. If rows are sorted, no slice is
        // diagonal.
        unsafe { self.work.run("psell_pack_slices", "psell_pack_slots", launch)? };
        self.write_wide_slots(chosen, index, portions)
    }

    /// Writes the values of all slices, and the index of the relative slices. Wide slices have
    /// `portions` portions.
    pub(super) fn write(
        &self,
        chosen: &Chosen,
        (perm, group): (Ptr<u32>, u32),
        index: Ptr<u32>,
        (values, table): (&DeviceValues<T>, &Option<CodeTable>),
        (counts, portions): (Ptr<u64>, usize),
    ) -> Result<(), Error> {
        let (keys, codes) = CodeTable::ptrs(table);
        let slices = Launch::over(self.slices(), LANES as u32).with(Write {
            row_ptr: self.row_ptr(),
            col_idx: self.a.col_idx.ptr(),
            values: self.a.values.ptr(),
            perm,
            nrows: self.nrows(),
            split: self.split,
            headers: chosen.headers.ptr().cast(),
            group: group.ilog2(),
            index: index.cast(),
            stored: values.ptr(),
            keys,
            codes,
            counts,
        });
        let wide = Launch::over(portions, LANES as u32).with(WriteWide {
            row_ptr: self.row_ptr(),
            col_idx: self.a.col_idx.ptr(),
            values: self.a.values.ptr(),
            perm,
            nrows: self.nrows(),
            split: self.split,
            headers: chosen.headers.ptr().cast(),
            group: group.ilog2(),
            index: index.cast(),
            stored: values.ptr(),
            keys,
            codes,
            counts,
            portions: chosen.wide.portions,
            count: portions as u32,
        });
        let name = format!("psell_pack_write_{}", T::KIND);
        // SAFETY: values and index have as many units as were counted, and there are `portions`
        // portions.
        unsafe {
            self.work.run("psell_pack_slices", &name, slices)?;
            self.work.run("psell_pack_slices", &format!("{name}_wide"), wide)
        }
    }
}
