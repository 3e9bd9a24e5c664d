//! Timing runs on a scripted device with given times of products and optional noise.

use super::*;
use crate::ScalarKind;
use crate::analysis::Analysis;
use crate::formats::{Plan, Work};
use crate::matrix::gallery;
use crate::tuning::cost::Term;
use crate::tuning::decision::{Basis, Request, Verdict};
use crate::tuning::prediction::Prediction;
use crate::tuning::profile::Profile;
use crate::tuning::select::select;
use std::cell::Cell;

/// Behaviour of a plan on the scripted device. Bytes and the prediction are those of its candidate.
#[derive(Debug, Clone, Copy, Default)]
struct ScriptedPlan {
    /// Seconds of a product.
    product: f64,
    /// Seconds of packing.
    pack: f64,
    cannot_pack: bool,
    /// Number of products after which it fails, if it fails.
    fails_after: Option<u32>,
}

/// The plans in the order of their predicted times.
const PLANS: [&str; 4] = ["ell", "sell", "jds", "csr(scalar)"];

struct Script {
    laws: [ScriptedPlan; 4],
    bytes: [u64; 4],
    /// Relative noise of the times of products.
    noise: f64,
    /// Relative slowdown per second of elapsed time.
    drift: f64,
    /// One of `interrupts` products, on average, takes twenty times as long.
    interrupts: u64,
    clock: Cell<f64>,
    random: Cell<u64>,
    run: [Cell<u32>; 4],
    held: Cell<u64>,
    most_held: Cell<u64>,
}

/// A packed matrix: its index. It is counted as held until it is dropped.
struct HeldPlan<'a>(usize, &'a Script);

impl Drop for HeldPlan<'_> {
    fn drop(&mut self) {
        self.1.held.set(self.1.held.get() - self.1.bytes[self.0]);
    }
}

impl Clock for &Script {
    fn seconds(&self) -> f64 {
        self.clock.get()
    }
}

impl<'a> PlanTimer for &'a Script {
    type Packed = HeldPlan<'a>;

    fn pack(&self, plan: &Plan) -> Result<Ready<HeldPlan<'a>>, Error> {
        let place = PLANS.iter().position(|text| *plan == text.parse::<Plan>().unwrap()).unwrap();
        let law = self.laws[place];
        self.clock.set(self.clock.get() + law.pack);
        if law.cannot_pack {
            return Err(Error::CopyLength { expected: place, found: 99 });
        }
        self.held.set(self.held.get() + self.bytes[place]);
        self.most_held.set(self.most_held.get().max(self.held.get()));
        Ok(Ready { matrix: HeldPlan(place, self), pack: law.pack, upload: 0.0 })
    }

    fn change(&self, _: &mut HeldPlan<'a>, _: &Plan) -> Result<bool, Error> {
        Ok(false)
    }

    fn products(&self, packed: &HeldPlan<'a>, _: u32, repeats: u32) -> Result<f64, Error> {
        let law = self.laws[packed.0];
        let run = &self.run[packed.0];
        run.set(run.get() + repeats);
        if law.fails_after.is_some_and(|n| run.get() > n) {
            return Err(Error::CopyLength { expected: packed.0, found: 77 });
        }
        let noise = 1.0 + self.noise * (self.uniform() + self.uniform() - 1.0);
        let hit = self.interrupts > 0 && self.uniform() * (self.interrupts as f64) < 1.0;
        let drift = 1.0 + self.drift * self.clock.get();
        let taken = f64::from(repeats) * law.product * noise * drift * if hit { 20.0 } else { 1.0 };
        self.clock.set(self.clock.get() + taken);
        Ok(taken)
    }
}

impl Script {
    /// A script with the given microseconds per product and no noise; every plan takes 100 bytes.
    fn new(products: [f64; 4]) -> Self {
        Self {
            laws: products.map(|us| ScriptedPlan { product: us * 1e-6, ..ScriptedPlan::default() }),
            bytes: [100; 4],
            noise: 0.0,
            drift: 0.0,
            interrupts: 0,
            clock: Cell::new(0.0),
            random: Cell::new(1),
            run: Default::default(),
            held: Cell::new(0),
            most_held: Cell::new(0),
        }
    }

    /// SplitMix64, in [0, 1).
    fn uniform(&self) -> f64 {
        self.random.set(self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.random.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The candidates as predicted: the first is the fastest, and packing takes as long as it
    /// really does.
    fn candidates(&self) -> Vec<Candidate> {
        let candidate = |(place, text): (usize, &&str)| {
            let mut terms = [0.0; Term::COUNT];
            terms[0] = 1e4 * (1.0 + place as f64 / 10.0);
            Candidate {
                plan: text.parse().unwrap(),
                work: Work { matrix_bytes: self.bytes[place], ..Work::default() },
                work_terms: [0.0; Term::COUNT],
                prediction: Some(Prediction {
                    terms,
                    imbalance: 0.0,
                    correction: 1.0,
                    spread: None,
                    outside: None,
                    prepare: self.laws[place].pack * 1e9,
                    least: 0.0,
                }),
                verdict: Verdict::Tied,
            }
        };
        PLANS.iter().enumerate().map(candidate).collect()
    }

    fn race_within(&self, limits: Limits) -> Result<TimingRun, Error> {
        let candidates = self.candidates();
        let shortlist: Vec<&Candidate> = candidates.iter().collect();
        let policy = Calibration::default().policy(&Device::Cpu);
        let (ready, timing_run) = calibrate(&self, &self, &shortlist, limits, policy, false)?;
        assert_eq!(
            PLANS[ready.matrix.0].parse::<Plan>().unwrap(),
            timing_run.winner,
            "the winner is handed over"
        );
        let winners =
            timing_run.timed_plans.iter().filter(|e| e.outcome == TimingOutcome::Won).count();
        assert_eq!(winners, 1);
        drop(ready);
        assert_eq!(self.held.get(), 0, "the others are dropped");
        Ok(timing_run)
    }

    fn timing_run(&self) -> TimingRun {
        self.race_within(AMPLE).unwrap()
    }
}

/// Limits larger than any timing run of these tests needs.
const AMPLE: Limits = Limits { seconds: 10.0, memory: 1000, calls: 1000 };

fn winner(timing_run: &TimingRun) -> usize {
    PLANS.iter().position(|text| timing_run.winner == text.parse().unwrap()).unwrap()
}

#[test]
fn a_wrong_prediction_is_corrected() {
    let timing_run = Script::new([13.0, 12.0, 10.0, 20.0]).timing_run();
    assert_eq!((winner(&timing_run), timing_run.decided, timing_run.groups), (2, true, 1));
    assert_eq!(timing_run.predicted().to_string(), PLANS[0]);
    let medians: Vec<f64> =
        timing_run.timed_plans.iter().map(|e| e.product.unwrap() * 1e6).collect();
    assert!(
        medians.iter().zip([13.0, 12.0, 10.0, 20.0]).all(|(m, t)| (m - t).abs() < 1e-9),
        "{medians:?}"
    );
    let outcome = &timing_run.timed_plans[0].outcome;
    assert!(matches!(outcome, TimingOutcome::Slower { ratio, .. } if (ratio - 1.3).abs() < 1e-6));
}

#[test]
fn ties_keep_the_prediction_or_follow_the_fixed_order() {
    let timing_run = Script::new([10.0, 9.95, 10.0, 10.05]).timing_run();
    assert_eq!((winner(&timing_run), timing_run.decided), (0, true), "{timing_run:?}");
    assert!(matches!(timing_run.timed_plans[1].outcome, TimingOutcome::Tied { .. }));
    let mut script = Script::new([13.0, 10.0, 9.95, 10.03]);
    script.bytes = [100, 90, 90, 80];
    assert_eq!(winner(&script.timing_run()), 1, "the first as predicted, whatever its bytes");
}

#[test]
fn through_noise_drift_and_interrupts_the_fastest_wins_and_ties_stay() {
    for seed in 0..40 {
        let script = |products| {
            let script =
                Script { noise: 0.03, drift: 2.0, interrupts: 12, ..Script::new(products) };
            script.random.set(seed);
            script
        };
        assert_eq!(winner(&script([10.6, 10.8, 10.0, 13.0]).timing_run()), 2, "seed {seed}");
        let tied = script([10.03, 10.0, 10.02, 13.0]).timing_run();
        assert_eq!(winner(&tied), 0, "seed {seed}: {tied:?}");
    }
}

#[test]
fn the_choice_is_never_made_worse() {
    for seed in 0..200 {
        let dice = Script::new([1.0; 4]);
        dice.random.set(seed);
        let products = [(); 4].map(|()| 8.0 + 4.0 * dice.uniform());
        let script = Script {
            noise: 0.2 * dice.uniform(),
            drift: dice.uniform(),
            interrupts: 5,
            ..Script::new(products)
        };
        script.random.set(seed + 1000);
        let seconds = 0.02 * dice.uniform();
        let timing_run = script.race_within(Limits { seconds, ..AMPLE }).unwrap();
        let (chosen, before) = (products[winner(&timing_run)], products[0]);
        assert!(
            chosen <= before * 1.01,
            "seed {seed}: {chosen} instead of {before}: {timing_run:?}"
        );
    }
}

#[test]
fn clearly_slower_candidates_are_eliminated_early() {
    let timing_run = Script { noise: 0.02, ..Script::new([10.0, 10.1, 30.0, 500.0]) }.timing_run();
    let rounds: Vec<usize> = timing_run.timed_plans.iter().map(|e| e.rounds).collect();
    assert_eq!((rounds[2], rounds[3]), (MIN_ROUNDS, MIN_ROUNDS));
    assert!(rounds[0] > MIN_ROUNDS && rounds[1] == rounds[0], "{rounds:?}");
    assert!(matches!(timing_run.timed_plans[3].outcome, TimingOutcome::Slower { early: true, .. }));
}

#[test]
fn a_candidate_that_fails_is_reported_with_the_reason() {
    let mut script = Script::new([10.0, 5.0, 6.0, 7.0]);
    script.laws[1].cannot_pack = true;
    script.laws[2].fails_after = Some(60);
    let timing_run = script.timing_run();
    assert_eq!(winner(&timing_run), 3);
    let reason = |place: usize| timing_run.timed_plans[place].outcome.to_string();
    assert!(reason(1).contains("failed: cannot copy 99") && reason(2).contains("cannot copy 77"));
}

#[test]
fn when_the_predicted_one_fails_the_next_takes_its_place_and_when_all_do_that_is_the_error() {
    let mut script = Script::new([10.0, 10.0, 10.0, 10.0]);
    script.laws[0].cannot_pack = true;
    assert_eq!(winner(&script.timing_run()), 1);
    script.laws[1].fails_after = Some(0);
    assert_eq!(winner(&script.timing_run()), 2);
    let mut broken = Script::new([10.0; 4]);
    broken.laws.iter_mut().for_each(|law| law.fails_after = Some(20));
    assert!(broken.race_within(AMPLE).unwrap_err().to_string().contains("the vector has 0"));
    broken.laws.iter_mut().for_each(|law| law.cannot_pack = true);
    assert!(broken.race_within(AMPLE).unwrap_err().to_string().contains("cannot copy 99"));
    assert_eq!(broken.held.get(), 0);
}

#[test]
fn when_time_is_up_the_choice_stays() {
    let none =
        Script::new([10.0, 5.0, 5.0, 5.0]).race_within(Limits { seconds: 0.0, ..AMPLE }).unwrap();
    assert_eq!((winner(&none), none.rounds()), (0, 1), "packing costs nothing here");
    let mut slow = Script::new([10.0, 5.0, 5.0, 5.0]);
    slow.laws.iter_mut().for_each(|law| law.pack = 0.3);
    let timing_run = slow.race_within(Limits { seconds: 0.5, ..AMPLE }).unwrap();
    assert_eq!((winner(&timing_run), timing_run.groups), (0, 0));
    assert!(timing_run.timed_plans[1..].iter().all(|e| e.outcome == TimingOutcome::NoTime));
    // Enough time for one plan, and not for another.
    let script = Script { clock: Cell::new(0.0), ..slow };
    let timing_run = script.race_within(Limits { seconds: 0.7, ..AMPLE }).unwrap();
    assert_eq!((winner(&timing_run), timing_run.groups), (1, 1));
    assert_eq!(timing_run.timed_plans[2].outcome, TimingOutcome::NoTime);
    assert!(timing_run.seconds < 0.75 && (timing_run.packing - 0.3).abs() < 1e-9, "{timing_run:?}");
    // Products so long that hardly any fits into the time limit.
    let long = Script::new([1e6, 0.9e6, 0.8e6, 2e6])
        .race_within(Limits { seconds: 8.0, ..AMPLE })
        .unwrap();
    assert_eq!((winner(&long), long.decided), (0, false));
    assert!(
        long.timed_plans[2].outcome == TimingOutcome::Undecided && long.seconds < 40.0,
        "{long:?}"
    );
}

#[test]
fn memory_limits_the_plans_packed_at_once() {
    let script = Script::new([13.0, 12.0, 10.0, 11.0]);
    let pairs = script.race_within(Limits { memory: 250, ..AMPLE }).unwrap();
    assert_eq!((winner(&pairs), pairs.groups, pairs.held_bytes), (2, 3, 200));
    assert_eq!(script.most_held.get(), 200);
    let script = Script::new([13.0, 12.0, 10.0, 11.0]);
    let alone = script.race_within(Limits { memory: 150, ..AMPLE }).unwrap();
    assert_eq!((winner(&alone), alone.groups, script.most_held.get()), (0, 0, 100));
    assert!(alone.timed_plans[2].outcome == TimingOutcome::NoRoom { needed: 100, left: 50 });
}

#[test]
fn preparation_counts_over_the_expected_products() {
    let timing_run = |calls| {
        let mut script = Script::new([10.0, 8.0, 12.0, 12.0]);
        script.laws[1].pack = 4e-3;
        winner(&script.race_within(Limits { calls, ..AMPLE }).unwrap())
    };
    assert_eq!((timing_run(1000), timing_run(10_000)), (0, 1));
}

fn analysis(spec: &str) -> Analysis {
    Analysis::of(spec.parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap().view())
}

fn decision(spec: &str, calls: u64) -> (Decision, DeviceSpec) {
    let analysis = analysis(spec);
    let request =
        Request { expected_calls: calls, ..Request::new(&analysis, ScalarKind::F32, u64::MAX) };
    let spec = Device::Cpu.spec();
    (select(&analysis, &spec, Profile::builtin(&Device::Cpu), request).unwrap(), spec)
}

#[test]
fn the_field_has_the_best_of_every_kernel_that_is_near_before_the_second_of_any() {
    let (decision, spec) = decision("banded,rows=20k", 1000);
    let shortlist = shortlist(&decision, &spec);
    let time = |c: &Candidate| c.prediction.unwrap().amortised(1000);
    assert_eq!(shortlist[0].plan, decision.plan);
    assert!(shortlist.len() > 2 && shortlist.len() <= MAX_CANDIDATES);
    assert!(shortlist.iter().all(|c| time(c) <= NEAR * time(shortlist[0])));
    let kernels: Vec<&str> = shortlist.iter().map(|c| c.plan.cost_key(Target::Cpu)).collect();
    let near = decision
        .candidates
        .iter()
        .filter(|c| c.prediction.is_some() && time(c) <= NEAR * time(shortlist[0]));
    let families: std::collections::BTreeSet<&str> =
        near.map(|c| c.plan.cost_key(Target::Cpu)).collect();
    let mut first: Vec<&str> = kernels.clone();
    first.sort_unstable();
    first.dedup();
    // Repeated kernels among the nearest reduce the number of other kernels.
    let doubled = (1..BY_TIME_ALONE).filter(|&i| kernels[..i].contains(&kernels[i])).count();
    assert_eq!(
        first.len(),
        families.len().min(MAX_CANDIDATES - doubled),
        "{kernels:?} of {families:?}"
    );
    let nearest: Vec<f64> = shortlist.iter().take(BY_TIME_ALONE).map(|c| time(c)).collect();
    assert!(
        nearest[1..].iter().is_sorted()
            && shortlist.iter().skip(BY_TIME_ALONE).all(|c| time(c) >= nearest[2])
    );
    let plans: std::collections::BTreeSet<String> =
        shortlist.iter().map(|c| c.plan.to_string()).collect();
    assert_eq!(plans.len(), shortlist.len(), "each once");
}

#[test]
fn only_many_products_amortise_a_timing_run() {
    let worth = |calls| {
        let (decision, spec) = decision("fem3d,n=12", calls);
        let (gain, cost) = expected_gain_and_cost(
            &decision,
            &shortlist(&decision, &spec),
            Calibration::default().policy(&Device::Cpu),
        );
        assert!(cost > 0.0 && gain > 0.0);
        gain > cost
    };
    assert!(!worth(10) && worth(10_000_000));
}

#[test]
fn a_timing_run_sorts_its_plans_winner_first() {
    let (mut decision, spec) = decision("poisson2d,n=100", 1000);
    let before = decision.plan.clone();
    let timed_plan = |plan: Plan, product, outcome| TimedPlan {
        plan,
        prepare: None,
        product,
        spread: None,
        rounds: 5,
        outcome,
    };
    let slower = TimingOutcome::Slower { ratio: 1.5, early: true };
    // A plan that the profile would not have as a candidate.
    let winner: Plan = "sell(c:7,sigma:7)".parse().unwrap();
    let third: Plan = "coo".parse().unwrap();
    let timed_plans = vec![
        timed_plan(before.clone(), Some(1.5e-5), slower.clone()),
        timed_plan(third.clone(), Some(3e-5), slower.clone()),
        timed_plan(winner.clone(), Some(1e-5), TimingOutcome::Won),
    ];
    let timing_run = TimingRun {
        winner: winner.clone(),
        cold: false,
        timed_plans,
        groups: 1,
        seconds: 0.0,
        packing: 0.0,
        held_bytes: 0,
        decided: true,
    };
    decision.settle(Basis::Timed(timing_run), &analysis("poisson2d,n=100"), &spec);
    let plans: Vec<&Plan> = decision.candidates.iter().map(|c| &c.plan).take(3).collect();
    assert_eq!(plans, [&winner, &before, &third]);
    let verdicts: Vec<&Verdict> = decision.candidates.iter().map(|c| &c.verdict).take(2).collect();
    assert_eq!(verdicts, [&Verdict::Chosen, &Verdict::Timed(slower)]);
    assert_eq!(decision.chosen().unwrap().plan, winner);
    assert!(decision.chosen().unwrap().work.matrix_bytes > 0);
}
