//! Dynamic shared memory of kernels, and occupancy: the number of blocks that are resident at once.

use super::driver::Attempt;
use super::{Gpu, Kernel, api, driver};
use crate::Error;
use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
use cudarc::driver::sys::CUfunction_attribute::{
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
};

impl Gpu {
    /// Largest dynamic shared memory of a block of the kernel, in bytes.
    pub(crate) fn shared_memory(&self, kernel: Kernel) -> Result<u32, Error> {
        let action = || "tell how much shared memory a block can have".to_owned();
        let refused = |message| Error::Gpu {
            device: self.to_string(),
            action: action(),
            code: None,
            message,
        };
        let _current = self.bind()?;
        let device = driver::device(self.ordinal()).attempt(self.ordinal(), action)?;
        let all = driver::attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
            .map_err(refused)?;
        Ok((all.max(0) as u32).saturating_sub(self.own_shared_memory(kernel)?))
    }

    /// Static shared memory of a kernel, in bytes.
    pub(crate) fn own_shared_memory(&self, kernel: Kernel) -> Result<u32, Error> {
        let action = || "tell how much shared memory a kernel has".to_owned();
        let _current = self.bind()?;
        // SAFETY: the kernel is loaded and its module is never unloaded.
        let own = api::value(0, |bytes| unsafe {
            api::func_get_attribute(bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel.function)
        });
        Ok(own.attempt(self.ordinal(), action)?.max(0) as u32)
    }

    /// Allows launches of a kernel with `bytes` bytes of dynamic shared memory per block. Returns
    /// the number of such blocks, with `threads` threads each, that are resident at once.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] if a block cannot have that much.
    pub(crate) fn resident_blocks(
        &self,
        kernel: Kernel,
        threads: u32,
        bytes: u32,
    ) -> Result<u32, Error> {
        let action = || format!("give a block {bytes} bytes of shared memory");
        let most = self.shared_memory(kernel)?;
        if bytes > most {
            let message = format!("it has at most {most} for a block; take smaller blocks");
            return Err(Error::Gpu {
                device: self.to_string(),
                action: action(),
                code: None,
                message,
            });
        }
        let _current = self.bind()?;
        // Always the maximum: another matrix may use the same kernel with more.
        let which = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the kernel is loaded and its module is never unloaded.
        unsafe { api::func_set_attribute(kernel.function, which, most as i32) }
            .attempt(self.ordinal(), action)?;
        // SAFETY: as above.
        let blocks = api::value(0, |blocks| unsafe {
            let (threads, bytes) = (threads as i32, bytes as usize);
            api::occupancy_max_active_blocks(blocks, kernel.function, threads, bytes)
        });
        let blocks = blocks.attempt(self.ordinal(), action)?;
        Ok(blocks.max(1) as u32 * self.multiprocessors() as u32)
    }
}
