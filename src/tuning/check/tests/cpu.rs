//! Checks on a scripted CPU.

use super::*;

#[test]
fn large_matrices_are_packed_one_at_a_time_on_a_cpu() {
    for (spec, is_large) in [("banded,rows=50k", false), ("banded,rows=300k", true)] {
        let factors = vec![("csr", 1.0), ("", 3.0)];
        let script = Script { on_cpu: true, factors, ..Script::default() };
        assert_eq!(checked(&script, spec, 1000).unwrap().plan.format(), FormatKind::Csr);
        let packed = script.packed.into_inner();
        assert!(packed.len() > 1 && packed[0].starts_with("csr"), "{packed:?}");
        assert_eq!(packed[packed.len() - 1].starts_with("csr"), is_large, "{packed:?}");
    }
}

#[test]
fn a_plan_whose_time_still_falls_is_timed_further_on_a_cpu() {
    // Faster than any other, after five products.
    let factors = vec![("csr(scalar)", 0.3)];
    let of = |learning| {
        let script =
            Script { on_cpu: true, factors: factors.clone(), learning, ..Script::default() };
        let decision = checked(&script, "circuit,rows=40k", 1000).unwrap();
        let Basis::Checked { timing_run, products, limit } = &decision.basis else { panic!() };
        assert!(products <= limit, "{products} of {limit}");
        let plan = "csr(scalar)".parse().unwrap();
        (decision.plan.to_string(), timing_run.timed_plan(&plan).unwrap().rounds)
    };
    assert_eq!(of(None), ("csr(scalar)".to_owned(), 2));
    let (plan, batches) = of(Some(("csr(scalar)", 5)));
    assert_eq!((plan.as_str(), batches), ("csr(scalar)", 4));
}

#[test]
fn falling_times_of_csr_leave_products_for_a_packed_plan() {
    // Three kernels of CSR are about equally fast, and the time of each falls, with the fewest
    // products for a check.
    let factors = vec![("csr(scalar)", 0.5), ("csr(balanced)", 0.35)];
    let script = Script { on_cpu: true, factors, learning: Some(("csr", 2)), ..Script::default() };
    let decision = checked(&script, "banded,rows=20k", 120).unwrap();
    let Basis::Checked { timing_run, products, limit } = &decision.basis else { panic!() };
    let packed = timing_run.timed_plans.iter().filter(|p| p.plan.format() != FormatKind::Csr);
    let is_packed = packed.filter(|plan| plan.product.is_some()).count() > 0;
    assert!(is_packed || products + MIN_PRODUCTS <= *limit, "{products}: {timing_run:?}");
    assert!(products <= limit && *limit == 12, "{products} of {limit}");
}

/// While a plan is packed, the caller's matrix is in memory, too.
#[test]
fn on_a_cpu_no_plan_takes_much_more_memory_than_plain_csr() {
    let profile = include_str!("../../../../models/cpu.ron");
    let (mut decision, _, spec) = decision_by(profile, "stencil27,n=60", 1000);
    let of = |decision: &Decision, text: &str| {
        let plan: Plan = text.parse().unwrap();
        decision.candidates.iter().position(|c| c.plan == plan).unwrap()
    };
    let (csr, coo) = (of(&decision, "csr"), of(&decision, "coo"));
    let bytes = [csr, coo].map(|place| decision.candidates[place].work.matrix_bytes as f64);
    assert!(bytes[1] > MAX_BYTES_ON_CPU * bytes[0] && bytes[1] > HELD_ON_CPU as f64);
    decision.candidates[coo].prediction.as_mut().unwrap().correction = 0.01;
    let script = Script { on_cpu: true, ..Script::default() };
    script.predict(&decision);
    let run = Check::new(&&script, &&script, &decision, &spec, LIMITS).run().unwrap().timing_run;
    let timed = run.timed_plans.iter().find(|p| p.plan == decision.candidates[coo].plan).unwrap();
    assert!(matches!(timed.outcome, TimingOutcome::NoRoom { .. }), "{timed:?}");
}

#[test]
fn a_plan_that_other_work_slows_down_is_timed_again() {
    let factors = vec![("psell", 0.5), ("csr", 1.0), ("", 9.0)];
    let packing = vec![("psell", 1.0)];
    let script = |busy| {
        let (factors, packing) = (factors.clone(), packing.clone());
        Script { on_cpu: true, factors, packing, busy, ..Script::default() }
    };
    let calls = 10_000_000;
    let idle = checked(&script([0.0; 2]), STENCIL, calls).unwrap();
    assert_eq!(idle.plan.format(), FormatKind::Psell, "{}", idle.plan);
    // From the packing of the first packed plan on.
    let busy = checked(&script([1.0, f64::INFINITY]), STENCIL, calls).unwrap();
    assert_eq!(busy.plan.format(), FormatKind::Psell, "{}", busy.plan);
    let run = busy.timing_run().unwrap();
    let won = run.timed_plans.iter().find(|plan| plan.outcome == TimingOutcome::Won).unwrap();
    let predicted = busy.chosen().unwrap().prediction.unwrap().product() * 1e-9;
    let ratio = won.product.unwrap() / predicted;
    assert!((ratio - 0.5).abs() < 1e-9, "{ratio}");
}

#[test]
fn other_work_makes_no_choice_worse_than_plain_csr() {
    for seed in 0..60u64 {
        let factors = random_factors(seed);
        // Other work begins while the first plan besides CSR is packed.
        let packing = vec![("csr", 0.0), ("", 1.0)];
        let busy = [1.0, if seed % 2 == 0 { f64::INFINITY } else { 2.5 }];
        let script = Script { on_cpu: true, factors, packing, busy, ..Script::default() };
        let spec = [STENCIL, BLOCKS, "uniform,rows=30k"][seed as usize % 3];
        let after = checked(&script, spec, 10_000_000).unwrap();
        let run = after.timing_run().unwrap();
        let csr = run.timed_plans.iter().filter(|p| p.plan.format() == FormatKind::Csr);
        let best = csr.map(|p| script.product(&p.plan)).fold(f64::INFINITY, f64::min);
        let chosen = script.product(&after.plan);
        assert!(chosen <= best * (1.0 + TIE_BAND + 1e-9), "{seed}: {chosen} {best}");
    }
}

#[test]
fn a_check_on_a_cpu_packs_fewer_plans_where_that_takes_long() {
    let check = |seconds: f64| {
        let packing = vec![("csr", 0.0), ("", seconds)];
        let script = Script { on_cpu: true, packing, ..Script::default() };
        let decision = checked(&script, "webbase,rows=20k", 1000).unwrap();
        let Basis::Checked { limit, .. } = &decision.basis else { panic!() };
        let limit = *limit as f64 * script.product(&decision.plan);
        (script.packed.into_inner().len(), limit)
    };
    let (several, limit) = check(0.0);
    // The time of the first plan corrects the predicted times of the others.
    let (few, _) = check(limit);
    assert!(several > 3 && few == 2, "{several} {few}");
}
