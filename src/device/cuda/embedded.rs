//! Kernels embedded by the build: sources, and archives with machine code.

use super::cache::Cache;
use super::target::{CompileTarget, runs_on};
use crate::device::kernel_log::KernelOrigin;
use crate::memory;
use ruzstd::decoding::StreamingDecoder;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use xxhash_rust::xxh3::xxh3_128;

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// A module: a kernel file, compiled with some definitions.
#[derive(Debug)]
pub(super) struct Embedded {
    /// Name of the module.
    pub(super) name: &'static str,
    /// Name of its kernel file, without the extension.
    pub(super) file: &'static str,
    /// Complete source.
    pub(super) source: &'static str,
    /// Identifies this source.
    pub(super) hash: &'static str,
    /// True if NVRTC compiles its kernels one at a time.
    pub(super) selectable: bool,
    /// Archives with the machine code, by architecture, 90 for `sm_90`: a tar file of all modules
    /// of the kernel file, compressed with zstd.
    pub(super) archives: &'static [(u32, &'static [u8])],
}

/// Machine code of a module in an archive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Archived {
    target: CompileTarget,
    archive: &'static [u8],
    module: &'static str,
    hash: &'static str,
}

/// The module with this name, if any.
pub(super) fn module(name: &str) -> Option<&'static Embedded> {
    MODULES.iter().find(|module| module.name == name)
}

/// True if the driver rejects embedded code.
static IS_LEFT_OUT: AtomicBool = AtomicBool::new(false);

/// Makes all modules have no machine code in this process, whose driver rejects it.
pub(super) fn leave_out() {
    IS_LEFT_OUT.store(true, Relaxed);
}

impl Embedded {
    /// Machine code that runs on an architecture, if any.
    pub(super) fn archived(&self, arch: u32) -> Option<Archived> {
        if IS_LEFT_OUT.load(Relaxed) {
            return None;
        }
        let best = runs_on(arch, self.archives.iter().map(|(code, _)| *code))?;
        let (_, archive) = self.archives.iter().find(|(code, _)| *code == best)?;
        let target = CompileTarget::Cubin(best);
        Some(Archived { target, archive, module: self.name, hash: self.hash })
    }

    /// Architectures with machine code: `sm_90`.
    pub(super) fn targets(&self) -> Vec<String> {
        let targets = self.archives.iter().map(|(arch, _)| CompileTarget::Cubin(*arch));
        targets.map(|target| target.to_string()).collect()
    }

    /// A module with source only.
    #[cfg(test)]
    pub(super) fn of_source(name: &'static str, source: &'static str, hash: &'static str) -> Self {
        Self { name, file: name, source, hash, selectable: false, archives: &[] }
    }
}

impl Archived {
    /// The code, from the cache, else unpacked and kept there: unpacking takes longer than reading.
    pub(super) fn load(&self, cache: Option<&Cache>) -> Option<(KernelOrigin, Vec<u8>)> {
        let entry = self.entry();
        if let Some(code) = cache.and_then(|cache| cache.load(&entry)) {
            return Some((KernelOrigin::Cached, code));
        }
        let code = self.unpack()?;
        // Without the entry it is unpacked again.
        let _ = cache.map(|cache| cache.store(&entry, &code));
        Some((KernelOrigin::Embedded, code))
    }

    /// Name of the cache entry.
    pub(super) fn entry(&self) -> String {
        format!("{}-{}-{:032x}", self.module, self.target, xxh3_128(self.archive))
    }

    /// Unpacks the code; `None` if the archive is damaged or of other sources, or without memory.
    pub(super) fn unpack(&self) -> Option<Vec<u8>> {
        let unpacked = StreamingDecoder::new(self.archive).ok()?;
        // The decoder, which panics without memory, holds the content once, and grows by doubling.
        let size = usize::try_from(unpacked.decoder.content_size()).ok()?;
        drop(memory::filled(2 * size, 0u8).ok()?);
        let name = format!("{}-{}", self.module, self.hash);
        for entry in tar::Archive::new(unpacked).entries().ok()? {
            let mut entry = entry.ok()?;
            if *entry.path_bytes() == *name.as_bytes() {
                let mut code = memory::filled(usize::try_from(entry.size()).ok()?, 0u8).ok()?;
                entry.read_exact(&mut code).ok()?;
                return self.target.is_code(&code).then_some(code);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_serves_its_generation() {
        let module =
            Embedded { archives: &[(80, &[]), (90, &[])], ..Embedded::of_source("a", "", "") };
        let target = |arch| Some(module.archived(arch)?.target);
        let cubin = CompileTarget::Cubin;
        assert_eq!(
            [75, 80, 89, 90].map(target),
            [None, Some(cubin(80)), Some(cubin(80)), Some(cubin(90))]
        );
        assert_eq!(module.targets(), ["sm_80", "sm_90"]);
        assert_eq!(module.archived(90).unwrap().unpack(), None, "an empty archive");
    }

    #[test]
    fn code_is_unpacked_once_then_cached() {
        let Some(module) = MODULES.iter().find(|module| !module.archives.is_empty()) else {
            println!("skipped: a build without machine code");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::below(folder.path());
        let archived = module.archived(module.archives[0].0).unwrap();
        let (origin, code) = archived.load(Some(&cache)).unwrap();
        assert_eq!(origin, KernelOrigin::Embedded);
        assert_eq!(archived.load(Some(&cache)), Some((KernelOrigin::Cached, code.clone())));
        cache.remove(&archived.entry());
        assert_eq!(archived.load(Some(&cache)), Some((KernelOrigin::Embedded, code.clone())));
        assert_eq!(archived.load(None), Some((KernelOrigin::Embedded, code)));
    }

    #[test]
    fn every_archive_holds_its_modules() {
        for embedded in MODULES {
            for (arch, _) in embedded.archives {
                let code = embedded.archived(*arch).and_then(|archived| archived.unpack());
                assert!(code.is_some(), "{} for sm_{arch}", embedded.name);
            }
        }
    }

    #[test]
    fn every_module_is_found_by_its_name_and_has_its_own_hash() {
        for (place, embedded) in MODULES.iter().enumerate() {
            assert_eq!(module(embedded.name).unwrap().hash, embedded.hash);
            assert!(embedded.name.starts_with(embedded.file));
            assert!(MODULES[..place].iter().all(|other| other.hash != embedded.hash));
            assert!(!embedded.source.contains("#include \""), "{} is not complete", embedded.name);
        }
        assert!(module("nothing").is_none());
        assert!(HASH.len() == 32 && !OPTIONS.is_empty());
    }
}
