//! Untyped device arrays for the libraries that products are compared with.

use crate::{Device, Error};
use std::any::Any;
use std::fmt;

/// An array in the memory of a device, on the CPU in host memory.
pub struct DeviceArray {
    address: u64,
    _memory: Box<dyn Any>,
}

impl DeviceArray {
    /// Copies `data` to the device.
    ///
    /// # Errors
    ///
    /// [`Error::GpuMemory`] if the GPU does not have enough free memory.
    pub fn from_slice<T: Copy + Send + Sync + 'static>(
        device: &Device,
        data: &[T],
    ) -> Result<Self, Error> {
        Ok(match device {
            Device::Cpu => {
                let memory = data.to_vec();
                Self { address: memory.as_ptr() as u64, _memory: Box::new(memory) }
            }
            Device::Cuda(gpu) => {
                let memory = gpu.upload(data)?;
                Self { address: memory.ptr().address(), _memory: Box::new(memory) }
            }
        })
    }

    /// Allocates `bytes` bytes, all zero.
    ///
    /// # Errors
    ///
    /// As [`DeviceArray::from_slice`].
    pub fn zeroed(device: &Device, bytes: usize) -> Result<Self, Error> {
        match device {
            Device::Cpu => Self::from_slice(device, &vec![0u8; bytes]),
            Device::Cuda(gpu) => {
                let memory = gpu.zeroed::<u8>(bytes)?;
                Ok(Self { address: memory.ptr().address(), _memory: Box::new(memory) })
            }
        }
    }

    /// Address of the first byte: a device pointer on a GPU, null there if the array is empty.
    /// Valid for the lifetime of the array.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl fmt::Debug for DeviceArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "array at {:#x}", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_on_the_cpu_is_read_through_its_address() {
        let array = DeviceArray::from_slice(&Device::Cpu, &[1i32, -1]).unwrap();
        // SAFETY: the address is that of two numbers of this type, alive until the end of the test.
        let data = unsafe { std::slice::from_raw_parts(array.address() as *const i32, 2) };
        assert_eq!(data, [1, -1]);
        let zeroed = DeviceArray::zeroed(&Device::Cpu, 3).unwrap();
        // SAFETY: three bytes, otherwise as above.
        let zeros = unsafe { std::slice::from_raw_parts(zeroed.address() as *const u8, 3) };
        assert_eq!(zeros, [0, 0, 0]);
    }
}
