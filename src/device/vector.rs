//! Vectors in device memory.
// Without GPU support, code that has a GPU is unreachable.
#![cfg_attr(not(feature = "cuda"), allow(unreachable_code))]

use super::foreign::{Foreign, ForeignHost};
use super::{Buffer, Device, Ptr};
use crate::{Error, Scalar, memory};
use std::ops::Range;
use std::sync::Arc;

/// A vector in the memory of a device: GPU memory for a GPU, host memory for the CPU.
///
/// ```
/// # use sparseop::{Device, device::DeviceVec};
/// let device = Device::auto();
/// let mut x = DeviceVec::from_slice(&device, &[1.0, 2.0, 3.0])?;
/// x.copy_from(&[4.0, 5.0, 6.0])?;
/// assert_eq!(x.to_vec()?, [4.0, 5.0, 6.0]);
/// # Ok::<(), sparseop::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceVec<T: Scalar> {
    storage: Storage<T>,
}

#[derive(Debug)]
enum Storage<T> {
    Host(Vec<T>),
    /// Host memory allocated by another library.
    Foreign(ForeignHost<T>),
    Gpu(Arc<Buffer<T>>),
}

impl<T: Scalar> DeviceVec<T> {
    /// Allocates `len` zeros.
    ///
    /// # Errors
    ///
    /// [`Error::GpuMemory`] if the GPU does not have enough free memory.
    pub fn zeros(device: &Device, len: usize) -> Result<Self, Error> {
        T::vector_zeros(device, len)
    }

    pub(crate) fn zeros_impl(device: &Device, len: usize) -> Result<Self, Error> {
        let storage = match device {
            Device::Cpu => Storage::Host(memory::try_zeroed(len)?),
            Device::Cuda(gpu) => Storage::Gpu(Arc::new(gpu.zeroed(len)?)),
        };
        Ok(Self { storage })
    }

    /// Copies `data` to the device.
    ///
    /// # Errors
    ///
    /// As [`DeviceVec::zeros`].
    pub fn from_slice(device: &Device, data: &[T]) -> Result<Self, Error> {
        T::vector_from(device, data)
    }

    pub(crate) fn from_slice_impl(device: &Device, data: &[T]) -> Result<Self, Error> {
        let storage = match device {
            Device::Cpu => Storage::Host(memory::try_copied(data)?),
            Device::Cuda(gpu) => Storage::Gpu(Arc::new(gpu.upload(data)?)),
        };
        Ok(Self { storage })
    }

    /// Wraps `len` elements that another library has allocated and frees: from a `CUdeviceptr`, or
    /// on the CPU from a host address. Nothing is copied, so vectors of other libraries take part
    /// in products in place. See [`DeviceView`](super::DeviceView) for read-only vectors.
    ///
    /// ```
    /// # use sparseop::{Device, DeviceVec};
    /// let mut theirs = vec![1.0f32, 2.0];
    /// let address = theirs.as_mut_ptr().expose_provenance() as u64;
    /// // SAFETY: `theirs` outlives the vector, and is not used meanwhile.
    /// let mut v = unsafe { DeviceVec::<f32>::from_raw(&Device::Cpu, address, 2)? };
    /// v.copy_from(&[3.0, 4.0])?;
    /// drop(v);
    /// assert_eq!(theirs, [3.0, 4.0]);
    /// # Ok::<(), sparseop::Error>(())
    /// ```
    ///
    /// # Safety
    ///
    /// * There are `len` initialised elements of this type; on a GPU in memory that its primary
    ///   context can access.
    /// * They live as long as the vector, everything enqueued with it, and every graph captured
    ///   with it.
    /// * While the vector lives, other code uses them only in an order that streams or the host
    ///   establish: its work is finished, or is enqueued on the stream of the product. Copies to
    ///   and from the vector wait for the streams of this library only.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignMemory`] if the address is null or not aligned, or if the driver reports
    /// that this is not memory of that GPU, or that it ends too early. For an address inside an
    /// allocation of a pool or a mapping, the driver does not report an end that is too early.
    pub unsafe fn from_raw(device: &Device, address: u64, len: usize) -> Result<Self, Error> {
        // SAFETY: the caller's promise.
        let storage = match unsafe { Foreign::new(device, "vector", address, len)? } {
            Foreign::Host(memory) => Storage::Foreign(memory),
            Foreign::Gpu(buffer) => Storage::Gpu(Arc::new(buffer)),
        };
        Ok(Self { storage })
    }

    /// As [`from_raw`](Self::from_raw), without asking the driver, which takes microseconds: for
    /// arrays whose library knows their device and length.
    ///
    /// # Safety
    ///
    /// As of [`from_raw`](Self::from_raw); the address is that of `len` aligned elements in the
    /// memory of the device.
    #[doc(hidden)]
    pub unsafe fn from_known(device: &Device, address: u64, len: usize) -> Result<Self, Error> {
        // SAFETY: the caller's promise.
        let storage = match unsafe { Foreign::known(device, "vector", address, len)? } {
            Foreign::Host(memory) => Storage::Foreign(memory),
            Foreign::Gpu(buffer) => Storage::Gpu(Arc::new(buffer)),
        };
        Ok(Self { storage })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match &self.storage {
            Storage::Host(data) => data.len(),
            Storage::Foreign(memory) => memory.len(),
            Storage::Gpu(buffer) => buffer.len(),
        }
    }

    /// True if there are no elements.
    #[doc(hidden)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the device of the vector.
    pub fn device(&self) -> Device {
        match &self.storage {
            Storage::Host(_) | Storage::Foreign(_) => Device::Cpu,
            Storage::Gpu(buffer) => Device::Cuda(buffer.gpu()),
        }
    }

    /// Address of the first element, for other libraries: a device pointer on a GPU. Valid for the
    /// lifetime of the vector.
    #[doc(hidden)]
    pub fn address(&self) -> u64 {
        match &self.storage {
            Storage::Host(data) => data.as_ptr() as u64,
            Storage::Foreign(memory) => memory.address(),
            Storage::Gpu(buffer) => buffer.ptr().address(),
        }
    }

    /// Copies `data` in, after everything enqueued on the [`Stream`](super::Stream)s of the device.
    ///
    /// # Errors
    ///
    /// [`Error::CopyLength`] if the lengths differ, [`Error::Gpu`] if the GPU fails.
    pub fn copy_from(&mut self, data: &[T]) -> Result<(), Error> {
        T::vector_copy_from(self, data)
    }

    pub(crate) fn copy_from_impl(&mut self, data: &[T]) -> Result<(), Error> {
        self.same_length(data.len())?;
        match &mut self.storage {
            Storage::Host(own) => own.copy_from_slice(data),
            Storage::Foreign(memory) => memory.as_mut_slice().copy_from_slice(data),
            Storage::Gpu(buffer) => {
                buffer.gpu().synchronize()?;
                buffer.write(buffer.gpu().queue(), data)?;
            }
        }
        Ok(())
    }

    /// Copies all elements out, after everything enqueued on the [`Stream`](super::Stream)s of the
    /// device.
    ///
    /// # Errors
    ///
    /// As [`DeviceVec::copy_from`].
    pub fn copy_to(&self, data: &mut [T]) -> Result<(), Error> {
        T::vector_copy_to(self, data)
    }

    pub(crate) fn copy_to_impl(&self, data: &mut [T]) -> Result<(), Error> {
        self.same_length(data.len())?;
        match &self.storage {
            Storage::Host(own) => data.copy_from_slice(own),
            Storage::Foreign(memory) => data.copy_from_slice(memory.as_slice()),
            Storage::Gpu(buffer) => {
                buffer.gpu().synchronize()?;
                buffer.read(buffer.gpu().queue(), data)?;
            }
        }
        Ok(())
    }

    /// Copies all elements to host memory, after everything enqueued on the
    /// [`Stream`](super::Stream)s of the device.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if the GPU fails.
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        let mut data = memory::try_zeroed(self.len())?;
        self.copy_to(&mut data)?;
        Ok(data)
    }

    fn same_length(&self, found: usize) -> Result<(), Error> {
        let expected = self.len();
        if found == expected { Ok(()) } else { Err(Error::CopyLength { expected, found }) }
    }

    /// The elements, which are in host memory: the caller has checked the device.
    #[doc(hidden)]
    pub fn host(&self) -> &[T] {
        match &self.storage {
            Storage::Host(data) => data,
            Storage::Foreign(memory) => memory.as_slice(),
            Storage::Gpu(_) => unreachable!("a vector of the CPU is in host memory"),
        }
    }

    /// As [`host`](Self::host), mutable.
    #[doc(hidden)]
    pub fn host_mut(&mut self) -> &mut [T] {
        match &mut self.storage {
            Storage::Host(data) => data,
            Storage::Foreign(memory) => memory.as_mut_slice(),
            Storage::Gpu(_) => unreachable!("a vector of the CPU is in host memory"),
        }
    }

    /// Calls `work` with some of the elements of a vector in GPU memory.
    ///
    /// # Errors
    ///
    /// Those of `work`.
    #[doc(hidden)]
    pub fn with_part(
        &mut self,
        elements: Range<usize>,
        work: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match &self.storage {
            Storage::Gpu(buffer) => {
                work(&mut Self { storage: Storage::Gpu(Arc::new(buffer.part(elements))) })
            }
            Storage::Host(_) | Storage::Foreign(_) => unreachable!("a vector in GPU memory"),
        }
    }

    /// Address in GPU memory.
    pub(crate) fn ptr(&self) -> Ptr<T> {
        Ptr::from_address(self.address())
    }

    /// Shares ownership of the GPU memory, which lives as long as its last owner. `None` in host
    /// memory.
    pub(crate) fn share(&self) -> Option<Arc<Buffer<T>>> {
        match &self.storage {
            Storage::Host(_) | Storage::Foreign(_) => None,
            Storage::Gpu(buffer) => Some(buffer.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_vectors_hold_their_input() {
        for device in [Device::Cpu].into_iter().chain(Device::gpus()) {
            let mut v = DeviceVec::from_slice(&device, &[1.0f32, 2.0]).unwrap();
            assert_eq!(
                (v.device(), v.len(), v.to_vec().unwrap()),
                (device.clone(), 2, vec![1.0, 2.0])
            );
            v.copy_from(&[3.0, 4.0]).unwrap();
            assert_eq!(v.to_vec().unwrap(), [3.0, 4.0]);
            let wrong = v.copy_from(&[0.0; 3]).unwrap_err().to_string();
            assert!(wrong.contains("3 elements") && wrong.contains("has 2"), "{wrong}");
            let empty = DeviceVec::<f64>::zeros(&device, 0).unwrap();
            assert!(empty.is_empty() && empty.to_vec().unwrap().is_empty());
        }
    }
}
