//! Several vectors at once where all slices are diagonal: blocks that march through slices in succession, with the columns that they need in
//! rings of shared memory. See `kernels/march.cu`.
//!
//! ```text
//! deltas of all slices   -131 -130 -129   -1 0 1   129 130 131     a 9-point stencil on 130 points a line
//! stretches              [-131 ........................... 131]    or, with fewer columns, [-131..-129] [-1..1] [129..131]
//! a slot's place         delta - first of its stretch: the column of the step's first row, in the ring of that stretch
//! ```
//!
//! A block holds, of each stretch, the columns from the first of its first row to the last of its last row, and those of the step that comes next.

use super::{Uploaded, Values};
use crate::device::{Buffer, Gpu, Kernel, Launch, Queue};
use crate::encoding::Header;
use crate::encoding::index::{ALL, Kind, LANES, Shape, padded};
use crate::encoding::{DeviceVectors, index};
use crate::{Error, Scalar};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a column in a ring: two units.
const COLUMN: usize = 32;

/// Warps of a block that multiply, at most and at least. The same numbers as in `kernels/march.cu`, like those that follow.
const MARCHERS: usize = 14;
const FEWEST: usize = 6;

/// Warps that bring columns.
const BRINGERS: usize = 2;

/// Steps that a ring holds the columns of.
const DEPTH: usize = 2;

/// Places behind the end of a ring.
const BEYOND: usize = LANES / 2;

/// Slots of a slice, at most, and bytes of what a warp notes of one.
const SLOTS: usize = LANES;
const SLOT: usize = 16;

/// Marks a slot that is on the diagonal above that of the slot before it.
const CHAINED: u32 = 1 << 31;

/// Diagonals of a matrix, at most.
const DIAGONALS: usize = 256;

/// Entries of a row for every stretch at least: with fewer, the ordinary way brings hardly more columns.
const ENTRIES: usize = 4;

/// The first computing capability that has what is needed.
const OLDEST: (u32, u32) = (9, 0);

/// What multiplies in that way.
#[derive(Debug)]
pub(super) struct March {
    kernel: Kernel,
    headers: Buffer<Header>,
    index: Buffer<u32>,
    starts: Buffer<i32>,
    rings: Rings,
    /// Bytes of values that a slice has at most.
    most: usize,
    blocks: u32,
}

/// The rings of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rings {
    stretches: usize,
    /// Columns between the first and the last of the longest stretch, and as many more as let every step begin at a line of the ring.
    span: usize,
    /// Warps that multiply.
    marchers: usize,
}

impl Rings {
    /// Places of even or odd columns in a ring.
    const fn half(&self) -> usize {
        (self.span + DEPTH * self.marchers * LANES) / 2
    }

    /// Bytes of shared memory, for slices with so many bytes of values at most.
    const fn bytes(&self, most: usize) -> usize {
        let rings = self.stretches * 2 * (self.half() + BEYOND) * COLUMN;
        rings + self.marchers * (2 * most + SLOTS * SLOT)
    }

    const fn threads(&self) -> u32 {
        ((self.marchers + BRINGERS) * LANES) as u32
    }
}

/// A matrix as blocks march through it.
#[derive(Debug, PartialEq, Eq)]
struct Route {
    /// With the bytes of the values where others have a base.
    headers: Vec<Header>,
    /// With places in the rings instead of deltas.
    index: Vec<u32>,
    /// The first delta of every stretch.
    starts: Vec<i32>,
    rings: Rings,
    most: usize,
}

/// The slots of slices that are alike.
struct Slots<'a> {
    /// Where the deltas of those that every lane has begin, and those of the others.
    full: (usize, &'a [u32]),
    partial: (usize, &'a [u32]),
    masks: &'a [u32],
}

impl<'a> Slots<'a> {
    fn of(shape: Shape, index_at: u32, index: &'a [u32]) -> Self {
        let words = |count: usize| padded(count * size_of::<u32>()) / size_of::<u32>();
        let others = shape.width - shape.full;
        let full = index_at as usize * index::UNIT / size_of::<u32>();
        let partial = full + words(shape.full);
        let masks = partial + words(others);
        Self {
            full: (full, &index[full..full + shape.full]),
            partial: (partial, &index[partial..partial + others]),
            masks: &index[masks..masks + others],
        }
    }

    fn deltas(&self) -> impl Iterator<Item = i32> {
        self.full.1.iter().chain(self.partial.1).map(|&delta| delta.cast_signed())
    }

    fn entries(&self) -> usize {
        self.full.1.len() * ALL.count_ones() as usize
            + self.masks.iter().map(|mask| mask.count_ones() as usize).sum::<usize>()
    }
}

/// Whether blocks can march through slices of this shape.
fn is_passable(shape: Shape) -> bool {
    shape.kind == Kind::Diagonal && shape.width <= SLOTS
}

impl Route {
    /// Through slices with values of so many bytes, with so much shared memory for a block; none where that is not enough, or where too few
    /// entries share the columns of a stretch. All slices are passable.
    fn of(headers: &[Header], index: &[u32], value: usize, shared: usize) -> Option<Self> {
        let distinct: BTreeMap<u32, Slots<'_>> = headers
            .iter()
            .filter(|header| header.shape().width > 0)
            .map(|header| (header.index_at, header.shape()))
            .collect::<BTreeMap<_, _>>()
            .into_iter()
            .map(|(at, shape)| (at, Slots::of(shape, at, index)))
            .collect();
        let deltas: BTreeSet<i32> = distinct.values().flat_map(Slots::deltas).collect();
        if deltas.is_empty() || deltas.len() > DIAGONALS {
            return None;
        }
        let deltas: Vec<i32> = deltas.into_iter().collect();
        let bytes = |header: &Header| match header.shape().width {
            0 => 0,
            _ => padded(distinct[&header.index_at].entries() * value),
        };
        let most = headers.iter().map(bytes).max()?;
        let (starts, rings) = stretches(&deltas, most, shared)?;
        let all: usize = headers.iter().map(bytes).sum();
        if all / value < headers.len() * LANES * starts.len() * ENTRIES {
            return None;
        }
        let headers = headers.iter().map(|header| Header { base: bytes(header) as u32, ..*header }).collect();
        let mut places = index.to_vec();
        for slots in distinct.values() {
            let mut before = None;
            for (at, &delta) in (slots.full.0..).zip(slots.full.1) {
                let chained = before.is_some_and(|before: u32| before.wrapping_add(1) == delta);
                places[at] = place(&starts, delta.cast_signed()) | if chained { CHAINED } else { 0 };
                before = Some(delta);
            }
            for (at, &delta) in (slots.partial.0..).zip(slots.partial.1) {
                places[at] = place(&starts, delta.cast_signed());
            }
        }
        Some(Self { headers, index: places, starts, rings, most })
    }
}

/// Where the column of a slot is: half of its place in the ring in the low 16 bits, above them twice the stretch, plus one for an odd place.
fn place(starts: &[i32], delta: i32) -> u32 {
    let stretch = starts.partition_point(|&start| start <= delta) - 1;
    let place = (delta - starts[stretch]) as u32;
    place >> 1 | (stretch as u32 * 2 + (place & 1)) << 16
}

/// The stretches in which these deltas are, ascending, with most warps and then the fewest of them: what is close together is one.
fn stretches(deltas: &[i32], most: usize, shared: usize) -> Option<(Vec<i32>, Rings)> {
    let gap = |pair: &[i32]| pair[1].abs_diff(pair[0]);
    let gaps: BTreeSet<u32> = deltas.windows(2).map(gap).chain([0]).collect();
    let with_gaps = |widest: u32| {
        let parts: Vec<&[i32]> = deltas.chunk_by(|a, b| b.abs_diff(*a) <= widest).collect();
        let span = |part: &&[i32]| part[part.len() - 1].abs_diff(part[0]) as usize;
        let span = parts.iter().map(span).max()?.next_multiple_of(LANES / 2);
        let rings = |marchers| Rings { stretches: parts.len(), span, marchers };
        let fitting = (FEWEST..=MARCHERS).rev().map(rings).find(|rings| rings.bytes(most) <= shared)?;
        Some((parts.iter().map(|part| part[0]).collect(), fitting))
    };
    let possible = gaps.into_iter().filter_map(with_gaps);
    possible.max_by_key(|(_, rings)| (rings.marchers, std::cmp::Reverse(rings.stretches)))
}

impl March {
    /// For a matrix that it suits; none for others.
    ///
    /// # Errors
    ///
    /// What copying and compiling give.
    pub(super) fn of<T: Scalar>(matrix: &Uploaded<T>, gpu: Gpu) -> Result<Option<Self>, Error> {
        if gpu.capability() < OLDEST || !matches!(matrix.values, Values::Plain(_)) || matrix.long.is_some() {
            return Ok(None);
        }
        let headers = matrix.headers.to_vec()?;
        if headers.is_empty() || !headers.iter().all(|header| is_passable(header.shape())) {
            return Ok(None);
        }
        let kernel = gpu.kernel("march", &format!("march_v{}_{}", matrix.group, T::KIND))?;
        let shared = gpu.shared_memory(kernel)? as usize;
        let Some(route) = Route::of(&headers, &matrix.index.to_vec()?, size_of::<T>(), shared) else {
            return Ok(None);
        };
        let Route { headers, index, starts, rings, most } = route;
        let blocks = gpu.resident_blocks(kernel, rings.threads(), rings.bytes(most) as u32)?;
        if headers.len() < blocks as usize * rings.marchers {
            return Ok(None);
        }
        let (headers, index, starts) = (gpu.upload(&headers)?, gpu.upload(&index)?, gpu.upload(&starts)?);
        Ok(Some(Self { kernel, headers, index, starts, rings, most, blocks }))
    }

    /// Whether it is for so many vectors: those of two units.
    pub(super) fn takes<T: Scalar>(&self, vectors: &DeviceVectors<T>) -> bool {
        let unit = COLUMN / 2 / size_of::<T>();
        vectors.unit() == Some(unit) && (unit + 1..=2 * unit).contains(&vectors.count)
    }

    /// Bytes of the arrays.
    pub(super) fn bytes(&self) -> u64 {
        self.headers.bytes() + self.index.bytes() + self.starts.bytes()
    }

    /// Enqueues the products with vectors that it [takes](Self::takes).
    ///
    /// # Errors
    ///
    /// What the GPU gives.
    ///
    /// # Safety
    ///
    /// As [`Uploaded::multiply_several`]; it is the march through that matrix.
    pub(super) unsafe fn multiply<T: Scalar>(
        &self,
        matrix: &Uploaded<T>,
        queue: &Queue,
        vectors: DeviceVectors<T>,
    ) -> Result<(), Error> {
        let unit = COLUMN / 2 / size_of::<T>();
        let launch = Launch::new(self.blocks, self.rings.threads());
        let launch = launch.with_shared(self.rings.bytes(self.most) as u32);
        let launch = launch.arg(self.headers.ptr()).arg(matrix.values.ptr()).arg(self.index.ptr());
        let launch = launch.arg(self.starts.ptr()).arg(self.rings.stretches as u32);
        let launch = launch.arg(self.rings.half() as u32).arg(self.most as u32);
        let launch = launch.arg(matrix.nrows as u32).arg(matrix.ncols as u32);
        let launch = vectors.args(launch, unit);
        // SAFETY: these are the parameters of all kernels in march.cu, which reads no more of `x` than the units of columns that there are. The
        // vectors are the caller's promise.
        unsafe { self.kernel.launch(queue, launch) }
    }
}
