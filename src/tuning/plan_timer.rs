//! Timing runs of plans: a matrix, its device and the vectors of its products.

use super::caches::{CacheState, Caches};
use super::stopwatch::timed;
use crate::device::{CsrSource, Device, DeviceVec, Gpu, Stream, WorkingMemory};
use crate::formats::{PackSource, Plan, ResidentMatrix};
use crate::matrix::CsrView;
use crate::memory::filled;
use crate::trace::span;
use crate::{Error, Scalar};
use once_cell::unsync::OnceCell;
use std::cell::RefCell;
use tracing::field::display;

/// Packs and times plans, on a real device or on a scripted one.
pub(crate) trait PlanTimer {
    /// A packed matrix.
    type Packed;

    /// Packs the matrix and copies it to the device.
    ///
    /// # Errors
    ///
    /// Errors of packing and of the device.
    fn pack(&self, plan: &Plan) -> Result<Ready<Self::Packed>, Error>;

    /// Changes a packed matrix to another plan that uses the same arrays. False if there is no such
    /// plan; nothing is changed then.
    ///
    /// # Errors
    ///
    /// As [`pack`](Self::pack).
    fn change(&self, packed: &mut Self::Packed, plan: &Plan) -> Result<bool, Error>;

    /// Seconds of a batch of `repeats` products, after `warm_up` others.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    fn products(&self, packed: &Self::Packed, warm_up: u32, repeats: u32) -> Result<f64, Error>;
}

/// A packed matrix in the memory of its device, with the times of its preparation.
#[derive(Debug)]
pub(crate) struct Ready<P> {
    /// The packed matrix.
    pub(crate) matrix: P,
    /// Seconds of packing.
    pub(crate) pack: f64,
    /// Seconds of the copy to the device.
    pub(crate) upload: f64,
}

impl<T: Scalar> Ready<ResidentMatrix<T>> {
    /// Packs a matrix and copies it to a device. If a GPU packs the matrix itself, the copy comes
    /// first.
    ///
    /// # Errors
    ///
    /// Errors of packing and of the device.
    pub(crate) fn pack<'a>(
        plan: &Plan,
        source: impl Into<PackSource<'a, T>>,
        device: &Device,
    ) -> Result<Self, Error> {
        let source = source.into();
        if let Some(ready) = Self::packed_on_device(plan, source, device)? {
            return Ok(ready);
        }
        let (packed, pack) = timed(|| {
            let a = source.on_host()?;
            let span = source.pack_span(plan);
            let packed = plan.pack(a)?;
            span.record("bytes", packed.matrix_bytes());
            Ok::<_, Error>(packed)
        });
        let packed = packed?;
        let (matrix, upload) = timed(|| match device {
            Device::Cpu => ResidentMatrix::on(device, packed),
            Device::Cuda(_) => {
                let _span =
                    span!(DEBUG, "upload", bytes = packed.matrix_bytes(), device = display(device));
                ResidentMatrix::on(device, packed)
            }
        });
        Ok(Self { matrix: matrix?, pack, upload })
    }

    /// The matrix, with copies of arrays that it shares with another library.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub(crate) fn without_borrowed(mut self) -> Result<Self, Error> {
        let (copied, seconds) = timed(|| self.matrix.copy_borrowed());
        copied?;
        Ok(Self { pack: self.pack + seconds, ..self })
    }

    /// Packs a matrix on a GPU that packs it itself, from its copy there. `None` if the host has to
    /// pack it, or if the GPU memory cannot hold both the matrix and its packed form.
    fn packed_on_device(
        plan: &Plan,
        source: PackSource<'_, T>,
        device: &Device,
    ) -> Result<Option<Self>, Error> {
        let Device::Cuda(gpu) = device else { return Ok(None) };
        if !source.packs_on_device(plan) {
            return Ok(None);
        }
        let (csr, upload) = match source.on_gpu {
            Some(_) => (Ok(None), 0.0),
            None => timed(|| {
                let bytes = source.csr_bytes();
                let _span = span!(DEBUG, "upload", bytes = bytes, device = display(device));
                CsrSource::upload(source.on_host()?, *gpu).map(Some)
            }),
        };
        let (packed, pack) = timed(|| {
            let csr = csr?;
            let Some(csr) = csr.as_ref().or(source.on_gpu) else { return Ok(None) };
            let span = source.pack_span(plan);
            let packed = ResidentMatrix::packed_on_device(plan, csr)?;
            packed.iter().for_each(|packed| span.record("bytes", packed.bytes()));
            Ok(packed)
        });
        match packed {
            Ok(matrix) => Ok(matrix.map(|matrix| Self { matrix, pack, upload })),
            Err(Error::GpuMemory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Products of one matrix under any plan on a device, with warm caches: the timing runs of offline
/// tuning.
pub struct PlanBench<'a, T: Scalar>(DevicePlanTimer<'a, T>);

/// A matrix packed under one plan in the memory of its device.
pub struct PackedPlan<T: Scalar>(Ready<ResidentMatrix<T>>);

impl<'a, T: Scalar> PlanBench<'a, T> {
    /// Allocates the vectors of the products.
    ///
    /// # Errors
    ///
    /// Errors of the device if it cannot allocate the vectors.
    pub fn new(a: CsrView<'a, T>, device: &'a Device) -> Result<Self, Error> {
        Ok(Self(DevicePlanTimer::new(a, device, CacheState::Warm)?))
    }

    /// Packs the matrix and copies it to the device.
    ///
    /// # Errors
    ///
    /// Errors of packing and of the device.
    pub fn pack(&self, plan: &Plan) -> Result<PackedPlan<T>, Error> {
        T::bench_pack(self, plan)
    }

    pub(crate) fn pack_impl(&self, plan: &Plan) -> Result<PackedPlan<T>, Error> {
        self.0.pack(plan).map(PackedPlan)
    }

    /// Seconds of a batch of `repeats` products.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn products(&self, packed: &PackedPlan<T>, repeats: u32) -> Result<f64, Error> {
        T::bench_products(self, packed, repeats)
    }

    pub(crate) fn products_impl(&self, packed: &PackedPlan<T>, repeats: u32) -> Result<f64, Error> {
        self.0.products(&packed.0.matrix, 0, repeats)
    }
}

impl<T: Scalar> PackedPlan<T> {
    /// Seconds of packing and of the copy to the device.
    pub fn seconds(&self) -> f64 {
        self.0.pack + self.0.upload
    }
}

/// A matrix and the vectors of its products on a device.
pub(crate) struct DevicePlanTimer<'a, T: Scalar> {
    source: PackSource<'a, T>,
    /// Copy of the matrix on the GPU, from which the GPU packs, and the seconds of the copy; `None`
    /// if there is no room for it.
    copied: OnceCell<Option<(CsrSource<T>, f64)>>,
    device: &'a Device,
    caches: Caches,
    x: DeviceVec<T>,
    y: RefCell<DeviceVec<T>>,
    /// Memory of `x` and `y` on a GPU.
    memory: Option<WorkingMemory>,
    /// True if packed matrices may share arrays with another library.
    borrows: bool,
}

impl<'a, T: Scalar> DevicePlanTimer<'a, T> {
    /// Creates the vectors for products of a matrix, timed in the cache state `cache`.
    ///
    /// # Errors
    ///
    /// Errors of the device if it cannot allocate the vectors or the data that fill the caches.
    pub(crate) fn new(
        source: impl Into<PackSource<'a, T>>,
        device: &'a Device,
        cache: CacheState,
    ) -> Result<Self, Error> {
        let source: PackSource<'_, T> = source.into();
        let (x, y, memory) = match device {
            Device::Cpu => {
                // A page that was never written is the same for all addresses, and always cached.
                let x = DeviceVec::from_slice(device, &filled(source.ncols(), T::ONE)?)?;
                (x, DeviceVec::zeros(device, source.nrows())?, None)
            }
            Device::Cuda(gpu) => {
                let lengths = [source.ncols(), source.nrows()];
                let bytes = |len: usize| WorkingMemory::bytes::<T>(len);
                let memory = WorkingMemory::new(*gpu, lengths.map(bytes).iter().sum())?;
                // SAFETY: the vectors are dropped before the memory, after the end of the products.
                let [x, y] = lengths.map(|len| unsafe { memory.zeroed_vector(device, len) });
                gpu.queue().synchronize()?;
                (x?, y?, Some(memory))
            }
        };
        Ok(Self {
            source,
            copied: OnceCell::new(),
            device,
            caches: Caches::new(&Stream::new(device)?, cache)?,
            x,
            y: RefCell::new(y),
            memory,
            borrows: false,
        })
    }

    /// The same, but packed matrices share arrays with another library: what stays of them needs
    /// copies ([`without_borrowed`](Ready::without_borrowed)).
    pub(crate) fn borrowing(mut self) -> Self {
        self.borrows = true;
        self
    }

    /// Copies the matrix to the GPU, at the first call.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`].
    fn copied(&self, gpu: Gpu) -> Result<Option<&(CsrSource<T>, f64)>, Error> {
        let copy = || match timed(|| CsrSource::upload(self.source.on_host()?, gpu)) {
            (Ok(copied), seconds) => Ok(Some((copied, seconds))),
            (Err(Error::GpuMemory { .. }), _) => Ok(None),
            (Err(error), _) => Err(error),
        };
        self.copied.get_or_try_init(copy).map(Option::as_ref)
    }

    fn product(&self, matrix: &ResidentMatrix<T>) -> Result<(), Error> {
        matrix.enqueue(self.caches.stream(), &self.x, &mut self.y.borrow_mut())
    }
}

impl<T: Scalar> Drop for DevicePlanTimer<'_, T> {
    fn drop(&mut self) {
        // After an error there may be work on the vectors, whose memory is used for other work.
        if self.caches.stream().synchronize().is_err() {
            self.memory.iter_mut().for_each(WorkingMemory::free);
        }
    }
}

impl<T: Scalar> PlanTimer for DevicePlanTimer<'_, T> {
    type Packed = ResidentMatrix<T>;

    fn pack(&self, plan: &Plan) -> Result<Ready<ResidentMatrix<T>>, Error> {
        let source = self.source;
        let copied = match self.device {
            Device::Cuda(gpu) if source.on_gpu.is_none() && source.packs_on_device(plan) => {
                self.copied(*gpu)?
            }
            _ => None,
        };
        let Some((copied, upload)) = copied else {
            let ready = Ready::pack(plan, source, self.device)?;
            return if self.borrows { Ok(ready) } else { ready.without_borrowed() };
        };
        let ready = Ready::pack(plan, source.with_copy(copied), self.device)?;
        Ok(Ready { upload: ready.upload + upload, ..ready })
    }

    fn change(&self, matrix: &mut ResidentMatrix<T>, plan: &Plan) -> Result<bool, Error> {
        matrix.change_plan(plan)
    }

    fn products(
        &self,
        matrix: &ResidentMatrix<T>,
        warm_up: u32,
        repeats: u32,
    ) -> Result<f64, Error> {
        (0..warm_up).try_for_each(|_| self.product(matrix))?;
        self.caches.batch(repeats, || self.product(matrix))
    }
}
