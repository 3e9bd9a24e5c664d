//! Regret of calibration: the calibrated operators compared with the fastest of all plans.
//!
//! The time of an operator is not taken from the timing run that chose it, in which chance may have
//! favoured it. The operator is timed again, as packed, together with the nearly fastest plans of a
//! timing run of every plan ([`references`]), which are packed again. The time of a plan depends on
//! where its arrays lie in memory, and the packing in use is the one that counts. Every other round
//! determines the fastest of them, and the rounds between determine by how much: among many similar
//! plans, chance favours one, and its advantage would otherwise add to the regret of the operator.

use crate::offline::{Measured, PlanRun};
use serde::Serialize;
use sparseop::ScalarKind;
use sparseop::device::DeviceSpec;
use sparseop::formats::{Plan, Target};
use sparseop::tuning::decision::TimingRun;
use sparseop::tuning::record::Regret;
use sparseop::tuning::stopwatch::Samples;
use statrs::statistics::{Data, OrderStatistics};
use std::collections::BTreeMap;

/// A plan and its time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timed {
    /// The plan.
    pub plan: Plan,
    /// Microseconds of a product.
    pub product_us: f64,
}

/// Plans with which an operator is timed to rate its choice: of the plans that can be chosen, the
/// fastest in a timing run of every plan and all that are close to it.
pub fn references(measured: &Measured, device: &DeviceSpec) -> Vec<Plan> {
    /// Largest time of such a plan over the least. Two timing runs do not differ by that much.
    const NEAR: f64 = 1.25;
    /// Largest number of such plans: many variants of one format may have nearly the same time.
    const MAX: usize = 8;
    let on = Target::of(device);
    let Some(fastest) = measured.fastest(on) else { return Vec::new() };
    let is_near =
        |run: &&PlanRun| run.plan.is_eligible(on) && run.product <= NEAR * fastest.product;
    let mut near: Vec<&PlanRun> = measured.runs.iter().filter(is_near).collect();
    near.sort_by(|a, b| a.product.total_cmp(&b.product));
    near.into_iter().take(MAX).map(|run| run.plan.clone()).collect()
}

/// Choice of calibration for one matrix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Calibrated {
    /// Name of the matrix.
    pub matrix: String,
    /// Class of the matrix.
    pub class: String,
    /// Scalar type.
    pub scalar: ScalarKind,
    /// True if the matrix is used to validate profiles.
    #[serde(skip)]
    pub judged: bool,
    /// Time of the operator over that of the fastest plan of the second timing run, at least 1. The
    /// median over the rounds that did not determine the fastest plan.
    pub regret: f64,
    /// Regret of the plan that would be chosen without calibration, in the timing run of every
    /// plan; `None` if it was not measured there.
    pub predicted_regret: Option<f64>,
    /// Plan and time of the operator itself.
    pub chosen: Timed,
    /// Fastest of the plans timed with it.
    pub fastest: Timed,
    /// Number of plans on the shortlist of the calibration.
    pub timed_plans: usize,
    /// Seconds of the calibration, without packing the chosen plan.
    pub seconds: f64,
    /// Outcome of the fastest plan in the calibration, if it was not chosen.
    pub why: Option<String>,
}

impl Calibrated {
    /// Rates a calibration, from its timing run, the timing run of every plan, and the rounds of
    /// its operator and [`references`] in the second timing run. `None` without references or
    /// without rounds.
    pub fn of(
        timing_run: &TimingRun,
        measured: &Measured,
        device: &DeviceSpec,
        operator: &Samples,
        references: &[(Plan, Samples)],
    ) -> Option<Self> {
        let least = measured.fastest(Target::of(device))?.product;
        let predicted = measured.runs.iter().find(|run| run.plan == *timing_run.predicted());
        let times = |reference: &Samples, rounds| paired(operator, reference, rounds);
        let in_one_half = references
            .iter()
            .filter_map(|reference| Some((reference, times(&reference.1, Rounds::Even)?)));
        let ((plan, samples), _) = in_one_half.max_by(|a, b| a.1.total_cmp(&b.1))?;
        let regret = times(samples, Rounds::Odd)?.max(1.0);
        let timed = |plan: &Plan, samples: &Samples| Timed {
            plan: plan.clone(),
            product_us: samples.median() * 1e6,
        };
        let (chosen, fastest) = (timed(&timing_run.winner, operator), timed(plan, samples));
        let why = || match timing_run.timed_plan(&fastest.plan) {
            Some(timed_plan) => format!("the fastest one: {}", timed_plan.outcome),
            None => "the fastest one was not on the shortlist".to_owned(),
        };
        Some(Self {
            matrix: measured.matrix.clone(),
            class: measured.class.clone(),
            scalar: measured.scalar,
            judged: measured.is_judged(),
            regret,
            predicted_regret: predicted.map(|run| run.product / least),
            why: (chosen.plan != fastest.plan).then(why),
            chosen,
            fastest,
            timed_plans: timing_run.timed_plans.len(),
            seconds: timing_run.seconds,
        })
    }
}

/// Half of the rounds of a timing run: the even or the odd ones.
#[derive(Clone, Copy)]
enum Rounds {
    Even,
    Odd,
}

/// Median over half of the rounds of the ratio of the times of `a` to those of `b`; over all rounds
/// if there is only one. `None` if there is none.
fn paired(a: &Samples, b: &Samples, rounds: Rounds) -> Option<f64> {
    let ratios: Vec<f64> = a.as_slice().iter().zip(b.as_slice()).map(|(a, b)| a / b).collect();
    let first = if ratios.len() > 1 { rounds as usize } else { 0 };
    let half: Vec<f64> = ratios.into_iter().skip(first).step_by(2).collect();
    (!half.is_empty()).then(|| Data::new(half).median())
}

/// Regret of calibration on a collection of matrices: on those used to validate profiles, or on all
/// if there are none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Calibrations {
    /// True if each class is predicted by a profile fitted without it; false if the profile in use
    /// predicts.
    pub held_out: bool,
    /// Regret of the calibrated choices.
    pub regret: Regret,
    /// Regret of the choices without calibration, by the same predictions.
    pub predicted: Regret,
    /// Regret of the calibrated choices, by class.
    pub classes: BTreeMap<String, Regret>,
    /// Mean seconds of a calibration.
    pub seconds: f64,
    /// Choices with the largest regret, in descending order.
    pub worst: Vec<Calibrated>,
}

impl Calibrations {
    /// Summarises calibrations and lists the `worst` choices with the largest regret.
    pub fn of(all: &[Calibrated], held_out: bool, worst: usize) -> Self {
        let any = all.iter().any(|one| one.judged);
        let mut judged: Vec<&Calibrated> = all.iter().filter(|one| one.judged || !any).collect();
        judged.sort_by(|a, b| b.regret.total_cmp(&a.regret));
        let mut classes: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for one in &judged {
            classes.entry(one.class.clone()).or_default().push(one.regret);
        }
        let regrets: Vec<f64> = judged.iter().map(|one| one.regret).collect();
        let predicted: Vec<f64> = judged.iter().filter_map(|one| one.predicted_regret).collect();
        let seconds: f64 = judged.iter().map(|one| one.seconds).sum();
        Self {
            held_out,
            regret: Regret::of(&regrets),
            predicted: Regret::of(&predicted),
            classes: classes
                .into_iter()
                .map(|(class, regrets)| (class, Regret::of(&regrets)))
                .collect(),
            seconds: seconds / judged.len().max(1) as f64,
            worst: judged.into_iter().take(worst).cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparseop::device::Device;
    use sparseop::formats::Work;
    use sparseop::tuning::decision::{TimedPlan, TimingOutcome};
    use sparseop::tuning::features::MatrixFeatures;

    const PLANS: [&str; 4] = ["csr(scalar)", "ell", "coo", "jds(diagonals)"];

    /// Timing run of every plan of a matrix, with the nanoseconds of each of [`PLANS`].
    fn measured(class: &str, nnz: u64, times: &[f64]) -> Measured {
        let run = |(plan, &product): (&&str, &f64)| PlanRun {
            plan: plan.parse().unwrap(),
            work: Work::default(),
            product,
            prepare: 0.0,
        };
        Measured {
            matrix: "a".to_owned(),
            class: class.to_owned(),
            fingerprint: Default::default(),
            scalar: ScalarKind::F32,
            features: MatrixFeatures { nnz, ..MatrixFeatures::default() },
            runs: PLANS.iter().zip(times).map(run).collect(),
            failed: Vec::new(),
        }
    }

    /// A timing run in which the second of [`PLANS`] wins over the first.
    fn timing_run() -> TimingRun {
        let plans = PLANS.map(|plan| plan.parse::<Plan>().unwrap());
        let timed_plan = |(plan, outcome): (&Plan, TimingOutcome)| TimedPlan {
            plan: plan.clone(),
            prepare: None,
            product: None,
            spread: None,
            rounds: 5,
            outcome,
        };
        TimingRun {
            winner: plans[1].clone(),
            cold: false,
            timed_plans: plans
                .iter()
                .zip([TimingOutcome::Tied { ratio: 1.0 }, TimingOutcome::Won])
                .map(timed_plan)
                .collect(),
            groups: 1,
            seconds: 0.5,
            packing: 0.0,
            held_bytes: 0,
            decided: true,
        }
    }

    /// Calibration of a matrix with the given times of three plans, in units of 1024 ns. The second
    /// plan wins the calibration; the second timing run gives the same times.
    fn calibrated(class: &str, nnz: u64, times: [u32; 3]) -> Calibrated {
        let measured = measured(class, nnz, &times.map(|time| f64::from(time) * 1024.0));
        let timing_run = timing_run();
        let spec = Device::Cpu.spec();
        let times = |plan: &Plan| {
            let run = measured.runs.iter().find(|run| run.plan == *plan).unwrap();
            Samples::from(vec![run.product / f64::from(1 << 30); 4])
        };
        let references: Vec<_> = references(&measured, &spec)
            .into_iter()
            .map(|plan| (plan.clone(), times(&plan)))
            .collect();
        Calibrated::of(&timing_run, &measured, &spec, &times(&timing_run.winner), &references)
            .unwrap()
    }

    #[test]
    fn regret_is_the_operator_time_over_the_fastest() {
        let missed = calibrated("b", 200_000, [6, 5, 4]);
        assert_eq!((missed.regret, missed.predicted_regret), (1.25, Some(1.5)));
        assert_eq!(missed.why.as_deref(), Some("the fastest one was not on the shortlist"));
        assert!((missed.chosen.product_us / missed.fastest.product_us - 1.25).abs() < 1e-12);
        let mistaken = calibrated("b", 200_000, [4, 5, 6]);
        assert!(mistaken.why.unwrap().contains("1.000 times as long: a tie"));
        let right = calibrated("b", 200_000, [6, 4, 5]);
        assert_eq!((right.regret, right.why), (1.0, None));
    }

    #[test]
    fn the_fastest_and_its_lead_come_from_different_rounds() {
        let samples = |times: &[f64]| Samples::from(times.to_vec());
        let (a, b) = (samples(&[4.0, 6.0, 4.0, 6.0, 8.0]), samples(&[2.0; 7]));
        assert_eq!(
            (paired(&a, &b, Rounds::Even), paired(&a, &b, Rounds::Odd)),
            (Some(2.0), Some(3.0))
        );
        let (once, never) = (samples(&[3.0]), samples(&[]));
        assert_eq!(
            (paired(&a, &once, Rounds::Odd), paired(&a, &never, Rounds::Even)),
            (Some(4.0 / 3.0), None)
        );
        // By the even rounds the third is the fastest; in the odd ones it is as fast as the
        // operator. The second is never as fast.
        let references = [(2, [0.5, 1.0]), (3, [0.9, 0.9])];
        let references =
            references.map(|(plan, times)| (PLANS[plan].parse().unwrap(), samples(&times)));
        let measured = measured("b", 200_000, &[6.0, 5.0, 4.0]);
        let found = Calibrated::of(
            &timing_run(),
            &measured,
            &Device::Cpu.spec(),
            &samples(&[1.0; 2]),
            &references,
        );
        assert_eq!(found.unwrap().regret, 1.0);
    }

    #[test]
    fn references_are_those_near_the_fastest_the_fastest_first() {
        let measured = measured("b", 0, &[125.0, 126.0, 100.0, 110.0]);
        let [csr, _, coo, jds] = PLANS.map(|plan| plan.parse::<Plan>().unwrap());
        assert_eq!(references(&measured, &Device::Cpu.spec()), [coo, jds, csr]);
        assert_eq!(references(&Measured { runs: Vec::new(), ..measured }, &Device::Cpu.spec()), []);
    }

    #[test]
    fn the_summary_covers_the_judged_matrices() {
        let missed = calibrated("b", 200_000, [6, 5, 4]);
        let right = calibrated("c", 200_000, [6, 4, 5]);
        let small = calibrated("d", 10, [6, 20, 4]);
        let all = Calibrations::of(&[right, missed.clone(), small.clone()], true, 1);
        assert_eq!((all.regret.matrices, all.regret.worst, all.predicted.worst), (2, 1.25, 1.5));
        assert_eq!(all.classes.keys().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!((all.worst, all.seconds), (vec![missed], 0.5));
        assert_eq!(
            Calibrations::of(&[small], false, 5).regret.worst,
            5.0,
            "where there are no others"
        );
        assert_eq!(Calibrations::of(&[], false, 5).regret.matrices, 0);
    }
}
