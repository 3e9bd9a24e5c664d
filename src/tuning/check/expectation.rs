//! Expected times of plans that were not timed, from predictions and the measurements so far.

use super::{Check, PlanTiming, RESERVED};
use crate::formats::Target;
use crate::tuning::plan_timer::PlanTimer;
use statrs::distribution::{ContinuousCDF, Normal};

/// Least standard deviation of the logarithm of a time about its prediction, after measurements of
/// the same kernel and of another kernel of the format.
const SPREADS: [f64; 2] = [0.06, 0.12];

/// Ratio of these standard deviations to the uncertainty of the prediction, where that gives a
/// larger one: outside the measured range errors remain after a measurement.
const SPREAD_FACTORS: [f64; 2] = [0.3, 0.6];

/// Standard deviation over uncertainty, before any measurement of the format: large errors are more
/// frequent than in a normal distribution.
const UNCERTAINTY_FACTOR: f64 = 2.0;

/// Standard deviations above the median of a time that is likely not exceeded, for the choice of
/// further kernels of CSR.
const LIKELY: f64 = 0.5;

/// Largest ratio of the time of packing to its prediction that is taken to hold for other plans: a
/// single time may be that of other work.
const MAX_SLOWER_PACKING: f64 = 2.0;

/// Seconds of packing on a GPU from arrays in its memory, whatever the plan, for allocations,
/// launches and waits, and bytes of the packed matrix per second beyond them. Measured on an H200,
/// for 1 to 40 million entries. Predicted times hold the copy of the matrix, which varies by more.
const GPU_PACKING: (f64, f64) = (350e-6, 400e9);

/// Part of the logarithm of the ratio of measured to predicted time that is common to all formats.
const COMMON_ERROR: f64 = 0.5;

impl<A: PlanTimer> Check<'_, A> {
    /// Median time of a plan that was not timed, in seconds, and the standard deviation of its
    /// logarithm: the prediction, corrected by the errors of the measured plans most like it.
    pub(super) fn expectation(&self, place: usize) -> (f64, f64) {
        /// Mean logarithm of the ratio of measured to predicted time.
        fn mean(errors: impl Iterator<Item = f64>) -> Option<f64> {
            let (count, sum) = errors.fold((0, 0.0), |(n, sum), error| (n + 1, sum + error));
            (count > 0).then(|| sum / f64::from(count))
        }
        let error = |other: usize| (self.measured(other) / self.predicted(other)).ln();
        let format = |place: usize| self.candidates[place].plan.format();
        let same_kernel = self.timed().filter(|&o| self.kernel(o) == self.kernel(place));
        let same_format = self.timed().filter(|&o| format(o) == format(place));
        let any = mean(self.timed().map(error)).map_or(0.0, |error| error * COMMON_ERROR);
        let errors = [mean(same_kernel.map(error)), mean(same_format.map(error))];
        let uncertainty = self.candidates[place].prediction.map_or(0.0, |p| p.uncertainty());
        let spread = |kind: usize| SPREADS[kind].max(SPREAD_FACTORS[kind] * uncertainty);
        let nearest = [0, 1].into_iter().find_map(|kind| Some((errors[kind]?, spread(kind))));
        let (error, spread) = nearest.unwrap_or((any, UNCERTAINTY_FACTOR * uncertainty));
        (self.predicted(place) * error.exp(), spread)
    }

    /// The kernel of CSR with the largest expected gain minus cost, if that is positive and
    /// products are left for it and up to [`RESERVED`] plans that are worth packing, and the number
    /// of those plans. It gains nothing over one of them that is likely to be faster.
    pub(super) fn further_csr(&self, best: f64) -> Option<(usize, u64)> {
        let pays = |place: &usize| {
            let (gain, cost) = self.gain_and_cost(*place, best);
            !self.is_csr(*place) && gain > cost
        };
        let likely = |place| {
            let (median, spread) = self.expectation(place);
            median * (LIKELY * spread).exp()
        };
        let packed: Vec<usize> = self.pending().filter(pays).collect();
        let best = packed.iter().map(|&place| likely(place)).fold(best, f64::min);
        let packed = packed.len().min(RESERVED) as u64;
        let needed = (1 + packed) * self.products_per_plan();
        let pending = self.pending().filter(|&place| self.is_csr(place));
        let next = self.most_gaining(pending, best);
        next.filter(|_| self.products + needed <= self.budget.products).map(|next| (next, packed))
    }

    /// The plan with the largest expected gain minus cost, if that is positive; `best` is the time
    /// of the fastest plan so far, in seconds.
    pub(super) fn most_gaining(
        &self,
        places: impl Iterator<Item = usize>,
        best: f64,
    ) -> Option<usize> {
        let net = |&place: &usize| {
            let (gain, cost) = self.gain_and_cost(place, best);
            gain - cost
        };
        places.max_by(|a, b| net(a).total_cmp(&net(b))).filter(|place| net(place) > 0.0)
    }

    /// Expected improvement on a time of `best` seconds over all expected products, and the seconds
    /// of packing and timing a plan. Kernels of CSR use the arrays that are packed.
    pub(super) fn gain_and_cost(&self, place: usize, best: f64) -> (f64, f64) {
        let (median, spread) = self.expectation(place);
        let below = |time: f64| expected_improvement(time, median, spread);
        let improvement = below(best) - below(self.least(place).min(best));
        let gain = improvement * self.budget.calls as f64;
        let packing = if self.is_csr(place) { 0.0 } else { self.preparation(place) };
        (gain, packing + self.products_per_plan() as f64 * median)
    }

    /// Seconds in which the memory delivers the bytes of a plan, by a bandwidth that no timed plan
    /// has exceeded: no product is expected to be faster.
    pub(super) fn least(&self, place: usize) -> f64 {
        let bound =
            |place: usize| self.candidates[place].prediction.map_or(0.0, |p| p.least * 1e-9);
        let timed = self.timed().filter(|&place| bound(place) > 0.0);
        let ratios = timed.map(|place| self.measured(place) / bound(place));
        bound(place) * ratios.fold(1.0, f64::min)
    }

    /// Predicted seconds of packing. On a GPU that packs from the arrays of plain CSR, without
    /// their copy, but at least [`GPU_PACKING`]; on a CPU longer if packing has taken longer than
    /// predicted so far.
    pub(super) fn preparation(&self, place: usize) -> f64 {
        let prepare = |place: usize| self.candidates[place].prediction.map(|p| p.prepare * 1e-9);
        let own = prepare(place).unwrap_or(0.0);
        if self.target == Target::Cpu {
            let predicted: f64 = self.packed().filter_map(|(place, _)| prepare(place)).sum();
            let measured: f64 = self.packed().map(|(_, seconds)| seconds).sum();
            let ratio = if predicted > 0.0 { measured / predicted } else { 1.0 };
            return own * ratio.clamp(1.0, MAX_SLOWER_PACKING);
        }
        if !self.budget.is_large || !self.candidates[place].plan.properties().packs_on_device {
            return own;
        }
        let copy = self.timed().find(|&p| self.is_csr(p)).and_then(prepare).unwrap_or(0.0);
        let (least, rate) = GPU_PACKING;
        let bytes = self.candidates[place].work.matrix_bytes;
        (own - copy).max(least + bytes as f64 / rate)
    }

    /// The plans that were packed so far, and the seconds of packing them; CSR counts once.
    fn packed(&self) -> impl Iterator<Item = (usize, f64)> {
        let csr = self.timed().find(|&place| self.is_csr(place));
        let packed = self.timed().filter(move |&place| !self.is_csr(place) || Some(place) == csr);
        packed.filter_map(|place| Some((place, self.packing_seconds(place)?)))
    }

    /// Measured seconds of packing; `None` if the plan was not timed.
    pub(super) fn packing_seconds(&self, place: usize) -> Option<f64> {
        match &self.timings[place] {
            PlanTiming::Measured { prepare, .. } => Some(*prepare),
            _ => None,
        }
    }

    /// The plans that were timed so far.
    pub(super) fn timed(&self) -> impl Iterator<Item = usize> {
        let timings = self.timings.iter().enumerate();
        let timed = timings.filter(|(_, timing)| matches!(timing, PlanTiming::Measured { .. }));
        timed.map(|(place, _)| place)
    }

    pub(super) fn kernel(&self, place: usize) -> &'static str {
        let candidate = self.candidates[place];
        candidate.plan.cost_key_of(self.target, &candidate.work)
    }

    /// Predicted seconds of a product.
    pub(super) fn predicted(&self, place: usize) -> f64 {
        self.candidates[place].prediction.map_or(f64::INFINITY, |p| p.product() * 1e-9)
    }

    /// Measured seconds of a product.
    pub(super) fn measured(&self, place: usize) -> f64 {
        match &self.timings[place] {
            PlanTiming::Measured { samples, .. } => samples.min(),
            _ => f64::INFINITY,
        }
    }
}

/// Expected value of `max(0, best - time)` for a log-normal time with this median, in seconds.
pub(super) fn expected_improvement(best: f64, median: f64, spread: f64) -> f64 {
    let normal = Normal::standard();
    let distance = (best / median).ln() / spread;
    let mean = median * (spread * spread / 2.0).exp();
    (best * normal.cdf(distance) - mean * normal.cdf(distance - spread)).max(0.0)
}
