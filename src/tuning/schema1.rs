//! Profiles of schema 1, which are still read.

use super::cost::{Coefficients, Reach};
use super::profile::{Profile, SCHEMA};
use super::record::{Regret, Validation};
use crate::ScalarKind;
use crate::device::{Ceilings, DeviceSpec};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A profile as schema 1 laid it out.
#[derive(Deserialize)]
pub(super) struct Profile1 {
    kernels: String,
    device: Device1,
    date: String,
    command: String,
    cache_bytes: f64,
    validation: Validation1,
    coefficients: BTreeMap<ScalarKind, BTreeMap<String, Coefficients>>,
}

#[derive(Deserialize)]
struct Device1 {
    name: String,
    instructions: String,
    threads: usize,
    #[serde(default)]
    gpu: Option<Gpu1>,
}

#[derive(Deserialize)]
struct Gpu1 {
    l2_bytes: u64,
    memory_bytes: u64,
    driver: String,
    #[serde(default)]
    copy_bandwidth: Option<f64>,
}

#[derive(Deserialize)]
struct Validation1 {
    matrices: usize,
    mean_regret: f64,
    p95_regret: f64,
    worst_regret: f64,
}

impl From<Profile1> for Profile {
    fn from(old: Profile1) -> Self {
        let copy_bandwidth = old.device.gpu.as_ref().and_then(|gpu| gpu.copy_bandwidth);
        let gpu = old.device.gpu.map(|gpu| crate::device::GpuSpec {
            l2_bytes: gpu.l2_bytes,
            memory_bytes: gpu.memory_bytes,
            driver: gpu.driver,
        });
        let Device1 { name, instructions, threads, .. } = old.device;
        let in_sample = Regret {
            matrices: old.validation.matrices,
            geometric_mean: old.validation.mean_regret,
            p95: old.validation.p95_regret,
            worst: old.validation.worst_regret,
        };
        let device = DeviceSpec { name, instructions, threads, gpu };
        Self {
            schema: SCHEMA,
            kernels: old.kernels,
            reach: Reach::usual(&device),
            device,
            date: old.date,
            command: old.command,
            ceilings: Ceilings { copy_bandwidth, ..Ceilings::default() },
            cache_bytes: old.cache_bytes,
            validation: Validation { in_sample, ..Validation::default() },
            coefficients: old.coefficients,
            correction: None,
            records: Vec::new(),
        }
    }
}
