//! Costs and bounds of plans on a GPU.

use super::*;

#[test]
fn packing_on_a_gpu_takes_a_minimum_whatever_is_predicted() {
    let (mut decision, _, spec) = decision(STENCIL, 1000);
    let predictions = decision.candidates.iter_mut().filter_map(|c| c.prediction.as_mut());
    predictions.for_each(|prediction| prediction.prepare = 1e6);
    let (script, limits) =
        (Script::default(), Budget { products: 50, calls: 1000, memory: u64::MAX });
    let (timer, clock) = (&script, &script);
    let check = Check::new(&timer, &clock, &decision, &spec, limits);
    for (place, candidate) in check.candidates.iter().enumerate() {
        let least = 350e-6 + candidate.work.matrix_bytes as f64 / 400e9;
        match candidate.plan.properties().packs_on_device {
            true => assert!(check.preparation(place) >= least, "{}", candidate.plan),
            false => assert_eq!(check.preparation(place), 1e-3, "{}", candidate.plan),
        }
    }
}

#[test]
fn a_plan_whose_bytes_take_longer_than_the_fastest_one_is_not_packed() {
    let (mut decision, _, spec) = decision(STENCIL, 100_000);
    let gains = |decision: &Decision| {
        let (script, limits) =
            (Script::default(), Budget { products: 50, calls: 100_000, memory: u64::MAX });
        let (timer, clock) = (&script, &script);
        let check = Check::new(&timer, &clock, decision, &spec, limits);
        let best = check.predicted(0);
        (1..check.candidates.len()).map(|place| check.gain_and_cost(place, best).0).sum::<f64>()
    };
    let before = gains(&decision);
    let predictions = |decision: &mut Decision, share: f64| {
        let best = decision.chosen().unwrap().prediction.unwrap().product();
        let all = decision.candidates.iter_mut().filter_map(|c| c.prediction.as_mut());
        all.for_each(|prediction| prediction.least = share * best);
    };
    predictions(&mut decision, 0.9);
    let bounded = gains(&decision);
    predictions(&mut decision, 1.0);
    assert_eq!(gains(&decision), 0.0);
    assert!(0.0 < bounded && bounded < before, "{bounded} {before}");
}

#[test]
fn kernels_of_csr_that_are_predicted_to_be_slow_are_not_timed() {
    let timed = |factor| {
        let (mut decision, _, spec) = decision(BLOCKS, 1000);
        let second = decision.candidates.iter_mut().filter(|c| {
            c.plan.format() == FormatKind::Csr && c.plan != Plan::Csr(csr::CsrPlan::Balanced)
        });
        // The first one is as fast as predicted; the others are known to be slower.
        for candidate in second.skip(1) {
            let prediction = candidate.prediction.as_mut().unwrap();
            (prediction.correction, prediction.spread) =
                (prediction.correction * factor, Some(0.01));
        }
        let script = Script::default();
        let times =
            decision.candidates.iter().filter_map(|c| Some((c.plan.clone(), c.prediction?)));
        *script.predicted.borrow_mut() =
            times.map(|(plan, p)| (plan, p.product() * 1e-9)).collect();
        let limits = Budget { products: 50, calls: 1000, memory: u64::MAX };
        let run = Check::new(&&script, &&script, &decision, &spec, limits).run().unwrap();
        let plans = run.timing_run.timed_plans.iter();
        plans.filter(|timed| timed.plan.format() == FormatKind::Csr).count()
    };
    assert!(timed(9.0) < timed(1.0));
}
