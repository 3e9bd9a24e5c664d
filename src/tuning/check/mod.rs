//! Check of a predicted plan on the matrix itself, with few products.
//!
//! Kernels of plain CSR come first: the one with the least predicted time and `csr(balanced)`, then
//! those whose expected improvement on the fastest measured plan, over all expected products,
//! exceeds the cost of their products. They share one set of arrays.
//! Another plan is packed only if its expected improvement exceeds the cost of packing, too. On a
//! CPU the check takes no longer, besides packing the predicted plan and the plan that stays, than
//! all its products would with the fastest plan, unless the expected improvement is several times
//! the cost. The times of plans are log-normal around their predictions, and a measurement corrects
//! the predictions of similar plans. The fastest plan stays; of equally fast plans the one that was
//! predicted to be faster.

mod expectation;
mod measurement;
#[cfg(test)]
mod tests;

use super::decision::{Candidate, Decision, TIE_BAND, TimedPlan, TimingOutcome, TimingRun};
use super::plan_timer::{PlanTimer, Ready};
use super::stopwatch::{Clock, Samples};
use crate::Error;
use crate::device::DeviceSpec;
use crate::formats::{FormatKind, Plan, Target, csr};
use crate::order;
use measurement::MIN_PRODUCTS;

/// Products of a check, besides a share of the expected ones.
const PRODUCTS: u64 = 30;

/// Expected products that allow one more product of a check.
const CALLS_PER_PRODUCT: u64 = 50;

/// Minimum ratio of expected products to products of a check.
const MIN_CALLS_PER_PRODUCT: u64 = 10;

/// Number of plans that share the products of a check.
const SHARES: u64 = 7;

/// Ratio of expected improvement to cost above which a check on a CPU may take longer than its
/// products would.
const LARGE_IMPROVEMENT: f64 = 4.0;

/// Fewest plans that a check has products for: kernels of CSR, and one packed plan.
const LEAST_PLANS: u64 = 4;

/// Largest number of plans that are packed besides CSR.
const MAX_PACKED: usize = 8;

/// Fewest entries of a matrix that is checked. A smaller one takes about as long as a launch or the
/// start of a thread, whatever the plan.
const MIN_ENTRIES: u64 = 4096;

/// Largest number of packed plans for which products are kept when further CSR kernels are timed.
const RESERVED: usize = 3;

/// Bytes of packed matrices that are held at the same time on a CPU. Above it, the fastest plan so
/// far is freed before the next one is packed, and packed again at the end if it wins: packing
/// takes a few products.
const HELD_ON_CPU: u64 = 64 << 20;

/// Largest ratio of the bytes of a plan above [`HELD_ON_CPU`] to those of plain CSR. The predicted
/// plan may take more.
const MAX_BYTES_ON_CPU: f64 = 1.3;

/// Limits of a check.
#[derive(Debug, Clone, Copy)]
struct Budget {
    /// Largest number of products, warm-up included.
    products: u64,
    /// Number of products that amortise packing.
    calls: u64,
    /// Bytes of the two packed matrices that are held at the same time.
    memory: u64,
    /// True if a GPU packs such a matrix, and not the host.
    is_large: bool,
}

/// A matrix whose predicted plan may be checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CheckedMatrix {
    /// Number of entries.
    pub(crate) entries: u64,
    /// True if a GPU packs it, and not the host.
    pub(crate) is_large: bool,
    /// Bytes of the matrix in `csr(balanced)`.
    pub(crate) csr_bytes: u64,
    /// Bytes that two packed matrices may take together.
    pub(crate) memory: u64,
}

/// Checks the predicted plan of a decision by a timer, which `timer` makes. `None` if nothing is to
/// be checked, or if CSR and the predicted plan take too much memory together.
///
/// # Errors
///
/// Errors of `timer`. If neither CSR nor the predicted plan can be packed and multiplied: the first
/// error; or if packing the winner again fails.
pub(crate) fn check_if_worthwhile<A: PlanTimer>(
    timer: impl FnOnce() -> Result<A, Error>,
    clock: &dyn Clock,
    decision: &Decision,
    device: &DeviceSpec,
    CheckedMatrix { entries, is_large, csr_bytes, memory }: CheckedMatrix,
) -> Result<Option<Checked<A::Packed>>, Error> {
    let products = products(decision, entries);
    let predicted = decision.chosen().map_or(0, |chosen| chosen.work.matrix_bytes);
    if products == 0 || csr_bytes.saturating_add(predicted) > memory {
        return Ok(None);
    }
    let calls = decision.request.expected_calls;
    let budget = Budget { products, calls, memory, is_large };
    Check::new(&timer()?, clock, decision, device, budget).run().map(Some)
}

/// Largest number of products for a check of this decision; 0 if nothing is to be checked.
fn products(decision: &Decision, entries: u64) -> u64 {
    let calls = decision.request.expected_calls;
    let products = (PRODUCTS + calls / CALLS_PER_PRODUCT).min(calls / MIN_CALLS_PER_PRODUCT);
    let others = decision.candidates.iter().any(may_be_chosen);
    let least = LEAST_PLANS * MIN_PRODUCTS;
    let checks = entries >= MIN_ENTRIES && others && products >= least;
    if checks { products } else { 0 }
}

/// True for a candidate besides the predicted plan that may replace it.
fn may_be_chosen(candidate: &Candidate) -> bool {
    candidate.verdict.may_be_timed()
}

/// Result of a check.
pub(crate) struct Checked<P> {
    /// The fastest plan, packed.
    pub(crate) ready: Ready<P>,
    /// The measurements; the first plan is the predicted one.
    pub(crate) timing_run: TimingRun,
    /// Number of products.
    pub(crate) products: u64,
    /// Largest number of products.
    pub(crate) limit: u64,
}

/// Timing of a candidate.
#[derive(Debug, Clone, PartialEq)]
enum PlanTiming {
    /// Not measured so far.
    Pending,
    /// Seconds of packing with the copy to the device, and of a product in each batch.
    Measured { prepare: f64, samples: Samples },
    /// Left out, for this reason.
    Excluded(TimingOutcome),
}

/// State of a check.
struct Check<'a, A: PlanTimer> {
    timer: &'a A,
    clock: &'a dyn Clock,
    target: Target,
    budget: Budget,
    /// The plans that may be chosen, the predicted one first, then by predicted time.
    candidates: Vec<&'a Candidate>,
    timings: Vec<PlanTiming>,
    products: u64,
    /// Plans still to be timed, for which products are reserved: kernels of CSR, and a packed plan.
    reserved_plans: u64,
    /// Number of plans packed besides CSR.
    packed: usize,
    /// Least measured time of a product.
    least: f64,
    /// Seconds of packing.
    packing: f64,
    /// Peak bytes of the packed matrices held at the same time.
    held_bytes: u64,
    /// First error of packing or multiplying.
    failure: Option<Error>,
}

/// The fastest plan so far, its index among the candidates and its measured time.
struct Fastest<P> {
    place: usize,
    seconds: f64,
    /// The packed matrix, unless it was freed.
    ready: Option<Ready<P>>,
}

impl<'a, A: PlanTimer> Check<'a, A> {
    fn new(
        timer: &'a A,
        clock: &'a dyn Clock,
        decision: &'a Decision,
        device: &DeviceSpec,
        budget: Budget,
    ) -> Self {
        let is_candidate = |c: &&Candidate| c.plan == decision.plan || may_be_chosen(c);
        let candidates = decision.candidates.iter().filter(is_candidate);
        let candidates: Vec<_> = candidates.filter(|c| c.prediction.is_some()).collect();
        Self {
            timer,
            clock,
            target: Target::of(device),
            budget,
            timings: vec![PlanTiming::Pending; candidates.len()],
            candidates,
            products: 0,
            reserved_plans: 1,
            packed: 0,
            least: f64::INFINITY,
            packing: 0.0,
            held_bytes: 0,
            failure: None,
        }
    }

    fn run(mut self) -> Result<Checked<A::Packed>, Error> {
        let mut fastest = self.time_csr();
        while let Some(place) = self.next_to_pack(fastest.as_ref()) {
            let needed = self.candidates[place].work.matrix_bytes;
            let held = fastest.as_mut().map_or(0, |fastest| {
                if self.is_freed_for(place, fastest) {
                    fastest.ready = None;
                }
                let bytes = self.candidates[fastest.place].work.matrix_bytes;
                if fastest.ready.is_some() { bytes } else { 0 }
            });
            let left = self.room(place, held);
            if needed > left {
                self.timings[place] = PlanTiming::Excluded(TimingOutcome::NoRoom { needed, left });
                continue;
            }
            self.held_bytes = self.held_bytes.max(held + needed);
            self.packed += 1;
            let (expected, _) = self.expectation(place);
            let Some(mut other) = self.pack(place) else { continue };
            if let Some(fastest) = fastest.as_ref().filter(|_| self.target == Target::Cpu)
                && expected < fastest.seconds
                && fastest.seconds * (1.0 + TIE_BAND) < other.seconds
            {
                other.seconds = self.timed_again(&other, fastest);
            }
            fastest = match fastest {
                Some(fastest) if !self.is_faster((other.place, other.seconds), &fastest) => {
                    Some(fastest)
                }
                _ => Some(other),
            };
        }
        let Some(Fastest { place, ready, .. }) = fastest else {
            return Err(self.failure.expect("the predicted plan is a candidate"));
        };
        let ready = ready.map_or_else(|| self.pack_only(place), Ok)?;
        Ok(self.finish(place, ready))
    }

    /// Largest size of a plan to pack beside the fastest so far, which takes `held` bytes. A CPU
    /// packs no other plan than the predicted one that is much larger than CSR.
    fn room(&self, place: usize, held: u64) -> u64 {
        let left = if held > 0 { self.budget.memory.saturating_sub(held) } else { u64::MAX };
        let csr = (0..self.candidates.len()).find(|&place| self.is_csr(place));
        match csr.map(|place| self.candidates[place].work.matrix_bytes) {
            Some(csr) if self.target == Target::Cpu && place > 0 => {
                left.min(HELD_ON_CPU.max((csr as f64 * MAX_BYTES_ON_CPU) as u64))
            }
            _ => left,
        }
    }

    /// Times the kernel of CSR with the least predicted time and `csr(balanced)` in one set of
    /// arrays, and others that may be faster than the fastest of them. `None` if there are none, or
    /// if they cannot be packed.
    fn time_csr(&mut self) -> Option<Fastest<A::Packed>> {
        let is_csr = |place: &usize| self.is_csr(*place);
        let mut csr: Vec<usize> = (0..self.candidates.len()).filter(is_csr).collect();
        order::ascending(&mut csr, &|&place| self.predicted(place));
        let balanced = Plan::Csr(csr::CsrPlan::Balanced);
        let first = csr.first().copied();
        csr.retain(|&place| {
            Some(place) == first || place == 0 || self.candidates[place].plan == balanced
        });
        // A predicted plan of CSR is timed first.
        if let Some(at) = csr.iter().position(|&place| place == 0) {
            csr[..=at].rotate_right(1);
        }
        self.reserved_plans = csr.len() as u64;
        let mut csr = csr.into_iter();
        let mut fastest = self.pack(csr.next()?)?;
        let mut ready = fastest.ready.take()?;
        loop {
            let (place, reserved) = match csr.next() {
                Some(place) => (place, 1),
                None => match self.further_csr(fastest.seconds) {
                    Some(next) => next,
                    None => break,
                },
            };
            self.reserved_plans = csr.len() as u64 + reserved;
            if self.products + self.products_per_plan() > self.budget.products {
                break;
            }
            match self.timer.change(&mut ready.matrix, &self.candidates[place].plan) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.exclude(place, error);
                    continue;
                }
            }
            match self.measure(place, &ready) {
                Some(seconds) if self.is_faster((place, seconds), &fastest) => {
                    (fastest.place, fastest.seconds) = (place, seconds);
                }
                _ => {
                    let plan = &self.candidates[fastest.place].plan;
                    if let Err(error) = self.timer.change(&mut ready.matrix, plan) {
                        self.exclude(fastest.place, error);
                        return None;
                    }
                }
            }
        }
        (fastest.ready, self.reserved_plans) = (Some(ready), 1);
        Some(fastest)
    }

    /// The plans that were not timed so far.
    fn pending(&self) -> impl Iterator<Item = usize> {
        (0..self.candidates.len()).filter(|&place| self.timings[place] == PlanTiming::Pending)
    }

    fn is_csr(&self, place: usize) -> bool {
        self.candidates[place].plan.format() == FormatKind::Csr
    }

    /// Packs a plan.
    fn pack_only(&mut self, place: usize) -> Result<Ready<A::Packed>, Error> {
        let start = self.clock.seconds();
        let packed = self.timer.pack(&self.candidates[place].plan);
        self.packing += self.clock.seconds() - start;
        packed
    }

    /// Packs and times a plan. `None` if it fails.
    fn pack(&mut self, place: usize) -> Option<Fastest<A::Packed>> {
        match self.pack_only(place) {
            Ok(ready) => {
                let seconds = self.measure(place, &ready)?;
                Some(Fastest { place, seconds, ready: Some(ready) })
            }
            Err(error) => {
                self.exclude(place, error);
                None
            }
        }
    }

    fn exclude(&mut self, place: usize, error: Error) {
        self.timings[place] =
            PlanTiming::Excluded(TimingOutcome::Failed { reason: error.to_string() });
        self.failure.get_or_insert(error);
    }

    /// True if a plan replaces the fastest one so far. Of plans within the band of the least time
    /// the one that was predicted to be faster stays.
    fn is_faster(&self, (place, seconds): (usize, f64), than: &Fastest<A::Packed>) -> bool {
        let is_near = |seconds: f64| seconds <= self.least * (1.0 + TIE_BAND);
        match (is_near(seconds), is_near(than.seconds)) {
            (true, true) => place < than.place,
            _ => seconds < than.seconds,
        }
    }

    /// The plan to pack next: the one with the largest expected gain minus cost, if that is
    /// positive and products are left. The predicted plan if none was measured.
    fn next_to_pack(&mut self, fastest: Option<&Fastest<A::Packed>>) -> Option<usize> {
        let Some(fastest) = fastest else {
            return (self.timings[0] == PlanTiming::Pending).then_some(0);
        };
        let has_room = self.products + self.products_per_plan() <= self.budget.products;
        let pending = self.pending().filter(|&place| !self.is_csr(place));
        let pending = pending.filter(|&place| self.has_time(place, fastest));
        let best = self.most_gaining(pending, fastest.seconds);
        if best.is_some() && has_room && self.packed < MAX_PACKED {
            return best;
        }
        if self.timings[0] == PlanTiming::Pending {
            let (gain, cost) = self.gain_and_cost(0, fastest.seconds);
            self.timings[0] = PlanTiming::Excluded(TimingOutcome::Unpaid { gain, cost });
        }
        None
    }

    /// True if packing and timing a plan takes no more than the time that is left, or if its
    /// expected improvement is large. Always true of the predicted plan, and on a GPU.
    fn has_time(&self, place: usize, fastest: &Fastest<A::Packed>) -> bool {
        if self.target != Target::Cpu || place == 0 {
            return true;
        }
        let (gain, cost) = self.gain_and_cost(place, fastest.seconds);
        // Packing the fastest plan counts if it is packed once more at the end.
        let packed_again = fastest.ready.is_none() || self.is_freed_for(place, fastest);
        let own = self.packing_seconds(fastest.place).filter(|_| !packed_again).unwrap_or(0.0);
        let spent = self.clock.seconds() - own;
        let has_time = spent + cost <= self.budget.products as f64 * fastest.seconds;
        has_time || gain > LARGE_IMPROVEMENT * cost
    }

    /// True if the fastest plan so far is freed before this one is packed.
    fn is_freed_for(&self, place: usize, fastest: &Fastest<A::Packed>) -> bool {
        let bytes = |place: usize| self.candidates[place].work.matrix_bytes;
        self.target == Target::Cpu && bytes(fastest.place) + bytes(place) > HELD_ON_CPU
    }

    fn finish(self, winner: usize, ready: Ready<A::Packed>) -> Checked<A::Packed> {
        let least = self.measured(winner);
        let timed_plan = |place: usize| {
            let mut timed_plan = TimedPlan {
                plan: self.candidates[place].plan.clone(),
                prepare: None,
                product: None,
                spread: None,
                rounds: 0,
                outcome: TimingOutcome::Undecided,
            };
            let ratio = self.measured(place) / least;
            match &self.timings[place] {
                PlanTiming::Pending => return None,
                PlanTiming::Excluded(outcome) => timed_plan.outcome = outcome.clone(),
                PlanTiming::Measured { prepare, samples } => {
                    timed_plan.ran(samples);
                    timed_plan.product = Some(samples.min());
                    timed_plan.prepare = Some(*prepare);
                    timed_plan.outcome = match place == winner {
                        true => TimingOutcome::Won,
                        false if ratio <= 1.0 + TIE_BAND => TimingOutcome::Tied { ratio },
                        false => TimingOutcome::Slower { ratio, early: false },
                    };
                }
            }
            Some(timed_plan)
        };
        let own = ready.pack + ready.upload;
        let timing_run = TimingRun {
            winner: self.candidates[winner].plan.clone(),
            cold: false,
            timed_plans: (0..self.candidates.len()).filter_map(timed_plan).collect(),
            groups: 1,
            seconds: (self.clock.seconds() - own).max(0.0),
            packing: (self.packing - own).max(0.0),
            held_bytes: self.held_bytes,
            decided: true,
        };
        Checked { ready, timing_run, products: self.products, limit: self.budget.products }
    }
}
