//! Broken drivers: with any library as libcuda, products run on the CPU and the reason is reported
//! in one line.
#![cfg(target_os = "linux")]

mod common;
#[path = "common/library.rs"]
mod library;

use assert_cmd::Command;
use common::{sparseop, stdout};
use sparseop::device::GpuRuntime;
use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};
use tempfile::TempDir;

/// File names of the driver.
const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// A result that no driver of today returns, for functions that fail.
const UNKNOWN: &str = "12345";

/// A product on the default device.
const APPLY: [&str; 6] = ["apply", "gallery:small", "--json", "-v", "--tuning", "predict"];

/// A function of a library: name, parameters, and body.
type Function = (&'static str, &'static str, &'static str);

/// A folder with a libcuda that exports these functions. Without a Rust compiler it prints a
/// message and returns none.
fn driver(functions: &[(&str, &str, &str)]) -> Option<TempDir> {
    let folder = tempfile::tempdir().unwrap();
    build(&folder, NAMES, functions).then_some(folder)
}

/// Builds a library of these functions with two names in a folder. Without a Rust compiler it
/// prints a message and returns false.
fn build(folder: &TempDir, names: [&str; 2], functions: &[(&str, &str, &str)]) -> bool {
    let mut source = "#![no_std]\n\
                      #[panic_handler] fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }\n"
        .to_owned();
    for (name, parameters, body) in functions {
        source += &format!(
            "#[no_mangle] pub unsafe extern \"C\" fn {name}({parameters}) -> u32 {{ {body} }}\n"
        );
    }
    if !library::build(&source, &folder.path().join(names[0])) {
        return false;
    }
    fs::copy(folder.path().join(names[0]), folder.path().join(names[1])).unwrap();
    true
}

/// A driver with all functions that the library names. They fail, except those in `functions`.
fn whole_driver(functions: &[(&str, &str, &str)]) -> Option<TempDir> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/device/cuda");
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let code = fs::read_to_string(entry.unwrap().path()).unwrap();
        let words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let functions = words.filter(|word| {
            word.strip_prefix("cu").is_some_and(|rest| rest.starts_with(char::is_uppercase))
        });
        names.extend(functions.map(str::to_owned));
    }
    let given: BTreeSet<&str> = functions.iter().map(|function| function.0).collect();
    let rest = names
        .iter()
        .filter(|name| !given.contains(name.as_str()))
        .map(|name| (name.as_str(), "", UNKNOWN));
    driver(&functions.iter().copied().chain(rest).collect::<Vec<_>>())
}

/// The program with this driver before all others, free to use a GPU.
fn with_driver(folder: &TempDir, args: &[&str]) -> Command {
    let mut command = sparseop(args);
    let inherited = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = [folder.path().to_owned()].into_iter().chain(env::split_paths(&inherited));
    command.env("LD_LIBRARY_PATH", env::join_paths(folders).unwrap()).env_remove("SPARSEOP_DEVICE");
    command
}

/// Standard output and standard error of the program, which must exit with `code` and without a
/// panic.
fn output(mut command: Command, code: i32) -> (String, String) {
    let output = command.output().unwrap();
    let (out, err) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    assert!(!err.contains("panicked"), "{err}");
    (out, err)
}

/// The only line of a text that begins with `start`.
fn line<'a>(text: &'a str, start: &str) -> &'a str {
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(start)).collect();
    assert_eq!(lines.len(), 1, "{text}");
    lines[0]
}

/// A text without the line with the times.
fn untimed(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with("preparation ")).collect()
}

/// The program runs on the CPU and reports the reason. It fails in one line if a GPU is required.
#[track_caller]
fn falls_back(driver: Option<TempDir>, reason: &str) {
    let Some(driver) = driver else { return };
    let cache = tempfile::tempdir().unwrap();
    for error in prefers_the_cpu(&driver, reason, cache.path()) {
        assert!(error.contains("is not available") && error.contains(reason), "{error}");
    }
}

/// The program, with a folder of caches, runs on the CPU and reports the reason. Returns its errors
/// if a GPU is required.
#[track_caller]
fn prefers_the_cpu(driver: &TempDir, reason: &str, cache: &Path) -> [String; 2] {
    let with_driver = |args: &[&str]| {
        let mut command = with_driver(driver, args);
        command.env("SPARSEOP_CACHE", cache);
        command
    };
    let (listed, _) = output(with_driver(&["devices"]), 0);
    let none = line(&listed, "cuda ");
    assert!(none.contains("none: ") && none.contains(reason), "{none}");
    line(&listed, "cpu ");

    for args in [&APPLY[..], &["analyze", "gallery:small"]] {
        assert_eq!(
            untimed(&output(with_driver(args), 0).0),
            untimed(&stdout(args)),
            "not as on the CPU"
        );
    }

    ["cuda", "cuda:0"].map(|device| {
        let (out, err) =
            output(with_driver(&["apply", "gallery:small", "-q", "--device", device]), 1);
        assert!(out.is_empty() && err.lines().count() == 1, "{out}{err}");
        line(&err, "error: ").to_owned()
    })
}

#[test]
fn a_driver_that_is_absent() {
    let nothing = tempfile::tempdir().unwrap();
    let (listed, _) = output(with_driver(&nothing, &["devices"]), 0);
    if listed.contains("libcuda cannot be loaded") {
        falls_back(Some(nothing), "no NVIDIA driver");
    } else {
        println!("left out: this machine has a driver");
    }
    // Files with its names that are no libraries.
    let folder = tempfile::tempdir().unwrap();
    NAMES.iter().for_each(|name| fs::write(folder.path().join(name), "no library").unwrap());
    falls_back(Some(folder), "no NVIDIA driver");
}

#[test]
fn the_stub_of_the_toolkit() {
    falls_back(driver(&[("cuInit", "_: u32", "34")]), "stub");
}

#[test]
fn a_driver_without_devices() {
    falls_back(driver(&[("cuInit", "_: u32", "100")]), "no GPU");
    let functions = [
        ("cuInit", "_: u32", "0"),
        ("cuDriverGetVersion", "version: *mut i32", "*version = 13000; 0"),
        ("cuDeviceGetCount", "count: *mut i32", "*count = 0; 0"),
    ];
    falls_back(whole_driver(&functions), "no GPU");
}

#[test]
fn a_driver_that_is_too_old() {
    let functions = [
        ("cuInit", "_: u32", "0"),
        ("cuDriverGetVersion", "version: *mut i32", "*version = 10020; 0"),
    ];
    falls_back(whole_driver(&functions), "10.2");
}

#[test]
fn a_library_that_is_no_driver() {
    falls_back(driver(&[]), "cuInit");
    // Some functions of a driver, but not all of them.
    let functions = [
        ("cuInit", "_: u32", "0"),
        ("cuDriverGetVersion", "version: *mut i32", "*version = 13000; 0"),
    ];
    falls_back(driver(&functions), "lacks cu");
}

#[test]
fn a_driver_that_fails_at_everything() {
    falls_back(driver(&[("cuInit", "_: u32", UNKNOWN)]), UNKNOWN);
    let functions = [
        ("cuInit", "_: u32", "0"),
        ("cuDriverGetVersion", "version: *mut i32", "*version = 13000; 0"),
        ("cuDeviceGetCount", "count: *mut i32", "*count = 1; 0"),
    ];
    falls_back(whole_driver(&functions), UNKNOWN);
}

/// A driver with an H200, as far as its attributes go (75 and 76 are its compute capability).
/// `more` has the other functions.
fn with_a_gpu(more: &[(&str, &str, &str)]) -> Option<TempDir> {
    let attributes = [
        ("cuInit", "_: u32", "0"),
        ("cuDriverGetVersion", "version: *mut i32", "*version = 13000; 0"),
        ("cuDeviceGetCount", "count: *mut i32", "*count = 1; 0"),
        ("cuDeviceGet", "device: *mut i32, n: i32", "*device = n; 0"),
        ("cuDeviceGetName", "name: *mut u8, _: i32, _: i32", "*name = b'H'; *name.add(1) = 0; 0"),
        (
            "cuDeviceGetAttribute",
            "value: *mut i32, which: u32, _: i32",
            "*value = match which { 75 => 9, 76 => 0, _ => 132 }; 0",
        ),
        ("cuDeviceTotalMem_v2", "bytes: *mut usize, _: i32", "*bytes = 1 << 37; 0"),
    ];
    whole_driver(&[&attributes, more].concat())
}

#[test]
fn a_gpu_without_memory_for_a_context() {
    let driver = with_a_gpu(&[
        ("cuDevicePrimaryCtxRetain", "_: *mut usize, _: i32", "2"),
        (
            "cuGetErrorName",
            "_: u32, text: *mut *const u8",
            "*text = b\"CUDA_ERROR_OUT_OF_MEMORY\\0\".as_ptr(); 0",
        ),
        (
            "cuGetErrorString",
            "_: u32, text: *mut *const u8",
            "*text = b\"out of memory\\0\".as_ptr(); 0",
        ),
    ]);
    let Some(driver) = driver else { return };
    let (listed, _) = output(with_driver(&driver, &["devices"]), 0);
    assert!(line(&listed, "cuda:0 ").contains("out of memory"), "{listed}");
    falls_back(Some(driver), "out of memory (CUDA_ERROR_OUT_OF_MEMORY)");
}

#[test]
fn a_gpu_without_a_way_to_its_kernels() {
    let driver = with_a_gpu(&with(&IDLE, &[("cuModuleLoadData", "", UNKNOWN)]));
    let Some(driver) = driver else { return };
    // Only the driver is found and no NVRTC. The driver refuses embedded code.
    let alone = |args: &[&str]| {
        let mut command = with_driver(&driver, args);
        command.env("LD_LIBRARY_PATH", driver.path());
        command
    };
    let (listed, _) = output(alone(&["devices"]), 0);
    let reason = line(&listed, "cuda ");
    assert!(
        reason.contains("none: ") && (reason.contains("NVRTC") || reason.contains("scaled.cu")),
        "{listed}"
    );
    assert_eq!(output(alone(&APPLY), 0).0, stdout(&APPLY), "not as on the CPU");
    // A GPU requested by name is not replaced by the CPU.
    let (out, err) = output(alone(&["apply", "gallery:small", "-q", "--device", "cuda"]), 1);
    assert!(out.is_empty() && err.lines().count() == 1, "{out}{err}");
    assert!(line(&err, "error: ").contains("cuda:0") || err.contains("NVRTC"), "{err}");
}

#[test]
fn an_excluded_driver_is_not_loaded() {
    // A call of cuInit aborts the process.
    let Some(driver) = driver(&[("cuInit", "_: u32", "extern \"C\" { fn abort() -> !; } abort()")])
    else {
        return;
    };
    for args in [&APPLY[..], &["analyze", "gallery:small"]] {
        let mut command = with_driver(&driver, args);
        command.env("SPARSEOP_DEVICE", "cpu");
        output(command, 0);
        output(with_driver(&driver, &[args, &["--device", "cpu"]].concat()), 0);
    }
    // It would be found.
    let died = with_driver(&driver, &["devices"]).output().unwrap();
    assert_eq!(died.status.code(), None, "{died:?}");
}

/// A driver with a GPU that takes every image of a kernel, and whose launches and copies succeed
/// without doing anything.
const IDLE: [Function; 18] = [
    ("cuDevicePrimaryCtxRetain", "context: *mut usize, _: i32", "*context = 1; 0"),
    ("cuDevicePrimaryCtxRelease_v2", "_: i32", "0"),
    ("cuCtxGetCurrent", "context: *mut usize", "*context = 1; 0"),
    ("cuCtxSetCurrent", "_: usize", "0"),
    ("cuThreadExchangeStreamCaptureMode", "_: usize", "0"),
    ("cuStreamCreate", "stream: *mut usize, _: u32", "*stream = 1; 0"),
    ("cuStreamSynchronize", "_: usize", "0"),
    ("cuStreamDestroy_v2", "_: usize", "0"),
    ("cuModuleLoadData", "module: *mut usize, _: usize", "*module = 1; 0"),
    ("cuModuleGetFunction", "function: *mut usize, _: usize, _: usize", "*function = 1; 0"),
    ("cuMemAlloc_v2", "address: *mut u64, _: usize", "*address = 256; 0"),
    ("cuMemFree_v2", "_: u64", "0"),
    (
        "cuMemHostAlloc",
        "start: *mut usize, bytes: usize, _: u32",
        "extern \"C\" { fn malloc(bytes: usize) -> usize; } *start = malloc(bytes); 0",
    ),
    ("cuMemFreeHost", "_: usize", "0"),
    ("cuMemsetD8Async", "_: u64, _: u8, _: usize, _: usize", "0"),
    ("cuMemcpyHtoDAsync_v2", "_: u64, _: usize, _: usize, _: usize", "0"),
    ("cuMemcpyDtoHAsync_v2", "_: usize, _: u64, _: usize, _: usize", "0"),
    ("cuLaunchKernel", "", "0"),
];

/// An NVRTC whose code is an ELF file without content.
const EMPTY: [Function; 12] = [
    ("nvrtcVersion", "major: *mut i32, minor: *mut i32", "*major = 13; *minor = 0; 0"),
    ("nvrtcGetNumSupportedArchs", "count: *mut i32", "*count = 1; 0"),
    ("nvrtcGetSupportedArchs", "list: *mut i32", "*list = 90; 0"),
    ("nvrtcCreateProgram", "program: *mut usize", "*program = 1; 0"),
    ("nvrtcCompileProgram", "", "0"),
    ("nvrtcDestroyProgram", "", "0"),
    ("nvrtcGetProgramLogSize", "_: usize, bytes: *mut usize", "*bytes = 1; 0"),
    ("nvrtcGetProgramLog", "_: usize, log: *mut u8", "*log = 0; 0"),
    ("nvrtcGetCUBINSize", "_: usize, bytes: *mut usize", "*bytes = 128; 0"),
    (
        "nvrtcGetCUBIN",
        "_: usize, code: *mut u8",
        "let mut n = 0;
         while n < 128 {
             *code.add(n) = match n { 0 => 127, 1 => 69, 2 => 76, 3 => 70, 4 => 2, 40 | 58 => 64,
                                      60 => 1, _ => 0 };
             n += 1;
         }
         0",
    ),
    ("nvrtcGetPTXSize", "_: usize, bytes: *mut usize", "*bytes = 0; 0"),
    ("nvrtcGetPTX", "", "0"),
];

/// Functions with some of them replaced.
fn with(functions: &[Function], replaced: &[Function]) -> Vec<Function> {
    let kept = functions.iter().filter(|kept| replaced.iter().all(|new| new.0 != kept.0));
    kept.chain(replaced).copied().collect()
}

/// A folder with a driver of a GPU and an NVRTC.
fn with_nvrtc(driver: &[Function], nvrtc: &[Function]) -> Option<TempDir> {
    let folder = with_a_gpu(driver)?;
    build(&folder, ["libnvrtc.so", "libnvrtc.so.13"], nvrtc).then_some(folder)
}

/// Each step of the trial before a GPU is chosen may fail, or give a wrong result.
#[test]
fn a_gpu_that_fails_at_its_first_work() {
    let cache = tempfile::tempdir().unwrap();
    let check = |driver: &[Function], reason| {
        if let Some(driver) = with_nvrtc(driver, &EMPTY) {
            prefers_the_cpu(&driver, reason, cache.path());
        }
    };
    for name in [
        "cuModuleGetFunction",
        "cuMemAlloc_v2",
        "cuMemHostAlloc",
        "cuMemsetD8Async",
        "cuMemcpyHtoDAsync_v2",
        "cuLaunchKernel",
        "cuMemcpyDtoHAsync_v2",
        "cuStreamSynchronize",
    ] {
        println!("{name}");
        check(&with(&IDLE, &[(name, "", UNKNOWN)]), UNKNOWN);
    }
    check(&IDLE, "the result is wrong");
}

/// Whatever NVRTC returns, the reason is reported, and nothing that the driver refuses stays in the
/// cache of kernels.
#[test]
fn a_compiler_that_fails_or_returns_garbage() {
    const GARBAGE: Function = ("nvrtcGetCUBIN", "_: usize, code: *mut u8", "*code = 1; 0");
    // A build with embedded code hands it to the driver first.
    let refuses: Function = ("cuModuleLoadData", "", "200");
    let size = |body| ("nvrtcGetCUBINSize", "_: usize, bytes: *mut usize", body);
    let count = |body| ("nvrtcGetNumSupportedArchs", "count: *mut i32", body);
    let modules = GpuRuntime::find().embedded;
    let embedded = modules.iter().any(|(_, targets)| !targets.is_empty());
    for (replaced, reason) in [
        (&[("nvrtcVersion", "", "1")][..], "does not state its version"),
        (&[("nvrtcCreateProgram", "", "5")], "error 5"),
        (&[("nvrtcCreateProgram", "", UNKNOWN)], UNKNOWN),
        (&[("nvrtcCompileProgram", "", "11")], "error 11"),
        (&[size("*bytes = usize::MAX; 0")], "no valid code"),
        (&[size("*bytes = 1 << 40; 0")], "no valid code"),
        (&[size("*bytes = 0; 0")], "no valid code"),
        (&[size("*bytes = 70; 0"), GARBAGE], "no valid code"),
        (&[size("9")], "no valid code"),
        (&[count("*count = i32::MAX; 0")], "CUDA error 200"),
        (&[count("*count = -1; 0")], "CUDA error 200"),
        (&[], "CUDA error 200"),
    ] {
        println!("{reason}");
        let Some(driver) = with_nvrtc(&with(&IDLE, &[refuses]), &with(&EMPTY, replaced)) else {
            return;
        };
        let cache = tempfile::tempdir().unwrap();
        let reason = if embedded { "CUDA error 200" } else { reason };
        prefers_the_cpu(&driver, reason, cache.path());
        let entries = walk(cache.path());
        assert!(entries.is_empty(), "{entries:?}");
    }
}

/// Names of all files below a folder.
fn walk(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: std::path::PathBuf| match path.is_dir() {
        true => walk(&path),
        false => vec![path.display().to_string()],
    };
    entries.flat_map(below).collect()
}
