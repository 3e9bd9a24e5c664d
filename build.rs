//! Embeds the GPU kernels: always their sources, and their machine code if this machine has a CUDA
//! compiler.
//!
//! Writes `kernels.rs` for `src/device/cuda/embedded.rs`. Does nothing without the feature `cuda`.

#[path = "build/nvcc.rs"]
mod nvcc;
#[path = "build/splice.rs"]
mod splice;

use nvcc::{Nvcc, NvccTarget};
use splice::Headers;
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{env, fs, thread};
use xxhash_rust::xxh3::xxh3_128;

/// Folder of the kernels.
const FOLDER: &str = "kernels";

/// Architectures that get machine code: one of every generation sold for computing.
const ARCHITECTURES: [u32; 4] = [80, 90, 100, 120];

/// Oldest architecture that the kernels support.
const OLDEST: u32 = 70;

/// Options that the machine code depends on, with the same meaning for nvcc and NVRTC.
const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=true"];

/// Line of a kernel file with the variants in which it is compiled besides the plain one.
const DECLARATION: &str = "// Variants: ";

/// Variants: the word in a [`DECLARATION`], the suffix of the modules, their definitions, and the
/// variant that they exclude. The suffixes are those of `src/device/module.rs`.
const VARIANTS: [Variant; 3] = [
    // For `y = alpha A x + beta y`.
    Variant { word: "scaled", definition: "#define SCALED\n", excludes: None },
    // For matrices that do not fit the L2.
    Variant { word: "streamed", definition: "#define STREAMED\n", excludes: None },
    // For matrices of few slices, which fit the L2.
    Variant { word: "shared", definition: "#define SHARING\n", excludes: Some("streamed") },
];

/// A variant of modules.
struct Variant {
    word: &'static str,
    definition: &'static str,
    excludes: Option<&'static str>,
}

/// A kernel file, compiled with some definitions.
struct KernelModule {
    name: String,
    hash: String,
    /// The complete source, in the output folder.
    source: PathBuf,
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    println!("cargo::rerun-if-changed={FOLDER}");
    let variables =
        [nvcc::VARIABLE, "DOCS_RS", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"];
    for variable in variables.into_iter().chain(nvcc::HOMES) {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if let Err(error) = embed() {
        error.to_string().lines().for_each(|line| println!("cargo::error={line}"));
    }
}

fn embed() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let modules = sources(&out)?;
    let images = match compiler(&out)? {
        Some(nvcc) => compile(&nvcc, &modules, &out)?,
        None => Vec::new(),
    };
    Ok(fs::write(out.join("kernels.rs"), table(&modules, &images)?)?)
}

/// Returns the modules: the kernel files sorted by name, with their includes spliced in, in every
/// variant of their definitions.
fn sources(out: &Path) -> Result<Vec<KernelModule>, Box<dyn Error>> {
    let folder = Path::new(FOLDER);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    let mut headers = Headers::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("cu" | "cuh")) {
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.ok_or("a kernel file's name is not UTF-8")?.to_owned();
            headers.insert(name, fs::read_to_string(&path)?);
        }
        if extension == Some("cu") {
            files.push(path);
        }
    }
    files.sort();
    let mut modules = Vec::new();
    for path in files {
        let file = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .ok_or("a kernel file's name is not UTF-8")?;
        let text = fs::read_to_string(&path)?;
        let variants = variants(file, &text)?;
        let text = splice::splice(&format!("{file}.cu"), &text, &headers)?;
        for (ending, definitions) in variants {
            let name = format!("{file}{ending}");
            let text = format!("{definitions}{text}");
            let source = out.join(format!("{name}.cu"));
            fs::write(&source, &text)?;
            modules.push(KernelModule {
                name,
                hash: format!("{:032x}", xxh3_128(text.as_bytes())),
                source,
            });
        }
    }
    Ok(modules)
}

/// Returns the suffixes of the modules of a kernel file, with their definitions: every combination
/// of its variants.
fn variants(file: &str, text: &str) -> Result<Vec<(String, String)>, String> {
    let declared = text.lines().find_map(|line| line.strip_prefix(DECLARATION)).unwrap_or_default();
    let words: Vec<&str> = declared.trim_end_matches('.').split(", ").collect();
    if let Some(word) = words
        .iter()
        .find(|word| !declared.is_empty() && !VARIANTS.iter().any(|variant| variant.word == **word))
    {
        return Err(format!("kernels/{file}.cu: there is no variant `{word}`"));
    }
    let mut all: Vec<Vec<&Variant>> = vec![Vec::new()];
    for variant in VARIANTS.iter().filter(|variant| words.contains(&variant.word)) {
        let excluded =
            |with: &&Vec<&Variant>| with.iter().any(|other| variant.excludes == Some(other.word));
        let more: Vec<Vec<&Variant>> = all
            .iter()
            .filter(|with| !excluded(with))
            .map(|with| with.iter().copied().chain([variant]).collect())
            .collect();
        all.extend(more);
    }
    let module = |variants: Vec<&Variant>| {
        let suffix = variants.iter().map(|variant| format!("_{}", variant.word)).collect();
        (suffix, variants.iter().map(|variant| variant.definition).collect())
    };
    Ok(all.into_iter().map(module).collect())
}

/// Returns the CUDA compiler, if there is a working one.
fn compiler(out: &Path) -> Result<Option<Nvcc>, String> {
    if env::var_os("DOCS_RS").is_some() {
        return Ok(None);
    }
    let Some(path) = nvcc::find()? else { return Ok(None) };
    println!("cargo::rerun-if-changed={}", path.display());
    let name = path.display().to_string();
    match Nvcc::probe(path, out) {
        Ok(nvcc) => Ok(Some(nvcc)),
        Err(reason) => {
            let reason = reason.lines().next().unwrap_or_default();
            println!(
                "cargo::warning={name} does not work ({reason}): GPU kernels will be compiled when \
                 they are first used"
            );
            Ok(None)
        }
    }
}

/// Compiles every module for every target, with as many jobs as cargo allows. Returns the module,
/// the target and the output file.
fn compile(
    nvcc: &Nvcc,
    modules: &[KernelModule],
    out: &Path,
) -> Result<Vec<(String, NvccTarget, PathBuf)>, String> {
    let targets = nvcc.targets(&ARCHITECTURES, OLDEST);
    let jobs: Vec<(&KernelModule, NvccTarget)> = modules
        .iter()
        .flat_map(|module| targets.iter().map(move |target| (module, *target)))
        .collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((module, target)) = jobs.get(next.fetch_add(1, Relaxed)) {
            let path = out.join(format!("{}.{target}", module.name));
            nvcc.compile(&module.source, *target, &OPTIONS, &path).map_err(|said| {
                format!("nvcc rejects kernels/{}.cu for {target}:\n{said}", module.name)
            })?;
            if let NvccTarget::Ptx(_) = target {
                terminate(&path).map_err(|error| error.to_string())?;
            }
            done.push((module.name.clone(), *target, path));
        }
        Ok(done)
    };
    let threads = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    let results: Vec<Result<Vec<_>, String>> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic in there")).collect()
    });
    let mut images = results.into_iter().collect::<Result<Vec<_>, String>>()?.concat();
    images.sort_by(|a, b| a.2.cmp(&b.2));
    Ok(images)
}

/// Appends the zero byte that the driver expects at the end of PTX.
fn terminate(path: &Path) -> std::io::Result<()> {
    let mut text = fs::read(path)?;
    text.push(0);
    fs::write(path, text)
}

/// Generates the Rust code of the table of modules.
fn table(
    modules: &[KernelModule],
    images: &[(String, NvccTarget, PathBuf)],
) -> Result<String, std::fmt::Error> {
    let mut identity = OPTIONS.join(" ");
    let mut code = String::new();
    for KernelModule { name, hash, source } in modules {
        write!(identity, " {name} {hash}")?;
        let (mut cubins, mut ptx) = (String::new(), "None".to_owned());
        for (_, target, path) in images.iter().filter(|(module, _, _)| module == name) {
            match target {
                NvccTarget::Cubin(arch) => {
                    write!(cubins, "({arch}, &Aligned(*include_bytes!({path:?})).0), ")?
                }
                NvccTarget::Ptx(arch) => ptx = format!("Some(({arch}, include_bytes!({path:?})))"),
            }
        }
        writeln!(
            code,
            "    Embedded {{ name: {name:?}, source: include_str!({source:?}), hash: {hash:?}, \
             cubins: &[{cubins}], ptx: {ptx} }},"
        )?;
    }
    let hash = xxh3_128(identity.as_bytes());
    Ok(format!(
        "pub(super) const OPTIONS: &[&str] = &{OPTIONS:?};\n\
         pub(super) const HASH: &str = \"{hash:032x}\";\n\
         pub(super) static MODULES: &[Embedded] = &[\n{code}];\n"
    ))
}
