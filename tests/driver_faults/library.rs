//! A library in place of the driver of a GPU, which passes calls on and can refuse them, and the
//! process that runs with it. Needs a GPU, a C compiler and nm.

use sparseop::{Error, ErrorKind};
use sparseop_testkit::gpu;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};

/// Environment variable of the process: the path of the library.
const CHILD: &str = "SPARSEOP_TEST_DRIVER";

/// The library: every function of the driver is counted, and refused or passed on.
const LIBRARY: &str = include_str!("library.c");

/// Functions of the driver that the library defines.
const OF_MEMORY: [&str; 4] =
    ["cuMemAlloc_v2", "cuMemAllocFromPoolAsync", "cuMemFree_v2", "cuMemGetInfo_v2"];

/// Assembler for a function of the driver: number, name.
fn trampoline(number: usize, name: &str) -> String {
    format!(
        ".globl {name}\n.type {name},@function\n{name}:\n\
         push %rdi\npush %rsi\npush %rdx\npush %rcx\npush %r8\npush %r9\nsub $8,%rsp\n\
         mov ${number},%edi\ncall refused@PLT\nmov %eax,%r11d\n\
         add $8,%rsp\npop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\n\
         test %r11d,%r11d\njne 1f\n\
         mov functions@GOTPCREL(%rip),%rax\njmp *{offset}(%rax)\n\
         1: mov %r11d,%eax\nret\n",
        offset = 8 * number
    )
}

/// Kind of a function: the number that the library gives it.
fn kind_of(name: &str) -> u8 {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let allocations = ["cuMemAlloc", "cuMemHostAlloc", "cuModuleLoad", "cuEventCreate"];
    let more = ["cuStreamCreate", "cuGraphInstantiate", "cuMemPoolCreate"];
    // A lost device still describes errors and contexts; memory that is not freed would be missing
    // in the rest of the test.
    let never =
        ["cuGetError", "cuCtx", "cuInit", "cuDriver", "cuDevice", "cuThreadExchange", "cuMemFree"];
    match name {
        _ if begins(&allocations) || begins(&more) => 2,
        _ if begins(&never) || name.contains("Destroy") || name.contains("Unload") => 1,
        _ => 0,
    }
}

/// Path of the driver that this process has loaded.
fn driver() -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().find(|line| line.contains("/libcuda.so"))?;
    Some(path[path.find('/')?..].to_owned())
}

/// Output of a program; the reason if it fails.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Prints why a test is left out, which is an error where a GPU is required.
pub(crate) fn leave_out(reason: &str) {
    let required = env::var("SPARSEOP_REQUIRE_GPU").unwrap_or_default();
    assert!(required.is_empty() || required == "0", "SPARSEOP_REQUIRE_GPU={required}: {reason}");
    println!("skipped: {reason}");
}

/// Builds the library for a driver in a folder, or returns the reason why there is none.
pub(crate) fn build(folder: &Path, driver: &str) -> Result<(), String> {
    let symbols = output(Command::new("nm").args(["-D", "--defined-only", driver]))?;
    let names: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(|name| name.split('@').next().unwrap())
        .filter(|name| {
            name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(char::is_uppercase))
                && !OF_MEMORY.contains(name)
        })
        .collect();
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let kinds: Vec<String> = names.iter().map(|name| kind_of(name).to_string()).collect();
    let code = format!(
        "#define COUNT {}\n#define DRIVER \"{driver}\"\n{LIBRARY}\n\
         const char *const names[] = {{{}}};\nconst unsigned char kinds[] = {{{}}};\n",
        names.len(),
        quoted.join(","),
        kinds.join(",")
    );
    let trampolines: String =
        names.iter().enumerate().map(|(number, name)| trampoline(number, name)).collect();
    fs::write(folder.join("driver.c"), code).unwrap();
    fs::write(folder.join("functions.s"), format!("{trampolines}.section .note.GNU-stack,\"\"\n"))
        .unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-w", "-o", "libcuda.so.1", "driver.c"]);
    output(compiler.args(["functions.s", "-ldl"]).current_dir(folder))?;
    fs::copy(folder.join("libcuda.so.1"), folder.join("libcuda.so")).unwrap();
    Ok(())
}

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// A function of a library.
///
/// # Safety
///
/// It has the type `F`.
pub(crate) unsafe fn function<F>(library: &str, name: &CStr) -> F {
    const NOW: c_int = 2;
    let library = CString::new(library).unwrap();
    // SAFETY: the strings live until the calls return.
    let function = unsafe { dlsym(dlopen(library.as_ptr(), NOW), name.as_ptr()) };
    assert!(!function.is_null(), "{name:?}");
    // SAFETY: the caller's promise; both are pointers.
    unsafe { std::mem::transmute_copy(&function) }
}

/// Failures of the driver, in the process with the library.
pub(crate) struct Faults {
    arm: unsafe extern "C" fn(c_long, c_int, c_int, c_int),
    counted: unsafe extern "C" fn() -> c_long,
    allocated: unsafe extern "C" fn() -> c_long,
    allow: unsafe extern "C" fn(c_long),
}

/// A kind of failure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    /// Result of the driver.
    code: c_int,
    /// Calls that are counted: the kind of the library.
    kind: c_int,
    /// True if every later call fails too.
    stays: bool,
}

impl Faults {
    /// No memory for one allocation, an illegal address at one call, and a lost device.
    pub(crate) const ALL: [Fault; 3] = [
        Fault { code: 2, kind: 2, stays: false },
        Fault { code: 700, kind: 0, stays: false },
        Fault { code: 719, kind: 0, stays: true },
    ];

    pub(crate) fn load(path: &str) -> Self {
        // SAFETY: the library has functions of these types.
        unsafe {
            Self {
                arm: function(path, c"arm"),
                counted: function(path, c"counted"),
                allocated: function(path, c"allocated"),
                allow: function(path, c"allow"),
            }
        }
    }

    pub(crate) fn arm(&self, call: usize, Fault { code, kind, stays }: Fault) {
        // SAFETY: writes numbers.
        unsafe { (self.arm)(call as c_long, code, kind, stays.into()) };
    }

    pub(crate) fn disarm(&self) {
        // SAFETY: as above.
        unsafe { (self.arm)(-1, 0, 0, 0) };
    }

    /// Calls since the last `arm`.
    pub(crate) fn counted(&self) -> usize {
        // SAFETY: reads a number.
        unsafe { (self.counted)() as usize }
    }

    /// Another process leaves so many bytes when more are asked for; 0: it ends.
    pub(crate) fn allow(&self, bytes: u64) {
        // SAFETY: writes numbers.
        unsafe { (self.allow)(bytes as c_long) };
    }

    /// Allocations that are not freed.
    pub(crate) fn allocated(&self) -> i64 {
        // SAFETY: as above.
        unsafe { (self.allocated)() }
    }
}

/// Vectors that an operator has computed, in the order in which they were complete.
pub(crate) type Results = Vec<Vec<f64>>;

/// Longest time of work with a failure.
const LONGEST: Duration = Duration::from_secs(30);

/// Allocations of a GPU that may be kept for later work.
const KEPT: i64 = 8;

/// Work during which calls of the driver fail.
pub(crate) struct Trial<'a> {
    pub(crate) name: &'a str,
    /// Results without a failure, the first of which is a product.
    pub(crate) right: &'a Results,
    /// Kinds of errors that a failure may become.
    pub(crate) kinds: &'a [ErrorKind],
    /// Number of failures of each kind, evenly over the calls; `None`: every call fails.
    pub(crate) failures: Option<usize>,
    pub(crate) gpus: usize,
}

impl Trial<'_> {
    /// True if a result is almost that without a failure. A choice among plans may differ after a
    /// failure, and so may the bits.
    fn is_right(&self, at: usize, found: &[f64]) -> bool {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * b.abs().max(1.0);
        found.iter().zip(&self.right[at]).all(near)
    }

    /// Repeats `work` with failures of every kind, each time at a later call, until it ends before
    /// the call: no result is wrong, errors are typed, and what has been built multiplies rightly
    /// or fails.
    pub(crate) fn run<Op>(
        &self,
        faults: &Faults,
        work: impl Fn(&mut Option<Op>, &mut Results) -> Result<(), Error>,
        multiply: impl Fn(&Op) -> Result<Vec<f64>, Error>,
    ) {
        let (name, before) = (self.name, faults.allocated());
        let (mut failures, mut unusable, mut codes) = ([0; 3], 0, 0);
        for (fault, count) in Faults::ALL.into_iter().zip(&mut failures) {
            let step = self.failures.map_or(1, |most| {
                faults.arm(c_long::MAX as usize, fault);
                let _ = work(&mut None, &mut Results::new());
                faults.counted().div_ceil(most).max(1)
            });
            for call in (0..).step_by(step) {
                let (mut op, mut done, begin) = (None, Results::new(), Instant::now());
                faults.arm(call, fault);
                let result = work(&mut op, &mut done);
                let reached = faults.counted() > call;
                faults.disarm();
                let what = format!("{name}, {fault:?}, call {call}");
                assert!(begin.elapsed() < LONGEST, "{what}: {:?}", begin.elapsed());
                if let Err(error) = &result {
                    let kind = error.kind();
                    let is_code = |code| code == Some(fault.code as u32);
                    codes +=
                        usize::from(matches!(error, Error::Gpu { code, .. } if is_code(*code)));
                    let is_own = kind == ErrorKind::Unsupported && done == *self.right;
                    let is_known = reached && self.kinds.contains(&kind);
                    assert!(is_known || is_own, "{what}: {kind:?}, {error}");
                    assert!(!error.to_string().contains('\n'), "{what}: {error}");
                }
                for (at, found) in done.iter().enumerate() {
                    assert!(self.is_right(at, found), "{what}: wrong result {at}");
                }
                for product in op.iter().map(&multiply) {
                    match product {
                        Ok(y) => assert!(self.is_right(0, &y), "{what}: wrong afterwards"),
                        Err(error) => {
                            unusable += 1;
                            println!("CHILD {what}: unusable: {error}");
                        }
                    }
                }
                if !reached {
                    break;
                }
                *count += 1;
            }
        }
        let left = faults.allocated() - before;
        println!(
            "CHILD {name}: {failures:?} failures, {unusable} unusable, {left} allocations left"
        );
        assert!(codes > 0, "{name}: no error has the code of the driver");
        assert!(left <= KEPT * self.gpus as i64, "{name}: {left} allocations are left");
    }
}

/// Runs a test of this program in a process with the library, where it calls `body`; unless there
/// is no GPU or no library can be built. The process has `variables` of its environment.
pub(crate) fn in_process_with_library(
    test: &str,
    variables: &[(&str, &str)],
    body: impl FnOnce(&Faults),
) {
    if let Ok(library) = env::var(CHILD) {
        body(&Faults::load(&library));
        println!("CHILD done");
        return;
    }
    if gpu().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let built = driver().ok_or_else(|| "no driver is loaded".to_owned());
    if let Err(reason) = built.and_then(|driver| build(folder.path(), &driver)) {
        return leave_out(&reason);
    }
    let inherited = env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let child = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, folder.path().join("libcuda.so"))
        .env("LD_LIBRARY_PATH", format!("{}:{inherited}", folder.path().display()))
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout).into_owned();
    let said = String::from_utf8_lossy(&child.stderr);
    text.lines().filter(|line| line.starts_with("CHILD")).for_each(|line| println!("{line}"));
    assert!(child.status.success() && text.contains("CHILD done"), "{text}\n{said}");
}
