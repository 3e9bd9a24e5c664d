//! The CUDA compiler of the machine that builds, where there is one.

use std::env;
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The environment variable that names the compiler, or forbids it with `off`.
pub(crate) const VARIABLE: &str = "SPARSEOP_NVCC";

/// Where CUDA installations say they are.
pub(crate) const HOMES: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];

/// Where CUDA is installed when nobody says otherwise.
const DEFAULT_HOME: &str = "/usr/local/cuda";

/// What every CUDA compiler at least has to compile.
const PROBE: &str = "extern \"C\" __global__ void probe(float* y) { *y = 1.0f; }\n";

/// What a source is compiled to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Machine code for an architecture: 90 for `sm_90`.
    Cubin(u32),
    /// Assembly for a virtual architecture and all that came after it.
    Ptx(u32),
}

impl Target {
    /// The options that ask for it.
    fn options(self) -> [String; 2] {
        let form = if matches!(self, Self::Cubin(_)) { "--cubin" } else { "--ptx" };
        [form.to_owned(), format!("--gpu-architecture={self}")]
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cubin(arch) => write!(f, "sm_{arch}"),
            Self::Ptx(arch) => write!(f, "compute_{arch}"),
        }
    }
}

/// A compiler that was found to work.
#[derive(Debug)]
pub(crate) struct Nvcc {
    path: PathBuf,
    codes: Vec<u32>,
    archs: Vec<u32>,
}

/// Where the compiler is; `None` where there is none or it is not wanted.
///
/// # Errors
///
/// When the one that was asked for does not exist.
pub(crate) fn find() -> Result<Option<PathBuf>, String> {
    if let Some(asked) = env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        if asked == OsStr::new("off") {
            return Ok(None);
        }
        let path = PathBuf::from(asked);
        let missing = format!("{VARIABLE}={} is not a file; name the compiler, or write off", path.display());
        return if path.is_file() { Ok(Some(path)) } else { Err(missing) };
    }
    let name = format!("nvcc{}", env::consts::EXE_SUFFIX);
    let path = env::var_os("PATH").unwrap_or_default();
    let homes = HOMES.iter().filter_map(env::var_os).chain([DEFAULT_HOME.into()]);
    let mut folders = env::split_paths(&path).chain(homes.map(|home| Path::new(&home).join("bin")));
    Ok(folders.find_map(|folder| Some(folder.join(&name)).filter(|path| path.is_file())))
}

impl Nvcc {
    /// Tries the compiler on a kernel that nothing can be wrong with.
    ///
    /// # Errors
    ///
    /// Why it cannot be used: it does not run, it is too old, it misses its host compiler.
    pub(crate) fn probe(path: PathBuf, folder: &Path) -> Result<Self, String> {
        let listed = |list: &str, prefix: &str| -> Result<Vec<u32>, String> {
            let output = succeeded(Command::new(&path).arg(list).output())?;
            let names = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok(names.lines().filter_map(|name| name.trim().strip_prefix(prefix)?.parse().ok()).collect())
        };
        let codes = listed("--list-gpu-code", "sm_")?;
        let archs = listed("--list-gpu-arch", "compute_")?;
        let first = *codes.first().ok_or("it lists no architecture")?;
        let nvcc = Self { path, codes, archs };
        let source = folder.join("nvcc-probe.cu");
        std::fs::write(&source, PROBE).map_err(|error| error.to_string())?;
        nvcc.compile(&source, Target::Cubin(first), &[], &folder.join("nvcc-probe.cubin"))?;
        Ok(nvcc)
    }

    /// Those of `wanted` that it can compile for, and the oldest virtual architecture from `oldest` on.
    pub(crate) fn targets(&self, wanted: &[u32], oldest: u32) -> Vec<Target> {
        let real = wanted.iter().copied().filter(|arch| self.codes.contains(arch));
        let ptx = self.archs.iter().copied().filter(|arch| *arch >= oldest).min();
        real.map(Target::Cubin).chain(ptx.map(Target::Ptx)).collect()
    }

    /// Compiles a file.
    ///
    /// # Errors
    ///
    /// What the compiler says.
    pub(crate) fn compile(
        &self,
        source: &Path,
        target: Target,
        options: &[&str],
        out: &Path,
    ) -> Result<(), String> {
        let mut command = Command::new(&self.path);
        command.arg("-O3").args(target.options()).args(options).arg("-o").arg(out).arg(source);
        succeeded(command.output()).map(drop)
    }
}

/// What a program printed, if it ran and succeeded; else why not.
fn succeeded(ran: std::io::Result<Output>) -> Result<Output, String> {
    let output = ran.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned();
    Err(if said.is_empty() { output.status.to_string() } else { said })
}
