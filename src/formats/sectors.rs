//! Scatter of new values to their slots on a GPU, by whole sectors of memory.

pub(super) use super::constants::PER_THREAD;
use super::constants::{NONE, SECTOR};
use crate::Error;
use crate::device::cpu::{Output, for_each_task, partition};
use crate::device::{Buffer, Gpu, Ptr};
use crate::memory::{filled, joined, listed};
use crate::parallel;
use rayon::prelude::*;
use std::sync::Arc;

/// Sectors that have entries, and the entry of each of their slots. A sector is written whole,
/// including padding, which is zero: a partial write of a sector makes the memory read the rest of
/// it first. Sectors are in the order of their first entries, so that values are read near
/// previously read ones, in whichever order a format stores the rows. Slot by slot in the order of
/// entries, `jds` takes 327 µs instead of 127 on an H200:
/// docs/history/2026-11-21-value-updates.md.
#[derive(Debug)]
pub(super) struct Sectors {
    sectors: Buffer<u32>,
    from: Buffer<u32>,
}

impl Sectors {
    /// Creates the sectors for entries with the given slots, and uploads them.
    ///
    /// # Errors
    ///
    /// [`Error::GpuMemory`] if the GPU does not have enough memory left; [`Error::Gpu`];
    /// [`Error::HostMemory`].
    pub(super) fn upload(gpu: Gpu, slots: Vec<u32>) -> Result<Arc<Self>, Error> {
        let (sectors, from) = by_sector(&slots)?;
        Ok(Arc::new(Self { sectors: gpu.upload(&sectors)?, from: gpu.upload(&from)? }))
    }

    /// Number of slots that are written.
    pub(super) fn len(&self) -> usize {
        self.from.len()
    }

    /// Pointers to the sectors and to the entries of their slots.
    pub(super) fn ptrs(&self) -> (Ptr<u32>, Ptr<u32>) {
        (self.sectors.ptr(), self.from.ptr())
    }

    /// Bytes of GPU memory.
    pub(super) fn bytes(&self) -> u64 {
        self.sectors.bytes() + self.from.bytes()
    }
}

/// Sectors, or slots, of a task.
const ITEMS_PER_TASK: usize = 1 << 12;

/// Returns the sectors and the entries of their slots, for entries with the given slots.
///
/// # Errors
///
/// [`Error::HostMemory`].
fn by_sector(slots: &[u32]) -> Result<(Vec<u32>, Vec<u32>), Error> {
    let last = parallel::map_ranges(slots.len(), ITEMS_PER_TASK, |range| slots[range].iter().max());
    let end = last.into_iter().flatten().max().map_or(0, |&last| last as usize + 1);
    let mut entries = filled(end.next_multiple_of(SECTOR), NONE)?;
    let out = Output::new(&mut entries);
    for_each_task(&partition(slots.len(), 1, |entry| entry as u64), |range| {
        for entry in range {
            // SAFETY: every entry has a slot of its own, and none is behind the last.
            unsafe { out.set(slots[entry] as usize, entry as u32) };
        }
    });
    let first = |sector: usize| {
        let first = entries[sector * SECTOR..][..SECTOR].iter().copied().min();
        first.filter(|&first| first != NONE).map(|first| (first, sector as u32))
    };
    let sectors = parallel::map_ranges(entries.len() / SECTOR, ITEMS_PER_TASK, |sectors| {
        sectors.filter_map(first).collect::<Vec<_>>()
    });
    let mut sectors = joined(&sectors)?;
    sectors.par_sort_unstable();
    let mut from = filled(sectors.len() * SECTOR, NONE)?;
    let tasks = from.chunks_mut(SECTOR * ITEMS_PER_TASK).zip(sectors.chunks(ITEMS_PER_TASK));
    parallel::for_each_item(tasks, |(from, sectors)| {
        for (from, &(_, sector)) in from.chunks_mut(SECTOR).zip(sectors) {
            from.copy_from_slice(&entries[sector as usize * SECTOR..][..SECTOR]);
        }
    });
    Ok((listed(sectors.into_iter().map(|(_, sector)| sector))?, from))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Emulates the kernel on `slots` slots that hold 7.
    fn scattered(slots: &[u32], len: usize) -> Vec<u32> {
        let (sectors, from) = by_sector(slots).unwrap();
        assert_eq!(from.len(), sectors.len() * SECTOR);
        let mut out = vec![7; len];
        for (i, &entry) in from.iter().enumerate() {
            if let Some(slot) = out.get_mut(sectors[i / SECTOR] as usize * SECTOR + i % SECTOR) {
                *slot = if entry == NONE { 0 } else { entry + 100 };
            }
        }
        out
    }

    #[test]
    fn every_entry_is_in_its_slot_and_the_padding_around_it_is_zero() {
        // Rows of 0 to 40 entries, column by column over all of them, as in ELL.
        let (nrows, width) = (1000, 41);
        let slots = (0..nrows).flat_map(|row| (0..row * 7 % width).map(move |k| k * nrows + row));
        let slots: Vec<u32> = slots.collect();
        for slots in
            [slots, (0..5000).map(|entry| entry * 7919 % 5003 + 16).collect(), vec![19], vec![]]
        {
            let len = slots.iter().max().map_or(0, |&last| last as usize + 3);
            let mut expected = vec![7; len];
            for &slot in &slots {
                let sector = slot as usize / SECTOR * SECTOR;
                expected[sector..(sector + SECTOR).min(len)].fill(0);
            }
            slots.iter().zip(100..).for_each(|(&slot, value)| expected[slot as usize] = value);
            assert_eq!(scattered(&slots, len), expected);
        }
    }

    #[test]
    fn sectors_are_near_those_with_neighbouring_entries() {
        // Sorted rows come from everywhere in the matrix: 64 entries in each of 4096 rows,
        // shuffled, in slices of 32.
        let row_of = |sorted: u32| sorted * 1237 % 4096;
        let mut slots = vec![0; 4096 * 64];
        for sorted in 0..4096 {
            for k in 0..64 {
                slots[(row_of(sorted) * 64 + k) as usize] =
                    (sorted / 32 * 64 + k) * 32 + sorted % 32;
            }
        }
        let (sectors, from) = by_sector(&slots).unwrap();
        assert_eq!(sectors.len() * SECTOR, slots.len());
        // A block of 256 threads scatters the values of 32 rows.
        for from in from.chunks(256 * PER_THREAD) {
            let mut rows: Vec<u32> = from.iter().map(|entry| entry / 64).collect();
            rows.sort_unstable();
            rows.dedup();
            assert_eq!(rows.len(), 256 * PER_THREAD / 64);
        }
    }
}
