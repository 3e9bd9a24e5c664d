//! Devices for tests, and work that keeps a GPU busy.

use sparseop::device::Graph;
use sparseop::{Device, DeviceVec, SparseOp, Stream};
use std::cell::Cell;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;

/// Environment variable: 1 on machines whose GPU is required in the tests, `only` where they leave
/// out the CPU.
const REQUIRED: &str = "SPARSEOP_REQUIRE_GPU";

/// Environment variable: the file to which tests add their names where there is no GPU.
const SKIPS: &str = "SPARSEOP_GPU_SKIPS";

/// Environment variable: 1 for fewer and smaller cases, for tools that slow products down.
const FEW_CASES: &str = "SPARSEOP_TEST_FEW";

/// The CPU, and the first GPU, if any. Where there is none, prints the reason, and adds the name of
/// the test to the file that `SPARSEOP_GPU_SKIPS` names: a test that passes prints nothing.
///
/// # Panics
///
/// If there is no GPU and `SPARSEOP_REQUIRE_GPU` is 1 or `only`, or if the file cannot be written.
pub fn devices() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    let devices = DEVICES.get_or_init(|| match Device::why_no_gpu() {
        None if required() == "only" => vec![Device::auto()],
        None => vec![Device::Cpu, Device::auto()],
        Some(reason) => {
            let required = required();
            let is_required = ["1", "only"].contains(&required.as_str());
            assert!(!is_required, "{REQUIRED}={required}, but no GPU: {reason}");
            eprintln!("checked on the CPU alone; no GPU: {reason}");
            vec![Device::Cpu]
        }
    });
    if let ([Device::Cpu], Some(file)) = (&devices[..], std::env::var_os(SKIPS)) {
        add_name(file.as_ref()).expect("names of tests can be written");
    }
    devices
}

/// The first GPU. Where there is none, prints the reason and counts the test as [`devices`] does.
///
/// # Panics
///
/// As [`devices`].
pub fn gpu() -> Option<&'static Device> {
    devices().iter().find(|device| **device != Device::Cpu)
}

/// Adds the name of this thread, which is that of its test, to a file; once.
fn add_name(file: &Path) -> io::Result<()> {
    thread_local!(static ADDED: Cell<bool> = const { Cell::new(false) });
    let thread = std::thread::current();
    match thread.name() {
        Some(name) if !ADDED.replace(true) => {
            let mut file = OpenOptions::new().create(true).append(true).open(file)?;
            file.write_all(format!("{name}\n").as_bytes())
        }
        _ => Ok(()),
    }
}

fn required() -> String {
    std::env::var(REQUIRED).unwrap_or_default()
}

/// True if a tool slows products down: tests have fewer and smaller cases.
pub fn few_cases() -> bool {
    cfg!(miri) || std::env::var(FEW_CASES).is_ok_and(|value| value == "1")
}

/// Enqueues products that take a GPU some milliseconds, also under a tool that slows them down. The
/// graph has to outlive them. On the CPU it is `None`, and nothing is multiplied.
///
/// # Panics
///
/// If a product cannot be captured or launched.
pub fn keep_busy(
    op: &SparseOp<f64>,
    stream: &Stream,
    x: &DeviceVec<f64>,
    y: &mut DeviceVec<f64>,
) -> Option<Graph> {
    if *op.device() == Device::Cpu {
        return None;
    }
    // Products launched one by one would be finished as fast as they are enqueued.
    let graph = stream
        .capture(&mut || (0..1000).try_for_each(|_| op.apply_device(stream, x, y)))
        .expect("products can be captured");
    let launches = if few_cases() { 1 } else { 20 };
    (0..launches).for_each(|_| graph.launch(stream).expect("the graph can be launched"));
    Some(graph)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_named_once() {
        let file = std::env::temp_dir().join(format!("sparseop-skips-{}", std::process::id()));
        (0..3).for_each(|_| add_name(&file).unwrap());
        let names = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(file).unwrap();
        assert!(names.ends_with("a_test_is_named_once\n") && names.lines().count() == 1, "{names}");
    }
}
