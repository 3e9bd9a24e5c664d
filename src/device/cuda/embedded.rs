//! Kernels embedded by the build: sources, and compressed machine code if a compiler was present.

use super::target::{CompileTarget, runs_on};
use flate2::read::ZlibDecoder;
use std::io::Read;

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// A module: a kernel file, compiled with some definitions.
#[derive(Debug)]
pub(super) struct Embedded {
    /// Name of the module.
    pub(super) name: &'static str,
    /// Complete source.
    pub(super) source: &'static str,
    /// Identifies this source.
    pub(super) hash: &'static str,
    /// True if NVRTC compiles its kernels one at a time.
    pub(super) selectable: bool,
    /// Machine code by architecture, 90 for `sm_90`, compressed.
    pub(super) cubins: &'static [(u32, &'static [u8])],
    /// PTX for a virtual architecture and all later ones, ending with a zero byte, compressed.
    pub(super) ptx: Option<(u32, &'static [u8])>,
}

/// The module with this name, if any.
pub(super) fn module(name: &str) -> Option<&'static Embedded> {
    MODULES.iter().find(|module| module.name == name)
}

impl Embedded {
    /// Machine code that runs on an architecture, if any.
    pub(super) fn cubin(&self, arch: u32) -> Option<Vec<u8>> {
        let best = runs_on(arch, self.cubins.iter().map(|(code, _)| *code))?;
        self.cubins.iter().find(|(code, _)| *code == best).and_then(|(_, bytes)| inflated(bytes))
    }

    /// True if there is machine code that runs on an architecture.
    pub(super) fn runs_on(&self, arch: u32) -> bool {
        runs_on(arch, self.cubins.iter().map(|(code, _)| *code)).is_some()
    }

    /// Architectures with code: `sm_90`, `compute_75`.
    pub(super) fn targets(&self) -> Vec<String> {
        let cubins = self.cubins.iter().map(|(arch, _)| CompileTarget::Cubin(*arch));
        let ptx = self.ptx.iter().map(|(arch, _)| CompileTarget::Ptx(*arch));
        cubins.chain(ptx).map(|target| target.to_string()).collect()
    }

    /// A module with source only.
    #[cfg(test)]
    pub(super) fn of_source(name: &'static str, source: &'static str, hash: &'static str) -> Self {
        Self { name, source, hash, selectable: false, cubins: &[], ptx: None }
    }

    /// PTX that the driver can compile for an architecture, if any.
    pub(super) fn ptx(&self, arch: u32) -> Option<Vec<u8>> {
        self.ptx.filter(|(oldest, _)| *oldest <= arch).and_then(|(_, text)| inflated(text))
    }
}

/// The bytes that the build has compressed.
fn inflated(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut code = Vec::new();
    ZlibDecoder::new(bytes).read_to_end(&mut code).ok()?;
    Some(code)
}

/// Compresses as the build does.
#[cfg(test)]
pub(super) fn deflated(bytes: &[u8]) -> &'static [u8] {
    let level = flate2::Compression::best();
    let mut code = Vec::new();
    flate2::bufread::ZlibEncoder::new(bytes, level).read_to_end(&mut code).unwrap();
    code.leak()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assembly_serves_its_architecture_and_later_ones() {
        let module =
            Embedded { ptx: Some((75, deflated(b"\0"))), ..Embedded::of_source("a", "", "") };
        let text = Some(b"\0".to_vec());
        assert_eq!([70, 75, 130].map(|arch| module.ptx(arch)), [None, text.clone(), text]);
        assert_eq!(module.cubin(90), None);
        assert_eq!(module.targets(), ["compute_75"]);
    }

    #[test]
    fn machine_code_is_restored() {
        for embedded in MODULES {
            for (arch, bytes) in embedded.cubins {
                let code = embedded.cubin(*arch).unwrap();
                assert!(CompileTarget::Cubin(*arch).is_code(&code) && code.len() > bytes.len());
            }
            assert!(embedded.ptx(1000).is_none_or(|text| text.ends_with(b"\0")));
        }
    }

    #[test]
    fn every_module_is_found_by_its_name_and_has_its_own_hash() {
        for (place, embedded) in MODULES.iter().enumerate() {
            assert_eq!(module(embedded.name).unwrap().hash, embedded.hash);
            assert!(MODULES[..place].iter().all(|other| other.hash != embedded.hash));
            assert!(!embedded.source.contains("#include \""), "{} is not complete", embedded.name);
        }
        assert!(module("nothing").is_none());
        assert!(HASH.len() == 32 && !OPTIONS.is_empty());
    }
}
