//! Repeatability of measured decisions: successive timing runs of the same packed matrices, and the
//! decision of each.
//!
//! Decisions are made in two ways. *Successive*: each timing run starts with the decision of the
//! one before as its baseline, as runs of `sparseop tune` with a store do. *Fresh*: each timing run
//! starts with the prediction as its baseline, as without a store.

use crate::offline::{Measured, PlanRun};
use serde::Serialize;
use sparseop::ScalarKind;
use sparseop::device::DeviceSpec;
use sparseop::formats::{Plan, Target};
use sparseop::tuning::decision::TIE_BAND;
use sparseop::tuning::record::Regret;
use statrs::statistics::{Data, OrderStatistics};

/// Decisions of the timing runs of one matrix, in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct Decisions {
    /// Independent decisions.
    pub fresh: Vec<Plan>,
    /// Decisions that each start with the previous one; the first starts with the stored decision,
    /// if any.
    pub successive: Vec<Plan>,
}

/// A plan chosen by timing runs of a matrix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChosenPlan {
    /// The plan.
    pub plan: Plan,
    /// Number of timing runs that chose it.
    pub timing_runs: usize,
    /// Its time over that of the fastest plan: medians over the timing runs of the time of a
    /// product with its share of the preparation.
    pub excess: f64,
}

/// Agreement of the timing runs of one matrix. Plans are sorted by the number of timing runs, in
/// descending order.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeat {
    /// Name of the matrix.
    pub matrix: String,
    /// Scalar type.
    pub scalar: ScalarKind,
    /// True if the matrix is used to validate profiles.
    pub judged: bool,
    /// Plans chosen by timing runs that each start with the previous decision.
    pub successive: Vec<ChosenPlan>,
    /// Plans chosen by timing runs that each start with the prediction.
    pub fresh: Vec<ChosenPlan>,
}

impl Repeat {
    /// Agreement of the decisions of the timing runs of one matrix, made for `calls` products;
    /// `None` if there are no plans.
    pub fn of(
        timing_runs: &[Measured],
        decisions: &Decisions,
        calls: u64,
        device: &DeviceSpec,
    ) -> Option<Self> {
        let (first, on) = (timing_runs.first()?, Target::of(device));
        let cost = |run: &PlanRun| run.product + run.prepare / calls.max(1) as f64;
        let time = |plan: &Plan| {
            let times = timing_runs
                .iter()
                .filter_map(|timing_run| timing_run.runs.iter().find(|run| run.plan == *plan));
            Data::new(times.map(cost).collect::<Vec<_>>()).median()
        };
        let eligible = first.runs.iter().map(|run| &run.plan).filter(|plan| plan.is_eligible(on));
        let least = eligible.map(time).fold(f64::INFINITY, f64::min);
        let count = |plans: &[Plan]| {
            let mut chosen: Vec<ChosenPlan> = Vec::new();
            for plan in plans {
                match chosen.iter_mut().find(|chosen| chosen.plan == *plan) {
                    Some(chosen) => chosen.timing_runs += 1,
                    None => chosen.push(ChosenPlan {
                        plan: plan.clone(),
                        timing_runs: 1,
                        excess: time(plan) / least,
                    }),
                }
            }
            chosen.sort_by_key(|chosen| std::cmp::Reverse(chosen.timing_runs));
            chosen
        };
        Some(Self {
            matrix: first.matrix.clone(),
            scalar: first.scalar,
            judged: first.is_judged(),
            successive: count(&decisions.successive),
            fresh: count(&decisions.fresh),
        })
    }
}

/// Different decisions on one matrix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Disagreement {
    /// Name of the matrix.
    pub matrix: String,
    /// Scalar type.
    pub scalar: ScalarKind,
    /// Plans chosen by its timing runs.
    pub decisions: Vec<ChosenPlan>,
}

impl Disagreement {
    /// Time of the slowest chosen plan over that of the fastest plan.
    fn excess(&self) -> f64 {
        self.decisions.iter().map(|chosen| chosen.excess).fold(1.0, f64::max)
    }
}

/// Agreement of decisions of one kind on a collection of matrices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agreement {
    /// Number of matrices for which all timing runs chose the same plan.
    pub agreeing: usize,
    /// Number of validation matrices among them.
    pub agreeing_judged: usize,
    /// Largest time of a chosen plan over that of the fastest, on the other matrices; 1 if all
    /// agree.
    pub largest_excess: f64,
    /// True if [`largest_excess`](Agreement::largest_excess) is within the tie band.
    pub within_tie_band: bool,
    /// Regret of the chosen plans over all timing runs.
    pub regret: Regret,
    /// Matrices with different decisions, the largest excess first.
    pub differing: Vec<Disagreement>,
}

impl Agreement {
    fn of(repeats: &[Repeat], decisions: impl Fn(&Repeat) -> &Vec<ChosenPlan>) -> Self {
        let agrees = |repeat: &&Repeat| decisions(repeat).len() == 1;
        let differing =
            repeats.iter().filter(|repeat| !agrees(repeat)).map(|repeat| Disagreement {
                matrix: repeat.matrix.clone(),
                scalar: repeat.scalar,
                decisions: decisions(repeat).clone(),
            });
        let mut differing: Vec<Disagreement> = differing.collect();
        differing.sort_by(|a, b| b.excess().total_cmp(&a.excess()));
        let largest_excess = differing.first().map_or(1.0, Disagreement::excess);
        let all = repeats.iter().flat_map(&decisions);
        let regrets = all.flat_map(|chosen| std::iter::repeat_n(chosen.excess, chosen.timing_runs));
        Self {
            agreeing: repeats.len() - differing.len(),
            agreeing_judged: repeats.iter().filter(agrees).filter(|repeat| repeat.judged).count(),
            largest_excess,
            within_tie_band: largest_excess <= 1.0 + TIE_BAND,
            regret: Regret::of(&regrets.collect::<Vec<_>>()),
            differing,
        }
    }
}

/// Repeatability of the decisions on a collection of matrices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Repeatability {
    /// Timing runs per matrix.
    pub timing_runs: usize,
    /// Number of pairs of matrix and precision.
    pub matrices: usize,
    /// Number of validation matrices among them.
    pub judged: usize,
    /// Agreement of timing runs that each start with the previous decision.
    pub successive: Agreement,
    /// Agreement of timing runs that each start with the prediction.
    pub fresh: Agreement,
}

impl Repeatability {
    /// Summarises the decisions on a collection, with `timing_runs` timing runs per matrix.
    pub fn of(timing_runs: usize, repeats: &[Repeat]) -> Self {
        Self {
            timing_runs,
            matrices: repeats.len(),
            judged: repeats.iter().filter(|repeat| repeat.judged).count(),
            successive: Agreement::of(repeats, |repeat| &repeat.successive),
            fresh: Agreement::of(repeats, |repeat| &repeat.fresh),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparseop::device::Device;
    use sparseop::formats::Work;
    use sparseop::tuning::features::MatrixFeatures;

    const PLANS: [&str; 3] = ["csr(scalar)", "ell", "coo"];

    fn plan(place: usize) -> Plan {
        PLANS[place].parse().unwrap()
    }

    /// A timing run of three plans, the second with a preparation of 1000 ns.
    fn timing_run(times: [f64; 3], nnz: u64) -> Measured {
        let run = |(place, product): (usize, f64)| PlanRun {
            plan: plan(place),
            work: Work::default(),
            product,
            prepare: [0.0, 1000.0, 0.0][place],
        };
        Measured {
            matrix: "a".to_owned(),
            class: "b".to_owned(),
            fingerprint: Default::default(),
            scalar: ScalarKind::F32,
            features: MatrixFeatures { nnz, ..MatrixFeatures::default() },
            runs: times.into_iter().enumerate().map(run).collect(),
            failed: Vec::new(),
        }
    }

    fn repeat(times: &[[f64; 3]], fresh: &[usize], successive: &[usize], nnz: u64) -> Repeat {
        let timing_runs: Vec<Measured> =
            times.iter().map(|&times| timing_run(times, nnz)).collect();
        let plans = |places: &[usize]| places.iter().map(|&place| plan(place)).collect();
        let decisions = Decisions { fresh: plans(fresh), successive: plans(successive) };
        Repeat::of(&timing_runs, &decisions, 100, &Device::Cpu.spec()).unwrap()
    }

    #[test]
    fn decisions_are_counted_with_their_cost_and_preparation() {
        let times = [[101.0, 90.0, 200.0], [104.0, 90.0, 200.0], [101.0, 90.0, 200.0]];
        let found = repeat(&times, &[1, 0, 0], &[1, 1, 1], 10);
        let chosen =
            |place, timing_runs, excess| ChosenPlan { plan: plan(place), timing_runs, excess };
        assert_eq!(found.fresh, [chosen(0, 2, 1.01), chosen(1, 1, 1.0)]);
        assert_eq!(found.successive, [chosen(1, 3, 1.0)]);
        assert!(!found.judged, "a matrix of ten entries");
    }

    #[test]
    fn both_ways_are_summed_up_side_by_side() {
        let one = repeat(&[[100.0, 140.0, 200.0]; 3], &[0, 1, 0], &[0, 0, 0], 200_000);
        let other = repeat(&[[101.0, 90.0, 200.0]; 3], &[0, 1, 0], &[0, 1, 1], 10);
        let same = repeat(&[[100.0, 140.0, 200.0]; 3], &[0; 3], &[0; 3], 10);
        let all = Repeatability::of(3, &[one.clone(), other, same.clone()]);
        assert_eq!((all.timing_runs, all.matrices, all.judged), (3, 3, 1));
        let fresh = &all.fresh;
        assert_eq!((fresh.agreeing, fresh.agreeing_judged, fresh.largest_excess), (1, 0, 1.5));
        assert!(!fresh.within_tie_band && fresh.differing[0].decisions == one.fresh);
        assert_eq!((fresh.regret.matrices, fresh.regret.worst), (9, 1.5));
        let successive = &all.successive;
        assert_eq!((successive.agreeing, successive.agreeing_judged), (2, 1));
        assert!(successive.within_tie_band && successive.largest_excess == 1.01);
        let none = Repeatability::of(3, &[same]).fresh;
        assert_eq!((none.agreeing, none.largest_excess, none.within_tie_band), (1, 1.0, true));
    }

    #[test]
    fn nothing_decides_for_nothing() {
        let none = Decisions { fresh: Vec::new(), successive: Vec::new() };
        assert_eq!(Repeat::of(&[], &none, 1, &Device::Cpu.spec()), None);
        let all = Repeatability::of(5, &[]);
        assert_eq!(
            (all.matrices, all.fresh.agreeing, all.successive.within_tie_band),
            (0, 0, true)
        );
    }
}
