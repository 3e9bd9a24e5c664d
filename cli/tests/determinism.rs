//! Bitwise reproducibility across processes: a command writes the same bytes every time, on any
//! number of threads. `src/testing/bits.rs` tests it within a process.

mod common;

use common::{sparseop, stdout};
use sparseop::Device;
use sparseop::formats::FormatKind;
use std::fs;
use std::path::Path;

/// Rows of all lengths, in several tasks.
const MATRIX: &str = "webbase,rows=8k";

const GRAPH: &str = "gallery:webbase,rows=8k,values=pattern";

const SYSTEM: &str = "gallery:poisson2d,n=60,values=laplacian";

/// Numbers of threads of the compared processes.
const THREADS: [&str; 4] = ["2", "2", "1", "3"];

/// The devices of the test: the CPU, and the GPU if there is one.
fn devices() -> Vec<&'static str> {
    if Device::why_no_gpu().is_none() { vec!["cpu", "cuda"] } else { vec!["cpu"] }
}

/// Output of a process and the files it writes into `folder`, or its messages if it fails.
fn run(args: &[&str], device: &str, threads: &str, folder: &Path) -> Result<Vec<Vec<u8>>, String> {
    let mut command = sparseop(args);
    command.args(["--device", device, "--deterministic"]).env("RAYON_NUM_THREADS", threads);
    if device == "cuda" {
        command.env_remove("SPARSEOP_DEVICE");
    }
    let output = command.current_dir(folder).output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut all: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    // The output of commands that also write files contains times.
    if files.is_empty() {
        all.push(output.stdout);
    }
    files.iter().for_each(|file| fs::remove_file(file).unwrap());
    Ok(all)
}

/// True if the processes agree. False if the command is refused because the plan would take too
/// much memory or cannot hold the matrix.
fn agree(args: &[&str], device: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let mut first = None;
    for threads in THREADS {
        let found = match run(args, device, threads, folder.path()) {
            Ok(found) => found,
            Err(message) => {
                let refused = ["raise the memory limit", "choose another format"];
                assert!(
                    refused.iter().any(|text| message.contains(text)),
                    "{args:?} on {device}: {message}"
                );
                return false;
            }
        };
        assert!(found.iter().any(|bytes| !bytes.is_empty()), "{args:?} on {device}");
        let first = first.get_or_insert_with(|| found.clone());
        assert!(*first == found, "{args:?} on {device}, {threads} threads: other bytes");
    }
    true
}

#[test]
fn products_of_every_plan_are_the_same_in_every_process() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = folder.path().join("a.mtx").to_str().unwrap().to_owned();
    stdout(&["gallery", "write", MATRIX, &matrix]);
    for device in devices() {
        let mut held = 0;
        for format in FormatKind::ALL {
            let examples = format.examples();
            // A process takes a second on a GPU.
            let step = if device == "cpu" { 1 } else { examples.len().div_ceil(2) };
            for plan in examples.iter().step_by(step) {
                let plan: sparseop::Plan = plan.parse().unwrap();
                if plan.is_deterministic() {
                    let text = plan.to_string();
                    held += usize::from(agree(
                        &["apply", &matrix, "--plan", &text, "--out", "y.mtx"],
                        device,
                    ));
                }
            }
        }
        assert!(held >= FormatKind::ALL.len(), "{held} plans hold the matrix on {device}");
    }
}

#[test]
fn choices_solutions_and_ranks_are_the_same_in_every_process() {
    let matrix = format!("gallery:{MATRIX}");
    for device in devices() {
        for dtype in ["f32", "f64"] {
            assert!(agree(&["apply", &matrix, "--dtype", dtype], device));
        }
        for method in ["cg", "bicgstab", "gmres", "chebyshev", "power"] {
            let tol = if method == "power" { "1e-2" } else { "1e-8" };
            let files = ["--out", "x.mtx", "--history", "residuals.mtx"];
            let args = ["solve", SYSTEM, "--method", method, "--tol", tol];
            assert!(agree(&[&args[..], &files].concat(), device));
        }
        assert!(agree(&["rank", GRAPH, "--out", "ranks.mtx"], device));
    }
}
