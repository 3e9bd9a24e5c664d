//! Where plans are raced: a matrix, its device and the vectors of its products.

use super::stopwatch::{timed, turn};
use crate::device::{Device, DeviceVec, Stream};
use crate::formats::{DeviceCsr, Placed, Plan};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};
use std::cell::RefCell;

/// What plans are packed and timed on: a real device, or a script that stands for one.
pub(crate) trait Arena {
    /// A packed matrix.
    type Packed;

    /// Packs the matrix and brings it to the device.
    ///
    /// # Errors
    ///
    /// What packing and the device give.
    fn pack(&self, plan: &Plan) -> Result<Ready<Self::Packed>, Error>;

    /// Seconds that so many products take.
    ///
    /// # Errors
    ///
    /// What the device gives.
    fn products(&self, packed: &Self::Packed, repeats: u32) -> Result<f64, Error>;
}

/// A packed matrix in the memory of its device, and what that took.
#[derive(Debug)]
pub(crate) struct Ready<P> {
    /// The packed matrix.
    pub(crate) matrix: P,
    /// Seconds to pack it.
    pub(crate) pack: f64,
    /// Seconds to bring it to the device.
    pub(crate) upload: f64,
}

impl<T: Scalar> Ready<Placed<T>> {
    /// Packs a matrix and brings it to a device; or the other way round, where a GPU packs it itself.
    ///
    /// # Errors
    ///
    /// What packing and the device give.
    pub(crate) fn pack(plan: &Plan, a: &CsrMatrix<T>, device: &Device) -> Result<Self, Error> {
        if let Some(ready) = Self::packed_there(plan, a, device)? {
            return Ok(ready);
        }
        let (packed, pack) = timed(|| plan.pack(a.view()));
        let packed = packed?;
        let (matrix, upload) = timed(|| Placed::on(device, packed));
        Ok(Self { matrix: matrix?, pack, upload })
    }

    /// Brings a matrix to a GPU that packs it itself; none where the host has to, or where there is no room for it and what is packed.
    fn packed_there(plan: &Plan, a: &CsrMatrix<T>, device: &Device) -> Result<Option<Self>, Error> {
        let Device::Cuda(gpu) = device else { return Ok(None) };
        if !Placed::packs_there(plan, a.view()) {
            return Ok(None);
        }
        let (csr, upload) = timed(|| DeviceCsr::upload(a.view(), *gpu));
        let (packed, pack) = timed(|| csr.and_then(|csr| Placed::packed_there(plan, &csr)));
        match packed {
            Ok(matrix) => Ok(matrix.map(|matrix| Self { matrix, pack, upload })),
            Err(Error::GpuMemory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A matrix and the vectors of its products on a device.
pub(crate) struct DeviceArena<'a, T: Scalar> {
    a: &'a CsrMatrix<T>,
    device: &'a Device,
    stream: Stream,
    x: DeviceVec<T>,
    y: RefCell<DeviceVec<T>>,
    /// Larger than the last cache; cleared before every product that is to find the caches cold.
    sweep: Option<RefCell<DeviceVec<T>>>,
}

impl<'a, T: Scalar> DeviceArena<'a, T> {
    /// For products of `a` with `x`.
    ///
    /// # Errors
    ///
    /// What the device gives when there is no room for the vectors.
    pub(crate) fn new(a: &'a CsrMatrix<T>, device: &'a Device, x: &[T], cold: bool) -> Result<Self, Error> {
        let sweep = || DeviceVec::zeros(device, sweep_bytes(device) as usize / size_of::<T>());
        Ok(Self {
            a,
            device,
            stream: Stream::new(device)?,
            x: DeviceVec::from_slice(device, x)?,
            y: RefCell::new(DeviceVec::zeros(device, a.nrows())?),
            sweep: cold.then(sweep).transpose()?.map(RefCell::new),
        })
    }

    fn product(&self, matrix: &Placed<T>) -> Result<(), Error> {
        matrix.enqueue(&self.stream, &self.x, &mut self.y.borrow_mut())
    }
}

/// Bytes that are written to leave nothing of a product in the caches of a device.
fn sweep_bytes(device: &Device) -> u64 {
    /// Caches do not replace strictly what is oldest.
    const TIMES: u64 = 2;
    /// Virtual machines name the caches of whole packages, of which a core has a part.
    const MOST: u64 = 256 << 20;
    device.last_cache_bytes().saturating_mul(TIMES).min(MOST)
}

impl<T: Scalar> Arena for DeviceArena<'_, T> {
    type Packed = Placed<T>;

    fn pack(&self, plan: &Plan) -> Result<Ready<Placed<T>>, Error> {
        Ready::pack(plan, self.a, self.device)
    }

    fn products(&self, matrix: &Placed<T>, repeats: u32) -> Result<f64, Error> {
        let Some(sweep) = &self.sweep else { return turn(&self.stream, repeats, || self.product(matrix)) };
        (0..repeats).try_fold(0.0, |seconds, _| {
            sweep.borrow_mut().clear(&self.stream)?;
            Ok(seconds + turn(&self.stream, 1, || self.product(matrix))?)
        })
    }
}
