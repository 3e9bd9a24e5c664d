//! The driver: whether it can be used, asked without ever panicking, and what its errors mean.

use crate::Error;
use cudarc::driver::{DriverError, result, sys};

/// The oldest driver interface that is used: CUDA 11.4 brought graphs that are instantiated with flags.
const OLDEST: (i32, i32) = (11, 4);

/// Every function that is called. cudarc panics on one that is missing, so they are looked up before the first call.
const SYMBOLS: [&str; 48] = [
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
    "cuLaunchHostFunc",
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

/// The driver's version as `(major, minor)`, once it has been found usable; else the reason in one line.
pub(super) fn version() -> Result<(i32, i32), String> {
    static VERSION: std::sync::OnceLock<Result<(i32, i32), String>> = std::sync::OnceLock::new();
    VERSION.get_or_init(probe).clone()
}

fn probe() -> Result<(i32, i32), String> {
    // SAFETY: loading the driver's library runs its initialisers, which is what it is for.
    if !unsafe { sys::is_culib_present() } {
        return Err("no NVIDIA driver: libcuda cannot be loaded".to_owned());
    }
    let init = symbol::<unsafe extern "C" fn(u32) -> u32>("cuInit").ok_or_else(|| missing("cuInit"))?;
    // SAFETY: the function of that name takes the flags, which must be 0, and returns a result code.
    match unsafe { init(0) } {
        0 => {}
        34 => return Err("libcuda is the stub of the CUDA toolkit, not a driver".to_owned()),
        100 => return Err("the NVIDIA driver finds no GPU".to_owned()),
        803 => {
            return Err(
                "the NVIDIA driver's library and its kernel module are of different versions".to_owned()
            );
        }
        code => return Err(format!("the NVIDIA driver cannot be initialised: CUDA error {code}")),
    }
    let get_version = symbol::<unsafe extern "C" fn(*mut i32) -> u32>("cuDriverGetVersion")
        .ok_or_else(|| missing("cuDriverGetVersion"))?;
    let mut version = 0;
    // SAFETY: the function of that name writes one int.
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

/// A function of the driver's library.
pub(super) fn symbol<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the library is there; whoever names a type vouches for it.
    unsafe { sys::culib().get::<F>(name.as_bytes()).ok().map(|symbol| *symbol) }
}

/// Names what was attempted when the driver refuses.
pub(super) trait Attempt<R> {
    /// The value, or an error that says what could not be done on which GPU.
    fn attempt(self, gpu: usize, action: impl FnOnce() -> String) -> Result<R, Error>;
}

impl<R> Attempt<R> for Result<R, DriverError> {
    fn attempt(self, gpu: usize, action: impl FnOnce() -> String) -> Result<R, Error> {
        self.map_err(|error| Error::Gpu {
            device: format!("cuda:{gpu}"),
            action: action(),
            message: text(error),
        })
    }
}

/// A driver's error in words and by its name.
pub(super) fn text(error: DriverError) -> String {
    let words = error.error_string().ok().map(|s| s.to_string_lossy().into_owned());
    let name = error.error_name().ok().map(|s| s.to_string_lossy().into_owned());
    match (words, name) {
        (Some(words), Some(name)) => format!("{words} ({name})"),
        _ => format!("CUDA error {}", error.0 as u32),
    }
}

/// Milliseconds between two events; by the name that old drivers have too.
///
/// # Safety
///
/// Both are events of the current context and have been recorded and reached.
pub(super) unsafe fn elapsed_ms(start: sys::CUevent, end: sys::CUevent) -> Result<f32, DriverError> {
    type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
    // The probe has seen it.
    let elapsed = symbol::<Elapsed>("cuEventElapsedTime").expect("libcuda has cuEventElapsedTime");
    let mut ms = 0.0;
    // SAFETY: the caller's promise.
    unsafe { elapsed(&mut ms, start, end).result()? };
    Ok(ms)
}

/// A number the driver knows of a device.
pub(super) fn attribute(device: sys::CUdevice, attribute: sys::CUdevice_attribute) -> Result<i32, String> {
    // SAFETY: the device is one that the driver named.
    unsafe { result::device::get_attribute(device, attribute) }.map_err(text)
}
