//! Launches that begin while the one before them in the stream ends: CUDA's programmatic dependent launch, of GPUs from Hopper on.
//!
//! A kernel that may be launched so waits by itself before it touches what the launch before it works on; what follows it in the stream waits
//! for its end as ever. `OVERLAPPING` in `kernels/common.cuh`.

use super::driver::{symbol, version};
use cudarc::driver::{DriverError, sys};
use std::ffi::{CStr, c_char, c_void};
use std::mem::offset_of;
use std::sync::OnceLock;

/// The variable by which the machine code of a file tells that all of its kernels wait by themselves.
const MARK: &CStr = c"launches_overlap";

/// The oldest driver interface with which such launches can also be captured in graphs.
const OLDEST: (i32, i32) = (12, 4);

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const OVERLAP: u32 = 6;

/// `CUlaunchAttribute`; the value is a union of 64 bytes that begins with what is told here.
#[repr(C, align(8))]
struct Attribute {
    id: u32,
    padding: u32,
    allowed: i32,
    rest: [u32; 15],
}

/// `CUlaunchConfig`.
#[repr(C)]
struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: sys::CUstream,
    attributes: *const Attribute,
    count: u32,
}

// As `cuda.h` has them.
const _: () = assert!(size_of::<Attribute>() == 72 && size_of::<Config>() == 56);
const _: () = assert!(offset_of!(Config, stream) == 32 && offset_of!(Config, count) == 48);

type LaunchKernel =
    unsafe extern "C" fn(*const Config, sys::CUfunction, *mut *mut c_void, *mut *mut c_void) -> sys::CUresult;
type GetGlobal = unsafe extern "C" fn(*mut u64, *mut usize, sys::CUmodule, *const c_char) -> sys::CUresult;

/// The driver's function for such launches, where it has one. Looked up by its name: old bindings do not know it.
fn launcher() -> Option<LaunchKernel> {
    static LAUNCHER: OnceLock<Option<LaunchKernel>> = OnceLock::new();
    *LAUNCHER.get_or_init(|| {
        let recent = version().is_ok_and(|version| version >= OLDEST);
        recent.then(|| symbol("cuLaunchKernelEx")).flatten()
    })
}

/// Whether the kernels of a module wait by themselves, and can be launched so.
///
/// # Safety
///
/// The module is loaded, and its context is current.
pub(super) unsafe fn is_marked(module: sys::CUmodule) -> bool {
    let Some(get_global) = symbol::<GetGlobal>("cuModuleGetGlobal_v2") else { return false };
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: the caller's promise, and two numbers to write to.
    let found = unsafe { get_global(&mut address, &mut bytes, module, MARK.as_ptr()) };
    found.result().is_ok() && launcher().is_some()
}

/// As `result::launch_kernel`, for a kernel of a module that [`is_marked`].
///
/// # Safety
///
/// As there.
pub(super) unsafe fn launch_kernel(
    function: sys::CUfunction,
    grid: (u32, u32, u32),
    block: (u32, u32, u32),
    shared: u32,
    stream: sys::CUstream,
    args: &mut [*mut c_void],
) -> Result<(), DriverError> {
    let launch = launcher().expect("asked for when the module was found to be marked");
    let attribute = Attribute { id: OVERLAP, padding: 0, allowed: 1, rest: [0; 15] };
    let config =
        Config { grid: grid.into(), block: block.into(), shared, stream, attributes: &attribute, count: 1 };
    // SAFETY: the caller's promise; the attribute lives until the call returns.
    unsafe { launch(&config, function, args.as_mut_ptr(), std::ptr::null_mut()).result() }
}
