//! Properties of a plan that follow from its parameters alone.

use super::{Plan, Target, ValueEncoding};
use crate::analysis::Analysis;

/// Properties of a plan, the same for every matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PlanProperties {
    /// True if every SpMV gives the same bits, on every device.
    pub(crate) deterministic: bool,
    /// True if the values are one array in the order of the entries.
    pub(crate) keeps_order: bool,
    /// True if the plan may be chosen for a CPU, and is not only used on request.
    pub(crate) eligible_on_cpu: bool,
    /// True if the plan may be chosen for a GPU: its SpMV is only enqueued there, without waiting,
    /// in no more launches than it needs, and is the fastest of some matrices.
    pub(crate) eligible_on_gpu: bool,
    /// True if a GPU packs a matrix itself, from CSR in its memory.
    pub(crate) packs_on_device: bool,
    /// Encoding of the values that a matrix of any values may have.
    pub(crate) values: ValueEncoding,
    /// Share of the device's copy bandwidth that a product reaches, for predictions by a profile
    /// without the kernel. None if only measured coefficients predict the plan.
    pub(crate) bandwidth_share: Option<f64>,
    /// Kernel whose packing time is the fallback for that of the plan if a profile lacks its own:
    /// on a GPU, and on the CPU if no other kernel predicts its products. None for the packing time
    /// of the kernel that does.
    pub(crate) packing_like: Option<&'static str>,
}

impl Default for PlanProperties {
    fn default() -> Self {
        Self {
            deterministic: true,
            keeps_order: false,
            eligible_on_cpu: true,
            eligible_on_gpu: true,
            packs_on_device: false,
            values: ValueEncoding::Plain,
            bandwidth_share: None,
            packing_like: None,
        }
    }
}

impl Plan {
    /// True if every SpMV under this plan gives the same bits, on every device.
    pub fn is_deterministic(&self) -> bool {
        self.properties().deterministic
    }

    /// True if the plan may be chosen for such a device, and is not only used on request.
    #[doc(hidden)]
    pub fn is_eligible(&self, on: Target) -> bool {
        let PlanProperties { eligible_on_cpu, eligible_on_gpu, .. } = self.properties();
        if on == Target::Cpu { eligible_on_cpu } else { eligible_on_gpu }
    }

    /// Reason why no matrix with this analysis can be packed under this plan, if any.
    #[doc(hidden)]
    pub fn refusal(&self, analysis: &Analysis) -> Option<String> {
        self.estimate_bounds(analysis).err()
    }
}
