//! Tests with synthetic measurements: a device whose times follow a known law.

use super::*;
use crate::unfitted::{UnfittedSet, learning_curve};
use sparseop::analysis::{Analysis, Fingerprint};
use sparseop::device::Device;
use sparseop::formats::Work;
use sparseop::matrix::gallery;
use sparseop::tuning::decision::TIE_BAND;
use sparseop::tuning::features::MatrixFeatures;

/// A matrix of a tuning run, without times.
struct TestSubject {
    matrix: String,
    class: String,
    fingerprint: Fingerprint,
    features: MatrixFeatures,
    plans: Vec<(Plan, Work)>,
}

/// The suite at two sizes, and a sweep.
fn subjects() -> Vec<TestSubject> {
    let spec = Device::Cpu.spec();
    let suite =
        [30_000, 200_000].into_iter().flat_map(|n| gallery::suite().map(move |s| s.scaled_to(n)));
    let sweep = gallery::sweep(20_000).step_by(3);
    let subject = |spec_of: gallery::Spec| {
        let a = spec_of.generate::<f64>().unwrap();
        let analysis = Analysis::of(a.view());
        let plans = Plan::candidates(&analysis, None, Target::of(&spec)).into_iter();
        let plans =
            plans.map(|plan| (plan.clone(), plan.work(&analysis, ScalarKind::F64))).collect();
        TestSubject {
            class: spec_of.entry().name.to_owned(),
            matrix: spec_of.to_string(),
            fingerprint: Fingerprint::of(a.view()),
            features: MatrixFeatures::from(&analysis),
            plans,
        }
    };
    suite.chain(sweep).map(subject).collect()
}

/// A profile that no tuning changes.
fn truth() -> Profile {
    Profile::parse("truth", include_str!("../../tests/data/truth.ron")).unwrap()
}

/// Times by the coefficients of [`truth`] and an additional law, with the given noise. `run`
/// numbers the repetitions.
fn time(
    subjects: &[TestSubject],
    noise: f64,
    run: u64,
    law: impl Fn(&TestSubject, &str, &Work) -> f64,
) -> Vec<Measured> {
    let truth = truth();
    let predictor = Predictor::for_own_device(&truth);
    let mut state = run.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    // Xorshift: uniform in -1 .. 1, with a standard deviation of 0.58.
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    let mut measure = |s: &TestSubject| {
        let run = |(plan, work): &(Plan, Work)| {
            let kernel = plan.cost_key(Target::Cpu);
            let sum = predictor.predict(plan, work, &s.features, ScalarKind::F64).1?;
            let product = sum.product() * law(s, kernel, work) * (noise * uniform()).exp();
            Some(PlanRun { plan: plan.clone(), work: *work, product, prepare: sum.prepare })
        };
        Measured {
            matrix: s.matrix.clone(),
            class: s.class.clone(),
            fingerprint: s.fingerprint,
            scalar: ScalarKind::F64,
            features: s.features,
            runs: s.plans.iter().filter_map(run).collect(),
            failed: Vec::new(),
        }
    };
    subjects.iter().map(&mut measure).collect()
}

fn provenance() -> Provenance {
    let device = truth().device;
    Provenance {
        kernels: device.kernels().to_owned(),
        device,
        ceilings: Ceilings::default(),
        date: "2000-01-01".to_owned(),
        command: "a script".to_owned(),
    }
}

#[test]
fn a_known_law_is_found_again_on_classes_that_were_held_out() {
    let measured = time(&subjects(), 0.02, 1, |_, _, _| 1.0);
    let refit = profile(&measured, &provenance());
    let validation = &refit.profile.validation;
    let held_out = validation.held_out.unwrap();
    // Pooled observations cost a little accuracy here, as the kernels have nothing in common.
    assert!(held_out.geometric_mean < 1.025 && held_out.worst < 1.3, "{validation:?}");
    // Matrices of the sweep are excluded from validation, and so are smaller matrices.
    assert!(!validation.held_out_classes.contains_key(SWEEP));
    let judged = |m: &&Measured| m.class != SWEEP && m.features.nnz >= JUDGED_ENTRIES;
    assert_eq!(held_out.matrices, measured.iter().filter(judged).count());
    assert_eq!(refit.choices.len(), held_out.matrices);
    // The records contain the same choices.
    let records = &refit.profile.records;
    assert_eq!(records.len(), measured.len());
    let of_records: Vec<f64> =
        records.iter().filter_map(|r| r.regret(r.held_out.as_deref()?)).collect();
    assert!((Regret::of(&of_records).geometric_mean - held_out.geometric_mean).abs() < 1e-9);
}

#[test]
fn a_class_of_its_own_law_is_flagged_when_it_is_held_out() {
    // For bands alone, the kernels that are best elsewhere take three times as long.
    let law = |s: &TestSubject, kernel: &str, _: &Work| {
        if s.class == "banded" && !kernel.starts_with("csr.scalar") { 3.0 } else { 1.0 }
    };
    let measured = time(&subjects(), 0.0, 1, law);
    let validation = profile(&measured, &provenance()).profile.validation;
    let banded = validation.held_out_classes["banded"].geometric_mean;
    let others = validation.held_out_classes.iter().filter(|(class, _)| *class != "banded");
    let worst = others.map(|(_, regret)| regret.geometric_mean).fold(1.0, f64::max);
    assert!(banded > 1.2 && banded > worst, "{validation:?}");
}

#[test]
fn corrections_are_learned_where_they_help() {
    // Slices become efficient with many rows: a product of a feature and the total time.
    let law = |s: &TestSubject, kernel: &str, _: &Work| {
        if kernel.starts_with("csr") {
            1.0
        } else {
            (0.4 * (12.0 - (s.features.nrows as f64).log2())).exp()
        }
    };
    let measured = time(&subjects(), 0.01, 1, law);
    let refit = profile(&measured, &provenance());
    assert!(refit.profile.correction.is_some(), "{:?}", refit.profile.validation);
    let judged = judged(&measured);
    let mean = |corrected| {
        regret(held_out(&measured, &judged, &refit.profile, corrected).unwrap().iter())
            .geometric_mean
    };
    assert!(mean(true) < mean(false), "{} {}", mean(true), mean(false));
}

#[test]
fn parts_of_the_random_structures_are_held_out() {
    let mut measured = time(&subjects(), 0.0, 1, |_, _, _| 1.0);
    measured.iter_mut().for_each(|m| m.class = RANDOM.to_owned());
    let groups: BTreeSet<_> = measured.iter().map(|m| m.group().1).collect();
    assert_eq!(groups.len(), RANDOM_PARTS as usize);
    let validation = profile(&measured, &provenance()).profile.validation;
    let held_out = validation.held_out.unwrap();
    let judged = measured.iter().filter(|m| m.is_judged()).count();
    assert_eq!((held_out.matrices, validation.held_out_classes.len()), (judged, 1));
}

#[test]
fn uncertainties_are_those_of_predictions_that_were_held_out() {
    // As in `corrections_are_learned_where_they_help`, and slices take 1.3 times as long or as
    // little, by a coin.
    let law = |s: &TestSubject, kernel: &str, _: &Work| {
        let size = (0.4 * (12.0 - (s.features.nrows as f64).log2())).exp();
        match kernel.split('.').next() {
            Some("csr") => 1.0,
            Some("sell") => size * if s.features.nrows % 7 < 4 { 1.3 } else { 1.0 / 1.3 },
            _ => size,
        }
    };
    let measured = time(&subjects(), 0.01, 1, law);
    let refit = profile(&measured, &provenance());
    let correction = refit.profile.correction.as_ref().expect("a correction");
    let spread = |kernel: &str| correction.of(ScalarKind::F64, kernel).unwrap().spread;
    let (certain, coin) = (spread("csr.scalar"), spread("sell.sorted"));
    assert!(coin > 0.15 && coin > 1.5 * certain, "{certain} {coin}");
}

#[test]
fn regret_on_other_matrices_falls_with_the_structures_of_the_fit() {
    let law = |s: &TestSubject, kernel: &str, _: &Work| {
        if kernel.starts_with("csr") { 1.0 } else { 0.4 + 1e-5 * s.features.nrows as f64 }
    };
    let all = time(&subjects(), 0.0, 1, law);
    let fitted_to: Vec<Measured> =
        (0..all.len()).filter(|i| i % 3 > 0).map(|i| all[i].clone()).collect();
    let refit = profile(&fitted_to, &provenance());
    let set = |measured: &[Measured]| {
        UnfittedSet::new("others".to_owned(), measured.to_vec(), &fitted_to, &refit.profile)
    };
    assert!(set(&fitted_to).is_none(), "every structure was fitted to");
    // Structures of the fit are left out.
    let others = set(&all).unwrap();
    assert!(
        others.measured.iter().all(|m| fitted_to.iter().all(|f| f.fingerprint != m.fingerprint))
    );
    assert!(others.measured.len() > 10);
    let regret = others.regret(ScalarKind::F64).unwrap();
    assert_eq!(others.regret(ScalarKind::F32), None);
    let curve = learning_curve(&fitted_to, &refit.profile, &[others]);
    let last = curve.last().unwrap();
    let structures: BTreeSet<_> = fitted_to.iter().map(|m| m.fingerprint).collect();
    assert_eq!((last.structures, last.regret[0]), (structures.len(), regret));
    assert!(curve.is_sorted_by(|a, b| a.structures < b.structures) && curve.len() > 3);
    assert!(curve[0].regret[0].geometric_mean > regret.geometric_mean, "{curve:?}");
}

#[test]
fn ten_runs_choose_the_same_plans() {
    const RUNS: u64 = 10;
    let subjects = subjects();
    let truth = time(&subjects, 0.0, 1, |_, _, _| 1.0);
    let profiles: Vec<Profile> = (1..=RUNS)
        .map(|run| profile(&time(&subjects, 0.01, run, |_, _, _| 1.0), &provenance()).profile)
        .collect();
    // Number of choices that agree with the most frequent one.
    let mut alike = 0;
    for m in &truth {
        let plans: Vec<&Plan> = profiles.iter().map(|p| choice(m, p).unwrap()).collect();
        let times =
            plans.iter().map(|plan| m.runs.iter().find(|run| run.plan == **plan).unwrap().product);
        alike +=
            plans.iter().map(|plan| plans.iter().filter(|p| *p == plan).count()).max().unwrap();
        // The other choices lie within the tie band, apart from noise.
        let (least, most) = times.fold((f64::INFINITY, 0.0f64), |(a, b), t| (a.min(t), b.max(t)));
        assert!(most / least < 1.0 + 3.0 * TIE_BAND, "{}: {plans:?} {}", m.matrix, most / least);
    }
    let all = profiles.len() * truth.len();
    assert!(alike as f64 >= 0.95 * all as f64, "{alike} of {all}");
}

#[test]
fn a_rarely_measured_kernel_uses_its_fallback() {
    let mut measured = time(&subjects(), 0.0, 1, |_, _, _| 1.0);
    let narrow: Plan = "psell(sigma:1,values:f32)".parse().unwrap();
    let wide = |run: &PlanRun| run.plan.to_string() == "psell(sigma:1)";
    let times = measured.iter().filter(|m| m.runs.iter().any(wide)).count();
    assert!(times >= MIN, "{times}");
    let mut seen = 0;
    for runs in measured.iter_mut().map(|m| &mut m.runs) {
        let Some(run) = runs.iter().find(|run| wide(run)).cloned() else { continue };
        seen += 1;
        if seen < MIN {
            runs.push(PlanRun { plan: narrow.clone(), product: run.product / 1000.0, ..run });
        }
    }
    let refit = profile(&measured, &provenance()).profile;
    let kernels = &refit.coefficients[&ScalarKind::F64];
    assert!(kernels.contains_key("psell") && !kernels.contains_key("psell.f32"));
    let fallback = refit.coefficients(ScalarKind::F64, "psell.f32");
    assert_eq!(fallback, kernels.get("psell"));
}

#[test]
fn one_class_cannot_be_held_out_and_nothing_large_is_judged_all_the_same() {
    let subjects: Vec<TestSubject> = subjects().into_iter().filter(|s| s.class == "road").collect();
    let refit = profile(&time(&subjects[..1], 0.0, 1, |_, _, _| 1.0), &provenance());
    assert_eq!(refit.profile.validation.held_out, None);
    assert_eq!((refit.choices.len(), refit.profile.validation.in_sample.matrices), (1, 1));
}

#[test]
fn measurements_survive_a_line_of_text() {
    let mut measured = time(&subjects()[..1], 0.0, 1, |_, _, _| 1.0).remove(0);
    measured.failed.push(("ell".to_owned(), "too large".to_owned()));
    let line = ron::to_string(&measured).unwrap();
    assert!(!line.contains('\n'));
    let read: Measured = ron::from_str(&line).unwrap();
    assert_eq!((&read, read.defect()), (&measured, None));
    let recorded = read.record(None, None).runs;
    assert!(recorded.iter().any(|run| run.failed.is_some()));
    // Nanoseconds become microseconds.
    for (run, recorded) in read.runs.iter().zip(&recorded) {
        let microseconds = [run.product, run.prepare].map(|time| time / 1000.0);
        for (found, expected) in
            [recorded.product_us, recorded.prepare_us].into_iter().zip(microseconds)
        {
            assert!((found - expected).abs() <= 1e-12 * expected, "{found} {expected}");
        }
    }
    let broken =
        Measured { features: MatrixFeatures { cv: f64::NAN, ..read.features }, ..read.clone() };
    assert!(broken.defect().unwrap().contains(&measured.matrix));
    let mut broken = read;
    broken.runs[0].product = -1.0;
    assert!(broken.defect().unwrap().contains("cannot be"));
}
