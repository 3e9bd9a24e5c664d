//! Sums over distributed vectors, with the same bits for every partition.
//!
//! The elements are summed in blocks of a power of two of rows, and the blocks in a binary tree.
//! Blocks and tree depend on the number of rows alone. A part sends the sums of the largest
//! subtrees of its own blocks, at most two for each level.

use crate::blocks::{block_rows, gpu_block_rows, is_aligned};
use crate::comm::{Communicator, agree, gather_words};
use crate::gpu::addresses;
use sparseop::Error;
use sparseop::device::fused::SharedSums;
use sparseop::device::peers::{PeerGroup, PeerSums, SumsTable};
use std::ops::Range;
use std::sync::Arc;

/// The two sums of a pass.
type Pair = [f64; 2];

/// Sums of neighbouring subtrees, each as large as the tree allows.
#[derive(Debug, Default)]
struct Subtrees(Vec<Subtree>);

/// Sum of the 2^`level` blocks from `first` on.
#[derive(Debug, Clone, Copy)]
struct Subtree {
    level: u32,
    first: usize,
    sum: Pair,
}

impl Subtrees {
    /// Appends the next subtree, and joins complete subtrees.
    fn push(&mut self, mut next: Subtree) {
        while let Some(left) = self.0.last() {
            let whole = left.first.is_multiple_of(2 << left.level);
            if left.level != next.level || !whole {
                break;
            }
            next =
                Subtree { level: next.level + 1, first: left.first, sum: add(left.sum, next.sum) };
            self.0.pop();
        }
        self.0.push(next);
    }

    /// Subtrees of consecutive blocks.
    fn of(first: usize, sums: impl Iterator<Item = Pair>) -> Self {
        let mut subtrees = Self::default();
        for (at, sum) in sums.enumerate() {
            subtrees.push(Subtree { level: 0, first: first + at, sum });
        }
        subtrees
    }

    /// Sum of all subtrees, beginning with the smaller ones at the end.
    fn total(&self) -> Pair {
        self.0
            .iter()
            .rev()
            .map(|subtree| subtree.sum)
            .reduce(|end, sum| add(sum, end))
            .unwrap_or_default()
    }
}

fn add([a, b]: Pair, [c, d]: Pair) -> Pair {
    [a + c, b + d]
}

/// Sums that are shared by the parts of an operator.
#[derive(Debug)]
pub(crate) struct TreeSums {
    comm: Arc<dyn Communicator>,
    block: usize,
    /// Blocks of each part; `None` if parts do not consist of whole blocks: a part is then one
    /// block.
    blocks: Option<Vec<Range<usize>>>,
    /// Bytes from each part.
    lengths: Vec<usize>,
    on_gpu: Option<PeerSums>,
}

impl TreeSums {
    /// Sums over vectors of which each part has the elements between two `offsets`.
    pub(crate) fn new(
        comm: Arc<dyn Communicator>,
        offsets: &[usize],
        group: Option<&Arc<PeerGroup>>,
    ) -> Result<Self, Error> {
        let on_gpu = group.map(|group| peer_sums(&*comm, offsets, group)).transpose()?;
        let block = block_rows(offsets[offsets.len() - 1]);
        let blocks: Option<Vec<Range<usize>>> = is_aligned(offsets).then(|| {
            offsets.windows(2).map(|at| at[0].div_ceil(block)..at[1].div_ceil(block)).collect()
        });
        let sent = |own: &Range<usize>| {
            Subtrees::of(own.start, own.clone().map(|_| Pair::default())).0.len()
        };
        let sizes = match &blocks {
            Some(blocks) => blocks.iter().map(sent).collect(),
            None => vec![1; comm.size()],
        };
        let lengths = sizes.into_iter().map(|count: usize| count * size_of::<Pair>()).collect();
        Ok(Self { comm, block, blocks, lengths, on_gpu })
    }
}

/// Sums of the GPUs: in the order of the blocks, all of which every GPU has.
fn peer_sums(
    comm: &dyn Communicator,
    offsets: &[usize],
    group: &Arc<PeerGroup>,
) -> Result<PeerSums, Error> {
    let block = gpu_block_rows(offsets[offsets.len() - 1]);
    let blocks: Vec<usize> = offsets.windows(2).map(|at| (at[1] - at[0]).div_ceil(block)).collect();
    let table = SumsTable::new(group, comm.rank(), blocks.iter().sum());
    let table = table.and_then(|table| Ok((table.places()?, table)));
    let (places, table) = agree(comm, table)?;
    let all = gather_words(comm, &places.concat())?;
    let of = |(rank, words): (usize, &Vec<u64>)| Ok(addresses(group, rank, words)?.0);
    let of_all: Result<Vec<[u64; 2]>, Error> = all.iter().enumerate().map(of).collect();
    let addresses = agree(comm, of_all)?;
    // SAFETY: the ranks have just made these tables for the same blocks.
    let sums = agree(comm, unsafe { PeerSums::new(table, block, &blocks, &addresses) })?;
    agree(comm, sums.connect().map(|()| sums))
}

impl SharedSums for TreeSums {
    fn block(&self) -> usize {
        self.block
    }

    fn total(&self, sums: &[Pair]) -> Result<Pair, Error> {
        let rank = self.comm.rank();
        let first = self.blocks.as_ref().map_or(0, |blocks| blocks[rank].start);
        let own = Subtrees::of(first, sums.iter().copied());
        let sent: Vec<Pair> = match self.blocks {
            Some(_) => own.0.iter().map(|subtree| subtree.sum).collect(),
            None => vec![own.total()],
        };
        let all = self.comm.all_gather(bytemuck::cast_slice(&sent), &self.lengths)?;
        let mut sums = all.chunks_exact(size_of::<Pair>()).map(bytemuck::pod_read_unaligned);
        let Some(blocks) = &self.blocks else { return Ok(Subtrees::of(0, sums).total()) };
        let mut tree = Subtrees::default();
        for own in blocks {
            // The same subtrees as those of the sender, without their sums.
            for subtree in Subtrees::of(own.start, own.clone().map(|_| Pair::default())).0 {
                let sum = sums.next().unwrap_or_default();
                tree.push(Subtree { sum, ..subtree });
            }
        }
        Ok(tree.total())
    }

    fn on_gpu(&self) -> Option<&PeerSums> {
        self.on_gpu.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::gpu_part_rows;
    use crate::partition::Partition;
    use crate::threads::{ThreadRank, on_threads};
    use sparseop::device::fused::{Code, Dots, Passes, Program};
    use sparseop::{Device, DeviceVec, Stream};
    use sparseop_testkit::{gpu, x_vector};
    use std::time::Duration;

    /// Numbers of elements with more than 4096 blocks, on the CPU and on GPUs.
    const MANY_BLOCKS: usize = 300_001;
    const MANY_GPU_BLOCKS: usize = 16_800_001;

    /// Bits of the sums of the elements of `x` and of their squares, with a part on each device.
    fn shared_sums(devices: &[Device], x: &[f32]) -> [u64; 2] {
        let (limit, on_gpus) = (Duration::from_secs(60), devices[0] != Device::Cpu);
        let group = on_gpus.then(|| PeerGroup::new(devices, limit).unwrap());
        // Parts of different sizes.
        let work = |row: usize| (row * row) as u64;
        let partition = Partition::balanced(x.len(), devices.len(), work).unwrap();
        let granularity = if on_gpus { gpu_part_rows(x.len()) } else { 1 };
        let partition = partition.rounded(granularity);
        let ranks = ThreadRank::group(devices.len(), limit, group.clone());
        // No part waits for another one while one loads kernels.
        let made = on_threads(&ranks, ranks.clone(), |rank| {
            let (device, own) = (&devices[rank.rank()], partition.rows(rank.rank()));
            let mut passes = Passes::new(&Stream::new(device)?, 64, Code::new())?;
            let sums = TreeSums::new(rank, partition.offsets(), group.as_ref())?;
            passes.share_sums(Arc::new(sums))?;
            Ok((passes, DeviceVec::from_slice(device, &x[own])?))
        });
        let call = group.as_ref().map(|group| group.call());
        let found = on_threads(&ranks, made.unwrap(), |(mut passes, x)| {
            let mut sum = || {
                let (at, then) = (8, Program::default());
                passes.dots(Dots {
                    of: &x,
                    with: None,
                    and: Some(&x),
                    at,
                    then,
                    backward: false,
                })?;
                passes.read()
            };
            let registers = match &call {
                Some(call) => call.run(sum),
                None => sum(),
            }?;
            Ok([registers[8].to_bits(), registers[9].to_bits()])
        });
        let found = found.unwrap();
        assert!(found.iter().all(|sums| *sums == found[0]), "{found:?}");
        found[0]
    }

    /// Checks that sums of one to three parts on some devices have the same bits, and are right.
    fn sums_do_not_depend_on_parts(devices: &[Device], len: usize) {
        let x = x_vector::<f32>(len);
        let found: Vec<_> =
            (1..=devices.len()).map(|parts| shared_sums(&devices[..parts], &x)).collect();
        assert!(found.iter().all(|sums| *sums == found[0]), "{found:?}");
        let exact = x.iter().map(|&x| f64::from(x)).fold([0.0; 2], |sums, x| add(sums, [x, x * x]));
        let near = |at: usize| (f64::from_bits(found[0][at]) - exact[at]).abs() <= 1e-9 * exact[1];
        assert!(near(0) && near(1), "{found:?}, {exact:?}");
    }

    #[test]
    fn sums_of_more_than_4096_blocks_have_the_bits_of_one_part() {
        assert!(MANY_BLOCKS.div_ceil(block_rows(MANY_BLOCKS)) > 4096);
        sums_do_not_depend_on_parts(&[const { Device::Cpu }; 3], MANY_BLOCKS);
    }

    #[test]
    fn sums_of_more_than_4096_blocks_have_the_bits_of_one_gpu() {
        assert!(MANY_GPU_BLOCKS.div_ceil(gpu_block_rows(MANY_GPU_BLOCKS)) > 4096);
        if gpu().is_some() {
            let gpus = Device::gpus();
            sums_do_not_depend_on_parts(&gpus[..gpus.len().min(3)], MANY_GPU_BLOCKS);
        }
    }

    #[test]
    fn a_tree_has_the_same_bits_however_it_is_cut() {
        let sums: Vec<Pair> =
            (0..23).map(|i| [0.1 * f64::from(i), 1e16 / f64::from(i + 1)]).collect();
        let whole = Subtrees::of(0, sums.iter().copied()).total();
        for cut in 0..=sums.len() {
            for other in cut..=sums.len() {
                let mut tree = Subtrees::default();
                for range in [0..cut, cut..other, other..sums.len()] {
                    let own = Subtrees::of(range.start, sums[range].iter().copied());
                    assert!(own.0.len() <= 2 * 5, "{}", own.0.len());
                    own.0.into_iter().for_each(|subtree| tree.push(subtree));
                }
                assert_eq!(tree.total().map(f64::to_bits), whole.map(f64::to_bits));
            }
        }
        assert_eq!(Subtrees::default().total(), [0.0; 2]);
    }
}
