//! Ranges for NVIDIA's profilers, by the NVTX library that is found at run time. Nothing is done
//! without the library or without an attached profiler.

use super::Describe;
use libloading::Library;
use std::ffi::{CString, c_char, c_int};
use std::marker::PhantomData;
use std::sync::OnceLock;

/// Names of the NVTX library: of CUDA 12 and 13, and of earlier versions.
const LIBRARIES: [&str; 4] =
    ["libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1", "nvToolsExt64_1.dll"];

/// Functions of the library, as declared in `nvToolsExt.h`. Both return the depth of the range, or
/// a negative number if no profiler is attached.
struct Functions {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
}

/// A range of this thread, which ends on drop.
pub(super) struct Range {
    functions: &'static Functions,
    /// Neither `Send` nor `Sync`: one thread pushes and pops a range.
    _thread: PhantomData<*const ()>,
}

impl Range {
    /// Begins a range if a profiler is attached.
    #[inline]
    pub(super) fn begin(name: &str, describe: Describe<'_>) -> Option<Self> {
        functions().map(|functions| Self::push(functions, name, describe))
    }

    #[cold]
    fn push(functions: &'static Functions, name: &str, describe: Describe<'_>) -> Self {
        let mut text = format!("sparseop::{name}");
        // Details that cannot be written are omitted.
        let _ = describe(&mut text);
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: the string ends in NUL, and the library copies it.
        unsafe { (functions.push)(text.as_ptr()) };
        Self { functions, _thread: PhantomData }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range was pushed by this thread, and its inner ranges have been popped.
        unsafe { (self.functions.pop)() };
    }
}

/// Returns the functions of the library if a profiler is attached. Profilers attach when a program
/// starts, or never.
#[inline]
fn functions() -> Option<&'static Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    FUNCTIONS.get_or_init(|| LIBRARIES.iter().find_map(|name| load(name))).as_ref()
}

fn load(name: &str) -> Option<Functions> {
    // SAFETY: the initialisers of a library of this name only look for a profiler.
    let library = unsafe { Library::new(name) }.ok()?;
    // SAFETY: the types are those of the declarations in `nvToolsExt.h`, which have not changed
    // since its first version.
    let functions = unsafe {
        Functions {
            push: *library.get(b"nvtxRangePushA\0").ok()?,
            pop: *library.get(b"nvtxRangePop\0").ok()?,
        }
    };
    // The library stays loaded as long as the process runs.
    std::mem::forget(library);
    // SAFETY: as in `Range`; the pair of calls leaves the ranges of the thread unchanged.
    let looking = unsafe {
        let depth = (functions.push)(c"sparseop".as_ptr());
        (functions.pop)();
        depth >= 0
    };
    looking.then_some(functions)
}
