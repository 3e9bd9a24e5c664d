//! How well calibration chooses: the operators it leaves behind against the fastest of all plans.
//!
//! What an operator takes is not read off the race that chose it: chance may have favoured it there. It is raced again, as it was packed, with
//! the plans that were nearly the fastest in a race of every plan ([`rivals`]), packed anew: one packing of a plan may take longer than another,
//! by where its arrays lie, and the one that is kept is the one that counts. Which of them is the fastest is told by every other round, and by
//! how much by the rounds between: of many that are alike chance favours one, and would otherwise be charged to the operator.

use crate::offline::{Measured, Run};
use serde::Serialize;
use sparseop::ScalarKind;
use sparseop::device::DeviceSpec;
use sparseop::formats::{Plan, Target};
use sparseop::tuning::decision::Race;
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

/// The plans that an operator is raced with to judge its choice: of those that can be chosen, the fastest of a race of every plan and all that
/// were near it.
pub fn rivals(measured: &Measured, device: &DeviceSpec) -> Vec<Plan> {
    /// Times of the least that two races do not differ by.
    const NEAR: f64 = 1.25;
    /// Next to each other, there may be many of a family.
    const MOST: usize = 8;
    let on = Target::of(device);
    let Some(fastest) = measured.fastest(on) else { return Vec::new() };
    let is_near = |run: &&Run| run.plan.is_eligible(on) && run.product <= NEAR * fastest.product;
    let mut near: Vec<&Run> = measured.runs.iter().filter(is_near).collect();
    near.sort_by(|a, b| a.product.total_cmp(&b.product));
    near.into_iter().take(MOST).map(|run| run.plan.clone()).collect()
}

/// What calibration has chosen for one matrix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Calibrated {
    /// The matrix.
    pub matrix: String,
    /// Its class.
    pub class: String,
    /// Its numbers.
    pub scalar: ScalarKind,
    /// Whether it is one of those that profiles are judged by.
    #[serde(skip)]
    pub judged: bool,
    /// The time of the operator over that of the fastest plan it was raced with again, or 1 where the operator takes less: the median over the
    /// rounds that the fastest was not told by.
    pub regret: f64,
    /// The same of the plan that would have been chosen without calibration, in the race of every plan; none where that was not measured.
    pub predicted_regret: Option<f64>,
    /// The operator's plan, and the time of the very operator.
    pub chosen: Timed,
    /// The fastest of the plans it was raced with.
    pub fastest: Timed,
    /// Plans that calibration has raced or was to.
    pub entrants: usize,
    /// Seconds it took, besides packing the chosen plan.
    pub seconds: f64,
    /// What became of the fastest plan in its race, where it was not chosen.
    pub why: Option<String>,
}

impl Calibrated {
    /// Judges a calibration: by its race, the race of every plan, and the rounds of its operator and of its [`rivals`], raced again. None where
    /// there were no rivals, or no rounds.
    pub fn of(
        race: &Race,
        measured: &Measured,
        device: &DeviceSpec,
        operator: &Samples,
        rivals: &[(Plan, Samples)],
    ) -> Option<Self> {
        let least = measured.fastest(Target::of(device))?.product;
        let predicted = measured.runs.iter().find(|run| run.plan == *race.predicted());
        let times = |rival: &Samples, rounds| paired(operator, rival, rounds);
        let in_one_half = rivals.iter().filter_map(|rival| Some((rival, times(&rival.1, Rounds::Even)?)));
        let ((plan, samples), _) = in_one_half.max_by(|a, b| a.1.total_cmp(&b.1))?;
        let regret = times(samples, Rounds::Odd)?.max(1.0);
        let timed =
            |plan: &Plan, samples: &Samples| Timed { plan: plan.clone(), product_us: samples.median() * 1e6 };
        let (chosen, fastest) = (timed(&race.winner, operator), timed(plan, samples));
        let why = || match race.entrant(&fastest.plan) {
            Some(entrant) => format!("the fastest one: {}", entrant.outcome),
            None => "the fastest one was not raced".to_owned(),
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
            entrants: race.entrants.len(),
            seconds: race.seconds,
        })
    }
}

/// Every other round of a race, or those between.
#[derive(Clone, Copy)]
enum Rounds {
    Even,
    Odd,
}

/// The median of the times of `a` over those of `b`, round by round, in half of the rounds; in all of them where there is only one. None where
/// there is none.
fn paired(a: &Samples, b: &Samples, rounds: Rounds) -> Option<f64> {
    let ratios: Vec<f64> = a.as_slice().iter().zip(b.as_slice()).map(|(a, b)| a / b).collect();
    let first = if ratios.len() > 1 { rounds as usize } else { 0 };
    let half: Vec<f64> = ratios.into_iter().skip(first).step_by(2).collect();
    (!half.is_empty()).then(|| Data::new(half).median())
}

/// How well calibration chooses on a collection; over the matrices that profiles are judged by, over all where there are none of these.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Calibrations {
    /// Whether each class was predicted by a profile that was fitted without it; if not, by the profile in use.
    pub held_out: bool,
    /// The regret of what calibration chooses.
    pub regret: Regret,
    /// The regret of what would have been chosen without it, by the same predictions.
    pub predicted: Regret,
    /// The regret of what calibration chooses, by class.
    pub classes: BTreeMap<String, Regret>,
    /// Seconds of a calibration, on average.
    pub seconds: f64,
    /// The choices with the largest regret, the largest first.
    pub worst: Vec<Calibrated>,
}

impl Calibrations {
    /// Sums up, and names so many of the worst.
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
            classes: classes.into_iter().map(|(class, regrets)| (class, Regret::of(&regrets))).collect(),
            seconds: seconds / judged.len().max(1) as f64,
            worst: judged.into_iter().take(worst).cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparseop::device::Device;
    use sparseop::formats::Traffic;
    use sparseop::tuning::decision::{Entrant, Outcome};
    use sparseop::tuning::facts::Facts;

    const PLANS: [&str; 4] = ["csr(scalar)", "ell", "coo", "jds(diagonals)"];

    /// The race of every plan of a matrix: so many nanoseconds for the first of [`PLANS`].
    fn measured(class: &str, nnz: u64, times: &[f64]) -> Measured {
        let run = |(plan, &product): (&&str, &f64)| Run {
            plan: plan.parse().unwrap(),
            traffic: Traffic::default(),
            product,
            prepare: 0.0,
        };
        Measured {
            matrix: "a".to_owned(),
            class: class.to_owned(),
            fingerprint: Default::default(),
            scalar: ScalarKind::F32,
            facts: Facts { nnz, ..Facts::default() },
            runs: PLANS.iter().zip(times).map(run).collect(),
            failed: Vec::new(),
        }
    }

    /// A race that the second of [`PLANS`] has won over the first.
    fn race() -> Race {
        let plans = PLANS.map(|plan| plan.parse::<Plan>().unwrap());
        let entrant = |(plan, outcome): (&Plan, Outcome)| Entrant {
            plan: plan.clone(),
            prepare: None,
            median: None,
            spread: None,
            rounds: 5,
            outcome,
        };
        Race {
            winner: plans[1].clone(),
            cold: false,
            entrants: plans.iter().zip([Outcome::Tied { ratio: 1.0 }, Outcome::Won]).map(entrant).collect(),
            heats: 1,
            seconds: 0.5,
            packing: 0.0,
            held_bytes: 0,
            decided: true,
        }
    }

    /// Times of three plans on a matrix, in units of 1024 ns, and the race that the second has won; raced again they take as long.
    fn calibrated(class: &str, nnz: u64, times: [u32; 3]) -> Calibrated {
        let measured = measured(class, nnz, &times.map(|time| f64::from(time) * 1024.0));
        let race = race();
        let spec = Device::Cpu.spec();
        let times = |plan: &Plan| {
            let run = measured.runs.iter().find(|run| run.plan == *plan).unwrap();
            Samples::from(vec![run.product / f64::from(1 << 30); 4])
        };
        let rivals: Vec<_> =
            rivals(&measured, &spec).into_iter().map(|plan| (plan.clone(), times(&plan))).collect();
        Calibrated::of(&race, &measured, &spec, &times(&race.winner), &rivals).unwrap()
    }

    #[test]
    fn an_operator_is_charged_what_it_takes_beside_the_fastest() {
        let missed = calibrated("b", 200_000, [6, 5, 4]);
        assert_eq!((missed.regret, missed.predicted_regret), (1.25, Some(1.5)));
        assert_eq!(missed.why.as_deref(), Some("the fastest one was not raced"));
        assert!((missed.chosen.product_us / missed.fastest.product_us - 1.25).abs() < 1e-12);
        let mistaken = calibrated("b", 200_000, [4, 5, 6]);
        assert!(mistaken.why.unwrap().contains("1.000 times as long: a tie"));
        let right = calibrated("b", 200_000, [6, 4, 5]);
        assert_eq!((right.regret, right.why), (1.0, None));
    }

    #[test]
    fn who_is_the_fastest_and_by_how_much_is_told_by_different_rounds() {
        let samples = |times: &[f64]| Samples::from(times.to_vec());
        let (a, b) = (samples(&[4.0, 6.0, 4.0, 6.0, 8.0]), samples(&[2.0; 7]));
        assert_eq!((paired(&a, &b, Rounds::Even), paired(&a, &b, Rounds::Odd)), (Some(2.0), Some(3.0)));
        let (once, never) = (samples(&[3.0]), samples(&[]));
        assert_eq!(
            (paired(&a, &once, Rounds::Odd), paired(&a, &never, Rounds::Even)),
            (Some(4.0 / 3.0), None)
        );
        // By the even rounds the third is the fastest, and in the odd ones it takes as long as the operator; the second never does.
        let rivals = [(2, [0.5, 1.0]), (3, [0.9, 0.9])];
        let rivals = rivals.map(|(plan, times)| (PLANS[plan].parse().unwrap(), samples(&times)));
        let measured = measured("b", 200_000, &[6.0, 5.0, 4.0]);
        let found = Calibrated::of(&race(), &measured, &Device::Cpu.spec(), &samples(&[1.0; 2]), &rivals);
        assert_eq!(found.unwrap().regret, 1.0);
    }

    #[test]
    fn rivals_are_those_near_the_fastest_the_fastest_first() {
        let measured = measured("b", 0, &[125.0, 126.0, 100.0, 110.0]);
        let [csr, _, coo, jds] = PLANS.map(|plan| plan.parse::<Plan>().unwrap());
        assert_eq!(rivals(&measured, &Device::Cpu.spec()), [coo, jds, csr]);
        assert_eq!(rivals(&Measured { runs: Vec::new(), ..measured }, &Device::Cpu.spec()), []);
    }

    #[test]
    fn the_summary_is_over_what_profiles_are_judged_by() {
        let missed = calibrated("b", 200_000, [6, 5, 4]);
        let right = calibrated("c", 200_000, [6, 4, 5]);
        let small = calibrated("d", 10, [6, 20, 4]);
        let all = Calibrations::of(&[right, missed.clone(), small.clone()], true, 1);
        assert_eq!((all.regret.matrices, all.regret.worst, all.predicted.worst), (2, 1.25, 1.5));
        assert_eq!(all.classes.keys().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!((all.worst, all.seconds), (vec![missed], 0.5));
        assert_eq!(Calibrations::of(&[small], false, 5).regret.worst, 5.0, "where there are no others");
        assert_eq!(Calibrations::of(&[], false, 5).regret.matrices, 0);
    }
}
