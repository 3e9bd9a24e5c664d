//! SpMM: on the CPU with the rows of CSR, or for few column-major vectors as one SpMV each; on a
//! GPU with packed SELL or the chunks of `csr(balanced)`. A matrix with another plan is packed a
//! second time.
//!
//! SpMM with CSR and on a GPU reads row-major multivectors: all elements at one column are
//! neighbours, so that one gather loads several factors. Column-major multivectors, or those whose
//! rows are not aligned to the loads of a GPU, are copied to row-major order first, some vectors at
//! a time.

use super::constants::ROW_MAJOR_BYTES;
use super::scaled::Scaler;
use super::{DeviceVectors, ResidentMatrix};
use crate::device::{
    BLOCK, DeviceVec, Gpu, Kernel, Launch, Ptr, Queue, Scaling, Scratch, Stream, kernels,
};
use crate::parallel;
use crate::{Error, Scalar};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

/// Number of vectors below which row-major multivectors are read in place: kernels count the bytes
/// from one column to the next in 32 bits.
const IN_PLACE_LIMIT: usize = 1 << 28;

/// Columns that a CPU thread copies at a time.
const COPIED_COLUMNS: usize = 1 << 12;

/// Columns that are copied for one vector before the next vector: whole cache lines on both sides,
/// which stay in the fastest cache even if the distance of vectors is a power of two.
const COPIED_BLOCK: usize = 32;

/// Memory layout of a multivector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Element `i` of vector `v` of `k` is at `i · k + v`: the rows of a matrix whose columns are
    /// the vectors.
    RowMajor,
    /// Element `i` of vector `v` is at `v · n + i`: one vector after the other.
    ColumnMajor,
}

/// Multivector: several vectors in one array, with their number and layout. An operand of
/// [`SparseOp::apply_multi`](crate::SparseOp::apply_multi).
///
/// `data` is any type that borrows as a slice, or a [`DeviceVec`], of `count` times the length of a
/// vector; the product checks that length.
///
/// ```
/// # use sparseop::{Layout, Multivector};
/// // (1, 2) and (10, 20).
/// let rows = Multivector::row_major([1.0, 10.0, 2.0, 20.0], 2);
/// let columns = Multivector::column_major([1.0, 2.0, 10.0, 20.0], 2);
/// assert_eq!((rows.layout(), columns.layout()), (Layout::RowMajor, Layout::ColumnMajor));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Multivector<V> {
    pub(crate) data: V,
    pub(crate) count: usize,
    pub(crate) layout: Layout,
}

impl<V> Multivector<V> {
    /// Creates a multivector of `count` vectors with the given layout.
    pub fn new(data: V, count: usize, layout: Layout) -> Self {
        Self { data, count, layout }
    }

    /// Creates a multivector of `count` vectors in [`Layout::RowMajor`], the faster one.
    pub fn row_major(data: V, count: usize) -> Self {
        Self::new(data, count, Layout::RowMajor)
    }

    /// Creates a multivector of `count` vectors in [`Layout::ColumnMajor`].
    pub fn column_major(data: V, count: usize) -> Self {
        Self::new(data, count, Layout::ColumnMajor)
    }

    /// Number of vectors.
    #[doc(hidden)]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Memory layout.
    #[doc(hidden)]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The vectors.
    #[doc(hidden)]
    pub fn into_data(self) -> V {
        self.data
    }

    /// The same multivector with its data converted by `f`.
    pub(crate) fn map<W>(self, f: impl FnOnce(V) -> W) -> Multivector<W> {
        Multivector { data: f(self.data), count: self.count, layout: self.layout }
    }
}

/// Shape of the operands of an SpMM.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpmmShape {
    /// Number of vectors.
    pub(crate) count: usize,
    /// Elements of each vector of `x`: the number of columns of the matrix.
    pub(crate) ncols: usize,
    /// Elements of each vector of `y`: the number of rows of the matrix.
    pub(crate) nrows: usize,
    /// Layout of both multivectors.
    pub(crate) layout: Layout,
}

impl SpmmShape {
    /// Strides of `x` and of `y`: distance to the next element of the same vector, and to the same
    /// element of the next vector.
    pub(super) fn strides(&self) -> ([usize; 2], [usize; 2]) {
        match self.layout {
            Layout::RowMajor => ([self.count, 1], [self.count, 1]),
            Layout::ColumnMajor => ([1, self.ncols], [1, self.nrows]),
        }
    }

    /// True if the number of vectors is a multiple of a [unit](DeviceVectors::unit).
    pub(crate) fn has_unit<T: Scalar>(&self) -> bool {
        DeviceVectors::<T>::UNITS.iter().any(|&unit| self.count.is_multiple_of(unit))
    }
}

/// Number of vectors that are copied to row-major order, and multiplied, at a time.
pub(crate) const fn copied_vectors<T>() -> usize {
    ROW_MAJOR_BYTES / size_of::<T>()
}

/// SpMM with a matrix in GPU memory.
pub(crate) trait DeviceSpmm<T: Scalar>: Debug + Send + Sync {
    /// Largest number of vectors per call of [`multiply`](Self::multiply).
    fn most_vectors(&self) -> usize {
        DeviceVectors::<T>::MAX
    }

    /// Enqueues the SpMM; `y` is overwritten without being read.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    ///
    /// # Safety
    ///
    /// `vectors` have a [unit](DeviceVectors::unit), and `x` can be read up to the end of the last
    /// unit. The memory is that of the matrix's GPU. `x` and `y` do not overlap, and they and
    /// `self` live until the SpMM is done.
    unsafe fn multiply(&self, queue: &Queue, vectors: DeviceVectors<T>) -> Result<(), Error>;

    /// Bytes of the arrays made for SpMM.
    fn bytes(&self) -> u64;
}

/// Buffers of SpMMs on the CPU that are not in use: as many as were used at the same time.
pub(crate) type HostBuffers<T> = Mutex<Vec<Vec<T>>>;

/// Working memory of SpMMs with one matrix.
#[derive(Debug)]
pub(crate) enum SpmmData<T: Scalar> {
    Host(HostBuffers<T>),
    Gpu(Box<GpuSpmm<T>>),
}

impl<T: Scalar> SpmmData<T> {
    /// Creates the data for a matrix of `ncols` columns. None if it is on a GPU and its format has
    /// no kernels for SpMM. Without tables products of many vectors may be slow.
    ///
    /// # Errors
    ///
    /// Errors of the GPU and of compiling kernels.
    pub(crate) fn of(
        matrix: &ResidentMatrix<T>,
        ncols: usize,
        has_tables: bool,
    ) -> Result<Option<Self>, Error> {
        Ok(match matrix {
            ResidentMatrix::Host(_) => Some(Self::Host(Mutex::default())),
            ResidentMatrix::Gpu(gpu, matrix) => match matrix.clone().spmm(*gpu, has_tables)? {
                Some(spmm) => Some(Self::Gpu(Box::new(GpuSpmm::new(spmm, *gpu, ncols)?))),
                None => None,
            },
        })
    }

    /// Bytes of data derived from the matrix, without vectors.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Host(_) => 0,
            Self::Gpu(on_gpu) => on_gpu.spmm.bytes(),
        }
    }
}

impl<T: Scalar> ResidentMatrix<T> {
    /// Largest number of vectors in a layout for which SpMM can use the packed arrays, on the CPU
    /// as fast as with a second packing; 0 if it cannot use them.
    pub(crate) fn spmm_limit(&self, layout: Layout) -> usize {
        match self {
            Self::Host(matrix) => matrix.spmm_limit(layout),
            Self::Gpu(_, matrix) => matrix.spmm_limit(),
        }
    }

    /// Computes the SpMM with multivectors in host memory, for a matrix in host memory.
    ///
    /// `x` and `y` have the lengths given by `shape`, checked by the caller.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`] if there is no memory for a buffer.
    pub(crate) fn multiply_multivector(
        &self,
        data: &SpmmData<T>,
        shape: SpmmShape,
        x: &[T],
        y: &mut [T],
    ) -> Result<(), Error> {
        let (Self::Host(matrix), SpmmData::Host(buffers)) = (self, data) else {
            unreachable!("the caller has a matrix in host memory")
        };
        matrix.spmm(shape, x, y, buffers)
    }

    /// Enqueues an SpMM with multivectors in the memory of the matrix's GPU.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    ///
    /// # Safety
    ///
    /// `data` belongs to this matrix. `x` and `y` have the lengths given by `shape` and do not
    /// overlap; they and the matrix live until the SpMM is done.
    pub(crate) unsafe fn enqueue_spmm_at(
        &self,
        data: &SpmmData<T>,
        queue: &Queue,
        shape: SpmmShape,
        x: Ptr<T>,
        y: Ptr<T>,
    ) -> Result<(), Error> {
        let (Self::Gpu(..), SpmmData::Gpu(on_gpu)) = (self, data) else {
            unreachable!("the caller has a matrix on a GPU")
        };
        // SAFETY: the caller's promise.
        unsafe { on_gpu.multiply(queue, shape, x, y) }
    }

    /// `Y = A X`, or `Y = alpha A X + beta Y` if `scaled` is given; executed directly on the CPU
    /// and enqueued on a GPU.
    ///
    /// `x` and `y` have the lengths given by `shape`, and the scaler is for all elements of `y`,
    /// checked by the caller.
    ///
    /// # Errors
    ///
    /// As [`ResidentMatrix::enqueue_scaled`].
    pub(crate) fn enqueue_spmm(
        &self,
        data: &SpmmData<T>,
        stream: &Stream,
        shape: SpmmShape,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
        scaled: Option<(&Scaler<T>, Scaling<'_, T>)>,
    ) -> Result<(), Error> {
        scaled.map_or(Ok(()), |(_, by)| self.check_factors(by))?;
        self.check_places(stream, x, y)?;
        match (self, stream.queue()) {
            (Self::Gpu(gpu, matrix), Some(queue)) => {
                if queue.records() {
                    let factors = scaled.map(|(_, by)| [by.alpha.vector(), by.beta.vector()]);
                    let factors = factors.into_iter().flatten().flatten();
                    let vectors = factors.chain([x, &*y]).filter_map(DeviceVec::share);
                    vectors.for_each(|memory| queue.keep(memory));
                    queue.keep(Arc::new(matrix.clone()));
                }
                // SAFETY: the lengths are right and the memory is this GPU's. Freeing it waits for
                // work that uses it, and a graph keeps it.
                unsafe {
                    let multiply = |y| self.enqueue_spmm_at(data, queue, shape, x.ptr(), y);
                    match scaled {
                        None => {
                            let _lock = queue.lock()?;
                            multiply(y.ptr())
                        }
                        // Locks the queue itself.
                        Some((scaler, by)) => {
                            let fused = &|| Ok(false);
                            scaler.enqueue_scale(*gpu, queue, y.ptr(), by, &multiply, fused)
                        }
                    }
                }
            }
            _ => {
                let multiply = |y: &mut [T]| self.multiply_multivector(data, shape, x.host(), y);
                match scaled {
                    None => multiply(y.host_mut()),
                    Some((scaler, by)) => {
                        let (alpha, beta) = (by.alpha.on_host(), by.beta.on_host());
                        scaler.scale(alpha, beta, y.host_mut(), multiply)
                    }
                }
            }
        }
    }
}

/// Copies `count` column-major vectors of `len` elements to row-major order.
pub(super) fn to_row_major<T: Scalar>(x: &[T], len: usize, count: usize, copy: &mut [T]) {
    let tasks = copy.chunks_mut(COPIED_COLUMNS * count).enumerate();
    parallel::for_each_item(tasks, |(task, copy)| {
        let from = task * COPIED_COLUMNS;
        for (block, copy) in copy.chunks_mut(COPIED_BLOCK * count).enumerate() {
            for v in 0..count {
                let vector = &x[v * len + from + block * COPIED_BLOCK..];
                copy.chunks_exact_mut(count).zip(vector).for_each(|(to, &element)| to[v] = element);
            }
        }
    });
}

/// SpMM on a GPU, with the kernels that copy vectors to row-major order.
#[derive(Debug)]
pub(crate) struct GpuSpmm<T: Scalar> {
    spmm: Box<dyn DeviceSpmm<T>>,
    /// Kernel that copies vectors to row-major order.
    kernel: Kernel,
    copy: Scratch<T>,
}

impl<T: Scalar> GpuSpmm<T> {
    fn new(spmm: Box<dyn DeviceSpmm<T>>, gpu: Gpu, ncols: usize) -> Result<Self, Error> {
        Ok(Self {
            spmm,
            kernel: gpu.kernel("row_major", &format!("row_major_{}", T::KIND))?,
            copy: Scratch::new(gpu, ncols * copied_vectors::<T>()),
        })
    }

    /// Enqueues the SpMM, in as many passes as necessary.
    ///
    /// # Safety
    ///
    /// `x` and `y` have the lengths given by `shape` and are in the GPU's memory; they do not
    /// overlap, and they and the matrix live until the SpMM is done.
    pub(crate) unsafe fn multiply(
        &self,
        queue: &Queue,
        shape: SpmmShape,
        x: Ptr<T>,
        y: Ptr<T>,
    ) -> Result<(), Error> {
        let ([element, next], [row, vector]) = shape.strides();
        let all = DeviceVectors { x, stride: element, y, row, vector, count: shape.count };
        let direct = shape.layout == Layout::RowMajor
            && all.unit().is_some()
            && shape.count < IN_PLACE_LIMIT;
        let step = if direct { self.spmm.most_vectors() } else { copied_vectors::<T>() };
        let copy = if direct { Ptr::NULL } else { self.copy.on(queue)? };
        for first in (0..shape.count).step_by(step) {
            let count = step.min(shape.count - first);
            let x = x.add(first * next);
            let pass = DeviceVectors { x, y: y.add(first * vector), count, ..all };
            // SAFETY: the caller's promise; the copy has room for all columns. Units reach no
            // further than its rows, or than those of `x`, which are whole numbers of units.
            unsafe {
                let pass = if direct {
                    pass
                } else {
                    let width = self.fill(queue, copy, [element, next], shape.ncols, pass)?;
                    DeviceVectors { x: copy, stride: width, ..pass }
                };
                self.spmm.multiply(queue, pass)?;
            }
        }
        Ok(())
    }

    /// Enqueues the copy of the vectors of a pass to row-major order, and returns the number of
    /// vectors per row of the copy: a power of two, whole units.
    ///
    /// # Safety
    ///
    /// As [`multiply`](Self::multiply); the copy has [`copied_vectors`] elements for every one of
    /// `ncols` columns.
    unsafe fn fill(
        &self,
        queue: &Queue,
        copy: Ptr<T>,
        [element, next]: [usize; 2],
        ncols: usize,
        pass: DeviceVectors<T>,
    ) -> Result<usize, Error> {
        let width = pass.count.next_power_of_two().max(2);
        let launch = Launch::new(ncols.div_ceil(BLOCK as usize) as u32, BLOCK);
        let launch = launch.with(kernels::row_major::RowMajor {
            x: pass.x,
            element: element as u64,
            vector: next as u64,
            len: ncols as u32,
            count: pass.count as u32,
            width: width as u32,
            to: copy,
        });
        // SAFETY: this is the kernel `row_major`; the memory is the caller's promise.
        unsafe { self.kernel.launch(queue, launch)? };
        Ok(width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_numbers_of_vectors_have_a_unit() {
        let shape = |count| SpmmShape { count, ncols: 3, nrows: 3, layout: Layout::RowMajor };
        for (count, expected) in [(16, true), (17, false), (18, true)] {
            assert_eq!(shape(count).has_unit::<f32>(), expected, "{count}");
            assert_eq!(shape(count).has_unit::<f64>(), expected, "{count}");
        }
        assert_eq!([copied_vectors::<f32>(), copied_vectors::<f64>()], [16, 8]);
    }
}
