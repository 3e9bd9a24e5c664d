//! Packing of a matrix into slices.

use super::index::{
    ALIGNMENT, ALL, Chooser, Encoded, Kind, LANES, LaneColumns, LaneRows, Slot, padded,
};
use super::layout::{Steps, visit_diagonal};
use super::long::LongRows;
use super::order::Order;
use super::plan::{SliceWarps, too_large};
use super::{Coder, Header, Packing, Sink, Stored, ValueEncoding, with_slack};
use crate::device::cpu::{Output, partition};
use crate::matrix::CsrView;
use crate::memory::{check_room, collected, listed};
use crate::parallel;
use crate::{Error, Scalar};
use std::collections::HashMap;
use std::ops::Range;

/// Slices per batch, which one thread encodes.
const BATCH: usize = 64;

/// Smallest number of rows and entries per thread: some 100 µs, the time to wake a thread pool and
/// to wait for it.
const MIN_WORK_PER_THREAD: usize = 1 << 16;

/// A packed SELL matrix in host memory.
#[derive(Debug)]
pub(crate) struct HostPsell<T> {
    pub(crate) nrows: usize,
    pub(crate) ncols: usize,
    /// Slots per group that is stored lane by lane.
    pub(crate) group: usize,
    pub(crate) warps: SliceWarps,
    pub(crate) headers: Vec<Header>,
    pub(crate) values: Stored<T>,
    /// Values of the codes; see [`Coder::into_dictionary`].
    pub(crate) dictionary: Vec<T>,
    /// Index bytes, stored as words so that all units begin at whole words.
    pub(crate) index: Vec<u32>,
    /// Row of every lane; `None` for the natural order.
    pub(crate) perm: Option<Vec<u32>>,
    /// Lanes of every slice that hold long rows, which the slice does not write; `None` without
    /// long rows.
    pub(crate) skip: Option<Vec<u32>>,
    pub(crate) long: Option<LongRows<T>>,
    /// Bounds of the tasks, in slices.
    pub(crate) tasks: Box<[usize]>,
}

impl<T: Scalar> HostPsell<T> {
    /// Packs a matrix with its rows in an order.
    ///
    /// # Errors
    ///
    /// [`Error::PlanLimit`] if the slices exceed the range of addresses;
    /// [`Error::HostMemory`].
    pub(crate) fn pack(a: CsrView<'_, T>, order: Order, packing: Packing) -> Result<Self, Error> {
        let Packing { values, group, split, warps } = packing;
        let group = group as usize;
        let coder = match values {
            ValueEncoding::Plain => Coder::Plain,
            ValueEncoding::Packed => Coder::of(a.values()),
            ValueEncoding::Narrow(precision) => Coder::narrow(a.values(), precision),
        };
        let perm = order.permutation(a.row_ptr(), split)?;
        let (row_ptr, col_idx, ncols) = (a.row_ptr(), a.col_idx(), a.ncols());
        let rows = SlicedRows { row_ptr, col_idx, perm: perm.as_deref(), ncols, split };
        check_room(rows.slices().saturating_mul(size_of::<Encoded>() + size_of::<PlacedSlice>()))?;
        let batches = rows.encode();
        let placement = Placement::of(&batches, coder.size())?;
        let mut stored =
            Stored::zeroed(&coder, placement.value_units * ALIGNMENT / coder.size().max(1))?;
        let mut index = with_slack(placement.index_units * ALIGNMENT / size_of::<u32>())?;
        let writer = Writer {
            a,
            rows,
            group,
            values_per_unit: stored.per(ALIGNMENT),
            values: Sink::new(&mut stored, &coder),
            index: Output::new(&mut index),
        };
        let write = |(b, (batch, slices)): (usize, (&SliceBatch, &[PlacedSlice]))| {
            for (i, ((encoded, slots), slice)) in batch.iter().zip(slices).enumerate() {
                // SAFETY: every slice has its own units, except for slots that it shares and does
                // not own.
                unsafe { writer.slice(b * BATCH + i, encoded, slice, slots) };
            }
        };
        let slices = batches.iter().zip(placement.slices.chunks(BATCH));
        parallel::for_each_item(slices.enumerate(), write);
        let long = LongRows::of(a, split, &coder)?;
        let skip = long.is_some().then(|| rows.skipped()).transpose()?;
        let stored_before = |s: usize| {
            placement.slices.get(s).map_or(placement.stored, |slice| slice.stored_before)
        };
        let tasks = partition(placement.slices.len(), 1, |s| stored_before(s) + (s * LANES) as u64);
        let headers = listed(placement.slices.iter().map(|slice| slice.header))?;
        let dictionary = coder.into_dictionary();
        let (nrows, ncols) = (a.nrows(), a.ncols());
        Ok(Self {
            nrows,
            ncols,
            group,
            warps,
            headers,
            values: stored,
            dictionary,
            index,
            perm,
            skip,
            long,
            tasks,
        })
    }

    /// True if all slices are diagonal.
    pub(crate) fn is_diagonal(&self) -> bool {
        self.headers.iter().all(|header| header.shape().kind == Kind::Diagonal)
    }

    /// Size of the arrays, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let perm = self.perm.as_ref().map_or(0, |perm| size_of_val(&**perm));
        let skip = self.skip.as_ref().map_or(0, |skip| size_of_val(&**skip));
        let slices = size_of_val(&*self.headers) + size_of_val(&*self.index) + self.values.bytes();
        let long = self.long.as_ref().map_or(0, LongRows::bytes);
        (perm + skip + slices + size_of_val(&*self.dictionary)) as u64 + long
    }
}

/// The rows of a sparsity pattern, arranged in slices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlicedRows<'a> {
    pub(crate) row_ptr: &'a [usize],
    pub(crate) col_idx: &'a [u32],
    /// Rows of the lanes, in order; `None` for the natural order.
    pub(crate) perm: Option<&'a [u32]>,
    pub(crate) ncols: usize,
    /// Rows with more entries are not in the slices.
    pub(crate) split: u32,
}

impl<'a> SlicedRows<'a> {
    /// Number of slices.
    fn slices(self) -> usize {
        self.rows().div_ceil(LANES)
    }

    fn rows(self) -> usize {
        self.perm.map_or(self.row_ptr.len() - 1, <[u32]>::len)
    }

    /// Row of a lane; `None` past the last row.
    fn row(self, s: usize, lane: usize) -> Option<usize> {
        let i = s * LANES + lane;
        (i < self.rows()).then(|| self.perm.map_or(i, |perm| perm[i] as usize))
    }

    fn is_long(self, row: usize) -> bool {
        self.row_ptr[row + 1] - self.row_ptr[row] > self.split as usize
    }

    /// Entries of every lane. Empty for a lane without a row in the slices.
    fn entries(self, s: usize) -> [Range<usize>; LANES] {
        std::array::from_fn(|lane| match self.row(s, lane) {
            Some(row) if !self.is_long(row) => self.row_ptr[row]..self.row_ptr[row + 1],
            _ => 0..0,
        })
    }

    /// Row of the first lane if the slice may be diagonal: rows in natural order, each number of
    /// which is also a column number. A lane without an entry in a slot can then load that column.
    fn first_row(self, s: usize) -> Option<usize> {
        let rows = s * LANES..((s + 1) * LANES).min(self.rows());
        (self.perm.is_none() && rows.end <= self.ncols).then_some(rows.start)
    }

    /// Rows of a slice.
    pub(crate) fn lane_rows(self, s: usize) -> LaneRows<'a> {
        LaneRows {
            columns: self.entries(s).map(|entries| &self.col_idx[entries]),
            first_row: self.first_row(s),
            long: self.long_lanes(s),
            ncols: self.ncols,
        }
    }

    /// Lanes with long rows.
    fn long_lanes(self, s: usize) -> u32 {
        let is_long = |lane: &usize| self.row(s, *lane).is_some_and(|row| self.is_long(row));
        (0..LANES).filter(is_long).fold(0, |mask, lane| mask | 1 << lane)
    }

    /// Chooses the encoding of every slice.
    pub(crate) fn encode(self) -> Vec<SliceBatch> {
        let slices = self.slices();
        let encode = |b: usize| {
            let (mut chooser, mut batch) = (Chooser::default(), SliceBatch::default());
            for s in b * BATCH..((b + 1) * BATCH).min(slices) {
                batch.push(&mut chooser, &self.lane_rows(s));
            }
            batch
        };
        let batches = slices.div_ceil(BATCH);
        let least = batches * MIN_WORK_PER_THREAD / (self.rows() + self.col_idx.len()).max(1);
        parallel::map(batches, least, encode)
    }

    /// Lanes of every slice that hold long rows.
    fn skipped(self) -> Result<Vec<u32>, Error> {
        collected(self.slices(), |s| self.long_lanes(s))
    }
}

/// A batch of slices, before they are written.
#[derive(Debug, Default)]
pub(crate) struct SliceBatch {
    encoded: Vec<Encoded>,
    /// Slots of the diagonal slices, in order.
    slots: Vec<Slot>,
}

impl SliceBatch {
    /// Encodes a slice and adds it; see [`Chooser::choose`].
    pub(crate) fn push(&mut self, chooser: &mut Chooser, rows: &LaneRows<'_>) {
        let encoded = chooser.choose(rows);
        self.encoded.push(encoded);
        if encoded.shape.kind == Kind::Diagonal {
            self.slots.extend_from_slice(chooser.slots());
        }
    }

    /// The slices, with the slots of the diagonal ones.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Encoded, &[Slot])> {
        let mut rest = &self.slots[..];
        self.encoded.iter().map(move |encoded| {
            let slots;
            (slots, rest) = rest.split_at(encoded.slots());
            (encoded, slots)
        })
    }
}

/// Positions of slices.
struct Placement {
    slices: Vec<PlacedSlice>,
    value_units: usize,
    index_units: usize,
    /// Number of stored values.
    stored: u64,
}

struct PlacedSlice {
    header: Header,
    stored_before: u64,
    /// True if the slice writes its index; false if an earlier slice has the same slots.
    owns_index: bool,
}

impl Placement {
    /// Assigns a position to every slice, in order. Identical slots are stored once.
    fn of(batches: &[SliceBatch], value_size: usize) -> Result<Self, Error> {
        let mut known: HashMap<&[Slot], u32> = HashMap::new();
        let (mut slices, mut stored) = (Vec::new(), 0);
        let (mut value_units, mut index_units) = (0usize, 0usize);
        // Adjacent slices are often alike, and comparing is faster than hashing.
        let mut last: Option<(&[Slot], u32)> = None;
        for batch in batches {
            for (encoded, own) in batch.iter() {
                let at = unit(index_units, "indices")?;
                let index_at = match (encoded.shape.kind, last) {
                    (Kind::Diagonal, Some((slots, place))) if own == slots => place,
                    (Kind::Diagonal, _) => *known.entry(own).or_insert(at),
                    _ => at,
                };
                let owns_index = index_at == at;
                if encoded.shape.kind == Kind::Diagonal {
                    last = Some((own, index_at));
                }
                index_units +=
                    if owns_index { encoded.index_bytes as usize / ALIGNMENT } else { 0 };
                let header = Header {
                    value_at: unit(value_units, "values")?,
                    index_at,
                    base: encoded.base,
                    shape: encoded.shape.to_bits(),
                };
                slices.push(PlacedSlice { header, stored_before: stored, owns_index });
                value_units += padded(encoded.stored as usize * value_size) / ALIGNMENT;
                stored += u64::from(encoded.stored);
            }
        }
        // GPU kernels may load behind the last value for lanes without an entry.
        value_units += usize::from(value_units > 0);
        Ok(Self { slices, value_units, index_units, stored })
    }
}

/// Converts a position in units to the type of headers.
fn unit(at: usize, what: &str) -> Result<u32, Error> {
    u32::try_from(at).map_err(|_| too_large(what, (ALIGNMENT as u64) << u32::BITS))
}

/// Writes slices into the arrays.
struct Writer<'a, T> {
    a: CsrView<'a, T>,
    rows: SlicedRows<'a>,
    group: usize,
    values_per_unit: usize,
    values: Sink<'a, T>,
    index: Output<u32>,
}

impl<T: Scalar> Writer<'_, T> {
    /// Writes slice `s`. `slots` are its slots if it is diagonal.
    ///
    /// # Safety
    ///
    /// No other thread writes the slice, nor its index if it owns that.
    unsafe fn slice(&self, s: usize, encoded: &Encoded, slice: &PlacedSlice, slots: &[Slot]) {
        let entries = self.rows.entries(s);
        let columns = entries.clone().map(|entries| &self.a.col_idx()[entries]);
        let values = entries.map(|entries| &self.a.values()[entries]);
        let shape = encoded.shape;
        let first = slice.header.value_at as usize * self.values_per_unit;
        let index = slice.header.index_at as usize * ALIGNMENT;
        // SAFETY: the positions are those of the slice's values and index, which are the caller's
        // promise.
        unsafe {
            if shape.kind == Kind::Diagonal {
                let mut next = [0; LANES];
                visit_diagonal(slots.iter().copied(), shape.full, self.group, |lane, _, at| {
                    // A filled lane has no values: its places stay zero.
                    let Some(&value) = values[lane].get(next[lane]) else { return };
                    self.values.put(first + at, value);
                    next[lane] += 1;
                });
                if slice.owns_index {
                    self.slots(index, shape.full, slots);
                }
                return;
            }
            let mask = |step: usize| mask(&columns, step * shape.step_columns);
            Steps::values(shape, self.group).visit(mask, |lane, entry, at| {
                let Some(&value) = values[lane].get(entry) else { return };
                self.values.put(first + at, value);
            });
            for step in shape.full..shape.width {
                self.put(index, step - shape.full, mask(step));
            }
            let indices = index + padded((shape.width - shape.full) * size_of::<u32>());
            Steps::indices(shape, self.group).visit(mask, |lane, step, at| {
                let Some(&col) = columns[lane].get(step * shape.step_columns) else { return };
                let offset = col - encoded.base;
                match shape.kind {
                    Kind::Relative8 => self.put(indices, at, offset as u8),
                    Kind::Relative16 => self.put(indices, at, offset as u16),
                    _ => self.put(indices, at, offset),
                }
            });
        }
    }

    /// Writes the slots of a diagonal slice, `full` of which every lane has, from byte `start` of
    /// the index.
    unsafe fn slots(&self, start: usize, full: usize, slots: &[Slot]) {
        let words = |count: usize| padded(count * size_of::<u32>());
        let partial = start + words(full);
        let masks = partial + words(slots.len() - full);
        let (mut k, mut p) = (0, 0);
        for slot in slots {
            // SAFETY: the caller's promise.
            unsafe {
                if slot.mask == ALL {
                    self.put(start, k, slot.delta);
                    k += 1;
                } else {
                    self.put(partial, p, slot.delta);
                    self.put(masks, p, slot.mask);
                    p += 1;
                }
            }
        }
    }

    /// Writes number `at` of those that begin at byte `start` of the index.
    #[inline(always)]
    unsafe fn put<N>(&self, start: usize, at: usize, number: N) {
        // SAFETY: the caller's promise; the bytes of the number lie inside a unit of the index, and
        // `start` is a multiple of a unit.
        unsafe {
            let word = self.index.at(start / size_of::<u32>());
            word.cast::<N>().add(at).write(number);
        }
    }
}

/// Lanes with more than `entry` entries.
fn mask(columns: &LaneColumns<'_>, entry: usize) -> u32 {
    (0..LANES).fold(0, |mask, lane| mask | u32::from(columns[lane].len() > entry) << lane)
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
