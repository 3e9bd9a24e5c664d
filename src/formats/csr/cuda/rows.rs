//! SpMM with CSR on a GPU row by row, where rows are about equally long, or by i-nodes: consecutive
//! rows with the same columns, as matrices of finite elements have with several unknowns per node
//! (*identical nodes*, PETSc).

use super::CsrBuffers;
use super::spmm_times::{LengthSums, RowSplit, RowTerms, of_groups};
use crate::device::{BLOCK, Buffer, Launch, Module, Queue, kernels};
use crate::formats::{DeviceVectors, UnitKernels};
use crate::{Error, ErrorKind, Scalar, memory};
use std::sync::Arc;

/// Name of the kernel file.
const FILE: &str = "csr_rows";

/// Largest number of rows of an i-node: the same constant is in `kernels/csr_rows.cu`.
const MOST_ROWS: usize = 3;

/// Least mean number of rows of an i-node, by entries.
const LEAST_ROWS: f64 = 1.3;

/// Number of kernel choices: for up to 1, 2, 4, 8 and 16 units of vectors.
pub(super) const SHIFTS: usize = 5;

/// Groups of lanes of a kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupShape {
    /// Binary logarithm of the number of lanes of a group.
    pub(super) lane_shift: u32,
    /// Number of threads of a block.
    threads: u32,
    /// Number of rows that a group multiplies together, at most.
    rows: usize,
    /// Number of entries of a row that a group copies at a time, a multiple of four.
    stage: u32,
}

impl GroupShape {
    /// Of rows one by one, for up to `1 << shift` units of vectors. Of more than eight, each lane
    /// has a pair, so that twice as many rows are multiplied at the same time.
    pub(super) const fn of_rows(shift: u32) -> Self {
        if Self::has_pairs(shift) {
            return Self { lane_shift: shift - 1, threads: BLOCK / 2, rows: 1, stage: 8 };
        }
        Self { lane_shift: shift, threads: BLOCK, rows: 1, stage: staged(4 << shift) }
    }

    /// Of i-nodes, for up to `1 << shift` units of vectors.
    const fn of_inodes(shift: u32) -> Self {
        let stage = staged(if shift == 0 { 4 } else { 2 << shift });
        Self { lane_shift: shift, threads: BLOCK, rows: MOST_ROWS, stage }
    }

    /// True if a lane has a pair of `1 << shift` units.
    const fn has_pairs(shift: u32) -> bool {
        shift as usize == SHIFTS - 1
    }

    /// Bytes of shared memory of a block: columns, and values of all rows, of two copies.
    const fn shared_bytes<T>(self) -> u32 {
        let groups = self.threads >> self.lane_shift;
        let entry = size_of::<u32>() + self.rows * size_of::<T>();
        2 * groups * self.stage * entry as u32
    }

    /// Launch for so many rows or i-nodes, of which `1 << split` groups share each.
    fn launch<T>(self, items: usize, split: u32) -> Launch {
        let blocks = items.div_ceil((self.threads >> (self.lane_shift + split)) as usize) as u32;
        Launch::new(blocks, self.threads).with_shared(self.shared_bytes::<T>())
    }
}

/// `entries`, or the most that a group copies at a time.
const fn staged(entries: u32) -> u32 {
    if entries < 16 { entries } else { 16 }
}

/// First row and first entry of an i-node. `Inode` in `kernels/csr_rows.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub(super) struct InodeStart {
    row: u32,
    entry: u32,
}

/// The i-nodes of a matrix, and one more for their end. Row `i` has the columns of the row before
/// it if bit `i % 32` of word `i / 32` of `repeats` is set.
///
/// # Errors
///
/// [`Error::HostMemory`].
pub(super) fn inodes_of(row_ptr: &[usize], repeats: &[u32]) -> Result<Vec<InodeStart>, Error> {
    let nrows = row_ptr.len() - 1;
    let repeated = |row: usize| repeats[row / 32] >> (row % 32) & 1 == 1;
    let inode = |row: usize| InodeStart { row: row as u32, entry: row_ptr[row] as u32 };
    let (mut inodes, mut row) = (Vec::new(), 0);
    while row < nrows {
        let end = (row + 1..nrows).find(|&next| !repeated(next)).unwrap_or(nrows);
        let (rows, parts) = (end - row, (end - row).div_ceil(MOST_ROWS));
        for part in 0..parts {
            memory::push(&mut inodes, inode(row + rows * part / parts))?;
        }
        row = end;
    }
    memory::push(&mut inodes, inode(nrows))?;
    Ok(inodes)
}

/// Choice of a kernel of SpMM for groups of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelChoice {
    /// Groups share all entries: [`Groups`](super::spmm).
    Groups,
    /// `1 << split` groups sum a row.
    Rows { split: u32 },
    /// `1 << split` groups sum an i-node.
    Inodes { split: u32 },
}

/// Choices for up to 1, 2, 4, 8 and 16 units of vectors.
pub(super) type KernelChoices = [KernelChoice; SHIFTS];

/// The fastest kernels for a matrix whose rows, and i-nodes if it has some, have these lengths.
pub(super) fn fastest_kernels(
    (nrows, nnz): (usize, usize),
    rows: &LengthSums,
    inodes: Option<(&LengthSums, usize)>,
    multiprocessors: usize,
) -> KernelChoices {
    std::array::from_fn(|shift| {
        let shift = shift as u32;
        let terms =
            if GroupShape::has_pairs(shift) { RowTerms::ROWS_BY_PAIRS } else { RowTerms::ROWS };
        let lane_shift = GroupShape::of_rows(shift).lane_shift;
        let RowSplit { split, microseconds } =
            terms.fastest(rows, nrows, lane_shift, multiprocessors);
        let groups = of_groups(nrows, nnz, shift, multiprocessors);
        let fastest = match microseconds < groups {
            true => (KernelChoice::Rows { split }, microseconds),
            false => (KernelChoice::Groups, groups),
        };
        // A group of one lane would copy less than four entries.
        let Some((lengths, count)) = inodes.filter(|_| shift > 0) else { return fastest.0 };
        let inodes = RowTerms::INODES.fastest(lengths, count, shift, multiprocessors);
        match inodes.microseconds < fastest.1 {
            true => KernelChoice::Inodes { split: inodes.split },
            false => fastest.0,
        }
    })
}

/// SpMM row by row with a CSR matrix on its GPU.
#[derive(Debug)]
pub(super) struct RowSpmm {
    kernels: KernelChoices,
    rows: Option<UnitKernels>,
    /// Those of lanes with pairs of units.
    rows_by_pairs: Option<UnitKernels>,
    inodes: Option<(UnitKernels, Arc<Buffer<InodeStart>>)>,
}

impl RowSpmm {
    /// Measures the rows of a matrix, and loads the kernels that are the fastest for some number of
    /// units, those of i-nodes if `has_tables` and there is memory for theirs.
    ///
    /// # Errors
    ///
    /// Errors of the GPU and of kernel compilation.
    pub(super) fn of<T: Scalar>(matrix: &CsrBuffers<T>, has_tables: bool) -> Result<Self, Error> {
        let (gpu, nrows, nnz) = (matrix.gpu, matrix.nrows, matrix.values.len());
        let fits_u32 = u32::try_from(nrows.saturating_add(BLOCK as usize)).is_ok();
        if nnz == 0 || !fits_u32 {
            return Self::load(matrix, [KernelChoice::Groups; SHIFTS], None);
        }
        let (lengths, repeats) = measure(matrix)?;
        let fastest = |inodes: Option<(&LengthSums, usize)>| {
            fastest_kernels((nrows, nnz), &lengths, inodes, gpu.multiprocessors())
        };
        let with_inodes = || -> Result<Option<Self>, Error> {
            let Some(table) = inodes(matrix, &lengths, &repeats)? else { return Ok(None) };
            let length =
                |pair: &[InodeStart]| (pair[1].entry - pair[0].entry) / (pair[1].row - pair[0].row);
            let of_inodes = LengthSums::of(table.windows(2).map(length));
            let kernels = fastest(Some((&of_inodes, table.len() - 1)));
            Self::load(matrix, kernels, Some(&table)).map(Some)
        };
        let with_inodes = if has_tables { with_inodes() } else { Ok(None) };
        match with_inodes {
            Ok(Some(rows)) => Ok(rows),
            Err(error) if error.kind() != ErrorKind::OutOfMemory => Err(error),
            _ => Self::load(matrix, fastest(None), None),
        }
    }

    /// Loads the kernels that are chosen, for a matrix with these i-nodes.
    ///
    /// # Errors
    ///
    /// Errors of the GPU and of kernel compilation.
    pub(super) fn load<T: Scalar>(
        matrix: &CsrBuffers<T>,
        kernels: KernelChoices,
        inodes: Option<&[InodeStart]>,
    ) -> Result<Self, Error> {
        let gpu = matrix.gpu;
        let load = |name: &str, offset: &str| {
            UnitKernels::load::<T>(gpu, Module::from(FILE), |unit| {
                format!("csr_{name}_{}x{unit}{offset}", T::KIND)
            })
        };
        let is_rows = |kernel: &KernelChoice| matches!(kernel, KernelChoice::Rows { .. });
        let is_inodes = |kernel: &KernelChoice| matches!(kernel, KernelChoice::Inodes { .. });
        let has_inodes = kernels.iter().any(is_inodes);
        debug_assert!(inodes.is_some() || !has_inodes, "i-nodes without their table");
        let row_kernels = |name| load(name, &format!("_{}", matrix.row_ptr.name()));
        let [few @ .., many] = &kernels;
        let rows = few.iter().any(is_rows).then(|| row_kernels("rows")).transpose()?;
        let rows_by_pairs = is_rows(many).then(|| row_kernels("rows_by_pairs")).transpose()?;
        let inodes = match inodes.filter(|_| has_inodes) {
            Some(table) => Some((load("inodes", "")?, Arc::new(gpu.upload(table)?))),
            None => None,
        };
        Ok(Self { kernels, rows, rows_by_pairs, inodes })
    }

    /// True if groups are the fastest for some number of units.
    pub(super) fn needs_groups(&self) -> bool {
        self.kernels.contains(&KernelChoice::Groups)
    }

    /// Bytes of the table of i-nodes.
    pub(super) fn bytes(&self) -> u64 {
        self.inodes.as_ref().map_or(0, |(_, table)| table.bytes())
    }

    /// Multiplies up to 16 units of vectors. False if that is the work of
    /// [groups](KernelChoice::Groups).
    ///
    /// # Safety
    ///
    /// As of [`DeviceSpmm::multiply`](crate::formats::DeviceSpmm::multiply).
    pub(super) unsafe fn multiply<T: Scalar>(
        &self,
        matrix: &CsrBuffers<T>,
        queue: &Queue,
        vectors: DeviceVectors<T>,
    ) -> Result<bool, Error> {
        let unit = vectors.unit().expect("the caller has vectors with a unit");
        let shift = vectors.lane_shift(unit);
        let (cols, values) = (matrix.col_idx.ptr(), matrix.values.ptr());
        let kernel_for = |kernels: &UnitKernels| *kernels.of(&vectors).1;
        let rows = if GroupShape::has_pairs(shift) { &self.rows_by_pairs } else { &self.rows };
        let (kernel, launch) = match (self.kernels[shift as usize], rows, &self.inodes) {
            (KernelChoice::Rows { split }, Some(kernels), _) => {
                let shape = GroupShape::of_rows(shift);
                let launch = shape.launch::<T>(matrix.nrows, split).with(kernels::csr_rows::Rows {
                    row_ptr: matrix.row_ptr.ptr(),
                    cols,
                    values,
                    nrows: matrix.nrows as u32,
                    vectors: vectors.in_units(unit),
                    shift: shape.lane_shift,
                    split,
                    stage: shape.stage,
                });
                (kernel_for(kernels), launch)
            }
            (KernelChoice::Inodes { split }, _, Some((kernels, table))) => {
                // A graph owns the memory it uses.
                if queue.records() {
                    queue.keep(table.clone());
                }
                let (count, shape) = (table.len() - 1, GroupShape::of_inodes(shift));
                let launch = shape.launch::<T>(count, split).with(kernels::csr_rows::Inodes {
                    cols,
                    values,
                    inodes: table.ptr(),
                    inode_count: count as u32,
                    vectors: vectors.in_units(unit),
                    shift: shape.lane_shift,
                    split,
                    stage: shape.stage,
                });
                (kernel_for(kernels), launch)
            }
            _ => return Ok(false),
        };
        // SAFETY: the kernel is for offsets of this width and these units, all of which the lanes
        // of a group have; the i-nodes are those of the matrix. A block has shared memory for the
        // entries that its groups copy at a time. The vectors are the caller's promise.
        unsafe { kernel.launch(queue, launch)? };
        Ok(true)
    }
}

/// Row lengths of a matrix, and the bits of rows with the columns of the row before them.
pub(super) fn measure<T: Scalar>(
    matrix: &CsrBuffers<T>,
) -> Result<(LengthSums, Buffer<u32>), Error> {
    let (gpu, nrows) = (matrix.gpu, matrix.nrows);
    let repeats = gpu.uninitialised::<u32>(nrows.div_ceil(32))?;
    let total = gpu.zeroed::<LengthSums>(1)?;
    let launch = Launch::over(nrows, 1).with(kernels::csr_rows::Lengths {
        row_ptr: matrix.row_ptr.ptr(),
        cols: matrix.col_idx.ptr(),
        nrows: nrows as u32,
        repeats: repeats.ptr(),
        total: total.ptr(),
    });
    let name = format!("csr_row_lengths_{}", matrix.row_ptr.name());
    // SAFETY: the kernel has a thread for every row, and reads offsets of this width; the arrays
    // outlive the wait for the sums.
    unsafe { gpu.kernel(Module::from(FILE), &name)?.launch(gpu.queue(), launch)? };
    Ok((total.to_vec()?[0], repeats))
}

/// The i-nodes of a matrix, if they have several rows each.
fn inodes<T: Scalar>(
    matrix: &CsrBuffers<T>,
    lengths: &LengthSums,
    repeats: &Buffer<u32>,
) -> Result<Option<Vec<InodeStart>>, Error> {
    let nnz = matrix.values.len();
    let distinct = nnz as u64 - lengths.repeated;
    if u32::try_from(nnz).is_err() || (nnz as f64) < LEAST_ROWS * distinct as f64 {
        return Ok(None);
    }
    inodes_of(&matrix.row_ptr.to_vec()?, &repeats.to_vec()?).map(Some)
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

    fn first_rows(lengths: &[(usize, bool)]) -> Vec<u32> {
        let (row_ptr, repeats) = rows(lengths);
        let inodes = inodes_of(&row_ptr, &repeats).unwrap();
        let is_entry = |inode: &InodeStart| inode.entry as usize == row_ptr[inode.row as usize];
        assert!(inodes.iter().all(is_entry));
        inodes.iter().map(|inode| inode.row).collect()
    }

    #[test]
    fn inodes_have_at_most_three_rows() {
        let alike =
            |count: usize, length| (0..count).map(|row| (length, row > 0)).collect::<Vec<_>>();
        assert_eq!(first_rows(&[]), [0]);
        assert_eq!(first_rows(&alike(3, 70)), [0, 3]);
        assert_eq!(first_rows(&alike(4, 70)), [0, 2, 4]);
        assert_eq!(first_rows(&alike(5, 0)), [0, 2, 5]);
        let mixed = [alike(2, 5), alike(1, 5), alike(30, 3)].concat();
        let mut expected = vec![0, 2];
        expected.extend((3..=33).step_by(3));
        assert_eq!(first_rows(&mixed), expected);
        let kernel = include_str!("../../../../kernels/csr_rows.cu");
        assert!(kernel.contains(&format!("constexpr u32 MOST_ROWS = {MOST_ROWS};")));
    }

    #[test]
    fn rows_of_equal_length_are_multiplied_one_by_one_and_others_by_groups() {
        let kernels = |lengths: &[u32]| {
            let nnz = lengths.iter().map(|&length| length as usize).sum();
            fastest_kernels(
                (lengths.len(), nnz),
                &LengthSums::of(lengths.iter().copied()),
                None,
                132,
            )
        };
        let of_stencil = kernels(&[27; 512_000]);
        assert!(of_stencil.iter().all(|kernel| matches!(kernel, KernelChoice::Rows { .. })));
        let mut with_long_row = vec![27; 512_000];
        with_long_row[3] = 100_000;
        assert_eq!(kernels(&with_long_row), [KernelChoice::Groups; SHIFTS]);
    }

    #[test]
    fn inodes_are_multiplied_together_where_they_have_several_rows() {
        let (rows, inodes) = (LengthSums::of([70; 60_000]), LengthSums::of([70; 20_000]));
        let kernels = fastest_kernels((60_000, 4_200_000), &rows, Some((&inodes, 20_000)), 132);
        let [single, several @ ..] = kernels;
        assert!(!matches!(single, KernelChoice::Inodes { .. }));
        assert!(several.iter().all(|kernel| matches!(kernel, KernelChoice::Inodes { .. })));
    }

    #[test]
    fn the_shared_memory_of_a_block_needs_no_permission() {
        for shift in 0..SHIFTS as u32 {
            let shapes = [GroupShape::of_rows(shift), GroupShape::of_inodes(shift)];
            assert!(shapes.iter().all(|shape| shape.stage.is_multiple_of(4)));
            let used = &shapes[..if shift == 0 { 1 } else { 2 }];
            assert!(used.iter().all(|shape| shape.shared_bytes::<f64>() <= 32 << 10), "{shift}");
        }
    }
}
