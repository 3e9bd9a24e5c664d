//! Wide slices: slices with a row so long that a single warp would finish it long after all others.
//! Each portion of a wide slice has its own warp.

use super::super::Header;
use super::super::constants::PORTION;
use super::{LANES, Packer};
use crate::device::kernels::psell_pack_slices::{
    PsellPackChooseWide, PsellPackCountWide, PsellPackSlotsWide, PsellPackSurveyWide,
};
use crate::device::{Buffer, Launch, Ptr};
use crate::{Error, Scalar};

/// Portions of wide slices. Those of a slice are adjacent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wide {
    /// Slice and number of every portion.
    pub(super) portions: Ptr<[u32; 2]>,
    /// Slots of every portion in the natural order: their number, the number that every lane has,
    /// and a hash.
    counted: Ptr<[u64; 2]>,
    most: usize,
}

/// Encoded slices, before they are written.
pub(super) struct Chosen {
    pub(super) headers: Buffer<Header>,
    /// Lanes of every slice that hold long rows.
    pub(super) skip: Buffer<u32>,
    /// For every slice, the first slice with the same index.
    pub(super) owners: Ptr<u32>,
    pub(super) wide: Wide,
}

/// Largest number of portions of slices with `nrows` rows and `nnz` entries.
pub(super) fn most_portions(nrows: usize, nnz: usize, split: u32) -> usize {
    let split = split as usize;
    // The last portion of a row may be short, but only after another portion.
    if split <= PORTION {
        0
    } else {
        (2 * nnz / PORTION).min(nrows.div_ceil(LANES) * split.div_ceil(PORTION))
    }
}

/// Scratch memory for `portions` portions, in bytes.
pub(super) const fn bytes(portions: usize) -> usize {
    portions * (size_of::<[u32; 2]>() + size_of::<[u64; 2]>())
}

impl<T: Scalar> Packer<'_, T> {
    /// Allocates room for the largest possible number of portions.
    pub(super) fn wide(&self, perm: Ptr<u32>) -> Result<Wide, Error> {
        let most = most_portions(self.a.nrows, self.a.col_idx.len(), self.split);
        let counted = if perm.address() == 0 { self.work.take(most)? } else { Ptr::NULL };
        Ok(Wide { portions: self.work.take(most)?, counted, most })
    }

    /// Chooses the encoding of wide slices. Only the GPU knows the numbers of their portions.
    ///
    /// # Safety
    ///
    /// `counts`, `encoded` and `hashes` are as left by the kernel that chose the encoding of the
    /// other slices.
    pub(super) unsafe fn choose_wide(
        &self,
        wide: Wide,
        perm: Ptr<u32>,
        (encoded, hashes): (Ptr<[u32; 4]>, Ptr<u64>),
        counts: Ptr<u64>,
    ) -> Result<(), Error> {
        /// Blocks per multiprocessor; a warp without a portion ends at once.
        const BLOCKS: usize = 5;
        if wide.most == 0 {
            return Ok(());
        }
        let blocks = Launch::over(wide.most, LANES as u32).blocks();
        let blocks = blocks.min((BLOCKS * self.a.gpu.multiprocessors()) as u32);
        let over = Launch::new(blocks, crate::device::BLOCK);
        let (row_ptr, col_idx) = (self.row_ptr(), self.a.col_idx.ptr());
        let (nrows, ncols, split) = (self.nrows(), self.ncols(), self.split);
        let Wide { portions, counted, .. } = wide;
        let survey =
            PsellPackSurveyWide { row_ptr, col_idx, perm, nrows, split, portions, counts, encoded };
        let count = PsellPackCountWide {
            row_ptr,
            col_idx,
            nrows,
            ncols,
            split,
            portions,
            counts,
            encoded,
            counted,
        };
        let choose = PsellPackChooseWide {
            row_ptr,
            perm,
            nrows,
            split,
            portions,
            counts,
            counted,
            encoded,
            hashes,
        };
        // SAFETY: there is room for all portions, and the caller's promise.
        unsafe {
            self.work.run("psell_pack_slices", "psell_pack_survey_wide", over.with(survey))?;
            if perm.address() == 0 {
                self.work.run("psell_pack_slices", "psell_pack_count_wide", over.with(count))?;
            }
            self.work.run("psell_pack_slices", "psell_pack_choose_wide", over.with(choose))
        }
    }

    /// Writes the slots of `portions` portions whose slices own theirs.
    pub(super) fn write_wide_slots(
        &self,
        chosen: &Chosen,
        index: Ptr<u32>,
        portions: usize,
    ) -> Result<(), Error> {
        if chosen.wide.counted.address() == 0 {
            return Ok(());
        }
        let launch = Launch::over(portions, LANES as u32).with(PsellPackSlotsWide {
            row_ptr: self.row_ptr(),
            col_idx: self.a.col_idx.ptr(),
            nrows: self.nrows(),
            ncols: self.ncols(),
            split: self.split,
            headers: chosen.headers.ptr().cast(),
            owners: chosen.owners,
            index: index.cast(),
            portions: chosen.wide.portions,
            counted: chosen.wide.counted,
            count: portions as u32,
        });
        // SAFETY: there are `portions` portions, and the index has as many units as were counted.
        unsafe { self.work.run("psell_pack_slices", "psell_pack_slots_wide", launch) }
    }
}
