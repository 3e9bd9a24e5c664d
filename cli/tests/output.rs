//! Standard output that cannot be written, and matrices that do not fit the memory.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::process::{Command, Output, Stdio};

/// Runs the program with the given standard output.
fn run(args: &[&str], out: Stdio) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sparseop"))
        .args(args)
        .env("SPARSEOP_DEVICE", "cpu")
        .env("SPARSEOP_STORE", "off")
        .stdout(out)
        .stderr(Stdio::piped())
        .spawn()
        .and_then(std::process::Child::wait_with_output)
        .unwrap()
}

/// Exit code and standard error.
fn said(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

const PRINTING: [&[&str]; 6] = [
    &["analyze", "gallery:small,n=3", "gallery:small,n=4", "-q"],
    &["analyze", "gallery:small,n=3", "--json", "-q"],
    &["apply", "gallery:small,n=3", "-q"],
    &["gallery", "list"],
    &["--help"],
    &["--version"],
];

#[test]
fn a_full_device_is_an_error_of_standard_output() {
    for args in PRINTING {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (code, said) = said(&run(args, full.into()));
        assert_eq!(code, Some(1), "{args:?}: {said}");
        let expected = "error: cannot write to standard output: No space left on device";
        assert!(said.starts_with(expected) && said.lines().count() == 1, "{args:?}: {said}");
        assert!(!said.contains("small"), "no matrix is named: {said}");
    }
}

#[test]
fn a_closed_standard_output_is_an_error() {
    for args in PRINTING {
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" >&-", "sh", env!("CARGO_BIN_EXE_sparseop")]).args(args);
        let (code, said) = said(&shell.env("SPARSEOP_DEVICE", "cpu").output().unwrap());
        assert_eq!(code, Some(1), "{args:?}: {said}");
        assert_eq!(said, "error: cannot write to standard output: it is closed\n", "{args:?}");
    }
}

#[test]
fn a_discarded_or_closed_pipe_is_no_error() {
    for args in PRINTING {
        assert_eq!(said(&run(args, Stdio::null())), (Some(0), String::new()), "{args:?}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(said(&run(args, writer.into())), (Some(0), String::new()), "{args:?}");
    }
}

#[test]
fn vectors_that_do_not_fit_the_memory_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let wide = folder.path().join("wide.mtx");
    let text = "%%MatrixMarket matrix coordinate real general\n3 4294967294 1\n1 1 1.0\n";
    fs::write(&wide, text).unwrap();
    // The limit of the address space makes every machine a small one.
    let limited = |args: &str| {
        let mut shell = Command::new("sh");
        let program = env!("CARGO_BIN_EXE_sparseop");
        shell.args(["-c", &format!("ulimit -v 8000000; exec \"$0\" {args}"), program]);
        shell.arg(&wide).env("SPARSEOP_DEVICE", "cpu").env("RAYON_NUM_THREADS", "2");
        said(&shell.output().unwrap())
    };
    let (code, said) = limited("apply \"$1\" -q --plan csr");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("error: 34359738352 bytes of memory are needed"), "{said}");
    for args in ["bench \"$1\" -q --baselines none --seconds 0.001", "analyze \"$1\" --symmetry -q"]
    {
        let (code, said) = limited(args);
        assert_eq!(code, Some(1), "{args}: {said}");
        assert!(said.contains("memory") || said.contains("this process may use"), "{said}");
    }
}
