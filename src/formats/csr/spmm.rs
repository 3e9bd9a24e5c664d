//! SpMM with CSR on the CPU: the sums of a row for all vectors are in registers.

use super::cpu::{NarrowRows, for_each_block, prefetch_ahead};
use super::{CsrPlan, HostCsr};
use crate::device::cpu::{
    CpuKernel, Output, Vector, dispatch, element, element_at, for_each_task, read, write,
};
use crate::formats::spmm::to_row_major;
use crate::formats::{HostBuffers, Layout, SpmmShape, copied_vectors};
use crate::memory::try_zeroed;
use crate::{Error, Scalar};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::PoisonError;

/// Number of sums that are buffered before they are written if vectors are stored one after the
/// other: complete cache lines of each vector, however far apart they are.
const BUFFERED: usize = 1024;

/// A row-major multivector, and the destination of its product.
///
/// Element `c` of vector `v` is at `x[c · x_stride + v]`, row `r` of its product at
/// `y[r · row_stride + v · vector_stride]`.
#[derive(Clone, Copy)]
struct RowMajorVectors<'a, T> {
    x: &'a [T],
    x_stride: usize,
    y: Output<T>,
    row_stride: usize,
    vector_stride: usize,
    /// Number of vectors; small if `vector_stride` is not 1.
    count: usize,
}

impl<T: Scalar> HostCsr<T> {
    /// As [`HostMatrix::spmm`](crate::formats::HostMatrix::spmm), with any number of vectors.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`] if there is no memory for a buffer.
    pub(super) fn multiply_vectors(
        &self,
        shape: SpmmShape,
        x: &[T],
        y: &mut [T],
        buffers: &HostBuffers<T>,
    ) -> Result<(), Error> {
        let (_, [row_stride, vector_stride]) = shape.strides();
        let multiply = |x: &[T], x_stride, count, y: &mut [T]| {
            let y = Output::new(y);
            let vectors = RowMajorVectors { x, x_stride, y, row_stride, vector_stride, count };
            // SAFETY: the lengths are right; `y` is borrowed exclusively.
            unsafe { self.multiply_rows(vectors) };
        };
        if shape.layout == Layout::RowMajor {
            multiply(x, shape.count, shape.count, y);
            return Ok(());
        }
        let free = buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let width = copied_vectors::<T>();
        let mut copy = free.map_or_else(|| try_zeroed(shape.ncols.saturating_mul(width)), Ok)?;
        for first in (0..shape.count).step_by(width) {
            let count = width.min(shape.count - first);
            let copy = &mut copy[..shape.ncols * count];
            to_row_major(&x[first * shape.ncols..], shape.ncols, count, copy);
            multiply(copy, count, count, &mut y[first * shape.nrows..]);
        }
        buffers.lock().unwrap_or_else(PoisonError::into_inner).push(copy);
        Ok(())
    }

    /// SpMM with row-major vectors.
    ///
    /// # Safety
    ///
    /// `x` holds the elements of every column and vector, `y` has room for every row and vector,
    /// and nothing else writes there.
    unsafe fn multiply_rows(&self, vectors: RowMajorVectors<'_, T>) {
        let RowMajorVectors { y, row_stride, .. } = vectors;
        for_each_task(&self.assignment.tasks, |task| {
            let rows = match self.assignment.plan {
                CsrPlan::Balanced => self.rows_that_begin_in(task),
                _ => task,
            };
            // SAFETY: the matrix was checked; tasks share no row.
            for_each_block(self, rows, &|block, rows| unsafe {
                let y = y.skip(block.first_row * row_stride);
                dispatch(&SpmmKernel { a: block, vectors: RowMajorVectors { y, ..vectors } }, rows);
            });
        });
    }
}

/// Kernel over a range of rows of a block.
struct SpmmKernel<'a, T> {
    a: NarrowRows<'a, T>,
    vectors: RowMajorVectors<'a, T>,
}

impl<T: Scalar> CpuKernel<T> for SpmmKernel<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Vector<T>>(&self, rows: Range<usize>) {
        let RowMajorVectors { y, row_stride, vector_stride, count, .. } = self.vectors;
        let direct = vector_stride == 1;
        let at_once = if direct { rows.len().max(1) } else { BUFFERED / count };
        let mut buffer = [const { MaybeUninit::<T>::uninit() }; BUFFERED];
        let buffer = buffer.as_mut_ptr().cast::<T>();
        // SAFETY: the rows belong to this task, and there is room for every vector. Sums are
        // buffered before they are read.
        unsafe {
            for start in rows.clone().step_by(at_once) {
                let block = start..rows.end.min(start + at_once);
                for row in block.clone() {
                    let to = if direct {
                        y.at(row * row_stride)
                    } else {
                        buffer.wrapping_add((row - start) * count)
                    };
                    self.row::<V>(row, to);
                }
                if direct {
                    continue;
                }
                for v in 0..count {
                    for row in block.clone() {
                        let sum = element(buffer, (row - start) * count + v);
                        y.set(row * row_stride + v * vector_stride, sum);
                    }
                }
            }
        }
    }
}

impl<T: Scalar> SpmmKernel<'_, T> {
    /// Products of a row with all vectors, stored consecutively from `to` on.
    ///
    /// # Safety
    ///
    /// The matrix has the row, the vectors exist, and there is room for their sums.
    #[inline(always)]
    unsafe fn row<V: Vector<T>>(&self, row: usize, to: *mut T) {
        let count = self.vectors.count;
        let entries = self.a.row_ptr[row] as usize..self.a.row_ptr[row + 1] as usize;
        let mut first = 0;
        // SAFETY: the caller's promise; `first` and what is multiplied from there on are below
        // `count`.
        unsafe {
            if const { V::COMPACT } {
                while first + 8 <= count {
                    self.scalar_products::<8>(entries.clone(), first, to);
                    first += 8;
                }
            }
            while const { !V::COMPACT } && first + 2 * V::LANES <= count {
                self.simd_products::<V, 2, 2>(entries.clone(), first, to);
                first += 2 * V::LANES;
            }
            if const { !V::COMPACT } && first + V::LANES <= count {
                self.simd_products::<V, 1, 4>(entries.clone(), first, to);
                first += V::LANES;
            }
            // The remainder is less than a vector: eight, four, and up to three at a time.
            if const { V::LANES > 8 && !V::COMPACT } && (count - first) & 8 != 0 {
                self.scalar_products::<8>(entries.clone(), first, to);
                first += 8;
            }
            if (count - first) & 4 != 0 {
                self.scalar_products::<4>(entries.clone(), first, to);
                first += 4;
            }
            match count - first {
                3 => self.scalar_products::<3>(entries, first, to),
                2 => self.scalar_products::<2>(entries, first, to),
                1 => self.scalar_products::<1>(entries, first, to),
                _ => {}
            }
        }
    }

    /// Returns the value of an entry, and the pointer to its factors, those of the vectors from
    /// `first` on.
    ///
    /// # Safety
    ///
    /// The entry is one of the matrix.
    #[inline(always)]
    unsafe fn entry(&self, k: usize, first: usize) -> (T, *const T) {
        // SAFETY: the caller's promise; columns of a checked matrix are those of `x`.
        unsafe {
            let col = element(self.a.col_idx.as_ptr(), k) as usize;
            let x = element_at(self.vectors.x.as_ptr(), col * self.vectors.x_stride + first);
            (element(self.a.values.as_ptr(), k), x)
        }
    }

    /// Products with `G` vectors of lanes, in `U` running sums each, so that no addition waits for
    /// the previous one.
    ///
    /// # Safety
    ///
    /// As [`row`](Self::row), for its entries and these vectors.
    #[inline(always)]
    unsafe fn simd_products<V: Vector<T>, const G: usize, const U: usize>(
        &self,
        entries: Range<usize>,
        first: usize,
        to: *mut T,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[V::zero(); G]; U];
            let whole = entries.start + entries.len() / U * U;
            let mut k = entries.start;
            while k < whole {
                prefetch_ahead(self.a.values, self.a.col_idx, k);
                for (u, sums) in sums.iter_mut().enumerate() {
                    let (value, x) = self.entry(k + u, first);
                    let value = V::splat(value);
                    for (g, sum) in sums.iter_mut().enumerate() {
                        *sum = sum.mul_add(value, V::load(element_at(x, g * V::LANES)));
                    }
                }
                k += U;
            }
            let (total, others) = sums.split_at_mut(1);
            for k in whole..entries.end {
                let (value, x) = self.entry(k, first);
                let value = V::splat(value);
                for (g, sum) in total[0].iter_mut().enumerate() {
                    *sum = sum.mul_add(value, V::load(element_at(x, g * V::LANES)));
                }
            }
            for (g, total) in total[0].iter_mut().enumerate() {
                for other in others.iter() {
                    *total = total.mul_add(V::splat(T::ONE), other[g]);
                }
                total.store(element_at(to, first + g * V::LANES).cast_mut());
            }
        }
    }

    /// Products with `K` vectors, fewer than a vector of lanes, in four running sums each.
    ///
    /// # Safety
    ///
    /// As [`row`](Self::row), for its entries and these vectors.
    #[inline(always)]
    unsafe fn scalar_products<const K: usize>(
        &self,
        entries: Range<usize>,
        first: usize,
        to: *mut T,
    ) {
        const U: usize = 4;
        let mut sums = [[T::ZERO; K]; U];
        let whole = entries.start + entries.len() / U * U;
        let mut k = entries.start;
        // SAFETY: the caller's promise.
        unsafe {
            while k < whole {
                prefetch_ahead(self.a.values, self.a.col_idx, k);
                for (u, sums) in sums.iter_mut().enumerate() {
                    let (value, x) = self.entry(k + u, first);
                    let x: [T; K] = read(x);
                    for v in 0..K {
                        sums[v] += value * x[v];
                    }
                }
                k += U;
            }
            let [mut total, others @ ..] = sums;
            for k in whole..entries.end {
                let (value, x) = self.entry(k, first);
                let x: [T; K] = read(x);
                for v in 0..K {
                    total[v] += value * x[v];
                }
            }
            // Without iterator adapters, which are calls from these instructions to those of any
            // CPU where code is not inlined across units of compilation.
            for other in &others {
                for v in 0..K {
                    total[v] += other[v];
                }
            }
            write(element_at(to, first).cast_mut(), total);
        }
    }
}
