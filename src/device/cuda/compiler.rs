//! Machine code for the kernels: built in, from the cache, compiled by NVRTC, or left to the driver, in this order.

use super::cache::Cache;
use super::embedded::{self, Embedded, OPTIONS};
use super::nvrtc::{self, Failure, Nvrtc};
use super::target::Target;
use crate::Error;
use crate::device::Module;
use crate::device::kernel_log::{KernelEvent, KernelOrigin, record};
use std::borrow::Cow;
use xxhash_rust::xxh3::xxh3_128;

/// What tells these kernels, and the options they are compiled with, from all others: measurements of them go under this name.
pub(crate) const KERNEL_HASH: &str = embedded::HASH;

/// NVRTC takes functions without a mark for functions of the host, and refuses them; among them lambdas that nvcc knows to be the
/// GPU's.
const DEVICE_ONLY: &str = "--device-as-default-execution-space";

/// What the assembler is told when its account of registers and memory is wanted.
#[cfg(test)]
const ACCOUNT: &str = "--ptxas-options=-v";

/// Machine code, or assembly for the driver to compile; what `cuModuleLoadData` takes.
#[derive(Debug)]
pub(super) struct Image(Cow<'static, [u8]>);

impl Image {
    /// The code; assembly ends with a zero byte.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// An image and where it came from.
type Story = (Image, KernelEvent);

/// The code of a module for an architecture, given as major and minor number.
///
/// # Errors
///
/// [`Error::KernelCompile`] when there is no way to it.
pub(super) fn image(arch: (u32, u32), module: Module) -> Result<Image, Error> {
    let embedded = find(arch, module)?;
    let module = embedded.name;
    match embedded.cubin(number(arch)) {
        Some(code) => Ok(told(from(arch, module, code, KernelOrigin::Embedded, String::new()))),
        None => compiled(arch, embedded, Cache::of_user().as_ref()).map(told),
    }
}

/// As [`image`], but without what is built in: for a driver that refuses it because it is older than the compiler of the build.
pub(super) fn image_without_embedded(arch: (u32, u32), module: Module) -> Result<Image, Error> {
    compiled(arch, find(arch, module)?, Cache::of_user().as_ref()).map(told)
}

/// The names of all modules.
#[cfg(test)]
pub(crate) fn modules() -> impl Iterator<Item = &'static str> {
    embedded::MODULES.iter().map(|module| module.name)
}

/// The name of the compiler of this machine, or why there is none, in one line.
#[cfg(test)]
pub(crate) fn compiler() -> Result<String, &'static str> {
    nvrtc::library().map(Nvrtc::name)
}

/// What the assembler says of the registers and the memory that the kernels of a module take on an architecture. Compiles it anew.
///
/// # Errors
///
/// [`Error::KernelCompile`].
#[cfg(test)]
pub(crate) fn account(arch: (u32, u32), module: &'static str) -> Result<String, Error> {
    let unknown = || failed(arch, module, "this build has no such kernels".to_owned(), String::new());
    let embedded = embedded::module(module).ok_or_else(unknown)?;
    let nvrtc = nvrtc::library().map_err(|reason| failed(arch, module, reason.to_owned(), String::new()))?;
    let options = [&options()[..], &[ACCOUNT]].concat();
    let compiled = nvrtc.compile(&file(module), embedded.source, Target::Cubin(number(arch)), &options);
    compiled.map(|(_, log)| log).map_err(|failure| match failure {
        Failure::Source(log) => failed(arch, module, first_error(&log), log),
        Failure::Compiler(reason) => failed(arch, module, reason, String::new()),
    })
}

/// The code as the cache or NVRTC has it; where neither can help, the assembly that is built in.
fn compiled(arch: (u32, u32), embedded: &Embedded, cache: Option<&Cache>) -> Result<Story, Error> {
    let module = embedded.name;
    let reason = match with_nvrtc(arch, embedded, cache) {
        Ok(story) => return Ok(story),
        Err(Failure::Source(log)) => return Err(failed(arch, module, first_error(&log), log)),
        Err(Failure::Compiler(reason)) => reason,
    };
    match embedded.ptx(number(arch)) {
        Some(code) => Ok(from(arch, module, code, KernelOrigin::Ptx, reason)),
        None => Err(failed(arch, module, reason, String::new())),
    }
}

/// The code as the cache has it or NVRTC makes it.
fn with_nvrtc(arch: (u32, u32), embedded: &Embedded, cache: Option<&Cache>) -> Result<Story, Failure> {
    let module = embedded.name;
    let nvrtc = nvrtc::library().map_err(|reason| Failure::Compiler(reason.to_owned()))?;
    let target = Target::best(number(arch), nvrtc.architectures())
        .ok_or_else(|| Failure::Compiler(unknown(nvrtc, number(arch))))?;
    let entry = entry(embedded, target, &nvrtc.name());
    let found = cache.and_then(|cache| Some((cache.load(&entry)?, cache.path(&entry))));
    if let Some((code, path)) = found {
        return Ok(from(arch, module, code, KernelOrigin::Cached, path.display().to_string()));
    }
    let (code, _) = nvrtc.compile(&file(module), embedded.source, target, &options())?;
    let kept = match cache.map(|cache| cache.store(&entry, &code)) {
        Some(Ok(())) => String::new(),
        Some(Err(error)) => format!("; not cached: {error}"),
        None => "; not cached".to_owned(),
    };
    let detail = format!("{} for {target}{kept}", nvrtc.name());
    Ok(from(arch, module, code, KernelOrigin::Compiled, detail))
}

/// What NVRTC is told, whatever it compiles for.
fn options() -> Vec<&'static str> {
    [OPTIONS, &[DEVICE_ONLY]].concat()
}

/// The name of an entry of the cache: everything on which the code depends.
fn entry(embedded: &Embedded, target: Target, compiler: &str) -> String {
    let key = format!("{} {} {target} {compiler}", embedded.hash, options().join(" "));
    format!("{}-{target}-{:032x}", embedded.name, xxh3_128(key.as_bytes()))
}

/// The image with its story.
fn from(
    architecture: (u32, u32),
    kernel: &'static str,
    code: impl Into<Cow<'static, [u8]>>,
    origin: KernelOrigin,
    detail: String,
) -> Story {
    (Image(code.into()), KernelEvent { kernel, architecture, origin, detail })
}

/// The image, its story having gone to the log.
fn told((image, event): Story) -> Image {
    record(event);
    image
}

fn find(arch: (u32, u32), module: Module) -> Result<&'static Embedded, Error> {
    embedded::module(&module.to_string())
        .ok_or_else(|| failed(arch, module.file, "this build has no such kernels".to_owned(), String::new()))
}

fn failed(arch: (u32, u32), kernel: &'static str, message: String, log: String) -> Error {
    Error::KernelCompile { kernel, architecture: format!("sm_{}", number(arch)), message, log }
}

/// Why a compiler cannot help: every architecture it knows is newer.
fn unknown(nvrtc: &Nvrtc, arch: u32) -> String {
    let oldest = nvrtc.architectures().iter().min().copied().unwrap_or_default();
    format!("{} does not compile for sm_{arch}, only from sm_{oldest} on", nvrtc.name())
}

/// The first line of a compiler's messages that is an error.
fn first_error(log: &str) -> String {
    log.lines().find(|line| line.contains("error")).unwrap_or("the compiler does not say why").to_owned()
}

/// How messages call the source.
fn file(module: &str) -> String {
    format!("kernels/{module}.cu")
}

/// An architecture as one number: 90 for 9.0.
fn number((major, minor): (u32, u32)) -> u32 {
    major * 10 + minor
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELF: &[u8] = b"\x7fELF";

    fn module(source: &'static str, hash: &'static str) -> Embedded {
        Embedded::of_source("test", source, hash)
    }

    #[test]
    fn an_entry_depends_on_everything() {
        let base = || module("", "1");
        let names = [
            entry(&base(), Target::Cubin(90), "NVRTC 13.0"),
            entry(&base(), Target::Cubin(90), "NVRTC 12.4"),
            entry(&base(), Target::Cubin(80), "NVRTC 13.0"),
            entry(&base(), Target::Ptx(90), "NVRTC 13.0"),
            entry(&module("", "2"), Target::Cubin(90), "NVRTC 13.0"),
        ];
        let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        assert!(names[0].starts_with("test-sm_90-"));
    }

    #[test]
    fn unknown_kernels_are_an_error_of_one_line() {
        let message = image((9, 0), "nothing".into()).unwrap_err().to_string();
        assert_eq!(
            message,
            "kernels/nothing.cu cannot be compiled for sm_90: this build has no such kernels"
        );
    }

    /// Runs where NVRTC is found; `tests/kernels.rs` is what insists on it.
    #[test]
    fn compiled_once_then_cached_and_compiled_again_when_damaged() {
        if nvrtc::library().is_err() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::below(folder.path());
        let embedded = module("extern \"C\" __global__ void one(float* y) { *y = 1.0f; }", "a hash");
        let origin = || {
            let (image, event) = compiled((9, 0), &embedded, Some(&cache)).unwrap();
            assert!(image.bytes().starts_with(ELF));
            event.origin
        };
        assert_eq!(origin(), KernelOrigin::Compiled);
        assert_eq!(origin(), KernelOrigin::Cached);
        let nvrtc = nvrtc::library().unwrap();
        std::fs::write(cache.path(&entry(&embedded, Target::Cubin(90), &nvrtc.name())), "damaged").unwrap();
        assert_eq!(origin(), KernelOrigin::Compiled);
        assert_eq!(origin(), KernelOrigin::Cached);
        assert_eq!(compiled((9, 0), &embedded, None).unwrap().1.origin, KernelOrigin::Compiled);
        // Older than anything that NVRTC 12 and later know.
        let message = compiled((3, 0), &embedded, None).unwrap_err().to_string();
        assert!(message.contains("NVRTC") && !message.contains('\n'), "{message}");
    }

    #[test]
    fn a_wrong_source_is_told_in_one_line_with_the_rest_beside_it() {
        if nvrtc::library().is_err() {
            return;
        }
        let error = compiled((9, 0), &module("wrong\nfloat also wrong;", "a hash"), None).unwrap_err();
        let Error::KernelCompile { message, log, .. } = &error else { panic!("{error}") };
        assert!(message.starts_with("kernels/test.cu(") && !message.contains('\n'), "{message}");
        assert!(log.lines().count() > 2, "{log}");
    }

    #[test]
    fn without_a_compiler_the_driver_gets_assembly() {
        let embedded = Embedded { ptx: Some((20, b".version\0")), ..module("", "none") };
        // Architecture 2.0 is one that every NVRTC there is has forgotten; a machine without NVRTC takes the same way.
        let (image, event) = compiled((2, 0), &embedded, None).unwrap();
        assert_eq!((event.origin, image.bytes()), (KernelOrigin::Ptx, &b".version\0"[..]));
    }
}
