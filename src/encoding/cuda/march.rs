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

/// Bytes that blocks may go through before a column is needed again: most of the second-level cache of the GPUs that can march.
const CACHED: f64 = 40e6;

/// The first compute capability that has what is needed.
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

/// Whether most columns are still in the second-level cache when they are needed again, for another stretch. Blocks begin at equal distances and go
/// on together: what one needs ahead, another is at, before or after it has come so far as the distance differs from a multiple of theirs.
fn meets(headers: &[Header], starts: &[i32], blocks: u32) -> bool {
    let rows = (headers.len() * LANES / blocks.max(1) as usize).max(1);
    let values: usize = headers.iter().map(|header| header.base as usize).sum();
    let bytes = values + headers.len() * LANES * 2 * COLUMN;
    let apart = |pair: &[i32]| {
        let beyond = pair[1].abs_diff(pair[0]) as usize % rows;
        beyond.min(rows - beyond)
    };
    let farthest = starts.windows(2).map(apart).max().unwrap_or(0);
    farthest as f64 / rows as f64 * bytes as f64 <= CACHED
}

impl March {
    /// For a matrix with these headers that it suits; none for others.
    ///
    /// # Errors
    ///
    /// What copying and compiling give.
    pub(super) fn of<T: Scalar>(
        matrix: &Uploaded<T>,
        headers: &[Header],
        gpu: Gpu,
    ) -> Result<Option<Self>, Error> {
        if gpu.capability() < OLDEST || !matches!(matrix.values, Values::Plain(_)) || matrix.long.is_some() {
            return Ok(None);
        }
        if headers.is_empty() || !headers.iter().all(|header| is_passable(header.shape())) {
            return Ok(None);
        }
        let kernel = gpu.kernel("march", &format!("march_v{}_{}", matrix.group, T::KIND))?;
        // Machine code made from that for earlier GPUs, or by a compiler that does not know these, has no barriers and does nothing.
        if gpu.own_shared_memory(kernel)? == 0 {
            return Ok(None);
        }
        let shared = gpu.shared_memory(kernel)? as usize;
        let Some(route) = Route::of(headers, &matrix.index.to_vec()?, size_of::<T>(), shared) else {
            return Ok(None);
        };
        let Route { headers, index, starts, rings, most } = route;
        let blocks = gpu.resident_blocks(kernel, rings.threads(), rings.bytes(most) as u32)?;
        if headers.len() < blocks as usize * rings.marchers || !meets(&headers, &starts, blocks) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::{Order, PackedSlices, Packing};
    use crate::matrix::CsrMatrix;

    /// Shared memory of a block on a GPU that can march.
    const SHARED: usize = 227 << 10;

    /// A matrix with these diagonals, as far as they reach.
    fn packed(n: i64, deltas: &[i64]) -> PackedSlices<f32> {
        let (mut row_ptr, mut col_idx) = (vec![0], vec![]);
        for row in 0..n {
            col_idx.extend(deltas.iter().map(|d| row + d).filter(|c| (0..n).contains(c)).map(|c| c as u32));
            row_ptr.push(col_idx.len());
        }
        let values = vec![1.0; col_idx.len()];
        let a = CsrMatrix::try_new(n as usize, n as usize, row_ptr, col_idx, values).unwrap();
        PackedSlices::pack(a.view(), Order::Natural, Packing::default()).unwrap()
    }

    /// The deltas of points that are neighbours in planes of lines of `n` points.
    fn brick(n: i64) -> Vec<i64> {
        let near = [-1, 0, 1];
        near.iter().flat_map(|z| near.map(|y| near.map(|x| (z * n + y) * n + x))).flatten().collect()
    }

    #[test]
    fn stretches_are_as_few_as_leave_room_for_most_warps() {
        let of = |deltas: &[i64]| {
            let deltas: Vec<i32> = deltas.iter().map(|&d| d as i32).collect();
            stretches(&deltas, 27 * 128, SHARED).map(|(starts, rings)| (starts, rings.span, rings.marchers))
        };
        assert_eq!(of(&brick(128)), Some((vec![-16_513, -129, 16_255], 272, 14)), "planes");
        assert_eq!(of(&brick(10)), Some((vec![-111], 224, 14)), "all of it");
        assert_eq!(of(&brick(1000)).map(|found| found.0.len()), Some(9), "lines");
        assert_eq!(of(&[-1, 0, 1]), Some((vec![-1], 16, 14)));
        let scattered: Vec<i64> = (0..40).map(|k| k * 100_000).collect();
        assert_eq!(of(&scattered), None, "too many rings");
    }

    #[test]
    fn rings_have_room_for_what_is_read() {
        let (_, rings) = stretches(&[-129, 129], 27 * 128, SHARED).unwrap();
        assert_eq!((rings.half(), rings.threads()), ((272 + 2 * 14 * 32) / 2, 512));
        assert_eq!(rings.bytes(3456), 2 * (584 + 16) * 32 + 14 * (2 * 3456 + 512));
        assert!(rings.bytes(3456) <= SHARED);
    }

    #[test]
    fn places_lead_to_the_columns_of_the_deltas() {
        let deltas = brick(40);
        let a = packed(40 * 40 * 40, &deltas);
        let route = Route::of(&a.headers, &a.index, 4, SHARED).unwrap();
        assert_eq!(route.starts, [-1641, -41, 1559]);
        let middle = route.headers[1000];
        assert_eq!((middle.base, route.most), (27 * 128, 27 * 128), "bytes of values");
        let places = &route.index[middle.index_at as usize * 4..][..27];
        for (k, (&place, &delta)) in places.iter().zip(&deltas).enumerate() {
            let (stretch, odd) = ((place >> 17 & 0x3FFF) as usize, place >> 16 & 1);
            let column = route.starts[stretch] + ((place & 0xFFFF) * 2 + odd) as i32;
            assert_eq!((i64::from(column), place & CHAINED != 0), (delta, k % 3 != 0));
        }
        // The first rows lack what is below the diagonal; masks are as they were.
        let first = route.headers[0];
        assert_eq!(first.base as usize, padded(4 * (a.headers[1].value_at as usize * 4)));
        let slots = Slots::of(first.shape(), first.index_at, &a.index);
        let masks = slots.partial.0 + slots.partial.1.len().next_multiple_of(4);
        assert_eq!(route.index[masks..masks + slots.masks.len()], *slots.masks);
    }

    #[test]
    fn columns_have_to_be_in_the_cache_when_they_are_needed_again() {
        let meets = |n: usize, blocks| {
            let header = Header { value_at: 0, index_at: 0, base: 27 * 128, shape: 0 };
            let (line, plane) = (n as i32, (n * n) as i32);
            meets(&vec![header; n * n * n / 32], &[-plane - line, -line, plane - line], blocks)
        };
        assert!(meets(128, 132), "a block is at what another needs 497 rows later");
        assert!(!meets(160, 132), "blocks are 31030 rows apart, planes 25600");
        assert!(meets(160, 160) && meets(80, 132));
    }

    #[test]
    fn what_shares_no_columns_is_left_to_others() {
        let route = |deltas: &[i64]| {
            let a = packed(4000, deltas);
            Route::of(&a.headers, &a.index, 4, SHARED)
        };
        assert!(route(&[-1, 0, 1]).is_none(), "three entries a row");
        assert!(route(&[-2, -1, 0, 1, 2]).is_some());
        assert!(Route::of(&[], &[], 4, SHARED).is_none());
        let wide: Vec<i64> = (0..33).collect();
        let shapes = |deltas: &[i64]| packed(4000, deltas).headers[9].shape();
        assert!(is_passable(shapes(&wide[..32])) && !is_passable(shapes(&wide)), "a lane for every slot");
    }

    #[test]
    fn the_kernels_have_the_same_numbers() {
        let kernel = include_str!("../../../kernels/march.cu");
        let numbers = [
            format!("constexpr u32 UNITS = 2, MARCHERS = {MARCHERS}, BRINGERS = {BRINGERS};"),
            format!("constexpr u32 DEPTH = {DEPTH};"),
            format!("constexpr u32 SLOT_BYTES = {SLOT}, TABLE = WARP * SLOT_BYTES;"),
        ];
        for line in numbers {
            assert!(kernel.contains(&line), "{line}");
        }
        assert_eq!((COLUMN, BEYOND, SLOTS, CHAINED), (2 * 16, 32 / 2, 32, 1 << 31));
    }
}
