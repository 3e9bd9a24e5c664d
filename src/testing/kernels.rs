//! Tests that the GPU kernels compile for every generation and fit into registers, according to the
//! assembler. Needs NVRTC, the CUDA compiler library, but no GPU.

use crate::Error;
use crate::device::{GpuRuntime, compiler};
use rayon::prelude::*;
use ruzstd::decoding::StreamingDecoder;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Build-time code, tested here because build scripts have no tests.
#[path = "../../build/constants.rs"]
mod constants;
#[path = "../../build/params.rs"]
mod params;
#[path = "../../build/splice.rs"]
mod splice;

/// Architectures for which the base modules are compiled: T4, A100, H100 and H200, B200, RTX 50.
const ARCHITECTURES: [(u32, u32); 5] = [(7, 5), (8, 0), (9, 0), (10, 0), (12, 0)];

/// Architecture for which the variants for matrices larger than the L2 are compiled, too.
const ALL_MODULES: (u32, u32) = (9, 0);

/// Architectures without [`COMPILED`], of other kernels than those of [`INDEX`].
const FEW: [(u32, u32); 3] = [(7, 5), ALL_MODULES, (12, 0)];

/// Architectures of the machine code in the package.
const PACKAGED: [(u32, u32); 4] = [(8, 0), (9, 0), (10, 0), (12, 0)];

/// Environment variable with an empty folder: all modules that are not in [`INDEX`] are compiled,
/// for all of [`ARCHITECTURES`], and the code for the package is written there.
const COMPILED: &str = "SPARSEOP_COMPILED_KERNELS";

/// Hashes and names of the modules that have passed a run with [`COMPILED`], after a line with the
/// version of the kernels and the compiler. The package has the machine code of those that are not
/// rare.
static INDEX: LazyLock<String> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/compiled/modules");
    fs::read_to_string(path).unwrap_or_default()
});

/// Modules and architectures of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// CSR and the base modules that do not take long, for [`ALL_MODULES`]: of the kernels of
    /// [`INDEX`].
    Base,
    /// Base modules for [`FEW`], and for [`ALL_MODULES`] one variant of each kind, too.
    Few,
    /// All modules that are not in [`INDEX`], for all of [`ARCHITECTURES`].
    All,
}

impl Extent {
    fn of_run() -> Self {
        match std::env::var_os(COMPILED) {
            Some(_) => Self::All,
            None if INDEX.starts_with(compiler::KERNEL_HASH) => Self::Base,
            None => Self::Few,
        }
    }

    fn architectures(self) -> &'static [(u32, u32)] {
        match self {
            Self::Base => &[ALL_MODULES],
            Self::Few => &FEW,
            Self::All => &ARCHITECTURES,
        }
    }

    /// Modules that are compiled for an architecture. Those of shared slices have launch bounds of
    /// their own on some.
    fn modules(self, arch: (u32, u32)) -> impl Iterator<Item = &'static str> {
        compiler::modules().filter(move |module| {
            let has = |word: &str| module.split('_').any(|other| other == word);
            let count = |words: &[&str]| words.iter().filter(|word| has(word)).count();
            let is_large = has("streamed") || has("evict");
            let is_narrow = count(&["bf16", "f16", "f32"]) > 0;
            let variants = count(&["scaled", "shared", "streamed", "evict"]);
            let is_rare = (is_narrow && variants > 0) || (has("scaled") && variants > 1);
            let is_base = !is_narrow && !has("scaled") && !is_large;
            match (self, arch == ALL_MODULES) {
                (Self::All, _) if has_passed(module) => false,
                (Self::All, true) => true,
                (Self::All, false) => {
                    !is_large || (PACKAGED.contains(&arch) && !compiler::RARE.contains(module))
                }
                (Self::Few, true) => !is_rare,
                (Self::Few, false) => is_base,
                (Self::Base, _) => {
                    is_base && (*module == "csr" || !compiler::is_selectable(module))
                }
            }
        })
    }

    /// Reports for an architecture. A file that does not compile fails with the full compiler
    /// output.
    fn reports(self, arch: (u32, u32)) -> Vec<KernelReport> {
        match self.check(arch) {
            Err(Error::KernelCompile { log, message, .. }) if log.is_empty() => panic!("{message}"),
            Err(Error::KernelCompile { log, .. }) => panic!("{log}"),
            checked => checked.unwrap(),
        }
    }

    /// Compiles the modules for an architecture, given as major and minor number, on all cores.
    ///
    /// # Errors
    ///
    /// [`Error::KernelCompile`] for the first file that cannot be compiled.
    fn check(self, arch: (u32, u32)) -> Result<Vec<KernelReport>, Error> {
        let modules: Vec<_> = self.modules(arch).collect();
        let compile = |module: &&'static str| {
            let (code, account) = compiler::compiled_anew(arch, module)?;
            write_code(arch, module, &code);
            // Machine code in a repository has to be reproducible.
            let is_same = !INDEX.starts_with(&version())
                || compiler::packaged(arch, module).is_none_or(|packaged| packaged == code);
            assert!(is_same || self == Self::All, "kernels/compiled has another {module}");
            Ok(read_account(module, &account))
        };
        Ok(modules.par_iter().map(compile).collect::<Result<Vec<_>, Error>>()?.concat())
    }
}

/// Writes the code of a module for the package, if there is a folder for it.
fn write_code(arch: (u32, u32), module: &str, code: &[u8]) {
    let folder = std::env::var_os(COMPILED).map(PathBuf::from);
    let is_packaged = PACKAGED.contains(&arch) && !compiler::RARE.contains(&module);
    if let Some(folder) = folder.filter(|_| is_packaged) {
        let (file, _) = compiler::file_and_hash(module);
        let folder = folder.join(format!("sm_{}{}", arch.0, arch.1)).join(file);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(code_name(module)), code).unwrap();
    }
}

/// Name of the machine code of a module in an archive.
fn code_name(module: &str) -> String {
    format!("{module}-{}", compiler::file_and_hash(module).1)
}

/// Line of the index for a module.
fn line(module: &str) -> String {
    format!("{} {module}\n", compiler::file_and_hash(module).1)
}

/// True if a module has passed with this compiler.
fn has_passed(module: &str) -> bool {
    let of_version = INDEX.lines().next().and_then(|line| line.split_once(' '));
    of_version.is_some_and(|(_, other)| version().ends_with(&format!(" {other}\n")))
        && INDEX.contains(&line(module))
}

/// The version of the kernels and of the compiler.
fn version() -> String {
    let compiler = GpuRuntime::find().nvrtc.unwrap_or_default();
    format!("{} {compiler}\n", compiler::KERNEL_HASH)
}

/// Resource use of one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KernelReport {
    /// Kernel file, without its extension.
    module: &'static str,
    /// Name of the kernel.
    kernel: String,
    /// Registers per thread.
    registers: u32,
    /// Bytes of spilled registers, which are written to memory and read back, counted at every such
    /// place.
    spill_bytes: u32,
    /// Bytes of shared memory per block.
    shared_bytes: u32,
    /// Bytes of local memory per thread.
    stack_bytes: u32,
}

/// Parses the output of `ptxas -v`: for every kernel a line with its name, its stack and spills,
/// and its registers.
fn read_account(module: &'static str, text: &str) -> Vec<KernelReport> {
    let mut reports: Vec<KernelReport> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            let nothing = KernelReport {
                module,
                kernel,
                registers: 0,
                spill_bytes: 0,
                shared_bytes: 0,
                stack_bytes: 0,
            };
            reports.push(nothing);
        } else if let Some(report) = reports.last_mut() {
            if line.contains("bytes stack frame") {
                report.stack_bytes = before(line, " bytes stack frame");
                report.spill_bytes =
                    before(line, " bytes spill stores") + before(line, " bytes spill loads");
            } else if line.contains("Used ") {
                report.registers = before(line, " registers");
                report.shared_bytes = before(line, " bytes smem");
            }
        }
    }
    reports
}

/// The number directly before `unit`; 0 if there is none.
fn before(line: &str, unit: &str) -> u32 {
    let number =
        line.split_once(unit).and_then(|(head, _)| head.rsplit([' ', ',']).next()?.parse().ok());
    number.unwrap_or(0)
}

#[test]
fn every_kernel_compiles_and_stays_in_registers() {
    if !compiler::has_nvrtc() {
        return;
    }
    let extent = Extent::of_run();
    let architectures = extent.architectures();
    let (mut table, mut wrong) = (BTreeMap::new(), Vec::new());
    for (column, &arch) in architectures.iter().enumerate() {
        let reports = extent.reports(arch);
        let with_kernels: BTreeSet<&str> = reports.iter().map(|report| report.module).collect();
        let without = extent.modules(arch).filter(|module| !with_kernels.contains(module));
        wrong.extend(without.map(|module| format!("kernels/{module}.cu has no kernel")));
        for KernelReport { module, kernel, registers, spill_bytes, shared_bytes, stack_bytes } in
            reports
        {
            let name = format!("{module}: {kernel}");
            if spill_bytes + stack_bytes > 0 {
                let arch = format!("sm_{}{}", arch.0, arch.1);
                wrong.push(format!(
                    "{name} on {arch}: {spill_bytes} bytes spilled, {stack_bytes} of stack"
                ));
            }
            let cells =
                table.entry(name).or_insert_with(|| vec![String::new(); architectures.len()]);
            cells[column] = format!("{registers}/{spill_bytes}/{shared_bytes}");
        }
    }
    println!("\nregisters/bytes spilled/bytes shared");
    let names =
        architectures.iter().map(|(major, minor)| format!("{:>14}", format!("sm_{major}{minor}")));
    println!("{:<50}{}", "", names.collect::<String>());
    for (name, cells) in &table {
        println!(
            "{name:<50}{}",
            cells.iter().map(|cell| format!("{cell:>14}")).collect::<String>()
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    if let Some(folder) = std::env::var_os(COMPILED) {
        for module in compiler::modules().filter(|module| has_passed(module)) {
            for arch in PACKAGED {
                compiler::packaged(arch, module).inspect(|code| write_code(arch, module, code));
            }
        }
        let index = version() + &compiler::modules().map(line).collect::<String>();
        fs::write(PathBuf::from(folder).join("modules"), index).unwrap();
    }
}

#[test]
fn built_in_profiles_name_these_kernels() {
    let kernels = format!("kernels: \"{}\"", compiler::KERNEL_HASH);
    for profile in
        [include_str!("../../models/nvidia-h200.ron"), include_str!("../../models/generic.ron")]
    {
        assert!(
            profile.contains(&kernels),
            "measure again, or name the kernels in the profile and say so in models/README.md"
        );
    }
}

#[test]
fn the_package_has_the_machine_code_of_these_sources() {
    let stale = "run scripts/compile-kernels";
    let (version, modules) = INDEX.split_once('\n').unwrap();
    assert!(version.starts_with(compiler::KERNEL_HASH), "{stale}");
    assert_eq!(modules, compiler::modules().map(line).collect::<String>(), "{stale}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/compiled");
    let mut archives: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for module in compiler::modules().filter(|module| !compiler::RARE.contains(module)) {
        archives.entry(compiler::file_and_hash(module).0).or_default().insert(code_name(module));
    }
    let cases: Vec<_> =
        archives.iter().flat_map(|case| PACKAGED.map(|arch| (case, arch))).collect();
    cases.into_par_iter().for_each(|((file, modules), (major, minor))| {
        let path = folder.join(format!("sm_{major}{minor}/{file}.tar.zst"));
        let archive = fs::read(&path).unwrap_or_else(|_| panic!("{}: {stale}", path.display()));
        let mut archive = tar::Archive::new(StreamingDecoder::new(&archive[..]).unwrap());
        let name = |path: &[u8]| String::from_utf8(path.to_vec()).unwrap();
        let found: BTreeSet<String> =
            archive.entries().unwrap().map(|entry| name(&entry.unwrap().path_bytes())).collect();
        assert_eq!(found, *modules, "{}: {stale}", path.display());
    });
}

#[test]
fn the_header_is_spliced_in_and_lines_keep_their_numbers() {
    let source = "// first\n#include \"common.cuh\"\n#include <cstdint>\nlast";
    let header = ("common.cuh".to_owned(), "#pragma once\nint shared;\n".to_owned());
    let more = ("more.cu".to_owned(), "#define MORE\n#include \"common.cuh\"\nmore".to_owned());
    let headers = splice::Headers::from([header, more]);
    let expected = "#line 1 \"kernels/a.cu\"\n// first\n#line 1 \"kernels/common.cuh\"\n\nint \
                    shared;\n\
                    #line 3 \"kernels/a.cu\"\n#include <cstdint>\nlast\n";
    assert_eq!(splice::splice("a.cu", source, &headers).unwrap(), expected);
    assert_eq!(splice::splice("a.cu", "", &headers).unwrap(), "#line 1 \"kernels/a.cu\"\n");
    let nested = "#line 1 \"kernels/a.cu\"\n#line 1 \"kernels/more.cu\"\n#define MORE\n#line 1 \
                  \"kernels/common.cuh\"\n\n\
                  int shared;\n#line 3 \"kernels/more.cu\"\nmore\n#line 2 \"kernels/a.cu\"\nlast\n";
    assert_eq!(splice::splice("a.cu", "#include \"more.cu\"\nlast", &headers).unwrap(), nested);
    let twice = "#include \"common.cuh\"\n#include \"common.cuh\"\nlast";
    assert_eq!(splice::splice("a.cu", twice, &headers).unwrap().matches("int shared").count(), 1);
    let message = splice::splice("a.cu", "\n # include \"other.cuh\"", &headers).unwrap_err();
    assert_eq!(
        message,
        "kernels/a.cu:2: includes \"other.cuh\", but there are common.cuh, more.cu"
    );
}

#[test]
fn signatures_become_structs() {
    let source = "\
__device__ void twice(float *y) { *y *= 2; }
#define BY_ROWS(NAME, T) \\
    KERNEL_WITH(NAME, BLOCKS(T))(const O *row_ptr, T value, \\
                                 EPILOGUE_PARAMETERS(T), u32 l2_shares) { twice(y); }
BY_ROWS(bsr_rows_f32, float)
KERNEL(bsr_add_f32)(const float *from, u32 count) { if (count) { twice(from); } }
KERNEL(bsr_add_f64)(const double *from, u32 count) {}
KERNEL(bsr_other_f32)(const T *from, u32 count) {}
";
    let expected = "\
pub(crate) mod bsr {
use super::*;
/// Parameters of `BY_ROWS`.
pub(crate) struct ByRows<'a, O, T: Scalar> {
    pub(crate) row_ptr: Ptr<O>,
    pub(crate) value: T,
    pub(crate) out: Out<'a, T>,
    pub(crate) l2_shares: u32,
}
impl<'a, O, T: Scalar> Params for ByRows<'a, O, T> {
    fn add_to(self, launch: Launch) -> Launch {
        self.out.to(launch.arg(self.row_ptr).arg(self.value.bits())).arg(self.l2_shares)
    }
}
/// Parameters of `bsr_add_f32`, `bsr_other_f32`.
pub(crate) struct Add<T> {
    pub(crate) from: Ptr<T>,
    pub(crate) count: u32,
}
impl<T> Params for Add<T> {
    fn add_to(self, launch: Launch) -> Launch {
        launch.arg(self.from).arg(self.count)
    }
}
}
";
    assert_eq!(params::module("bsr", source).unwrap(), expected);
    assert_eq!(params::module("common", "__device__ void twice(float *y) {}").unwrap(), "");
    for wrong in ["KERNEL(a)(Piece piece) {}", "KERNEL(a)(u32) {}"] {
        assert!(params::module("bsr", wrong).is_err(), "{wrong}");
    }
}

#[test]
fn constants_are_written_with_their_folder_as_namespace() {
    let header = |source: &str| constants::header(&[("tiles".to_owned(), source.to_owned())]);
    let source = "/// Bits.\npub(super) const HIGH: u32 = 1 << 31;\nconst LAST: u16 = u16::MAX;\n\
                  pub const MANY: usize = 16_384;\nconst MAX_IN: usize = 2 * MANY;\n\
                  const WIDE: u64 = 0x9e37_79b9_7f4a;\n";
    assert_eq!(
        header(source).unwrap(),
        "#pragma once\nnamespace tiles {\n\
         [[maybe_unused]] constexpr unsigned int HIGH = 1u << 31;\n\
         [[maybe_unused]] constexpr unsigned int LAST = 0xFFFF;\n\
         [[maybe_unused]] constexpr unsigned int MANY = 16384;\n\
         [[maybe_unused]] constexpr unsigned int MAX_IN = 2 * MANY;\n\
         [[maybe_unused]] constexpr unsigned long long WIDE = 0x9e3779b97f4a;\n}\n"
    );
    for wrong in ["const A: f64 = 1.0;", "const A: u32 = B;", "const A: u32 ="] {
        assert!(header(wrong).unwrap_err().contains(wrong));
    }
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert!(constants::files(&folder).unwrap().len() >= 8);
    assert_eq!(constants::HEADER, "constants.cuh");
}

#[test]
fn the_assembler_is_understood() {
    let text = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_90'
ptxas info    : Function properties for one
ptxas         .     72 bytes stack frame, 64 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 80 registers, used 1 barriers, 72 bytes cumulative stack size, 128 bytes smem
ptxas info    : Compile time = 27.249 ms
ptxas info    : Compiling entry function 'two' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers";
    let report = |kernel: &str, [registers, spill_bytes, shared_bytes, stack_bytes]: [u32; 4]| {
        KernelReport {
            module: "test",
            kernel: kernel.to_owned(),
            registers,
            spill_bytes,
            shared_bytes,
            stack_bytes,
        }
    };
    assert_eq!(
        read_account("test", text),
        [report("one", [80, 72, 128, 72]), report("two", [10, 0, 0, 0])]
    );
    assert_eq!(read_account("test", ""), []);
}
