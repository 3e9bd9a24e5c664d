//! Memory of a GPU that kernels of other processes of the host access.

use super::api;
use super::driver::{self, Attempt};
use super::memory::Relaxed;
use super::{Buffer, Gpu};
use crate::Error;
use cudarc::driver::sys::{CUdevice, CUdeviceptr};

/// Words of a handle.
const HANDLE_WORDS: usize = 8;

/// Words that describe memory to other processes.
pub(crate) const SHARED_WORDS: usize = 1 + HANDLE_WORDS;

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle([u64; HANDLE_WORDS]);

/// `CUuuid`.
#[repr(C)]
struct Uuid([u8; 16]);

// As declared in `cuda.h`.
const _: () = assert!(size_of::<Handle>() == 64);

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const ENABLE_ACCESS: u32 = 1;

type GetHandle = unsafe extern "C" fn(&mut Handle, CUdeviceptr) -> u32;
type OpenHandle = unsafe extern "C" fn(&mut CUdeviceptr, Handle, u32) -> u32;
type CloseHandle = unsafe extern "C" fn(CUdeviceptr) -> u32;
type AddressRange = unsafe extern "C" fn(&mut CUdeviceptr, &mut usize, CUdeviceptr) -> u32;
type GetUuid = unsafe extern "C" fn(&mut Uuid, CUdevice) -> u32;

/// Memory of another process, mapped until it is dropped.
#[derive(Debug)]
pub(crate) struct MappedMemory {
    gpu: Gpu,
    allocation: CUdeviceptr,
    offset: u64,
}

impl Gpu {
    /// Identifies this GPU in all processes of the host.
    pub(crate) fn identity(&self) -> Result<[u64; 2], Error> {
        let asked = || {
            let ask: GetUuid = api::optional("cuDeviceGetUuid")?;
            let device = driver::device(self.ordinal())?;
            // SAFETY: the function writes 16 bytes.
            api::value(Uuid([0; 16]), |uuid| api::result(unsafe { ask(uuid, device) }))
        };
        let Uuid(bytes) = asked().attempt(self.ordinal(), || "ask for its number".to_owned())?;
        let (words, _) = bytes.as_chunks::<8>();
        let instance = self.ordinal() as u64 * u64::from(driver::instances() > 1);
        Ok([u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1]) ^ instance])
    }

    /// Maps memory that another process [shares](Buffer::shared).
    pub(crate) fn map_shared(&self, memory: [u64; SHARED_WORDS]) -> Result<MappedMemory, Error> {
        let [offset, handle @ ..] = memory;
        let (_current, _relaxed) = (self.bind()?, Relaxed::new());
        let open = || {
            let open: OpenHandle = api::optional("cuIpcOpenMemHandle_v2")?;
            api::value(0, |address| {
                // SAFETY: the function writes the address; the handle is one of the driver.
                api::result(unsafe { open(address, Handle(handle), ENABLE_ACCESS) })
            })
        };
        let action = || {
            "access the memory of the GPU of another process (all processes have to see the GPUs \
             of all others)"
                .to_owned()
        };
        let allocation = open().attempt(self.ordinal(), action)?;
        Ok(MappedMemory { gpu: *self, allocation, offset })
    }
}

impl<T: Copy> Buffer<T> {
    /// Describes the memory to other processes, which [map](Gpu::map_shared) it: its place in an
    /// allocation, and the handle of that. It may be freed after they have unmapped it.
    pub(crate) fn shared(&self) -> Result<[u64; SHARED_WORDS], Error> {
        if self.len() == 0 {
            return Ok([0; SHARED_WORDS]);
        }
        let address = self.ptr().address();
        let _current = self.gpu().bind()?;
        let describe = || {
            let (range, get): (AddressRange, GetHandle) =
                (api::optional("cuMemGetAddressRange_v2")?, api::optional("cuIpcGetMemHandle")?);
            let mut bytes = 0;
            let base = api::value(0, |base| {
                // SAFETY: the function writes an address and a number.
                api::result(unsafe { range(base, &mut bytes, address) })
            })?;
            let handle = api::value(Handle([0; HANDLE_WORDS]), |handle| {
                // SAFETY: the function writes the handle.
                api::result(unsafe { get(handle, base) })
            })?;
            Ok((address - base, handle))
        };
        let action = || "share memory with other processes".to_owned();
        let (offset, Handle(words)) = describe().attempt(self.gpu().ordinal(), action)?;
        let mut memory = [offset; SHARED_WORDS];
        memory[1..].copy_from_slice(&words);
        Ok(memory)
    }
}

impl MappedMemory {
    /// Address of the memory in this process.
    pub(crate) fn address(&self) -> u64 {
        self.allocation + self.offset
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        if let (Ok(_current), Ok(close)) =
            (self.gpu.bind(), api::optional::<CloseHandle>("cuIpcCloseMemHandle"))
        {
            let _relaxed = Relaxed::new();
            // SAFETY: the driver has opened it, and counts how often.
            let _ = unsafe { close(self.allocation) };
        }
    }
}
