//! The CUDA driver: a check without panics that it is usable, and its error messages.

use crate::Error;
use cudarc::driver::{DriverError, result, sys};

/// Oldest supported driver interface: CUDA 11.4 introduced graph instantiation with flags.
const OLDEST: (i32, i32) = (11, 4);

/// All functions that are called. cudarc panics on a missing function, so they are looked up before
/// the first call.
const SYMBOLS: [&str; 47] = [
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuPointerGetAttribute",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamIsCapturing",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
];

/// Returns the driver's version as `(major, minor)` if the driver is usable, otherwise the reason
/// in one line.
pub(super) fn version() -> Result<(i32, i32), String> {
    static VERSION: std::sync::OnceLock<Result<(i32, i32), String>> = std::sync::OnceLock::new();
    VERSION.get_or_init(probe).clone()
}

fn probe() -> Result<(i32, i32), String> {
    // SAFETY: loading the driver's library runs its initialisers, which is its purpose.
    if !unsafe { sys::is_culib_present() } {
        return Err("no NVIDIA driver: libcuda cannot be loaded".to_owned());
    }
    let init =
        symbol::<unsafe extern "C" fn(u32) -> u32>("cuInit").ok_or_else(|| missing("cuInit"))?;
    // SAFETY: the function of this name takes the flags, which must be 0, and returns a result
    // code.
    match unsafe { init(0) } {
        0 => {}
        34 => return Err("libcuda is the stub of the CUDA toolkit, not a driver".to_owned()),
        100 => return Err("the NVIDIA driver finds no GPU".to_owned()),
        803 => {
            return Err(
                "the NVIDIA driver's library and its kernel module are of different versions"
                    .to_owned(),
            );
        }
        code => return Err(format!("the NVIDIA driver cannot be initialised: CUDA error {code}")),
    }
    let get_version = symbol::<unsafe extern "C" fn(*mut i32) -> u32>("cuDriverGetVersion")
        .ok_or_else(|| missing("cuDriverGetVersion"))?;
    let mut version = 0;
    // SAFETY: the function of this name writes one int.
    unsafe { get_version(&mut version) };
    let version = (version / 1000, version % 1000 / 10);
    if version < OLDEST {
        let (major, minor) = version;
        return Err(format!(
            "the NVIDIA driver is too old: it is for CUDA {major}.{minor}, and {}.{} is needed",
            OLDEST.0, OLDEST.1
        ));
    }
    match SYMBOLS.iter().find(|name| symbol::<*const ()>(name).is_none()) {
        Some(name) => Err(missing(name)),
        None => Ok(version),
    }
}

fn missing(name: &str) -> String {
    format!("libcuda lacks {name}: it is too old, or no driver at all")
}

/// A function of the driver's library, if it exists.
pub(super) fn symbol<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the library is present; the caller vouches for the type.
    unsafe { sys::culib().get::<F>(name.as_bytes()).ok().map(|symbol| *symbol) }
}

/// Adds the attempted action to an error of the driver.
pub(super) trait Attempt<R> {
    /// Returns the value, or an error with the action that failed and the GPU.
    fn attempt(self, gpu: usize, action: impl FnOnce() -> String) -> Result<R, Error>;
}

impl<R> Attempt<R> for Result<R, DriverError> {
    fn attempt(self, gpu: usize, action: impl FnOnce() -> String) -> Result<R, Error> {
        self.map_err(|error| Error::Gpu {
            device: format!("cuda:{gpu}"),
            action: action(),
            code: Some(error.0 as u32),
            message: text(error),
        })
    }
}

/// Describes a driver error in words and by its name.
pub(super) fn text(error: DriverError) -> String {
    let words = error.error_string().ok().map(|s| s.to_string_lossy().into_owned());
    let name = error.error_name().ok().map(|s| s.to_string_lossy().into_owned());
    match (words, name) {
        (Some(words), Some(name)) => format!("{words} ({name})"),
        _ => format!("CUDA error {}", error.0 as u32),
    }
}

/// Milliseconds between two events. Uses the symbol name that old drivers also have.
///
/// # Safety
///
/// Both are events of the current context and have been recorded and reached.
pub(super) unsafe fn elapsed_ms(
    start: sys::CUevent,
    end: sys::CUevent,
) -> Result<f32, DriverError> {
    type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
    // The initial check has found it.
    let elapsed = symbol::<Elapsed>("cuEventElapsedTime").expect("libcuda has cuEventElapsedTime");
    let mut ms = 0.0;
    // SAFETY: the caller's promise.
    unsafe { elapsed(&mut ms, start, end).result()? };
    Ok(ms)
}

/// An integer attribute of a device.
pub(super) fn attribute(
    device: sys::CUdevice,
    attribute: sys::CUdevice_attribute,
) -> Result<i32, String> {
    // SAFETY: the device was returned by the driver.
    unsafe { result::device::get_attribute(device, attribute) }.map_err(text)
}
