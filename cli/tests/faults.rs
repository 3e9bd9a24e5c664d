//! Faults of the system: full disks, limits on files, folders of others, no home, and kills at any
//! moment. Outputs and stores are whole or absent, and the next run succeeds.
#![cfg(target_os = "linux")]

mod common;
#[path = "common/library.rs"]
mod library;

use common::stdout;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sparseop");

/// A command that writes a file of some hundred KiB.
const WRITE: &str = "gallery write uniform,rows=20k a.mtx";

/// A command that writes a report.
const REPORT: &str = "bench gallery:small,n=30 --plans csr --seconds 0.001 --baselines none \
     --report page.html -q";

/// A command that writes a journal and a profile.
const TUNE: &str = "tune gallery:small,n=30 gallery:banded,rows=500 gallery:uniform,rows=500 \
     --dtype f32 --seconds 0.005 --out mine.ron -q";

/// A command that stores a decision.
const CALIBRATE: &str = "apply gallery:small,n=30 --tuning calibrate --calibration-seconds 0.1 \
     --remember -v --out /dev/null";

/// A command in a folder, with its store there.
fn command(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::piped());
    command.envs([("RAYON_NUM_THREADS", "2"), ("SPARSEOP_DEVICE", "cpu")]);
    command.envs([("SPARSEOP_PROFILE", "off"), ("SPARSEOP_STORE", "store")]);
    command
}

/// The program in a folder.
fn program(args: &str, folder: &Path) -> Command {
    let mut program = command(PROGRAM, folder);
    program.args(args.split_whitespace());
    program
}

/// Exit code and standard error.
fn said(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Runs the commands in a shell where no byte can be written to a file after the command `setup`.
/// The shell begins in an empty folder.
fn check_full(shell: &[&str], setup: &str, reason: &str) {
    let folder = tempfile::tempdir().unwrap();
    for args in [WRITE, REPORT, TUNE, CALIBRATE] {
        let mut shell_in = command(shell[0], folder.path());
        // Prints the files that the program leaves.
        let script = format!("{setup}; '{PROGRAM}' {args}; find . -type f -size +0 >&2; exit 7");
        shell_in.args(&shell[1..]).args(["-c", &script]);
        let (code, said) = said(shell_in);
        assert_eq!(code, Some(7), "{args}: {said}");
        assert!(said.contains(reason), "{args}: {said}");
        let is_error = said.lines().any(|line| line.starts_with("error: cannot write "));
        assert_eq!(is_error, args != CALIBRATE, "{args}: {said}");
        let left: Vec<&str> = said.lines().filter(|line| line.starts_with("./")).collect();
        assert!(left.iter().all(|file| *file == "./filler"), "{args}: {left:?}");
        assert_eq!(files(folder.path()), [] as [PathBuf; 0], "{args}: {said}");
    }
}

#[test]
fn a_limit_of_no_bytes_leaves_nothing_half_written() {
    check_full(&["sh"], "ulimit -f 0", "File too large");
}

#[test]
fn a_full_disk_leaves_nothing_half_written() {
    let shell = ["unshare", "--map-root-user", "--mount", "sh"];
    let setup = "mount -t tmpfs -o size=4k none . && cd \"$PWD\" && head -c 4096 /dev/zero >filler";
    let folder = tempfile::tempdir().unwrap();
    let mut attempt = command(shell[0], folder.path());
    attempt.args(&shell[1..]).args(["-c", &format!("{setup} || exit 1")]);
    match attempt.output() {
        Ok(output) if output.status.success() => {
            check_full(&shell, setup, "No space left on device");
        }
        _ => println!("skipped: no file system can be mounted"),
    }
}

#[test]
fn a_journal_that_cannot_grow_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = command("sh", folder.path());
    // Room for the first records.
    shell.args(["-c", &format!("ulimit -f 30; exec '{PROGRAM}' {TUNE}")]);
    let (code, reason) = said(shell);
    assert_eq!(code, Some(1), "{reason}");
    assert!(reason.contains("cannot write to mine.ron.journal: File too large"), "{reason}");
    assert!(!folder.path().join("mine.ron").exists());
    let (code, reason) = said(program(TUNE, folder.path()));
    assert_eq!(code, Some(0), "{reason}");
    assert!(folder.path().join("mine.ron").exists());
    assert!(!folder.path().join("mine.ron.journal").exists());
}

/// Gives the program to a user without rights and without a home, if this one may do that.
fn without_rights(program: &mut Command) {
    // SAFETY: the call has no argument and always succeeds.
    if unsafe { libc::geteuid() } == 0 {
        program.uid(65_534).gid(65_534);
    }
}

#[test]
fn a_home_that_cannot_be_written_or_found_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    for (home, mode) in [(folder.path().to_str().unwrap(), 0o555), ("", 0o777), ("here", 0o777)] {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        let mut program = program(CALIBRATE, folder.path());
        program.env_clear().envs([("HOME", home), ("SPARSEOP_DEVICE", "cpu")]);
        if home != "here" {
            without_rights(&mut program);
        }
        let Ok(output) = program.output() else {
            println!("skipped: another user may not run the program");
            continue;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{home}: {said}");
        let unkept =
            ["storing it failed: cannot create", "there is no folder for stored decisions"];
        let is_kept = !unkept.iter().any(|reason| said.contains(reason));
        // A user without a home in the environment may have one in the system's list.
        assert!(!is_kept || home.is_empty(), "{home}: {said}");
        assert_eq!(files(folder.path()), [] as [PathBuf; 0], "{home}: {said}");
    }
}

#[test]
fn refused_threads_are_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let limited = |threads: u32, args: &str| {
        let mut shell = command("setpriv", folder.path());
        shell.args("--reuid 65534 --regid 65534 --clear-groups bash -c".split(' '));
        shell.arg(format!("ulimit -u {threads} && exec '{PROGRAM}' {args}"));
        shell.env("RAYON_NUM_THREADS", "4");
        shell
    };
    if !limited(9, "--version").output().is_ok_and(|output| output.status.success()) {
        println!("skipped: setpriv cannot run the program as another user");
        return;
    }
    let tune = "tune gallery:small,n=30 --dtype f32 --seconds 0.001 --records r.ron --fresh \
         --out mine.ron -q";
    let refit = "tune --from r.ron --out again.ron -q";
    let solve = "solve gallery:small,n=30,values=laplacian";
    for threads in [1, 2, 4] {
        for args in [tune, refit, WRITE, REPORT, "analyze a.mtx", solve] {
            let (code, said) = said(limited(threads, args));
            assert_eq!(code, Some(0), "{threads} threads, {args}: {said}");
        }
    }
}

/// True if a temporary file is in the folder.
fn is_writing(folder: &Path) -> bool {
    files(folder).iter().any(|file| is_temporary(file))
}

fn is_temporary(file: &Path) -> bool {
    file.file_name().unwrap().to_string_lossy().starts_with(".sparseop-")
}

/// Kills runs of a command at some moments of its time and while it writes, each with a new store,
/// and checks the outputs after each kill and after a whole run. `check` gets an output, which is a
/// file or in a folder.
fn check_kills(args: &str, output: &str, check: impl Fn(&Path)) {
    const KILLS: u32 = 4;
    let outputs = |folder: &Path| {
        let path = folder.join(output);
        let mut found = if path.is_file() { vec![path] } else { files(&path) };
        found.retain(|file| !is_temporary(file));
        found.iter().for_each(|file| check(file));
        found.len()
    };
    let run = |folder: &Path| {
        let begin = Instant::now();
        let (code, said) = said(program(args, folder));
        assert!(code == Some(0) && !said.contains("damaged"), "{args}: {said}");
        assert!(outputs(folder) > 0, "{args}: no output");
        begin.elapsed()
    };
    let first = tempfile::tempdir().unwrap();
    let time = run(first.path());
    let (mut killed, mut writing) = (0, 0);
    for kill in 0..KILLS {
        let folder = tempfile::tempdir().unwrap();
        // With an output to replace, or without one.
        let before = first.path().join(output);
        if kill % 4 >= 2 && before.is_file() {
            fs::copy(before, folder.path().join(output)).unwrap();
        }
        let begin = Instant::now();
        let mut child = program(args, folder.path()).stderr(Stdio::null()).spawn().unwrap();
        let is_due = || match kill % 2 {
            0 => begin.elapsed() >= time * (2 * kill + 1) / (2 * KILLS),
            _ => is_writing(folder.path()),
        };
        while child.try_wait().unwrap().is_none() && !is_due() {
            std::thread::sleep(Duration::from_micros(200));
        }
        child.kill().unwrap();
        if child.wait().unwrap().signal() == Some(libc::SIGKILL) {
            killed += 1;
            writing += u32::from(is_writing(folder.path()));
        }
        outputs(folder.path());
        run(folder.path());
    }
    assert!(killed >= KILLS / 2 && writing > 0, "{args}: {killed} killed, {writing} writing");
}

#[test]
fn a_kill_at_any_moment_leaves_whole_files() {
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    let first = std::cell::OnceCell::new();
    check_kills(WRITE, "a.mtx", |path| {
        assert!(*first.get_or_init(|| text(path)) == text(path), "the file is another one");
    });
    check_kills(REPORT, "page.html", |path| {
        assert!(text(path).trim_end().ends_with("</html>"));
    });
    check_kills(TUNE, "mine.ron", |path| {
        stdout(&["profile", "show", path.to_str().unwrap()]);
    });
    check_kills(CALIBRATE, "store", |path| {
        assert!(text(path).contains("\n)\n// "), "{}", text(path));
    });
}

/// A library that writes the system calls of files to standard error, before it passes them on.
const CALLS: &str = r#"
use std::ffi::{c_char, c_int, c_void};
use std::mem::transmute;

extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The function of the system with a name.
unsafe fn next(name: &[u8]) -> *mut c_void {
    dlsym(-1isize as *mut c_void, name.as_ptr().cast())
}

#[no_mangle]
pub unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    let found = std::fs::metadata(format!("/proc/self/fd/{fd}")).unwrap();
    eprintln!("call: sync {}", if found.is_dir() { "folder" } else { "file" });
    transmute::<_, extern "C" fn(c_int) -> c_int>(next(b"fsync\0"))(fd)
}

type Text = *const c_char;
type Renameat = extern "C" fn(c_int, Text, c_int, Text) -> c_int;

#[no_mangle]
pub unsafe extern "C" fn renameat(a: c_int, from: Text, b: c_int, to: Text) -> c_int {
    eprintln!("call: rename");
    transmute::<_, Renameat>(next(b"renameat\0"))(a, from, b, to)
}

type Unlinkat = extern "C" fn(c_int, Text, c_int) -> c_int;

#[no_mangle]
pub unsafe extern "C" fn unlinkat(folder: c_int, name: Text, flags: c_int) -> c_int {
    eprintln!("call: remove");
    transmute::<_, Unlinkat>(next(b"unlinkat\0"))(folder, name, flags)
}
"#;

#[test]
fn a_file_is_on_the_disk_before_it_has_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("calls.so");
    if !library::build(CALLS, &library) {
        return;
    }
    let calls = |args: &str| {
        let mut watched = program(args, folder.path());
        let (code, said) = said({
            watched.env("LD_PRELOAD", &library);
            watched
        });
        assert_eq!(code, Some(0), "{said}");
        let calls: Vec<&str> =
            said.lines().filter_map(|line| line.strip_prefix("call: ")).collect();
        calls.join(", ")
    };
    let renamed = "sync file, rename, sync folder";
    assert_eq!(calls(WRITE), renamed);
    assert_eq!(calls(WRITE), renamed);
    fs::hard_link(folder.path().join("a.mtx"), folder.path().join("b.mtx")).unwrap();
    assert_eq!(calls(WRITE), format!("{renamed}, sync file, remove, sync folder"));
    assert_eq!(calls(CALIBRATE), "sync file, rename");
}
