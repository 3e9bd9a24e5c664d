//! A profile at work: what the plans of a device are predicted to take.

use super::correction::features;
use super::cost::{Amounts, Prediction, amounts};
use super::facts::Facts;
use super::profile::Profile;
use super::scale::Scale;
use crate::ScalarKind;
use crate::device::DeviceSpec;
use crate::formats::{Plan, Target, Traffic};

/// A profile, the device it predicts for, and what its times are multiplied by there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Predictor<'a> {
    /// The measurements.
    pub(super) profile: &'a Profile,
    /// Where products are to run.
    pub(super) device: &'a DeviceSpec,
    /// From the device that was measured to that one.
    pub(super) scale: Scale,
}

impl<'a> Predictor<'a> {
    /// For the device that was measured.
    pub(super) fn at_home(profile: &'a Profile) -> Self {
        Self { profile, device: &profile.device, scale: Scale::NONE }
    }

    /// What a product does, and what it is predicted to take; none when the profile does not know the kernel.
    pub(super) fn predict(
        &self,
        plan: &Plan,
        traffic: &Traffic,
        facts: &Facts,
        scalar: ScalarKind,
    ) -> (Amounts, Option<Prediction>) {
        let Self { profile, device, scale } = self;
        let kernel = plan.kernel(Target::of(device));
        let cache = profile.cache_bytes * scale.cache;
        let amounts = amounts(traffic, facts, cache, &profile.reach.scaled(scale.cache), device);
        let prediction = profile.of_kernel(scalar, kernel).map(|(kernel, c)| {
            let prediction = Prediction::new(&scale.coefficients(c), traffic, &amounts, device);
            let learned = profile.correction.as_ref();
            prediction.corrected(
                learned.map_or(1.0, |l| l.factor(scalar, kernel, &features(traffic, facts, cache))),
            )
        });
        (amounts, prediction)
    }
}
