//! Times of single plans in a check.

use super::{Check, Fastest, PlanTiming, SHARES};
use crate::Error;
use crate::formats::Target;
use crate::tuning::plan_timer::{PlanTimer, Ready};
use crate::tuning::stopwatch::Samples;

/// Largest number of products for one plan; more would not make its time more accurate.
const MAX_PRODUCTS: u64 = 40;

/// Fewest products for one plan on a GPU, warm-up included, if the budget allows. Times of a GPU
/// vary little, and further plans are worth more than a more accurate time.
pub(super) const MIN_GPU_PRODUCTS: u64 = 4;

/// Seconds of products, at the speed of the fastest plan so far, that make a time on a GPU
/// accurate, for each product of the check: the more products are expected, the more accuracy pays.
const ACCURATE_SECONDS: f64 = 1.2e-6;

/// Seconds of a batch of products that make a time on a CPU accurate.
const ACCURATE_BATCH_SECONDS: f64 = 1.5e-3;

/// Timed batches of a plan on a CPU; the fastest counts. On a GPU there is one.
const CPU_BATCHES: u64 = 2;

/// Most batches, while the time falls: branch predictors learn row lengths in several products.
const CPU_MOST_BATCHES: usize = 4;

/// Ratio of the times of two successive batches below which the time is still falling.
const FALLING: f64 = 0.93;

/// Ratio to the least measured time above which a plan is not timed in a second batch.
const TOO_SLOW: f64 = 1.5;

/// Fewest products for one plan: one that warms up, and a product for each batch.
pub(super) const MIN_PRODUCTS: u64 = 1 + CPU_BATCHES;

impl<A: PlanTimer> Check<'_, A> {
    /// Number of products for one plan.
    pub(super) fn products_per_plan(&self) -> u64 {
        let product = if self.least.is_finite() { self.least } else { self.predicted(0) };
        let (enough, fewest) = match self.target {
            Target::Cpu => {
                let batch = (ACCURATE_BATCH_SECONDS / product).ceil() as u64;
                (1 + CPU_BATCHES * batch.min(MAX_PRODUCTS), MIN_PRODUCTS)
            }
            Target::Gpu => {
                let accurate = ACCURATE_SECONDS * self.budget.products as f64;
                ((accurate / product) as u64, MIN_GPU_PRODUCTS)
            }
        };
        let most = enough.clamp(fewest, MAX_PRODUCTS);
        (self.budget.products / SHARES).clamp(MIN_PRODUCTS, most)
    }

    /// Times a packed plan: the least time of a product over the batches. `None` if it fails.
    pub(super) fn measure(&mut self, place: usize, ready: &Ready<A::Packed>) -> Option<f64> {
        match self.batches(ready) {
            Ok(samples) => {
                let samples = Samples::from(samples);
                let seconds = samples.min();
                self.least = self.least.min(seconds);
                let prepare = ready.pack + ready.upload;
                self.timings[place] = PlanTiming::Measured { prepare, samples };
                Some(seconds)
            }
            Err(error) => {
                self.exclude(place, error);
                None
            }
        }
    }

    /// Seconds of a product in each batch.
    fn batches(&mut self, ready: &Ready<A::Packed>) -> Result<Vec<f64>, Error> {
        let batches = if self.target == Target::Cpu { CPU_BATCHES } else { 1 };
        let batch = (self.products_per_plan() - 1) / batches;
        let mut samples: Vec<f64> = Vec::new();
        loop {
            let warm_up = u64::from(samples.is_empty());
            self.products += warm_up + batch;
            // There are at most `MAX_PRODUCTS`.
            let seconds = self.timer.products(&ready.matrix, warm_up as u32, batch as u32)?;
            samples.push(seconds / batch as f64);
            let is_last = match *samples {
                [first] => batches == 1 || first >= TOO_SLOW * self.least,
                [.., before, last] => last >= FALLING * before,
                [] => true,
            };
            // A further batch leaves room for the plans to come.
            let spare = if samples.len() < batches as usize { 0 } else { self.reserved_plans };
            let least = batch + spare * self.products_per_plan();
            let has_room = self.products + least <= self.budget.products;
            if is_last || samples.len() >= CPU_MOST_BATCHES || !has_room {
                return Ok(samples);
            }
        }
    }

    /// Times a plan and the fastest one so far again, in turn: the plan was expected to be faster,
    /// and other work of the machine may have slowed it down. Returns its time in the state of the
    /// machine in which the fastest plan was timed. CPU only.
    pub(super) fn timed_again(
        &mut self,
        plan: &Fastest<A::Packed>,
        fastest: &Fastest<A::Packed>,
    ) -> f64 {
        // Half as many products in turn as a plan has at first: there may be room for no more.
        let batch = ((self.products_per_plan() - 1) / CPU_BATCHES).div_ceil(2);
        let products = 2 * CPU_BATCHES * (1 + batch);
        let has_room = self.products + products <= self.budget.products;
        let (true, Some(ready), Some(before)) = (has_room, &plan.ready, &fastest.ready) else {
            return plan.seconds;
        };
        self.products += products;
        let (mut reference, mut seconds) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..CPU_BATCHES {
            for (least, ready) in [(&mut reference, before), (&mut seconds, ready)] {
                match self.timer.products(&ready.matrix, 1, batch as u32) {
                    Ok(taken) => *least = least.min(taken / batch as f64),
                    // It fails again where the plan is used.
                    Err(_) => return plan.seconds,
                }
            }
        }
        let seconds = seconds * fastest.seconds / reference.max(fastest.seconds);
        if let PlanTiming::Measured { samples, .. } = &mut self.timings[plan.place] {
            let all = samples.as_slice().iter().copied().chain([seconds]);
            *samples = Samples::from(all.collect::<Vec<f64>>());
        }
        plan.seconds.min(seconds)
    }
}
