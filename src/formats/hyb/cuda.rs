//! HYB on a GPU: ELL, followed by adding the COO part, which the GPU or the host multiplies.

use super::{HostHyb, HybPlan, TailProcessor};
use crate::device::cpu::without_pools;
use crate::device::{Buffer, Gpu, Kernel, Launch, Pinned, Ptr, Queue, Residency, kernels};
use crate::formats::coo::{DeviceTail, HostCoo};
use crate::formats::ell::DeviceEll;
use crate::formats::{DeviceMatrix, DeviceValueArrays, HostMatrix, NoValueSlots, ValueArrays};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};
use std::sync::{Mutex, PoisonError};

/// A HYB matrix in GPU memory.
#[derive(Debug)]
pub(super) struct DeviceHyb<T: Scalar> {
    plan: HybPlan,
    ell: DeviceEll<T>,
    tail: ResidentTail<T>,
}

/// The COO part. None if it is empty.
#[derive(Debug)]
enum ResidentTail<T: Scalar> {
    Gpu(Option<DeviceTail<T>>),
    Host(Option<HostTail<T>>),
}

/// A COO part that the host multiplies.
#[derive(Debug)]
struct HostTail<T> {
    gpu: Gpu,
    nrows: usize,
    /// The COO part without its empty rows.
    coo: HostCoo<T>,
    /// Row numbers of these rows.
    rows: Buffer<u32>,
    ncols: usize,
    add_rows: Kernel,
    /// Buffers that are not in use: as many as SpMVs ran at the same time.
    buffers: Mutex<Vec<TailBuffers<T>>>,
}

/// Buffers of an SpMV whose COO part the host multiplies.
#[derive(Debug)]
struct TailBuffers<T> {
    /// A queue of its own, so that work on other queues, such as capturing graphs, does not affect
    /// it.
    queue: Queue,
    /// Destination of the copy of `x` to the host.
    x: Pinned<T>,
    /// Source of the copy of the sums to the GPU, and its destination.
    host_sums: Pinned<T>,
    sums: Buffer<T>,
}

impl<T: Scalar> HostTail<T> {
    fn new(whole: &HostCoo<T>, (nrows, ncols): (usize, usize), gpu: Gpu) -> Result<Self, Error> {
        let (coo, rows) = whole.compacted();
        Ok(Self {
            gpu,
            nrows,
            ncols,
            add_rows: gpu.kernel("hyb", &format!("hyb_add_{}", T::KIND))?,
            buffers: Mutex::default(),
            rows: gpu.upload(&rows)?,
            coo,
        })
    }

    /// `y = y + A x`, after `first` has enqueued the computation of the `y` that is added to, on
    /// the queue it is given. Starts after everything on `queue` is done, and returns when it is
    /// done itself.
    ///
    /// # Safety
    ///
    /// As [`DeviceMatrix::spmv`].
    unsafe fn spmv_add_to(
        &self,
        first: impl FnOnce(&Queue) -> Result<(), Error>,
        queue: &Queue,
        x: Ptr<T>,
        y: Ptr<T>,
    ) -> Result<(), Error> {
        queue.synchronize()?;
        let free = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffers = free.map_or_else(|| self.new_buffers(), Ok)?;
        // SAFETY: the caller's promise.
        let done = unsafe { self.enqueue(&mut buffers, first, x, y) };
        // Also after an error: from here on no copy is in flight.
        let over = buffers.queue.synchronize();
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(buffers);
        done.and(over)
    }

    fn new_buffers(&self) -> Result<TailBuffers<T>, Error> {
        let gpu = &self.gpu;
        Ok(TailBuffers {
            queue: gpu.new_queue()?,
            x: gpu.pinned(self.ncols)?,
            host_sums: gpu.pinned(self.rows.len())?,
            sums: gpu.uninitialised(self.rows.len())?,
        })
    }

    /// Enqueues the SpMV, without waiting for its end.
    ///
    /// # Safety
    ///
    /// As [`DeviceMatrix::spmv`], and nothing else uses the buffers until the wait.
    unsafe fn enqueue(
        &self,
        buffers: &mut TailBuffers<T>,
        first: impl FnOnce(&Queue) -> Result<(), Error>,
        x: Ptr<T>,
        y: Ptr<T>,
    ) -> Result<(), Error> {
        let queue = &buffers.queue;
        // SAFETY: `x` has as many elements, by the caller's promise; nothing else uses the buffers
        // until the end of the wait.
        unsafe { queue.copy_out(buffers.x.as_mut_slice(), x)? };
        queue.synchronize()?;
        first(queue)?;
        let (from, sums) = (buffers.x.as_slice(), buffers.host_sums.as_mut_slice());
        without_pools(|| self.coo.spmv(from, sums));
        let (rows, sums) = (self.rows.ptr(), buffers.sums.ptr());
        let params = kernels::hyb::Add { rows, sums, count: self.rows.len() as u32, y };
        let launch = Launch::over(self.rows.len(), 1).with(params);
        // SAFETY: there is a sum for every row; the kernel is `hyb_add`.
        unsafe {
            queue.copy_in(buffers.sums.ptr(), buffers.host_sums.as_slice())?;
            self.add_rows.launch(queue, launch)
        }
    }
}

impl<T: Scalar> DeviceHyb<T> {
    pub(super) fn new(host: &HostHyb<T>, gpu: Gpu) -> Result<Self, Error> {
        let (nrows, ncols) = host.ell.shape();
        let residency = Residency::of::<T>(gpu, host.matrix_bytes(), (nrows, ncols));
        let some = host.coo.matrix_bytes() > 0;
        let tail = match host.plan.tail {
            TailProcessor::Device => ResidentTail::Gpu(
                some.then(|| DeviceTail::new(&host.coo, gpu, residency)).transpose()?,
            ),
            TailProcessor::Host => ResidentTail::Host(
                some.then(|| HostTail::new(&host.coo, host.ell.shape(), gpu)).transpose()?,
            ),
        };
        Ok(Self { plan: host.plan, ell: DeviceEll::new(&host.ell, gpu, residency)?, tail })
    }
}

impl<T: Scalar> DeviceMatrix<T> for DeviceHyb<T> {
    /// With `tail:host` this waits, and fails while a graph is being captured.
    unsafe fn spmv(&self, queue: &Queue, x: Ptr<T>, y: Ptr<T>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let ell = |queue: &Queue| unsafe { self.ell.spmv(queue, x, y) };
        match &self.tail {
            ResidentTail::Gpu(tail) => {
                ell(queue)?;
                // SAFETY: as above.
                tail.as_ref().map_or(Ok(()), |tail| unsafe { tail.spmv_add(queue, x, y) })
            }
            ResidentTail::Host(_) if queue.is_capturing()? => Err(Error::NotCapturable {
                plan: format!("hyb{}", self.plan),
                reason: "the host takes part in its products",
            }),
            ResidentTail::Host(None) => ell(queue),
            // SAFETY: as above.
            ResidentTail::Host(Some(tail)) => unsafe { tail.spmv_add_to(ell, queue, x, y) },
        }
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        let ell = self.ell.to_host()?;
        let coo = match &self.tail {
            ResidentTail::Gpu(Some(tail)) => tail.to_host()?,
            ResidentTail::Host(Some(tail)) => tail.coo.expanded(tail.nrows, &tail.rows.to_vec()?),
            ResidentTail::Gpu(None) | ResidentTail::Host(None) => HostCoo::empty(ell.shape()),
        };
        HostHyb { plan: self.plan, ell, coo }.unpack()
    }

    fn values(&self) -> DeviceValueArrays<'_, T> {
        let [ell, none] = self.ell.values()?.plain()?;
        let tail = match &self.tail {
            ResidentTail::Gpu(tail) => tail.as_ref().map_or(none, DeviceTail::values),
            ResidentTail::Host(None) => none,
            ResidentTail::Host(Some(_)) => return Err(NoValueSlots::ON_HOST),
        };
        Ok(ValueArrays::Plain([ell, tail]))
    }

    /// Excludes the COO part with `tail:host`, because it is in host memory.
    fn device_bytes(&self) -> u64 {
        let tail = match &self.tail {
            ResidentTail::Gpu(tail) => tail.as_ref().map_or(0, DeviceTail::bytes),
            ResidentTail::Host(tail) => tail.as_ref().map_or(0, |tail| tail.rows.bytes()),
        };
        self.ell.device_bytes() + tail
    }

    fn residency(&self) -> Residency {
        self.ell.residency()
    }
}
