//! Devices for tests, and work that keeps a GPU busy.

use sparseop::device::Graph;
use sparseop::{Device, DeviceVec, SparseOp, Stream};
use std::sync::OnceLock;

/// Environment variable: 1 on machines whose GPU is required in the tests, `only` where they leave
/// out the CPU.
const REQUIRED: &str = "SPARSEOP_REQUIRE_GPU";

/// The CPU, and the first GPU, if any. Prints the reason if there is none.
///
/// # Panics
///
/// If there is no GPU and `SPARSEOP_REQUIRE_GPU` is 1 or `only`.
pub fn devices() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| match Device::why_no_gpu() {
        None if required() == "only" => vec![Device::auto()],
        None => vec![Device::Cpu, Device::auto()],
        Some(reason) => {
            let required = required();
            let is_required = ["1", "only"].contains(&required.as_str());
            assert!(!is_required, "{REQUIRED}={required}, but no GPU: {reason}");
            eprintln!("checked on the CPU alone; no GPU: {reason}");
            vec![Device::Cpu]
        }
    })
}

fn required() -> String {
    std::env::var(REQUIRED).unwrap_or_default()
}

/// Enqueues products that take a GPU some milliseconds. The graph has to outlive them. On the CPU
/// it is `None`, and nothing is multiplied.
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
    (0..20).for_each(|_| graph.launch(stream).expect("the graph can be launched"));
    Some(graph)
}
