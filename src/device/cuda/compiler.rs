//! Machine code for the kernels: from the cache, from the archives of the build, or compiled by
//! NVRTC, in this order.

use super::cache::Cache;
use super::embedded::{self, Archived, Embedded, OPTIONS};
use super::nvrtc::{self, Nvrtc, NvrtcFailure};
use super::target::CompileTarget;
use crate::Error;
use crate::device::Module;
use crate::device::kernel_log::{KernelEvent, KernelOrigin, SearchClock, record};
use crate::parallel;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128;

/// Identifies these kernels and their compiler options: measurements are stored under this name.
pub(crate) const KERNEL_HASH: &str = embedded::HASH;

/// Option for one kernel of a module, see `KERNEL_OF` in `kernels/common.cuh`.
const ONE_KERNEL: &str = "-DONE_KERNEL";

/// Assembler option for a report of registers and memory.
#[cfg(test)]
const ACCOUNT: &str = "--ptxas-options=-v";

/// Machine code, or PTX to be compiled by the driver: the input of `cuModuleLoadData`.
#[derive(Debug)]
pub(super) struct Image {
    code: Vec<u8>,
    /// The only kernel in it; `None` if it is a whole module.
    kernel: Option<String>,
    /// The cache with the code and the name of its entry, if any.
    entry: Option<(Cache, String)>,
}

impl Image {
    /// Removes code that the driver refuses from the cache, if it is there.
    pub(super) fn discard(&self) {
        if let Some((cache, entry)) = &self.entry {
            cache.remove(entry);
        }
    }

    /// The code. PTX ends with a zero byte.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.code
    }

    /// The only kernel in it; `None` if it is a whole module.
    pub(super) fn kernel(&self) -> Option<&str> {
        self.kernel.as_deref()
    }
}

/// An image and its origin.
type LoggedImage = (Image, KernelEvent);

/// Work that remains before the driver can load a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// Its code is in the cache, or cannot be had.
    None,
    /// Its code is unpacked, in up to 0.1 s.
    Unpacking,
    /// NVRTC compiles it, in up to some seconds.
    Compilation,
}

/// Returns code with a kernel of a module for an architecture, given as major and minor number.
///
/// # Errors
///
/// [`Error::KernelCompile`] if none can be obtained.
pub(super) fn image(arch: (u32, u32), module: Module, kernel: &str) -> Result<Image, Error> {
    let (start, embedded) = (SearchClock::start(), find(arch, module)?);
    let cache = Cache::of_user();
    let image = match unpacked(arch, embedded, cache.as_ref()) {
        Some(image) => image,
        None => compiled(arch, embedded, Some(kernel), cache.as_ref())?,
    };
    Ok(log(image, start))
}

/// As [`image`], but without embedded code, from now on: for a driver that rejects it because it is
/// older than the compiler of that code.
pub(super) fn image_without_embedded(
    arch: (u32, u32),
    module: Module,
    kernel: &str,
) -> Result<Image, Error> {
    embedded::leave_out();
    image(arch, module, kernel)
}

/// True if the kernels of a module for an architecture are compiled one at a time.
pub(super) fn are_compiled_alone(arch: (u32, u32), module: Module) -> bool {
    let embedded = embedded::module(&module.to_string());
    embedded.is_some_and(|module| module.selectable && archived(arch, module).is_none())
}

/// Work that remains before the driver can load a kernel of a module.
pub(super) fn effort(arch: (u32, u32), module: Module, kernel: &str) -> Effort {
    let Some(embedded) = embedded::module(&module.to_string()) else { return Effort::None };
    let cache = Cache::of_user();
    let is_cached = |entry: &str| cache.as_ref().is_some_and(|cache| cache.path(entry).exists());
    // NVRTC takes long to load, and is not needed for what is embedded.
    if let Some(archived) = archived(arch, embedded) {
        return if is_cached(&archived.entry()) { Effort::None } else { Effort::Unpacking };
    }
    let Ok(nvrtc) = nvrtc::library() else { return Effort::None };
    let Some(target) = CompileTarget::best(number(arch), nvrtc.architectures()) else {
        return Effort::None;
    };
    let kernel = Some(kernel).filter(|_| embedded.selectable);
    let name = |kernel: &Option<&str>| entry(embedded, *kernel, target, &nvrtc.name());
    let is_there = [None, kernel].iter().any(|kernel| is_cached(&name(kernel)));
    if is_there { Effort::None } else { Effort::Compilation }
}

/// Compiles all modules that the build has not compiled for an architecture, and keeps them in the
/// cache. Calls `done` with the number of finished modules and of all. Returns the number of
/// modules that the cache did not have.
///
/// # Errors
///
/// [`Error::KernelCompile`].
pub(super) fn compile_all(
    arch: (u32, u32),
    done: impl Fn(usize, usize) + Sync,
) -> Result<usize, Error> {
    let missing = |module: &&Embedded| archived(arch, module).is_none();
    let modules: Vec<_> = embedded::MODULES.iter().filter(missing).collect();
    let cache = Cache::of_user();
    let finished = AtomicUsize::new(0);
    let compile = |i: usize| {
        let (start, module) = (SearchClock::start(), modules[i]);
        let (image, event) = compiled(arch, module, None, cache.as_ref())?;
        done(finished.fetch_add(1, Relaxed) + 1, modules.len());
        let origin = event.origin;
        log((image, event), start);
        Ok(usize::from(origin == KernelOrigin::Compiled))
    };
    parallel::map(modules.len(), 1, compile).into_iter().sum()
}

/// Names of all modules.
#[cfg(test)]
pub(crate) fn modules() -> impl Iterator<Item = &'static str> {
    embedded::MODULES.iter().map(|module| module.name)
}

/// Environment variable: 1 if tests require NVRTC.
#[cfg(test)]
const REQUIRED: &str = "SPARSEOP_REQUIRE_NVRTC";

/// True if NVRTC is available; prints its name, or a message if not.
#[cfg(test)]
pub(crate) fn has_nvrtc() -> bool {
    match nvrtc::library().map(Nvrtc::name) {
        Ok(name) => println!("compiling with {name}"),
        Err(reason) if std::env::var(REQUIRED).is_ok_and(|value| value == "1") => {
            panic!("{REQUIRED}=1: {reason}")
        }
        Err(reason) => println!("skipped: {reason}"),
    }
    nvrtc::library().is_ok()
}

/// Modules that have no machine code in the package.
#[cfg(test)]
pub(crate) const RARE: &[&str] = embedded::RARE;

/// Kernel file of a module, without the extension, and the hash of its source.
#[cfg(test)]
pub(crate) fn file_and_hash(module: &str) -> (&'static str, &'static str) {
    let embedded = embedded::module(module).unwrap();
    (embedded.file, embedded.hash)
}

#[cfg(test)]
pub(crate) fn is_selectable(module: &str) -> bool {
    embedded::module(module).unwrap().selectable
}

/// The machine code of a module in the package for an architecture.
#[cfg(test)]
pub(crate) fn packaged(arch: (u32, u32), module: &str) -> Option<Vec<u8>> {
    embedded::module(module)?.archived(number(arch))?.unpack()
}

/// The machine code of a module, and the assembler's report of the registers and the memory that
/// its kernels use. Compiles the module anew.
///
/// # Errors
///
/// [`Error::KernelCompile`].
#[cfg(test)]
pub(crate) fn compiled_anew(
    arch: (u32, u32),
    module: &'static str,
) -> Result<(Vec<u8>, String), Error> {
    let unknown =
        || failed(arch, module, "this build has no such kernels".to_owned(), String::new());
    let embedded = embedded::module(module).ok_or_else(unknown)?;
    let nvrtc = nvrtc::library()
        .map_err(|reason| failed(arch, module, reason.to_owned(), String::new()))?;
    let mut options = options(None);
    options.push(ACCOUNT.to_owned());
    let compiled = nvrtc.compile(
        &file(embedded.file),
        embedded.source,
        CompileTarget::Cubin(number(arch)),
        &options,
    );
    compiled.map_err(|failure| match failure {
        NvrtcFailure::Source(log) => failed(arch, module, first_error(&log), log),
        NvrtcFailure::Compiler(reason) => failed(arch, module, reason, String::new()),
    })
}

/// Machine code of a module in the build, if it runs on an architecture. A changed source has none.
fn archived(arch: (u32, u32), embedded: &Embedded) -> Option<Archived> {
    #[cfg(test)]
    if mutated(embedded.source).is_some() {
        return None;
    }
    embedded.archived(number(arch))
}

/// Code of the build for an architecture, if it has any.
fn unpacked(arch: (u32, u32), embedded: &Embedded, cache: Option<&Cache>) -> Option<LoggedImage> {
    let archived = archived(arch, embedded)?;
    let (origin, code) = archived.load(cache)?;
    let entry = cache.map(|cache| (cache.clone(), archived.entry()));
    let cached = entry.as_ref().filter(|_| origin == KernelOrigin::Cached);
    let detail = cached.map(|(cache, entry)| cache.path(entry).display().to_string());
    let (image, event) = whole(arch, embedded.name, code, origin, detail.unwrap_or_default());
    Some((Image { entry, ..image }, event))
}

/// Code with `kernel`, or with all kernels, from the cache or NVRTC.
fn compiled(
    arch: (u32, u32),
    embedded: &Embedded,
    kernel: Option<&str>,
    cache: Option<&Cache>,
) -> Result<LoggedImage, Error> {
    let failed = |message, log| failed(arch, embedded.name, message, log);
    with_nvrtc(arch, embedded, kernel, cache).map_err(|failure| match failure {
        NvrtcFailure::Source(log) => failed(first_error(&log), log),
        NvrtcFailure::Compiler(reason) => failed(reason, String::new()),
    })
}

/// Code from the cache, or compiled by NVRTC: the whole module if the cache has it, else only the
/// kernel if the module is selectable.
fn with_nvrtc(
    arch: (u32, u32),
    embedded: &Embedded,
    kernel: Option<&str>,
    cache: Option<&Cache>,
) -> Result<LoggedImage, NvrtcFailure> {
    let module = embedded.name;
    let nvrtc = nvrtc::library().map_err(|reason| NvrtcFailure::Compiler(reason.to_owned()))?;
    let target = CompileTarget::best(number(arch), nvrtc.architectures())
        .ok_or_else(|| NvrtcFailure::Compiler(unknown(nvrtc, number(arch))))?;
    let kernel = kernel.filter(|_| embedded.selectable);
    let image = |code, kernel: Option<&str>, entry, origin, detail| {
        let (image, event) = whole(arch, kernel.unwrap_or(module), code, origin, detail);
        (Image { kernel: kernel.map(str::to_owned), entry, ..image }, event)
    };
    #[cfg(test)]
    if let Some(source) = mutated(embedded.source) {
        let (code, _) = nvrtc.compile(&file(embedded.file), &source, target, &options(kernel))?;
        return Ok(image(code, kernel, None, KernelOrigin::Compiled, "changed".to_owned()));
    }
    let of = |kernel| entry(embedded, kernel, target, &nvrtc.name());
    for kernel in std::iter::once(None).chain(kernel.map(Some)) {
        let entry = of(kernel);
        let found = cache.and_then(|cache| Some((cache.load(&entry)?, cache)));
        if let Some((code, cache)) = found {
            let detail = cache.path(&entry).display().to_string();
            let entry = Some((cache.clone(), entry));
            return Ok(image(code, kernel, entry, KernelOrigin::Cached, detail));
        }
    }
    let entry = of(kernel);
    let (code, _) =
        nvrtc.compile(&file(embedded.file), embedded.source, target, &options(kernel))?;
    let kept = match cache.map(|cache| cache.store(&entry, &code)) {
        Some(Ok(())) => String::new(),
        Some(Err(error)) => format!("; not cached: {error}"),
        None => "; not cached".to_owned(),
    };
    let detail = format!("{} for {target}{kept}", nvrtc.name());
    let entry = cache.map(|cache| (cache.clone(), entry));
    Ok(image(code, kernel, entry, KernelOrigin::Compiled, detail))
}

/// A source with the wrong change that `scripts/mutants` asks for, if it concerns this one: a text
/// and its replacement in environment variables.
#[cfg(test)]
fn mutated(source: &str) -> Option<String> {
    let variable = |name| std::env::var(name).ok();
    let (from, to) = (variable("SPARSEOP_MUTANT_FROM")?, variable("SPARSEOP_MUTANT_TO")?);
    source.contains(&from).then(|| source.replacen(&from, &to, 1))
}

/// NVRTC options, for every target: those of one kernel, or of a whole module.
fn options(kernel: Option<&str>) -> Vec<String> {
    let common = OPTIONS.iter().map(|option| (*option).to_owned());
    let one = |kernel| [ONE_KERNEL.to_owned(), format!("-DSELECTED_{kernel}=~,1")];
    common.chain(kernel.map(one).into_iter().flatten()).collect()
}

/// Name of the cache entry of a kernel or of a module that NVRTC compiles. It depends on everything
/// that the code depends on.
fn entry(
    embedded: &Embedded,
    kernel: Option<&str>,
    target: CompileTarget,
    compiler: &str,
) -> String {
    let key = format!("{} {} {target} {compiler}", embedded.hash, options(kernel).join(" "));
    let name = kernel.unwrap_or(embedded.name);
    format!("{name}-{target}-{:032x}", xxh3_128(key.as_bytes()))
}

/// The image of a whole module with its origin.
fn whole(
    architecture: (u32, u32),
    module: &str,
    code: Vec<u8>,
    origin: KernelOrigin,
    detail: String,
) -> LoggedImage {
    let event = KernelEvent {
        kernel: module.to_owned(),
        architecture,
        origin,
        detail,
        time: Duration::ZERO,
    };
    (Image { code, kernel: None, entry: None }, event)
}

/// Logs the origin of an image, whose search began at `start`, and returns the image.
fn log((image, event): LoggedImage, start: SearchClock) -> Image {
    record(KernelEvent { time: start.elapsed(), ..event });
    image
}

fn find(arch: (u32, u32), module: Module) -> Result<&'static Embedded, Error> {
    embedded::module(&module.to_string()).ok_or_else(|| {
        failed(arch, module.file, "this build has no such kernels".to_owned(), String::new())
    })
}

fn failed(arch: (u32, u32), kernel: &'static str, message: String, log: String) -> Error {
    Error::KernelCompile { kernel, architecture: format!("sm_{}", number(arch)), message, log }
}

/// Message for a compiler that knows only newer architectures.
fn unknown(nvrtc: &Nvrtc, arch: u32) -> String {
    let oldest = nvrtc.architectures().iter().min().copied().unwrap_or_default();
    format!("{} does not compile for sm_{arch}, only from sm_{oldest} on", nvrtc.name())
}

/// The first error line in a compiler log.
fn first_error(log: &str) -> String {
    log.lines()
        .find(|line| line.contains("error"))
        .unwrap_or("the compiler does not say why")
        .to_owned()
}

/// Name of the source in messages.
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
    use crate::device::cuda::cache::is_entry_name;

    fn module(source: &'static str, hash: &'static str) -> Embedded {
        Embedded::of_source("test", source, hash)
    }

    #[test]
    fn an_entry_depends_on_everything() {
        let base = || module("", "1");
        let names = [
            entry(&base(), None, CompileTarget::Cubin(90), "NVRTC 13.0"),
            entry(&base(), None, CompileTarget::Cubin(90), "NVRTC 12.4"),
            entry(&base(), None, CompileTarget::Cubin(80), "NVRTC 13.0"),
            entry(&base(), None, CompileTarget::Ptx(90), "NVRTC 13.0"),
            entry(&base(), Some("one"), CompileTarget::Cubin(90), "NVRTC 13.0"),
            entry(&base(), Some("two"), CompileTarget::Cubin(90), "NVRTC 13.0"),
            entry(&module("", "2"), None, CompileTarget::Cubin(90), "NVRTC 13.0"),
        ];
        let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        assert!(names[0].starts_with("test-sm_90-"));
        assert!(names.iter().all(|name| is_entry_name(name)), "{names:?}");
    }

    #[test]
    fn unknown_kernels_are_an_error_of_one_line() {
        let message = image((9, 0), "nothing".into(), "nothing").unwrap_err().to_string();
        assert_eq!(
            message,
            "kernels/nothing.cu cannot be compiled for sm_90: this build has no such kernels"
        );
    }

    /// Runs if NVRTC is found.
    #[test]
    fn compiled_once_then_cached_and_compiled_again_when_damaged() {
        if !has_nvrtc() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::below(folder.path());
        let embedded =
            module("extern \"C\" __global__ void one(float* y) { *y = 1.0f; }", "a hash");
        let code = || {
            let (image, event) = compiled((9, 0), &embedded, None, Some(&cache)).unwrap();
            assert!(CompileTarget::Cubin(90).is_code(image.bytes()));
            (event.origin, image)
        };
        let origin = || code().0;
        assert_eq!(origin(), KernelOrigin::Compiled);
        assert_eq!(origin(), KernelOrigin::Cached);
        let nvrtc = nvrtc::library().unwrap();
        std::fs::write(
            cache.path(&entry(&embedded, None, CompileTarget::Cubin(90), &nvrtc.name())),
            "damaged",
        )
        .unwrap();
        assert_eq!(origin(), KernelOrigin::Compiled);
        assert_eq!(origin(), KernelOrigin::Cached);
        // Code that the driver refuses is not loaded again.
        code().1.discard();
        assert_eq!(origin(), KernelOrigin::Compiled);
        code().1.discard();
        assert_eq!(
            compiled((9, 0), &embedded, None, None).unwrap().1.origin,
            KernelOrigin::Compiled
        );
        // Older than any architecture that NVRTC 12 and later support.
        let message = compiled((3, 0), &embedded, None, None).unwrap_err().to_string();
        assert!(message.contains("NVRTC") && !message.contains('\n'), "{message}");
    }

    #[test]
    fn a_kernel_is_compiled_alone_unless_its_module_is_cached() {
        if !has_nvrtc() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::below(folder.path());
        let tiles = embedded::module("tiles").unwrap();
        let kernels = ["tiles_carries_f32", "tiles_carries_f64"];
        let load = |kernel: Option<&str>| {
            let (image, event) = compiled((9, 0), tiles, kernel, Some(&cache)).unwrap();
            let contains = |name: &str| {
                let name = name.as_bytes();
                image.bytes().windows(name.len()).any(|bytes| bytes == name)
            };
            let contained = kernels.map(contains);
            (event.kernel, event.origin, image.kernel().map(str::to_owned), contained)
        };
        let alone = |origin| (kernels[0].into(), origin, Some(kernels[0].into()), [true, false]);
        assert_eq!(load(Some(kernels[0])), alone(KernelOrigin::Compiled));
        assert_eq!(load(Some(kernels[0])), alone(KernelOrigin::Cached));
        let whole = |origin| ("tiles".to_owned(), origin, None, [true, true]);
        assert_eq!(load(None), whole(KernelOrigin::Compiled));
        assert_eq!(load(Some(kernels[1])), whole(KernelOrigin::Cached));
    }

    #[test]
    fn a_compile_error_is_one_line_with_a_log() {
        if !has_nvrtc() {
            return;
        }
        let error = compiled((9, 0), &module("wrong\nfloat also wrong;", "a hash"), None, None)
            .unwrap_err();
        let Error::KernelCompile { message, log, .. } = &error else { panic!("{error}") };
        assert!(message.starts_with("kernels/test.cu(") && !message.contains('\n'), "{message}");
        assert!(log.lines().count() > 2, "{log}");
    }
}
