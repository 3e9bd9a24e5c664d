//! How well calibration chooses: its choices against races of every plan.
//!
//! What a choice takes is what it took in the race of every plan, not in the race that chose it: noise between the two is no regret.

use super::calibrate::Race;
use super::offline::{Measured, Run};
use super::record::Regret;
use crate::ScalarKind;
use crate::device::DeviceSpec;
use crate::formats::{Plan, Target};
use serde::Serialize;
use std::collections::BTreeMap;

/// A plan and its time in the race of every plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Timed {
    /// The plan.
    pub plan: Plan,
    /// Microseconds of a product.
    pub product_us: f64,
}

impl From<&Run> for Timed {
    fn from(run: &Run) -> Self {
        Self { plan: run.plan.clone(), product_us: run.product * 1e-3 }
    }
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
    /// The time of the chosen plan over that of the fastest.
    pub regret: f64,
    /// The same of the plan that would have been chosen without calibration; none where that was not measured.
    pub predicted_regret: Option<f64>,
    /// The plan that was chosen.
    pub chosen: Timed,
    /// The fastest of all.
    pub fastest: Timed,
    /// Plans that calibration has raced or was to.
    pub entrants: usize,
    /// Seconds it took, besides packing the chosen plan.
    pub seconds: f64,
    /// What became of the fastest plan in its race, where it was not chosen.
    pub why: Option<String>,
}

impl Calibrated {
    /// Compares the race of a calibration with the race of every plan of the same matrix; none where the chosen plan failed in that one.
    pub fn of(race: &Race, measured: &Measured, device: &DeviceSpec) -> Option<Self> {
        let run = |plan: &Plan| measured.runs.iter().find(|run| run.plan == *plan);
        let (chosen, fastest) = (run(&race.winner)?, measured.fastest(Target::of(device))?);
        let why = || match race.entrant(&fastest.plan) {
            Some(entrant) => format!("the fastest one: {}", entrant.outcome),
            None => "the fastest one was not raced".to_owned(),
        };
        Some(Self {
            matrix: measured.matrix.clone(),
            class: measured.class.clone(),
            scalar: measured.scalar,
            judged: measured.is_judged(),
            regret: chosen.product / fastest.product,
            predicted_regret: run(race.predicted()).map(|run| run.product / fastest.product),
            chosen: chosen.into(),
            fastest: fastest.into(),
            entrants: race.entrants.len(),
            seconds: race.seconds,
            why: (chosen.plan != fastest.plan).then(why),
        })
    }
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
    use crate::device::Device;
    use crate::formats::Traffic;
    use crate::tuning::calibrate::{Entrant, Outcome};
    use crate::tuning::facts::Facts;

    /// Times of three plans on a matrix, and a race that the second has won over the first.
    fn calibrated(class: &str, nnz: u64, times: [f64; 3]) -> Calibrated {
        let plans = ["csr(scalar)", "ell", "coo"].map(|plan| plan.parse::<Plan>().unwrap());
        let run = |(plan, product): (&Plan, f64)| Run {
            plan: plan.clone(),
            traffic: Traffic::default(),
            product,
            prepare: 0.0,
        };
        let measured = Measured {
            matrix: "a".to_owned(),
            class: class.to_owned(),
            fingerprint: Default::default(),
            scalar: ScalarKind::F32,
            facts: Facts { nnz, ..Facts::default() },
            runs: plans.iter().zip(times).map(run).collect(),
            failed: Vec::new(),
        };
        let entrant = |(plan, outcome): (&Plan, Outcome)| Entrant {
            plan: plan.clone(),
            prepare: None,
            median: None,
            spread: None,
            rounds: 5,
            outcome,
        };
        let race = Race {
            winner: plans[1].clone(),
            cold: false,
            entrants: plans.iter().zip([Outcome::Tied { ratio: 1.0 }, Outcome::Won]).map(entrant).collect(),
            heats: 1,
            seconds: 0.5,
            packing: 0.0,
            held_bytes: 0,
            decided: true,
        };
        Calibrated::of(&race, &measured, &Device::Cpu.spec()).unwrap()
    }

    #[test]
    fn a_choice_is_charged_what_it_took_among_all_plans() {
        let missed = calibrated("b", 200_000, [150.0, 110.0, 100.0]);
        assert_eq!((missed.regret, missed.predicted_regret), (1.1, Some(1.5)));
        assert_eq!(missed.why.as_deref(), Some("the fastest one was not raced"));
        assert_eq!((missed.chosen.product_us, missed.fastest.product_us), (0.11, 0.1));
        let mistaken = calibrated("b", 200_000, [100.0, 110.0, 150.0]);
        assert!(mistaken.why.unwrap().contains("1.000 times as long: a tie"));
        let right = calibrated("b", 200_000, [150.0, 100.0, 110.0]);
        assert_eq!((right.regret, right.why), (1.0, None));
    }

    #[test]
    fn the_summary_is_over_what_profiles_are_judged_by() {
        let missed = calibrated("b", 200_000, [150.0, 110.0, 100.0]);
        let right = calibrated("c", 200_000, [150.0, 100.0, 110.0]);
        let small = calibrated("d", 10, [150.0, 500.0, 100.0]);
        let all = Calibrations::of(&[right, missed.clone(), small.clone()], true, 1);
        assert_eq!((all.regret.matrices, all.regret.worst, all.predicted.worst), (2, 1.1, 1.5));
        assert_eq!(all.classes.keys().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!((all.worst, all.seconds), (vec![missed], 0.5));
        assert_eq!(Calibrations::of(&[small], false, 5).regret.worst, 5.0, "where there are no others");
        assert_eq!(Calibrations::of(&[], false, 5).regret.matrices, 0);
    }
}
