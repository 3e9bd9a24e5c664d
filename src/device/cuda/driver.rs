//! The CUDA driver: a check without panics that it is usable, and its error messages.

use super::api::{self, DriverError, symbol};
use crate::Error;
use cudarc::driver::sys;
use std::ffi::{CStr, c_char};
use std::ptr;

/// Oldest supported driver interface: CUDA 11.4 introduced graph instantiation with flags.
const OLDEST: (i32, i32) = (11, 4);

/// Returns the driver's version as `(major, minor)` if the driver is usable, otherwise the reason
/// in one line.
pub(super) fn version() -> Result<(i32, i32), String> {
    static VERSION: std::sync::OnceLock<Result<(i32, i32), String>> = std::sync::OnceLock::new();
    VERSION.get_or_init(probe).clone()
}

/// True if the driver is usable and has the interface of `oldest` or a later one.
pub(super) fn is_since(oldest: (i32, i32)) -> bool {
    version().is_ok_and(|version| version >= oldest)
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
    api::look_up().map_err(missing)?;
    Ok(version)
}

fn missing(name: &str) -> String {
    format!("libcuda lacks {name}: it is too old, or no driver at all")
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
            code: Some(error.0),
            message: text(error),
        })
    }
}

/// Describes a driver error in words and by its name.
pub(super) fn text(error: DriverError) -> String {
    let said = |call: unsafe fn(u32, &mut *const c_char) -> Result<(), DriverError>| {
        // SAFETY: the function writes the address of a text that is never freed, or null.
        let text = api::value(ptr::null(), |text| unsafe { call(error.0, text) }).ok()?;
        // SAFETY: as above.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    match (said(api::get_error_string), said(api::get_error_name)) {
        (Some(words), Some(name)) => format!("{words} ({name})"),
        _ => format!("CUDA error {}", error.0),
    }
}

/// Environment variable: the number of times that each GPU is counted, for tests of several GPUs on
/// a machine with one. Launches on such GPUs do not overlap: a launch that waits for the previous
/// one would take the place of the work of another part.
const INSTANCES: &str = "SPARSEOP_GPU_INSTANCES";

/// Number of times that each GPU is counted.
pub(super) fn instances() -> usize {
    static NUMBER: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let given = || std::env::var(INSTANCES).ok()?.parse().ok();
    *NUMBER.get_or_init(|| given().unwrap_or(1).clamp(1, 64))
}

/// Number of GPUs, each counted as often as there are [`instances`] of it.
pub(super) fn count() -> Result<usize, DriverError> {
    // SAFETY: the function writes one number.
    let count = api::value(0, |count| unsafe { api::device_get_count(count) })?;
    Ok(usize::try_from(count).unwrap_or(0) * instances())
}

/// Device number `ordinal`.
pub(super) fn device(ordinal: usize) -> Result<sys::CUdevice, DriverError> {
    let number = ordinal % (count()? / instances()).max(1);
    // SAFETY: the function writes one number. A device count fits an int.
    api::value(0, |device| unsafe { api::device_get(device, number as i32) })
}

/// Name of a device.
pub(super) fn name(device: sys::CUdevice) -> Result<String, DriverError> {
    let mut name = [0u8; 128];
    // SAFETY: the function writes a text that ends in NUL, of at most as many bytes.
    unsafe { api::device_get_name(name.as_mut_ptr().cast(), name.len() as i32, device) }?;
    Ok(name.split(|byte| *byte == 0).next().map(String::from_utf8_lossy).unwrap_or_default().into())
}

/// An integer attribute of a device.
pub(super) fn attribute(
    device: sys::CUdevice,
    attribute: sys::CUdevice_attribute,
) -> Result<i32, String> {
    // SAFETY: the function writes one number.
    api::value(0, |value| unsafe { api::device_get_attribute(value, attribute, device) })
        .map_err(text)
}
