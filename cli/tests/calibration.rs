//! Calibration on real devices and its stored decisions, through the program, whose environment a
//! test may change.

mod common;

use common::{sparseop, stdout};
use serde_json::Value;
use sparseop::tuning::store::sealed;
use std::fs;
use std::path::{Path, PathBuf};

/// A matrix small enough for short timing runs and large enough for plans to differ.
const MATRIX: &str = "gallery:fem3d,n=10";

/// Standard error of `apply -v` with decisions stored below `store`.
fn said(store: &Path, args: &[&str]) -> String {
    let fixed = ["apply", MATRIX, "--out", "/dev/null", "-v"];
    let assert =
        sparseop(&[&fixed[..], args].concat()).env("SPARSEOP_STORE", store).assert().success();
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}

/// A short calibration with a stored decision.
const REMEMBERED: [&str; 5] =
    ["--tuning", "calibrate", "--calibration-seconds", "0.2", "--remember"];

/// The files stored below a folder.
fn entries(store: &Path) -> Vec<PathBuf> {
    let Ok(files) = fs::read_dir(store.join("sparseop/decisions")) else { return Vec::new() };
    files.map(|file| file.unwrap().path()).collect()
}

/// The line of an explanation that begins with a word.
fn line<'a>(text: &'a str, word: &str) -> &'a str {
    text.lines()
        .find(|line| line.starts_with(word))
        .unwrap_or_else(|| panic!("no line `{word}` in {text}"))
}

#[test]
fn a_calibration_explains_itself() {
    let args = ["analyze", MATRIX, "--tuning", "calibrate", "--calibration-seconds", "5"];
    let text = stdout(&args);
    assert!(text.lines().next().unwrap().contains(" per product measured on "), "{text}");
    assert!(line(&text, "timing run ").contains(" plans in "), "{text}");
    let text = stdout(&[&args[..], &["-v"]].concat());
    let text = text.split("\nmatrix   ").last().unwrap();
    assert!(line(text, "timing run ").contains("candidates, caches warm, "), "{text}");
    assert!(text.contains("measured") && text.contains(" µs ±"), "{text}");
    let report: Value =
        serde_json::from_str(&stdout(&[&args[..], &["--json", "--cold"]].concat())).unwrap();
    let candidates = report["candidates"].as_array().unwrap();
    assert_eq!(
        (&candidates[0]["verdict"], &candidates[0]["plan"]),
        (&"chosen".into(), &report["plan"])
    );
    let measured =
        candidates.iter().filter(|c| c["measured_us"].as_f64().is_some_and(|us| us > 0.0)).count();
    assert!(measured > 1 && measured < candidates.len(), "{measured}");
}

#[test]
fn few_products_do_not_amortise_a_calibration() {
    let text = stdout(&["analyze", MATRIX, "--tuning", "calibrate", "--expected-calls", "2"]);
    assert!(
        line(&text, "timing run ").contains("none: it takes ") && !text.contains("measured  "),
        "{text}"
    );
}

#[test]
fn bench_times_the_calibrated_plan() {
    let plans = "csr(scalar),calibrated";
    let args =
        ["bench", MATRIX, "--plans", plans, "--seconds", "0.01", "--json", "--baselines", "none"];
    let text =
        stdout(&[&args[..], &["--calibration-seconds", "0.1", "--expected-calls", "2"]].concat());
    let report: Value = serde_json::from_str(&text).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert!(
        runs.iter().any(|run| run["plan"] == report["calibrated_plan"] && run["completed"] == true),
        "{text}"
    );
    let without: Value =
        serde_json::from_str(&stdout(&args.map(|a| if a == plans { "csr" } else { a }))).unwrap();
    assert_eq!(without["calibrated_plan"], Value::Null);
}

#[test]
fn a_stored_decision_replaces_the_second_calibration() {
    let store = tempfile::tempdir().unwrap();
    let first = said(store.path(), &REMEMBERED);
    assert!(line(&first, "store ").contains("no stored decision; now stored in "), "{first}");
    assert_eq!(entries(store.path()).len(), 1);
    let plan = line(&first, "plan ").to_owned();
    // The stored decision also applies without calibration.
    for args in [&REMEMBERED[..], &["--remember"]] {
        let again = said(store.path(), args);
        assert!(
            line(&again, "timing run ").contains("none, stored less than a day ago: "),
            "{again}"
        );
        assert_eq!(
            (line(&again, "plan "), again.contains(" to time")),
            (plan.as_str(), false),
            "{again}"
        );
    }
    let other = said(store.path(), &["--remember", "--expected-calls", "7"]);
    assert!(line(&other, "store ").ends_with("no stored decision"), "{other}");
    let never = said(store.path(), &[]);
    assert!(!never.contains("\nstore ") && !never.contains("\ntiming run "), "{never}");
}

#[test]
fn damaged_and_old_entries_are_timed_again_and_the_reason_is_reported() {
    let store = tempfile::tempdir().unwrap();
    said(store.path(), &REMEMBERED);
    let entry = entries(store.path()).remove(0);
    let whole = fs::read_to_string(&entry).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(whole.contains(from), "{whole}");
        let (text, _checksum) = whole.rsplit_once("\n//").unwrap();
        sealed(&text.replacen(from, to, 1))
    };
    for (text, expected) in [
        (String::new(), "damaged"),
        (whole[..whole.len() / 2].to_owned(), "damaged"),
        (whole.replacen("rounds: ", "rounds: 1", 1), "damaged: its checksum"),
        (changed("winner: \"", "winner: \"x"), "damaged"),
        (changed("schema: 5", "schema: 0"), "out of date"),
        (changed("kernels: \"", "kernels: \"x"), "kernels of another version"),
        (changed("threads: ", "threads: 9"), "another matrix or request"),
    ] {
        fs::write(&entry, text).unwrap();
        let text = said(store.path(), &REMEMBERED);
        let store_line = line(&text, "store ");
        assert!(
            store_line.contains(expected) && store_line.contains("now stored in"),
            "{expected}: {text}"
        );
        assert!(line(&text, "timing run ").contains("caches warm"), "{text}");
    }
    assert!(line(&said(store.path(), &REMEMBERED), "timing run ").contains("none, stored"));
}

#[test]
fn a_stored_plan_must_be_admissible() {
    let store = tempfile::tempdir().unwrap();
    let args = [&REMEMBERED[..], &["--deterministic"]].concat();
    said(store.path(), &args);
    let entry = entries(store.path()).remove(0);
    let whole = fs::read_to_string(&entry).unwrap();
    let from = whole.find("winner: \"").unwrap() + "winner: \"".len();
    let winner = whole[from..].split('"').next().unwrap();
    let (text, _checksum) = whole.rsplit_once("\n//").unwrap();
    let text = text.replace(&format!("\"{winner}\""), "\"coo(atomic)\"");
    fs::write(&entry, sealed(&text)).unwrap();
    let text = said(store.path(), &args);
    assert!(
        line(&text, "store ").contains("cannot be used: coo(atomic), not bitwise reproducible"),
        "{text}"
    );
    assert!(!line(&text, "plan ").contains("coo(atomic)"), "{text}");
}

#[test]
fn a_store_that_is_not_writable_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let text = said(&file, &REMEMBERED);
    assert!(line(&text, "store ").contains("storing it failed: cannot create "), "{text}");
    let text = said(Path::new("off"), &REMEMBERED);
    assert!(line(&text, "store ").contains("there is no folder for stored decisions"), "{text}");
    let fixed = ["apply", MATRIX, "--out", "/dev/null", "-v"];
    let homeless = sparseop(&[&fixed[..], &REMEMBERED].concat())
        .env_remove("SPARSEOP_STORE")
        .env("HOME", &file)
        .env("XDG_DATA_HOME", &file)
        .assert()
        .success();
    assert!(String::from_utf8_lossy(&homeless.get_output().stderr).contains("\nstore "));
}

#[test]
fn many_processes_share_a_store() {
    let store = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let text = said(store.path(), &REMEMBERED);
                let reported = text.contains("now stored in") || text.contains("none, stored");
                assert!(reported && !text.contains("damaged"), "{text}");
            });
        }
    });
    assert_eq!(entries(store.path()).len(), 1, "one entry, and nothing half-written");
    assert!(said(store.path(), &REMEMBERED).contains("none, stored"));
}

#[test]
fn deterministic_refuses_a_plan_that_is_not_reproducible() {
    let assert =
        sparseop(&["apply", MATRIX, "--plan", "coo(atomic)", "--deterministic"]).assert().code(1);
    let message = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(message.contains("the bits of plan coo(atomic) may differ"), "{message}");
}
