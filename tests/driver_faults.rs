//! Calls of the GPU driver that fail, one after the other, and a GPU that is lost at any of them:
//! a typed error or a right answer, and an operator that never multiplies wrongly afterwards.
//!
//! A process of its own runs with a library that passes the calls on to the driver and can refuse
//! them. Needs a GPU, a C compiler and nm.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use sparseop::formats::FormatKind;
use sparseop::matrix::{CsrMatrix, gallery};
use sparseop::{
    Device, DeviceVec, Error, ErrorKind, Layout, Multivector, SparseOp, SparseOpBuilder, Stream,
    Tuning,
};
use sparseop_solvers::{Method, Settings, SolverBuilder};
use sparseop_testkit::gpu;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// Environment variable of the process: the path of the library.
const CHILD: &str = "SPARSEOP_TEST_DRIVER";

/// The library: every function of the driver is counted, and refused or passed on.
const LIBRARY: &str = include_str!("driver_faults/library.c");

/// Functions of the driver that the library defines.
const OF_MEMORY: [&str; 3] = ["cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2"];

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
    let more = ["cuStreamCreate", "cuGraphInstantiate"];
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
fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Prints why a test is left out, which is an error where a GPU is required.
fn leave_out(reason: &str) {
    let required = env::var("SPARSEOP_REQUIRE_GPU").unwrap_or_default();
    assert!(required.is_empty() || required == "0", "SPARSEOP_REQUIRE_GPU={required}: {reason}");
    println!("skipped: {reason}");
}

/// Builds the library for a driver in a folder, or returns the reason why there is none.
fn build(folder: &Path, driver: &str) -> Result<(), String> {
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
unsafe fn function<F>(library: &str, name: &CStr) -> F {
    const NOW: c_int = 2;
    let library = CString::new(library).unwrap();
    // SAFETY: the strings live until the calls return.
    let function = unsafe { dlsym(dlopen(library.as_ptr(), NOW), name.as_ptr()) };
    assert!(!function.is_null(), "{name:?}");
    // SAFETY: the caller's promise; both are pointers.
    unsafe { std::mem::transmute_copy(&function) }
}

/// Failures of the driver, in the process with the library.
struct Faults {
    arm: unsafe extern "C" fn(c_long, c_int, c_int, c_int),
    counted: unsafe extern "C" fn() -> c_long,
    allocated: unsafe extern "C" fn() -> c_long,
    allow: unsafe extern "C" fn(c_long),
}

/// A kind of failure.
#[derive(Debug, Clone, Copy)]
struct Fault {
    /// Result of the driver.
    code: c_int,
    /// Calls that are counted: the kind of the library.
    kind: c_int,
    /// True if every later call fails too.
    stays: bool,
}

impl Faults {
    /// No memory for one allocation, an illegal address at one call, and a lost device.
    const ALL: [Fault; 3] = [
        Fault { code: 2, kind: 2, stays: false },
        Fault { code: 700, kind: 0, stays: false },
        Fault { code: 719, kind: 0, stays: true },
    ];

    fn load(path: &str) -> Self {
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

    fn arm(&self, call: usize, Fault { code, kind, stays }: Fault) {
        // SAFETY: writes numbers.
        unsafe { (self.arm)(call as c_long, code, kind, stays.into()) };
    }

    fn disarm(&self) {
        // SAFETY: as above.
        unsafe { (self.arm)(-1, 0, 0, 0) };
    }

    /// Calls since the last `arm`.
    fn counted(&self) -> usize {
        // SAFETY: reads a number.
        unsafe { (self.counted)() as usize }
    }

    /// Another process leaves so many bytes when more are asked for; 0: it ends.
    fn allow(&self, bytes: u64) {
        // SAFETY: writes numbers.
        unsafe { (self.allow)(bytes as c_long) };
    }

    /// Allocations that are not freed.
    fn allocated(&self) -> i64 {
        // SAFETY: as above.
        unsafe { (self.allocated)() }
    }
}

fn matrix() -> CsrMatrix<f64> {
    "poisson3d,n=14,values=laplacian".parse::<gallery::Spec>().unwrap().generate().unwrap()
}

/// Results of everything that one operator does.
#[derive(Debug, Default, PartialEq)]
struct Results(Vec<Vec<f64>>);

/// Builds an operator and uses it. The results that are complete are in `done`.
fn work(
    gpu: &Device,
    tuning: &Tuning,
    a: &CsrMatrix<f64>,
    op: &mut Option<SparseOp<f64>>,
    done: &mut Results,
) -> Result<(), Error> {
    const VECTORS: usize = 2;
    let builder = SparseOpBuilder::new().device(gpu.clone()).updatable(true);
    let op = op.insert(builder.tuning(tuning.clone()).build(a)?);
    let (x, mut y) = (vec![1.0; a.ncols()], vec![0.5; a.nrows()]);
    op.apply(&x, &mut y)?;
    done.0.push(y.clone());
    op.apply_with(0.5, &x, -0.5, &mut y)?;
    done.0.push(y.clone());
    let (many, mut results) = (vec![1.0; VECTORS * a.ncols()], vec![0.0; VECTORS * a.nrows()]);
    op.apply_multi(
        Multivector::new(&many[..], VECTORS, Layout::RowMajor),
        Multivector::new(&mut results[..], VECTORS, Layout::RowMajor),
    )?;
    done.0.push(results);
    op.apply_transpose(&x, &mut y)?;
    done.0.push(y.clone());
    let stream = Stream::new(gpu)?;
    let there = DeviceVec::from_slice(gpu, &x)?;
    let mut product = DeviceVec::zeros(gpu, a.nrows())?;
    let graph = stream.capture(&mut || op.apply_device(&stream, &there, &mut product))?;
    graph.launch(&stream)?;
    stream.synchronize()?;
    drop(graph);
    done.0.push(product.to_vec()?);
    op.update_values(a.values())?;
    op.apply(&x, &mut y)?;
    done.0.push(y.clone());
    let mut solution = vec![0.0; a.ncols()];
    let settings = Settings { max_iterations: 40, ..Settings::default() };
    SolverBuilder::new(Method::Cg).settings(settings).build(op)?.solve(&x, &mut solution)?;
    done.0.push(solution);
    Ok(())
}

/// The process with the library: every failure of every kind, for every plan.
fn child(library: &str) {
    let faults = Faults::load(library);
    let gpu = Device::cuda(0).unwrap();
    let a = matrix();
    let all = env::var_os("SPARSEOP_TEST_LARGE").is_some();
    let plans = |kind: &FormatKind| kind.examples().iter().take(if all { usize::MAX } else { 1 });
    let plans: Vec<&str> = FormatKind::ALL.iter().flat_map(plans).copied().collect();
    for name in ["check"].into_iter().chain(plans) {
        let tuning = match name {
            "check" => Tuning::Check,
            plan => Tuning::Fixed(plan.parse().unwrap()),
        };
        let mut right = Results::default();
        // The first time loads kernels.
        for _ in 0..2 {
            right.0.clear();
            if let Err(error) = work(&gpu, &tuning, &a, &mut None, &mut right) {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
            }
        }
        let before = faults.allocated();
        let (mut failures, mut codes) = ([0; 3], 0);
        for (fault, count) in Faults::ALL.into_iter().zip(&mut failures) {
            for call in 0.. {
                let (mut op, mut done) = (None, Results::default());
                faults.arm(call, fault);
                let result = work(&gpu, &tuning, &a, &mut op, &mut done);
                let reached = faults.counted() > call;
                faults.disarm();
                let what = format!("{name}, {fault:?}, call {call}");
                if let Err(error) = &result {
                    let kind = error.kind();
                    let is_code = |code| code == Some(fault.code as u32);
                    codes +=
                        usize::from(matches!(error, Error::Gpu { code, .. } if is_code(*code)));
                    let known = [ErrorKind::OutOfMemory, ErrorKind::Gpu];
                    let is_own = kind == ErrorKind::Unsupported && done == right;
                    assert!(known.contains(&kind) || is_own, "{what}: {kind:?}, {error}");
                    assert!(!error.to_string().contains('\n'), "{what}: {error}");
                }
                // A choice among plans may differ after a failure, and so may the bits.
                let is_same = |a: &[f64], b: &[f64]| {
                    a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-9 * b.abs().max(1.0))
                };
                for (found, right) in done.0.iter().zip(&right.0) {
                    assert!(is_same(found, right), "{what}: a wrong result");
                }
                // Whatever has been built multiplies rightly, or fails.
                if let Some(op) = op {
                    let mut y = vec![0.0; a.nrows()];
                    match op.apply(&vec![1.0; a.ncols()], &mut y) {
                        Ok(()) => assert!(is_same(&y, &right.0[0]), "{what}: wrong afterwards"),
                        Err(error) => println!("CHILD {what}: unusable: {error}"),
                    }
                }
                if !reached {
                    break;
                }
                *count += 1;
            }
        }
        println!(
            "CHILD {name}: {failures:?} failures, {} allocations left",
            faults.allocated() - before
        );
        assert!(codes > 0, "{name}: no error has the code of the driver");
    }
    println!("CHILD done");
}

#[test]
fn the_library_passes_calls_on_counts_and_refuses_them() {
    let folder = tempfile::tempdir().unwrap();
    let (source, driver) = (folder.path().join("own.c"), folder.path().join("own.so"));
    let code = "int cuMemAlloc_v2(unsigned long *to, unsigned long n) { *to = n; return 0; }\n\
                int cuMemFree_v2(unsigned long at) { return at == 7 ? 0 : 1; }\n\
                int cuMemGetInfo_v2(unsigned long *free, unsigned long *all) {\n\
                *free = *all = 99; return 0; }\n\
                int cuLaunchKernel(int a, int b, int c, int d, int e, int f, int g, int h) {\n\
                return a + 10 * b + 100 * (c + d + e + f) + 1000 * g + 10000 * h; }\n";
    fs::write(&source, code).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&driver).arg(&source);
    let built = output(&mut compiler).and_then(|_| build(folder.path(), driver.to_str().unwrap()));
    if let Err(reason) = built {
        leave_out(&reason);
        return;
    }
    let path = folder.path().join("libcuda.so");
    let library = path.to_str().unwrap();
    let faults = Faults::load(library);
    type Allocate = unsafe extern "C" fn(*mut u64, u64) -> c_int;
    type Free = unsafe extern "C" fn(u64) -> c_int;
    type Ask = unsafe extern "C" fn(*mut u64, *mut u64) -> c_int;
    type Start =
        unsafe extern "C" fn(c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int) -> c_int;
    // SAFETY: the functions have these types.
    let (allocate, free, ask, start) = unsafe {
        (
            function::<Allocate>(library, c"cuMemAlloc_v2"),
            function::<Free>(library, c"cuMemFree_v2"),
            function::<Ask>(library, c"cuMemGetInfo_v2"),
            function::<Start>(library, c"cuLaunchKernel"),
        )
    };
    let mut to = 0;
    // SAFETY: as above.
    let mut calls = || unsafe {
        [allocate(&mut to, 7), start(1, 2, 3, 4, 5, 6, 7, 8), allocate(&mut to, 7), free(7)]
    };
    let started = 1 + 20 + 1800 + 7000 + 80000;
    faults.arm(9, Faults::ALL[0]);
    assert_eq!((calls(), faults.counted(), faults.allocated()), ([0, started, 0, 0], 2, 1));
    faults.arm(1, Faults::ALL[0]);
    assert_eq!((calls(), faults.allocated()), ([0, started, 2, 0], 1));
    faults.arm(1, Faults::ALL[1]);
    assert_eq!((calls(), faults.counted()), ([0, 700, 0, 0], 3));
    faults.arm(1, Faults::ALL[2]);
    assert_eq!((calls(), faults.counted()), ([0, 719, 719, 0], 3));
    faults.disarm();
    assert_eq!((calls(), to), ([0, started, 0, 0], 7));
    let (mut left, mut all) = (0, 0);
    // SAFETY: as above.
    let mut allocate_and_ask = |bytes| unsafe {
        let result = allocate(&mut to, bytes);
        ask(&mut left, &mut all);
        (result, left, all)
    };
    faults.allow(20);
    assert_eq!([9, 12, 11].map(&mut allocate_and_ask), [(0, 99, 99), (2, 11, 99), (0, 0, 99)]);
    // SAFETY: as above.
    unsafe { free(9) };
    assert_eq!(allocate_and_ask(5), (0, 4, 99));
    faults.allow(0);
    assert_eq!(allocate_and_ask(1 << 40), (0, 99, 99));
}

/// Runs a test of this file in a process with the library, and returns what it prints; `None` if
/// there is no GPU, or no library can be built.
fn in_process_with_library(test: &str) -> Option<String> {
    gpu()?;
    let folder = tempfile::tempdir().unwrap();
    let built = driver().ok_or_else(|| "no driver is loaded".to_owned());
    if let Err(reason) = built.and_then(|driver| build(folder.path(), &driver)) {
        leave_out(&reason);
        return None;
    }
    let inherited = env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let child = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, folder.path().join("libcuda.so"))
        .env("LD_LIBRARY_PATH", format!("{}:{inherited}", folder.path().display()))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout).into_owned();
    let said = String::from_utf8_lossy(&child.stderr);
    text.lines().filter(|line| line.starts_with("CHILD")).for_each(|line| println!("{line}"));
    assert!(child.status.success() && text.contains("CHILD done"), "{text}\n{said}");
    Some(text)
}

#[test]
fn every_call_of_the_driver_may_fail() {
    if let Ok(library) = env::var(CHILD) {
        return child(&library);
    }
    let Some(text) = in_process_with_library("every_call_of_the_driver_may_fail") else { return };
    let left = |line: &str| -> Option<i64> {
        line.split("failures, ").nth(1)?.split(' ').next()?.parse().ok()
    };
    for line in text.lines() {
        assert!(left(line).is_none_or(|count| count <= 8), "{line}");
    }
}

/// Operators are built while another process takes the memory of the GPU: percentages of the bytes
/// of CSR are left for them.
fn little_is_left(library: &str) {
    let faults = Faults::load(library);
    let a: CsrMatrix<f64> = "fem3d,n=40".parse::<gallery::Spec>().unwrap().generate().unwrap();
    let (x, mut right) = (vec![1.0; a.ncols()], vec![0.0; a.nrows()]);
    let cpu = SparseOpBuilder::new().device(Device::Cpu).build(&a).unwrap();
    cpu.apply(&x, &mut right).unwrap();
    let csr = (a.nnz() * 12) as u64;
    for tuning in [Tuning::Predict, Tuning::Check] {
        // Loads the kernels.
        let builder = SparseOpBuilder::new().tuning(tuning.clone());
        builder.build(&a).unwrap();
        let mut fallbacks = [0; 2];
        for percent in [200, 130, 115, 105, 98, 95, 90, 85, 80, 75, 70, 60, 40, 10] {
            faults.allow(csr * percent / 100);
            let op = builder.build(&a).unwrap();
            let mut y = vec![0.0; a.nrows()];
            op.apply(&x, &mut y).unwrap();
            faults.allow(0);
            let near = y.iter().zip(&right).all(|(y, e)| (y - e).abs() <= 1e-9 * e.abs().max(1.0));
            let fallback = op.decision().fallback.as_deref();
            let what =
                format!("{percent} % of CSR: {} on {}, {fallback:?}", op.plan(), op.device());
            println!("CHILD {tuning:?}, {what}");
            assert!(near, "{what}");
            let is_on_cpu = *op.device() == Device::Cpu;
            assert!(fallback.is_some() || !is_on_cpu, "{what}");
            fallbacks[usize::from(is_on_cpu)] += usize::from(fallback.is_some());
        }
        assert!(
            fallbacks[1] > 0 && (fallbacks[0] > 0 || matches!(tuning, Tuning::Check)),
            "{fallbacks:?}"
        );
    }
    println!("CHILD done");
}

#[test]
fn memory_that_another_process_takes_makes_plans_smaller() {
    if let Ok(library) = env::var(CHILD) {
        return little_is_left(&library);
    }
    in_process_with_library("memory_that_another_process_takes_makes_plans_smaller");
}
