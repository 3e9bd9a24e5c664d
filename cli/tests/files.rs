//! Files of others: their records, and their names on a terminal.
#![cfg(unix)]

mod common;

use common::{sparseop, stdout};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_record_that_others_can_write_is_ignored_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let calibrate = ["--tuning", "calibrate", "--calibration-seconds", "0.2", "--remember"];
        let output = sparseop(&[&["analyze", "gallery:small,n=30"], &calibrate[..], args].concat())
            .env("SPARSEOP_STORE", folder.path())
            .assert()
            .success()
            .get_output()
            .clone();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (_, said) = run(&[]);
    assert!(!said.contains("not trusted"), "{said}");
    let entries = fs::read_dir(folder.path().join("sparseop/decisions")).unwrap();
    let record = entries.map(|entry| entry.unwrap().path()).next().unwrap();
    fs::set_permissions(&record, fs::Permissions::from_mode(0o666)).unwrap();
    let (_, said) = run(&[]);
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("not trusted")).collect();
    let [line] = lines[..] else { panic!("{said}") };
    assert!(line.starts_with("warning: ") && line.contains(record.to_str().unwrap()), "{line}");
    assert!(line.contains("chmod go-w") && line.contains("SPARSEOP_STORE"), "{line}");
    // It was replaced by one of the user's own.
    assert!(!run(&[]).1.contains("not trusted"));
    fs::set_permissions(&record, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(!run(&["-q"]).1.contains("not trusted"));
}

#[test]
fn names_reach_the_terminal_without_control_characters() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a\u{1b}[2J\nb\u{202e}.mtx");
    let path = file.to_str().unwrap();
    let text = "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1 1.0\n";
    fs::write(&file, text).unwrap();
    let found = stdout(&["analyze", path]);
    assert!(found.contains("a\\u{1b}[2J\\nb\\u{202e}.mtx") && !found.contains('\u{1b}'), "{found}");
    fs::write(&file, "nothing").unwrap();
    let output = sparseop(&["analyze", path]).assert().code(1).get_output().stderr.clone();
    let said = String::from_utf8(output).unwrap();
    assert!(said.contains("a\\u{1b}[2J\\nb\\u{202e}.mtx") && !said.contains('\u{1b}'), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    // Profiles, records, tables, vectors and outputs, also those that are missing.
    let given = "gallery:small,n=30";
    let rows: [&[&str]; 8] = [
        &["profile", "check", path],
        &["profile", "show", path],
        &["analyze", given, "--profile", path],
        &["tune", "--from", path, "--out", "/dev/null"],
        &["tune", given, "--classes", path, "--out", "/dev/null"],
        &["apply", given, "--x", path],
        &["apply", given, "--out", "/nowhere/a\u{1b}[2J\nb.mtx"],
        &["analyze", "/nowhere/a\u{1b}[2J\nb.mtx"],
    ];
    for args in rows {
        let output = sparseop(args).assert().code(1).get_output().clone();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.contains("a\\u{1b}[2J\\nb"), "{args:?}: {said}");
        let is_printable = |c: char| c == '\n' || !c.is_control();
        assert!(said.chars().all(is_printable), "{args:?}: {said:?}");
    }
    // Members of an archive, between which there is no choice.
    let second = folder.path().join("b\u{1b}[2J.mtx");
    fs::copy(&file, &second).unwrap();
    let archive = folder.path().join("members.tar.gz");
    let mut tar = std::process::Command::new("tar");
    tar.arg("-C").arg(folder.path()).arg("-czf").arg(&archive);
    tar.args([&file, &second].map(|path| path.file_name().unwrap()));
    if tar.status().is_ok_and(|status| status.success()) {
        let args = ["analyze", archive.to_str().unwrap()];
        let output = sparseop(&args).assert().code(1).get_output().stderr.clone();
        let said = String::from_utf8(output).unwrap();
        assert!(said.contains("a\\u{1b}[2J\\nb") && !said.contains('\u{1b}'), "{said:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_open_file_is_written_behind_its_position() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let args = ["apply", "gallery:small,n=3", "-q", "--json", "--out"];
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let out = fs::File::create(&path).unwrap();
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_sparseop"));
        program.args(args).arg(name).env("SPARSEOP_DEVICE", "cpu").stdout(out);
        assert!(program.status().unwrap().success());
        let text = fs::read_to_string(&path).unwrap();
        let (vector, json) = text.trim_end().rsplit_once('\n').unwrap();
        assert!(vector.starts_with("%%MatrixMarket") && json.starts_with('{'), "{name}: {text}");
    }
}
