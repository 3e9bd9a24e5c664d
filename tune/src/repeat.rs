//! How well measured decisions repeat: races of the same packed matrices, one after the other, and what each of them decides.
//!
//! In two ways. *Successive*: each race begins with what the one before has decided, as runs of `sparseop tune` do that remember. *Fresh*:
//! each race begins with the prediction, as if nothing were remembered.

use crate::offline::{Measured, Run};
use serde::Serialize;
use sparseop::ScalarKind;
use sparseop::device::DeviceSpec;
use sparseop::formats::{Plan, Target};
use sparseop::tuning::decision::TIE_BAND;
use sparseop::tuning::record::Regret;
use statrs::statistics::{Data, OrderStatistics};

/// What the races of one matrix decide for, in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct Decisions {
    /// Each for itself.
    pub fresh: Vec<Plan>,
    /// Each after the one before; the first after what was remembered, if anything was.
    pub successive: Vec<Plan>,
}

/// A plan that races of a matrix have decided for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decided {
    /// The plan.
    pub plan: Plan,
    /// How many of the races.
    pub races: usize,
    /// Its time over that of the fastest plan: medians over the races of a product with its share of the preparation.
    pub excess: f64,
}

/// How the decisions of the races of one matrix agree; most races first.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeat {
    /// The matrix.
    pub matrix: String,
    /// Its numbers.
    pub scalar: ScalarKind,
    /// Whether it is one of those that profiles are judged by.
    pub judged: bool,
    /// By races that each begin with what the one before has decided.
    pub successive: Vec<Decided>,
    /// By races that each begin with the prediction.
    pub fresh: Vec<Decided>,
}

impl Repeat {
    /// How decisions of the races of one matrix, made for so many products, agree; none when there are no plans.
    pub fn of(races: &[Measured], decisions: &Decisions, calls: u64, device: &DeviceSpec) -> Option<Self> {
        let (first, on) = (races.first()?, Target::of(device));
        let cost = |run: &Run| run.product + run.prepare / calls.max(1) as f64;
        let time = |plan: &Plan| {
            let times = races.iter().filter_map(|race| race.runs.iter().find(|run| run.plan == *plan));
            Data::new(times.map(cost).collect::<Vec<_>>()).median()
        };
        let eligible = first.runs.iter().map(|run| &run.plan).filter(|plan| plan.is_eligible(on));
        let least = eligible.map(time).fold(f64::INFINITY, f64::min);
        let count = |plans: &[Plan]| {
            let mut decided: Vec<Decided> = Vec::new();
            for plan in plans {
                match decided.iter_mut().find(|known| known.plan == *plan) {
                    Some(known) => known.races += 1,
                    None => {
                        decided.push(Decided { plan: plan.clone(), races: 1, excess: time(plan) / least })
                    }
                }
            }
            decided.sort_by_key(|decided| std::cmp::Reverse(decided.races));
            decided
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

/// A matrix on which races do not agree.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Differing {
    /// The matrix.
    pub matrix: String,
    /// Its numbers.
    pub scalar: ScalarKind,
    /// What its races decide for.
    pub decisions: Vec<Decided>,
}

impl Differing {
    /// The time of the slowest plan that was decided for over that of the fastest plan.
    fn excess(&self) -> f64 {
        self.decisions.iter().map(|decided| decided.excess).fold(1.0, f64::max)
    }
}

/// How decisions of one kind agree on a collection of matrices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agreement {
    /// Matrices on which every race decided for the same plan.
    pub agreeing: usize,
    /// Of them, those that profiles are judged by.
    pub agreeing_judged: usize,
    /// Of the others, the largest time of a plan that was decided for, over that of the fastest; 1 where all agree.
    pub largest_excess: f64,
    /// Whether that lies within the tie band.
    pub within_tie_band: bool,
    /// The time of the plan that a race decided for over that of the fastest, over all races.
    pub regret: Regret,
    /// The matrices on which races do not agree, the largest excess first.
    pub differing: Vec<Differing>,
}

impl Agreement {
    fn of(repeats: &[Repeat], decisions: impl Fn(&Repeat) -> &Vec<Decided>) -> Self {
        let agrees = |repeat: &&Repeat| decisions(repeat).len() == 1;
        let differing = repeats.iter().filter(|repeat| !agrees(repeat)).map(|repeat| Differing {
            matrix: repeat.matrix.clone(),
            scalar: repeat.scalar,
            decisions: decisions(repeat).clone(),
        });
        let mut differing: Vec<Differing> = differing.collect();
        differing.sort_by(|a, b| b.excess().total_cmp(&a.excess()));
        let largest_excess = differing.first().map_or(1.0, Differing::excess);
        let all = repeats.iter().flat_map(&decisions);
        let regrets = all.flat_map(|decided| std::iter::repeat_n(decided.excess, decided.races));
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

/// How the decisions on a collection of matrices repeat.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Repeatability {
    /// Races of each matrix.
    pub races: usize,
    /// Matrices and precisions.
    pub matrices: usize,
    /// Of them, those that profiles are judged by.
    pub judged: usize,
    /// Of races that each begin with what the one before has decided.
    pub successive: Agreement,
    /// Of races that each begin with the prediction.
    pub fresh: Agreement,
}

impl Repeatability {
    /// Sums up the decisions on a collection, each of so many races.
    pub fn of(races: usize, repeats: &[Repeat]) -> Self {
        Self {
            races,
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
    use sparseop::formats::Traffic;
    use sparseop::tuning::facts::Facts;

    const PLANS: [&str; 3] = ["csr(scalar)", "ell", "coo"];

    fn plan(place: usize) -> Plan {
        PLANS[place].parse().unwrap()
    }

    /// A race of three plans, of which the second takes 1000 ns to prepare.
    fn race(times: [f64; 3], nnz: u64) -> Measured {
        let run = |(place, product): (usize, f64)| Run {
            plan: plan(place),
            traffic: Traffic::default(),
            product,
            prepare: [0.0, 1000.0, 0.0][place],
        };
        Measured {
            matrix: "a".to_owned(),
            class: "b".to_owned(),
            fingerprint: Default::default(),
            scalar: ScalarKind::F32,
            facts: Facts { nnz, ..Facts::default() },
            runs: times.into_iter().enumerate().map(run).collect(),
            failed: Vec::new(),
        }
    }

    fn repeat(times: &[[f64; 3]], fresh: &[usize], successive: &[usize], nnz: u64) -> Repeat {
        let races: Vec<Measured> = times.iter().map(|&times| race(times, nnz)).collect();
        let plans = |places: &[usize]| places.iter().map(|&place| plan(place)).collect();
        let decisions = Decisions { fresh: plans(fresh), successive: plans(successive) };
        Repeat::of(&races, &decisions, 100, &Device::Cpu.spec()).unwrap()
    }

    #[test]
    fn decisions_are_counted_with_what_they_cost_preparation_included() {
        let times = [[101.0, 90.0, 200.0], [104.0, 90.0, 200.0], [101.0, 90.0, 200.0]];
        let found = repeat(&times, &[1, 0, 0], &[1, 1, 1], 10);
        let decided = |place, races, excess| Decided { plan: plan(place), races, excess };
        assert_eq!(found.fresh, [decided(0, 2, 1.01), decided(1, 1, 1.0)]);
        assert_eq!(found.successive, [decided(1, 3, 1.0)]);
        assert!(!found.judged, "a matrix of ten entries");
    }

    #[test]
    fn both_ways_are_summed_up_side_by_side() {
        let one = repeat(&[[100.0, 140.0, 200.0]; 3], &[0, 1, 0], &[0, 0, 0], 200_000);
        let other = repeat(&[[101.0, 90.0, 200.0]; 3], &[0, 1, 0], &[0, 1, 1], 10);
        let same = repeat(&[[100.0, 140.0, 200.0]; 3], &[0; 3], &[0; 3], 10);
        let all = Repeatability::of(3, &[one.clone(), other, same.clone()]);
        assert_eq!((all.races, all.matrices, all.judged), (3, 3, 1));
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
        assert_eq!((all.matrices, all.fresh.agreeing, all.successive.within_tie_band), (0, 0, true));
    }
}
