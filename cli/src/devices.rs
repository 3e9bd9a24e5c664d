//! `sparseop devices`.

use super::console::Console;
use anyhow::Result;
use serde::Serialize;
use sparseop::Device;
use sparseop::device::GpuSpec;

/// Available devices, with the reason if there is no usable GPU
///
/// The device `cpu` is always available and listed first. The environment variable
/// SPARSEOP_DEVICE=cpu restricts `auto` to it.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// A line of the listing.
#[derive(Serialize)]
struct DeviceLine {
    device: String,
    name: String,
    instructions: String,
    threads: usize,
    #[serde(flatten)]
    gpu: Option<GpuLine>,
}

/// Further properties of a GPU. The bandwidth of copies is measured on the spot.
#[derive(Serialize)]
struct GpuLine {
    #[serde(flatten)]
    spec: GpuSpec,
    /// Bytes per second that a copy within its memory reads and writes.
    copy_bandwidth: Option<f64>,
    /// The reason why the bandwidth is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    copy_error: Option<String>,
}

/// Entry of a device that is not available.
#[derive(Serialize)]
struct Missing {
    device: String,
    error: String,
}

pub(super) fn run(args: &Args, console: &Console) -> Result<()> {
    list(&Device::Cpu, args, console)?;
    for n in 0..Device::gpu_count() {
        match Device::cuda(n) {
            Ok(gpu) => list(&gpu, args, console)?,
            Err(error) => missing(&format!("cuda:{n}"), error.to_string(), args, console)?,
        }
    }
    match Device::why_no_gpu() {
        Some(error) => missing("cuda", error, args, console),
        None => Ok(()),
    }
}

/// Prints the entry of a device.
fn list(device: &Device, args: &Args, console: &Console) -> Result<()> {
    let mut spec = device.spec();
    let (bandwidth, copy_error) = match device.copy_bandwidth() {
        Ok(bandwidth) => (bandwidth, None),
        Err(error) => (None, Some(error.to_string())),
    };
    if !args.json {
        let copies = match (bandwidth, copy_error) {
            (Some(bandwidth), _) => format!(", copies at {:.2} TB/s", bandwidth * 1e-12),
            (None, Some(error)) => format!(", copies not measured: {error}"),
            (None, None) => String::new(),
        };
        return console.print(&format!("{:<8}{spec}{copies}\n", device.to_string()));
    }
    let gpu = spec.gpu.take();
    let gpu = gpu.map(|spec| GpuLine { spec, copy_bandwidth: bandwidth, copy_error });
    let (name, instructions, threads) = (spec.name, spec.instructions, spec.threads);
    console.print_json(&DeviceLine { device: device.to_string(), name, instructions, threads, gpu })
}

/// Prints the entry of a device that is not available.
fn missing(device: &str, error: String, args: &Args, console: &Console) -> Result<()> {
    if args.json {
        return console.print_json(&Missing { device: device.to_owned(), error });
    }
    console.print(&format!("{device:<8}none: {error}\n"))
}
