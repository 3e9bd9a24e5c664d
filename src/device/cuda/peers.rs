//! Memory of a GPU that kernels of other GPUs access.
//!
//! It comes from a pool of its own: other allocations are not mapped on the other GPUs, which would
//! make every allocation wait for their work.

use super::api::{self, DriverError};
use super::driver::{self, Attempt};
use super::peer_calls::exclude_calls;
use super::{Buffer, Gpu};
use crate::Error;
use cudarc::driver::sys::{CUdevice, CUdeviceptr, CUmemoryPool, CUstream};
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const DEVICE: i32 = 1;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: i32 = 1;

/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_AND_WRITE: i32 = 3;

/// `CUmemLocation`.
#[repr(C)]
struct Location {
    kind: i32,
    device: CUdevice,
}

/// `CUmemPoolProps`.
#[repr(C)]
struct PoolProperties {
    allocation: i32,
    handles: i32,
    location: Location,
    security: *mut c_void,
    reserved: [u64; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct PeerAccess {
    location: Location,
    flags: i32,
}

// As declared in `cuda.h`.
const _: () = assert!(size_of::<PoolProperties>() == 88 && size_of::<PeerAccess>() == 12);

type CanAccess = unsafe extern "C" fn(&mut i32, CUdevice, CUdevice) -> u32;
type CreatePool = unsafe extern "C" fn(&mut CUmemoryPool, &PoolProperties) -> u32;
type SetAccess = unsafe extern "C" fn(CUmemoryPool, *const PeerAccess, usize) -> u32;
type Allocate = unsafe extern "C" fn(&mut CUdeviceptr, usize, CUmemoryPool, CUstream) -> u32;

/// The pool of a GPU's memory for others.
#[derive(Default)]
pub(super) struct PeerPool(Mutex<Option<CUmemoryPool>>);

impl Gpu {
    /// True if kernels of this GPU can access memory of another one.
    pub(crate) fn can_access(&self, other: Gpu) -> Result<bool, Error> {
        let asked = || {
            let (own, other) = (driver::device(self.ordinal())?, driver::device(other.ordinal())?);
            if own == other {
                return Ok(1);
            }
            let ask: CanAccess = api::optional("cuDeviceCanAccessPeer")?;
            // SAFETY: the function writes one number.
            api::value(0, |can| api::result(unsafe { ask(can, own, other) }))
        };
        asked()
            .attempt(self.ordinal(), || format!("ask for access to the memory of {other}"))
            .map(|can| can != 0)
    }

    /// Allocates `len` zeroed elements that kernels of `others` access, too.
    pub(crate) fn zeroed_for<T: Copy>(
        &self,
        others: &[Gpu],
        len: usize,
    ) -> Result<Buffer<T>, Error> {
        let _outside = exclude_calls();
        let pool = self.bind().and_then(|_current| {
            let pool = self.peer_pool(others);
            pool.attempt(self.ordinal(), || "share memory with other GPUs".to_owned())
        })?;
        let queue = self.queue().stream();
        let buffer = self.allocated_by(len, |address, bytes| {
            let allocate: Allocate = api::optional("cuMemAllocFromPoolAsync")?;
            // SAFETY: the function writes the address; the pool and the queue are never destroyed.
            api::result(unsafe { allocate(address, bytes, pool, queue) })
        });
        buffer?.of_pool().zeroed()
    }

    /// The pool, to whose memory this GPU and others have access.
    fn peer_pool(&self, others: &[Gpu]) -> Result<CUmemoryPool, DriverError> {
        let mut pool = self.0.peer_pool.0.lock().unwrap_or_else(PoisonError::into_inner);
        let location =
            |gpu: &Gpu| Ok(Location { kind: DEVICE, device: driver::device(gpu.ordinal())? });
        let made = match *pool {
            Some(pool) => pool,
            None => {
                let create: CreatePool = api::optional("cuMemPoolCreate")?;
                let properties = PoolProperties {
                    allocation: PINNED,
                    handles: 0,
                    location: location(self)?,
                    security: ptr::null_mut(),
                    reserved: [0; 8],
                };
                let create = |pool: &mut CUmemoryPool| {
                    // SAFETY: the function writes the pool.
                    api::result(unsafe { create(pool, &properties) })
                };
                api::value(ptr::null_mut(), create)?
            }
        };
        *pool = Some(made);
        // The pool's own device has access.
        let own = location(self)?.device;
        let locations = others.iter().map(location).collect::<Result<Vec<_>, DriverError>>()?;
        let access = locations.into_iter().filter(|location| location.device != own);
        let access: Vec<PeerAccess> =
            access.map(|location| PeerAccess { location, flags: READ_AND_WRITE }).collect();
        if !access.is_empty() {
            let set: SetAccess = api::optional("cuMemPoolSetAccess")?;
            // SAFETY: as many descriptions as are passed.
            api::result(unsafe { set(made, access.as_ptr(), access.len()) })?;
        }
        Ok(made)
    }
}
