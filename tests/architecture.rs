//! Rules of `docs/design.md` that the compiler does not enforce.

#[path = "architecture/kernels.rs"]
mod kernels;

use sparseop::formats::FormatKind;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules from the bottom to the top. A module may import from itself and from lower layers,
/// not from its neighbours.
const LAYERS: [&[&str]; 7] = [
    &["error", "files", "memory", "order", "parallel", "precision", "scalar", "trace"],
    &["matrix"],
    &["device"],
    &["analysis"],
    &["formats"],
    &["tuning"],
    &["op"],
];

/// The packages beside the library, each with those that it may depend on besides the library.
const PACKAGES: [(&str, &[&str]); 7] = [
    ("capi", &[]),
    ("cli", &["distributed", "solvers", "testkit", "tune"]),
    ("distributed", &["solvers"]),
    ("python", &["cli", "solvers"]),
    ("solvers", &[]),
    ("testkit", &[]),
    ("tune", &["testkit"]),
];

/// The bottom layer. Its modules may import from each other.
const BOTTOM: &[&str] = LAYERS[0];

/// The table of functions that are compiled in the library. It names all layers, for the scalar
/// types.
const TABLE: (&str, &str) = ("compiled", "scalar");

/// Names that only these files may use: paths below `src`, or with the folder of another package.
#[rustfmt::skip]
const CONFINED: [(&[&str], &[&str]); 4] = [
    (&["Instant"], &["device/kernel_log.rs", "tuning/stopwatch.rs", "solvers/driver.rs",
        "python/interrupt.rs", "distributed/deadline.rs"]),
    (&["println!", "print!", "eprintln!", "eprint!"], &["cli/", "testkit/devices.rs"]),
    (&["fs", "File"], &["matrix/market/", "files.rs", "files/", "tuning/lookup.rs",
        "tuning/profile.rs", "tuning/store.rs", "device/cuda/cache.rs", "cli/",
        "distributed/market.rs", "distributed/processes.rs", "tune/collection.rs",
        "tune/measurements.rs",
        "testkit/devices.rs"]),
    (&["cudarc"], &["device/"]),
];

/// The file with the same types as `device/cuda/`, without GPU support.
const MIRROR: &str = "device/cuda_disabled.rs";

/// Maximum number of lines of a file.
const LINES: usize = 500;

/// Maximum number of characters of a line of Rust, of a comment line of a kernel, and of a line of
/// Markdown outside of tables.
const COLUMNS: usize = 100;

/// The folder of the repository.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn root() -> PathBuf {
    repository().join("src")
}

/// The files below a folder with an extension, in order.
fn files_with(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_with(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Paths below `src` (those of another package's sources begin with the package's folder) and code
/// without comments, `#[cfg(test)]` items and test files. The C interface is not among them.
fn sources() -> Vec<(String, String)> {
    let packages = PACKAGES.iter().map(|(folder, _)| *folder).filter(|folder| *folder != "capi");
    let mut sources = Vec::new();
    for package in packages.chain([""]) {
        let root = repository().join(package).join("src");
        for path in files_with(&root, "rs") {
            let name = Path::new(package).join(path.strip_prefix(&root).unwrap());
            let name = name.to_str().unwrap().replace('\\', "/");
            let is_test = name.starts_with("testing/")
                || name.contains("/tests/")
                || name.ends_with("tests.rs");
            if !is_test {
                sources.push((name, without_tests(&fs::read_to_string(path).unwrap())));
            }
        }
    }
    sources
}

/// The code without comments and `#[cfg(test)]` items.
fn without_tests(text: &str) -> String {
    let mut out = String::new();
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            out.push_str(line);
            out.push('\n');
            continue;
        }
        let mut depth = 0i32;
        for line in lines.by_ref() {
            depth += line.matches('{').count() as i32 - line.matches('}').count() as i32;
            let done = line.trim_end().ends_with([';', '}', ',']);
            if depth <= 0 && done {
                break;
            }
        }
    }
    out
}

/// Paths after each `crate::`, with groups in braces expanded.
fn imports(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        // `$crate` and `some_crate` do not count.
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        let identifier = |text: &str| -> String {
            text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
        };
        let Some(group) = rest.strip_prefix('{') else {
            found.push(identifier(rest));
            continue;
        };
        let (mut depth, mut start) = (0, 0);
        for (i, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    found.push(identifier(&group[start..i]));
                    start = i + 1;
                    if c == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

/// Module of each name that `lib.rs` re-exports.
fn reexports() -> BTreeMap<String, String> {
    let lib = fs::read_to_string(root().join("lib.rs")).unwrap();
    let mut names = BTreeMap::new();
    for line in lib.lines().filter_map(|line| line.strip_prefix("pub use ")) {
        let (module, rest) = line.trim_end_matches(';').split_once("::").unwrap();
        for name in rest.trim_matches(['{', '}']).split(',') {
            names.insert(name.trim().to_owned(), module.to_owned());
        }
    }
    names
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

#[test]
fn imports_go_one_way() {
    let reexports = reexports();
    let mut wrong = Vec::new();
    for (file, code) in sources() {
        let module = file.split(['/', '.']).next().unwrap();
        // Packages import by their dependencies, which another test checks.
        let is_package = PACKAGES.iter().any(|(folder, _)| *folder == module) && file.contains('/');
        if file == "lib.rs" || file == "compiled.rs" || is_package {
            continue;
        }
        let own = layer(module).unwrap_or_else(|| panic!("src/{file}: `{module}` is in no layer"));
        for name in imports(&code) {
            let target = reexports.get(&name).unwrap_or(&name);
            let allowed = target == module
                || (target.as_str(), module) == TABLE
                || (BOTTOM.contains(&module) && BOTTOM.contains(&target.as_str()))
                || layer(target).is_some_and(|layer| layer < own);
            if !allowed {
                wrong.push(format!("src/{file} imports crate::{name}, from `{target}`"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The file of a module, given as the path of its folder or file without an ending.
fn module_file<'a>(files: &'a BTreeMap<String, String>, path: &str) -> Option<&'a str> {
    let names = [format!("{path}.rs"), format!("{path}/mod.rs"), format!("{path}/lib.rs")];
    names.iter().find_map(|name| files.get_key_value(name)).map(|(name, _)| name.as_str())
}

/// Module of a file, as the path of its folder or file without an ending.
fn module_of(file: &str) -> &str {
    let path = file.trim_end_matches(".rs");
    path.strip_suffix("/mod").or(path.strip_suffix("/lib")).unwrap_or(path)
}

/// The files that a file imports, except those of its enclosing modules, whose declarations are
/// common to their folder.
fn imported_files(files: &BTreeMap<String, String>, file: &str) -> BTreeSet<String> {
    let (module, code) = (module_of(file), &files[file]);
    let package =
        file.split('/').next().filter(|first| PACKAGES.iter().any(|(folder, _)| folder == first));
    let mut found = BTreeSet::new();
    for statement in code.split("use ").skip(1) {
        let statement = statement.split(';').next().unwrap();
        for path in expand(statement) {
            let mut at: Vec<&str> = Vec::new();
            let mut segments = path.split("::").peekable();
            match segments.peek() {
                Some(&"crate") => {
                    segments.next();
                    at.extend(package);
                }
                Some(&"super") => {
                    at.extend(module.split('/'));
                    while segments.next_if_eq(&"super").is_some() {
                        at.pop();
                    }
                }
                _ => continue,
            }
            let mut target = None;
            for segment in segments {
                at.push(segment);
                match module_file(files, &at.join("/")) {
                    Some(file) => target = Some(file),
                    None => break,
                }
            }
            let own = |target: &&str| {
                !format!("{module}/").starts_with(&format!("{}/", module_of(target)))
            };
            found.extend(target.filter(own).map(str::to_owned));
        }
    }
    found
}

/// The paths of a `use`, with groups in braces expanded.
fn expand(statement: &str) -> Vec<String> {
    let Some((head, rest)) = statement.split_once('{') else {
        return vec![statement.split(" as ").next().unwrap().trim().to_owned()];
    };
    let body = &rest[..rest.rfind('}').unwrap_or(rest.len())];
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (i, c) in body.char_indices().chain([(body.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&body[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    let paths = parts.into_iter().filter(|part| !part.trim().is_empty());
    paths.flat_map(|part| expand(&format!("{}{}", head.trim(), part.trim()))).collect()
}

#[test]
fn no_files_import_each_other_in_a_loop() {
    let files: BTreeMap<String, String> = sources().into_iter().collect();
    let direct: BTreeMap<&str, BTreeSet<String>> =
        files.keys().map(|file| (file.as_str(), imported_files(&files, file))).collect();
    let reach = |from: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(file) = next.pop() {
            next.extend(
                direct[file.as_str()].iter().filter(|file| seen.insert((*file).clone())).cloned(),
            );
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<String>> =
        files.keys().map(|file| (file.as_str(), reach(file))).collect();
    let loops: BTreeSet<Vec<&str>> = files
        .keys()
        .filter(|file| reached[file.as_str()].contains(*file))
        .map(|file| {
            let both = |other: &&str| {
                reached[file.as_str()].contains(*other) && reached[other].contains(file)
            };
            files.keys().map(String::as_str).filter(both).collect()
        })
        .collect();
    assert!(loops.is_empty(), "{loops:#?}");
}

#[test]
fn packages_depend_one_way() {
    let mut wrong = Vec::new();
    for (folder, allowed) in PACKAGES.into_iter().chain([(".", &[] as &[&str])]) {
        let manifest = fs::read_to_string(repository().join(folder).join("Cargo.toml")).unwrap();
        let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap();
        for name in dependencies.lines().filter_map(|line| line.split([' ', '.']).next()) {
            let own = name.strip_prefix("sparseop").map(|name| name.trim_start_matches('-'));
            if own.is_some_and(|own| folder == "." || !own.is_empty() && !allowed.contains(&own)) {
                wrong.push(format!("{folder}/Cargo.toml depends on {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn clocks_files_and_the_terminal_are_confined() {
    let mut wrong = Vec::new();
    for (file, code) in sources() {
        let words: BTreeSet<&str> =
            code.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '!')).collect();
        for (confined, places) in CONFINED {
            let allowed = places.iter().any(|place| file.starts_with(place));
            let found = confined.iter().find(|word| words.contains(**word));
            if let (Some(word), false) = (found, allowed) {
                wrong.push(format!(
                    "src/{file} has `{word}`, which belongs to {}",
                    places.join(", ")
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn layers_below_the_formats_name_none() {
    let layers = ["matrix/", "device/", "analysis/"];
    for (file, code) in
        sources().iter().filter(|(file, _)| layers.iter().any(|l| file.starts_with(l)))
    {
        for kind in FormatKind::ALL {
            // Names of formats, of their plans, kernels and coefficients.
            let named =
                ["\"", "_", ".", "("].iter().any(|end| code.contains(&format!("\"{kind}{end}")));
            assert!(!named, "src/{file} names {kind}");
        }
    }
}

#[test]
fn the_registry_and_the_folders_are_the_same_formats() {
    let names: Vec<&str> = FormatKind::ALL.iter().map(|kind| kind.name()).collect();
    let registered: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(registered.len(), names.len(), "a name is registered twice: {names:?}");
    let entries = fs::read_dir(root().join("formats")).unwrap().map(|entry| entry.unwrap());
    let folders: BTreeSet<String> = entries
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    assert_eq!(folders.iter().map(String::as_str).collect::<BTreeSet<_>>(), registered);
}

/// Name of the type that a line declares, if any.
fn declared_type(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().peekable();
    while words.next_if(|word| word.starts_with("pub") || *word == "unsafe").is_some() {}
    // `pub(in path)` is two words.
    words.next_if(|word| word.ends_with(')'));
    let kinds = ["struct", "enum", "trait", "union", "type"];
    // Types of traits are indented.
    let kinds = if line.starts_with(' ') { &kinds[..4] } else { &kinds };
    words.next_if(|word| kinds.contains(word))?;
    let name = words.next()?.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    name.starts_with(|c: char| c.is_ascii_uppercase()).then_some(name)
}

/// The files that declare each Rust type.
fn declared_types() -> BTreeMap<String, Vec<String>> {
    let mut declared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let interface = files_with(&repository().join("capi/src"), "rs").into_iter().map(|path| {
        let code = without_tests(&fs::read_to_string(&path).unwrap());
        (path.display().to_string(), code)
    });
    let interface = interface.filter(|(file, _)| !file.ends_with("tests.rs"));
    for (file, code) in sources().into_iter().chain(interface) {
        for name in code.lines().filter_map(declared_type) {
            declared.entry(name.to_owned()).or_default().push(file.clone());
        }
    }
    declared
}

#[test]
fn a_type_name_is_declared_once() {
    let mut declared = declared_types();
    declared.retain(|_, files| match files.as_slice() {
        [one, other] => !(one.starts_with("device/cuda/") && other == MIRROR),
        _ => files.len() > 1,
    });
    assert!(declared.is_empty(), "declared more than once: {declared:#?}");
}

/// The folders with code.
fn code_folders() -> impl Iterator<Item = &'static str> {
    let own = ["build", "src", "tests", "examples", "benches"];
    PACKAGES.iter().map(|(folder, _)| *folder).chain(own)
}

#[test]
fn no_line_is_long() {
    let below = |folder: &str, extension| files_with(&repository().join(folder), extension);
    let mut files: Vec<PathBuf> = code_folders().flat_map(|folder| below(folder, "rs")).collect();
    for folder in code_folders().chain(["docs", "models"]) {
        // Notebooks are left as they were written.
        let history = repository().join("docs/history");
        files.extend(below(folder, "md").into_iter().filter(|path| !path.starts_with(&history)));
    }
    files.extend(["build.rs", "README.md", "CONTRIBUTING.md"].map(|name| repository().join(name)));
    files.extend(kernels::kernel_files());
    let mut wrong = Vec::new();
    for path in files {
        let is_kernel = path.parent().is_some_and(|folder| folder.ends_with("kernels"));
        let counts = |line: &str| match is_kernel {
            true => line.trim_start().starts_with("//"),
            false => !line.starts_with('|'),
        };
        for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            if line.chars().count() > COLUMNS && counts(line) {
                wrong.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "more than {COLUMNS} characters:\n{}", wrong.join("\n"));
}

#[test]
fn no_source_file_is_long() {
    let mut files: Vec<PathBuf> =
        code_folders().flat_map(|folder| files_with(&repository().join(folder), "rs")).collect();
    files.retain(|path| fs::read_to_string(path).unwrap().lines().count() > LINES);
    assert!(files.is_empty(), "more than {LINES} lines: {files:#?}");
}

#[test]
fn the_scanner_sees_what_it_should() {
    let code =
        "use crate::{Error, formats::{Plan, csr}, op};\ncrate::device::cpu()\n$crate::x mycrate::y";
    assert_eq!(imports(code), ["Error", "formats", "op", "device", "x"]);
    let text =
        "a\n// crate::op\n#[cfg(test)]\nmod tests {\n  fn b() {}\n}\nc\n#[cfg(test)]\nuse d;\ne\n";
    assert_eq!(without_tests(text), "a\nc\ne\n");
    for (line, name) in [
        ("pub(crate) struct A<T>(T);", Some("A")),
        ("    enum B {", Some("B")),
        ("pub(in super::super) trait C: D {}", Some("C")),
        ("pub fn f(structure: E) {", None),
        ("pub type F = u8;", Some("F")),
        ("    type Plan = CsrPlan;", None),
    ] {
        assert_eq!(declared_type(line), name, "{line}");
    }
    let code = "use super::b::B;\nuse crate::a::{c::{self, C}, D};\nuse std::fmt;";
    let files = [("a/mod.rs", ""), ("a/b.rs", ""), ("a/c.rs", ""), ("a/e.rs", code)];
    let files = files.map(|(file, code)| (file.to_owned(), code.to_owned())).into();
    let expected = ["a/b.rs", "a/c.rs"].map(str::to_owned);
    assert_eq!(imported_files(&files, "a/e.rs"), expected.into());
}
