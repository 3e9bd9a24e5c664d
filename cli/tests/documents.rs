//! The commands of README.md and docs/guide: those of the program are run, and what those of cargo
//! name must exist. Tables of the guides.

mod common;

use common::{sparseop, stdout};
use sparseop::formats::FormatKind;
use std::fs;
use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// README.md and the guides.
fn documents() -> Vec<PathBuf> {
    let guides = fs::read_dir(repository().join("docs/guide")).unwrap();
    let guides = guides.map(|entry| entry.unwrap().path());
    let mut documents: Vec<PathBuf> =
        guides.filter(|path| path.extension().is_some_and(|e| e == "md")).collect();
    documents.push(repository().join("README.md"));
    documents.sort();
    documents
}

/// Blocks of a document in this language, without the fences.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let blocks = text.split(&*fence).skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// Commands of shell blocks as words, without comments; a backslash continues a line.
fn commands(text: &str) -> Vec<Vec<String>> {
    let blocks: Vec<String> =
        blocks(text, "sh").iter().map(|block| block.replace("\\\n", " ")).collect();
    let lines = blocks.iter().flat_map(|block| block.lines());
    let commands = lines.map(|line| {
        let words = line.split_whitespace().take_while(|word| !word.starts_with('#'));
        words.map(str::to_owned).collect::<Vec<_>>()
    });
    commands.filter(|words| !words.is_empty()).collect()
}

/// Runs a command in `folder`, its measurements shortened, and returns the standard output.
fn run(words: &[String], folder: &Path) -> String {
    let mut args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    match args[0] {
        "bench" => args.extend(["--seconds", "0.005"]),
        "tune" => args.extend(["--seconds", "0.01", "--no-remember"]),
        "analyze" if args.contains(&"calibrate") => args.extend(["--calibration-seconds", "0.05"]),
        _ => {}
    }
    let output = sparseop(&args).current_dir(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", words.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

/// A folder with the files of the package that commands name.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("examples/data");
    fs::create_dir_all(&data).unwrap();
    for entry in fs::read_dir(repository().join("examples/data")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, data.join(path.file_name().unwrap())).unwrap();
    }
    folder
}

#[test]
fn the_commands_of_the_documents_run() {
    let folder = folder();
    let mut count = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for words in commands(&text).iter().filter(|words| words[0] == "sparseop") {
            run(words, folder.path());
            count += 1;
        }
    }
    assert!(count >= 18, "{count} commands");
}

#[test]
fn what_cargo_commands_name_exists() {
    let mut count = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for words in commands(&text).iter().filter(|words| words[0] == "cargo") {
            let after = |option: &str| {
                let place = words.iter().position(|word| word == option)?;
                words.get(place + 1).map(String::as_str)
            };
            let package = match after("-p") {
                Some("sparseop-cli") => "cli".to_owned(),
                Some(name) => name.trim_start_matches("sparseop-").to_owned(),
                None => ".".to_owned(),
            };
            let root = repository().join(package);
            assert!(root.join("Cargo.toml").is_file(), "{words:?}");
            if let Some(example) = after("--example") {
                assert!(root.join(format!("examples/{example}.rs")).is_file(), "{words:?}");
            }
            if let Some(path) = after("--path") {
                let path = path.trim_start_matches("PATH/TO/CLONE").trim_start_matches('/');
                assert!(root.join(path).join("Cargo.toml").is_file(), "{words:?}");
            }
            count += 1;
        }
    }
    assert!(count >= 4, "{count} commands");
}

/// First words of the lines up to the first empty one.
fn heads(text: &str) -> Vec<&str> {
    let lines = text.lines().take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.split_whitespace().next()).collect()
}

#[test]
fn the_output_in_the_guide_has_the_lines_of_the_program() {
    let text = fs::read_to_string(repository().join("docs/guide/program.md")).unwrap();
    let folder = folder();
    let shown = blocks(&text, "text");
    let shown: Vec<Vec<&str>> = shown.iter().map(|block| heads(block)).collect();
    for command in ["analyze", "bench"] {
        let words = ["sparseop", command, "examples/data/plate.mtx"].map(str::to_owned);
        let printed = run(&words, folder.path());
        assert!(shown.contains(&heads(&printed)), "{command}: {printed}");
    }
}

#[test]
fn the_matrix_of_the_package_is_small_and_solved_by_cg() {
    let file = repository().join("examples/data/plate.mtx");
    assert!(fs::metadata(&file).unwrap().len() < 200_000);
    let text = stdout(&["solve", file.to_str().unwrap(), "--json"]);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["method"], &report["converged"]), (&"cg".into(), &true.into()));
}

#[test]
fn the_guide_has_a_row_for_every_format() {
    let guide = fs::read_to_string(repository().join("docs/guide/formats.md")).unwrap();
    for format in FormatKind::ALL {
        let row = format!("| [`{format}`](../../src/formats/{format}/mod.rs) |");
        assert!(guide.contains(&row), "docs/guide/formats.md lacks the row {row}");
    }
}
