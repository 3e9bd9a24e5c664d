//! Tests of confidence intervals and of the repeatability of verdicts.

use super::*;

fn ratio(a: &[f64], b: &[f64]) -> Ratio {
    Ratio::of((a, 0.0), (b, 0.0)).unwrap()
}

#[test]
fn an_interval_is_that_of_students_distribution() {
    // Logarithms 0.18, 0.19, 0.20, 0.21, 0.22: mean 0.2, standard error 0.015811 / √5, and
    // 15.5441 for 4 degrees of freedom.
    let a: Vec<f64> = [0.18f64, 0.19, 0.20, 0.21, 0.22].map(f64::exp).to_vec();
    let found = ratio(&a, &[1.0; 5]);
    let half = 15.5441 * 0.015_811_39 / 5f64.sqrt();
    let (low, high) = found.interval(ELIMINATE_CONFIDENCE);
    assert!((found.mean - 0.2).abs() < 1e-12);
    assert!((low - (0.2 - half)).abs() < 1e-4 && (high - (0.2 + half)).abs() < 1e-4, "{found:?}");
    assert!(found.is_slower() && !found.is_faster(BAND, ELIMINATE_CONFIDENCE) && !found.is_tie());
}

#[test]
fn too_few_rounds_and_zero_times_decide_nothing() {
    assert_eq!(Ratio::of((&[1.0; 4], 0.0), (&[9.0; 9], 0.0)), None);
    assert_eq!(Ratio::of((&[0.0; 9], 0.0), (&[9.0; 9], 0.0)), None);
    assert_eq!(Ratio::of((&[0.0; 9], 0.0), (&[0.0; 9], 0.0)), None);
}

#[test]
fn drift_that_hits_both_does_not_widen_the_interval() {
    let a: Vec<f64> = (0..10).map(|round| 1.05 * 1.3f64.powi(round)).collect();
    let b: Vec<f64> = (0..10).map(|round| 1.3f64.powi(round)).collect();
    assert!(ratio(&a, &b).is_slower() && ratio(&b, &a).is_faster(BAND, ELIMINATE_CONFIDENCE));
}

#[test]
fn an_outlier_weighs_no_more_than_an_ordinary_round() {
    let noisy = |slow: f64| [1.03, 1.031, 1.029, 1.0302, 1.0298, 1.03, 1.0301, slow];
    let clean = ratio(&noisy(1.031), &[1.0; 8]);
    let hit = ratio(&noisy(80.0), &[1.0; 8]);
    let high = |ratio: &Ratio| ratio.interval(ELIMINATE_CONFIDENCE).1;
    assert!(hit.is_slower() && (high(&hit) - high(&clean)).abs() < 0.01, "{hit:?} {clean:?}");
}

#[test]
fn equal_times_are_ties_and_preparation_counts() {
    assert!(ratio(&[1.0; 5], &[1.0; 5]).is_tie());
    assert!(ratio(&[1.004; 5], &[1.0; 5]).is_tie());
    assert!(Ratio::of((&[1.0; 5], 0.2), (&[1.0; 5], 0.0)).unwrap().is_slower());
}

fn results(times: &[&[f64]]) -> Vec<Result<Samples, Error>> {
    times.iter().map(|times| Ok(Samples::from(times.to_vec()))).collect()
}

#[test]
fn the_baseline_is_replaced_beyond_its_band() {
    let wins = |times: [f64; 3], baseline| {
        let results = results(&[&[times[0]; 9], &[times[1]; 9], &[times[2]; 9]]);
        Judge::new(vec![0.0; 3]).winner(&results, baseline, |i| [0.0, 2.0, 1.0][i])
    };
    let (predicted, stored) = (TimingBaseline::Predicted(0), TimingBaseline::Stored(0));
    assert_eq!(wins([1.008, 1.0, 1.2], predicted), Some(0));
    assert_eq!(wins([1.02, 1.0, 1.2], predicted), Some(1));
    assert_eq!(wins([1.02, 1.0, 1.2], stored), Some(0));
    assert_eq!(wins([1.05, 1.0, 1.2], stored), Some(1));
    assert_eq!(
        wins([1.05, 1.0, 1.005], predicted),
        Some(2),
        "of equal ones the first as predicted"
    );
    assert_eq!(wins([1.05, 1.0, 1.03], predicted), Some(1));
    assert_eq!(
        wins([1.03, 1.0, 1.2], TimingBaseline::Stored(7)),
        Some(1),
        "one that failed stands for nothing"
    );
}

#[test]
fn only_candidates_near_the_fastest_are_equal() {
    // Each is near the next. The third is not near the fastest, but the second does not beat it,
    // and nothing beats the second.
    let times = [1.05, 1.0, 1.008, 1.012, 1.0185];
    let results: Vec<_> = times.iter().map(|time| Ok(Samples::from(vec![*time; 9]))).collect();
    let wins = |order: [f64; 5]| {
        Judge::new(vec![0.0; 5]).winner(&results, TimingBaseline::Predicted(0), |i| order[i])
    };
    assert_eq!(wins([0.0, 4.0, 3.0, 1.0, 2.0]), Some(2));
    assert_eq!(wins([0.0, 3.0, 4.0, 1.0, 2.0]), Some(1));
}

#[test]
fn an_eliminated_candidate_may_win() {
    // The second is the fastest for five rounds and is afterwards no faster than the baseline; the
    // third was eliminated by it.
    let second: Vec<f64> =
        (0..20).map(|round| if round < 5 { 0.8 } else { 0.8 + 0.05 * f64::from(round) }).collect();
    let results = results(&[&[1.0; 20], &second, &[0.85; 5]]);
    let mut judge = Judge::new(vec![0.0; 3]);
    judge.out[2] = true;
    assert_eq!(judge.winner(&results, TimingBaseline::Predicted(0), |i| i as f64), Some(2));
}

#[test]
fn beating_a_plan_that_beats_the_baseline_wins() {
    // The baseline was eliminated after five rounds, in which the times of the third varied; in the
    // other rounds the third is by far the fastest.
    let mut third = [0.7; 40];
    third[..5].copy_from_slice(&[0.5, 1.6, 0.7, 1.5, 0.9]);
    let results = results(&[&[1.0; 5], &[0.9; 40], &third]);
    let mut judge = Judge::new(vec![0.0; 3]);
    judge.out[0] = true;
    assert!(!judge.ratio(&results, 2, 0).unwrap().is_faster(BAND, ACCEPT_CONFIDENCE));
    assert_eq!(judge.winner(&results, TimingBaseline::Predicted(0), |i| i as f64), Some(2));
}

/// SplitMix64, and normal numbers from pairs of its numbers.
struct NoiseSource(u64);

impl NoiseSource {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A normal number of mean 0 and standard deviation `sigma` (Box & Muller).
    fn normal(&mut self, sigma: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        sigma * radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Log-normal noise of a round, with occasional interrupts.
    fn noise(&mut self, sigma: f64) -> f64 {
        let interrupt = if self.uniform() < 0.03 { 1.0 + self.uniform() } else { 1.0 };
        self.normal(sigma).exp() * interrupt
    }
}

/// Winners of ten timing runs of a matrix, fresh and successive, as true times over the least.
///
/// Eight plans within about ten per cent, predicted with errors of 12 %. Rounds vary by `sigma`. In
/// every timing run each plan varies by another half of that, which the rounds of one run cannot
/// show.
fn ten_races(dice: &mut NoiseSource, sigma: f64) -> [Vec<f64>; 2] {
    const PLANS: usize = 8;
    let times: Vec<f64> = (0..PLANS).map(|_| 1.0 + 0.1 * dice.uniform()).collect();
    let predictions: Vec<f64> = times.iter().map(|time| time * dice.normal(0.12).exp()).collect();
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    let predicted = (0..PLANS).min_by(|&a, &b| predictions[a].total_cmp(&predictions[b])).unwrap();
    let (mut fresh, mut successive, mut stored) = (Vec::new(), Vec::new(), None);
    for _ in 0..10 {
        let rounds: Vec<Vec<f64>> = times
            .iter()
            .map(|time| {
                let time = time * dice.normal(sigma / 2.0).exp();
                (0..20).map(|_| time * dice.noise(sigma)).collect()
            })
            .collect();
        let results = results(&rounds.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let decide = |baseline| {
            let judge = Judge::new(vec![0.0; PLANS]);
            judge.winner(&results, baseline, |i| predictions[i]).unwrap()
        };
        let standing = stored.map_or(TimingBaseline::Predicted(predicted), TimingBaseline::Stored);
        fresh.push(times[decide(TimingBaseline::Predicted(predicted))] / least);
        stored = Some(decide(standing));
        successive.push(times[decide(standing)] / least);
    }
    [fresh, successive]
}

#[test]
fn successive_timing_runs_agree_despite_noise() {
    for (sigma, fresh_agree) in [(0.003, 30), (0.006, 15), (0.01, 5)] {
        let mut dice = NoiseSource(1);
        let all: Vec<[Vec<f64>; 2]> = (0..60).map(|_| ten_races(&mut dice, sigma)).collect();
        let agree =
            |way: usize| all.iter().filter(|m| m[way].iter().all(|t| *t == m[way][0])).count();
        let mean = |way: usize| {
            let logs: Vec<f64> = all.iter().flat_map(|m| &m[way]).map(|time| time.ln()).collect();
            logs.iter().mean().exp()
        };
        let said =
            format!("{sigma}: {} and {} of 60, {} and {}", agree(0), agree(1), mean(0), mean(1));
        assert!(agree(1) >= 57 && agree(0) >= fresh_agree && agree(0) < agree(1), "{said}");
        assert!(mean(0) < 1.01 && mean(1) < 1.01, "{said}");
    }
}

#[test]
fn an_eliminated_plan_with_better_rounds_is_not_called_slower() {
    let results = results(&[&[0.2; 6], &[1.0; 9]]);
    let judge = Judge { out: vec![true, false], ..Judge::new(vec![0.0; 2]) };
    let outcome = judge.outcome(&results, 0, 1);
    assert!(matches!(outcome, TimingOutcome::Tied { .. }), "{outcome:?}");
    assert_eq!(outcome.to_string(), "measured 0.20 times as long, not significant");
    let slower = judge.outcome(&self::results(&[&[5.0; 6], &[1.0; 9]]), 0, 1);
    assert_eq!(slower.to_string(), "measured 5.00 times as long, eliminated early");
}
