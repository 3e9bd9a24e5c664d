//! `sparseop devices`.

use super::console::Console;
use anyhow::Result;
use serde::Serialize;
use sparseop::Device;
use sparseop::device::GpuSpec;

/// What products can run on, and if no GPU is used, why
///
/// The first device listed under the name `cpu` is always there. SPARSEOP_DEVICE=cpu in the environment keeps every product on it.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// A line of the listing.
#[derive(Serialize)]
struct Line {
    device: String,
    name: String,
    instructions: String,
    threads: usize,
    #[serde(flatten)]
    gpu: Option<GpuLine>,
}

/// What is known of a GPU besides.
#[derive(Serialize)]
struct GpuLine {
    #[serde(flatten)]
    spec: GpuSpec,
    /// Bytes a second that a copy within its memory reads and writes, measured now.
    copy_bandwidth: f64,
}

/// The line for what is not there.
#[derive(Serialize)]
struct Missing {
    device: &'static str,
    error: String,
}

pub(super) fn run(args: &Args, console: &Console) -> Result<()> {
    for device in [Device::Cpu].into_iter().chain(Device::gpus()) {
        let spec = device.spec();
        let bandwidth = device.copy_bandwidth()?;
        if args.json {
            let gpu = spec.gpu.zip(bandwidth).map(|(spec, copy_bandwidth)| GpuLine { spec, copy_bandwidth });
            let (name, instructions, threads) = (spec.name, spec.instructions, spec.threads);
            console.print_json(&Line { device: device.to_string(), name, instructions, threads, gpu })?;
        } else {
            let copies = bandwidth.map_or(String::new(), |b| format!(", copies at {:.2} TB/s", b * 1e-12));
            console.print(&format!("{:<8}{spec}{copies}\n", device.to_string()))?;
        }
    }
    if let Some(error) = Device::why_no_gpu() {
        if args.json {
            console.print_json(&Missing { device: "cuda", error })?;
        } else {
            console.print(&format!("{:<8}none: {error}\n", "cuda"))?;
        }
    }
    Ok(())
}
