//! Products with several vectors at once: on the CPU with the rows of CSR, on a GPU with packed slices, whatever the format of products
//! with one vector. What has neither is packed a second time.
//!
//! Both read vectors that stand side by side: all elements at one column are neighbours, so that one gather brings several factors.
//! Vectors that stand one after the other, or not at multiples of what a GPU loads at once, are brought side by side first, some at a
//! time, in a *tile*.

use super::csr::HostVectors;
use super::packed::{Index, Packing};
use super::scaled::Scaler;
use super::{Placed, Plan, csr, sell};
use crate::analysis::Analysis;
use crate::device::cpu::Output;
use crate::device::{BLOCK, Device, DeviceVec, Gpu, Kernel, Launch, Ptr, Queue, Scaling, Scratch, Stream};
use crate::encoding::{self, DeviceVectors};
use crate::memory::zeroed;
use crate::{Error, Scalar};
use rayon::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a tile for every column. `WIDTH` in `kernels/tile.cu`.
const TILE_BYTES: usize = 64;

/// Vectors side by side are read where they stand if there are fewer: kernels count the bytes from one column to the next in 32 bits.
const MOST_APART: usize = 1 << 28;

/// Columns of a tile that one thread of the CPU brings side by side at a time.
const TILE_COLUMNS: usize = 1 << 12;

/// Of these, how many of one vector before the same of the next: whole lines of both sides, which stay in the fastest cache even where
/// vectors are apart by a power of two.
const TILE_BLOCK: usize = 32;

/// How several vectors stand in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Side by side: element `i` of vector `v` of `k` is at `i · k + v`. The rows of a matrix whose columns are the vectors.
    RowMajor,
    /// One after the other: element `i` of vector `v` is at `v · n + i`.
    ColumnMajor,
}

/// Several vectors in one array, with their number and layout: an operand of
/// [`SparseOp::apply_multi`](crate::SparseOp::apply_multi).
///
/// `data` is anything that borrows as a slice, or a [`DeviceVec`], of `count` times the length of a
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
    /// `count` vectors in a layout.
    pub fn new(data: V, count: usize, layout: Layout) -> Self {
        Self { data, count, layout }
    }

    /// `count` vectors in [`Layout::RowMajor`], the faster one.
    pub fn row_major(data: V, count: usize) -> Self {
        Self::new(data, count, Layout::RowMajor)
    }

    /// `count` vectors in [`Layout::ColumnMajor`].
    pub fn column_major(data: V, count: usize) -> Self {
        Self::new(data, count, Layout::ColumnMajor)
    }

    /// Number of vectors.
    #[doc(hidden)]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Order of the elements.
    #[doc(hidden)]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The same vectors, their data seen in another way.
    pub(crate) fn map<W>(self, f: impl FnOnce(V) -> W) -> Multivector<W> {
        Multivector { data: f(self.data), count: self.count, layout: self.layout }
    }
}

/// Several vectors and their products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// How many there are.
    pub(crate) count: usize,
    /// Elements of each, the columns of the matrix.
    pub(crate) ncols: usize,
    /// Elements of each product, the rows of the matrix.
    pub(crate) nrows: usize,
    /// How both stand.
    pub(crate) layout: Layout,
}

impl Shape {
    /// How far the next element of the same vector of `x` is, and the same element of the next one; both of `y`, too.
    fn strides(&self) -> ([usize; 2], [usize; 2]) {
        match self.layout {
            Layout::RowMajor => ([self.count, 1], [self.count, 1]),
            Layout::ColumnMajor => ([1, self.ncols], [1, self.nrows]),
        }
    }
}

/// What products with several vectors need beside a matrix that can multiply them.
#[derive(Debug)]
pub(crate) enum Several<T: Scalar> {
    /// Tiles that are not in use, as many as were at a time.
    Host(Mutex<Vec<Vec<T>>>),
    Gpu(Box<OnGpu<T>>),
}

impl<T: Scalar> Several<T> {
    /// For a matrix of `ncols` columns; none when it has neither rows nor packed slices.
    ///
    /// # Errors
    ///
    /// What compiling kernels gives.
    pub(crate) fn of(matrix: &Placed<T>, ncols: usize) -> Result<Option<Self>, Error> {
        Ok(match matrix {
            Placed::Host(matrix) => matrix.rows().map(|_| Self::Host(Mutex::default())),
            Placed::Gpu(gpu, matrix) => match matrix.slices() {
                Some(slices) => Some(Self::Gpu(Box::new(OnGpu::new(slices, *gpu, ncols)?))),
                None => None,
            },
        })
    }

    /// Bytes of what was made of the matrix for it; vectors are not counted.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Host(_) => 0,
            Self::Gpu(on_gpu) => on_gpu.several.bytes(),
        }
    }
}

/// The plans that several vectors can be multiplied with on a device, for a matrix that was analysed: one as good as any.
pub(crate) fn several_plan(analysis: &Analysis, device: &Device) -> Plan {
    match device {
        Device::Cpu => Plan::Csr(csr::Plan::Scalar),
        Device::Cuda(_) => {
            let packing = Packing { long: analysis.packing.long, ..Packing::default() };
            Plan::Sell(sell::Plan { index: Index::Packed(packing), ..sell::Plan::default() })
        }
    }
}

/// Whether several vectors can be multiplied with a plan on a device.
pub(crate) fn multiplies_several(plan: &Plan, device: &Device) -> bool {
    match device {
        Device::Cpu => matches!(plan, Plan::Csr(_)),
        Device::Cuda(_) => matches!(plan, Plan::Sell(sell) if sell.index != Index::Plain),
    }
}

impl<T: Scalar> Placed<T> {
    /// The products with several vectors in host memory, when the matrix is there, too.
    ///
    /// `x` and `y` have the lengths that `shape` says: the caller has checked.
    pub(crate) fn multiply_several(&self, several: &Several<T>, shape: Shape, x: &[T], y: &mut [T]) {
        let (Self::Host(matrix), Several::Host(tiles)) = (self, several) else {
            unreachable!("the caller has a matrix in host memory")
        };
        let Some(rows) = matrix.rows() else { unreachable!("it was made for a matrix with rows") };
        let (_, [row, vector]) = shape.strides();
        let multiply = |x: &[T], stride, count, y: &mut [T]| {
            let y = Output::new(y);
            // SAFETY: the lengths are right; `y` is borrowed alone.
            unsafe { rows.multiply_several(HostVectors { x, stride, y, row, vector, count }) };
        };
        if shape.layout == Layout::RowMajor {
            return multiply(x, shape.count, shape.count, y);
        }
        let free = tiles.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let width = TILE_BYTES / size_of::<T>();
        let mut tile = free.unwrap_or_else(|| zeroed(shape.ncols * width));
        for first in (0..shape.count).step_by(width) {
            let count = width.min(shape.count - first);
            let tile = &mut tile[..shape.ncols * count];
            side_by_side(&x[first * shape.ncols..], shape.ncols, count, tile);
            multiply(tile, count, count, &mut y[first * shape.nrows..]);
        }
        tiles.lock().unwrap_or_else(PoisonError::into_inner).push(tile);
    }

    /// Enqueues the products with several vectors in the memory of the matrix's GPU.
    ///
    /// # Errors
    ///
    /// What the GPU gives.
    ///
    /// # Safety
    ///
    /// `several` is this matrix's. `x` and `y` have the lengths that `shape` says and do not overlap; they and the matrix live until the
    /// products are done.
    pub(crate) unsafe fn enqueue_several_at(
        &self,
        several: &Several<T>,
        queue: &Queue,
        shape: Shape,
        x: Ptr<T>,
        y: Ptr<T>,
    ) -> Result<(), Error> {
        let (Self::Gpu(_, matrix), Several::Gpu(on_gpu)) = (self, several) else {
            unreachable!("the caller has a matrix on a GPU")
        };
        let Some(slices) = matrix.slices() else { unreachable!("it was made for packed slices") };
        // SAFETY: the caller's promise.
        unsafe { on_gpu.multiply(slices, queue, shape, x, y) }
    }

    /// `Y = A X`, or `Y = alpha A X + beta Y` where it is `scaled`, at once on the CPU and enqueued
    /// on a GPU.
    ///
    /// `x` and `y` have the lengths that `shape` says, and the scaler is for all elements of `y`:
    /// the caller has checked.
    ///
    /// # Errors
    ///
    /// As [`Placed::enqueue_scaled`].
    pub(crate) fn enqueue_several(
        &self,
        several: &Several<T>,
        stream: &Stream,
        shape: Shape,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
        scaled: Option<(&Scaler<T>, Scaling<'_, T>)>,
    ) -> Result<(), Error> {
        scaled.map_or(Ok(()), |(_, by)| self.check_factors(by))?;
        self.check_places(stream, x, y)?;
        match (self, stream.queue()) {
            (Self::Gpu(gpu, matrix), Some(queue)) => {
                let _turn = queue.turn()?;
                if queue.records() {
                    let factors = scaled.map(|(_, by)| [by.alpha.vector(), by.beta.vector()]);
                    let factors = factors.into_iter().flatten().flatten();
                    let vectors = factors.chain([x, &*y]).filter_map(DeviceVec::share);
                    vectors.for_each(|memory| queue.keep(memory));
                    queue.keep(Arc::new(matrix.clone()));
                }
                // SAFETY: the lengths are right and the memory is this GPU's. Freeing it waits for work that uses it, and a
                // graph keeps it.
                unsafe {
                    let multiply = |y| self.enqueue_several_at(several, queue, shape, x.ptr(), y);
                    match scaled {
                        None => multiply(y.ptr()),
                        Some((scaler, by)) => {
                            let fused = &|| Ok(false);
                            scaler.enqueue_scale(*gpu, queue, y.ptr(), by, false, &multiply, fused)
                        }
                    }
                }
            }
            _ => {
                let multiply = |y: &mut [T]| self.multiply_several(several, shape, x.host(), y);
                match scaled {
                    None => multiply(y.host_mut()),
                    Some((scaler, by)) => {
                        let (alpha, beta) = (by.alpha.on_host(), by.beta.on_host());
                        scaler.scale(alpha, beta, y.host_mut(), multiply);
                    }
                }
                Ok(())
            }
        }
    }
}

/// Brings `count` vectors of `len` elements, one after the other, side by side.
fn side_by_side<T: Scalar>(x: &[T], len: usize, count: usize, tile: &mut [T]) {
    tile.par_chunks_mut(TILE_COLUMNS * count).enumerate().for_each(|(chunk, tile)| {
        let from = chunk * TILE_COLUMNS;
        for (block, tile) in tile.chunks_mut(TILE_BLOCK * count).enumerate() {
            for v in 0..count {
                let vector = &x[v * len + from + block * TILE_BLOCK..];
                tile.chunks_exact_mut(count).zip(vector).for_each(|(to, &element)| to[v] = element);
            }
        }
    });
}

/// What products with several vectors need on a GPU beside the packed slices.
#[derive(Debug)]
pub(crate) struct OnGpu<T> {
    several: encoding::Several<T>,
    /// Brings vectors side by side.
    kernel: Kernel,
    tile: Scratch<T>,
}

impl<T: Scalar> OnGpu<T> {
    /// Vectors in a tile.
    const WIDTH: usize = TILE_BYTES / size_of::<T>();

    fn new(slices: &encoding::Uploaded<T>, gpu: Gpu, ncols: usize) -> Result<Self, Error> {
        Ok(Self {
            several: slices.several(gpu)?,
            kernel: gpu.kernel("tile", &format!("tile_{}", T::KIND))?,
            tile: Scratch::new(gpu, ncols * Self::WIDTH),
        })
    }

    /// Enqueues the products, in as many passes as it takes.
    ///
    /// # Safety
    ///
    /// `slices` are those it was made for, `x` and `y` have the lengths that `shape` says and are in the GPU's memory; they do not
    /// overlap, and they and the matrix live until the products are done.
    pub(crate) unsafe fn multiply(
        &self,
        slices: &encoding::Uploaded<T>,
        queue: &Queue,
        shape: Shape,
        x: Ptr<T>,
        y: Ptr<T>,
    ) -> Result<(), Error> {
        let ([element, next], [row, vector]) = shape.strides();
        let all = DeviceVectors { x, stride: element, y, row, vector, count: shape.count };
        let direct = shape.layout == Layout::RowMajor && all.unit().is_some() && shape.count < MOST_APART;
        let step = if direct { DeviceVectors::<T>::MOST } else { Self::WIDTH };
        let tile = if direct { Ptr::NULL } else { self.tile.on(queue)? };
        for first in (0..shape.count).step_by(step) {
            let count = step.min(shape.count - first);
            let x = x.add(first * next);
            let pass = DeviceVectors { x, y: y.add(first * vector), count, ..all };
            // SAFETY: the caller's promise; the tile has room for all columns. Units reach no further than its rows, or than those of `x`,
            // which are whole numbers of units.
            unsafe {
                let pass = if direct {
                    pass
                } else {
                    let width = self.fill(queue, tile, [element, next], shape.ncols, pass)?;
                    DeviceVectors { x: tile, stride: width, ..pass }
                };
                slices.multiply_several(&self.several, queue, pass)?;
            }
        }
        Ok(())
    }

    /// Enqueues bringing the vectors of a pass side by side, and gives how many there is room for: a power of two, whole units.
    ///
    /// # Safety
    ///
    /// As [`multiply`](Self::multiply); the tile has [`Self::WIDTH`] elements for every one of `ncols` columns.
    unsafe fn fill(
        &self,
        queue: &Queue,
        tile: Ptr<T>,
        [element, next]: [usize; 2],
        ncols: usize,
        pass: DeviceVectors<T>,
    ) -> Result<usize, Error> {
        let width = pass.count.next_power_of_two().max(2);
        let launch = Launch::new(ncols.div_ceil(BLOCK as usize) as u32, BLOCK).arg(pass.x);
        let launch = launch.arg(element as u64).arg(next as u64).arg(ncols as u32);
        let launch = launch.arg(pass.count as u32).arg(width as u32).arg(tile);
        // SAFETY: these are the parameters of `tile`; the memory is the caller's promise.
        unsafe { self.kernel.launch(queue, launch)? };
        Ok(width)
    }
}
