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

    /// True if the driver can read bytes as code of this kind without leaving them.
    pub(super) fn is_code(self, bytes: &[u8]) -> bool {
        match self {
            Self::Cubin(_) => is_complete_elf(bytes).unwrap_or(false),
            Self::Ptx(_) => bytes.last() == Some(&0),
        }
    }
}

/// True if bytes begin with an ELF header of 64 bits and hold all segments and sections that it
/// names; `None` if they end before that is known.
fn is_complete_elf(bytes: &[u8]) -> Option<bool> {
    /// Type of sections that take no space in the file.
    const NOBITS: u64 = 8;
    let number = |at: u64, len: usize| {
        let field = bytes.get(usize::try_from(at).ok()?..)?.get(..len)?;
        Some(field.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    let holds =
        |start: u64, len: u64| start.checked_add(len).is_some_and(|end| end <= bytes.len() as u64);
    let (segments, segment, segment_count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
    let (sections, section, section_count) = (number(0x28, 8)?, number(0x3a, 2)?, number(0x3c, 2)?);
    if !bytes.starts_with(b"\x7fELF\x02") || !holds(segments, segment * segment_count) {
        return Some(false);
    }
    for n in 0..section_count {
        let header = sections.checked_add(n * section)?;
        let (kind, start) =
            (number(header.checked_add(4)?, 4)?, number(header.checked_add(0x18)?, 8)?);
        let len = number(header.checked_add(0x20)?, 8)?;
        if kind != NOBITS && !holds(start, len) {
            return Some(false);
        }
    }
    Some(section_count > 0)
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
    fn code_that_ends_early_is_none() {
        let mut elf = vec![0; 0x40 + 2 * 0x40 + 10];
        elf[..5].copy_from_slice(b"\x7fELF\x02");
        elf[0x28] = 0x40; // Sections.
        elf[0x3a] = 0x40;
        elf[0x3c] = 2;
        elf[0x40 + 0x40 + 0x18] = 0xc0; // The second one has the last ten bytes.
        elf[0x40 + 0x40 + 0x20] = 10;
        let cubin = CompileTarget::Cubin(90);
        assert!(cubin.is_code(&elf));
        assert!((0..elf.len()).all(|len| !cubin.is_code(&elf[..len])));
        let with = |at: usize, byte| {
            let mut elf = elf.clone();
            elf[at] = byte;
            cubin.is_code(&elf)
        };
        assert!(!with(0, 0) && !with(0x2f, 0xff) && !with(0x3c, 9) && !with(0x9f, 0xff));
        assert!(!with(0x3c, 0) && !cubin.is_code(b"garbage"));
        let ptx = CompileTarget::Ptx(75);
        assert!(ptx.is_code(b".version\0") && !ptx.is_code(b".version") && !ptx.is_code(b""));
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
