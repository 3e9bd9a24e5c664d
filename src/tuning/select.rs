//! Choice by predictions: candidates, limits, ties, and the reasons.

use super::bounds;
use super::cost::Term;
use super::decision::{Basis, Candidate, Cause, Decision, ExcludedBy, Request, TIE_BAND, Verdict};
use super::features::MatrixFeatures;
use super::lookup::ResolvedProfile;
use super::predictor::Predictor;
use super::profile::Profile;
use crate::analysis::{Analysis, Distinct};
use crate::device::DeviceSpec;
use crate::formats::{Plan, Target};
use crate::order;
use crate::{Error, ExactIn, ScalarKind};
use std::borrow::Cow;

/// Default for the expected number of products: a few runs of a solver with a few hundred
/// iterations each.
pub const DEFAULT_CALLS: u64 = 1000;

/// Default memory limit of a packed matrix, as a multiple of the size of plain CSR, and at least
/// [`DEFAULT_LIMIT_FLOOR`], but never more than the memory of the device. No useful plan comes near
/// it; ELL on a power-law matrix exceeds it a thousandfold.
pub const DEFAULT_LIMIT_RATIO: u64 = 8;

/// Least default memory limit, in bytes; see [`DEFAULT_LIMIT_RATIO`].
pub const DEFAULT_LIMIT_FLOOR: u64 = 64 << 20;

impl Request {
    /// Defaults for a matrix on a device with `available` bytes of memory.
    pub fn new(analysis: &Analysis, scalar: ScalarKind, available: u64) -> Self {
        let csr =
            Plan::Csr(crate::formats::csr::CsrPlan::Scalar).work(analysis, scalar).matrix_bytes;
        let memory_limit =
            csr.saturating_mul(DEFAULT_LIMIT_RATIO).max(DEFAULT_LIMIT_FLOOR).min(available);
        Self {
            expected_calls: DEFAULT_CALLS,
            memory_limit,
            scalar,
            deterministic: false,
            updatable: false,
            value_precision: None,
        }
    }

    /// The analysis without properties that plans may not rely on: those of values that are to be
    /// replaced.
    pub(super) fn reliable<'a>(&self, analysis: &'a Analysis) -> Cow<'a, Analysis> {
        if !self.updatable {
            return Cow::Borrowed(analysis);
        }
        let mut analysis = analysis.clone();
        let structure = &mut analysis.structure;
        let rounded =
            self.value_precision.map_or(ExactIn::NOTHING, ExactIn::only).below(self.scalar);
        structure.exact_in = structure.exact_in.and(rounded);
        structure.distinct_values = Distinct::Many;
        structure.all_ones = false;
        Cow::Owned(analysis)
    }
}

/// Creates a decision by prediction.
fn decision(
    plan: Plan,
    fixed: bool,
    candidates: Vec<Candidate>,
    request: Request,
    resolved: ResolvedProfile,
    device: &DeviceSpec,
) -> Decision {
    let (fit, scale) = (resolved.profile.fit(device), resolved.scale(device));
    let ResolvedProfile { profile, origin, warnings, .. } = resolved;
    let (basis, store, fallback) = (Basis::Predicted, None, None);
    Decision {
        plan,
        fixed,
        basis,
        store,
        candidates,
        request,
        profile,
        origin,
        fit,
        scale,
        warnings,
        fallback,
    }
}

/// Predicts the time of a plan.
pub(super) fn predict(
    plan: Plan,
    analysis: &Analysis,
    predictor: &Predictor<'_>,
    request: &Request,
) -> Candidate {
    let work = plan.work(analysis, request.scalar);
    let (work_terms, prediction) =
        predictor.predict(&plan, &work, &MatrixFeatures::from(analysis), request.scalar);
    let device = predictor.device;
    let verdict = if work.matrix_bytes > request.memory_limit {
        Verdict::TooLarge { limit: request.memory_limit }
    } else if !plan.is_eligible(Target::of(device)) {
        Verdict::OnRequest
    } else if let Some(ratio) = bounds::excess(&plan, &work, analysis, request.scalar, device) {
        Verdict::OutOfBounds { ratio, by: ExcludedBy::Estimate }
    } else if request.deterministic && !plan.is_deterministic() {
        Verdict::NotDeterministic
    } else if prediction.is_none() {
        Verdict::Unknown
    } else {
        Verdict::Tied
    };
    Candidate { plan, work, work_terms, prediction, verdict }
}

/// Rounds a time to a grid with steps of [`TIE_BAND`]: nearly equal predictions are equal.
fn on_grid(time: f64) -> f64 {
    let step = TIE_BAND.ln_1p();
    if time > 0.0 { ((time.ln() / step).round() * step).exp() } else { time }
}

/// Predicted times of a plan in nanoseconds, and its size.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Rank {
    /// Expected time of a product; infinite if the plan may not be chosen.
    pub product: f64,
    /// Time of the preparation.
    pub prepare: f64,
    /// Bytes of the packed matrix.
    pub bytes: u64,
}

/// Index of the chosen plan; `None` if no product is finite.
///
/// The least time of a product with its share of the preparation, both on a grid with steps of
/// [`TIE_BAND`]; of equal times the fastest product, then the fewest bytes, then the first. The
/// product of the choice for more calls is never slower, on the grid: this is how the least value
/// of sums `t + p / n` behaves for growing `n`.
#[doc(hidden)]
pub fn choose(plans: &[Rank], calls: u64) -> Option<usize> {
    let rank = |plan: &Rank| {
        let product = on_grid(plan.product);
        (product + on_grid(plan.prepare) / calls.max(1) as f64, product, plan.bytes)
    };
    let ranks = plans.iter().map(rank).enumerate().filter(|(_, (time, ..))| time.is_finite());
    let least = ranks
        .min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
    least.map(|(place, _)| place)
}

/// Chooses the plan with the least predicted time, including preparation.
///
/// Times are compared in steps of [`TIE_BAND`]. Of equal times the fastest product is chosen, then
/// the fewest bytes, then the first in the order of the formats. The product of the choice for more
/// expected calls is never slower.
///
/// # Errors
///
/// [`Error::NoPlanFits`] if not even the smallest candidate fits the limit, [`Error::Profile`] if
/// the profile has no usable measurements of those that do.
pub fn select(
    analysis: &Analysis,
    device: &DeviceSpec,
    resolved: impl Into<ResolvedProfile>,
    request: Request,
) -> Result<Decision, Error> {
    let (resolved, analysis) = (resolved.into(), &*request.reliable(analysis));
    let profile = &*resolved.profile;
    let predictor = Predictor { profile, device, scale: resolved.scale(device) };
    let costs = profile.costs(request.scalar);
    let plans = Plan::candidates(analysis, Some(&costs), Target::of(device));
    let mut candidates: Vec<_> =
        plans.into_iter().map(|plan| predict(plan, analysis, &predictor, &request)).collect();
    bounds::exclude_predicted(&mut candidates, request.expected_calls, analysis.rows.nnz, device);
    let time = |c: &Candidate| match &c.prediction {
        Some(prediction) if c.verdict.may_be_timed() => {
            prediction.amortised(request.expected_calls)
        }
        _ => f64::INFINITY,
    };
    let rank = |c: &Candidate| {
        let times = c.prediction.filter(|_| c.verdict == Verdict::Tied);
        let (product, prepare) = times
            .map_or((f64::INFINITY, 0.0), |prediction| (prediction.expected(), prediction.prepare));
        Rank { product, prepare, bytes: c.work.matrix_bytes }
    };
    let ranks: Vec<_> = candidates.iter().map(rank).collect();
    let Some(chosen) = choose(&ranks, request.expected_calls) else {
        return Err(nothing_fits(&candidates, profile, device, &request));
    };
    let mut winner = candidates.remove(chosen);
    // A stable sort: equal times keep the order of the formats.
    order::ascending(&mut candidates, &time);
    for candidate in &mut candidates {
        let ratio = time(candidate) / time(&winner);
        if candidate.verdict == Verdict::Tied && ratio > 1.0 + TIE_BAND && ratio.is_finite() {
            let because = cause(&winner, candidate, request.expected_calls);
            candidate.verdict = Verdict::Slower { ratio, because };
        }
    }
    winner.verdict = Verdict::Chosen;
    let plan = winner.plan.clone();
    candidates.insert(0, winner);
    Ok(decision(plan, false, candidates, request, resolved, device))
}

/// Error if no candidate can be chosen.
fn nothing_fits(
    candidates: &[Candidate],
    profile: &Profile,
    device: &DeviceSpec,
    request: &Request,
) -> Error {
    let would_do = |c: &&Candidate| {
        matches!(c.verdict, Verdict::TooLarge { .. })
            && c.prediction.is_some()
            && c.plan.is_eligible(Target::of(device))
            && (c.plan.is_deterministic() || !request.deterministic)
    };
    match candidates.iter().filter(would_do).min_by_key(|c| c.work.matrix_bytes) {
        Some(c) => Error::NoPlanFits {
            plan: c.plan.to_string(),
            needed: c.work.matrix_bytes,
            limit: request.memory_limit,
        },
        None => Error::Profile {
            origin: format!("of {}, {}", profile.device, profile.date),
            message: format!(
                "it has no usable measurements in {}; make one that has with `sparseop tune`, or \
                 use the built-in one",
                request.scalar
            ),
        },
    }
}

/// Creates a decision for a given plan.
///
/// # Errors
///
/// [`Error::PlanText`] if its parameters are not admissible, [`Error::MemoryLimit`] if it does not
/// fit the limit, [`Error::PlanLimit`] if its format cannot hold the matrix,
/// [`Error::NotDeterministic`] if reproducible bits are requested and the plan's are
/// not.
pub fn fixed(
    plan: Plan,
    analysis: &Analysis,
    device: &DeviceSpec,
    resolved: impl Into<ResolvedProfile>,
    request: Request,
) -> Result<Decision, Error> {
    let (resolved, analysis) = (resolved.into(), &*request.reliable(analysis));
    // A plan constructed in code obeys the same rules as a spelled one.
    let plan: Plan = plan.to_string().parse()?;
    let predictor = Predictor { profile: &resolved.profile, device, scale: resolved.scale(device) };
    let mut candidate = predict(plan.clone(), analysis, &predictor, &request);
    if let Verdict::TooLarge { limit } = candidate.verdict {
        return Err(Error::MemoryLimit {
            plan: plan.to_string(),
            needed: candidate.work.matrix_bytes,
            limit,
        });
    }
    if let Some(message) = plan.refusal(analysis) {
        return Err(Error::PlanLimit { plan: plan.to_string(), message });
    }
    if request.deterministic && !plan.is_deterministic() {
        return Err(Error::NotDeterministic { plan: plan.to_string() });
    }
    candidate.verdict = Verdict::Chosen;
    Ok(decision(plan, true, vec![candidate], request, resolved, device))
}

/// The term with the largest excess of the loser over the winner.
fn cause(winner: &Candidate, loser: &Candidate, calls: u64) -> Cause {
    let terms_of = |c: &Candidate| {
        let p = c.prediction.as_ref();
        let terms = p.map_or([0.0; Term::COUNT], |p| p.terms);
        let prepare = p.map_or(0.0, |p| p.prepare / calls.max(1) as f64);
        let (imbalance, learned) = p.map_or((0.0, 0.0), |p| (p.imbalance, p.product() - p.sum()));
        let risk = p.map_or(0.0, |p| p.expected() - p.product());
        let terms = Term::ALL.iter().zip(terms).map(|(&term, time)| (Cause::Term(term), time));
        let rest = [
            (Cause::Imbalance, imbalance),
            (Cause::Preparation, prepare),
            (Cause::Correction, learned),
            (Cause::Uncertainty, risk),
        ];
        terms.chain(rest).collect::<Vec<_>>()
    };
    let excess = terms_of(loser).into_iter().zip(terms_of(winner)).map(|(l, w)| (l.0, l.1 - w.1));
    let most = excess.max_by(|a, b| a.1.total_cmp(&b.1)).map_or(Cause::Kernel, |most| most.0);
    match most {
        // The term may cost more without more work.
        Cause::Term(term)
            if loser.work_terms[term as usize] <= winner.work_terms[term as usize] =>
        {
            Cause::Kernel
        }
        Cause::Preparation
            if loser.plan.format() == winner.plan.format()
                && loser.work.slots <= winner.work.slots =>
        {
            Cause::Kernel
        }
        cause => cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::matrix::gallery;
    use crate::tuning::cost::Coefficients;
    use std::sync::Arc;

    fn analysis(spec: &str) -> Analysis {
        Analysis::of(spec.parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap().view())
    }

    fn choose(spec: &str, change: impl FnOnce(&mut Request)) -> Result<Decision, Error> {
        let analysis = analysis(spec);
        let mut request = Request::new(&analysis, ScalarKind::F32, crate::memory::limit());
        change(&mut request);
        select(&analysis, &Device::Cpu.spec(), Profile::builtin(&Device::Cpu), request)
    }

    #[test]
    fn every_loser_has_a_reason_and_the_order_is_that_of_the_times() {
        let decision = choose("poisson2d,n=200", |_| {}).unwrap();
        assert_eq!(decision.candidates[0].verdict, Verdict::Chosen);
        assert_eq!(decision.chosen().unwrap().plan, decision.plan);
        let losers =
            decision.candidates.iter().filter(|c| matches!(c.verdict, Verdict::Slower { .. }));
        let ratios: Vec<f64> = losers
            .map(|c| match c.verdict {
                Verdict::Slower { ratio, .. } => ratio,
                _ => unreachable!("filtered above"),
            })
            .collect();
        assert!(ratios.len() > 5 && ratios.is_sorted() && ratios[0] > 1.0, "{ratios:?}");
    }

    #[test]
    fn of_equal_times_the_fastest_product_wins_and_then_the_fewest_bytes() {
        let place = |plans: &[(f64, f64, u64)]| {
            let rank = |&(product, prepare, bytes)| Rank { product, prepare, bytes };
            super::choose(&plans.iter().map(rank).collect::<Vec<_>>(), 10)
        };
        let step = on_grid(100.0);
        let (near, far) = (step * (1.0 + TIE_BAND / 4.0), step * (1.0 + 2.0 * TIE_BAND));
        assert_eq!(place(&[(step, 0.0, 10), (near, 0.0, 5), (far, 0.0, 1)]), Some(1));
        assert_eq!(place(&[(near, 0.0, 10), (step, 0.0, 10)]), Some(0));
        assert_eq!(place(&[(0.0, 1000.0, 9), (on_grid(1000.0) / 10.0, 0.0, 1)]), Some(0));
        assert_eq!(place(&[(f64::INFINITY, 0.0, 1), (1.0, 0.0, 10)]), Some(1));
        assert_eq!(place(&[(f64::INFINITY, 0.0, 1), (f64::NAN, 0.0, 1)]), None);
    }

    /// Expected times of products, on the grid, do not grow with the number of expected calls.
    #[test]
    fn more_expected_calls_never_choose_a_slower_product() {
        let h200 = Profile::parse("h200", include_str!("../../models/nvidia-h200.ron")).unwrap();
        let profiles = [Arc::new(h200), Profile::builtin(&Device::Cpu)];
        let specs = ["poisson2d,n=100", "webbase,rows=20k", "fem3d,n=10", "random,seed=7001"];
        for (spec, profile) in specs.iter().flat_map(|s| profiles.iter().map(move |p| (s, p))) {
            let analysis = analysis(spec);
            let mut last = f64::INFINITY;
            for calls in [1, 3, 10, 100, 300, 1000, 3000, 10_000, 100_000, 10_000_000] {
                let request = Request {
                    expected_calls: calls,
                    ..Request::new(&analysis, ScalarKind::F32, u64::MAX)
                };
                let decision =
                    select(&analysis, &profile.device.clone(), profile.clone(), request).unwrap();
                let now = on_grid(decision.chosen().unwrap().prediction.unwrap().expected());
                assert!(now <= last, "{spec}, {calls} calls: {now} {last}");
                last = now;
            }
        }
    }

    #[test]
    fn the_same_matrix_gets_the_same_plan() {
        let plans: Vec<_> =
            (0..3).map(|_| choose("webbase,rows=20k", |_| {}).unwrap().plan).collect();
        assert!(plans.windows(2).all(|w| w[0] == w[1]));
    }

    #[test]
    fn one_product_does_not_pay_for_packing() {
        let decision = choose("banded,rows=20k", |r| r.expected_calls = 1).unwrap();
        assert_eq!(decision.plan.format().name(), "csr", "{}", decision.plan);
    }

    /// As [`choose`], for the GPU of the built-in profile.
    fn choose_on_gpu(spec: &str, change: impl FnOnce(&mut Request)) -> Decision {
        let analysis = analysis(spec);
        let profile = Profile::parse("h200", include_str!("../../models/nvidia-h200.ron")).unwrap();
        let mut request = Request::new(&analysis, ScalarKind::F32, u64::MAX);
        change(&mut request);
        select(&analysis, &profile.device.clone(), Arc::new(profile), request).unwrap()
    }

    #[test]
    fn one_product_on_a_gpu_does_not_pay_for_more_than_the_upload() {
        for spec in ["fem3d,n=24", "webbase,rows=100k", "poisson2d,n=300"] {
            let prepare = |c: &Candidate| c.prediction.map_or(f64::INFINITY, |p| p.prepare);
            let once = choose_on_gpu(spec, |r| r.expected_calls = 1);
            let may_be_chosen = |c: &&Candidate| {
                !matches!(c.verdict, Verdict::OutOfBounds { .. } | Verdict::OnRequest)
            };
            let candidates = once.candidates.iter().filter(may_be_chosen);
            let least = candidates.map(prepare).fold(f64::INFINITY, f64::min);
            let chosen = prepare(once.chosen().unwrap());
            assert!(
                chosen <= least * 1.1,
                "{spec}: {} takes {chosen} ns, and {least} would do",
                once.plan
            );
            let often = choose_on_gpu(spec, |r| r.expected_calls = 1_000_000);
            let product = |d: &Decision| d.chosen().unwrap().prediction.unwrap().product();
            assert!(product(&often) <= product(&once), "{spec}");
        }
    }

    #[test]
    fn plans_whose_bits_may_differ_are_left_out_where_they_have_to_repeat() {
        let free = choose_on_gpu("uniform,rows=20k", |_| {});
        let chance = |c: &&Candidate| !c.plan.is_deterministic();
        assert!(free.candidates.iter().filter(chance).count() > 0);
        let bound = choose_on_gpu("uniform,rows=20k", |r| r.deterministic = true);
        let excluded =
            |c: &Candidate| matches!(c.verdict, Verdict::NotDeterministic | Verdict::OnRequest);
        assert!(bound.candidates.iter().filter(chance).all(excluded));
        let analysis = analysis("small");
        let request =
            Request { deterministic: true, ..Request::new(&analysis, ScalarKind::F32, u64::MAX) };
        let plan: Plan = "coo(atomic)".parse().unwrap();
        let profile = Profile::builtin(&Device::Cpu);
        let refused = fixed(plan, &analysis, &Device::Cpu.spec(), profile, request);
        assert!(matches!(refused, Err(Error::NotDeterministic { plan }) if plan == "coo(atomic)"));
    }

    #[test]
    fn plans_on_request_are_listed_and_not_chosen() {
        let analysis = analysis("webbase,rows=20k");
        let mut profile =
            Profile::parse("h200", include_str!("../../models/nvidia-h200.ron")).unwrap();
        let on_request = |plan: &Plan| !plan.is_eligible(Target::Gpu);
        let plans = Plan::candidates(&analysis, None, Target::Gpu);
        // A profile in which the kernels of such plans alone are the fastest.
        for plan in plans.iter().filter(|plan| on_request(plan)) {
            let (kernel, fastest) = (plan.cost_key(Target::Gpu), Coefficients::default());
            assert!(plans.iter().all(|p| on_request(p) || p.cost_key(Target::Gpu) != kernel));
            profile.coefficients.values_mut().for_each(|kernels| {
                kernels.insert(kernel.to_owned(), fastest);
            });
        }
        let request = Request::new(&analysis, ScalarKind::F32, u64::MAX);
        let decision =
            select(&analysis, &profile.device.clone(), Arc::new(profile), request).unwrap();
        let found: Vec<_> =
            decision.candidates.iter().filter(|candidate| on_request(&candidate.plan)).collect();
        assert!(found.iter().all(|candidate| candidate.verdict == Verdict::OnRequest));
        assert!(!found.is_empty());
    }

    #[test]
    fn a_limit_below_every_plan_is_refused_with_both_numbers() {
        let Err(Error::NoPlanFits { needed, limit, .. }) =
            choose("small", |r| r.memory_limit = 1000)
        else {
            panic!("1000 bytes cannot hold 49,600 entries")
        };
        assert!(limit == 1000 && needed > 49_600);
    }

    #[test]
    fn ell_on_a_power_law_is_refused_before_anything_is_allocated() {
        let analysis = analysis("circuit,rows=30k");
        let request = Request::new(&analysis, ScalarKind::F32, crate::memory::limit());
        let profile = Profile::builtin(&Device::Cpu);
        let refused =
            fixed("ell".parse().unwrap(), &analysis, &Device::Cpu.spec(), profile, request);
        assert!(matches!(refused, Err(Error::MemoryLimit { .. })));
    }
}
