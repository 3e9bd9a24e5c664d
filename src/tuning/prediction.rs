//! Predicted time of a plan: its parts, their learned correction, and the uncertainty.

use super::correction::{Feature, Features, KernelCorrection};
use super::cost::{Coefficients, Term, WorkTerms, packed};
use crate::device::DeviceSpec;
use crate::formats::Work;

/// Ratio of the uncertainty outside the measured range to that inside. On two cores of Zen 4 the
/// standard deviations of plans near the fastest were 0.22 and 0.14.
const OUTSIDE: f64 = 1.5;

/// Predicted time of a plan, in parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Time of each term in nanoseconds, in the order of [`Term::ALL`].
    pub terms: [f64; Term::COUNT],
    /// Nanoseconds by which the largest work that cannot be shared exceeds the rest.
    pub imbalance: f64,
    /// Factor for the sum of both: measured over predicted time of similar plans, or more where the
    /// memory of a GPU would not deliver the bytes in that time; 1 if unknown.
    pub correction: f64,
    /// Standard deviation of the logarithm of measured over predicted time, if it is known.
    pub spread: Option<f64>,
    /// The feature of the matrix and the plan that is farthest outside the range in which the
    /// kernel was measured; `None` if all are inside or the range is not known.
    pub outside: Option<Feature>,
    /// Nanoseconds of packing and of the copy to the device. Profiles of GPUs are fitted to the
    /// time of both.
    pub prepare: f64,
    /// Nanoseconds that no product is faster than, because the memory of a GPU does not deliver its
    /// bytes sooner; 0 if not known.
    pub(crate) least: f64,
}

impl Prediction {
    /// Predicts the time of a product on a device from the coefficients of its kernel.
    pub fn new(c: &Coefficients, work: &Work, work_terms: &WorkTerms, device: &DeviceSpec) -> Self {
        let coefficients = c.terms();
        let terms: [f64; Term::COUNT] = std::array::from_fn(|i| coefficients[i] * work_terms[i]);
        let total: f64 = terms.iter().sum();
        // On a GPU the critical path covers this: a single thread is too slow for its share of the
        // sum of all to be meaningful.
        let serial = if device.gpu.is_some() { 0 } else { work.serial_slots };
        let alone = terms[0] + terms[1] + serial as f64 * c.slot * device.threads as f64;
        let prepare = c.packing().iter().zip(packed(work)).map(|(c, count)| c * count).sum();
        Self {
            terms,
            imbalance: (alone - total).max(0.0),
            correction: 1.0,
            spread: None,
            outside: None,
            prepare,
            least: 0.0,
        }
    }

    /// Returns the prediction with the correction of the kernel, for these features of the matrix
    /// and the plan. The factor is at most `e` to the power of `limit`, or at least its inverse.
    #[must_use]
    pub(super) fn corrected(
        self,
        kernel: &KernelCorrection,
        limit: f32,
        values: &Features,
    ) -> Self {
        let limit = f64::from(limit);
        let outside = kernel.outside(values);
        Self {
            correction: kernel.log(values).clamp(-limit, limit).exp(),
            spread: Some(f64::from(kernel.spread) * outside.map_or(1.0, |_| OUTSIDE)),
            outside,
            ..self
        }
    }

    /// Returns the prediction with a correction that makes the product take at least `least`
    /// nanoseconds.
    #[must_use]
    pub(super) fn at_least(self, least: f64) -> Self {
        let sum = self.sum();
        let needed = if sum > 0.0 { least / sum } else { 1.0 };
        Self { correction: self.correction.max(needed), least, ..self }
    }

    /// Nanoseconds of one product without the correction.
    pub fn sum(&self) -> f64 {
        self.terms.iter().sum::<f64>() + self.imbalance
    }

    /// Nanoseconds of one product.
    pub fn product(&self) -> f64 {
        self.sum() * self.correction
    }

    /// Returns the prediction with an uncertainty of another kernel or of another device, which is
    /// larger by [`OUTSIDE`].
    #[must_use]
    pub(super) fn less_certain(self, spread: f64) -> Self {
        Self { spread: Some(spread * OUTSIDE), ..self }
    }

    /// Standard deviation of the logarithm of measured over predicted time; a usual one if it is
    /// not known.
    pub fn uncertainty(&self) -> f64 {
        /// Uncertainty of a kernel without one: half of the standard deviation that a check assumes
        /// for an H200.
        const USUAL: f64 = 0.175;
        self.spread.unwrap_or(USUAL)
    }

    /// Expected nanoseconds of one product: the mean of log-normal times about the predicted one,
    /// or the predicted one if the uncertainty is not known. Of equal predictions the more certain
    /// one is less.
    pub fn expected(&self) -> f64 {
        self.product() * self.spread.map_or(1.0, |spread| (spread.powi(2) / 2.0).exp())
    }

    /// Expected nanoseconds per product, including preparation amortised over `calls` products.
    pub fn amortised(&self, calls: u64) -> f64 {
        self.expected() + self.prepare / calls.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use std::collections::BTreeMap;

    #[test]
    fn threads_that_wait_for_the_longest_task_are_counted() {
        let cpu = DeviceSpec { threads: 4, gpu: None, ..Device::Cpu.spec() };
        let c = Coefficients { call: 5.0, slot: 1.0, row: 2.0, ..Coefficients::default() };
        let mut terms = [0.0; Term::COUNT];
        terms[Term::Call as usize] = 1.0;
        terms[Term::Slots as usize] = 1000.0;
        terms[Term::Rows as usize] = 10.0;
        let prediction = |serial_slots| {
            Prediction::new(&c, &Work { serial_slots, ..Work::default() }, &terms, &cpu)
        };
        // A quarter of the slots is a thread's share: 5 + 1000 + 2 * 10.
        assert_eq!((prediction(250).imbalance, prediction(250).sum()), (0.0, 1025.0));
        // One thread has 600 slots, in whose time four would multiply 2400.
        assert_eq!((prediction(600).imbalance, prediction(600).sum()), (1380.0, 2405.0));
    }

    #[test]
    fn of_equal_predictions_the_certain_one_is_expected_to_be_faster() {
        let device = DeviceSpec { threads: 1, ..Device::Cpu.spec() };
        let c = Coefficients { slot: 1.0, ..Coefficients::default() };
        let mut terms = [0.0; Term::COUNT];
        terms[Term::Slots as usize] = 100.0;
        let plain = Prediction::new(&c, &Work::default(), &terms, &device);
        let kernel = |spread| KernelCorrection {
            spread,
            bias: 3.0,
            curves: BTreeMap::from([(Feature::Rows, vec![(1.0, 0.0), (2.0, 0.0)])]),
        };
        let at = |spread, rows| {
            let mut values = [0.0; Feature::COUNT];
            values[Feature::Rows as usize] = rows;
            plain.corrected(&kernel(spread), 0.5, &values)
        };
        let (certain, uncertain, outside) = (at(0.1, 1.5), at(0.4, 1.5), at(0.1, 9.0));
        assert_eq!(certain.product(), 100.0 * 0.5f64.exp());
        assert_eq!(certain.product(), uncertain.product());
        assert!(certain.expected() < uncertain.expected());
        assert!(certain.expected() < outside.expected());
        assert_eq!((certain.outside, outside.outside), (None, Some(Feature::Rows)));
        assert!(plain.spread.is_none() && plain.uncertainty() > 0.0);
    }
}
