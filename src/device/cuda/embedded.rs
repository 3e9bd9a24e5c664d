//! Kernels embedded by the build: sources, and machine code if a compiler was present.

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
    /// Machine code by architecture, 90 for `sm_90`.
    pub(super) cubins: &'static [(u32, &'static [u8])],
    /// PTX for a virtual architecture and all later ones, ending with a zero byte.
    pub(super) ptx: Option<(u32, &'static [u8])>,
}

/// Bytes aligned for the driver, which may read words. Unused without embedded machine code.
#[allow(dead_code)]
#[repr(C, align(16))]
struct Aligned<T>(T);

/// Integrated GPUs. They share major numbers with other GPUs, but machine code of one group does
/// not run on the other.
const INTEGRATED: [u32; 4] = [72, 87, 101, 110];

/// The module with this name, if any.
pub(super) fn module(name: &str) -> Option<&'static Embedded> {
    MODULES.iter().find(|module| module.name == name)
}

/// The latest of the compiled architectures whose machine code runs on `arch`: of the same
/// generation and not newer.
pub(super) fn runs_on(arch: u32, compiled: impl IntoIterator<Item = u32>) -> Option<u32> {
    let suits = |code: &u32| {
        let family = *code / 10 == arch / 10 && *code <= arch;
        *code == arch || (family && ![code, &arch].iter().any(|part| INTEGRATED.contains(part)))
    };
    compiled.into_iter().filter(suits).max()
}

impl Embedded {
    /// Machine code that runs on an architecture, if any.
    pub(super) fn cubin(&self, arch: u32) -> Option<&'static [u8]> {
        let best = runs_on(arch, self.cubins.iter().map(|(code, _)| *code))?;
        self.cubins.iter().find(|(code, _)| *code == best).map(|(_, bytes)| *bytes)
    }

    /// A module with source only.
    #[cfg(test)]
    pub(super) fn of_source(name: &'static str, source: &'static str, hash: &'static str) -> Self {
        Self { name, source, hash, cubins: &[], ptx: None }
    }

    /// PTX that the driver can compile for an architecture, if any.
    pub(super) fn ptx(&self, arch: u32) -> Option<&'static [u8]> {
        self.ptx.filter(|(oldest, _)| *oldest <= arch).map(|(_, text)| text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_machine_code_of_the_same_generation_is_taken() {
        let built = [80, 90, 100, 120];
        for (arch, expected) in [
            (90, Some(90)),
            (80, Some(80)),
            (86, Some(80)),
            (89, Some(80)),
            (103, Some(100)),
            (121, Some(120)),
            (75, None),
            (130, None),
            // Integrated GPUs.
            (87, None),
            (110, None),
        ] {
            assert_eq!(runs_on(arch, built), expected, "sm_{arch}");
        }
        assert_eq!(runs_on(89, [80, 86, 87, 90]), Some(86));
        assert_eq!(runs_on(87, [80, 87]), Some(87));
    }

    #[test]
    fn assembly_serves_its_architecture_and_later_ones() {
        let module = Embedded { ptx: Some((75, b"\0")), ..Embedded::of_source("a", "", "") };
        assert_eq!([70, 75, 130].map(|arch| module.ptx(arch).is_some()), [false, true, true]);
        assert_eq!(module.cubin(90), None);
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
