//! docs/promises.md names tests that exist.

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

#[test]
fn every_promise_has_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("docs/promises.md")).unwrap();
    let rows = text.lines().filter(|line| {
        line.starts_with("| ") && !line.starts_with("| ---") && !line.starts_with("| promise |")
    });
    let mut promises = 0;
    for row in rows {
        promises += 1;
        let tests = tests_of(row);
        assert!(!tests.is_empty(), "no test: {row}");
        for (file, test) in tests {
            let source = fs::read_to_string(root.join(&file))
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
