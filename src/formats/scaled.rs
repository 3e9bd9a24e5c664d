//! `y = alpha A x + beta y` with a packed matrix of any format.

use super::{DeviceMatrix, HostMatrix};
use crate::device::cpu::{Output, for_each_task, partition};
use crate::device::{Gpu, Kernel, Launch, Out, Ptr, Queue, Scaling, Scratch, kernels};
use crate::{Error, Scalar, memory};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Cost of scaling a row, in entries of an SpMV.
const ROW_WORK: u64 = 2;

/// Maximum number of rows of a launch, which counts them in 32 bits.
const LAUNCH_ROWS: usize = 1 << 30;

/// Buffers and kernels of scaled SpMVs beside the matrix, created on first use. A buffer holds the
/// product before it is scaled. GPU kernels with the axpby epilogue need none.
#[derive(Debug)]
pub(crate) struct Scaler<T> {
    nrows: usize,
    /// Bounds of the tasks of the rows on the CPU.
    tasks: Box<[usize]>,
    /// On the CPU, the buffers that are not in use: as many as SpMVs ran at the same time.
    products: Mutex<Vec<Vec<T>>>,
    on_gpu: OnceLock<GpuScaler<T>>,
}

/// The GPU side of a [`Scaler`].
#[derive(Debug)]
struct GpuScaler<T> {
    product: Scratch<T>,
    kernel: Kernel,
}

impl<T: Scalar> Scaler<T> {
    /// Creates a scaler for matrices with `nrows` rows.
    pub(crate) fn new(nrows: usize) -> Self {
        let tasks = partition(nrows, 1, |row| row as u64 * ROW_WORK);
        Self { nrows, tasks, products: Mutex::default(), on_gpu: OnceLock::new() }
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.nrows
    }

    /// `y = alpha A x + beta y` on the CPU. With `beta = 0` nothing of `y` is read, with
    /// `alpha = 0` nothing of `A` and `x`.
    ///
    /// `x` has `ncols` elements and `y` has `nrows`, checked by the caller.
    ///
    /// # Errors
    ///
    /// As [`scale`](Self::scale).
    pub(crate) fn multiply(
        &self,
        matrix: &dyn HostMatrix<T>,
        alpha: T,
        x: &[T],
        beta: T,
        y: &mut [T],
    ) -> Result<(), Error> {
        self.scale(alpha, beta, y, |y| {
            matrix.spmv(x, y);
            Ok(())
        })
    }

    /// `y = alpha p + beta y` for the product `p` that `multiply` writes.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`] if there is no memory for a buffer, and errors of `multiply`.
    pub(crate) fn scale(
        &self,
        alpha: T,
        beta: T,
        y: &mut [T],
        multiply: impl FnOnce(&mut [T]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (zero, one) = (T::ZERO, T::ONE);
        if alpha == zero && beta == zero {
            self.each_row(y, |_, _| zero);
        } else if alpha == zero {
            self.each_row(y, |_, y| beta * y);
        } else if beta == zero {
            multiply(y)?;
            if alpha != one {
                self.each_row(y, |_, y| alpha * y);
            }
        } else {
            let free = self.products.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut product = free.map_or_else(|| memory::try_zeroed(self.nrows), Ok)?;
            multiply(&mut product)?;
            self.each_row(y, |row, y| alpha * product[row] + beta * y);
            self.products.lock().unwrap_or_else(PoisonError::into_inner).push(product);
        }
        Ok(())
    }

    /// Replaces every `y[row]` by `f(row, y[row])`.
    fn each_row(&self, y: &mut [T], f: impl Fn(usize, T) -> T + Sync) {
        let out = Output::new(y);
        for_each_task(&self.tasks, |rows| {
            // SAFETY: every row is in one task, and inside `y`.
            rows.for_each(|row| unsafe { out.set(row, f(row, *out.at(row))) });
        });
    }

    /// Enqueues `y = alpha A x + beta y`. As [`multiply`](Self::multiply), except that operands
    /// whose factor is zero in GPU memory are read nevertheless and have no effect on the result.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    ///
    /// # Safety
    ///
    /// As [`DeviceMatrix::spmv_scaled`].
    pub(crate) unsafe fn enqueue(
        &self,
        gpu: Gpu,
        matrix: &dyn DeviceMatrix<T>,
        queue: &Queue,
        x: Ptr<T>,
        y: Ptr<T>,
        by: Scaling<'_, T>,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise; the product buffer is as long as `y`.
        unsafe {
            self.enqueue_scale(
                gpu,
                queue,
                y,
                by,
                &|product| matrix.spmv(queue, x, product),
                &|| matrix.spmv_scaled(queue, x, y, by),
            )
        }
    }

    /// Enqueues `y = alpha p + beta y` for the product `p` that `multiply` enqueues. If the format
    /// has the axpby epilogue, `fused` enqueues everything in one launch.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    ///
    /// # Safety
    ///
    /// `y` has as many elements as the scaler has rows, in the memory of the GPU, and lives until
    /// all is done.
    pub(crate) unsafe fn enqueue_scale(
        &self,
        gpu: Gpu,
        queue: &Queue,
        y: Ptr<T>,
        by: Scaling<'_, T>,
        multiply: &dyn Fn(Ptr<T>) -> Result<(), Error>,
        fused: &dyn Fn() -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let (alpha, beta) = (by.alpha.known(), by.beta.known());
        let _lock = queue.lock()?;
        // SAFETY: the caller's promise; the product buffer is as long as `y`.
        unsafe {
            if (alpha, beta) == (Some(T::ONE), Some(T::ZERO)) {
                return multiply(y);
            }
            let needed = alpha != Some(T::ZERO);
            if needed && fused()? {
                return Ok(());
            }
            let product = if !needed {
                Ptr::NULL
            } else if beta == Some(T::ZERO) {
                y
            } else {
                self.on_gpu(gpu)?.product.on(queue)?
            };
            if needed {
                multiply(product)?;
            }
            let kernel = self.on_gpu(gpu)?.kernel;
            for first in (0..self.nrows).step_by(LAUNCH_ROWS) {
                let rows = LAUNCH_ROWS.min(self.nrows - first);
                // Without a product the kernel only multiplies `y`.
                let product = if needed { product.add(first) } else { product };
                let out = Out::scaled(y.add(first), by);
                let params = kernels::scaled::Scaled { product, nrows: rows as u32, out };
                kernel.launch(queue, Launch::over(rows, 1).with(params))?;
            }
            Ok(())
        }
    }

    fn on_gpu(&self, gpu: Gpu) -> Result<&GpuScaler<T>, Error> {
        if let Some(made) = self.on_gpu.get() {
            return Ok(made);
        }
        let kernel = gpu.kernel("scaled", &format!("scaled_{}", T::KIND))?;
        Ok(self.on_gpu.get_or_init(|| GpuScaler { product: Scratch::new(gpu, self.nrows), kernel }))
    }
}
