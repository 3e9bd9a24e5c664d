//! Shared memory that a kernel is given at its launch, and how many of its blocks run at once.

use super::driver::Attempt;
use super::{Gpu, Kernel, driver};
use crate::Error;
use cudarc::driver::result::{self, function, occupancy};
use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
use cudarc::driver::sys::CUfunction_attribute::{
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
};

impl Gpu {
    /// The most bytes of shared memory that a block can be given beside the kernel's own.
    pub(crate) fn shared_memory(&self, kernel: Kernel) -> Result<u32, Error> {
        let action = || "tell how much shared memory a block can have".to_owned();
        let refused = |message| Error::Gpu { device: self.to_string(), action: action(), message };
        let _current = self.bind()?;
        let device = result::device::get(self.ordinal() as i32).attempt(self.ordinal(), action)?;
        let all = driver::attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
            .map_err(refused)?;
        Ok((all.max(0) as u32).saturating_sub(self.own_shared_memory(kernel)?))
    }

    /// Bytes of shared memory that a kernel has of its own.
    pub(crate) fn own_shared_memory(&self, kernel: Kernel) -> Result<u32, Error> {
        let action = || "tell how much shared memory a kernel has".to_owned();
        let _current = self.bind()?;
        // SAFETY: the kernel is loaded and its module is never unloaded.
        let own =
            unsafe { function::get_function_attribute(kernel.function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) };
        Ok(own.attempt(self.ordinal(), action)?.max(0) as u32)
    }

    /// Lets a kernel be launched with `bytes` of shared memory a block beside its own, and tells how many such blocks, of so many
    /// threads, run at once.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`] when a block cannot have so much.
    pub(crate) fn resident_blocks(&self, kernel: Kernel, threads: u32, bytes: u32) -> Result<u32, Error> {
        let action = || format!("give a block {bytes} bytes of shared memory");
        let most = self.shared_memory(kernel)?;
        if bytes > most {
            let message = format!("it has at most {most} for a block; take smaller blocks");
            return Err(Error::Gpu { device: self.to_string(), action: action(), message });
        }
        let _current = self.bind()?;
        // Always the most there can be: another matrix may use the same kernel with more.
        let which = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the kernel is loaded and its module is never unloaded.
        unsafe { function::set_function_attribute(kernel.function, which, most as i32) }
            .attempt(self.ordinal(), action)?;
        // SAFETY: as above.
        let blocks = unsafe {
            occupancy::max_active_block_per_multiprocessor(kernel.function, threads as i32, bytes as usize)
        };
        let blocks = blocks.attempt(self.ordinal(), action)?;
        Ok(blocks.max(1) as u32 * self.multiprocessors() as u32)
    }
}
