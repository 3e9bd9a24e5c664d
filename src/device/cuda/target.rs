//! Targets of the CUDA compilers.

use std::fmt::{self, Display};

/// Integrated GPUs. They share major numbers with other GPUs, but machine code of one group does
/// not run on the other.
const INTEGRATED: [u32; 4] = [72, 87, 101, 110];

/// The latest of the compiled architectures whose machine code runs on `arch`: of the same
/// generation and not newer.
pub(super) fn runs_on(arch: u32, compiled: impl IntoIterator<Item = u32>) -> Option<u32> {
    let suits = |code: &u32| {
        let family = *code / 10 == arch / 10 && *code <= arch;
        *code == arch || (family && ![code, &arch].iter().any(|part| INTEGRATED.contains(part)))
    };
    compiled.into_iter().filter(suits).max()
}

/// Target of a compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CompileTarget {
    /// Machine code for an architecture: 90 for `sm_90`.
    Cubin(u32),
    /// PTX for a virtual architecture and all later ones.
    Ptx(u32),
}

impl CompileTarget {
    /// The compiler option of the target.
    pub(super) fn option(self) -> String {
        format!("--gpu-architecture={self}")
    }

    /// The best target for `arch` of a compiler that supports these architectures, where an empty
    /// list means unknown: machine code that runs there, otherwise PTX that the driver can compile.
    pub(super) fn best(arch: u32, supported: &[u32]) -> Option<Self> {
        if supported.is_empty() {
            return Some(Self::Cubin(arch));
        }
        let cubin = runs_on(arch, supported.iter().copied()).map(Self::Cubin);
        cubin.or_else(|| {
            supported.iter().copied().filter(|known| *known <= arch).max().map(Self::Ptx)
        })
    }
}

impl Display for CompileTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cubin(arch) => write!(f, "sm_{arch}"),
            Self::Ptx(arch) => write!(f, "compute_{arch}"),
        }
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
    fn a_compiler_reports_its_abilities() {
        let supported = [75, 80, 86, 87, 89, 90, 100];
        for (arch, expected) in [
            (90, Some(CompileTarget::Cubin(90))),
            (103, Some(CompileTarget::Cubin(100))),
            (120, Some(CompileTarget::Ptx(100))),
            (70, None),
        ] {
            assert_eq!(CompileTarget::best(arch, &supported), expected, "sm_{arch}");
        }
        assert_eq!(CompileTarget::best(70, &[]), Some(CompileTarget::Cubin(70)));
        assert_eq!(CompileTarget::Cubin(90).option(), "--gpu-architecture=sm_90");
        assert_eq!(CompileTarget::Ptx(75).option(), "--gpu-architecture=compute_75");
    }
}
