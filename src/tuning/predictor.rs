//! Predicted times of the plans of a device, from a profile.

use super::correction::correction_features;
use super::cost::{Coefficients, WorkTerms, work_terms};
use super::features::MatrixFeatures;
use super::prediction::Prediction;
use super::profile::Profile;
use super::scale::Scale;
use crate::ScalarKind;
use crate::device::DeviceSpec;
use crate::formats::{Plan, Target, Work};

/// A profile, the target device, and the scale factors between them.
#[derive(Debug, Clone, Copy)]
pub struct Predictor<'a> {
    /// The profile.
    pub(super) profile: &'a Profile,
    /// The target device.
    pub(super) device: &'a DeviceSpec,
    /// Scale factors from the device of the profile to the target device.
    pub(super) scale: Scale,
}

impl<'a> Predictor<'a> {
    /// Creates a predictor for the profile's own device.
    pub fn for_own_device(profile: &'a Profile) -> Self {
        Self { profile, device: &profile.device, scale: Scale::NONE }
    }

    /// Work terms and predicted time of a product; no prediction if the profile does not have the
    /// kernel and the plan has no default coefficients.
    pub fn predict(
        &self,
        plan: &Plan,
        work: &Work,
        features: &MatrixFeatures,
        scalar: ScalarKind,
    ) -> (WorkTerms, Option<Prediction>) {
        let Self { profile, device, scale } = self;
        let on = Target::of(device);
        let kernel = plan.cost_key_of(on, work);
        let cache = profile.cache_bytes * scale.cache;
        let work_terms =
            work_terms(work, features, cache, &profile.cache_reach.scaled(scale.cache), device);
        // No kernel was measured.
        let default = || Some((None, profile.default_coefficients(scalar, plan, work)?));
        let known = profile.of_kernel(scalar, kernel).map(|(kernel, &c)| (Some(kernel), c));
        let prediction = known.or_else(default).map(|(kernel, c)| {
            let is_measured = kernel == Some(plan.cost_key_of(on, work));
            let like = plan.properties().packing_like;
            let like = like.filter(|_| !is_measured && (on == Target::Gpu || kernel.is_none()));
            let packed = like.and_then(|like| profile.coefficients(scalar, like));
            let c = Coefficients::new(c.terms(), packed.unwrap_or(&c).packing());
            let prediction = Prediction::new(&scale.coefficients(&c), work, &work_terms, device);
            let Some(learned) = &profile.correction else { return prediction };
            let corrected = match kernel.and_then(|kernel| learned.of(scalar, kernel)) {
                Some(kernel) => {
                    let values = correction_features(work, features, cache);
                    prediction.corrected(kernel, learned.limit, &values)
                }
                None => return prediction.less_certain(learned.largest_spread(scalar)),
            };
            let spread = corrected.uncertainty();
            let is_own = profile.device.is_same(device);
            if is_own { corrected } else { corrected.less_certain(spread) }
        });
        let least = self.memory_ns(work, features);
        (work_terms, prediction.map(|prediction| prediction.at_least(least)))
    }

    /// Nanoseconds in which the memory of a GPU delivers the entries and vectors of a product, less
    /// what its L2 holds: no correction is below them. 0 on a CPU, whose caches differ too much.
    fn memory_ns(&self, work: &Work, features: &MatrixFeatures) -> f64 {
        /// Largest bandwidth of a product over that of a copy.
        const MAX: f64 = 1.05;
        let Some(gpu) = &self.device.gpu else { return 0.0 };
        let Some(bandwidth) = self.profile.ceilings.copy_bandwidth else { return 0.0 };
        // As if padding were not read: a lower bound.
        let entries = work.matrix_bytes as f64 / work.padding_ratio(features.nnz).max(1.0);
        // Columns without an entry are not read.
        let vectors = work.vector_bytes as f64;
        let read = features.ncols.min(features.nnz as usize) + features.nrows;
        let used = vectors * read as f64 / (features.ncols + features.nrows).max(1) as f64;
        let bytes = entries + used - gpu.l2_bytes as f64;
        bytes.max(0.0) / (bandwidth * MAX) * 1e9 * self.scale.stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Analysis;
    use crate::device::{Device, GpuSpec};
    use crate::matrix::gallery;
    use std::collections::BTreeMap;

    #[test]
    fn no_correction_is_faster_than_the_memory() {
        let a = "stencil27,n=12".parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
        let analysis = Analysis::of(a.view());
        let plan: Plan = "csr(balanced)".parse().unwrap();
        let mut profile = (*Profile::builtin(&Device::Cpu)).clone();
        let gpu = GpuSpec { l2_bytes: 0, memory_bytes: 1 << 30, driver: "13.0".to_owned() };
        profile.device.gpu = Some(gpu);
        let c = Coefficients { slot: 1.0, ..Coefficients::default() };
        let kernels = BTreeMap::from([("csr.balanced".to_owned(), c)]);
        profile.coefficients = BTreeMap::from([(ScalarKind::F32, kernels)]);
        let time = |bandwidth, l2_bytes| {
            let mut profile = profile.clone();
            profile.ceilings.copy_bandwidth = Some(bandwidth);
            profile.device.gpu.as_mut().unwrap().l2_bytes = l2_bytes;
            let work = plan.work(&analysis, ScalarKind::F32);
            let features = MatrixFeatures::from(&analysis);
            let predictor = Predictor::for_own_device(&profile);
            let (_, prediction) = predictor.predict(&plan, &work, &features, ScalarKind::F32);
            prediction.unwrap().product()
        };
        let (slow, usual) = (time(1e6, 0), time(1e15, 0));
        let bytes = plan.work(&analysis, ScalarKind::F32).bytes();
        let least = bytes as f64 / 1.05e6 * 1e9;
        assert!((slow / least - 1.0).abs() < 1e-9 && usual < slow, "{slow} {usual} {least}");
        assert_eq!(time(1e6, bytes), usual, "the L2 holds all of it");
    }

    #[test]
    fn values_of_fewer_bytes_are_prepared_by_the_host() {
        let single = "stencil27,n=12".parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
        let analysis = Analysis::of(single.widen::<f64>().view());
        let plan: Plan = "psell(sigma:1,values:f32,group:4)".parse().unwrap();
        let mut profile = (*Profile::builtin(&Device::Cpu)).clone();
        let gpu = GpuSpec { l2_bytes: 60 << 20, memory_bytes: 1 << 30, driver: "13.0".to_owned() };
        profile.device.gpu = Some(gpu);
        let of = |pack_slot| Coefficients { pack_slot, slot: 1.0, ..Coefficients::default() };
        let mut prepare = |kernels: &[(&str, f64)], plan: &Plan| {
            let kernels = kernels.iter().map(|&(name, slot)| (name.to_owned(), of(slot))).collect();
            profile.coefficients = BTreeMap::from([(ScalarKind::F64, kernels)]);
            let work = plan.work(&analysis, ScalarKind::F64);
            let predicted = Predictor::for_own_device(&profile).predict(
                plan,
                &work,
                &MatrixFeatures::from(&analysis),
                ScalarKind::F64,
            );
            predicted.1.unwrap().prepare / work.slots as f64
        };
        let known = [("sell", 5.0), ("psell.v4", 2.0)];
        assert_eq!(prepare(&known, &plan), 5.0);
        assert_eq!(prepare(&known[1..], &plan), 2.0, "nothing better is known");
        assert_eq!(
            prepare(&[known[0], known[1], ("psell.f32.v4", 3.0)], &plan),
            3.0,
            "measured itself"
        );
        let wide = "psell(sigma:1,group:4)".parse().unwrap();
        assert_eq!(prepare(&known, &wide), 2.0);
    }
}
