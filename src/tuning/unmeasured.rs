//! Kernels that a profile has not measured, and the coefficients that predict some of them.

use super::cost::Coefficients;
use super::profile::Profile;
use crate::ScalarKind;
use crate::formats::{FormatKind, Plan, Target, Work, csr};
use crate::order::inserted;
use std::collections::BTreeSet;

impl Profile {
    /// Kernels without coefficients in a scalar type, of plans for the profile's kind of device
    /// that are not predicted by the copy bandwidth either. Such plans are never chosen.
    #[doc(hidden)]
    pub fn missing_kernels(&self, scalar: ScalarKind) -> Vec<&'static str> {
        let on = Target::of(&self.device);
        let examples = FormatKind::ALL.iter().flat_map(|kind| kind.examples());
        let plans = examples.filter_map(|text| text.parse::<Plan>().ok());
        let plans = plans.filter(|plan| plan.is_eligible(on));
        let unknown = plans.filter(|plan| {
            let kernel = plan.cost_key(on);
            self.coefficients(scalar, kernel).is_none()
                && self.default_coefficients(scalar, plan, &Work::default()).is_none()
        });
        // Sorted, without duplicates.
        inserted::<_, BTreeSet<_>>(unknown.map(|plan| plan.cost_key(on))).into_iter().collect()
    }

    /// Coefficients of a plan whose kernel was not measured: its bytes at its share of the copy
    /// bandwidth, started like plain CSR. None if the plan has no such share.
    pub(super) fn default_coefficients(
        &self,
        scalar: ScalarKind,
        plan: &Plan,
        work: &Work,
    ) -> Option<Coefficients> {
        let on = Target::of(&self.device);
        let bandwidth = plan.properties().bandwidth_share? * self.ceilings.copy_bandwidth?;
        let plain = self.coefficients(scalar, Plan::Csr(csr::CsrPlan::Scalar).cost_key(on))?;
        let slots = work.slots.saturating_add(work.outside).max(1);
        let slot = work.bytes() as f64 / slots as f64 * 1e9 / bandwidth;
        let Coefficients { call, wake_up, launch, pack_slot, pack_row, pack_call, .. } = *plain;
        let packing = [pack_slot, pack_row, pack_call];
        let product =
            Coefficients { call, wake_up, launch, slot, outside: slot, ..Coefficients::default() };
        Some(Coefficients::new(product.terms(), packing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, DeviceSpec};

    #[test]
    fn plans_with_a_share_of_the_bandwidth_need_no_measurement() {
        let h200 = Profile::parse("h200", include_str!("../../models/nvidia-h200.ron")).unwrap();
        let other = DeviceSpec { instructions: "sm_80".to_owned(), ..h200.device.clone() };
        let plans = FormatKind::ALL.iter().flat_map(|kind| kind.examples());
        for plan in plans.map(|text| text.parse::<Plan>().unwrap()) {
            for device in [h200.device.clone(), Device::Cpu.spec(), other.clone()] {
                let (name, profile) = Profile::builtin_for(&device);
                let mut profile = (*profile).clone();
                let on = Target::of(&profile.device);
                let Some(share) = plan.properties().bandwidth_share else { continue };
                let kernels = profile.coefficients.get_mut(&ScalarKind::F64).unwrap();
                kernels.remove(plan.cost_key(on));
                let work = Work { matrix_bytes: 1_000_000, slots: 125_000, ..Work::default() };
                let found = profile.default_coefficients(ScalarKind::F64, &plan, &work).unwrap();
                let bandwidth = share * profile.ceilings.copy_bandwidth.unwrap();
                let relative = found.slot * 125_000.0 / (1e6 * 1e9 / bandwidth);
                assert!((relative - 1.0).abs() < 1e-9, "{plan} in {name}: {relative}");
                assert!(!profile.missing_kernels(ScalarKind::F64).contains(&plan.cost_key(on)));
            }
        }
    }
}
