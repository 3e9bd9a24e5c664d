//! Embeds the GPU kernels: their sources always, their machine code when this machine has a CUDA compiler.
//!
//! Writes `kernels.rs` for `src/device/cuda/embedded.rs`. Without the feature `cuda` nothing is done.

#[path = "build/nvcc.rs"]
mod nvcc;
#[path = "build/splice.rs"]
mod splice;

use nvcc::{Nvcc, Target};
use splice::Headers;
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{env, fs, thread};
use xxhash_rust::xxh3::xxh3_128;

/// Where the kernels are.
const FOLDER: &str = "kernels";

/// The architectures that get machine code: one of every generation that is sold for computing.
const ARCHITECTURES: [u32; 4] = [80, 90, 100, 120];

/// The oldest architecture the kernels are written for.
const OLDEST: u32 = 70;

/// Options on which the machine code depends, with the same meaning to nvcc and to NVRTC.
const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=true"];

/// Beginnings of the names of kernel files that are also compiled for `y = alpha A x + beta y`.
const SCALED: [&str; 5] = ["csr", "ell", "jds", "packed_", "sell"];

/// Beginnings of the names of kernel files that are also compiled for matrices that do not fit the L2.
const STREAMED: [&str; 9] = ["blocked", "coo", "csr", "ell", "jds", "multi_", "packed_", "sell", "tiles"];

/// Beginnings of the names of kernel files that are also compiled for matrices of few slices.
const SPLIT: [&str; 1] = ["packed_"];

/// A kernel file, compiled with some definitions.
struct Module {
    name: String,
    hash: String,
    /// The complete source in the output folder.
    source: PathBuf,
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    println!("cargo::rerun-if-changed={FOLDER}");
    let variables = [nvcc::VARIABLE, "DOCS_RS", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"];
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

/// The modules: the kernel files in the order of their names, each made complete, with every choice of its definitions.
fn sources(out: &Path) -> Result<Vec<Module>, Box<dyn Error>> {
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
        let file =
            path.file_stem().and_then(|stem| stem.to_str()).ok_or("a kernel file's name is not UTF-8")?;
        let text = splice::splice(&format!("{file}.cu"), &fs::read_to_string(&path)?, &headers)?;
        for (ending, definitions) in variants(file) {
            let name = format!("{file}{ending}");
            let text = format!("{definitions}{text}");
            let source = out.join(format!("{name}.cu"));
            fs::write(&source, &text)?;
            modules.push(Module { name, hash: format!("{:032x}", xxh3_128(text.as_bytes())), source });
        }
    }
    Ok(modules)
}

/// What is added to the name of a kernel file for each of its modules, and their definitions; named as in
/// `src/device/module.rs`.
fn variants(file: &str) -> Vec<(String, String)> {
    let listed = |files: &[&str]| files.iter().any(|beginning| file.starts_with(beginning));
    let scaled = [("", "")].into_iter().chain(listed(&SCALED).then_some(("_scaled", "#define SCALED\n")));
    let sizes = [("", "")].into_iter();
    let sizes = sizes.chain(listed(&STREAMED).then_some(("_streamed", "#define STREAMED\n")));
    let sizes = sizes.chain(listed(&SPLIT).then_some(("_split", "#define SPLIT\n")));
    let both = scaled.flat_map(|scaled| sizes.clone().map(move |size| [scaled, size]));
    both.map(|both| (both.map(|(ending, _)| ending).concat(), both.map(|(_, text)| text).concat())).collect()
}

/// The CUDA compiler, if there is one that works.
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
                "cargo::warning={name} does not work ({reason}): GPU kernels will be compiled when they are first used"
            );
            Ok(None)
        }
    }
}

/// Compiles every kernel file for every target, as many at once as cargo allows: the file, the target, the result.
fn compile(nvcc: &Nvcc, modules: &[Module], out: &Path) -> Result<Vec<(String, Target, PathBuf)>, String> {
    let targets = nvcc.targets(&ARCHITECTURES, OLDEST);
    let jobs: Vec<(&Module, Target)> =
        modules.iter().flat_map(|module| targets.iter().map(move |target| (module, *target))).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((module, target)) = jobs.get(next.fetch_add(1, Relaxed)) {
            let path = out.join(format!("{}.{target}", module.name));
            nvcc.compile(&module.source, *target, &OPTIONS, &path)
                .map_err(|said| format!("nvcc rejects kernels/{}.cu for {target}:\n{said}", module.name))?;
            if let Target::Ptx(_) = target {
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

/// Ends a text with the zero byte that the driver looks for.
fn terminate(path: &Path) -> std::io::Result<()> {
    let mut text = fs::read(path)?;
    text.push(0);
    fs::write(path, text)
}

/// The Rust code of the table.
fn table(modules: &[Module], images: &[(String, Target, PathBuf)]) -> Result<String, std::fmt::Error> {
    let mut identity = OPTIONS.join(" ");
    let mut code = String::new();
    for Module { name, hash, source } in modules {
        write!(identity, " {name} {hash}")?;
        let (mut cubins, mut ptx) = (String::new(), "None".to_owned());
        for (_, target, path) in images.iter().filter(|(module, _, _)| module == name) {
            match target {
                Target::Cubin(arch) => write!(cubins, "({arch}, &Aligned(*include_bytes!({path:?})).0), ")?,
                Target::Ptx(arch) => ptx = format!("Some(({arch}, include_bytes!({path:?})))"),
            }
        }
        writeln!(
            code,
            "    Embedded {{ name: {name:?}, source: include_str!({source:?}), hash: {hash:?}, cubins: &[{cubins}], ptx: {ptx} }},"
        )?;
    }
    let hash = xxh3_128(identity.as_bytes());
    Ok(format!(
        "pub(super) const OPTIONS: &[&str] = &{OPTIONS:?};\n\
         pub(super) const HASH: &str = \"{hash:032x}\";\n\
         pub(super) static MODULES: &[Embedded] = &[\n{code}];\n"
    ))
}
