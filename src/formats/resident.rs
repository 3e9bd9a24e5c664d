//! A packed matrix, resident in host memory or in GPU memory.

use super::{DeviceMatrix, HostMatrix, Plan, Scaler};
use crate::device::{CsrSource, Device, DeviceVec, Gpu, Queue, Residency, Scaling, Stream};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};
use std::sync::Arc;

/// A packed matrix in the memory of its device.
#[derive(Debug)]
pub(crate) enum ResidentMatrix<T: Scalar> {
    /// In host memory.
    Host(Box<dyn HostMatrix<T>>),
    /// In the memory of a GPU; shared with the graphs that use it.
    Gpu(Gpu, Arc<dyn DeviceMatrix<T>>),
}

impl<T: Scalar> ResidentMatrix<T> {
    /// Moves a packed matrix to the memory of a device.
    ///
    /// # Errors
    ///
    /// [`Error::GpuMemory`] if the GPU does not have enough memory left; [`Error::Gpu`] and
    /// [`Error::KernelCompile`].
    pub(crate) fn on(device: &Device, packed: Box<dyn HostMatrix<T>>) -> Result<Self, Error> {
        match device {
            Device::Cpu => Ok(Self::Host(packed)),
            Device::Cuda(gpu) => Ok(Self::Gpu(*gpu, Arc::from(packed.upload(*gpu)?))),
        }
    }

    /// True if a GPU packs such a matrix itself, from CSR in its memory.
    pub(crate) fn packs_on_device(plan: &Plan, nrows: usize, nnz: usize) -> bool {
        plan.properties().packs_on_device && Self::is_large(nrows, nnz)
    }

    /// True if packing and analysis on the host take more time than the launches on a GPU.
    pub(crate) fn is_large(nrows: usize, nnz: usize) -> bool {
        /// Least sum of rows and entries.
        const MIN: usize = 1 << 16;
        nrows + nnz >= MIN
    }

    /// Packs a matrix in GPU memory on that GPU. None if only the host can pack it.
    ///
    /// # Errors
    ///
    /// As [`on`](Self::on).
    pub(crate) fn packed_on_device(
        plan: &Plan,
        source: &CsrSource<T>,
    ) -> Result<Option<Self>, Error> {
        Ok(plan.pack_on_device(source)?.map(|packed| Self::Gpu(source.gpu, packed)))
    }

    /// Changes to another plan that uses the same arrays. False if there is no such plan or if the
    /// arrays are shared; nothing is changed then.
    ///
    /// # Errors
    ///
    /// As [`on`](Self::on).
    pub(crate) fn change_plan(&mut self, plan: &Plan) -> Result<bool, Error> {
        match self {
            Self::Host(matrix) => matrix.change_plan(plan),
            Self::Gpu(_, matrix) => {
                Arc::get_mut(matrix).map_or(Ok(false), |matrix| matrix.change_plan(plan))
            }
        }
    }

    /// Copies the arrays that a matrix in GPU memory shares with another library. No graph uses it
    /// yet.
    ///
    /// # Errors
    ///
    /// As [`on`](Self::on).
    pub(crate) fn copy_borrowed(&mut self) -> Result<(), Error> {
        match self {
            Self::Host(_) => Ok(()),
            Self::Gpu(_, matrix) => Arc::get_mut(matrix).expect("no graph uses it").copy_borrowed(),
        }
    }

    /// `y = A x`, executed directly on the CPU and enqueued on a GPU.
    ///
    /// `x` has `ncols` elements and `y` has `nrows`, checked by the caller.
    ///
    /// # Errors
    ///
    /// [`Error::WrongDevice`] if a vector or the stream belongs to another device; `y` is then
    /// untouched. [`Error::Gpu`].
    pub(crate) fn enqueue(
        &self,
        stream: &Stream,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
    ) -> Result<(), Error> {
        self.check_places(stream, x, y)?;
        match (self, stream.queue()) {
            (Self::Gpu(_, matrix), Some(queue)) => {
                let _lock = queue.lock()?;
                keep(queue, matrix, [x, y]);
                // SAFETY: the lengths are right and the memory is this GPU's. Freeing it waits for
                // work that uses it, and a graph keeps it.
                unsafe { matrix.spmv(queue, x.ptr(), y.ptr()) }
            }
            (Self::Host(matrix), _) => {
                matrix.spmv(x.host(), y.host_mut());
                Ok(())
            }
            (Self::Gpu(..), None) => unreachable!("a stream of a GPU has a queue"),
        }
    }

    /// `y = alpha A x + beta y`, as [`enqueue`](Self::enqueue); the elements of the factors exist.
    ///
    /// # Errors
    ///
    /// As [`enqueue`](Self::enqueue), for vectors with factors too.
    pub(crate) fn enqueue_scaled(
        &self,
        scaler: &Scaler<T>,
        stream: &Stream,
        x: &DeviceVec<T>,
        y: &mut DeviceVec<T>,
        by: Scaling<'_, T>,
    ) -> Result<(), Error> {
        self.check_factors(by)?;
        self.check_places(stream, x, y)?;
        match (self, stream.queue()) {
            (Self::Gpu(gpu, matrix), Some(queue)) => {
                let factors = [by.alpha.vector(), by.beta.vector()].into_iter().flatten();
                keep(queue, matrix, factors.chain([x, &*y]));
                // SAFETY: as in `enqueue`.
                unsafe { scaler.enqueue(*gpu, &**matrix, queue, x.ptr(), y.ptr(), by) }
            }
            (Self::Host(matrix), _) => {
                let (alpha, beta) = (by.alpha.on_host(), by.beta.on_host());
                scaler.multiply(&**matrix, alpha, x.host(), beta, y.host_mut())
            }
            (Self::Gpu(..), None) => unreachable!("a stream of a GPU has a queue"),
        }
    }

    /// Checks that factors which are elements of vectors are on the device of the matrix.
    ///
    /// # Errors
    ///
    /// [`Error::WrongDevice`].
    pub(crate) fn check_factors(&self, by: Scaling<'_, T>) -> Result<(), Error> {
        for (name, factor) in [("alpha", by.alpha), ("beta", by.beta)] {
            self.check_devices(factor.vector().map(|vector| (name, vector.device())))?;
        }
        Ok(())
    }

    /// Checks that the vectors and the stream of an SpMV are on the device of the matrix.
    ///
    /// # Errors
    ///
    /// [`Error::WrongDevice`].
    pub(super) fn check_places(
        &self,
        stream: &Stream,
        x: &DeviceVec<T>,
        y: &DeviceVec<T>,
    ) -> Result<(), Error> {
        self.check_devices([("x", x.device()), ("y", y.device()), ("stream", stream.device())])
    }

    /// Checks that everything is on the device of the matrix.
    pub(super) fn check_devices(
        &self,
        used: impl IntoIterator<Item = (&'static str, Device)>,
    ) -> Result<(), Error> {
        let device = match self {
            Self::Host(_) => Device::Cpu,
            Self::Gpu(gpu, _) => Device::Cuda(*gpu),
        };
        match used.into_iter().find(|(_, found)| *found != device) {
            Some((what, found)) => {
                let (expected, found) = (device.to_string(), found.to_string());
                Err(Error::WrongDevice { what, expected, found })
            }
            None => Ok(()),
        }
    }

    /// Converts the matrix back to CSR, with its entries in the order from which they were packed.
    /// Waits for everything enqueued on a GPU first, because it may write new values.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if it cannot be copied from the GPU.
    pub(crate) fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        match self {
            Self::Host(matrix) => matrix.unpack(),
            Self::Gpu(gpu, matrix) => {
                gpu.synchronize()?;
                matrix.unpack()
            }
        }
    }

    /// Residency of the packed arrays in the L2 of a GPU. None on the CPU.
    pub(crate) fn residency(&self) -> Option<Residency> {
        match self {
            Self::Host(_) => None,
            Self::Gpu(_, matrix) => Some(matrix.residency()),
        }
    }

    /// Bytes of the packed arrays.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Host(matrix) => matrix.matrix_bytes(),
            Self::Gpu(_, matrix) => matrix.device_bytes(),
        }
    }
}

/// If a graph is being captured, keeps the operands of an SpMV alive as long as the graph.
pub(super) fn keep<'a, T: Scalar>(
    queue: &Queue,
    matrix: &Arc<dyn DeviceMatrix<T>>,
    vectors: impl IntoIterator<Item = &'a DeviceVec<T>>,
) {
    if queue.records() {
        vectors.into_iter().filter_map(DeviceVec::share).for_each(|memory| queue.keep(memory));
        queue.keep(Arc::new(matrix.clone()));
    }
}
