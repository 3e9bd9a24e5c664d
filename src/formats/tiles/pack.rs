//! Packing: the entries of every chunk are sorted by column block twice, first to count the groups
//! of its cells and then to lay them out.

use super::{GROUP, HostTiles, SlotValues, TilesPlan, TilesShape, UNUSED, chunk_rows};
use crate::device::cpu::{Output, partition};
use crate::formats::values::common;
use crate::matrix::CsrView;
use crate::memory::{reserve, try_zeroed};
use crate::parallel::{self, SparePool};
use crate::{Error, Scalar};

/// Maximum number of chunks: the number of blocks of a GPU launch.
pub(super) const MAX_CHUNKS: u64 = i32::MAX as u64;

/// Entries of a chunk in a column block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell {
    block: u32,
    groups: u32,
}

/// Packs a matrix.
pub(super) fn pack<T: Scalar>(plan: &TilesPlan, a: CsrView<'_, T>) -> Result<HostTiles<T>, Error> {
    let shape = TilesShape::new(plan, a.nrows(), a.ncols(), a.nnz(), T::KIND);
    check(plan, "chunks", shape.chunk_count() as u64, MAX_CHUNKS)?;
    let chunk_rows = chunk_rows(a.row_ptr(), u64::from(shape.chunk))?;
    let cells = cells(&shape, &chunk_rows, a.col_idx())?;
    let groups = |cells: &Vec<Cell>| cells.iter().map(|cell| u64::from(cell.groups)).sum::<u64>();
    check(plan, "groups", cells.iter().map(groups).sum(), u64::from(u32::MAX))?;

    let chunk_ptr = rising(cells.iter().map(|cells| groups(cells) as u32));
    let tile_ptr = tile_ptr(&shape, &cells)?;
    let equal = plan.packed.then(|| common(a.values())).flatten();
    let slots = tile_ptr[tile_ptr.len() - 1] as usize * GROUP;
    let mut host = HostTiles {
        home: try_zeroed(slots / GROUP)?,
        positions: try_zeroed(slots)?,
        row_ends: try_zeroed(shape.nrows)?,
        cols: try_zeroed(slots)?,
        values: match equal {
            Some(value) => SlotValues::Equal(value),
            None => SlotValues::Plain(try_zeroed(slots)?),
        },
        tasks: tasks(&shape),
        shape,
        chunk_rows,
        chunk_ptr,
        tile_ptr,
    };
    lay_out(&mut host, &cells, a)?;
    Ok(host)
}

/// Bounds of the tasks that threads process, in chunks.
pub(super) fn tasks(shape: &TilesShape) -> Box<[usize]> {
    partition(shape.chunk_count(), 1, |chunks| chunks as u64 * u64::from(shape.chunk))
}

/// Returns an error if `found` exceeds `most`.
pub(super) fn check(plan: &TilesPlan, what: &str, found: u64, most: u64) -> Result<(), Error> {
    if found <= most {
        return Ok(());
    }
    let message =
        format!("it would have {found} {what}, and there can be {most}; take a larger `chunk`");
    Err(Error::PlanLimit { plan: format!("tiles{plan}"), message })
}

/// Exclusive prefix sums of `counts`, and their total.
fn rising(counts: impl Iterator<Item = u32>) -> Vec<u32> {
    let sums = counts.scan(0, |sum, count| {
        *sum += count;
        Some(*sum)
    });
    std::iter::once(0).chain(sums).collect()
}

/// Non-empty cells of every chunk, by column block.
fn cells(shape: &TilesShape, chunk_rows: &[u32], col_idx: &[u32]) -> Result<Vec<Vec<Cell>>, Error> {
    let sorters = SparePool::new(|| Sorter::new(shape));
    let cells = |sorter: &mut Sorter, chunk: usize| {
        let keys = sorter.sort(&col_idx[shape.entries(chunk, chunk_rows)])?;
        let cell = |keys: &[Key]| Cell {
            block: keys[0].block(),
            groups: keys.len().div_ceil(GROUP) as u32,
        };
        Ok(keys.chunk_by(Key::is_beside).map(cell).collect())
    };
    let all =
        parallel::map(shape.chunk_count(), 1, |chunk| sorters.with(|sorter| cells(sorter, chunk)));
    all.into_iter().collect()
}

/// First group of every tile in tile order, and the number of groups.
fn tile_ptr(shape: &TilesShape, cells: &[Vec<Cell>]) -> Result<Vec<u32>, Error> {
    let mut tile_ptr = try_zeroed::<u32>(shape.tiles() + 1)?;
    for (chunk, cells) in cells.iter().enumerate() {
        let first_tile = shape.tiles_of(chunk).start;
        for cell in cells {
            tile_ptr[first_tile + cell.block as usize + 1] += cell.groups;
        }
    }
    for tile in 0..shape.tiles() {
        tile_ptr[tile + 1] += tile_ptr[tile];
    }
    Ok(tile_ptr)
}

/// First group of every cell in tile order: the cells of a tile are ordered by chunk.
fn homes(host: &HostTiles<impl Scalar>, cells: &[Vec<Cell>]) -> Vec<Vec<u32>> {
    let mut next = host.tile_ptr.clone();
    let chunks = cells.iter().enumerate().map(|(chunk, cells)| {
        let first_tile = host.shape.tiles_of(chunk).start;
        let homes = cells.iter().map(|cell| {
            let next = &mut next[first_tile + cell.block as usize];
            let home = *next;
            *next += cell.groups;
            home
        });
        homes.collect()
    });
    chunks.collect()
}

/// Writes every entry to its slot. The arrays hold zeros, which are right for padded slots except
/// for their positions.
fn lay_out<T: Scalar>(
    host: &mut HostTiles<T>,
    cells: &[Vec<Cell>],
    a: CsrView<'_, T>,
) -> Result<(), Error> {
    let homes = homes(host, cells);
    let HostTiles { shape, chunk_rows, chunk_ptr, .. } = host;
    let (home, positions) = (Output::new(&mut host.home), Output::new(&mut host.positions));
    let (row_ends, cols) = (Output::new(&mut host.row_ends), Output::new(&mut host.cols));
    let values = host.values.array_mut().ok().map(|values| Output::new(values));
    let lay_out = |sorter: &mut Sorter, chunk: usize| {
        let entries = shape.entries(chunk, chunk_rows);
        for row in chunk_rows[chunk] as usize..chunk_rows[chunk + 1] as usize {
            // SAFETY: the row ends only in this chunk.
            unsafe { row_ends.set(row, (a.row_ptr()[row + 1] - entries.start) as u16) };
        }
        let mut group = chunk_ptr[chunk] as usize;
        let keys = sorter.sort(&a.col_idx()[entries.clone()])?;
        for (keys, &first_home) in keys.chunk_by(Key::is_beside).zip(&homes[chunk]) {
            for (at, keys) in (first_home as usize..).zip(keys.chunks(GROUP)) {
                // SAFETY: the groups of a cell are its own in either order, and so are their slots.
                unsafe { home.set(group, at as u32) };
                for i in 0..GROUP {
                    let key = keys.get(i);
                    // SAFETY: as above.
                    unsafe {
                        positions.set(group * GROUP + i, key.map_or(UNUSED, |key| key.position()))
                    };
                    let Some(key) = key else { continue };
                    let entry = entries.start + key.position() as usize;
                    let col = a.col_idx()[entry] - key.block() * shape.width;
                    // SAFETY: as above.
                    unsafe {
                        cols.set(at * GROUP + i, col as u16);
                        if let Some(values) = values {
                            values.set(at * GROUP + i, a.values()[entry]);
                        }
                    }
                }
                group += 1;
            }
        }
        Ok(())
    };
    let sorters = SparePool::new(|| Sorter::new(shape));
    parallel::try_for_each_item(0..shape.chunk_count(), |chunk| {
        sorters.with(|sorter| lay_out(sorter, chunk))
    })
}

/// Sort key: the column block of an entry, above its position in its chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Key(u64);

impl Key {
    /// Bits of a position.
    const POSITION: u32 = u16::BITS;

    fn new(block: u32, position: usize) -> Self {
        Self(u64::from(block) << Self::POSITION | position as u64)
    }

    fn block(self) -> u32 {
        (self.0 >> Self::POSITION) as u32
    }

    fn position(self) -> u16 {
        self.0 as u16
    }

    /// True if both entries are in the same column block.
    fn is_beside(&self, other: &Self) -> bool {
        self.block() == other.block()
    }
}

/// Sorts the entries of a chunk by column block, stably: a radix sort.
struct Sorter {
    width: u32,
    /// Bits of the number of a column block.
    bits: u32,
    keys: Vec<Key>,
    spare: Vec<Key>,
}

impl Sorter {
    /// Bits of a digit.
    const DIGIT: u32 = 8;

    fn new(shape: &TilesShape) -> Self {
        let last = shape.blocks().saturating_sub(1) as u64;
        Self {
            width: shape.width,
            bits: u64::BITS - last.leading_zeros(),
            keys: Vec::new(),
            spare: Vec::new(),
        }
    }

    fn sort(&mut self, cols: &[u32]) -> Result<&[Key], Error> {
        self.keys.clear();
        self.spare.clear();
        reserve(&mut self.keys, cols.len())?;
        reserve(&mut self.spare, cols.len())?;
        self.keys.extend(cols.iter().enumerate().map(|(i, &col)| Key::new(col / self.width, i)));
        self.spare.resize(cols.len(), Key::default());
        for shift in (0..self.bits).step_by(Self::DIGIT as usize) {
            let digit = |key: &Key| (key.block() >> shift) as usize & ((1 << Self::DIGIT) - 1);
            let mut next = [0u32; 1 << Self::DIGIT];
            self.keys.iter().for_each(|key| next[digit(key)] += 1);
            let mut before = 0;
            for next in &mut next {
                (*next, before) = (before, before + *next);
            }
            for key in &self.keys {
                let next = &mut next[digit(key)];
                self.spare[*next as usize] = *key;
                *next += 1;
            }
            std::mem::swap(&mut self.keys, &mut self.spare);
        }
        Ok(&self.keys)
    }
}
