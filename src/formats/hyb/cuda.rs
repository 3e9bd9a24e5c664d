//! HYB on a GPU: ELL, to which the COO part is added, by the GPU or by the host.

use super::{Host, Plan};
use crate::device::{Buffer, Gpu, Kernel, Launch, Pinned, Ptr, Queue};
use crate::formats::{DeviceMatrix, HostMatrix, coo, ell};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};
use std::sync::{Mutex, PoisonError};

/// A matrix in HYB in the memory of a GPU.
#[derive(Debug)]
pub(super) struct Uploaded<T: Scalar> {
    plan: Plan,
    ell: ell::Uploaded<T>,
    tail: Tail<T>,
}

/// The COO part; none when it is empty.
#[derive(Debug)]
enum Tail<T: Scalar> {
    Gpu(Option<coo::Tail<T>>),
    Host(Option<HostTail<T>>),
}

/// A COO part that the host multiplies.
#[derive(Debug)]
struct HostTail<T> {
    nrows: usize,
    /// Only rows with entries.
    coo: coo::Host<T>,
    /// Which rows these are.
    rows: Buffer<u32>,
    /// Their sums, come from the host.
    sums: Buffer<T>,
    add_rows: Kernel,
    /// What `x` comes to the host in, and what the sums go from it in.
    staging: Mutex<(Pinned<T>, Pinned<T>)>,
}

impl<T: Scalar> HostTail<T> {
    fn new(whole: &coo::Host<T>, (nrows, ncols): (usize, usize), gpu: Gpu) -> Result<Self, Error> {
        let (coo, rows) = whole.compacted();
        Ok(Self {
            nrows,
            sums: gpu.zeroed(rows.len())?,
            add_rows: gpu.kernel("hyb", &format!("hyb_add_{}", T::KIND))?,
            staging: Mutex::new((gpu.pinned(ncols)?, gpu.pinned(rows.len())?)),
            rows: gpu.upload(&rows)?,
            coo,
        })
    }

    /// `y = y + A x` once `first` has made `y` what is added to; returns when it is done.
    ///
    /// # Safety
    ///
    /// As [`DeviceMatrix::spmv`].
    unsafe fn spmv_add_to(
        &self,
        first: impl FnOnce() -> Result<(), Error>,
        queue: &Queue,
        x: Ptr<T>,
        y: Ptr<T>,
    ) -> Result<(), Error> {
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let (host_x, host_sums) = &mut *staging;
        // SAFETY: `x` has as many elements, the caller promises; the staging is ours until the wait is over.
        unsafe { queue.copy_out(host_x.as_mut_slice(), x)? };
        queue.synchronize()?;
        first()?;
        self.coo.spmv(host_x.as_slice(), host_sums.as_mut_slice());
        let launch = Launch::over(self.rows.len(), 1).arg(self.rows.ptr()).arg(self.sums.ptr());
        // SAFETY: there is a sum for every row; these are the parameters of `hyb_add`.
        unsafe {
            queue.copy_in(self.sums.ptr(), host_sums.as_slice())?;
            self.add_rows.launch(queue, launch.arg(self.rows.len() as u32).arg(y))?;
        }
        // The next product uses the same staging.
        queue.synchronize()
    }
}

impl<T: Scalar> Uploaded<T> {
    pub(super) fn new(host: &Host<T>, gpu: Gpu) -> Result<Self, Error> {
        let some = host.coo.matrix_bytes() > 0;
        let tail = match host.plan.tail {
            super::Tail::Device => Tail::Gpu(some.then(|| coo::Tail::new(&host.coo, gpu)).transpose()?),
            super::Tail::Host => {
                Tail::Host(some.then(|| HostTail::new(&host.coo, host.ell.shape(), gpu)).transpose()?)
            }
        };
        Ok(Self { plan: host.plan, ell: ell::Uploaded::new(&host.ell, gpu)?, tail })
    }
}

impl<T: Scalar> DeviceMatrix<T> for Uploaded<T> {
    /// With `tail:host` this waits, and is refused while a graph is being captured.
    unsafe fn spmv(&self, queue: &Queue, x: Ptr<T>, y: Ptr<T>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let ell = || unsafe { self.ell.spmv(queue, x, y) };
        match &self.tail {
            Tail::Gpu(tail) => {
                ell()?;
                // SAFETY: as above.
                tail.as_ref().map_or(Ok(()), |tail| unsafe { tail.spmv_add(queue, x, y) })
            }
            Tail::Host(_) if queue.is_capturing()? => Err(Error::NotCapturable {
                plan: format!("hyb{}", self.plan),
                reason: "the host takes part in its products",
            }),
            Tail::Host(None) => ell(),
            // SAFETY: as above.
            Tail::Host(Some(tail)) => unsafe { tail.spmv_add_to(ell, queue, x, y) },
        }
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        let ell = self.ell.to_host()?;
        let coo = match &self.tail {
            Tail::Gpu(Some(tail)) => tail.to_host()?,
            Tail::Host(Some(tail)) => tail.coo.expanded(tail.nrows, &tail.rows.to_vec()?),
            Tail::Gpu(None) | Tail::Host(None) => coo::Host::empty(ell.shape()),
        };
        Ok(Host { plan: self.plan, ell, coo }.unpack())
    }

    /// With `tail:host` the COO part, which is not there, is left out.
    fn device_bytes(&self) -> u64 {
        let tail = match &self.tail {
            Tail::Gpu(tail) => tail.as_ref().map_or(0, coo::Tail::bytes),
            Tail::Host(tail) => tail.as_ref().map_or(0, |tail| tail.rows.bytes() + tail.sums.bytes()),
        };
        self.ell.device_bytes() + tail
    }
}
