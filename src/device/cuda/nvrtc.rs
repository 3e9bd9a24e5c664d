//! NVRTC, NVIDIA's compiler library, loaded on first use.
//!
//! `cudarc` panics if the library or one of its functions is missing, and assumes that every result
//! code is known. Here the functions are looked up once, and results remain numbers.

use super::target::CompileTarget;
use crate::memory;
use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};
use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;

/// A result code; 0 is success.
type NvrtcStatus = c_int;
type SizeOf = unsafe extern "C" fn(nvrtcProgram, *mut usize) -> NvrtcStatus;
type CopyOut = unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> NvrtcStatus;
type Create = unsafe extern "C" fn(
    *mut nvrtcProgram,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> NvrtcStatus;

/// Most bytes of code or log, and most architectures, that a library may report: many times what
/// any has.
const MAX_BYTES: usize = 1 << 28;
const MAX_ARCHITECTURES: c_int = 1 << 12;

const SUCCESS: NvrtcStatus = nvrtcResult::NVRTC_SUCCESS as NvrtcStatus;

/// The reason why NVRTC is not available.
const MISSING: &str = "NVRTC was not found; put the folder of libnvrtc.so, which comes with CUDA \
                       and with the Python package \
                       nvidia-cuda-nvrtc, on LD_LIBRARY_PATH";

/// The functions of the library.
pub(super) struct Nvrtc {
    version: (c_int, c_int),
    architectures: Vec<u32>,
    create: Create,
    compile: unsafe extern "C" fn(nvrtcProgram, c_int, *const *const c_char) -> NvrtcStatus,
    destroy: unsafe extern "C" fn(*mut nvrtcProgram) -> NvrtcStatus,
    log: (SizeOf, CopyOut),
    cubin: (SizeOf, CopyOut),
    ptx: (SizeOf, CopyOut),
}

/// The reason why a compilation failed.
#[derive(Debug)]
pub(super) enum NvrtcFailure {
    /// The source is wrong; the log of the compiler.
    Source(String),
    /// The compiler cannot compile it; the reason in one line.
    Compiler(String),
}

/// Returns the library, or in one line the reason why it is not available.
pub(super) fn library() -> Result<&'static Nvrtc, &'static str> {
    static LIBRARY: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
    LIBRARY.get_or_init(Nvrtc::load).as_ref().map_err(String::as_str)
}

/// A function of the library, which must have been found.
fn function<F: Copy>(name: &str) -> Result<F, String> {
    // SAFETY: only called after the library has been found, so that this does not panic; the
    // callers give `F` as NVRTC's header declares the function.
    unsafe { sys::culib().get::<F>(name.as_bytes()) }
        .map(|symbol| *symbol)
        .map_err(|_| format!("NVRTC is too old: it has no `{name}`"))
}

impl Nvrtc {
    fn load() -> Result<Self, String> {
        // SAFETY: loading NVRTC runs its initialisers, which is the purpose of loading it.
        if !unsafe { sys::is_culib_present() } {
            return Err(MISSING.to_owned());
        }
        let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> NvrtcStatus =
            function("nvrtcVersion")?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the function writes two numbers.
        if unsafe { version(&mut major, &mut minor) } != SUCCESS {
            return Err("NVRTC does not state its version".to_owned());
        }
        Ok(Self {
            version: (major, minor),
            architectures: architectures().unwrap_or_default(),
            create: function("nvrtcCreateProgram")?,
            compile: function("nvrtcCompileProgram")?,
            destroy: function("nvrtcDestroyProgram")?,
            log: (function("nvrtcGetProgramLogSize")?, function("nvrtcGetProgramLog")?),
            cubin: (function("nvrtcGetCUBINSize")?, function("nvrtcGetCUBIN")?),
            ptx: (function("nvrtcGetPTXSize")?, function("nvrtcGetPTX")?),
        })
    }

    /// `NVRTC 13.0`.
    pub(super) fn name(&self) -> String {
        format!("NVRTC {}.{}", self.version.0, self.version.1)
    }

    /// Supported architectures; empty if the library is too old to report them.
    pub(super) fn architectures(&self) -> &[u32] {
        &self.architectures
    }

    /// Compiles `source`, which messages call `name`. Returns the machine code, or PTX ending with
    /// a zero byte, and the log of the compiler.
    pub(super) fn compile(
        &self,
        name: &str,
        source: &str,
        target: CompileTarget,
        options: &[String],
    ) -> Result<(Vec<u8>, String), NvrtcFailure> {
        let program = NvrtcProgram::new(self, name, source)?;
        let target_option = target.option();
        let options: Vec<CString> =
            options.iter().chain([&target_option]).map(|option| text(option)).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program exists, and there are as many strings as the count says.
        let status =
            unsafe { (self.compile)(program.handle, pointers.len() as c_int, pointers.as_ptr()) };
        let log = program.fetch(self.log).map(|bytes| said(&bytes)).unwrap_or_default();
        if status == nvrtcResult::NVRTC_ERROR_COMPILATION as NvrtcStatus {
            return Err(NvrtcFailure::Source(log));
        }
        if status != SUCCESS {
            let reason =
                log.lines().next().map_or_else(|| format!("error {status}"), str::to_owned);
            return Err(NvrtcFailure::Compiler(format!(
                "{} gives up on {target}: {reason}",
                self.name()
            )));
        }
        let functions = match target {
            CompileTarget::Cubin(_) => self.cubin,
            CompileTarget::Ptx(_) => self.ptx,
        };
        let code = program.fetch(functions).filter(|code| target.is_code(code));
        let nothing =
            || NvrtcFailure::Compiler(format!("{} gives no valid code for {target}", self.name()));
        Ok((code.ok_or_else(nothing)?, log))
    }
}

/// Architectures that the library supports, if it reports them.
fn architectures() -> Result<Vec<u32>, String> {
    let count: unsafe extern "C" fn(*mut c_int) -> NvrtcStatus =
        function("nvrtcGetNumSupportedArchs")?;
    let list: unsafe extern "C" fn(*mut c_int) -> NvrtcStatus = function("nvrtcGetSupportedArchs")?;
    let mut len = 0;
    // SAFETY: the function writes one number.
    if unsafe { count(&mut len) } != SUCCESS || !(0..=MAX_ARCHITECTURES).contains(&len) {
        return Ok(Vec::new());
    }
    let mut found = vec![0; len as usize];
    // SAFETY: there is room for the reported count of numbers.
    let status = unsafe { list(found.as_mut_ptr()) };
    Ok(if status == SUCCESS {
        found.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect()
    } else {
        Vec::new()
    })
}

/// Converts a text for C.
fn text(text: &str) -> CString {
    CString::new(text).expect("neither sources nor options contain zero bytes")
}

/// Converts a text from C.
fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_matches(['\0', '\n', ' ']).to_owned()
}

/// A program of the library, and the texts it refers to.
struct NvrtcProgram<'a> {
    nvrtc: &'a Nvrtc,
    handle: nvrtcProgram,
    _texts: [CString; 2],
}

impl<'a> NvrtcProgram<'a> {
    fn new(nvrtc: &'a Nvrtc, name: &str, source: &str) -> Result<Self, NvrtcFailure> {
        let texts = [text(source), text(name)];
        let mut handle = ptr::null_mut();
        // SAFETY: a place for the handle, two strings that live as long as the program, no headers.
        let status = unsafe {
            (nvrtc.create)(
                &mut handle,
                texts[0].as_ptr(),
                texts[1].as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        if status == SUCCESS {
            return Ok(Self { nvrtc, handle, _texts: texts });
        }
        Err(NvrtcFailure::Compiler(format!("{} fails with error {status}", nvrtc.name())))
    }

    /// Fetches the bytes of a pair of functions, one for the size and one for the content.
    fn fetch(&self, (size_of, copy_out): (SizeOf, CopyOut)) -> Option<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program exists, and the function writes one number.
        if unsafe { size_of(self.handle, &mut size) } != SUCCESS || size > MAX_BYTES {
            return None;
        }
        let mut bytes = memory::filled(size, 0u8).ok()?;
        if bytes.is_empty() {
            return Some(bytes);
        }
        // SAFETY: there is room for the reported number of bytes.
        let status = unsafe { copy_out(self.handle, bytes.as_mut_ptr().cast()) };
        (status == SUCCESS).then_some(bytes)
    }
}

impl Drop for NvrtcProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: created by this library and not used again.
        unsafe { (self.nvrtc.destroy)(&mut self.handle) };
    }
}
