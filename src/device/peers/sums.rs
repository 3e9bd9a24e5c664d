//! Sums over vectors of which every part has some elements, in the order of fixed blocks.

use super::constants::{SUMS_HEAD, SUMS_PART};
use super::{PeerGroup, PeerPlace};
use crate::Error;
use crate::device::{Buffer, Device, Ptr};
use std::sync::Arc;

/// Memory of a part that all parts write the sums of their blocks to: of two rounds, and a flag for
/// each part.
#[derive(Debug)]
pub struct SumsTable {
    group: Arc<PeerGroup>,
    rank: usize,
    sums: Arc<Buffer<f64>>,
    flags: Arc<Buffer<u32>>,
}

/// Sums that the parts of a group share; see [`Passes`](crate::device::fused::Passes).
#[derive(Debug, Clone)]
pub struct PeerSums {
    group: Arc<PeerGroup>,
    rank: usize,
    /// Number of elements of a block, and own blocks.
    block: usize,
    own: usize,
    words: Arc<Buffer<u64>>,
}

impl SumsTable {
    /// Creates the table of a part for `blocks` blocks of all parts.
    ///
    /// # Errors
    ///
    /// [`Error::GpuMemory`] and [`Error::Gpu`].
    pub fn new(group: &Arc<PeerGroup>, rank: usize, blocks: usize) -> Result<Self, Error> {
        let sums = group.memory(rank, 4 * blocks)?;
        let flags = group.words(rank, group.parts)?;
        Ok(Self { group: group.clone(), rank, sums, flags })
    }

    /// Places of the sums and of the flags.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if other processes cannot access them.
    pub fn places(&self) -> Result<[PeerPlace; 2], Error> {
        Ok([self.group.place_of(&self.sums)?, self.group.place_of(&self.flags)?])
    }
}

impl PeerSums {
    /// Creates sums over blocks of `block` elements, of which part `i` has `blocks[i]`, from the
    /// addresses of the [places](SumsTable::places) of the tables of all parts.
    ///
    /// # Safety
    ///
    /// The addresses are those of tables of the same group, for all blocks.
    ///
    /// # Errors
    ///
    /// [`Error::GpuMemory`] and [`Error::Gpu`].
    pub unsafe fn new(
        table: SumsTable,
        block: usize,
        blocks: &[usize],
        addresses: &[[u64; 2]],
    ) -> Result<Self, Error> {
        let SumsTable { group, rank, flags, .. } = table;
        let state = group.words(rank, 2)?;
        let (ended, limit) = group.waits();
        let head: [u64; SUMS_HEAD] = [
            blocks[rank] as u64,
            blocks[..rank].iter().sum::<usize>() as u64,
            blocks.iter().sum::<usize>() as u64,
            block as u64,
            rank as u64,
            blocks.len() as u64,
            state.ptr().address(),
            flags.ptr().address(),
            ended.address(),
            limit,
        ];
        let own_flag = |flags: u64| Ptr::<u32>::from_address(flags).add(rank).address();
        let parts = addresses
            .iter()
            .flat_map(|&[sums, flags]| -> [u64; SUMS_PART] { [sums, own_flag(flags)] });
        let words: Vec<u64> = head.into_iter().chain(parts).collect();
        let words = Arc::new(group.gpu(rank).upload(&words)?);
        Ok(Self { rank, block, own: blocks[rank], words, group })
    }

    /// The device of this part.
    pub fn device(&self) -> Device {
        self.group.device(self.rank)
    }

    /// Blocks of vectors of `len` elements; `None` if this is not their length.
    pub(crate) fn blocks(&self, len: usize) -> Option<usize> {
        (len.div_ceil(self.block) == self.own).then_some(self.own)
    }

    /// The table of the kernels.
    pub(crate) fn words(&self) -> Ptr<u64> {
        self.words.ptr()
    }

    /// The group, which keeps all memory but the table.
    pub(crate) fn memory(&self) -> (Arc<PeerGroup>, Arc<Buffer<u64>>) {
        (self.group.clone(), self.words.clone())
    }
}
