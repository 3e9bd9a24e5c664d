//! How well measured decisions repeat: races of the same packed matrices, one after the other, and what each of them decides.

use super::offline::Measured;
use super::record::Regret;
use super::select::TIE_BAND;
use crate::ScalarKind;
use crate::device::DeviceSpec;
use crate::formats::{Plan, Target};
use serde::Serialize;
use statrs::statistics::{Data, OrderStatistics};

/// How the decisions of the races of one matrix agree. Times are medians over the races.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Repeat {
    /// The matrix.
    pub matrix: String,
    /// Its numbers.
    pub scalar: ScalarKind,
    /// The plans that were decided for, each with the number of races, most first, and its time over that of the fastest plan.
    pub decisions: Vec<(Plan, usize, f64)>,
}

impl Repeat {
    /// What races of one matrix decide for; none when there are no plans. Decided as by predictions: of the products that take the least
    /// time within [`TIE_BAND`] that of the fewest bytes, and of those the first.
    pub fn of(races: &[Measured], device: &DeviceSpec) -> Option<Self> {
        let (first, on) = (races.first()?, Target::of(device));
        let time = |plan: &Plan| {
            let times = races.iter().filter_map(|race| race.runs.iter().find(|run| run.plan == *plan));
            Data::new(times.map(|run| run.product).collect::<Vec<_>>()).median()
        };
        let eligible = first.runs.iter().map(|run| &run.plan).filter(|plan| plan.is_eligible(on));
        let least = eligible.map(time).fold(f64::INFINITY, f64::min);
        let mut decisions: Vec<(Plan, usize, f64)> = Vec::new();
        for race in races {
            let plan = &race.decided(on, |run| run.product)?.plan;
            match decisions.iter_mut().find(|(known, ..)| known == plan) {
                Some((_, times, _)) => *times += 1,
                None => decisions.push((plan.clone(), 1, time(plan) / least)),
            }
        }
        decisions.sort_by_key(|&(_, times, _)| std::cmp::Reverse(times));
        Some(Self { matrix: first.matrix.clone(), scalar: first.scalar, decisions })
    }

    /// Whether every race decided for the same plan.
    pub fn agrees(&self) -> bool {
        self.decisions.len() == 1
    }

    /// The time of the slowest plan that was decided for over that of the fastest plan.
    pub fn excess(&self) -> f64 {
        self.decisions.iter().map(|decision| decision.2).fold(1.0, f64::max)
    }
}

/// How the decisions on a collection of matrices repeat.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Repeatability {
    /// Races of each matrix.
    pub races: usize,
    /// Matrices and precisions.
    pub matrices: usize,
    /// Those on which every race decided for the same plan.
    pub agreeing: usize,
    /// Of the others, the largest time of a plan that was decided for, over that of the fastest; 1 where all agree.
    pub largest_excess: f64,
    /// Whether that lies within the tie band.
    pub within_tie_band: bool,
    /// The time of the plan that a race decided for over that of the fastest, over all races.
    pub regret: Regret,
    /// Those that do not agree, the largest excess first.
    pub differing: Vec<Repeat>,
}

impl Repeatability {
    /// Sums up the decisions on a collection, each of so many races.
    pub fn of(races: usize, repeats: &[Repeat]) -> Self {
        let mut differing: Vec<Repeat> = repeats.iter().filter(|r| !r.agrees()).cloned().collect();
        differing.sort_by(|a, b| b.excess().total_cmp(&a.excess()));
        let largest_excess = differing.first().map_or(1.0, Repeat::excess);
        let decisions = repeats.iter().flat_map(|repeat| &repeat.decisions);
        let regrets = decisions.flat_map(|&(_, times, regret)| std::iter::repeat_n(regret, times));
        Self {
            races,
            matrices: repeats.len(),
            agreeing: repeats.len() - differing.len(),
            largest_excess,
            within_tie_band: largest_excess <= 1.0 + TIE_BAND,
            regret: Regret::of(&regrets.collect::<Vec<_>>()),
            differing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::formats::Traffic;
    use crate::tuning::facts::Facts;
    use crate::tuning::offline::Run;

    /// A race of three plans, of which the second takes more bytes than the others.
    fn race(times: [f64; 3]) -> Measured {
        let plans = [("csr(scalar)", 100), ("ell", 200), ("coo", 100)];
        let run = |((plan, matrix_bytes), product): ((&str, u64), f64)| Run {
            plan: plan.parse().unwrap(),
            traffic: Traffic { matrix_bytes, ..Traffic::default() },
            product,
            prepare: 0.0,
        };
        Measured {
            matrix: "a".to_owned(),
            class: "b".to_owned(),
            fingerprint: Default::default(),
            scalar: ScalarKind::F32,
            facts: Facts::default(),
            runs: plans.into_iter().zip(times).map(run).collect(),
            failed: Vec::new(),
        }
    }

    fn repeat(races: &[[f64; 3]]) -> Repeat {
        let races: Vec<Measured> = races.iter().map(|&times| race(times)).collect();
        Repeat::of(&races, &Device::Cpu.spec()).unwrap()
    }

    #[test]
    fn what_lies_in_the_tie_band_is_decided_by_bytes_and_then_by_order() {
        let same = repeat(&[[101.0, 100.0, 100.5], [100.0, 100.0, 99.0], [101.5, 100.0, 100.0]]);
        assert!(same.agrees() && same.excess() == 1.01, "{same:?}");
        assert_eq!(same.decisions, [("csr(scalar)".parse().unwrap(), 3, 1.01)]);
    }

    #[test]
    fn decisions_that_differ_are_told_with_what_they_cost() {
        // The first is out of the band once in three.
        let two = repeat(&[[101.0, 100.0, 200.0], [104.0, 100.0, 200.0], [101.0, 100.0, 200.0]]);
        assert_eq!(
            two.decisions,
            [("csr(scalar)".parse().unwrap(), 2, 1.01), ("ell".parse().unwrap(), 1, 1.0)]
        );
        let wide = repeat(&[[100.0, 150.0, 200.0], [300.0, 150.0, 200.0], [100.0, 150.0, 200.0]]);
        assert_eq!((wide.agrees(), wide.excess()), (false, 1.5));
        let same = repeat(&[[100.0, 150.0, 200.0]; 3]);
        let all = Repeatability::of(3, &[two.clone(), wide.clone(), same.clone()]);
        assert_eq!((all.matrices, all.agreeing, all.largest_excess), (3, 1, 1.5));
        assert_eq!((all.within_tie_band, &all.differing[..]), (false, &[wide, two.clone()][..]));
        assert_eq!((all.regret.matrices, all.regret.worst), (9, 1.5));
        let near = Repeatability::of(3, &[two, same.clone()]);
        assert!(near.within_tie_band && near.largest_excess == 1.01);
        let none = Repeatability::of(3, &[same]);
        assert_eq!((none.agreeing, none.largest_excess, none.within_tie_band), (1, 1.0, true));
    }

    #[test]
    fn nothing_decides_for_nothing() {
        assert_eq!(Repeat::of(&[], &Device::Cpu.spec()), None);
        let all = Repeatability::of(5, &[]);
        assert_eq!((all.matrices, all.agreeing, all.within_tie_band), (0, 0, true));
    }
}
