//! Broken drivers: with any library as libcuda, products run on the CPU and the reason is reported
//! in one line.
#![cfg(target_os = "linux")]

mod common;

use assert_cmd::Command;
use common::{sparseop, stdout};
use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs, process};
use tempfile::TempDir;

/// File names of the driver.
const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// A product on the default device.
const APPLY: [&str; 6] = ["apply", "gallery:small", "--json", "-v", "--tuning", "predict"];

/// A folder with a libcuda that exports these functions, each given as name, parameters and body.
/// Without a Rust compiler it prints a message and returns none.
fn driver(functions: &[(&str, &str, &str)]) -> Option<TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let mut source = "#![no_std]\n\
                      #[panic_handler] fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }\n"
        .to_owned();
    for (name, parameters, body) in functions {
        source += &format!(
            "#[no_mangle] pub unsafe extern \"C\" fn {name}({parameters}) -> u32 {{ {body} }}\n"
        );
    }
    let file = folder.path().join("driver.rs");
    fs::write(&file, source).unwrap();
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = process::Command::new(rustc);
    command.args([
        "--crate-type=cdylib",
        "--crate-name=driver",
        "--edition=2021",
        "-Cpanic=abort",
        "-O",
        "-Anon_snake_case",
    ]);
    let Ok(output) = command.arg("-o").arg(folder.path().join(NAMES[0])).arg(&file).output() else {
        println!("skipped: no rustc");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::copy(folder.path().join(NAMES[0]), folder.path().join(NAMES[1])).unwrap();
    Some(folder)
}

/// A driver with all functions that the library names. They fail, except those in `functions`.
fn whole_driver(functions: &[(&str, &str, &str)]) -> Option<TempDir> {
    /// An error that no driver returns. A caller of the function reports it.
    const UNKNOWN: &str = "999";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/device/cuda");
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let code = fs::read_to_string(entry.unwrap().path()).unwrap();
        let quoted = code.split('"').filter(|text| {
            let function =
                text.strip_prefix("cu").is_some_and(|rest| rest.starts_with(char::is_uppercase));
            function && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        });
        names.extend(quoted.map(str::to_owned));
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
    text.lines().filter(|line| !line.starts_with("took ")).collect()
}

/// The program runs on the CPU and reports the reason. It fails in one line if a GPU is required.
#[track_caller]
fn falls_back(driver: Option<TempDir>, reason: &str) {
    let Some(driver) = driver else { return };
    let (listed, _) = output(with_driver(&driver, &["devices"]), 0);
    let none = line(&listed, "cuda ");
    assert!(none.contains("none: ") && none.contains(reason), "{none}");
    line(&listed, "cpu ");

    for args in [&APPLY[..], &["analyze", "gallery:small"]] {
        assert_eq!(
            untimed(&output(with_driver(&driver, args), 0).0),
            untimed(&stdout(args)),
            "not as on the CPU"
        );
    }

    for device in ["cuda", "cuda:0"] {
        let (out, err) =
            output(with_driver(&driver, &["apply", "gallery:small", "-q", "--device", device]), 1);
        let error = line(&err, "error: ");
        assert!(out.is_empty() && err.lines().count() == 1, "{out}{err}");
        assert!(error.contains("is not available") && error.contains(reason), "{error}");
    }
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
    falls_back(driver(&[("cuInit", "_: u32", "999")]), "999");
    let functions = [
        ("cuInit", "_: u32", "0"),
        ("cuDriverGetVersion", "version: *mut i32", "*version = 13000; 0"),
        ("cuDeviceGetCount", "count: *mut i32", "*count = 1; 0"),
    ];
    falls_back(whole_driver(&functions), "999");
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
    let driver = with_a_gpu(&[
        ("cuDevicePrimaryCtxRetain", "context: *mut usize, _: i32", "*context = 1; 0"),
        ("cuCtxGetCurrent", "context: *mut usize", "*context = 1; 0"),
        ("cuStreamCreate", "stream: *mut usize, _: u32", "*stream = 1; 0"),
    ]);
    let Some(driver) = driver else { return };
    // Only the driver is found and no NVRTC. If the build had an nvcc, the driver refuses its
    // images.
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
