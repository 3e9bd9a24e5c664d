//! Measured costs of kernels, from which formats derive their thresholds.

use super::{Target, Work, slot_bytes};
use crate::ScalarKind;

/// Costs that thresholds are derived from; without them they have their defaults.
#[doc(hidden)]
pub type Costs<'a> = Option<&'a dyn KernelCosts>;

/// Measured costs of the kernels of a device, for values of one type.
#[doc(hidden)]
pub trait KernelCosts {
    /// Type of the values.
    fn scalar(&self) -> ScalarKind;

    /// Kind of the device.
    fn on(&self) -> Target;

    /// Time of some work by `kernel`, in ns, with all its bytes read from memory. None if the
    /// kernel was not measured.
    fn cost(&self, kernel: &str, work: &Work) -> Option<f64>;

    /// Cost of some work by `kernel`, in stored slots of the same kernel. None if the kernel was
    /// not measured.
    ///
    /// A fit may assign the cost of a slot partly to the gather and partly to the slot itself; the
    /// number of gathered slots depends on the matrix. On a GPU all slots count as gathered, on
    /// the CPU none does.
    fn in_slots(&self, kernel: &str, work: &Work) -> Option<f64> {
        let gathered = u64::from(self.on() == Target::Gpu);
        let matrix_bytes = slot_bytes(self.scalar());
        let slot = Work { slots: 1, gathered, matrix_bytes, ..Work::default() };
        let ratio = self.cost(kernel, work)? / self.cost(kernel, &slot)?;
        (ratio.is_finite() && ratio > 0.0).then_some(ratio)
    }
}
