//! `sparseop profile`.

mod check;
mod diff;
mod show;

use super::choice::DeviceArg;
use super::console::Console;
use anyhow::{Context, Result};
use sparseop::device::{Ceilings, DeviceSpec};
use sparseop::tuning::profile::Profile;
use sparseop::{Device, ScalarKind};
use std::path::{Path, PathBuf};

/// Display and checks of profiles, the measured coefficients of the cost model
///
/// Profiles are written by `sparseop tune`. Precedence: the profile of --profile; the profiles of
/// the environment variable SPARSEOP_PROFILE; the best fit among the user's profiles, in the folder
/// that `sparseop profile show` prints, and the built-in ones. A profile of this device fits best,
/// then one of a device with the same instructions, then one of a device of the same kind.
/// SPARSEOP_PROFILE=off uses built-in profiles only.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sparseop profile show                         the profile in use
  sparseop profile show mine.ron                device, fit, regret by class, coefficients
  sparseop profile check mine.ron               validation; exit code 1 with reasons on failure
  sparseop profile diff old.ron new.ron         differences between two tunings
  sparseop profile generic models/nvidia-h200.ron --out models/generic.ron")]
pub(super) struct ProfileArgs {
    #[command(subcommand)]
    command: ProfileCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ProfileCommand {
    Show(show::ProfileShowArgs),
    Check(check::ProfileCheckArgs),
    Diff(diff::ProfileDiffArgs),
    Generic(GenericArgs),
}

/// Generic profile of one multiprocessor, scaled to GPUs without a fitting profile
///
/// From a measured GPU with n multiprocessors: the n-th part of bandwidths and caches, and n times
/// the times of work shared by the multiprocessors. On another GPU the profile is scaled by the
/// number of multiprocessors and the measured copy bandwidth.
#[derive(Debug, clap::Args)]
struct GenericArgs {
    /// Profile measured on a GPU
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Output file of the profile
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(super) fn run(args: &ProfileArgs, console: &Console) -> Result<()> {
    match &args.command {
        ProfileCommand::Show(args) => show::run(args, console),
        ProfileCommand::Check(args) => check::run(args, console),
        ProfileCommand::Diff(args) => diff::run(args, console),
        ProfileCommand::Generic(args) => generic(args),
    }
}

fn generic(args: &GenericArgs) -> Result<()> {
    let profile =
        Profile::read(&args.file)?.generic(&super::command_line()).with_context(|| {
            format!(
                "{}: it was measured on a CPU, which has no multiprocessors",
                args.file.display()
            )
        })?;
    Ok(profile.write(&args.out)?)
}

/// The device of this machine to compare a profile with: the requested one, or else one of the
/// profile's kind, if any.
fn device_for(profile: &Profile, asked: Option<&DeviceArg>) -> Result<Option<Device>> {
    match asked {
        Some(device) => device.get().map(Some),
        None if profile.device.gpu.is_none() => Ok(Some(Device::Cpu)),
        None => Ok(Device::cuda(0).ok()),
    }
}

/// True if its kernels are those of this program.
fn is_current(profile: &Profile) -> bool {
    profile.kernels == profile.device.kernels()
}

/// Measured ceilings of a device in words, each with its name.
fn ceilings(c: &Ceilings) -> [(&'static str, String); 3] {
    let in_words = |value: Option<f64>, unit: f64, name: &str| {
        value.map_or("not measured".to_owned(), |value| {
            format!("{:.4} {name}", rounded(value * unit))
        })
    };
    [
        ("copies", in_words(c.copy_bandwidth, 1e-9, "GB/s")),
        ("launches", in_words(c.launch_us, 1.0, "µs apart")),
        ("uploads", in_words(c.upload_bandwidth, 1e-9, "GB/s")),
    ]
}

/// Formats a number with a few significant digits.
fn rounded(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if v.abs() >= 100.0 => format!("{v:.0}"),
        v if v.abs() >= 10.0 => format!("{v:.1}"),
        v if v.abs() >= 0.1 => format!("{v:.2}"),
        v if v.abs() >= 0.001 => format!("{v:.4}"),
        v => format!("{v:.1e}"),
    }
}

/// A text of unknown origin with its control characters escaped.
fn printable(text: &str) -> String {
    sparseop::printable(text).into_owned()
}

/// Printable form of `path`.
fn name(path: &Path) -> String {
    printable(&path.display().to_string())
}

/// Description of a device in one line.
fn device_line(device: &DeviceSpec) -> String {
    printable(&device.to_string())
}

/// The scalar types for which a profile has coefficients.
fn scalars(profile: &Profile) -> impl Iterator<Item = ScalarKind> + '_ {
    profile.coefficients.keys().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_the_digits_that_count() {
        let texts = [0.0, 4180.0, 12.34, 0.5, 0.0123, 1.5e-7].map(rounded);
        assert_eq!(texts, ["0", "4180", "12.3", "0.50", "0.0123", "1.5e-7"]);
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
    }
}
