//! docs/promises.md names tests that exist, and the last run of every search for faults.

use std::fs;
use std::path::Path;

/// Tests in the last column of a table: the file and the function of each.
fn tests_of(row: &str) -> Vec<(String, String)> {
    let column = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
    let files = column.split(';').filter_map(|part| part.split_once(':'));
    let name = |text: &str| text.trim().trim_matches('`').to_owned();
    files
        .flat_map(|(file, tests)| tests.split(',').map(move |test| (name(file), name(test))))
        .collect()
}

/// True if a source has a test of this name that is not ignored.
fn has_test(source: &str, test: &str) -> bool {
    let definition = format!("fn {test}(");
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let is_test = |at: usize| {
        let mut attributes = lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
        attributes.clone().any(|line| *line == "#[test]")
            && !attributes.any(|line| line.starts_with("#[ignore"))
    };
    (0..lines.len()).any(|at| lines[at].starts_with(&definition) && is_test(at))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Rows of the tables of promises, and of the table of searches.
fn rows() -> [Vec<String>; 2] {
    let text = fs::read_to_string(root().join("docs/promises.md")).unwrap();
    let (promises, searches) = text.split_once("## Searches for faults").unwrap();
    [promises, searches].map(|part| {
        let heads = ["| ---", "| promise |", "| search |"];
        let rows = part.lines().filter(|line| line.starts_with("| "));
        rows.filter(|row| !heads.iter().any(|head| row.starts_with(head)))
            .map(str::to_owned)
            .collect()
    })
}

/// Defect of a row of the table of searches: a command that is not there, or a last run without its
/// date, commit and machine.
fn defect_of_search(row: &str) -> Option<&'static str> {
    let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
    let [command, aim, run, result] = cells[..] else { return Some("four columns") };
    let words: Vec<&str> = command.trim_matches('`').split(' ').collect();
    let is_script = words[0].starts_with("scripts/") && root().join(words[0]).is_file();
    let test = words.windows(2).find(|pair| pair[0] == "--test").map(|pair| pair[1]);
    let folders = ["tests", "distributed/tests"];
    let exists = |test: &str| folders.iter().any(|to| root().join(to).join(test).is_file());
    let is_test = words.windows(2).any(|pair| pair == ["cargo", "test"])
        && test.is_none_or(|test| exists(&format!("{test}.rs")));
    if !is_script && !is_test {
        return Some("a command that exists");
    }
    let run: Vec<&str> = run.split(", ").collect();
    let [date, commit, machine] = run[..] else { return Some("date, commit and machine") };
    let digits =
        |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    let date: Vec<&str> = date.split('-').collect();
    if !matches!(date[..], [y, m, d] if digits(y, 4) && digits(m, 2) && digits(d, 2)) {
        return Some("a date");
    }
    let hash = commit.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')).unwrap_or("");
    if hash.len() < 7 || !hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
        return Some("a commit");
    }
    let is_empty = [aim, machine, result].iter().any(|cell| cell.trim().is_empty());
    is_empty.then_some("aim, machine and result")
}

#[test]
fn every_search_has_its_command_and_its_last_run() {
    let [_, searches] = rows();
    for row in &searches {
        assert_eq!(defect_of_search(row), None, "{row}");
    }
    assert!(searches.len() > 10, "the table is read");
}

/// Fuzz targets, each with a file that does not name it: as a target of every run, as a program, or
/// with a last run.
fn forgotten_targets(searches: &[String]) -> Vec<(String, &'static str)> {
    let lines_of = |file: &str, start: &str| {
        let text = fs::read_to_string(root().join(file)).unwrap();
        text.lines().filter(|line| line.trim().starts_with(start)).collect::<Vec<_>>().join(" ")
    };
    let runs = searches.iter().filter(|row| row.starts_with("| `scripts/fuzz "));
    let runs: Vec<&str> = runs.filter_map(|row| row.split('`').nth(1)).collect();
    let places = [
        ("scripts/fuzz", lines_of("scripts/fuzz", "targets=(")),
        ("fuzz/Cargo.toml", lines_of("fuzz/Cargo.toml", "name = ")),
        ("docs/promises.md", runs.join(" ")),
    ];
    let has =
        |text: &str, name: &str| text.split(|c: char| !c.is_alphanumeric()).any(|w| w == name);
    let files = fs::read_dir(root().join("fuzz/fuzz_targets")).unwrap();
    let names = files.map(|file| file.unwrap().path().file_stem().unwrap().to_owned());
    names
        .map(|name| name.into_string().unwrap())
        .flat_map(|name| {
            let missing = places.iter().filter(|(_, text)| !has(text, &name));
            missing.map(|(place, _)| (name.clone(), *place)).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn every_fuzz_target_has_a_last_run() {
    let [_, searches] = rows();
    assert_eq!(forgotten_targets(&searches), []);
    assert!(forgotten_targets(&[]).len() > 10, "the targets are read");
}

#[test]
fn every_promise_has_its_tests() {
    let [rows, _] = rows();
    let mut promises = 0;
    for row in &rows {
        promises += 1;
        let tests = tests_of(row);
        assert!(!tests.is_empty(), "no test: {row}");
        for (file, test) in tests {
            let source = fs::read_to_string(root().join(&file))
                .unwrap_or_else(|error| panic!("{file}: {error}: {row}"));
            assert!(has_test(&source, &test), "{file} has no test `{test}`: {row}");
        }
    }
    assert!(promises > 20, "the tables are read");
}

#[test]
fn a_missing_test_is_seen() {
    let row = "| Something. | `a.rs`: `one`, `two`; `b.rs`: `three` |";
    let named = [("a.rs", "one"), ("a.rs", "two"), ("b.rs", "three")];
    assert_eq!(tests_of(row), named.map(|(file, test)| (file.to_owned(), test.to_owned())));
    let source = "#[test]\nfn one() {}\n\nfn two() {}\n\n#[cfg(unix)]\n#[test]\nfn three() {}\n\n\
                  #[test]\n#[ignore]\nfn four() {}\n\n#[ignore = \"slow\"]\n#[test]\nfn five() {}";
    assert_eq!(
        ["one", "two", "three", "on", "four", "five"].map(|test| has_test(source, test)),
        [true, false, true, false, false, false]
    );
}

#[test]
fn a_search_without_its_command_or_its_last_run_is_seen() {
    for (row, defect) in [
        ("| `scripts/miri` | a | 2026-11-25, `1246a54`, x86-64 | b |", None),
        ("| `A=1 cargo test --test promises` | a | 2026-11-25, `1246a54`, x86-64 | b |", None),
        (
            "| `scripts/none` | a | 2026-11-25, `1246a54`, x86-64 | b |",
            Some("a command that exists"),
        ),
        (
            "| `cargo test --test none` | a | 2026-11-25, `1246a54`, x86-64 | b |",
            Some("a command that exists"),
        ),
        ("| `scripts/miri` | a | b |", Some("four columns")),
        ("| `scripts/miri` | a | 2026-11-25, x86-64 | b |", Some("date, commit and machine")),
        ("| `scripts/miri` | a | 2026-11, `1246a54`, x86-64 | b |", Some("a date")),
        ("| `scripts/miri` | a | 2026-11-25, `1246a5`, x86-64 | b |", Some("a commit")),
        ("| `scripts/miri` | a | 2026-11-25, 1246a54, x86-64 | b |", Some("a commit")),
    ] {
        assert_eq!(defect_of_search(row), defect, "{row}");
    }
}
