//! The options on which the choice of a plan depends.

use crate::console::Console;
use anyhow::Result;
#[cfg(feature = "mpi")]
use anyhow::bail;
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
#[cfg(feature = "mpi")]
use sparseop::device::DEVICE_VARIABLE;
use sparseop::matrix::CsrMatrix;
use sparseop::tuning::calibrate::Calibration;
use sparseop::{Device, Error, Plan, Precision, Scalar, ScalarKind, SparseOpBuilder, Tuning};
#[cfg(feature = "mpi")]
use sparseop_distributed::{Communicator, gpu_of_rank};
use std::path::PathBuf;

/// The options on which the choice of a plan depends.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Choice of the plan")]
pub(super) struct ChoiceArgs {
    /// Device of the products: auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceArg::parse)]
    device: DeviceArg,
    /// Scalar type of the computation
    #[arg(long, value_name = "TYPE", default_value = "f64", value_parser = dtype_parser())]
    pub(super) dtype: ScalarKind,
    /// Precision to which the values of the matrix are rounded, for storage in fewer bytes;
    /// products are computed in --dtype [default: no rounding]
    #[arg(long, value_name = "TYPE", value_parser = precision_parser())]
    pub(super) value_precision: Option<Precision>,
    /// Number of products over which the preparation is amortised [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    expected_calls: Option<u64>,
    /// Largest size of the packed matrix in bytes, such as 2G, 512M or 1000000 [default: 8 times
    /// that of plain CSR, or 64M if that is more, within the memory of the device]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    memory_limit: Option<u64>,
    /// Profile of measured coefficients, in RON, as written by `sparseop tune` [default: the one
    /// that `sparseop profile show` prints]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Method of choosing the plan [default: check; `analyze` predicts]
    #[arg(long, value_name = "METHOD")]
    pub(super) tuning: Option<TuningMethod>,
    /// Approximate time limit of a timing run, in seconds, besides the compilation of kernels
    /// [default: 3]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    calibration_seconds: Option<f64>,
    /// Calibrate with cold caches, as for products between other work
    #[arg(long)]
    cold: bool,
    /// Store the results of timing runs on disk, and use stored ones
    #[arg(long)]
    pub(super) remember: bool,
    /// Choose only plans with bitwise reproducible products
    #[arg(long)]
    deterministic: bool,
}

/// Method of choosing the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TuningMethod {
    /// Prediction from measured coefficients
    Predict,
    /// Prediction, checked with a few products on the matrix itself
    Check,
    /// Timing run of the shortlist on the matrix itself; with --expected-calls only if these
    /// products amortise it
    Calibrate,
}

/// Parses a number of seconds above 0.
pub(super) fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| s.is_finite() && *s > 0.0);
    seconds.ok_or_else(|| "write a number of seconds above 0, such as 0.5".to_owned())
}

/// Parses a ratio above 1.
pub(super) fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse::<f64>().ok().filter(|ratio| ratio.is_finite() && *ratio > 1.0);
    ratio.ok_or_else(|| "write a number above 1, such as 4".to_owned())
}

impl ChoiceArgs {
    /// The device.
    pub(super) fn device(&self) -> Result<Device> {
        self.device.get()
    }

    /// Device of this MPI rank: a GPU of its own or the CPU. By default the GPUs, if there is one
    /// for every rank.
    #[cfg(feature = "mpi")]
    pub(super) fn rank_device(&self, comm: &dyn Communicator, console: &Console) -> Result<Device> {
        let is_one = comm.size() == 1;
        match self.device.0.as_str() {
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(gpu_of_rank(comm)?),
            "auto" if is_one => self.device(),
            "auto" if std::env::var(DEVICE_VARIABLE).is_ok_and(|device| device == "cpu") => {
                Ok(Device::Cpu)
            }
            "auto" => Ok(gpu_of_rank(comm).unwrap_or_else(|error| {
                if comm.rank() == 0 && Device::gpu_count() > 0 {
                    console.warn(&format!("the ranks run on the CPU: {error}"));
                }
                Device::Cpu
            })),
            _ if is_one => self.device(),
            named => bail!("each rank has a GPU of its own; write --device cuda, not {named}"),
        }
    }

    /// The given options that a command without timing runs ignores.
    pub(super) fn options_of_timing(&self) -> Vec<&'static str> {
        let given = [
            ("--tuning", self.tuning.is_some_and(|method| method != TuningMethod::Predict)),
            ("--calibration-seconds", self.calibration_seconds.is_some()),
            ("--cold", self.cold),
            ("--remember", self.remember),
        ];
        given.into_iter().filter_map(|(option, is_given)| is_given.then_some(option)).collect()
    }

    /// Warns of given options that have no effect: with a given plan all that belong to the choice,
    /// and those of timing runs if there is none.
    pub(super) fn warn_of_ignored_options(&self, plan_is_given: bool, console: &Console) {
        let (mut ignored, why) = (self.options_of_timing(), "the plan is given");
        if plan_is_given {
            ignored.extend(self.tuning.filter(|m| *m == TuningMethod::Predict).map(|_| "--tuning"));
            ignored.extend(self.expected_calls.map(|_| "--expected-calls"));
            ignored.extend(self.profile.as_ref().map(|_| "--profile"));
        }
        let calibrates = self.tuning == Some(TuningMethod::Calibrate);
        let why = if plan_is_given { why } else { "only --tuning calibrate uses it" };
        let of_calibration = ["--calibration-seconds", "--cold"];
        ignored.retain(|option| plan_is_given || (!calibrates && of_calibration.contains(option)));
        for option in ignored {
            console.warn(&format!("{option} is ignored: {why}"));
        }
    }

    /// Settings of the calibration.
    pub(super) fn calibration(&self) -> Calibration {
        let default = Calibration::default();
        Calibration {
            seconds: self.calibration_seconds.unwrap_or(default.seconds),
            cold: self.cold,
            ..default
        }
    }

    /// Returns the matrix with its values rounded, if the options say so.
    pub(super) fn rounded<T: Scalar>(&self, a: CsrMatrix<T>) -> Result<CsrMatrix<T>> {
        let Some(precision) = self.value_precision else { return Ok(a) };
        Ok(a.rounded_to(precision)?.into_owned())
    }

    /// A builder with these settings, for a given plan if there is one.
    pub(super) fn builder_for(&self, plan: Option<&Plan>) -> Result<SparseOpBuilder> {
        let builder = self.builder()?;
        Ok(match plan {
            Some(plan) => builder.tuning(Tuning::Fixed(plan.clone())),
            None => builder,
        })
    }

    /// A builder with these settings.
    pub(super) fn builder(&self) -> Result<SparseOpBuilder> {
        let tuning = match self.tuning {
            Some(TuningMethod::Predict) => Tuning::Predict,
            None | Some(TuningMethod::Check) => Tuning::Check,
            Some(TuningMethod::Calibrate) => Tuning::Calibrate,
        };
        let mut builder = SparseOpBuilder::new()
            .tuning(tuning)
            .calibration(self.calibration())
            .remember(self.remember)
            .deterministic(self.deterministic);
        // With `auto` the builder may fall back on the CPU.
        if !self.device.is_auto() {
            builder = builder.device(self.device()?);
        }
        if let Some(precision) = self.value_precision {
            builder = builder.value_precision(precision);
        }
        if let Some(calls) = self.expected_calls {
            builder = builder.expected_calls(calls);
        }
        if let Some(bytes) = self.memory_limit {
            builder = builder.memory_limit(bytes);
        }
        if let Some(path) = &self.profile {
            builder = builder.profile(path.as_path());
        }
        Ok(builder)
    }
}

/// A well-formed device name. Opening it shows if the device exists.
#[derive(Debug, Clone)]
pub(super) struct DeviceArg(String);

impl DeviceArg {
    /// The device.
    pub(super) fn get(&self) -> Result<Device> {
        Ok(self.0.parse()?)
    }

    fn is_auto(&self) -> bool {
        self.0 == "auto"
    }

    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let number = text.strip_prefix("cuda:");
        if matches!(text, "auto" | "cpu" | "cuda")
            || number.is_some_and(|n| n.parse::<usize>().is_ok())
        {
            return Ok(Self(text.to_owned()));
        }
        text.parse::<Device>().map(|_| Self(text.to_owned()))
    }
}

/// Parser of `f32` or `f64`.
pub(super) fn dtype_parser() -> impl TypedValueParser<Value = ScalarKind> {
    PossibleValuesParser::new(ScalarKind::ALL.map(ScalarKind::name)).map(|name| {
        // The parser accepts no other name.
        ScalarKind::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or(ScalarKind::F64)
    })
}

/// Parser of `bf16`, `f16` or `f32`.
fn precision_parser() -> impl TypedValueParser<Value = Precision> {
    PossibleValuesParser::new(Precision::ALL.map(Precision::name)).map(|name| {
        // The parser accepts no other name.
        Precision::ALL
            .into_iter()
            .find(|precision| precision.name() == name)
            .unwrap_or(Precision::F32)
    })
}

/// Parses a number of bytes with an optional unit of 2¹⁰, 2²⁰, 2³⁰ or 2⁴⁰.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let units = [("k", 10), ("m", 20), ("g", 30), ("t", 40)];
    let lower = text.to_ascii_lowercase();
    let bytes = lower.strip_suffix("ib").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower);
    let unit = units
        .into_iter()
        .find_map(|(suffix, shift)| Some((bytes.strip_suffix(suffix)?.trim_end(), 1u64 << shift)));
    let (digits, unit) = unit.unwrap_or((bytes, 1));
    let wrong = || "write a whole number of bytes, such as 2G, 512M or 1000000".to_owned();
    digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_above_one() {
        assert_eq!(parse_ratio("4"), Ok(4.0));
        for wrong in ["1", "-4", "inf", "nan", "four", ""] {
            assert!(parse_ratio(wrong).unwrap_err().contains("above 1"), "{wrong}");
        }
    }

    #[test]
    fn bytes_with_and_without_a_unit() {
        assert_eq!(
            ["17", "17B", "1K", "512m", "2G", "2GB", "2 GiB"].map(|t| parse_bytes(t).unwrap()),
            [17, 17, 1 << 10, 512 << 20, 2 << 30, 2 << 30, 2 << 30]
        );
        for wrong in ["", "G", "-1", "1.5G", "B", "99999999999T"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
