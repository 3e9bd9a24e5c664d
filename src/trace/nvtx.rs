//! Ranges for NVIDIA's profilers, by the NVTX library that the program finds when it runs. Without one, or when no profiler looks, nothing
//! is done.

use super::Describe;
use libloading::Library;
use std::ffi::{CString, c_char, c_int};
use std::marker::PhantomData;
use std::sync::OnceLock;

/// Where NVTX is: of CUDA 12 and 13, and of those before.
const LIBRARIES: [&str; 4] =
    ["libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1", "nvToolsExt64_1.dll"];

/// The functions that are called, as `nvToolsExt.h` declares them. Both give the depth of the range, or less than 0 when no profiler looks.
struct Functions {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
}

/// A range of this thread, which ends when it is dropped.
pub(super) struct Range {
    functions: &'static Functions,
    /// Ranges are pushed and popped by one thread.
    _thread: PhantomData<*const ()>,
}

impl Range {
    /// Begins a range if a profiler looks.
    #[inline]
    pub(super) fn begin(name: &str, describe: Describe<'_>) -> Option<Self> {
        functions().map(|functions| Self::push(functions, name, describe))
    }

    #[cold]
    fn push(functions: &'static Functions, name: &str, describe: Describe<'_>) -> Self {
        let mut text = format!("sparseop::{name}");
        // Whatever cannot be told is left out.
        let _ = describe(&mut text);
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: a string that ends in NUL, and that the library copies.
        unsafe { (functions.push)(text.as_ptr()) };
        Self { functions, _thread: PhantomData }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range was pushed by this thread, and those within it are popped.
        unsafe { (self.functions.pop)() };
    }
}

/// The library's functions, if a profiler looks: profilers are there when a program starts, or never.
#[inline]
fn functions() -> Option<&'static Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    FUNCTIONS.get_or_init(|| LIBRARIES.iter().find_map(|name| load(name))).as_ref()
}

fn load(name: &str) -> Option<Functions> {
    // SAFETY: initialisers of a library of that name do nothing but look for a profiler.
    let library = unsafe { Library::new(name) }.ok()?;
    // SAFETY: the types are those of the declarations in `nvToolsExt.h`, which have not changed since its first version.
    let functions = unsafe {
        Functions {
            push: *library.get(b"nvtxRangePushA\0").ok()?,
            pop: *library.get(b"nvtxRangePop\0").ok()?,
        }
    };
    // It stays loaded as long as the program runs.
    std::mem::forget(library);
    // SAFETY: as in `Range`; the pair leaves the thread's ranges as they were.
    let looking = unsafe {
        let depth = (functions.push)(c"sparseop".as_ptr());
        (functions.pop)();
        depth >= 0
    };
    looking.then_some(functions)
}
