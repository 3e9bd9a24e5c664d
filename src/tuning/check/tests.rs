//! Checks on a scripted device with given times of products.

mod cpu;
mod gpu;

use super::expectation::expected_improvement;
use super::measurement::MIN_GPU_PRODUCTS;
use super::*;
use crate::analysis::Analysis;
use crate::device::Device;
use crate::formats::Plan;
use crate::matrix::gallery;
use crate::tuning::decision::{Basis, Request};
use crate::tuning::explain::Explanation;
use crate::tuning::profile::Profile;
use crate::tuning::select::select;
use crate::{Scalar, ScalarKind};
use statrs::distribution::{ContinuousCDF, Normal};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A device on which plans take given times; by default those that are predicted.
#[derive(Default)]
struct Script {
    /// Factors of the predicted times, by the beginning of the spelling; the first that fits.
    factors: Vec<(&'static str, f64)>,
    /// Seconds of packing, as the factors.
    packing: Vec<(&'static str, f64)>,
    /// Beginnings of the spelling of plans that cannot be packed, and of those that cannot be
    /// multiplied.
    broken: [Option<&'static str>; 2],
    /// Relative noise of the times.
    noise: f64,
    /// True for a CPU in place of a GPU.
    on_cpu: bool,
    /// Beginning of the spelling of plans whose branches are learned, and the number of products
    /// before, each of which takes twice as long.
    learning: Option<(&'static str, u32)>,
    /// Range of the clock in which products take nine times as long.
    busy: [f64; 2],
    done: RefCell<BTreeMap<String, u32>>,
    predicted: RefCell<Vec<(Plan, f64)>>,
    clock: Cell<f64>,
    packed: RefCell<Vec<String>>,
    random: Cell<u64>,
}

/// Limits of a check with 1000 expected products.
const LIMITS: Budget = Budget { products: 50, calls: 1000, memory: u64::MAX, is_large: true };

impl Clock for &Script {
    fn seconds(&self) -> f64 {
        self.clock.get()
    }
}

impl Script {
    fn of(list: &[(&'static str, f64)], plan: &Plan) -> Option<f64> {
        let text = plan.to_string();
        list.iter().find(|(start, _)| text.starts_with(start)).map(|(_, value)| *value)
    }

    /// Takes the predicted times of a decision.
    fn predict(&self, decision: &Decision) {
        let times =
            decision.candidates.iter().filter_map(|c| Some((c.plan.clone(), c.prediction?)));
        *self.predicted.borrow_mut() = times.map(|(plan, p)| (plan, p.product() * 1e-9)).collect();
    }

    fn is_broken(&self, what: usize, plan: &Plan) -> bool {
        self.broken[what].is_some_and(|start| plan.to_string().starts_with(start))
    }

    fn product(&self, plan: &Plan) -> f64 {
        let predicted = self.predicted.borrow();
        let (_, seconds) = predicted.iter().find(|(known, _)| known == plan).unwrap();
        seconds * Self::of(&self.factors, plan).unwrap_or(1.0)
    }

    /// A linear congruential generator, in [-1, 1).
    fn uniform(&self) -> f64 {
        let next = self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.random.set(next);
        (next >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

impl PlanTimer for &Script {
    type Packed = Plan;

    fn pack(&self, plan: &Plan) -> Result<Ready<Plan>, Error> {
        let pack = Script::of(&self.packing, plan).unwrap_or(0.0);
        self.clock.set(self.clock.get() + pack);
        self.packed.borrow_mut().push(plan.to_string());
        match self.is_broken(0, plan) {
            true => Err(Error::CopyLength { expected: 1, found: 2 }),
            false => Ok(Ready { matrix: plan.clone(), pack, upload: 0.0 }),
        }
    }

    fn change(&self, packed: &mut Plan, plan: &Plan) -> Result<bool, Error> {
        let same = packed.format() == FormatKind::Csr && plan.format() == FormatKind::Csr;
        if same {
            *packed = plan.clone();
        }
        Ok(same)
    }

    fn products(&self, packed: &Plan, warm_up: u32, repeats: u32) -> Result<f64, Error> {
        if self.is_broken(1, packed) {
            return Err(Error::CopyLength { expected: 3, found: 4 });
        }
        let text = packed.to_string();
        let is_learned = |plan: &str| text.starts_with(plan);
        let learning = self.learning.filter(|(plan, _)| is_learned(plan)).map_or(0, |(_, n)| n);
        let mut done = self.done.borrow_mut();
        let before = done.entry(text).or_default();
        *before += warm_up;
        let slow = learning.saturating_sub(*before).min(repeats);
        *before += repeats;
        let seconds = self.product(packed) * f64::from(repeats + slow);
        let is_busy = (self.busy[0]..self.busy[1]).contains(&self.clock.get());
        let others = if is_busy { 9.0 } else { 1.0 };
        let taken = seconds * others * (1.0 + self.noise * self.uniform());
        let warm_up = self.product(packed) * f64::from(warm_up);
        self.clock.set(self.clock.get() + warm_up + taken);
        Ok(taken)
    }
}

/// The analysis of a matrix of the gallery, made once.
fn analysis(spec: &str) -> Analysis {
    static KNOWN: Mutex<BTreeMap<String, Analysis>> = Mutex::new(BTreeMap::new());
    let make = || {
        let a = spec.parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
        Analysis::of(a.view())
    };
    KNOWN.lock().unwrap().entry(spec.to_owned()).or_insert_with(make).clone()
}

/// Factors of the predicted times between 0.2 and 4.5, for each seed others.
fn random_factors(seed: u64) -> Vec<(&'static str, f64)> {
    let random = Script { random: Cell::new(seed), ..Script::default() };
    let factor = || (random.uniform() * 1.5).exp();
    let names = ["csr(balanced)", "csr(vector", "csr", "psell", "sell", "jds", "ell", ""];
    names.map(|name| (name, factor())).to_vec()
}

/// A decision for a GPU by predictions.
fn decision(spec: &str, calls: u64) -> (Decision, Analysis, DeviceSpec) {
    decision_by(include_str!("../../../models/nvidia-h200.ron"), spec, calls)
}

/// A decision by the predictions of a profile.
fn decision_by(profile: &str, spec: &str, calls: u64) -> (Decision, Analysis, DeviceSpec) {
    let analysis = analysis(spec);
    let profile = Profile::parse("profile", profile).unwrap();
    let spec = profile.device.clone();
    let request =
        Request { expected_calls: calls, ..Request::new(&analysis, ScalarKind::F64, u64::MAX) };
    let decision = select(&analysis, &spec, Arc::new(profile), request).unwrap();
    (decision, analysis, spec)
}

/// Checks a decision on a scripted device; returns the settled decision.
fn checked(script: &Script, spec: &str, calls: u64) -> Result<Decision, Error> {
    let (mut decision, analysis, spec) = match script.on_cpu {
        true => decision_by(include_str!("../../../models/cpu.ron"), spec, calls),
        false => decision(spec, calls),
    };
    script.predict(&decision);
    let limit = products(&decision, analysis.rows.nnz);
    let memory = decision.request.memory_limit * 2;
    let limits = Budget { products: limit, calls, memory, is_large: true };
    let Checked { ready, timing_run, products, .. } =
        Check::new(&script, &script, &decision, &spec, limits).run()?;
    assert_eq!(ready.matrix, timing_run.winner, "the packed plan is the winner");
    assert!(products <= limit, "{products} of {limit}");
    decision.settle(Basis::Checked { timing_run, products, limit }, &analysis, &spec);
    assert_eq!(decision.plan, ready.matrix);
    Ok(decision)
}

/// Matrix of the gallery with packed SELL as the prediction.
const STENCIL: &str = "stencil27,n=40";

/// Matrix of the gallery with CSR as the prediction.
const BLOCKS: &str = "fem3d,n=20";

#[test]
fn a_right_prediction_is_not_replaced_by_a_slower_plan() {
    for (spec, calls) in [(STENCIL, 1000), (STENCIL, 10_000), (BLOCKS, 1000)] {
        let before = decision(spec, calls).0.plan;
        let script = Script::default();
        let after = checked(&script, spec, calls).unwrap().plan;
        let [chosen, predicted] = [&after, &before].map(|plan| script.product(plan));
        assert!(chosen <= predicted, "{spec} {calls}: {after} {before}");
    }
}

#[test]
fn a_packed_plan_that_is_slow_loses_to_plain_csr() {
    let before = decision(STENCIL, 1000).0.plan;
    assert_eq!(before.format(), FormatKind::Psell);
    let script = Script { factors: vec![("csr", 1.0), ("", 3.0)], ..Script::default() };
    let after = checked(&script, STENCIL, 1000).unwrap();
    assert_eq!(after.plan.format(), FormatKind::Csr);
    let run = after.timing_run().unwrap();
    assert_eq!(*run.predicted(), before);
    let mut packed = run.timed_plans.iter().filter(|p| p.plan.format() == FormatKind::Psell);
    assert!(packed.any(|p| matches!(p.outcome, TimingOutcome::Slower { .. })));
}

#[test]
fn the_fastest_kernel_of_csr_is_found_without_packing() {
    for slow in ["csr(balanced)", "csr(vector:8)", "csr(vector:16)"] {
        let factors = vec![(slow, 4.0), ("csr", 1.0), ("", 9.0)];
        let script = Script { factors, ..Script::default() };
        let after = checked(&script, BLOCKS, 1000).unwrap();
        assert!(after.plan.format() == FormatKind::Csr && after.plan.to_string() != slow);
        let csr = script.packed.borrow().iter().filter(|plan| plan.starts_with("csr")).count();
        assert_eq!(csr, 1, "one set of arrays");
    }
}

#[test]
fn further_kernels_of_csr_are_timed_if_they_may_be_the_fastest() {
    // The third by prediction.
    let (decision, ..) = decision(BLOCKS, 1000);
    let mut csr = decision.candidates.clone();
    csr.retain(|c| {
        c.plan.format() == FormatKind::Csr && (may_be_chosen(c) || c.plan == decision.plan)
    });
    order::ascending(&mut csr, &|c| c.prediction.unwrap().product());
    let always = [Plan::Csr(csr::CsrPlan::Balanced), decision.plan];
    let next = csr.iter().skip(2).find(|c| !always.contains(&c.plan)).unwrap();
    let next = &*next.plan.to_string().leak();
    let chosen = |calls| {
        let script = Script { factors: vec![(next, 0.6), ("csr", 1.0)], ..Script::default() };
        let after = checked(&script, BLOCKS, calls).unwrap();
        assert_eq!(script.packed.borrow().iter().filter(|plan| plan.starts_with("csr")).count(), 1);
        after.plan.to_string()
    };
    assert_eq!(chosen(100_000), next);
    assert_ne!(chosen(200), next, "its products cost more than it may save");
}

#[test]
fn packing_that_does_not_pay_is_left_out() {
    // Plain CSR takes a tenth of the predicted time: nothing packed can gain.
    let script = Script { factors: vec![("csr", 0.1)], ..Script::default() };
    let before = decision(STENCIL, 1000).0;
    let after = checked(&script, STENCIL, 1000).unwrap();
    assert_eq!(after.plan.format(), FormatKind::Csr);
    assert!(script.packed.borrow().iter().all(|plan| plan.starts_with("csr")));
    let outcome = &after.timing_run().unwrap().timed_plan(&before.plan).unwrap().outcome;
    assert!(matches!(outcome, TimingOutcome::Unpaid { gain, cost } if gain < cost));
    let text = explained(&after);
    assert!(text.contains("not packed: expected to save"), "{text}");
}

#[test]
fn more_expected_products_pack_more_plans() {
    let packed = |calls| {
        let script = Script { factors: vec![("psell", 1.3)], ..Script::default() };
        checked(&script, STENCIL, calls).unwrap();
        script.packed.into_inner().len()
    };
    let counts = [200, 1000, 100_000].map(packed);
    assert!(counts.is_sorted() && counts[2] > counts[0], "{counts:?}");
}

#[test]
fn plans_like_a_measured_one_are_as_uncertain_as_their_predictions() {
    // Standard deviations of a plan of the kernel that was measured, of another kernel of its
    // format, and of another format.
    let spreads = |uncertainty| {
        let (mut decision, _, spec) = decision(STENCIL, 1000);
        let predictions = decision.candidates.iter_mut().filter_map(|c| c.prediction.as_mut());
        predictions.for_each(|prediction| prediction.spread = Some(uncertainty));
        let script = Script::default();
        let (timer, clock) = (&script, &script);
        let mut check = Check::new(&timer, &clock, &decision, &spec, LIMITS);
        let place = |plan: &str| {
            check.candidates.iter().position(|c| c.plan.to_string() == plan).expect(plan)
        };
        let others = ["psell(sigma:512,group:4)", "psell(sigma:1)", "sell(c:32,sigma:512)"];
        let (measured, others) = (place("psell(sigma:1,group:4)"), others.map(place));
        let samples = Samples::from(vec![check.predicted(measured)]);
        check.timings[measured] = PlanTiming::Measured { prepare: 0.0, samples };
        others.map(|place| check.expectation(place).1)
    };
    let (certain, uncertain) = (spreads(0.1), spreads(0.5));
    for (certain, uncertain) in certain.into_iter().zip(uncertain) {
        assert!(0.0 < certain && certain < uncertain, "{certain} {uncertain}");
    }
    assert!(certain.is_sorted() && uncertain.is_sorted(), "{certain:?} {uncertain:?}");
}

#[test]
fn long_products_of_a_gpu_are_timed_fewer_times() {
    let each = |factor| {
        let script = Script { factors: vec![("", factor)], ..Script::default() };
        let decision = checked(&script, STENCIL, 10_000).unwrap();
        let Basis::Checked { timing_run, products, .. } = &decision.basis else { panic!() };
        let timed = timing_run.timed();
        *products as f64 / timed as f64
    };
    // The first plan is timed before any time is known.
    let (short, long) = (each(1.0), each(100.0));
    assert!(long < 2.0 * MIN_GPU_PRODUCTS as f64 && short > 1.5 * long, "{short} {long}");
}

#[test]
fn noise_within_the_band_changes_nothing() {
    // With the differences of equal predictions, less than the band.
    const NOISE: f64 = TIE_BAND / 3.0;
    let mut same = 0;
    let before = checked(&Script::default(), STENCIL, 1000).unwrap().plan;
    for seed in 0..100 {
        let random = Cell::new(seed * 77);
        let script = Script { noise: NOISE, random, ..Script::default() };
        same += u32::from(checked(&script, STENCIL, 1000).unwrap().plan == before);
    }
    assert_eq!(same, 100);
}

#[test]
fn a_failing_plan_leaves_the_others() {
    let predicted = decision(STENCIL, 1000).0.plan;
    for broken in [[Some("psell"), None], [None, Some("psell")]] {
        let after = checked(&Script { broken, ..Script::default() }, STENCIL, 1000).unwrap();
        assert_ne!(after.plan.format(), FormatKind::Psell);
        let run = after.timing_run().unwrap();
        let mut packed = run.timed_plans.iter().filter(|p| p.plan.format() == FormatKind::Psell);
        assert!(packed.any(|p| matches!(p.outcome, TimingOutcome::Failed { .. })));
    }
    let plain = Script { broken: [None, Some("csr")], ..Script::default() };
    let after = checked(&plain, STENCIL, 1000).unwrap();
    assert_eq!(after.plan.format(), predicted.format());
    let all = Script { broken: [Some(""), None], ..Script::default() };
    assert!(matches!(checked(&all, STENCIL, 1000), Err(Error::CopyLength { expected: 1, .. })));
}

#[test]
fn two_packed_matrices_stay_below_the_limit() {
    let (decision, _, spec) = decision(STENCIL, 1000);
    let script = Script::default();
    script.predict(&decision);
    let memory = decision.candidates.iter().map(|c| c.work.matrix_bytes).min().unwrap();
    let limits = Budget { memory, ..LIMITS };
    let run = Check::new(&&script, &&script, &decision, &spec, limits).run().unwrap().timing_run;
    assert!(run.timed_plans.iter().any(|p| matches!(p.outcome, TimingOutcome::NoRoom { .. })));
    assert_eq!(script.packed.borrow().len(), 1);
}

/// The property that makes the check worth it: the chosen plan is never slower than the best timed
/// kernel of plain CSR by more than the band and the noise.
#[test]
fn no_choice_is_worse_than_plain_csr() {
    for seed in 0..60u64 {
        let factors = random_factors(seed);
        let noise = 0.01;
        let script = Script { factors, noise, random: Cell::new(seed), ..Script::default() };
        let spec = [STENCIL, BLOCKS, "uniform,rows=30k"][seed as usize % 3];
        let after = checked(&script, spec, [200, 1000, 20_000][seed as usize / 20]).unwrap();
        let run = after.timing_run().unwrap();
        let csr = run.timed_plans.iter().filter(|p| p.plan.format() == FormatKind::Csr);
        let best = csr.map(|p| script.product(&p.plan)).fold(f64::INFINITY, f64::min);
        let chosen = script.product(&after.plan);
        assert!(chosen <= best * (1.0 + TIE_BAND + 2.0 * noise), "{seed}: {chosen} {best}");
    }
}

#[test]
fn few_expected_products_and_small_matrices_are_not_checked() {
    let (decision, ..) = decision(STENCIL, 1000);
    let limit = |calls, entries| {
        let request = Request { expected_calls: calls, ..decision.request.clone() };
        products(&Decision { request, ..decision.clone() }, entries)
    };
    assert_eq!([1, 119, 120, 1000, 10_000].map(|calls| limit(calls, 1 << 20)), [0, 0, 12, 50, 230]);
    assert_eq!(limit(1000, MIN_ENTRIES - 1), 0);
}

#[test]
fn the_expected_improvement_is_that_of_a_log_normal_time() {
    // Numerical integration over the quantiles.
    let normal = Normal::standard();
    for (best, median, spread) in [(1.0, 0.8, 0.25), (1.0, 1.5, 0.25), (2.0, 2.0, 0.06)] {
        let times = (0..10_000).map(|i| {
            let quantile = normal.inverse_cdf((f64::from(i) + 0.5) / 10_000.0);
            median * (spread * quantile).exp()
        });
        let mean = times.map(|time: f64| (best - time).max(0.0)).sum::<f64>() / 10_000.0;
        let expected = expected_improvement(best, median, spread);
        assert!((expected - mean).abs() <= 1e-4, "{best} {median} {spread}: {expected} {mean}");
    }
}

#[test]
fn a_check_is_explained() {
    let script = Script { factors: vec![("csr", 1.0), ("", 3.0)], ..Script::default() };
    let text = explained(&checked(&script, STENCIL, 1000).unwrap());
    assert!(text.contains("check    ") && text.contains(" of at most 50 products"), "{text}");
    assert!(text.contains("predicted fastest was psell"), "{text}");
}

fn explained(decision: &Decision) -> String {
    Explanation {
        rows: &analysis(STENCIL).rows,
        decision,
        preparation: None,
        residency: None,
        auxiliary: Default::default(),
    }
    .to_string()
}

#[test]
fn the_arrays_of_csr_and_of_coo_take_every_plan_of_it_in_turn() {
    fn on<T: Scalar>(device: &Device, kind: FormatKind) {
        use crate::formats::ResidentMatrix;
        use crate::testing::{Oracle, product, x_vector};
        for spec in ["webbase,rows=30k", "fem3d,n=12", "small"] {
            let a = spec.parse::<gallery::Spec>().unwrap().generate::<T>().unwrap();
            let x = x_vector(a.ncols());
            let oracle = Oracle::of(a.view(), &x);
            let plan = |text: &str| text.parse::<Plan>().unwrap();
            let first = plan(kind.name());
            let ready = Ready::<ResidentMatrix<T>>::pack(&first, a.view(), device).unwrap();
            let mut changed = ready.matrix;
            for text in kind.examples().iter().rev() {
                assert!(changed.change_plan(&plan(text)).unwrap());
                let fresh =
                    Ready::<ResidentMatrix<T>>::pack(&plan(text), a.view(), device).unwrap();
                let y = product(device, &changed, a.nrows(), &x);
                oracle.check(&y).unwrap_or_else(|wrong| panic!("{text}, {spec}: {wrong}"));
                let of_fresh = product(device, &fresh.matrix, a.nrows(), &x);
                let same = y.iter().zip(&of_fresh).all(|(a, b)| a.bits() == b.bits());
                assert!(same || !plan(text).is_deterministic(), "{text}");
                assert_eq!(changed.bytes(), fresh.matrix.bytes());
            }
            assert!(!changed.change_plan(&plan("ell")).unwrap());
        }
    }
    for device in crate::testing::devices() {
        for kind in [FormatKind::Csr, FormatKind::Coo] {
            on::<f32>(device, kind);
            on::<f64>(device, kind);
        }
    }
}
