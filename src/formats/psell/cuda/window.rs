//! Sliding-window SpMM for matrices all of whose slices are diagonal: blocks process consecutive
//! slices, with the columns that they need in ring buffers in shared memory. See
//! `kernels/psell_window.cu`.
//!
//! ```text
//! deltas of all slices   -131 -130 -129   -1 0 1   129 130 131     9-point stencil,
//!                                                                  130 points per line
//! bands                  [-131 ........................... 131]
//! or, in fewer columns   [-131 .. -129]  [-1 .. 1]  [129 .. 131]
//! place of a slot        delta - first delta of its band: the column of the iteration's first
//!                        row in the ring buffer of that band
//! ```
//!
//! A block holds, for each band, the columns from the first of its first row to the last of its
//! last row, and those of the next iteration.

use super::super::constants::{
    COLUMN_UNITS, CONSUMERS, HALO, PRODUCERS, REUSES_COLUMN, SLOT_BYTES, STAGES,
};
use super::super::index::{self, ALL, Kind, LANES, SliceShape, padded};
use super::super::{DeviceValues, Header};
use super::DevicePsell;
use crate::device::{Buffer, Gpu, Kernel, Launch, Queue, kernels};
use crate::formats::DeviceVectors;
use crate::order::inserted;
use crate::{Error, Scalar};
use std::collections::{BTreeMap, BTreeSet};

/// Size of a column in a ring buffer, in bytes.
const COLUMN: usize = COLUMN_UNITS * 16;

/// Smallest number of consumer warps of a block.
const MIN_CONSUMERS: usize = 6;

const _: () = assert!(HALO == LANES / 2);

/// Largest number of slots of a slice.
const SLOTS: usize = LANES;

/// Largest number of diagonals of a matrix.
const DIAGONALS: usize = 256;

/// Smallest number of entries per row and band: with fewer, the standard kernel loads hardly more
/// columns.
const ENTRIES: usize = 4;

/// Largest number of bytes that blocks may read before a column is needed again: most of the L2
/// cache of the GPUs that support this kernel.
const MAX_REREAD_BYTES: f64 = 40e6;

/// Lowest compute capability with the required instructions.
const MIN_CAPABILITY: (u32, u32) = (9, 0);

/// Sliding-window SpMM of a matrix: the kernel and its arrays.
#[derive(Debug)]
pub(super) struct SlidingWindow {
    kernel: Kernel,
    headers: Buffer<Header>,
    index: Buffer<u32>,
    starts: Buffer<i32>,
    buffers: RingBuffers,
    /// Largest size of the values of a slice, in bytes.
    most: usize,
    blocks: u32,
}

/// Ring buffers of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RingBuffers {
    bands: usize,
    /// Columns from the first to the last of the longest band, rounded up to 16 columns, so that
    /// every iteration begins at a multiple of 16 in the ring buffer.
    span: usize,
    /// Number of consumer warps.
    consumers: usize,
}

impl RingBuffers {
    /// Places of even, or of odd, columns in a ring buffer.
    const fn half(&self) -> usize {
        (self.span + STAGES * self.consumers * LANES) / 2
    }

    /// Shared memory of a block in bytes, for slices with at most `most` bytes of values.
    const fn bytes(&self, most: usize) -> usize {
        let buffers = self.bands * 2 * (self.half() + HALO) * COLUMN;
        buffers + self.consumers * (2 * most + SLOTS * SLOT_BYTES)
    }

    const fn threads(&self) -> u32 {
        ((self.consumers + PRODUCERS) * LANES) as u32
    }
}

/// A matrix in the layout of the sliding-window kernel.
#[derive(Debug, PartialEq, Eq)]
struct WindowLayout {
    /// Headers with the size of the values in bytes in place of the base.
    headers: Vec<Header>,
    /// Index with places in the ring buffers in place of deltas.
    index: Vec<u32>,
    /// First delta of every band.
    starts: Vec<i32>,
    buffers: RingBuffers,
    most: usize,
}

/// The slots of all slices with the same index.
struct SharedSlots<'a> {
    /// Position in the index, and deltas, of the slots that every lane has, and of the other slots.
    full: (usize, &'a [u32]),
    partial: (usize, &'a [u32]),
    masks: &'a [u32],
}

impl<'a> SharedSlots<'a> {
    fn of(shape: SliceShape, index_at: u32, index: &'a [u32]) -> Self {
        let words = |count: usize| padded(count * size_of::<u32>()) / size_of::<u32>();
        let others = shape.width - shape.full;
        let full = index_at as usize * index::ALIGNMENT / size_of::<u32>();
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

/// True if the kernel supports slices of this shape.
fn is_eligible(shape: SliceShape) -> bool {
    shape.kind == Kind::Diagonal && shape.width <= SLOTS
}

impl WindowLayout {
    /// Converts slices with values of `value` bytes each, for `shared` bytes of shared memory per
    /// block. `None` if the shared memory is not sufficient, if there are no or too many diagonals,
    /// or if too few entries share the columns of a band. The shapes of all slices are supported.
    fn of(headers: &[Header], index: &[u32], value: usize, shared: usize) -> Option<Self> {
        let mut distinct: BTreeMap<u32, SharedSlots<'_>> = BTreeMap::new();
        for header in headers.iter().filter(|header| header.shape().width > 0) {
            let at = header.index_at;
            distinct.entry(at).or_insert_with(|| SharedSlots::of(header.shape(), at, index));
        }
        let deltas: BTreeSet<i32> = inserted(distinct.values().flat_map(SharedSlots::deltas));
        if deltas.is_empty() || deltas.len() > DIAGONALS {
            return None;
        }
        let deltas: Vec<i32> = deltas.into_iter().collect();
        let bytes = |header: &Header| match header.shape().width {
            0 => 0,
            _ => padded(distinct[&header.index_at].entries() * value),
        };
        let most = headers.iter().map(bytes).max()?;
        let (starts, buffers) = bands(&deltas, most, shared)?;
        let all: usize = headers.iter().map(bytes).sum();
        if all / value < headers.len() * LANES * starts.len() * ENTRIES {
            return None;
        }
        let headers =
            headers.iter().map(|header| Header { base: bytes(header) as u32, ..*header }).collect();
        let mut places = index.to_vec();
        for slots in distinct.values() {
            let mut before = None;
            for (at, &delta) in (slots.full.0..).zip(slots.full.1) {
                let reuses_column =
                    before.is_some_and(|before: u32| before.wrapping_add(1) == delta);
                places[at] = place(&starts, delta.cast_signed())
                    | if reuses_column { REUSES_COLUMN } else { 0 };
                before = Some(delta);
            }
            for (at, &delta) in (slots.partial.0..).zip(slots.partial.1) {
                places[at] = place(&starts, delta.cast_signed());
            }
        }
        Some(Self { headers, index: places, starts, buffers, most })
    }
}

/// Encodes the place of a slot's column: half of its place in the ring buffer in the low 16 bits;
/// above them twice the number of the band, plus one for an odd place.
fn place(starts: &[i32], delta: i32) -> u32 {
    let band = starts.partition_point(|&start| start <= delta) - 1;
    let place = (delta - starts[band]) as u32;
    place >> 1 | (band as u32 * 2 + (place & 1)) << 16
}

/// Groups ascending deltas into bands of nearby diagonals. Prefers the most consumer warps, then
/// the fewest bands. `None` if no grouping fits the shared memory.
fn bands(deltas: &[i32], most: usize, shared: usize) -> Option<(Vec<i32>, RingBuffers)> {
    let gap = |pair: &[i32]| pair[1].abs_diff(pair[0]);
    let gaps: BTreeSet<u32> = inserted(deltas.windows(2).map(gap).chain([0]));
    let with_gaps = |widest: u32| {
        let bands: Vec<&[i32]> = deltas.chunk_by(|a, b| b.abs_diff(*a) <= widest).collect();
        let span = |band: &&[i32]| band[band.len() - 1].abs_diff(band[0]) as usize;
        let span = bands.iter().map(span).max()?.next_multiple_of(LANES / 2);
        let buffers = |consumers| RingBuffers { bands: bands.len(), span, consumers };
        let fitting = (MIN_CONSUMERS..=CONSUMERS)
            .rev()
            .map(buffers)
            .find(|buffers| buffers.bytes(most) <= shared)?;
        Some((bands.iter().map(|band| band[0]).collect(), fitting))
    };
    let possible = gaps.into_iter().filter_map(with_gaps);
    possible.max_by_key(|(_, buffers)| (buffers.consumers, std::cmp::Reverse(buffers.bands)))
}

/// True if most columns are still in the L2 cache when another band needs them. Blocks begin at
/// equal distances and advance at the same rate. A column that one block loads for a band is loaded
/// by another block for the next band; the time between the two loads is proportional to the
/// remainder of the distance of the bands modulo the rows of a block.
fn stays_in_cache(headers: &[Header], starts: &[i32], blocks: u32) -> bool {
    let rows = (headers.len() * LANES / blocks.max(1) as usize).max(1);
    let values: usize = headers.iter().map(|header| header.base as usize).sum();
    let bytes = values + headers.len() * LANES * 2 * COLUMN;
    let distance = |pair: &[i32]| {
        let beyond = pair[1].abs_diff(pair[0]) as usize % rows;
        beyond.min(rows - beyond)
    };
    let farthest = starts.windows(2).map(distance).max().unwrap_or(0);
    farthest as f64 / rows as f64 * bytes as f64 <= MAX_REREAD_BYTES
}

impl SlidingWindow {
    /// Prepares the sliding-window SpMM of a matrix with these headers; `None` if the matrix is not
    /// suitable.
    ///
    /// # Errors
    ///
    /// Errors of copies and of kernel compilation.
    pub(super) fn of<T: Scalar>(
        matrix: &DevicePsell<T>,
        headers: &[Header],
        gpu: Gpu,
    ) -> Result<Option<Self>, Error> {
        if gpu.capability() < MIN_CAPABILITY
            || !matches!(matrix.values, DeviceValues::Plain(_))
            || matrix.long.is_some()
        {
            return Ok(None);
        }
        if headers.is_empty() || !headers.iter().all(|header| is_eligible(header.shape())) {
            return Ok(None);
        }
        let kernel =
            gpu.kernel("psell_window", &format!("psell_window_v{}_{}", matrix.group, T::KIND))?;
        // Machine code built for earlier GPUs, or by a compiler without support for this one, has
        // no barriers and does nothing.
        if gpu.own_shared_memory(kernel)? == 0 {
            return Ok(None);
        }
        let shared = gpu.shared_memory(kernel)? as usize;
        let Some(layout) =
            WindowLayout::of(headers, &matrix.index.to_vec()?, size_of::<T>(), shared)
        else {
            return Ok(None);
        };
        let WindowLayout { headers, index, starts, buffers, most } = layout;
        let blocks = gpu.resident_blocks(kernel, buffers.threads(), buffers.bytes(most) as u32)?;
        if headers.len() < blocks as usize * buffers.consumers
            || !stays_in_cache(&headers, &starts, blocks)
        {
            return Ok(None);
        }
        let (headers, index, starts) =
            (gpu.upload(&headers)?, gpu.upload(&index)?, gpu.upload(&starts)?);
        Ok(Some(Self { kernel, headers, index, starts, buffers, most, blocks }))
    }

    /// True if the kernel supports the number of vectors: more than one unit, at most two.
    pub(super) fn supports<T: Scalar>(&self, vectors: &DeviceVectors<T>) -> bool {
        let unit = COLUMN / 2 / size_of::<T>();
        vectors.unit() == Some(unit) && (unit + 1..=2 * unit).contains(&vectors.count)
    }

    /// Size of the arrays, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.headers.bytes() + self.index.bytes() + self.starts.bytes()
    }

    /// Enqueues the product with vectors that are [supported](Self::supports).
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    ///
    /// # Safety
    ///
    /// As for [`DeviceSpmm::multiply`](crate::formats::DeviceSpmm::multiply); `self` was made for
    /// `matrix`.
    pub(super) unsafe fn multiply<T: Scalar>(
        &self,
        matrix: &DevicePsell<T>,
        queue: &Queue,
        vectors: DeviceVectors<T>,
    ) -> Result<(), Error> {
        let unit = COLUMN / 2 / size_of::<T>();
        let launch = Launch::new(self.blocks, self.buffers.threads());
        let launch = launch.with_shared(self.buffers.bytes(self.most) as u32);
        let launch = launch.with(kernels::psell_window::Window {
            headers: self.headers.ptr().cast(),
            values: matrix.values.ptr(),
            index: self.index.ptr(),
            starts: self.starts.ptr(),
            bands: self.buffers.bands as u32,
            half: self.buffers.half() as u32,
            most: self.most as u32,
            nrows: matrix.nrows as u32,
            ncols: matrix.ncols as u32,
            vectors: vectors.in_units(unit),
        });
        // SAFETY: the kernel is one of psell_window.cu, which reads no more of `x` than the units
        // of columns that exist. The vectors are the caller's promise.
        unsafe { self.kernel.launch(queue, launch) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{HostPsell, Order, Packing};
    use super::*;
    use crate::matrix::CsrMatrix;

    /// Shared memory of a block on a GPU that supports the kernel.
    const SHARED: usize = 227 << 10;

    /// A matrix with these diagonals, as far as they extend.
    fn packed(n: i64, deltas: &[i64]) -> HostPsell<f32> {
        let (mut row_ptr, mut col_idx) = (vec![0], vec![]);
        for row in 0..n {
            col_idx.extend(
                deltas.iter().map(|d| row + d).filter(|c| (0..n).contains(c)).map(|c| c as u32),
            );
            row_ptr.push(col_idx.len());
        }
        let values = vec![1.0; col_idx.len()];
        let a = CsrMatrix::try_new(n as usize, n as usize, row_ptr, col_idx, values).unwrap();
        HostPsell::pack(a.view(), Order::Natural, Packing::default()).unwrap()
    }

    /// Deltas of neighbouring points in planes of lines of `n` points.
    fn brick(n: i64) -> Vec<i64> {
        let near = [-1, 0, 1];
        near.iter()
            .flat_map(|z| near.map(|y| near.map(|x| (z * n + y) * n + x)))
            .flatten()
            .collect()
    }

    #[test]
    fn bands_are_as_few_as_keep_most_warps_busy() {
        let of = |deltas: &[i64]| {
            let deltas: Vec<i32> = deltas.iter().map(|&d| d as i32).collect();
            bands(&deltas, 27 * 128, SHARED)
                .map(|(starts, buffers)| (starts, buffers.span, buffers.consumers))
        };
        assert_eq!(of(&brick(128)), Some((vec![-16_513, -129, 16_255], 272, 14)), "planes");
        assert_eq!(of(&brick(10)), Some((vec![-111], 224, 14)), "all of it");
        assert_eq!(of(&brick(1000)).map(|found| found.0.len()), Some(9), "lines");
        assert_eq!(of(&[-1, 0, 1]), Some((vec![-1], 16, 14)));
        let scattered: Vec<i64> = (0..40).map(|k| k * 100_000).collect();
        assert_eq!(of(&scattered), None, "too many buffers");
    }

    #[test]
    fn ring_buffers_hold_every_column_read() {
        let (_, buffers) = bands(&[-129, 129], 27 * 128, SHARED).unwrap();
        assert_eq!((buffers.half(), buffers.threads()), ((272 + 2 * 14 * 32) / 2, 512));
        assert_eq!(buffers.bytes(3456), 2 * (584 + 16) * 32 + 14 * (2 * 3456 + 512));
        assert!(buffers.bytes(3456) <= SHARED);
    }

    #[test]
    fn places_lead_to_the_columns_of_the_deltas() {
        let deltas = brick(40);
        let a = packed(40 * 40 * 40, &deltas);
        let layout = WindowLayout::of(&a.headers, &a.index, 4, SHARED).unwrap();
        assert_eq!(layout.starts, [-1641, -41, 1559]);
        let middle = layout.headers[1000];
        assert_eq!((middle.base, layout.most), (27 * 128, 27 * 128), "bytes of values");
        let places = &layout.index[middle.index_at as usize * 4..][..27];
        for (k, (&place, &delta)) in places.iter().zip(&deltas).enumerate() {
            let (band, odd) = ((place >> 17 & 0x3FFF) as usize, place >> 16 & 1);
            let column = layout.starts[band] + ((place & 0xFFFF) * 2 + odd) as i32;
            assert_eq!((i64::from(column), place & REUSES_COLUMN != 0), (delta, k % 3 != 0));
        }
        // The first rows lack the slots below the diagonal; masks are unchanged.
        let first = layout.headers[0];
        assert_eq!(first.base as usize, padded(4 * (a.headers[1].value_at as usize * 4)));
        let slots = SharedSlots::of(first.shape(), first.index_at, &a.index);
        let masks = slots.partial.0 + slots.partial.1.len().next_multiple_of(4);
        assert_eq!(layout.index[masks..masks + slots.masks.len()], *slots.masks);
    }

    #[test]
    fn columns_have_to_be_in_the_cache_when_they_are_needed_again() {
        let of_grid = |n: usize, blocks| {
            let header = Header { value_at: 0, index_at: 0, base: 27 * 128, shape: 0 };
            let (line, plane) = (n as i32, (n * n) as i32);
            stays_in_cache(
                &vec![header; n * n * n / 32],
                &[-plane - line, -line, plane - line],
                blocks,
            )
        };
        assert!(of_grid(128, 132), "a block is at what another needs 497 rows later");
        assert!(!of_grid(160, 132), "blocks are 31030 rows apart, planes 25600");
        assert!(of_grid(160, 160) && of_grid(80, 132));
    }

    #[test]
    fn unsuitable_diagonals_get_no_window() {
        let layout = |deltas: &[i64]| {
            let a = packed(4000, deltas);
            WindowLayout::of(&a.headers, &a.index, 4, SHARED)
        };
        assert!(layout(&[-1, 0, 1]).is_none(), "three entries a row");
        assert!(layout(&[-2, -1, 0, 1, 2]).is_some());
        assert!(WindowLayout::of(&[], &[], 4, SHARED).is_none());
        let wide: Vec<i64> = (0..33).collect();
        let shapes = |deltas: &[i64]| packed(4000, deltas).headers[9].shape();
        assert!(
            is_eligible(shapes(&wide[..32])) && !is_eligible(shapes(&wide)),
            "a lane for every slot"
        );
    }
}
