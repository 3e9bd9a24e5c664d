//! Programmatic dependent launch: a launch that begins while the previous launch in the stream
//! ends. Supported from Hopper on.
//!
//! A kernel launched in this way itself waits for the previous launch before it touches memory that
//! the previous launch uses. Other work that follows it in the stream waits for its end as usual.
//! See `OVERLAPPING` in `kernels/common.cuh`.

use super::driver::{symbol, version};
use cudarc::driver::{DriverError, sys};
use std::ffi::{CStr, c_char, c_void};
use std::mem::offset_of;
use std::sync::OnceLock;

/// Variable that marks the machine code of a file all of whose kernels wait for the previous
/// launch.
const MARK: &CStr = c"launches_overlap";

/// Oldest driver interface that can also capture such launches in graphs.
const OLDEST: (i32, i32) = (12, 4);

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const OVERLAP: u32 = 6;

/// `CUlaunchAttribute`. The value is a union of 64 bytes that begins with the field used here.
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

// As declared in `cuda.h`.
const _: () = assert!(size_of::<Attribute>() == 72 && size_of::<Config>() == 56);
const _: () = assert!(offset_of!(Config, stream) == 32 && offset_of!(Config, count) == 48);

type LaunchKernel = unsafe extern "C" fn(
    *const Config,
    sys::CUfunction,
    *mut *mut c_void,
    *mut *mut c_void,
) -> sys::CUresult;
type GetGlobal =
    unsafe extern "C" fn(*mut u64, *mut usize, sys::CUmodule, *const c_char) -> sys::CUresult;

/// The driver's function for such launches, if any. Looked up by name because old bindings do not
/// have it.
fn launcher() -> Option<LaunchKernel> {
    static LAUNCHER: OnceLock<Option<LaunchKernel>> = OnceLock::new();
    *LAUNCHER.get_or_init(|| {
        let recent = version().is_ok_and(|version| version >= OLDEST);
        recent.then(|| symbol("cuLaunchKernelEx")).flatten()
    })
}

/// True if the kernels of a module wait for the previous launch and the driver supports such
/// launches.
///
/// # Safety
///
/// The module is loaded, and its context is current.
pub(super) unsafe fn is_marked(module: sys::CUmodule) -> bool {
    let Some(get_global) = symbol::<GetGlobal>("cuModuleGetGlobal_v2") else { return false };
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: the caller's promise; the function writes two numbers.
    let found = unsafe { get_global(&mut address, &mut bytes, module, MARK.as_ptr()) };
    found.result().is_ok() && launcher().is_some()
}

/// As `result::launch_kernel`, for a kernel of a module that [`is_marked`].
///
/// # Safety
///
/// As for `result::launch_kernel`.
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
    let config = Config {
        grid: grid.into(),
        block: block.into(),
        shared,
        stream,
        attributes: &attribute,
        count: 1,
    };
    // SAFETY: the caller's promise; the attribute lives until the call returns.
    unsafe { launch(&config, function, args.as_mut_ptr(), std::ptr::null_mut()).result() }
}
