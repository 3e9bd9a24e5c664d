//! SpMM with CSR on a GPU by i-nodes: consecutive rows with the same columns, as matrices of finite
//! elements have with several unknowns per node (*identical nodes*, PETSc).

use super::CsrBuffers;
use crate::device::{BLOCK, Buffer, Launch, Module, Queue, kernels};
use crate::formats::{DeviceVectors, UnitKernels};
use crate::{Error, Scalar, memory};
use std::sync::Arc;

/// Name of the kernel file.
const FILE: &str = "csr_inodes";

/// Largest number of rows of an i-node, and of entries of one. The same constants are in
/// `kernels/csr_inodes.cu`.
const MOST_ROWS: usize = 4;
const MOST_ENTRIES: usize = 2048;

/// Mean number of entries of a block, at most, and number of blocks per multiprocessor that a
/// matrix has if it has enough i-nodes.
const BLOCK_ENTRIES: usize = 1900;
const LEAST_BLOCKS: usize = 3;

/// Mean number of entries of a block, at least, unless the blocks are few per multiprocessor.
const LEAST_ENTRIES: usize = 500;
const FEW_BLOCKS: usize = 8;

/// Most bytes of dynamic shared memory of a block: four blocks fit a multiprocessor.
const MOST_SHARED: usize = 39 << 10;

/// Rows per i-node, by entries, and entries of its rows below which rows are multiplied one by one.
const LEAST_ROWS: f64 = 1.5;
const LEAST_LENGTH: usize = 16;

/// Largest ratio of the steps of a block, those of its longest rows, to the steps of as many
/// entries that are divided equally. Measured on an H200 with all lanes of the largest groups:
/// docs/history/2026-11-30-spmm-by-groups.md.
const MOST_STEPS: f64 = 0.6;

/// First row and first entry of an i-node. `Inode` in `kernels/csr_inodes.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub(super) struct InodeStart {
    row: u32,
    entry: u32,
}

/// The i-nodes of a matrix, and one more for their end. Row `i` has the columns of the row before
/// it if bit `i % 32` of word `i / 32` of `repeats` is set. `None` if a row is too long.
///
/// # Errors
///
/// [`Error::HostMemory`].
pub(super) fn inodes_of(
    row_ptr: &[usize],
    repeats: &[u32],
) -> Result<Option<Vec<InodeStart>>, Error> {
    let nrows = row_ptr.len() - 1;
    let repeated = |row: usize| repeats[row / 32] >> (row % 32) & 1 == 1;
    let inode = |row: usize| InodeStart { row: row as u32, entry: row_ptr[row] as u32 };
    let (mut inodes, mut row) = (Vec::new(), 0);
    while row < nrows {
        let end = (row + 1..nrows).find(|&next| !repeated(next)).unwrap_or(nrows);
        let length = row_ptr[row + 1] - row_ptr[row];
        if length > MOST_ENTRIES {
            return Ok(None);
        }
        let most = (MOST_ENTRIES / length.max(1)).min(MOST_ROWS);
        let (rows, parts) = (end - row, (end - row).div_ceil(most));
        for part in 0..parts {
            memory::push(&mut inodes, inode(row + rows * part / parts))?;
        }
        row = end;
    }
    memory::push(&mut inodes, inode(nrows))?;
    Ok(Some(inodes))
}

/// Work of the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blocks {
    /// Binary logarithm of the number of i-nodes of a block.
    nodes_shift: u32,
    /// Entries of the shared memory of a block.
    capacity: u32,
}

impl Blocks {
    /// The largest blocks of these i-nodes by which SpMM is faster than row by row.
    pub(super) fn of<T>(inodes: &[InodeStart], multiprocessors: usize) -> Option<Self> {
        let (count, nnz) = (inodes.len() - 1, inodes.last()?.entry as usize);
        let ranges = |shift: u32| {
            let starts = (0..count).step_by(1 << shift);
            starts.map(move |start| &inodes[start..=(start + (1 << shift)).min(count)])
        };
        // Copies begin up to three entries early and end up to three late.
        let capacity = |shift| {
            let entries = ranges(shift).map(|own| own[own.len() - 1].entry - own[0].entry);
            (entries.max().unwrap_or(0) + 6).next_multiple_of(8)
        };
        let longest = |own: &[InodeStart]| {
            let length =
                |pair: &[InodeStart]| (pair[1].entry - pair[0].entry) / (pair[1].row - pair[0].row);
            own.windows(2).map(length).max().map_or(0, u64::from)
        };
        let is_faster = |shift: u32| {
            let blocks = count.div_ceil(1 << shift);
            let is_large = blocks <= FEW_BLOCKS * multiprocessors || nnz >= LEAST_ENTRIES * blocks;
            let steps = ranges(shift).map(longest).sum::<u64>() << shift;
            is_large && steps as f64 <= MOST_STEPS * nnz as f64
        };
        let fits = |shift: u32| {
            let is_single = shift == 0;
            let is_small = nnz << shift <= BLOCK_ENTRIES * count;
            let are_enough = count >> shift >= LEAST_BLOCKS * multiprocessors;
            (is_single || is_small && are_enough)
                && shared_bytes::<T>(capacity(shift)) as usize <= MOST_SHARED
        };
        let mut shifts = (0..=BLOCK.ilog2()).rev();
        let nodes_shift = shifts.find(|&shift| fits(shift) && is_faster(shift))?;
        Some(Self { nodes_shift, capacity: capacity(nodes_shift) })
    }
}

/// Bytes of a capacity: a column and a value for each entry.
const fn shared_bytes<T>(capacity: u32) -> u32 {
    capacity * (size_of::<u32>() + size_of::<T>()) as u32
}

/// The i-nodes of a CSR matrix on its GPU.
#[derive(Debug)]
pub(super) struct Inodes {
    kernels: UnitKernels,
    pub(super) inodes: Arc<Buffer<InodeStart>>,
    blocks: Blocks,
}

impl Inodes {
    /// The i-nodes of a matrix, if SpMM is faster by them than row by row.
    ///
    /// # Errors
    ///
    /// Errors of the GPU and of kernel compilation.
    pub(super) fn of<T: Scalar>(matrix: &CsrBuffers<T>) -> Result<Option<Self>, Error> {
        let (gpu, nrows, nnz) = (matrix.gpu, matrix.nrows, matrix.values.len());
        if nnz == 0 || u32::try_from(nnz).is_err() {
            return Ok(None);
        }
        let repeats = gpu.uninitialised::<u32>(nrows.div_ceil(32))?;
        let alike = gpu.zeroed::<u64>(1)?;
        let launch = Launch::over(nrows, 1).with(kernels::csr_inodes::RepeatedRows {
            row_ptr: matrix.row_ptr.ptr(),
            cols: matrix.col_idx.ptr(),
            nrows: nrows as u32,
            repeats: repeats.ptr(),
            alike: alike.ptr(),
        });
        let module = Module::from(FILE);
        let name = format!("csr_repeated_rows_{}", matrix.row_ptr.name());
        // SAFETY: the kernel has a thread for every row, and reads offsets of this width; the
        // arrays outlive the wait for `alike`.
        unsafe { gpu.kernel(module, &name)?.launch(gpu.queue(), launch)? };
        let first_rows = nnz as u64 - alike.to_vec()?[0];
        if (nnz as f64) < LEAST_ROWS * first_rows as f64 || nnz < LEAST_LENGTH * nrows {
            return Ok(None);
        }
        let inodes = inodes_of(&matrix.row_ptr.to_vec()?, &repeats.to_vec()?)?;
        let Some(inodes) = inodes else { return Ok(None) };
        let Some(blocks) = Blocks::of::<T>(&inodes, gpu.multiprocessors()) else { return Ok(None) };
        let kernels =
            UnitKernels::load::<T>(gpu, module, |unit| format!("csr_inodes_{}x{unit}", T::KIND))?;
        Ok(Some(Self { kernels, inodes: Arc::new(gpu.upload(&inodes)?), blocks }))
    }

    /// Bytes of the table.
    pub(super) fn bytes(&self) -> u64 {
        self.inodes.bytes()
    }

    /// Multiplies as many units of vectors as a group has lanes.
    ///
    /// # Safety
    ///
    /// As of [`DeviceSpmm::multiply`](crate::formats::DeviceSpmm::multiply).
    pub(super) unsafe fn multiply<T: Scalar>(
        &self,
        matrix: &CsrBuffers<T>,
        queue: &Queue,
        vectors: DeviceVectors<T>,
    ) -> Result<(), Error> {
        // A graph owns the memory it uses.
        if queue.records() {
            queue.keep(self.inodes.clone());
        }
        let (unit, kernel) = self.kernels.of(&vectors);
        let lanes = vectors.count.div_ceil(unit).next_power_of_two();
        let Blocks { nodes_shift, capacity } = self.blocks;
        let count = self.inodes.len() - 1;
        let blocks = count.div_ceil(1 << nodes_shift) as u32;
        let launch = Launch::new(blocks, BLOCK).with_shared(shared_bytes::<T>(capacity));
        let launch = launch.with(kernels::csr_inodes::Inodes {
            cols: matrix.col_idx.ptr(),
            values: matrix.values.ptr(),
            nnz: matrix.values.len() as u64,
            inodes: self.inodes.ptr(),
            inode_count: count as u32,
            nodes_shift,
            vectors: vectors.in_units(unit),
            shift: lanes.trailing_zeros(),
            capacity,
        });
        // SAFETY: the i-nodes are those of the matrix, the kernel is for these units, of which a
        // group has one per lane, and a block has shared memory for its entries. The vectors are
        // the caller's promise.
        unsafe { kernel.launch(queue, launch) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets of rows of these lengths, and the bits of those that repeat the row before them.
    fn rows(lengths: &[(usize, bool)]) -> (Vec<usize>, Vec<u32>) {
        let (mut row_ptr, mut repeats) = (vec![0], vec![0; lengths.len().div_ceil(32)]);
        for (row, (length, repeated)) in lengths.iter().enumerate() {
            row_ptr.push(row_ptr[row] + length);
            repeats[row / 32] |= u32::from(*repeated) << (row % 32);
        }
        (row_ptr, repeats)
    }

    fn first_rows(lengths: &[(usize, bool)]) -> Option<Vec<u32>> {
        let (row_ptr, repeats) = rows(lengths);
        let inodes = inodes_of(&row_ptr, &repeats).unwrap()?;
        let is_entry = |inode: &InodeStart| inode.entry as usize == row_ptr[inode.row as usize];
        assert!(inodes.iter().all(is_entry));
        Some(inodes.iter().map(|inode| inode.row).collect())
    }

    #[test]
    fn inodes_have_at_most_four_rows_of_2048_entries() {
        let alike =
            |count: usize, length| (0..count).map(|row| (length, row > 0)).collect::<Vec<_>>();
        assert_eq!(first_rows(&[]), Some(vec![0]));
        assert_eq!(first_rows(&alike(3, 70)), Some(vec![0, 3]));
        assert_eq!(first_rows(&alike(6, 70)), Some(vec![0, 3, 6]));
        assert_eq!(first_rows(&alike(5, 0)), Some(vec![0, 2, 5]));
        assert_eq!(first_rows(&alike(3, 1024)), Some(vec![0, 1, 3]));
        assert_eq!(first_rows(&alike(2, 2048)), Some(vec![0, 1, 2]));
        assert_eq!(first_rows(&alike(1, 2049)), None);
        let mixed = [alike(2, 5), alike(1, 5), alike(40, 3)].concat();
        let mut expected = vec![0, 2];
        expected.extend((3..=43).step_by(4));
        assert_eq!(first_rows(&mixed), Some(expected));
    }

    #[test]
    fn blocks_hold_their_inodes_and_are_balanced() {
        let table = |count: usize, lengths: &[usize], rows: u32| {
            let length = |node: usize| lengths[node % lengths.len()] as u32;
            let mut inodes = vec![InodeStart { row: 0, entry: 0 }];
            for node in 0..count {
                let InodeStart { row, entry } = inodes[node];
                inodes.push(InodeStart { row: row + rows, entry: entry + rows * length(node) });
            }
            inodes
        };
        let blocks =
            |count, lengths: &[usize], rows| Blocks::of::<f64>(&table(count, lengths, rows), 132);
        let of = |nodes_shift, capacity| Some(Blocks { nodes_shift, capacity });
        assert_eq!(blocks(60_000, &[70], 3), of(3, 8 * 210 + 8));
        assert_eq!(blocks(1830, &[51], 3), of(2, 4 * 153 + 12));
        assert_eq!(blocks(100, &[500], 4), of(0, 2008), "one for each multiprocessor");
        assert_eq!(blocks(60_000, &[10, 100], 2), None, "long ones");
        assert_eq!(blocks(60_000, &[60, 60, 200, 200], 2), of(1, 808), "pairs of equal lengths");
        assert_eq!(blocks(60_000, &[70], 1), None, "no rows alike");
        let some_long = [vec![300; 400], vec![1000; 200]].concat();
        assert_eq!(blocks(6000, &some_long, 2), of(0, 2008), "as many as fit the shared memory");
        let few_long = [vec![1; 4000], vec![1000; 200]].concat();
        assert_eq!(blocks(60_000, &few_long, 2), None, "small blocks");
        let kernel = include_str!("../../../../kernels/csr_inodes.cu");
        let constants = format!("MOST_ROWS = {MOST_ROWS}, MOST_ENTRIES = {MOST_ENTRIES};");
        assert!(kernel.contains(&constants), "{constants}");
    }
}
