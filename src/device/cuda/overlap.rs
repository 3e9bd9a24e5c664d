//! Programmatic dependent launch: a launch that begins while the previous launch in the stream
//! ends. Supported from Hopper on.
//!
//! A kernel launched in this way itself waits for the previous launch before it touches memory that
//! the previous launch uses. Other work that follows it in the stream waits for its end as usual.
//! See `OVERLAPPING` in `kernels/common.cuh`.

use super::api::{self, DriverError, symbol};
use super::driver::is_since;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::OnceLock;

/// Name of the variable in code all of whose kernels wait for the previous launch.
const MARK: &[u8] = b"launches_overlap";

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

type LaunchKernel =
    unsafe extern "C" fn(*const Config, sys::CUfunction, *mut *mut c_void, *mut *mut c_void) -> u32;

/// The driver's function for such launches, if any. Looked up by name because old bindings do not
/// have it.
fn launcher() -> Option<LaunchKernel> {
    static LAUNCHER: OnceLock<Option<LaunchKernel>> = OnceLock::new();
    *LAUNCHER.get_or_init(|| is_since(OLDEST).then(|| symbol("cuLaunchKernelEx")).flatten())
}

/// True if the kernels of machine code or PTX wait for the previous launch and the driver supports
/// such launches.
pub(super) fn is_marked(code: &[u8]) -> bool {
    code.windows(MARK.len()).any(|bytes| bytes == MARK) && launcher().is_some()
}

/// As [`api::launch_kernel`], for a kernel of code that [`is_marked`].
///
/// # Safety
///
/// As for [`api::launch_kernel`].
pub(super) unsafe fn launch_kernel(
    function: sys::CUfunction,
    grid: (u32, u32, u32),
    block: (u32, u32, u32),
    shared: u32,
    stream: sys::CUstream,
    args: &mut [*mut c_void],
) -> Result<(), DriverError> {
    let launch = launcher().expect("looked up when the code was found to be marked");
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
    api::result(unsafe { launch(&config, function, args.as_mut_ptr(), std::ptr::null_mut()) })
}
