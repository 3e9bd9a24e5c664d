//! Embeds the GPU kernels: always their sources, and their machine code if this machine has a CUDA
//! compiler.
//!
//! Writes `kernels.rs` for `src/device/cuda/embedded.rs`, with the feature `cuda`, and `params.rs`
//! for `src/device/kernels.rs`.

#[path = "build/constants.rs"]
mod constants;
#[path = "build/nvcc.rs"]
mod nvcc;
#[path = "build/params.rs"]
mod params;
#[path = "build/splice.rs"]
mod splice;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use nvcc::{Nvcc, NvccTarget};
use splice::Headers;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{env, fs, thread};
use xxhash_rust::xxh3::xxh3_128;

/// Folder of the kernels.
const FOLDER: &str = "kernels";

/// Architectures that get machine code unless [`nvcc::ARCHITECTURES`] names others: one of every
/// generation sold for computing.
const ARCHITECTURES: [u32; 4] = [80, 90, 100, 120];

/// Oldest architecture that the kernels support.
const OLDEST: u32 = 75;

/// Options that the machine code depends on, with the same meaning for nvcc and NVRTC.
const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=true"];

/// Line of a kernel file with the modules that are made from it. A module `KIND` is compiled with
/// the definition `MODULE_KIND`. Without the line a file is one module.
const MODULES: &str = "// Modules: ";

/// Line of a kernel file with the variants of its modules besides the plain one.
const DECLARATION: &str = "// Variants: ";

/// Line of a kernel file whose kernels NVRTC compiles one at a time, because a matrix needs few of
/// them and each takes long.
const SELECTABLE: &str = "// Selectable: one kernel at a time.";

/// All variants. Their words are the suffixes of `src/device/module.rs`.
const VARIANTS: [Variant; 4] = [
    // For `y = alpha A x + beta y`.
    Variant { word: "scaled", definition: "#define SCALED\n", excludes: &[] },
    // For matrices that do not fit the L2.
    Variant { word: "streamed", definition: "#define STREAMED\n", excludes: &[] },
    // For matrices of which no part stays in the L2.
    Variant {
        word: "evict_first",
        definition: "#define STREAMED\n#define EVICT_FIRST\n",
        excludes: &["scaled", "streamed"],
    },
    // For matrices of few slices, which fit the L2.
    Variant {
        word: "shared",
        definition: "#define SHARING\n",
        excludes: &["streamed", "evict_first"],
    },
];

/// Start of the line with the words of the names of modules that few products need.
/// [`nvcc::MODULES`] may leave them out.
const RARE: &str = "// Rare: ";

/// A variant of modules.
struct Variant {
    word: &'static str,
    definition: &'static str,
    /// Variants that it is not combined with.
    excludes: &'static [&'static str],
}

/// A kernel file, compiled with some definitions.
struct KernelModule {
    name: String,
    /// True if it is left out of a build with the common modules.
    rare: bool,
    /// True if its kernels are compiled one at a time.
    selectable: bool,
    hash: String,
    /// The complete source, in the output folder.
    source: PathBuf,
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed={FOLDER}");
    let done = if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        let variables = ["DOCS_RS", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"];
        for variable in variables.into_iter().chain(nvcc::SETTINGS).chain(nvcc::HOMES) {
            println!("cargo::rerun-if-env-changed={variable}");
        }
        parameters().and_then(|()| embed())
    } else {
        parameters()
    };
    if let Err(error) = done {
        error.to_string().lines().for_each(|line| println!("cargo::error={line}"));
    }
}

/// Writes the structs of kernel parameters.
fn parameters() -> Result<(), Box<dyn Error>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(FOLDER)? {
        let path = entry?.path();
        let file = path.file_stem().and_then(|stem| stem.to_str());
        let file = file.ok_or("a kernel file's name is not UTF-8")?.to_owned();
        // A kernel may be declared in the header of its file.
        *files.entry(file).or_insert_with(String::new) += &fs::read_to_string(&path)?;
    }
    let modules: Result<String, _> =
        files.iter().map(|(file, source)| params::module(file, source)).collect();
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    Ok(fs::write(out.join("params.rs"), modules?)?)
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
    headers.insert(constants::HEADER.to_owned(), shared_constants()?);
    let mut all = Vec::new();
    for path in files {
        let file = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .ok_or("a kernel file's name is not UTF-8")?;
        let text = fs::read_to_string(&path)?;
        let endings = modules(file, &text)?;
        let selectable = text.lines().any(|line| line == SELECTABLE);
        let rare: Vec<String> = declared(RARE, &text).into_iter().map(str::to_owned).collect();
        let text = splice::splice(&format!("{file}.cu"), &text, &headers)?;
        for (ending, definitions) in endings {
            let name = format!("{file}{ending}");
            let text = format!("{definitions}{text}");
            let source = out.join(format!("{name}.cu"));
            fs::write(&source, &text)?;
            all.push(KernelModule {
                rare: ending.split('_').any(|word| rare.iter().any(|rare| rare == word)),
                selectable,
                name,
                hash: format!("{:032x}", xxh3_128(text.as_bytes())),
                source,
            });
        }
    }
    Ok(all)
}

/// Returns the header with the constants that the library and the kernels share.
fn shared_constants() -> Result<String, Box<dyn Error>> {
    let mut sources = Vec::new();
    for path in constants::files(Path::new("src"))? {
        println!("cargo::rerun-if-changed={}", path.display());
        let folder = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        let namespace = folder.ok_or("a folder's name is not UTF-8")?.to_owned();
        sources.push((namespace, fs::read_to_string(&path)?));
    }
    Ok(constants::header(&sources)?)
}

/// Words that a kernel file declares in a line.
fn declared<'a>(line: &str, text: &'a str) -> Vec<&'a str> {
    let words = text.lines().find_map(|text| text.strip_prefix(line));
    words.map(|words| words.trim_end_matches('.').split(", ").collect()).unwrap_or_default()
}

/// Returns the modules of a kernel file, as suffixes of its name and definitions: those that it
/// declares, each in every combination of its variants.
fn modules(file: &str, text: &str) -> Result<Vec<(String, String)>, String> {
    let kinds = match declared(MODULES, text) {
        none if none.is_empty() => vec![(String::new(), String::new())],
        kinds => kinds
            .into_iter()
            .map(|kind| (format!("_{kind}"), format!("#define MODULE_{kind}\n")))
            .collect(),
    };
    let words = declared(DECLARATION, text);
    if let Some(word) = words.iter().find(|word| !VARIANTS.iter().any(|v| v.word == **word)) {
        return Err(format!("kernels/{file}.cu: there is no variant `{word}`"));
    }
    let mut all: Vec<Vec<&Variant>> = vec![Vec::new()];
    for variant in VARIANTS.iter().filter(|variant| words.contains(&variant.word)) {
        let combines = |with: &&Vec<&Variant>| {
            !with.iter().any(|other| variant.excludes.contains(&other.word))
        };
        let more: Vec<Vec<&Variant>> = all
            .iter()
            .filter(combines)
            .map(|with| with.iter().copied().chain([variant]).collect())
            .collect();
        all.extend(more);
    }
    let module = |(suffix, definitions): &(String, String), variants: &[&Variant]| {
        let suffixes: String =
            variants.iter().map(|variant| format!("_{}", variant.word)).collect();
        let more: String = variants.iter().map(|variant| variant.definition).collect();
        (format!("{suffix}{suffixes}"), format!("{definitions}{more}"))
    };
    let modules = kinds.iter().flat_map(|kind| all.iter().map(move |with| module(kind, with)));
    Ok(modules.collect())
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

/// Compiles the modules for every target, with as many jobs as cargo allows. Returns the module,
/// the target and the compressed output file.
fn compile(
    nvcc: &Nvcc,
    modules: &[KernelModule],
    out: &Path,
) -> Result<Vec<(String, NvccTarget, PathBuf)>, String> {
    let only_common = nvcc::only_common()?;
    // PTX takes twice the room of the machine code of an architecture.
    let targets = nvcc.targets(&ARCHITECTURES, (!only_common).then_some(OLDEST))?;
    let jobs: Vec<(&KernelModule, NvccTarget)> = modules
        .iter()
        .filter(|module| !(only_common && module.rare))
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
            let ends = matches!(target, NvccTarget::Ptx(_)).then_some(0);
            let path = compressed(&path, ends).map_err(|error| error.to_string())?;
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

/// Compresses a file to a fifth, and removes it. At the end of PTX the driver expects a zero byte.
fn compressed(path: &Path, end: Option<u8>) -> std::io::Result<PathBuf> {
    let mut bytes = fs::read(path)?;
    bytes.extend(end);
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&bytes)?;
    let to = PathBuf::from(format!("{}.z", path.display()));
    fs::write(&to, encoder.finish()?)?;
    fs::remove_file(path)?;
    Ok(to)
}

/// Generates the Rust code of the table of modules.
fn table(
    modules: &[KernelModule],
    images: &[(String, NvccTarget, PathBuf)],
) -> Result<String, std::fmt::Error> {
    let mut identity = OPTIONS.join(" ");
    let mut code = String::new();
    for KernelModule { name, selectable, hash, source, .. } in modules {
        write!(identity, " {name} {hash}")?;
        let (mut cubins, mut ptx) = (String::new(), "None".to_owned());
        for (_, target, path) in images.iter().filter(|(module, _, _)| module == name) {
            match target {
                NvccTarget::Cubin(arch) => write!(cubins, "({arch}, include_bytes!({path:?})), ")?,
                NvccTarget::Ptx(arch) => ptx = format!("Some(({arch}, include_bytes!({path:?})))"),
            }
        }
        writeln!(
            code,
            "    Embedded {{ name: {name:?}, source: include_str!({source:?}), hash: {hash:?}, \
             selectable: {selectable}, cubins: &[{cubins}], ptx: {ptx} }},"
        )?;
    }
    let hash = xxh3_128(identity.as_bytes());
    Ok(format!(
        "pub(super) const OPTIONS: &[&str] = &{OPTIONS:?};\n\
         pub(super) const HASH: &str = \"{hash:032x}\";\n\
         pub(super) static MODULES: &[Embedded] = &[\n{code}];\n"
    ))
}
