//! The CUDA compiler of the build machine, if any.

use std::env;
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Environment variable with the path of the compiler; `off` disables it.
const VARIABLE: &str = "SPARSEOP_NVCC";

/// Environment variable with the architectures of the machine code: `80,90`.
const ARCHITECTURES: &str = "SPARSEOP_NVCC_ARCHS";

/// Environment variable with the modules that are compiled: `all`, the default, or `common`, which
/// leaves out what few products need, and PTX.
const MODULES: &str = "SPARSEOP_NVCC_MODULES";

/// All environment variables with settings.
pub(crate) const SETTINGS: [&str; 3] = [VARIABLE, ARCHITECTURES, MODULES];

/// Environment variables with the folder of a CUDA installation.
pub(crate) const HOMES: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];

/// Default folder of a CUDA installation.
const DEFAULT_HOME: &str = "/usr/local/cuda";

/// Test source that every working CUDA compiler compiles.
const PROBE: &str = "extern \"C\" __global__ void probe(float* y) { *y = 1.0f; }\n";

/// Target of a compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NvccTarget {
    /// Machine code for an architecture: 90 for `sm_90`.
    Cubin(u32),
    /// PTX for a virtual architecture and all later ones.
    Ptx(u32),
}

impl NvccTarget {
    /// The compiler options of the target.
    fn options(self) -> [String; 2] {
        let form = if matches!(self, Self::Cubin(_)) { "--cubin" } else { "--ptx" };
        [form.to_owned(), format!("--gpu-architecture={self}")]
    }
}

impl Display for NvccTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cubin(arch) => write!(f, "sm_{arch}"),
            Self::Ptx(arch) => write!(f, "compute_{arch}"),
        }
    }
}

/// A CUDA compiler that has compiled the test source.
#[derive(Debug)]
pub(crate) struct Nvcc {
    path: PathBuf,
    codes: Vec<u32>,
    archs: Vec<u32>,
}

/// Returns the path of the compiler; `None` if there is none or it is disabled.
///
/// # Errors
///
/// If the requested compiler does not exist.
pub(crate) fn find() -> Result<Option<PathBuf>, String> {
    if let Some(asked) = env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        if asked == OsStr::new("off") {
            return Ok(None);
        }
        let path = PathBuf::from(asked);
        let missing =
            format!("{VARIABLE}={} is not a file; name the compiler, or write off", path.display());
        return if path.is_file() { Ok(Some(path)) } else { Err(missing) };
    }
    let name = format!("nvcc{}", env::consts::EXE_SUFFIX);
    let path = env::var_os("PATH").unwrap_or_default();
    let homes = HOMES.iter().filter_map(env::var_os).chain([DEFAULT_HOME.into()]);
    let mut folders = env::split_paths(&path).chain(homes.map(|home| Path::new(&home).join("bin")));
    Ok(folders.find_map(|folder| Some(folder.join(&name)).filter(|path| path.is_file())))
}

/// Value of an environment variable, if there is one.
fn setting(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

/// Architectures of the machine code, if they are given.
///
/// # Errors
///
/// If they are not numbers.
fn architectures() -> Result<Option<Vec<u32>>, String> {
    let Some(list) = setting(ARCHITECTURES) else { return Ok(None) };
    let numbers: Result<Vec<u32>, _> = list.split(',').map(|arch| arch.trim().parse()).collect();
    let wrong = |_| format!("{ARCHITECTURES} is a list such as 80,90, not {list}");
    numbers.map(Some).map_err(wrong)
}

/// True if modules that few products need are left out.
///
/// # Errors
///
/// If the setting is neither `all` nor `common`.
pub(crate) fn only_common() -> Result<bool, String> {
    match setting(MODULES).as_deref() {
        None | Some("all") => Ok(false),
        Some("common") => Ok(true),
        Some(other) => Err(format!("{MODULES} is all or common, not {other}")),
    }
}

impl Nvcc {
    /// Tests the compiler on a minimal kernel.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be used: it does not run, it is too old, or its host compiler is
    /// missing.
    pub(crate) fn probe(path: PathBuf, folder: &Path) -> Result<Self, String> {
        let listed = |list: &str, prefix: &str| -> Result<Vec<u32>, String> {
            let output = succeeded(Command::new(&path).arg(list).output())?;
            let names = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok(names
                .lines()
                .filter_map(|name| name.trim().strip_prefix(prefix)?.parse().ok())
                .collect())
        };
        let codes = listed("--list-gpu-code", "sm_")?;
        let archs = listed("--list-gpu-arch", "compute_")?;
        let first = *codes.first().ok_or("it lists no architecture")?;
        let nvcc = Self { path, codes, archs };
        let source = folder.join("nvcc-probe.cu");
        std::fs::write(&source, PROBE).map_err(|error| error.to_string())?;
        nvcc.compile(&source, NvccTarget::Cubin(first), &[], &folder.join("nvcc-probe.cubin"))?;
        Ok(nvcc)
    }

    /// The architectures that the setting names, or those of `default` that the compiler supports,
    /// and the oldest virtual architecture from `oldest` on if there is one.
    ///
    /// # Errors
    ///
    /// If the setting is wrong or names an architecture that the compiler does not support.
    pub(crate) fn targets(
        &self,
        default: &[u32],
        oldest: Option<u32>,
    ) -> Result<Vec<NvccTarget>, String> {
        let given = architectures()?;
        let supports = |arch: &u32| self.codes.contains(arch);
        if let Some(other) = given.iter().flatten().find(|arch| !supports(arch)) {
            return Err(format!("{ARCHITECTURES} has {other}, nvcc supports {:?}", self.codes));
        }
        let real = given.unwrap_or(default.to_vec()).into_iter().filter(supports);
        let ptx = oldest
            .and_then(|oldest| self.archs.iter().copied().filter(|arch| *arch >= oldest).min());
        Ok(real.map(NvccTarget::Cubin).chain(ptx.map(NvccTarget::Ptx)).collect())
    }

    /// Compiles a file.
    ///
    /// # Errors
    ///
    /// The output of the compiler.
    pub(crate) fn compile(
        &self,
        source: &Path,
        target: NvccTarget,
        options: &[&str],
        out: &Path,
    ) -> Result<(), String> {
        let mut command = Command::new(&self.path);
        command.arg("-O3").args(target.options()).args(options).arg("-o").arg(out).arg(source);
        succeeded(command.output()).map(drop)
    }
}

/// Returns the output of a program that ran and succeeded, otherwise the reason of the failure.
fn succeeded(ran: std::io::Result<Output>) -> Result<Output, String> {
    let output = ran.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned();
    Err(if said.is_empty() { output.status.to_string() } else { said })
}
