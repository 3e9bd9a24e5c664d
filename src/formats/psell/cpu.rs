//! Products with packed SELL on the CPU: the lanes of a slice are SIMD lanes.

use super::Stored;
use super::host::HostPsell;
use super::index::{ALL, Kind, LANES, SliceShape};
use super::long::{LongRows, entries};
use super::slice::Slice;
use super::source::{AHEAD, Codes, Plain, Same, Source, Widened};
use crate::device::cpu::{
    CpuKernel, MAX_TASKS, Output, Vector, element, element_at, prefetch, read, run_tasks, set_lanes,
};
use crate::precision::{Bf16, F16};
use crate::{Precision, Scalar, ScalarKind};
use std::ops::Range;

/// Least number of bytes of a vector of indices for a prefetch per vector, otherwise per step: half
/// a cache line.
const PREFETCH_BYTES: usize = 32;

/// Indices of every width, which is known at run time.
const ANY: usize = 0;

impl<T: Scalar> HostPsell<T> {
    /// Computes `y = A x`. `y` is overwritten without being read, and its bits do not depend on the
    /// number of threads.
    ///
    /// `x` has `ncols` elements and `y` has `nrows`: the caller has checked it.
    pub(crate) fn product(&self, x: &[T], y: &mut [T]) {
        let y = Output::new(y);
        // SAFETY: the matrix was checked and the caller checked the vectors; the arrays hold values
        // at all positions.
        unsafe {
            multiply(self, &self.values, &self.dictionary, x, y);
            if let Some(long) = &self.long {
                multiply(long, &long.values, &self.dictionary, x, y);
            }
        }
    }
}

/// The slices or the long rows of a matrix, with any representation of their values.
trait Multiply<T: Scalar> {
    /// Writes the products to `y`.
    ///
    /// # Safety
    ///
    /// `values` are those of `self`; the vectors are as in [`HostPsell::product`].
    unsafe fn multiply<S: Source<T>>(&self, values: S, x: &[T], y: Output<T>);
}

/// Multiplies with stored values.
///
/// # Safety
///
/// As for [`Multiply::multiply`], with these values.
unsafe fn multiply<T: Scalar>(
    a: &impl Multiply<T>,
    values: &Stored<T>,
    dictionary: &[T],
    x: &[T],
    y: Output<T>,
) {
    // SAFETY: the caller's promise; the numbers of a precision are stored as their bits.
    unsafe {
        match values {
            Stored::Plain(values) => a.multiply(Plain(values.as_ptr()), x, y),
            Stored::Codes(codes) => a.multiply(Codes(codes.as_ptr(), dictionary.as_ptr()), x, y),
            Stored::Halves(Precision::Bf16, halves) => {
                a.multiply(Widened(halves.as_ptr().cast::<Bf16>()), x, y);
            }
            Stored::Halves(_, halves) => a.multiply(Widened(halves.as_ptr().cast::<F16>()), x, y),
            Stored::Singles(singles) => {
                // A constant, so that a kernel is not generated twice.
                if const { matches!(T::KIND, ScalarKind::F32) } {
                    a.multiply(Plain(singles.as_ptr().cast()), x, y);
                } else {
                    a.multiply(Widened(singles.as_ptr()), x, y);
                }
            }
            Stored::Same => a.multiply(Same(dictionary[0]), x, y),
        }
    }
}

impl<T: Scalar> Multiply<T> for HostPsell<T> {
    unsafe fn multiply<S: Source<T>>(&self, values: S, x: &[T], y: Output<T>) {
        // SAFETY: the caller's promise; tasks share no slice, and slices share no row.
        unsafe { run_tasks(&self.tasks, &SliceKernel { a: self, values, x, y }) };
    }
}

/// Kernel over a range of slices.
struct SliceKernel<'a, T, S> {
    a: &'a HostPsell<T>,
    values: S,
    x: &'a [T],
    y: Output<T>,
}

impl<T: Scalar, S: Source<T>> CpuKernel<T> for SliceKernel<'_, T, S> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, range: Range<usize>) {
        for s in range {
            // SAFETY: the slice belongs to this task; two or four vectors are its lanes.
            unsafe {
                if const { LANES / V::LANES == 2 } {
                    self.slice::<V, 2>(s);
                } else {
                    self.slice::<V, 4>(s);
                }
            }
        }
    }
}

impl<T: Scalar, S: Source<T>> SliceKernel<'_, T, S> {
    /// Multiplies a slice whose lanes are `G` vectors.
    #[inline(always)]
    unsafe fn slice<V: Vector<T>, const G: usize>(&self, s: usize) {
        let slice = self.a.slice(s);
        let SliceShape { kind, step_columns, full, .. } = slice.shape;
        // SAFETY: the entries and columns are those of the slice; the caller's promise.
        unsafe {
            if self.a.group > 1 && step_columns == 1 {
                return self.store_lanes(s, &self.lane_by_lane(&slice));
            }
            if const { V::COMPACT } && kind != Kind::Diagonal {
                let mut sums = [T::ZERO; LANES];
                self.add_entries(&slice, 0, &mut sums);
                return self.store_lanes(s, &sums);
            }
            let sums: [V; G] = match (kind, step_columns) {
                (Kind::Diagonal, _) => self.diagonal(&slice),
                _ if const { V::COMPACT } => unreachable!("it has been multiplied"),
                (_, 1) if const { V::ANY_WIDTH } => self.relative::<V, G, ANY, 1>(&slice),
                (_, 2) if const { V::ANY_WIDTH } => self.relative::<V, G, ANY, 2>(&slice),
                (_, _) if const { V::ANY_WIDTH } => self.relative::<V, G, ANY, 3>(&slice),
                (Kind::Relative8, 1) => self.relative::<V, G, 1, 1>(&slice),
                (Kind::Relative8, 2) => self.relative::<V, G, 1, 2>(&slice),
                (Kind::Relative8, _) => self.relative::<V, G, 1, 3>(&slice),
                (Kind::Relative16, 1) => self.relative::<V, G, 2, 1>(&slice),
                (Kind::Relative16, 2) => self.relative::<V, G, 2, 2>(&slice),
                (Kind::Relative16, _) => self.relative::<V, G, 2, 3>(&slice),
                (Kind::Relative32, 1) => self.relative::<V, G, 4, 1>(&slice),
                (Kind::Relative32, 2) => self.relative::<V, G, 4, 2>(&slice),
                (Kind::Relative32, _) => self.relative::<V, G, 4, 3>(&slice),
            };
            if const { V::EXPANDS } || slice.masks.is_empty() {
                return self.store(s, sums);
            }
            let mut sums = lanes(sums);
            self.add_entries(&slice, full, &mut sums);
            self.store_lanes(s, &sums);
        }
    }

    /// Multiplies a diagonal slice whose slots are stored one at a time; without
    /// [`Vector::EXPANDS`] only the slots that every lane has.
    #[inline(always)]
    unsafe fn diagonal<V: Vector<T>, const G: usize>(&self, slice: &Slice<'_>) -> [V; G] {
        let x = self.x.as_ptr().wrapping_add(slice.first_row as usize);
        let [full, partial] = slice.deltas;
        let mut at = slice.first_value;
        // SAFETY: the caller's promise.
        let mut sums = [unsafe { V::zero() }; G];
        for &delta in full {
            let x = x.wrapping_offset(delta as i32 as isize);
            for (g, sum) in sums.iter_mut().enumerate() {
                self.values.prefetch_ahead(at);
                // SAFETY: every lane has an entry there.
                *sum = unsafe {
                    sum.mul_add(self.values.load(at), V::load(x.wrapping_add(g * V::LANES)))
                };
                at += V::LANES;
            }
        }
        if const { !V::EXPANDS } {
            return sums;
        }
        // Not `zip`: it is a call in builds without optimisation at link time.
        for (k, &lanes) in slice.masks.iter().enumerate() {
            let x = x.wrapping_offset(partial[k] as i32 as isize);
            for (g, sum) in sums.iter_mut().enumerate() {
                let mask = lanes >> (g * V::LANES) & V::ALL;
                // SAFETY: the lanes of the mask have an entry there.
                unsafe {
                    let x = V::load_masked(mask, x.wrapping_add(g * V::LANES));
                    *sum = sum.mul_add_where(mask, self.values.expand(mask, at), x);
                }
                at += mask.count_ones() as usize;
            }
        }
        sums
    }

    /// Start of the indices of a relative slice. The pointer is that of the array and not of a part
    /// of it, because vectors may reach past the last index: see `SLACK`.
    #[inline(always)]
    fn indices(&self, slice: &Slice<'_>) -> *const u8 {
        // They reach to the end of the array.
        let first = self.a.index.len() - slice.indices.len();
        self.a.index.as_ptr().wrapping_add(first).cast()
    }

    /// Multiplies a relative slice with indices of `B` bytes, or [`ANY`], in steps of `R` slots,
    /// stored one at a time; without [`Vector::EXPANDS`] only the steps that every lane has.
    #[inline(always)]
    unsafe fn relative<V: Vector<T>, const G: usize, const B: usize, const R: usize>(
        &self,
        slice: &Slice<'_>,
    ) -> [V; G] {
        let x = self.x.as_ptr().wrapping_add(slice.base as usize);
        let mut indices = self.indices(slice);
        let bytes = if B == ANY { slice.shape.kind.index_size() } else { B };
        let mut at = slice.first_value;
        // SAFETY: every lane has the first steps, and the lanes of the masks have the others.
        unsafe {
            let mut sums = [V::zero(); G];
            for _ in 0..slice.shape.full {
                for (g, sum) in sums.iter_mut().enumerate() {
                    let from = element_at(indices, g * V::LANES * bytes);
                    if g == 0 || V::LANES * bytes >= PREFETCH_BYTES {
                        prefetch(from.wrapping_add(AHEAD * bytes));
                    }
                    let index = match bytes {
                        1 => V::indices(from),
                        2 => V::indices(from.cast::<u16>()),
                        _ => V::indices(from.cast::<u32>()),
                    };
                    for slot in 0..R {
                        let at = at + slot * LANES + g * V::LANES;
                        self.values.prefetch_ahead(at);
                        let x = V::gather_at(x.wrapping_add(slot), index);
                        *sum = sum.mul_add(self.values.load(at), x);
                    }
                }
                indices = element_at(indices, LANES * bytes);
                at += R * LANES;
            }
            if const { !V::EXPANDS } {
                return sums;
            }
            for &lanes in slice.masks {
                let count = lanes.count_ones() as usize;
                let mut before = 0;
                for (g, sum) in sums.iter_mut().enumerate() {
                    let mask = lanes >> (g * V::LANES) & V::ALL;
                    let from = element_at(indices, before * bytes);
                    let index = match bytes {
                        1 => V::expand_indices(mask, from),
                        2 => V::expand_indices(mask, from.cast::<u16>()),
                        _ => V::expand_indices(mask, from.cast::<u32>()),
                    };
                    for slot in 0..R {
                        let x = V::gather_expanded(mask, x.wrapping_add(slot), index);
                        *sum = sum.mul_add_where(
                            mask,
                            self.values.expand(mask, at + slot * count + before),
                            x,
                        );
                    }
                    before += mask.count_ones() as usize;
                }
                indices = element_at(indices, count * bytes);
                at += R * count;
            }
            sums
        }
    }

    /// Adds the slots or steps from `first` on, entry by entry, where slots are stored one at a
    /// time. In a diagonal slice `first` is the number of slots that every lane has.
    #[inline(never)]
    unsafe fn add_entries(&self, slice: &Slice<'_>, first: usize, sums: &mut [T; LANES]) {
        let SliceShape { kind, step_columns, full, width } = slice.shape;
        let x = self.x.as_ptr();
        let mut at = slice.first_value + first * step_columns * LANES;
        // SAFETY: the entries and columns are those of the slice; the caller's promise.
        unsafe {
            if kind == Kind::Diagonal {
                for (k, &lanes) in slice.masks.iter().enumerate() {
                    let col = slice.first_row.wrapping_add(slice.deltas[1][k]);
                    for lane in set_lanes(lanes) {
                        let col = col.wrapping_add(lane as u32) as usize;
                        sums[lane] += self.values.get(at) * element(x, col);
                        at += 1;
                    }
                }
                return;
            }
            let bytes = kind.index_size();
            let mut indices = element_at(self.indices(slice), first * LANES * bytes);
            for step in first..width {
                let lanes = if step < full { ALL } else { slice.masks[step - full] };
                let count = lanes.count_ones() as usize;
                for lane in set_lanes(lanes) {
                    let index = match bytes {
                        1 => u32::from(read::<u8>(indices)),
                        2 => u32::from(read::<u16>(indices)),
                        _ => read(indices),
                    };
                    let col = (slice.base + index) as usize;
                    for slot in 0..step_columns {
                        sums[lane] += self.values.get(at + slot * count) * element(x, col + slot);
                    }
                    indices = element_at(indices, bytes);
                    at += 1;
                }
                at += (step_columns - 1) * count;
            }
        }
    }

    /// Multiplies any slice whose entries have one index each, entry by entry.
    #[inline(never)]
    unsafe fn lane_by_lane(&self, slice: &Slice<'_>) -> [T; LANES] {
        let mut sums = [T::ZERO; LANES];
        slice.visit_columns(self.a.group, |lane, _, at, col| {
            // SAFETY: an entry of the slice.
            let value = unsafe { self.values.get(slice.first_value + at) };
            sums[lane] += value * self.x[col as usize];
        });
        sums
    }

    /// Writes the sums of a slice to its rows.
    #[inline(always)]
    unsafe fn store<V: Vector<T>, const G: usize>(&self, s: usize, sums: [V; G]) {
        let whole =
            (s + 1) * LANES <= self.a.nrows && self.a.perm.is_none() && self.a.skip.is_none();
        // SAFETY: the rows of the slice belong to this task.
        unsafe {
            if whole {
                write_lanes(sums, self.y.at(s * LANES));
            } else {
                self.store_lanes(s, &lanes(sums));
            }
        }
    }

    #[inline(always)]
    unsafe fn store_lanes(&self, s: usize, sums: &[T; LANES]) {
        let rows = s * LANES..((s + 1) * LANES).min(self.a.nrows);
        let skip = self.a.skip.as_ref().map_or(0, |skip| skip[s]);
        for (lane, i) in rows.enumerate() {
            if skip >> lane & 1 == 0 {
                // SAFETY: as above; `perm` is a permutation of the rows.
                unsafe {
                    self.y.set(self.a.perm.as_ref().map_or(i, |perm| perm[i] as usize), sums[lane])
                };
            }
        }
    }
}

/// Writes the lanes of a slice to `to`.
///
/// # Safety
///
/// There is room for them, and the machine has the instructions of `V`.
#[inline(always)]
unsafe fn write_lanes<T: Scalar, V: Vector<T>, const G: usize>(sums: [V; G], to: *mut T) {
    for (g, sum) in sums.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { sum.store(element_at(to, g * V::LANES).cast_mut()) };
    }
}

/// The lanes of a slice as an array.
///
/// # Safety
///
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn lanes<T: Scalar, V: Vector<T>, const G: usize>(sums: [V; G]) -> [T; LANES] {
    let mut lanes = [T::ZERO; LANES];
    // SAFETY: `G` vectors are the lanes of a slice; the caller's promise.
    unsafe { write_lanes(sums, lanes.as_mut_ptr()) };
    lanes
}

impl<T: Scalar> Multiply<T> for LongRows<T> {
    // The tasks have about the same number of entries and depend on the matrix alone.
    unsafe fn multiply<S: Source<T>>(&self, values: S, x: &[T], y: Output<T>) {
        let mut carries = [T::ZERO; MAX_TASKS + 1];
        let kernel = LongRowsKernel { a: self, values, x, y, carries: Output::new(&mut carries) };
        // SAFETY: the caller's promise; a row is written by the task with its first piece, and a
        // carry by its own task.
        unsafe { run_tasks(&self.tasks, &kernel) };
        for (&start, &carry) in self.tasks[1..self.tasks.len() - 1].iter().zip(&carries[1..]) {
            let piece = &self.pieces[start];
            if (piece.first as usize) < start {
                // SAFETY: all tasks are done, and the row has been written.
                unsafe { y.add(piece.row as usize, carry) };
            }
        }
    }
}

/// Kernel over a range of pieces of the long rows.
struct LongRowsKernel<'a, T, S> {
    a: &'a LongRows<T>,
    values: S,
    x: &'a [T],
    y: Output<T>,
    carries: Output<T>,
}

impl<T: Scalar, S: Source<T>> CpuKernel<T> for LongRowsKernel<'_, T, S> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, range: Range<usize>) {
        let LongRows { pieces, tasks, .. } = self.a;
        for row in pieces[range.clone()].chunk_by(|one, next| one.row == next.row) {
            // SAFETY: the pieces belong to this task; the row belongs to the task of its first
            // piece.
            unsafe {
                let sum = self.dot::<V>(entries(row));
                if row[0].first as usize >= range.start {
                    self.y.set(row[0].row as usize, sum);
                } else {
                    self.carries.set(tasks.partition_point(|&start| start < range.start), sum);
                }
            }
        }
    }
}

impl<T: Scalar, S: Source<T>> LongRowsKernel<'_, T, S> {
    /// Returns the sum of the products of `entries`.
    #[inline(always)]
    unsafe fn dot<V: Vector<T>>(&self, entries: Range<usize>) -> T {
        /// Number of independent partial sums, so that no addition waits for the previous one.
        const SUMS: usize = 2;
        let (cols, x) = (self.a.col_idx.as_ptr(), self.x.as_ptr());
        // SAFETY: columns of a checked matrix are inside `x`; the entries are the caller's promise.
        unsafe {
            let mut sums = [V::zero(); SUMS];
            let mut k = entries.start;
            while k + SUMS * V::LANES <= entries.end {
                for sum in &mut sums {
                    self.values.prefetch_ahead(k);
                    prefetch(cols.wrapping_add(k + AHEAD));
                    let x = V::gather_at(x, V::indices(element_at(cols, k)));
                    *sum = sum.mul_add(self.values.load(k), x);
                    k += V::LANES;
                }
            }
            let rest = (k..entries.end).fold(T::ZERO, |sum, k| {
                sum + self.values.get(k) * element(x, element(cols, k) as usize)
            });
            sums.into_iter().fold(rest, |total, sum| total + sum.sum())
        }
    }
}
