//! Embeds the GPU kernels: their sources, and the machine code in `kernels/compiled` that was made
//! from the same sources (`scripts/compile-kernels`).
//!
//! Writes `kernels.rs` for `src/device/cuda/embedded.rs`, with the feature `cuda`, and `params.rs`
//! for `src/device/kernels.rs`.

#[path = "build/constants.rs"]
mod constants;
#[path = "build/params.rs"]
mod params;
#[path = "build/splice.rs"]
mod splice;

use splice::Headers;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};
use xxhash_rust::xxh3::xxh3_128;

/// Folder of the kernels.
const FOLDER: &str = "kernels";

/// Folder of machine code: `sm_90/csr.tar.zst` for the modules of `csr.cu`, and [`INDEX`].
const COMPILED: &str = "kernels/compiled";

/// File with the hash and the name of every module that has been compiled, after a line with their
/// version and the compiler.
const INDEX: &str = "modules";

/// Environment variable with the architectures whose machine code is embedded: `80,90`; `none` for
/// sources alone.
const ARCHITECTURES: &str = "SPARSEOP_ARCHITECTURES";

/// Options of NVRTC. It treats unmarked functions as host functions without the last one, and
/// rejects lambdas.
const OPTIONS: [&str; 3] = ["--std=c++17", "--fmad=true", "--device-as-default-execution-space"];

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

/// Start of the line with the words of the names of modules that few products need, which have no
/// machine code.
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
    /// Name of the kernel file, without its extension.
    file: String,
    /// True if it has no machine code.
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
        println!("cargo::rerun-if-env-changed={ARCHITECTURES}");
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
        if path.is_dir() {
            continue;
        }
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
    let architectures = architectures()?;
    Ok(fs::write(out.join("kernels.rs"), table(&modules, &compiled()?, &architectures)?)?)
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
                file: file.to_owned(),
                hash: hash_of(&text),
                source,
            });
        }
    }
    Ok(all)
}

/// Identifies the machine code of a source by the same compiler.
fn hash_of(text: &str) -> String {
    format!("{:032x}", xxh3_128(format!("{} {text}", OPTIONS.join(" ")).as_bytes()))
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

/// Returns the hashes of the modules that have been compiled, by name.
fn compiled() -> Result<BTreeMap<String, String>, Box<dyn Error>> {
    let path = Path::new(COMPILED).join(INDEX);
    if !path.is_file() {
        return Ok(BTreeMap::new());
    }
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let entry =
        |line: &str| Some(line.split_once(' ')?).map(|(hash, name)| (name.into(), hash.into()));
    Ok(text.lines().filter_map(entry).collect())
}

/// Returns the architectures whose machine code is embedded, in increasing order.
fn architectures() -> Result<BTreeSet<u32>, Box<dyn Error>> {
    let mut there = BTreeSet::new();
    let entries = Path::new(COMPILED).is_dir().then(|| fs::read_dir(COMPILED)).transpose()?;
    for entry in entries.into_iter().flatten() {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("sm_"));
        there.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    let asked = env::var(ARCHITECTURES).unwrap_or_default();
    match asked.as_str() {
        "" => Ok(there),
        "none" => Ok(BTreeSet::new()),
        list => {
            let number = |text: &str| text.trim().parse().ok().filter(|arch| there.contains(arch));
            let numbers: Option<BTreeSet<u32>> = list.split(',').map(number).collect();
            let wrong =
                || format!("{ARCHITECTURES} is none, or a list of some of {there:?}, not {list}");
            Ok(numbers.ok_or_else(wrong)?)
        }
    }
}

/// Generates the Rust code of the table of modules, with the archives of those whose sources are
/// the compiled ones.
fn table(
    modules: &[KernelModule],
    compiled: &BTreeMap<String, String>,
    architectures: &BTreeSet<u32>,
) -> Result<String, Box<dyn Error>> {
    let mut identity = String::new();
    let (mut table, mut archives, mut rare) = (String::new(), BTreeMap::new(), Vec::new());
    for module in modules {
        let KernelModule { name, file, selectable, hash, source, .. } = module;
        write!(identity, " {name} {hash}")?;
        let mut own = String::new();
        let is_compiled = compiled.get(name) == Some(hash) && !module.rare;
        for arch in architectures.iter().filter(|_| is_compiled) {
            let path = fs::canonicalize(format!("{COMPILED}/sm_{arch}/{file}.tar.zst"))?;
            let archive = format!("{}_{arch}", file.to_uppercase());
            write!(own, "({arch}, {archive}), ")?;
            archives.insert(archive, path);
        }
        rare.extend(module.rare.then_some(name));
        writeln!(
            table,
            "    Embedded {{ name: {name:?}, file: {file:?}, source: include_str!({source:?}), \
             hash: {hash:?}, selectable: {selectable}, archives: &[{own}] }},"
        )?;
    }
    let mut statics = String::new();
    for (archive, path) in archives {
        writeln!(statics, "static {archive}: &[u8] = include_bytes!({path:?});")?;
    }
    let hash = xxh3_128(identity.as_bytes());
    Ok(format!(
        "pub(super) const OPTIONS: &[&str] = &{OPTIONS:?};\n\
         pub(super) const HASH: &str = \"{hash:032x}\";\n\
         #[cfg(test)]\n\
         pub(super) const RARE: &[&str] = &{rare:?};\n\
         {statics}\
         pub(super) static MODULES: &[Embedded] = &[\n{table}];\n"
    ))
}
