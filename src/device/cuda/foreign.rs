//! GPU memory allocated by another library.

use super::api::{self, DriverError};
use super::memory::Buffer;
use super::{Gpu, driver};
use crate::Error;
use cudarc::driver::sys::{CUmemorytype, CUpointer_attribute as Attribute};

/// The driver's memory type of host memory.
const HOST: u64 = CUmemorytype::CU_MEMORYTYPE_HOST as u64;

impl Gpu {
    /// Wraps `len` elements allocated by another library. They are never freed here.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignMemory`] if the driver reports that not all of them are in the memory of
    /// this GPU, or if they are not aligned.
    ///
    /// # Safety
    ///
    /// The elements have this type, and live as long as the buffer and all work enqueued with it.
    pub(crate) unsafe fn foreign<T: Copy>(
        &self,
        what: &'static str,
        address: u64,
        len: usize,
    ) -> Result<Buffer<T>, Error> {
        if len > 0 {
            let _current = self.bind()?;
            self.check::<T>(address, len).map_err(|message| Error::ForeignMemory {
                what,
                address,
                device: self.to_string(),
                message,
            })?;
        }
        Ok(Buffer::of_others(*self, address, len))
    }

    /// As [`foreign`](Self::foreign), without asking the driver.
    ///
    /// # Safety
    ///
    /// There are `len` elements of this type in the memory of this GPU, and they live as long as
    /// the buffer and all work enqueued with it.
    pub(crate) unsafe fn known<T: Copy>(&self, address: u64, len: usize) -> Buffer<T> {
        Buffer::of_others(*self, address, len)
    }

    /// Checks that there are `len` elements in the memory of this GPU, as far as the driver
    /// reports.
    fn check<T>(&self, address: u64, len: usize) -> Result<(), String> {
        let last = crate::device::foreign::last_byte::<T>(address, len)?;
        self.check_owner(address)?;
        self.check_owner(last)
            .map_err(|why| format!("it is too short for {len} elements: {why}"))?;
        // The end is known only for memory allocated as a whole; mappings and pools may extend
        // beyond it.
        let whole = attribute(Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address);
        let start = attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address);
        let size = attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, address);
        match (whole, start, size) {
            (Ok(1..), Ok(start), Ok(size)) if last - start >= size => Err(format!(
                "it is too short for {len} elements: {} bytes are left of an allocation of {size}",
                (start + size).saturating_sub(address)
            )),
            _ => Ok(()),
        }
    }

    /// Checks that the memory at an address belongs to this GPU.
    fn check_owner(&self, address: u64) -> Result<(), String> {
        let managed = attribute(Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
        if matches!(managed, Ok(1..)) {
            return Ok(());
        }
        let unknown = |error: DriverError| {
            format!(
                "the driver does not know it ({}); allocate it with cudaMalloc or the like",
                driver::text(error)
            )
        };
        let kind =
            attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address).map_err(unknown)?;
        if kind == HOST {
            return Err("it is memory of the host; copy it to the GPU first".to_owned());
        }
        let ordinal =
            attribute(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address).map_err(unknown)?;
        if ordinal != self.ordinal() as u64 {
            return Err(format!("it is memory of cuda:{ordinal}"));
        }
        Ok(())
    }
}

/// The driver's attribute of an address: a number of at most 64 bits.
fn attribute(which: Attribute, address: u64) -> Result<u64, DriverError> {
    let mut value = 0u64;
    // SAFETY: none of the queried attributes has more than 8 bytes; the shorter ones leave the
    // other bytes 0.
    unsafe { api::pointer_get_attribute((&raw mut value).cast(), which, address)? };
    Ok(value)
}
