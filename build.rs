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

/// Prefixes of the kernel files that are also compiled for `y = alpha A x + beta y`.
const SCALED: [&str; 5] = ["csr", "ell", "jds", "psell_spmv_", "sell"];

/// Prefixes of the kernel files that are also compiled for matrices that do not fit the L2.
const STREAMED: [&str; 9] =
    ["blocked", "coo", "csr", "ell", "jds", "psell_spmm_", "psell_spmv_", "sell", "tiles"];

/// Prefixes of the kernel files that are also compiled for matrices of few slices.
const SHARING: [&str; 1] = ["psell_spmv_"];

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
        let text = splice::splice(&format!("{file}.cu"), &fs::read_to_string(&path)?, &headers)?;
        for (ending, definitions) in variants(file) {
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

/// Returns the suffixes of the modules of a kernel file, with their definitions. The names are
/// those of `src/device/module.rs`.
fn variants(file: &str) -> Vec<(String, String)> {
    let listed = |files: &[&str]| files.iter().any(|beginning| file.starts_with(beginning));
    let scaled =
        [("", "")].into_iter().chain(listed(&SCALED).then_some(("_scaled", "#define SCALED\n")));
    let sizes = [("", "")].into_iter();
    let sizes = sizes.chain(listed(&STREAMED).then_some(("_streamed", "#define STREAMED\n")));
    let sizes = sizes.chain(listed(&SHARING).then_some(("_shared", "#define SHARING\n")));
    let both = scaled.flat_map(|scaled| sizes.clone().map(move |size| [scaled, size]));
    both.map(|both| (both.map(|(ending, _)| ending).concat(), both.map(|(_, text)| text).concat()))
        .collect()
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
