//! Wide slices: those with a row that one warp would be at when all others are done. Each part of them has a warp.

use super::super::Header;
use super::{LANES, Packer};
use crate::device::{Buffer, Launch, Ptr};
use crate::{Error, Scalar};

/// Entries of a row in a part; `PART` in kernels/pack_slice.cuh.
pub(super) const PART: usize = 192;

/// The parts of wide slices, those of a slice one behind the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wide {
    /// The slice and the number of each.
    pub(super) parts: Ptr<[u32; 2]>,
    /// Their slots, where rows are in their order: how many, how many of them every lane has, and a hash.
    counted: Ptr<[u64; 2]>,
    most: usize,
}

/// The slices before they are written.
pub(super) struct Chosen {
    pub(super) headers: Buffer<Header>,
    /// The lanes of every slice whose rows are kept apart.
    pub(super) skip: Buffer<u32>,
    /// Of every slice the first with its index.
    pub(super) owners: Ptr<u32>,
    pub(super) wide: Wide,
}

/// Parts that slices of so many rows with so many entries may have at most.
pub(super) fn most_parts(nrows: usize, nnz: usize, limit: u32) -> usize {
    let limit = limit as usize;
    // The last part of a row may be short, but only behind another.
    if limit <= PART { 0 } else { (2 * nnz / PART).min(nrows.div_ceil(LANES) * limit.div_ceil(PART)) }
}

/// Bytes of working memory for so many parts.
pub(super) const fn bytes(parts: usize) -> usize {
    parts * (size_of::<[u32; 2]>() + size_of::<[u64; 2]>())
}

impl<T: Scalar> Packer<'_, T> {
    /// Room for the parts that there may be.
    pub(super) fn wide(&self, perm: Ptr<u32>) -> Result<Wide, Error> {
        let most = most_parts(self.a.nrows, self.a.col_idx.len(), self.limit);
        let counted = if perm.address() == 0 { self.work.take(most)? } else { Ptr::NULL };
        Ok(Wide { parts: self.work.take(most)?, counted, most })
    }

    /// Chooses how wide slices are stored; the numbers of their parts are known to the GPU alone.
    ///
    /// # Safety
    ///
    /// `found`, `encoded` and `hashes` are as the kernel left them that chose for the others.
    pub(super) unsafe fn choose_wide(
        &self,
        wide: Wide,
        perm: Ptr<u32>,
        (encoded, hashes): (Ptr<[u32; 4]>, Ptr<u64>),
        found: Ptr<u64>,
    ) -> Result<(), Error> {
        /// Blocks of a multiprocessor; a warp without a part ends at once.
        const BLOCKS: usize = 5;
        if wide.most == 0 {
            return Ok(());
        }
        let blocks = Launch::over(wide.most, LANES as u32).blocks();
        let blocks = blocks.min((BLOCKS * self.a.gpu.multiprocessors()) as u32);
        let over = Launch::new(blocks, crate::device::BLOCK).arg(self.row_ptr());
        let col_idx = self.a.col_idx.ptr();
        let survey = over.arg(col_idx).arg(perm).arg(self.nrows()).arg(self.limit);
        let count = over.arg(col_idx).arg(self.nrows()).arg(self.ncols()).arg(self.limit);
        let choose = over.arg(perm).arg(self.nrows()).arg(self.limit).arg(wide.parts).arg(found);
        let choose = choose.arg(wide.counted).arg(encoded).arg(hashes);
        // SAFETY: the parameters of the kernels; room for all parts, and the caller's promise.
        unsafe {
            let survey = survey.arg(wide.parts).arg(found).arg(encoded);
            self.work.run("pack_slices", "pack_survey_wide", survey)?;
            if perm.address() == 0 {
                let count = count.arg(wide.parts).arg(found).arg(encoded).arg(wide.counted);
                self.work.run("pack_slices", "pack_count_wide", count)?;
            }
            self.work.run("pack_slices", "pack_choose_wide", choose)
        }
    }

    /// Writes the slots of `parts` parts whose slices own theirs.
    pub(super) fn write_wide_slots(
        &self,
        chosen: &Chosen,
        index: Ptr<u32>,
        parts: usize,
    ) -> Result<(), Error> {
        if chosen.wide.counted.address() == 0 {
            return Ok(());
        }
        let launch = Launch::over(parts, LANES as u32).arg(self.row_ptr()).arg(self.a.col_idx.ptr());
        let launch = launch.arg(self.nrows()).arg(self.limit).arg(chosen.headers.ptr()).arg(chosen.owners);
        let launch = launch.arg(index).arg(chosen.wide.parts).arg(chosen.wide.counted).arg(parts as u32);
        // SAFETY: the parameters of the kernel; so many parts there are, and the index has the units that were counted.
        unsafe { self.work.run("pack_slices", "pack_slots_wide", launch) }
    }
}
