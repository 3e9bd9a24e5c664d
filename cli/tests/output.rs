//! Standard output that cannot be written, and matrices that do not fit the memory.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
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

const SOLVABLE: &str = "gallery:small,n=3,values=laplacian";

const PRINTING: [&[&str]; 12] = [
    &["analyze", "gallery:small,n=3", "gallery:small,n=4", "-q"],
    &["analyze", "gallery:small,n=3", "--json", "-q"],
    &["apply", "gallery:small,n=3", "-q"],
    &["bench", SOLVABLE, "--plans", "csr", "--baselines", "none", "--seconds", "0.001", "-q"],
    &["solve", SOLVABLE, "-q"],
    &["rank", "gallery:small,n=3", "-q"],
    &["devices", "-q"],
    &["profile", "show", "-q"],
    &["gallery", "list"],
    &["tune", "--help"],
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

/// Runs the program with so many KiB of address space, which makes every machine a small one.
fn limited(kib: u32, args: &str, matrix: &Path) -> (Option<i32>, String) {
    let mut shell = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_sparseop");
    shell.args(["-c", &format!("ulimit -v {kib}; exec \"$0\" {args}"), program]).arg(matrix);
    shell.envs([("SPARSEOP_DEVICE", "cpu"), ("SPARSEOP_STORE", "off"), ("RAYON_NUM_THREADS", "2")]);
    said(&shell.current_dir(matrix.parent().unwrap()).output().unwrap())
}

/// Checks that the program needs more memory than that, and says so.
fn check_limited(kib: u32, args: &str, matrix: &Path) {
    let (code, said) = limited(kib, args, matrix);
    assert_eq!(code, Some(1), "{args}: {said}");
    // The message of an abort is "memory allocation of ... bytes failed".
    let is_refused = said.contains("bytes of memory are needed") || said.contains("may use");
    assert!(is_refused && !said.contains("memory allocation of"), "{args}: {said}");
}

#[test]
fn vectors_that_do_not_fit_the_memory_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = |name: &str, sizes: &str| {
        let path = folder.path().join(name);
        let text = format!("%%MatrixMarket matrix coordinate real general\n{sizes} 1\n1 1 1.0\n");
        fs::write(&path, text).unwrap();
        path
    };
    let wide = matrix("wide.mtx", "3 4294967294");
    let (code, said) = limited(8_000_000, "apply \"$1\" -q --plan csr", &wide);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("error: 34359738352 bytes of memory are needed"), "{said}");
    // Every command that reads a matrix.
    let commands = [
        "analyze \"$1\" --symmetry -q",
        "apply \"$1\" -q",
        "bench \"$1\" -q --baselines none --seconds 0.001",
        "bench \"$1\" -q --baselines sprs --plans csr --seconds 0.001",
        "bench \"$1\" -q --first",
        "plan-distributed \"$1\" -q",
        "tune \"$1\" -q --dtype f64 --seconds 0.001 --calibrate --out fitted.ron",
    ];
    for args in commands {
        check_limited(8_000_000, args, &wide);
    }
    // There is room for the matrix, and not for everything else.
    let tall = matrix("tall.mtx", "20000000 20000000");
    for args in commands.into_iter().chain(["solve \"$1\" -q", "rank \"$1\" -q"]) {
        check_limited(400_000, args, &tall);
    }
}

#[test]
fn records_that_do_not_fit_the_memory_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let records = folder.path().join("records.zst");
    let mut tune = Command::new(env!("CARGO_BIN_EXE_sparseop"));
    tune.args(["tune", "gallery:small", "-q", "--dtype", "f64", "--seconds", "0.001"]);
    tune.arg("--records").arg(&records).arg("--out").arg(folder.path().join("fitted.ron"));
    tune.envs([("SPARSEOP_DEVICE", "cpu"), ("SPARSEOP_STORE", "off")]);
    assert!(tune.output().unwrap().status.success());
    let text = zstd::decode_all(File::open(&records).unwrap()).unwrap();
    let (header, record) = text.split_at(text.iter().position(|byte| *byte == b'\n').unwrap() + 1);
    let write = |name: &str, part: &[u8], times: usize| {
        let path = folder.path().join(name);
        let mut file = zstd::Encoder::new(File::create(&path).unwrap(), 1).unwrap();
        file.write_all(header).unwrap();
        (0..times).for_each(|_| file.write_all(part).unwrap());
        file.finish().unwrap();
        path
    };
    let endless = write("endless.zst", &[b'x'; 1 << 20], 1 << 10);
    let (code, said) = limited(300_000, "tune --from \"$1\" --out fitted.ron", &endless);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("line 2 has more than 1048576 bytes"), "{said}");
    let many = write("many.zst", record, 20_000);
    check_limited(150_000, "tune --from \"$1\" --out fitted.ron", &many);
}

#[test]
fn what_is_no_file_and_has_no_end_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let zeros = folder.path().join("zeros");
    std::os::unix::fs::symlink("/dev/zero", &zeros).unwrap();
    // Without a process that writes.
    let pipe = folder.path().join("pipe.mtx");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let large = folder.path().join("large");
    File::create(&large).unwrap().set_len((16 << 20) + 1).unwrap();
    let classes = "tune gallery:small -q --out fitted.ron --classes \"$1\"";
    let inner = folder.path().join("folder");
    fs::create_dir(&inner).unwrap();
    let no_file = "not a regular file";
    for (args, path, expected) in [
        (classes, &zeros, no_file),
        (classes, &pipe, no_file),
        (classes, &large, "has more than 16777216 bytes"),
        ("tune --out fitted.ron --from \"$1\"", &pipe, no_file),
        ("analyze gallery:small -q --profile \"$1\"", &pipe, no_file),
        ("analyze . # \"$1\"", &pipe, "pipe.mtx is not a regular file and is skipped"),
        (classes, &inner, no_file),
        ("tune --out fitted.ron --from \"$1\"", &inner, no_file),
        ("analyze gallery:small -q --profile \"$1\"", &inner, no_file),
        ("analyze \"$1\"", &inner, "there is no matrix in"),
        ("apply gallery:small,n=3 -q --x \"$1\"", &inner, "is a directory"),
        ("apply gallery:small,n=3 -q --out \"$1\"", &inner, "Is a directory"),
        ("gallery write small,n=3 \"$1\"", &inner, "Is a directory"),
        ("apply gallery:small,n=3 -q --x \"$1\"", &zeros, "above the limit of 1049728 bytes"),
        ("solve gallery:small,n=3 -q --rhs \"$1\"", &zeros, "above the limit of 1049728 bytes"),
    ] {
        let (code, said) = limited(1_000_000, args, path);
        assert_eq!(code, Some(1), "{args}: {said}");
        assert!(said.contains(expected), "{args}: {said}");
    }
    assert_eq!(fs::read_dir(&inner).unwrap().count(), 0);
}

#[test]
fn matrices_and_vectors_may_come_from_pipes() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = folder.path().join("a.mtx");
    fs::write(&matrix, "%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 7\n").unwrap();
    let (code, text) = limited(1_000_000, "apply - -q < \"$1\" | grep -qx 7.0", &matrix);
    assert_eq!(code, Some(0), "{text}");
    let args = "apply gallery:small,n=3 -q --out y.mtx --x /dev/stdin < \"$1\"";
    let x = folder.path().join("x");
    fs::write(&x, "1\n".repeat(9)).unwrap();
    assert_eq!(limited(1_000_000, args, &x), (Some(0), String::new()));
    let args = "apply gallery:small,n=3 -q --out z.mtx --x <(cat \"$1\")";
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("\"$0\" {args}"), env!("CARGO_BIN_EXE_sparseop")]).arg(&x);
    assert_eq!(said(&shell.current_dir(folder.path()).output().unwrap()).0, Some(0));
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(read("y.mtx"), read("z.mtx"));
}
