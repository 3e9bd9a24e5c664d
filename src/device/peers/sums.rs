//! Sums over vectors of which every part has some elements, in the order of fixed blocks.

use super::constants::{SUMS_HEAD, SUMS_PART};
use super::network::Message;
use super::{PeerGroup, PeerPlace};
use crate::Error;
use crate::device::{Buffer, Device, Ptr, Queue};
use std::ops::Range;
use std::sync::Arc;

/// Numbers of a block: its two sums.
const PAIR: usize = 2;

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
    network: Option<NetworkSums>,
}

/// Sums of which a network transfers those of the blocks of a part. A second pass adds them.
#[derive(Debug, Clone)]
struct NetworkSums {
    messages: Arc<[Vec<Message>; 2]>,
    /// The table of the second pass.
    words: Arc<Buffer<u64>>,
}

impl SumsTable {
    /// Creates the table of a part for `blocks` blocks of all parts.
    ///
    /// # Errors
    ///
    /// [`Error::GpuMemory`] and [`Error::Gpu`].
    pub fn new(group: &Arc<PeerGroup>, rank: usize, blocks: usize) -> Result<Self, Error> {
        let rounds = if group.is_network() { 1 } else { 2 };
        let sums = group.memory(rank, rounds * PAIR * blocks)?;
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

    /// Messages of a network: the sums of the own blocks to all other parts, and theirs.
    fn messages(&self, blocks: &[usize]) -> [Vec<Message>; 2] {
        let address = |block: usize| self.sums.ptr().add(PAIR * block).address();
        let (mut first, mut sums) = (0, Vec::new());
        for count in blocks {
            sums.push(address(first)..address(first + count));
            first += count;
        }
        let own: Range<u64> = sums[self.rank].clone();
        let of = |all: &dyn Fn(usize) -> Range<u64>| {
            let others = (0..blocks.len()).filter(|part| *part != self.rank);
            others.map(|part| (part, all(part))).filter(|(_, bytes)| !bytes.is_empty()).collect()
        };
        [of(&|_| own.clone()), of(&|part| sums[part].clone())]
    }
}

impl PeerSums {
    /// Creates sums over blocks of `block` elements, of which part `i` has `blocks[i]`, from the
    /// addresses of the [places](SumsTable::places) of the tables of all parts, which are not used
    /// in a network. Before the first sum all parts [connect](Self::connect).
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
        let (first, all) = (blocks[..table.rank].iter().sum::<usize>(), blocks.iter().sum());
        let own = blocks[table.rank];
        if table.group.is_network() {
            return Self::of_network(table, block, blocks, first);
        }
        let state = table.group.words(table.rank, 2)?;
        let own_flag = |flags: u64| Ptr::<u32>::from_address(flags).add(table.rank).address();
        let mut parts: Vec<[u64; SUMS_PART]> =
            addresses.iter().map(|&[sums, flags]| [sums, own_flag(flags)]).collect();
        parts[table.rank][1] = 0;
        let pass = SumsPass { own, first, all, half: all, rank: table.rank, parts };
        let words = pass.words(&table, block, &state)?;
        let SumsTable { group, rank, .. } = table;
        Ok(Self { group, rank, block, own, words, network: None })
    }

    /// Sums of which a network transfers those of the own blocks, from number `first` on.
    fn of_network(
        table: SumsTable,
        block: usize,
        blocks: &[usize],
        first: usize,
    ) -> Result<Self, Error> {
        let (own, all) = (blocks[table.rank], blocks.iter().sum());
        let rounds = table.group.counted_rounds()?;
        // Each pass is the only part of its sums.
        let pass = |own, first, all, counted: Ptr<u32>| {
            let parts = vec![[table.sums.ptr().address(), counted.address()]];
            let state = table.group.words(table.rank, 2)?;
            SumsPass { own, first, all, half: 0, rank: 0, parts }.words(&table, block, &state)
        };
        let words = pass(own, first, 0, rounds[0])?;
        let messages = Arc::new(table.messages(blocks));
        let network = NetworkSums { messages, words: pass(0, 0, all, rounds[1])? };
        let SumsTable { group, rank, .. } = table;
        Ok(Self { group, rank, block, own, words, network: Some(network) })
    }

    /// Connects the part to all others in a network. All parts call it at the same time.
    ///
    /// # Errors
    ///
    /// [`Error::Communication`] and [`Error::Gpu`].
    pub fn connect(&self) -> Result<(), Error> {
        let Some(sums) = &self.network else { return Ok(()) };
        // SAFETY: the table is memory of the group.
        unsafe { self.group.connect(&sums.messages) }
    }

    /// True if a second pass adds the sums.
    pub(crate) fn has_second_pass(&self) -> bool {
        self.network.is_some()
    }

    /// Transfers the sums of the own blocks and receives those of the others, if a second pass has
    /// to add them. Returns the table of that pass.
    pub(crate) fn transfer(&self, queue: &Queue) -> Result<Option<Ptr<u64>>, Error> {
        let (Some(network), Some(sums)) = (self.group.network(), &self.network) else {
            return Ok(None);
        };
        // SAFETY: the table is memory of the group.
        unsafe { network.exchange(queue, &sums.messages)? };
        Ok(Some(sums.words.ptr()))
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

    /// Keeps the memory of the sums alive as long as the graph that is being captured.
    pub(crate) fn keep(&self, queue: &Queue) {
        queue.keep(self.group.clone());
        queue.keep(self.words.clone());
        self.network.iter().for_each(|network| queue.keep(network.words.clone()));
    }
}

/// Blocks and tables of a pass, besides the memory of its group.
struct SumsPass {
    /// Number of own blocks and of the first one, and of all blocks.
    own: usize,
    first: usize,
    all: usize,
    /// Blocks of half a table.
    half: usize,
    rank: usize,
    /// Addresses of the table of each part, and of its flag for this one; for this part a word
    /// that counts the rounds, or null.
    parts: Vec<[u64; SUMS_PART]>,
}

impl SumsPass {
    /// The words of the kernels.
    fn words(
        self,
        table: &SumsTable,
        block: usize,
        state: &Buffer<u32>,
    ) -> Result<Arc<Buffer<u64>>, Error> {
        let (ended, limit) = table.group.waits();
        let head: [u64; SUMS_HEAD] = [
            self.own as u64,
            self.first as u64,
            self.all as u64,
            block as u64,
            self.rank as u64,
            self.parts.len() as u64,
            state.ptr().address(),
            table.flags.ptr().address(),
            ended.address(),
            limit,
            self.half as u64,
        ];
        let words: Vec<u64> = head.into_iter().chain(self.parts.into_iter().flatten()).collect();
        Ok(Arc::new(table.group.gpu(table.rank).upload(&words)?))
    }
}
