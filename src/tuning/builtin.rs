//! Built-in profiles, and the generic profile for other GPUs.

use super::profile::{ANY, Profile};
use super::scale::Scale;
use crate::device::{Ceilings, Device, DeviceSpec, GpuSpec};
use std::sync::{Arc, OnceLock};

/// A built-in profile.
struct BuiltIn {
    name: &'static str,
    /// Instructions of its device, known without reading the text.
    instructions: &'static str,
    text: &'static str,
    parsed: OnceLock<Arc<Profile>>,
}

impl BuiltIn {
    const fn new(name: &'static str, instructions: &'static str, text: &'static str) -> Self {
        Self { name, instructions, text, parsed: OnceLock::new() }
    }

    fn profile(&self) -> Arc<Profile> {
        // The library's own files, read by a test: they are valid in a build that passed.
        let parse = || {
            Arc::new(Profile::parse(self.name, self.text).expect("the built-in profiles are valid"))
        };
        self.parsed.get_or_init(parse).clone()
    }
}

static CPU: BuiltIn = BuiltIn::new("cpu", "avx512", include_str!("../../models/cpu.ron"));
static CPU_INTEL: BuiltIn =
    BuiltIn::new("cpu-intel", "avx512", include_str!("../../models/cpu-intel.ron"));
static CPU_AVX2: BuiltIn =
    BuiltIn::new("cpu-avx2", "avx2", include_str!("../../models/cpu-avx2.ron"));
static H200: BuiltIn =
    BuiltIn::new("nvidia-h200", "sm_90", include_str!("../../models/nvidia-h200.ron"));
static GENERIC: BuiltIn = BuiltIn::new("generic", ANY, include_str!("../../models/generic.ron"));

impl Profile {
    /// The built-in profile for a device.
    #[doc(hidden)]
    pub fn builtin(device: &Device) -> Arc<Self> {
        Self::builtin_for(&device.spec()).1
    }

    /// Name and content of the built-in profile for a device.
    pub(super) fn builtin_for(device: &DeviceSpec) -> (&'static str, Arc<Self>) {
        let profile = match &device.gpu {
            None if CPU.instructions != device.instructions => &CPU_AVX2,
            None if device.name.starts_with("Intel") => &CPU_INTEL,
            None => &CPU,
            Some(_) if H200.instructions == device.instructions => &H200,
            Some(_) => &GENERIC,
        };
        (profile.name, profile.profile())
    }

    /// Profile of one multiprocessor with its share of all resources, for GPUs without a profile of
    /// their own. Scaling it to a GPU multiplies by the number of multiprocessors and by the ratio
    /// of copy bandwidths. `None` for the profile of a CPU.
    ///
    /// `command` is recorded as the command that made the profile.
    #[doc(hidden)]
    pub fn generic(&self, command: &str) -> Option<Self> {
        let share = 1.0 / self.device.threads as f64;
        let gpu = self.device.gpu.as_ref()?;
        let part = |bytes: u64| (bytes as f64 * share) as u64;
        let device = DeviceSpec {
            name: format!("a multiprocessor of {}", self.device.name),
            instructions: ANY.to_owned(),
            threads: 1,
            gpu: Some(GpuSpec {
                l2_bytes: part(gpu.l2_bytes),
                memory_bytes: part(gpu.memory_bytes),
                driver: gpu.driver.clone(),
            }),
        };
        let of_one = |bandwidth: Option<f64>| bandwidth.map(|b| b * share);
        let ceilings = Ceilings {
            copy_bandwidth: of_one(self.ceilings.copy_bandwidth),
            launch_us: self.ceilings.launch_us,
            upload_bandwidth: of_one(self.ceilings.upload_bandwidth),
        };
        let scale = Scale::between((&self.device, &self.ceilings), (&device, &ceilings));
        let mut coefficients = self.coefficients.clone();
        coefficients
            .values_mut()
            .flat_map(|k| k.values_mut())
            .for_each(|c| *c = scale.coefficients(c));
        Some(Self {
            device,
            ceilings,
            coefficients,
            command: command.to_owned(),
            cache_bytes: self.cache_bytes * scale.cache,
            cache_reach: self.cache_reach.scaled(scale.cache),
            records: Vec::new(),
            ..self.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScalarKind;

    #[test]
    fn the_built_in_profiles_know_every_kernel() {
        for BuiltIn { name, instructions, text, .. } in
            [&CPU, &CPU_INTEL, &CPU_AVX2, &H200, &GENERIC]
        {
            let profile = Profile::parse(name, text).unwrap();
            assert_eq!(profile.device.instructions, *instructions, "models/{name}.ron");
            for scalar in ScalarKind::ALL {
                let missing = profile.missing_kernels(scalar);
                assert!(missing.is_empty(), "models/{name}.ron has no {missing:?} in {scalar}");
            }
        }
        let mut without = (*CPU.profile()).clone();
        without.coefficients.get_mut(&ScalarKind::F32).unwrap().remove("ell").unwrap();
        assert_eq!(without.missing_kernels(ScalarKind::F32), ["ell"]);
        assert!(without.missing_kernels(ScalarKind::F64).is_empty());
    }

    #[test]
    fn the_generic_profile_is_that_of_the_h200() {
        let (h200, generic) = (H200.profile(), GENERIC.profile());
        let made = h200.generic(&generic.command).unwrap();
        assert_eq!(*generic, made, "make it again: {}", generic.command);
        assert!(CPU.profile().generic("").is_none());
        // On its own device the generic profile gives the same predictions.
        let scale =
            Scale::between((&generic.device, &generic.ceilings), (&h200.device, &h200.ceilings));
        for (ours, theirs) in generic.coefficients[&ScalarKind::F32]
            .values()
            .zip(h200.coefficients[&ScalarKind::F32].values())
        {
            for (ours, theirs) in scale.coefficients(ours).terms().into_iter().zip(theirs.terms()) {
                assert!((ours - theirs).abs() <= 1e-9 * theirs);
            }
        }
    }
}
