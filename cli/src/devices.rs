//! `sparseop devices`.

use super::console::{self, Console};
use anyhow::Result;
use serde::Serialize;
use sparseop::device::{GpuRuntime, GpuSpec};
use sparseop::tuning::explain::size;
use sparseop::tuning::lookup;
use sparseop::tuning::profile::Fit;
use sparseop::tuning::store::{STORE_VARIABLE, Store};
use sparseop::{Device, ScalarKind};
use std::fmt::{self, Display};
use std::fs::{self, Metadata};
use std::path::Path;

/// Available devices and what they need: driver, NVRTC, caches and profiles, each with a remedy
///
/// The device `cpu` is always available and listed first. The environment variable
/// SPARSEOP_DEVICE=cpu restricts `auto` to it.
#[derive(Debug, clap::Args)]
pub(super) struct DevicesArgs {
    /// Print one JSON object per line, for every device, then for everything that they need
    #[arg(long)]
    json: bool,
    /// First compile all kernels for every GPU and keep them, so that no later command compiles any
    #[arg(long)]
    compile: bool,
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

pub(super) fn run(args: &DevicesArgs, console: &Console) -> Result<()> {
    if args.compile {
        Device::gpus().iter().try_for_each(|gpu| compile(gpu, console))?;
    }
    list(&Device::Cpu, args, console)?;
    for n in 0..Device::gpu_count() {
        match Device::cuda(n) {
            Ok(gpu) => list(&gpu, args, console)?,
            Err(error) => missing(&format!("cuda:{n}"), error.to_string(), args, console)?,
        }
    }
    if let Some(error) = Device::why_no_gpu() {
        missing("cuda", error, args, console)?;
    }
    let mut requirements: Vec<Requirement> = gpu_runtime(&GpuRuntime::find()).into();
    requirements.push(decisions());
    for device in std::iter::once(Device::Cpu).chain(Device::gpus()) {
        requirements.push(profile(&device)?);
    }
    if args.json {
        return requirements.iter().try_for_each(|found| console.print_json(found));
    }
    let lines: String = requirements.iter().map(Requirement::to_string).collect();
    console.print(&format!("\n{lines}"))
}

/// Compiles the kernels for a GPU.
fn compile(gpu: &Device, console: &Console) -> Result<()> {
    let bar = console.bar("compiling kernels: {pos} of {len} modules ({elapsed})");
    let compiled = gpu.compile_kernels(|finished, all| {
        bar.set_length(all as u64);
        bar.set_position(finished as u64);
    })?;
    bar.finish_and_clear();
    console.note(&format!("{gpu}: compiled {compiled} modules of kernels"));
    Ok(())
}

/// Something that devices need.
#[derive(Serialize)]
struct Requirement {
    requirement: &'static str,
    state: String,
    remedy: Option<String>,
}

impl Requirement {
    fn new(requirement: &'static str, (state, remedy): (String, Option<String>)) -> Self {
        Self { requirement, state, remedy }
    }
}

impl Display for Requirement {
    /// A line, and one with the remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requirement, state, remedy } = self;
        writeln!(f, "{requirement:<8}  {state}")?;
        remedy.iter().try_for_each(|remedy| writeln!(f, "          {remedy}"))
    }
}

/// Driver, NVRTC, and the cache of kernels.
fn gpu_runtime(runtime: &GpuRuntime) -> [Requirement; 3] {
    let state = |found: &Result<String, String>| match found {
        Ok(found) => found.clone(),
        Err(reason) => format!("none: {reason}"),
    };
    let driver = runtime.driver.is_err().then(|| {
        "for a GPU, install NVIDIA's driver; without one products run on the CPU".to_owned()
    });
    let all = runtime.embedded.len();
    let compiled = runtime.embedded.iter().filter(|(_, targets)| !targets.is_empty()).count();
    let nvrtc = match &runtime.nvrtc {
        _ if compiled > 0 && compiled == all => {
            ("not needed: the machine code of all kernels is embedded".to_owned(), None)
        }
        Ok(found) if compiled == 0 => {
            (format!("{found}, compiles kernels at their first use"), None)
        }
        Ok(found) => (format!("{found}, for kernels of {} of {all} modules", all - compiled), None),
        Err(reason) if compiled > 0 => (
            format!("none: {reason}; machine code of {compiled} of {all} modules is embedded"),
            runtime.driver.is_ok().then(|| {
                "for the kernels of the others, install NVRTC: \
                 pip install nvidia-cuda-nvrtc, for example"
                    .to_owned()
            }),
        ),
        Err(_) => (
            state(&runtime.nvrtc),
            runtime.driver.is_ok().then(|| {
                "or build with SPARSEOP_ARCHITECTURES unset, which embeds compiled kernels"
                    .to_owned()
            }),
        ),
    };
    let cache = match &runtime.cache {
        Some(folder) => (contents(folder, "kernel"), None),
        None => (
            "none: compiled kernels are not kept".to_owned(),
            Some("name a folder in SPARSEOP_CACHE, or unset it if it is `off`".to_owned()),
        ),
    };
    let driver = (state(&runtime.driver), driver);
    [
        Requirement::new("driver", driver),
        Requirement::new("NVRTC", nvrtc),
        Requirement::new("cache", cache),
    ]
}

/// The store of decisions.
fn decisions() -> Requirement {
    let found = match Store::of_user() {
        Some(store) => {
            let folder = store.folder();
            let is_empty = files(folder).0 == 0;
            let remedy = is_empty.then(|| {
                "`--tuning calibrate --remember` and `sparseop tune` store decisions".to_owned()
            });
            (contents(folder, "decision"), remedy)
        }
        None => (
            "none: decisions are not kept".to_owned(),
            Some(format!("name a folder in {STORE_VARIABLE}, or unset it if it is `off`")),
        ),
    };
    Requirement::new("store", found)
}

/// Number of files of a folder and their bytes; 0 if it does not exist.
fn files(folder: &Path) -> (u64, u64) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.filter_map(|entry| entry.metadata().ok().filter(Metadata::is_file));
    bytes.fold((0, 0), |(count, sum), file| (count + 1, sum + file.len()))
}

/// A folder, the number of its entries and their size, in words.
fn contents(folder: &Path, entry: &str) -> String {
    let (count, bytes) = files(folder);
    format!("{}: {}, {}", folder.display(), console::count(count, entry), size(bytes))
}

/// The profile in use on a device, and the remedy if it was measured on another one.
fn profile(device: &Device) -> Result<Requirement> {
    let found = lookup::find(device, ScalarKind::F64, None)?;
    let fit = found.profile.fit(&device.spec());
    let mut state =
        format!("of {device}: {}, {}; {}", found.profile.device, found.origin, fit.describe());
    for warning in &found.warnings {
        state += &format!("\n          skipped: {warning}");
    }
    let remedy = (fit != Fit::Exact).then(|| {
        let folder = lookup::user_folder();
        let folder = folder
            .map_or_else(String::new, |folder| format!(", or move it to {}", folder.display()));
        format!(
            "to measure this device: sparseop tune --suite 100000,1000000 --device {device} --out \
             mine.ron; then use --profile mine.ron{folder}"
        )
    });
    Ok(Requirement::new("profile", (state, remedy)))
}

/// Prints the entry of a device.
fn list(device: &Device, args: &DevicesArgs, console: &Console) -> Result<()> {
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
fn missing(device: &str, error: String, args: &DevicesArgs, console: &Console) -> Result<()> {
    if args.json {
        return console.print_json(&Missing { device: device.to_owned(), error });
    }
    console.print(&format!("{device:<8}none: {error}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_missing_part_has_a_remedy() {
        let missing = || Err("no such library".to_owned());
        let embedded = vec![("csr", vec![]), ("ell", vec![])];
        let bare = GpuRuntime { driver: missing(), nvrtc: missing(), embedded, cache: None };
        let [driver, nvrtc, cache] = gpu_runtime(&bare);
        assert_eq!(driver.state, "none: no such library");
        assert!(driver.remedy.unwrap().contains("install NVIDIA's driver"));
        assert_eq!((&*nvrtc.state, nvrtc.remedy), ("none: no such library", None), "no GPU anyway");
        assert!(cache.remedy.unwrap().contains("SPARSEOP_CACHE"));
        let driver = Ok("CUDA 13.0".to_owned());
        let [_, nvrtc, _] = gpu_runtime(&GpuRuntime { driver: driver.clone(), ..bare.clone() });
        assert!(nvrtc.remedy.unwrap().contains("SPARSEOP_ARCHITECTURES"));
        let sm_90 = || vec!["sm_90".to_owned()];
        let embedded = vec![("csr", sm_90()), ("ell", vec![])];
        let [_, nvrtc, _] = gpu_runtime(&GpuRuntime { driver, embedded, ..bare.clone() });
        assert!(nvrtc.state.ends_with("machine code of 1 of 2 modules is embedded"));
        assert!(nvrtc.remedy.is_some());
        let embedded = vec![("csr", sm_90()), ("ell", sm_90())];
        let [_, nvrtc, _] = gpu_runtime(&GpuRuntime { embedded, ..bare });
        assert!(nvrtc.state.starts_with("not needed") && nvrtc.remedy.is_none());
    }

    #[test]
    fn entries_of_a_folder_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("inside");
        assert!(contents(&inside, "kernel").ends_with("inside: 0 kernels, 0 B"));
        fs::create_dir(&inside).unwrap();
        fs::write(inside.join("a"), [0; 2048]).unwrap();
        assert!(contents(&inside, "kernel").ends_with("inside: 1 kernel, 2.0 KiB"));
    }
}
