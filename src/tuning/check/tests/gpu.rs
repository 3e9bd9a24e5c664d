//! Costs and bounds of plans on a GPU.

use super::*;

#[test]
fn packing_on_a_gpu_takes_a_minimum_whatever_is_predicted() {
    let (mut decision, _, spec) = decision(STENCIL, 1000);
    let predictions = decision.candidates.iter_mut().filter_map(|c| c.prediction.as_mut());
    predictions.for_each(|prediction| prediction.prepare = 1.0);
    let script = Script::default();
    let (timer, clock) = (&script, &script);
    let mut check = Check::new(&timer, &clock, &decision, &spec, LIMITS);
    for (place, candidate) in check.candidates.iter().enumerate() {
        let least = 350e-6 + candidate.work.matrix_bytes as f64 / 400e9;
        match candidate.plan.properties().packs_on_device {
            true => assert_eq!(check.preparation(place), least, "{}", candidate.plan),
            false => assert_eq!(check.preparation(place), 1e-9, "{}", candidate.plan),
        }
    }
    // The host packs a small matrix.
    check.budget.is_large = false;
    assert!((0..check.candidates.len()).all(|place| check.preparation(place) == 1e-9));
}

#[test]
fn a_plan_whose_bytes_take_longer_than_the_fastest_one_gains_nothing() {
    let (mut decision, _, spec) = decision(STENCIL, 100_000);
    let gains = |decision: &Decision| {
        let (script, limits) = (Script::default(), Budget { calls: 100_000, ..LIMITS });
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
    // A plan that is faster than its own bound shows that the memory is faster.
    let script = Script::default();
    let (timer, clock) = (&script, &script);
    let mut check = Check::new(&timer, &clock, &decision, &spec, LIMITS);
    let before = check.least(1);
    let samples = Samples::from(vec![check.least(0) * 0.5]);
    check.timings[0] = PlanTiming::Measured { prepare: 0.0, samples };
    assert_eq!(check.least(1), before * 0.5);
}

#[test]
fn a_packed_plan_that_is_likely_to_be_faster_leaves_no_gain_to_kernels_of_csr() {
    // Another kernel of CSR may be as fast as the measured one; a packed plan takes half as long.
    let next = |prepare: f64| {
        let (mut decision, _, spec) = decision(BLOCKS, 1000);
        let least = decision.chosen().unwrap().prediction.unwrap().product();
        for candidate in decision.candidates.iter_mut() {
            let is_csr = candidate.plan.format() == FormatKind::Csr;
            let Some(prediction) = candidate.prediction.as_mut() else { continue };
            let times = if is_csr { 1.0 } else { 0.5 };
            prediction.correction *= times * least / prediction.product();
            (prediction.spread, prediction.prepare) = (Some(0.1), prepare);
        }
        let script = Script::default();
        let limits = Budget { is_large: false, ..LIMITS };
        let (timer, clock) = (&script, &script);
        let mut check = Check::new(&timer, &clock, &decision, &spec, limits);
        let first = (0..check.candidates.len()).find(|&place| check.is_csr(place)).unwrap();
        let seconds = check.predicted(first);
        let samples = Samples::from(vec![seconds]);
        check.timings[first] = PlanTiming::Measured { prepare: 0.0, samples };
        check.further_csr(seconds)
    };
    assert_eq!(next(0.0), None);
    assert!(next(1e12).is_some(), "no packed plan pays");
}

#[test]
fn kernels_of_csr_that_are_predicted_to_be_slow_are_not_timed() {
    let balanced = Plan::Csr(csr::CsrPlan::Balanced);
    // The predicted plan is one of CSR. The next kernel by prediction is slower by a factor, all
    // others and `csr(balanced)`, which is always timed, by more. A kernel that is predicted to be
    // about as fast may be the fastest.
    let next_is_timed = |factor: f64| {
        let (mut decision, _, spec) = decision(BLOCKS, 1000);
        assert_eq!(decision.plan.format(), FormatKind::Csr);
        let least = decision.chosen().unwrap().prediction.unwrap().product();
        let mut next = None;
        for candidate in decision.candidates.iter_mut().filter(|c| may_be_chosen(c)) {
            let is_next = next.is_none()
                && candidate.plan.format() == FormatKind::Csr
                && candidate.plan != balanced;
            next = next.or(is_next.then(|| candidate.plan.clone()));
            let slower = if is_next { factor } else { 90.0 };
            let prediction = candidate.prediction.as_mut().unwrap();
            prediction.correction *= slower * least / prediction.product();
            prediction.spread = Some(0.01);
        }
        let script = Script::default();
        script.predict(&decision);
        let run = Check::new(&&script, &&script, &decision, &spec, LIMITS).run().unwrap();
        run.timing_run.timed_plan(&next.unwrap()).is_some_and(|timed| timed.product.is_some())
    };
    assert!(next_is_timed(1.02) && !next_is_timed(1.5) && !next_is_timed(9.0));
}
