//! `sparseop devices`.

use super::console::Console;
use anyhow::Result;
use serde::Serialize;
use sparseop::Device;

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
}

/// The line for what is not there.
#[derive(Serialize)]
struct Missing {
    device: &'static str,
    error: String,
}

pub(super) fn run(args: &Args, console: &Console) -> Result<()> {
    let gpus: Vec<Device> = (0..).map_while(|n| Device::cuda(n).ok()).collect();
    let none = gpus.is_empty();
    for device in [Device::Cpu].into_iter().chain(gpus) {
        let spec = device.spec();
        if args.json {
            let (name, instructions, threads) = (spec.name, spec.instructions, spec.threads);
            console.print_json(&Line { device: device.to_string(), name, instructions, threads })?;
        } else {
            console.print(&format!("{:<8}{spec}\n", device.to_string()))?;
        }
    }
    if none {
        let error = Device::why_no_gpu();
        if args.json {
            console.print_json(&Missing { device: "cuda", error })?;
        } else {
            console.print(&format!("{:<8}none: {error}\n", "cuda"))?;
        }
    }
    Ok(())
}
