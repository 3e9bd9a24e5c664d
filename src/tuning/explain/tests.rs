use super::*;
use crate::SparseOp;
use crate::matrix::gallery;
use crate::tuning::correction::Feature;

#[test]
fn an_explanation_names_plan_profile_and_every_candidate() {
    let a = "femrandom,nodes=2k".parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
    let op = SparseOp::auto(&a).unwrap();
    let text = op.explain().to_string();
    assert!(text.contains(&format!("plan     {}, chosen for 1000 products", op.plan())), "{text}");
    assert!(text.contains("profile  ") && text.contains(" chosen\n"), "{text}");
    for candidate in &op.decision().candidates {
        assert!(text.contains(&candidate.plan.to_string()), "{text}");
    }
}

#[test]
fn break_even_is_the_preparation_over_the_gain() {
    let a = "webbase,rows=20k".parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
    let fixed = crate::Tuning::Fixed("sell(c:32,sigma:4096)".parse().unwrap());
    let builder = crate::SparseOpBuilder::new().device(crate::Device::Cpu);
    let op = builder.clone().tuning(crate::Tuning::Predict).build(&a).unwrap();
    let mut decision = op.decision().clone();
    // Independent of the profile of this machine.
    for candidate in &mut decision.candidates {
        if let Some(prediction) = &mut candidate.prediction
            && candidate.plan.format() == FormatKind::Csr
        {
            prediction.correction *= 100.0;
        }
    }
    let preparation =
        Preparation { analyze: 1.0, select: 0.25, check: 2.0, pack: 0.5, upload: 0.25 };
    fn explain<'a>(
        op: &'a SparseOp<f32>,
        decision: &'a Decision,
        p: &'a Preparation,
    ) -> Explanation<'a> {
        let auxiliary = AuxiliaryPackings::default();
        Explanation { rows: op.stats(), decision, preparation: Some(p), residency: None, auxiliary }
    }
    let sell = builder.tuning(fixed).build(&a).unwrap();
    assert_eq!(sell.explain().break_even(), None, "nothing to compare with");
    let plan = sell.plan().clone();
    let predicted =
        |plan: &Plan| decision.candidates.iter().find(|c| c.plan == *plan).unwrap().prediction;
    let chosen = predicted(&plan).unwrap();
    let csr = decision.candidates.iter().filter(|c| c.plan.format() == FormatKind::Csr);
    let csr = csr
        .filter_map(|c| c.prediction)
        .min_by(|a, b| a.product().total_cmp(&b.product()))
        .unwrap();
    let gain = csr.product() - chosen.product();
    assert!(gain > 0.0);
    decision.plan = plan;
    let near = |found: Option<f64>, expected: f64| (found.unwrap() / expected - 1.0).abs() < 1e-9;
    assert!(near(
        explain(&op, &decision, &preparation).break_even(),
        (chosen.prepare - csr.prepare).max(0.0) / gain
    ));
    assert!(near(
        explain(&op, &decision, &preparation).measured_break_even(),
        (4e9 - csr.prepare) / gain
    ));
    let text = explain(&op, &decision, &preparation).to_string();
    assert!(text.contains("2.00 s to time") && text.contains(": amortised after"), "{text}");
    decision.plan = "csr(scalar)".parse().unwrap();
    assert_eq!(explain(&op, &decision, &preparation).measured_break_even(), None);
}

#[test]
fn predictions_are_explained_with_their_uncertainty() {
    let a = "webbase,rows=20k".parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
    let builder = crate::SparseOpBuilder::new().device(crate::Device::Cpu);
    let op = builder.tuning(crate::Tuning::Predict).build(&a).unwrap();
    let mut decision = op.decision().clone();
    let text = |decision: &Decision| {
        let auxiliary = AuxiliaryPackings::default();
        let (preparation, residency) = (None, None);
        Explanation { rows: op.stats(), decision, preparation, residency, auxiliary }.to_string()
    };
    for candidate in &mut decision.candidates {
        let prediction = candidate.prediction.as_mut().unwrap();
        (prediction.spread, prediction.outside) = (None, None);
    }
    assert!(!text(&decision).contains('±'), "{}", text(&decision));
    let chosen = decision.candidates.iter_mut().find(|c| c.plan == decision.plan).unwrap();
    let prediction = chosen.prediction.as_mut().unwrap();
    (prediction.spread, prediction.outside) = (Some(0.1), Some(Feature::Empty));
    let certain = prediction.expected();
    let time = duration(prediction.product() * 1e-9);
    assert!(Prediction { spread: Some(0.5), ..*prediction }.expected() > 1.1 * certain);
    let text = text(&decision);
    // e to the power of 0.1 is 1.105.
    assert!(text.contains(&format!(", predicted {time} ±11 % per product\n")), "{text}");
    assert_eq!(text.matches(&format!("  {time} ±11 %")).count(), 1, "{text}");
    assert!(text.contains("measured with other values of the share of empty rows"), "{text}");
}

#[test]
fn times_have_three_digits_and_a_fitting_unit() {
    let times = [0.0, 4.2e-10, 1.234e-7, 9.996e-7, 1.2345e-5, 0.0999, 0.12345, 12.34, 12345.0];
    let texts = "0 ns|0.42 ns|123 ns|1.00 µs|12.3 µs|99.9 ms|123 ms|12.3 s|12345 s";
    assert_eq!(times.map(duration).join("|"), texts);
}

#[test]
fn sizes_are_readable() {
    assert_eq!(
        [size(0), size(1023), size(1536), size(3 << 30)],
        ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]
    );
}
