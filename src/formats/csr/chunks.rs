//! Equal chunks of work for the blocks of a GPU.

use super::constants::RESERVE;
use crate::analysis::{Analysis, GpuColumns, RowStats, Sampler};
#[cfg(test)]
use crate::device::cpu::last_at_most;
use crate::device::{BLOCK, CsrSource};
use crate::{Error, Scalar, ScalarKind, parallel};
use std::ops::Range;

/// Consecutive entries of a thread, and the least number of entries and row ends of a matrix for
/// that number. A smaller matrix has smaller chunks, so that every multiprocessor of a large GPU
/// has some: an H200 has 132. If rows are too long for that, chunks are larger. The kernels are
/// `csr_balanced2` to `csr_balanced8` in `kernels/csr.cu`, and those of `kernels/csr_spmm.cu`.
const RUNS: [(u64, u64); 3] = [(2, 0), (4, 1 << 17), (8, 300_000)];

/// True if the columns are so contiguous that consecutive threads of a chunk should load
/// consecutive entries (`STRIPED` in `kernels/csr_chunks.cuh`), by a sample of the columns.
fn striped<T: Scalar>(a: Sampler<'_>) -> Result<bool, Error> {
    /// Number of sampled windows, approximately.
    const WINDOWS: usize = 64;
    /// Entries of a window.
    const WINDOW: usize = 1024;
    let nnz = a.nnz();
    let Some(least) = least_contiguous(T::KIND, a.nrows(), nnz) else { return Ok(false) };
    let distance = (nnz / WINDOWS).max(WINDOW);
    let windows = (0..nnz).step_by(distance).map(|start| start..(start + WINDOW).min(nnz));
    let sample = a.columns(windows.collect())?.wait()?;
    let pairs = (0..sample.len()).flat_map(|i| sample.get(i).windows(2));
    let (following, all) = pairs.fold((0, 0), |(following, all), pair| {
        (following + usize::from(pair[1] == pair[0].wrapping_add(1)), all + 1)
    });
    Ok(following as f64 > least * all as f64)
}

/// Share of columns that follow the one before, from which on the striped arrangement is faster.
/// `None` if it never is: in `f32`, whose lines hold twice as many columns, the exchange of
/// products costs more than it saves unless rows are long. Measured on an H200 on 97 matrices.
fn least_contiguous(scalar: ScalarKind, nrows: usize, nnz: usize) -> Option<f64> {
    match scalar {
        ScalarKind::F64 => Some(0.1),
        ScalarKind::F32 => (nnz >= 60 * nrows).then_some(0.2),
    }
}

/// Size of the chunks of a matrix on a GPU, and the order in which they are loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkOptions {
    pub(super) size: ChunkSize,
    /// True if consecutive threads load consecutive entries of a chunk.
    pub(super) striped: bool,
}

impl ChunkOptions {
    /// Options for a matrix with the given row offsets.
    ///
    /// # Errors
    ///
    /// Errors of a GPU that has the matrix in its memory.
    pub(super) fn of<T: Scalar>(a: Sampler<'_>, row_ptr: &[usize]) -> Result<Self, Error> {
        Self::with_size::<T>(a, ChunkSize::of_rows(row_ptr))
    }

    /// Options for a matrix in the memory of a GPU.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    pub(super) fn of_source<T: Scalar>(source: &CsrSource<T>) -> Result<Self, Error> {
        let (nrows, nnz) = (source.nrows as u64, source.nnz() as u64);
        let size = match ChunkSize::of_size(nrows, nnz) {
            Some(size) => size,
            // There are few rows.
            None => ChunkSize::of_rows(&source.row_ptr.to_vec()?),
        };
        Self::with_size::<T>(Sampler::Gpu(&GpuColumns::for_samples(source)?), size)
    }

    fn with_size<T: Scalar>(a: Sampler<'_>, size: ChunkSize) -> Result<Self, Error> {
        let striped = size.is_largest() && striped::<T>(a)?;
        Ok(Self { size, striped })
    }

    /// Options that an analysed matrix is expected to have.
    pub(super) fn expected(analysis: &Analysis, scalar: ScalarKind) -> Self {
        let (rows, size) = (&analysis.rows, ChunkSize::of_analyzed(&analysis.rows));
        let least = least_contiguous(scalar, rows.nrows, rows.nnz as usize);
        let is_contiguous = least.is_some_and(|least| analysis.structure.contiguous > least);
        let striped = size.is_largest() && is_contiguous;
        Self { size, striped }
    }
}

/// Positions of the cuts between chunks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cuts {
    /// Entries plus row ends between two cuts.
    pub(super) spacing: u64,
    /// A cut is moved back to the beginning of its row if the row has at most this number of
    /// entries before it.
    pub(super) max_move: u64,
}

impl Cuts {
    /// Number of chunks of a matrix.
    pub(super) const fn count(&self, nrows: u64, nnz: u64) -> u64 {
        (nrows + nnz).div_ceil(self.spacing)
    }
}

/// Size of the chunks of SpMV.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkSize {
    /// Consecutive entries of a thread.
    run: u64,
    cuts: Cuts,
}

impl ChunkSize {
    /// For a matrix of this size with `longer(len)` entries in rows of more than `len`: the
    /// smallest chunks for its size of which at most a tenth of the entries are in rows that may be
    /// cut.
    pub(super) fn of(nrows: u64, nnz: u64, longer: impl Fn(u64) -> u64) -> Self {
        let large_enough = RUNS.iter().rposition(|(_, least)| nrows + nnz >= *least).unwrap_or(0);
        let [.., (longest, _)] = RUNS;
        let mut sizes = RUNS[large_enough..].iter().map(|(run, _)| Self::with_run(*run));
        // Whatever the rows, no chunks are larger than the largest.
        let fits = |size: &Self| size.run == longest || longer(size.cuts.max_move) * 10 <= nnz;
        sizes.find(fits).unwrap_or(Self::with_run(longest))
    }

    /// For a matrix of this size, if its rows do not matter.
    fn of_size(nrows: u64, nnz: u64) -> Option<Self> {
        let [.., (longest, least)] = RUNS;
        (nrows + nnz >= least).then_some(Self::with_run(longest))
    }

    /// For a matrix with these row statistics.
    pub(super) fn of_analyzed(rows: &RowStats) -> Self {
        let longer = |len| rows.nnz - rows.histogram.entries_up_to(len as u32);
        Self::of(rows.nrows as u64, rows.nnz, longer)
    }

    /// For a matrix with the given row offsets.
    pub(super) fn of_rows(row_ptr: &[usize]) -> Self {
        /// Rows whose lengths a task sums.
        const TASK: usize = 1 << 14;
        let nrows = row_ptr.len() - 1;
        let longer = |len| {
            let of_task = |rows: Range<usize>| -> u64 {
                let ends = row_ptr[rows.start..=rows.end].windows(2);
                ends.map(|pair| (pair[1] - pair[0]) as u64).filter(|&own| own > len).sum()
            };
            parallel::map_ranges(nrows, TASK, of_task).into_iter().sum()
        };
        Self::of(nrows as u64, row_ptr[nrows] as u64, longer)
    }

    /// Chunks for blocks whose threads have `run` entries. The difference between capacity and
    /// spacing is reserved for cuts that are moved back, and for loads of four entries that begin
    /// up to three early.
    const fn with_run(run: u64) -> Self {
        let capacity = run * BLOCK as u64;
        let reserve = capacity / RESERVE as u64;
        Self { run, cuts: Cuts { spacing: capacity - reserve, max_move: reserve - 4 } }
    }

    /// Consecutive entries of a thread.
    pub(super) const fn run(&self) -> u64 {
        self.run
    }

    pub(super) const fn cuts(&self) -> Cuts {
        self.cuts
    }

    /// True for the largest chunks, the only ones with a striped kernel.
    pub(super) const fn is_largest(&self) -> bool {
        let [.., (longest, _)] = RUNS;
        self.run == longest
    }

    /// Bytes of the chunk table of a matrix.
    pub(super) const fn bytes(&self, nrows: u64, nnz: u64) -> u64 {
        (self.cuts.count(nrows, nnz) + 1) * size_of::<Chunk>() as u64
    }
}

/// Beginning of a chunk: in row `row`, at number `chunk · spacing - row - moved` of all entries.
/// `Chunk` in `kernels/csr_chunks.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(16))]
pub(super) struct Chunk {
    /// Number of rows that end before it.
    row: u32,
    /// Distance by which the cut was moved back.
    moved: u32,
    /// The chunk with the first entries of `row`: this one, unless the row is cut here.
    first: u32,
    /// The chunk with the end of `row`; unused unless the row is cut here.
    last: u32,
}

/// The chunks of a matrix, and one more for their end, as `csr_chunks` in `kernels/csr.cu` makes
/// them.
///
/// Entries and row ends are counted together, in order, and cut into chunks of equal length. A cut
/// that would leave only a few entries of its row behind is moved back, so that short rows are
/// never cut.
#[cfg(test)]
pub(super) fn chunk_table(row_ptr: &[usize], cuts: Cuts) -> Vec<Chunk> {
    let nrows = row_ptr.len() - 1;
    let (spacing, max_move) = (cuts.spacing as usize, cuts.max_move as usize);
    // Entries and row ends before the entries of a row.
    let before = |row: usize| row_ptr[row] + row;
    let chunk = |number: usize| {
        let cut = (number * spacing).min(before(nrows));
        let row = last_at_most(0..nrows + 1, cut, before);
        let behind = cut - before(row);
        let (moved, first, last) = if behind <= max_move {
            (behind, number, number)
        } else {
            // The next cut may be moved back to the beginning of the row.
            let first = (before(row) + max_move) / spacing;
            (0, first, (before(row) + row_ptr[row + 1] - row_ptr[row]) / spacing)
        };
        // There are fewer than 2³² rows, and fewer chunks of any matrix that fits a machine.
        Chunk { row: row as u32, moved: moved as u32, first: first as u32, last: last as u32 }
    };
    let count = cuts.count(nrows as u64, row_ptr[nrows] as u64) as usize;
    (0..=count).map(chunk).collect()
}

/// True if any row is cut.
#[cfg(test)]
pub(super) fn any_cut(chunks: &[Chunk]) -> bool {
    (0..).zip(chunks).any(|(number, chunk)| chunk.first != number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::CsrView;
    use proptest::prelude::*;

    /// The smallest possible size: chunks of 60, and no cut is moved.
    const MIN: Cuts = Cuts { spacing: 60, max_move: 0 };

    fn offsets(lengths: &[usize]) -> Vec<usize> {
        let ends = lengths.iter().scan(0, |end, len| {
            *end += len;
            Some(*end)
        });
        std::iter::once(0).chain(ends).collect()
    }

    #[test]
    fn chunks_by_hand() {
        let cuts = ChunkSize::with_run(8).cuts;
        let uncut = |row, moved, number| Chunk { row, moved, first: number, last: number };
        assert_eq!(chunk_table(&[0], cuts), [uncut(0, 0, 0)], "no rows, no chunks");
        assert_eq!(
            chunk_table(&[0; 5], cuts),
            [uncut(0, 0, 0), uncut(4, 0, 1)],
            "four row ends in one chunk"
        );
        // The first cut, at 1920, has 5 entries of the second row before it and is moved; the other
        // two cut it. The row and its end take the places 1915 to 6915.
        let row = |first, last| Chunk { row: 1, moved: 0, first, last };
        let table = chunk_table(&offsets(&[1914, 5000, 0]), cuts);
        assert_eq!(table, [uncut(0, 0, 0), uncut(1, 5, 1), row(1, 3), row(1, 3), uncut(3, 0, 4)]);
        assert!(any_cut(&table) && !any_cut(&table[..2]));
    }

    #[test]
    fn the_kernel_cuts_alike() {
        let chunks = include_str!("../../../kernels/csr_chunks.cuh");
        assert!(chunks.contains("SPACING = CAPACITY - CAPACITY / RESERVE;"));
        let (spmv, spmm) =
            (include_str!("../../../kernels/csr.cu"), include_str!("../../../kernels/csr_spmm.cu"));
        for (run, least) in RUNS {
            let instance = format!("BALANCED(csr_balanced{run}_##SUFFIX, {run}, false, T, O)");
            assert!(spmv.contains(&instance));
            assert!(spmm.contains(&format!("SPMM(csr_spmm_chunks{run}_##SUFFIX, {run}, T, N, O)")));
            assert_eq!(ChunkSize::of(0, least, |_| 0).run(), run);
        }
    }

    #[test]
    fn small_matrices_have_small_chunks_where_rows_are_short() {
        let run = |nnz, longest: u64| {
            ChunkSize::of(0, nnz, |len| if longest > len { nnz } else { 0 }).run()
        };
        assert_eq!([50_000, 200_000, 5_000_000].map(|nnz| run(nnz, 20)), [2, 4, 8]);
        assert_eq!([20, 28, 29, 60, 61].map(|longest| run(50_000, longest)), [2, 2, 4, 4, 8]);
        let rows: Vec<usize> = (0..=1000).map(|row| row * 40).collect();
        assert_eq!(ChunkSize::of_rows(&rows).run(), 4);
    }

    #[test]
    fn contiguous_columns_are_striped() {
        fn is_striped<T: Scalar>(nrows: usize, cols: &[u32]) -> bool {
            let ends = (1..=nrows).map(|row| cols.len() * row / nrows);
            let row_ptr: Vec<usize> = std::iter::once(0).chain(ends).collect();
            let values = vec![T::ONE; cols.len()];
            let a = CsrView::try_new(nrows, 1 << 20, &row_ptr, cols, &values).unwrap();
            striped::<T>(Sampler::Host(a.columns())).unwrap()
        }
        let gaps: Vec<u32> = (0..300_000).map(|i| i * 2).collect();
        let runs: Vec<u32> = (0..300_000).map(|i| i / 4 * 9 + i % 4).collect();
        let pairs: Vec<u32> = (0..300_000).map(|i| i * 2 - u32::from(i % 7 == 1)).collect();
        assert!(is_striped::<f64>(50_000, &runs) && !is_striped::<f64>(50_000, &gaps));
        assert!(is_striped::<f32>(1000, &runs) && !is_striped::<f32>(50_000, &runs));
        assert!(is_striped::<f32>(5000, &runs) && !is_striped::<f32>(5001, &runs));
        assert!(is_striped::<f64>(50_000, &pairs) && !is_striped::<f32>(5000, &pairs));
        assert!(!is_striped::<f64>(0, &[]) && !is_striped::<f64>(1, &[3]));
    }

    proptest! {
        #[test]
        fn chunks_hold_everything_once_and_know_the_rows_they_share(
            lengths in prop::collection::vec(
                prop_oneof![4 => 0usize..9, 2 => 50usize..80, 1 => 0usize..4000],
                0..300,
            ),
            run in prop::sample::select(&[None, Some(1), Some(2), Some(8)][..]),
        ) {
            let cuts = run.map_or(MIN, |run| ChunkSize::with_run(run).cuts);
            let row_ptr = offsets(&lengths);
            let (nrows, nnz) = (lengths.len(), row_ptr[lengths.len()]);
            let table = chunk_table(&row_ptr, cuts);
            prop_assert_eq!(table.len() as u64, cuts.count(nrows as u64, nnz as u64) + 1);
            let start = |number: usize| {
                let cut = (number * cuts.spacing as usize).min(nrows + nnz);
                cut - table[number].moved as usize
            };
            prop_assert_eq!((start(0), start(table.len() - 1)), (0, nrows + nnz));
            for number in 0..table.len() - 1 {
                // Loads may begin three entries early.
                let len = start(number + 1) - start(number);
                let capacity = run.map_or(64, |run| run * u64::from(BLOCK));
                prop_assert!(0 < len && len + 3 <= capacity as usize);
            }
            for (number, chunk) in table.iter().enumerate() {
                let row = chunk.row as usize;
                let begin = row_ptr[row] + row;
                prop_assert!(begin <= start(number));
                if start(number) == begin {
                    prop_assert_eq!(chunk.first as usize, number);
                    continue;
                }
                prop_assert!((chunk.first as usize) < number && number <= chunk.last as usize);
                prop_assert!(lengths[row] as u64 > cuts.max_move);
                let holds = |number: u32, place| {
                    let number = number as usize;
                    (start(number)..start(number + 1)).contains(&place)
                };
                prop_assert!(holds(chunk.first, begin) && holds(chunk.last, begin + lengths[row]));
            }
        }
    }
}
