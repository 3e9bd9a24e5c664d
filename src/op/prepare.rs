//! Preparation of an operator, from an analysed matrix to a packed one, by prediction, stored
//! decision or timing run.

use super::{SparseOpBuilder, Tuning};
use crate::analysis::{Analysis, Fingerprint};
use crate::device::{Device, DeviceSpec, Gpu, Module};
use crate::formats::{self, PackSource, Plan, ResidentMatrix, csr};
use crate::trace::span;
use crate::tuning::caches::CacheState;
use crate::tuning::calibrate::{Limits, calibrate, expected_gain_and_cost, shortlist};
use crate::tuning::check::{Checked, CheckedMatrix, check_if_worthwhile};
use crate::tuning::decision::{Basis, Candidate, Decision, Request};
use crate::tuning::explain::Preparation;
use crate::tuning::lookup;
use crate::tuning::plan_timer::{DevicePlanTimer, Ready};
use crate::tuning::select;
use crate::tuning::stopwatch::{WallClock, timed, unix_seconds};
use crate::tuning::store::{DecisionKey, Miss, STORE_VARIABLE, Store, StoredDecision};
use crate::{Error, Scalar, ScalarKind};
use tracing::field::display;

/// A packed matrix, the decision for its plan, and the time of the preparation.
pub(super) struct Prepared<T: Scalar> {
    pub(super) decision: Decision,
    pub(super) matrix: ResidentMatrix<T>,
    pub(super) preparation: Preparation,
}

/// The kernel that holds back timed products until all are enqueued.
fn gate() -> (Module, String) {
    ("gate".into(), "gate_wait".to_owned())
}

/// The kernels, each once.
fn distinct(mut kernels: Vec<(Module, String)>) -> Vec<(Module, String)> {
    kernels.sort_by_cached_key(|(module, name)| (module.to_string(), name.clone()));
    kernels.dedup();
    kernels
}

/// Entry of a decision store: the store and the key of the decision.
struct StoreEntry {
    store: Store,
    key: DecisionKey,
}

impl SparseOpBuilder {
    /// Decides and packs for a device.
    pub(super) fn prepare<T: Scalar>(
        &self,
        device: &Device,
        source: PackSource<'_, T>,
        analysis: &Analysis,
    ) -> Result<Prepared<T>, Error> {
        let spec = device.spec();
        let (decided, select) = timed(|| {
            let span =
                span!(DEBUG, "select", rows = source.nrows(), nnz = source.nnz(); plan, candidates);
            let mut decision = self.decide_on(device, analysis, T::KIND)?;
            let entry = self.store_entry(source, analysis, &spec, &mut decision)?;
            if let Some(entry) = &entry {
                entry.load(&mut decision, analysis, &spec);
            }
            span.record("plan", display(&decision.plan));
            span.record("candidates", decision.candidates.len());
            Ok::<_, Error>((decision, entry))
        });
        let (decision, entry) = decided?;
        let Device::Cuda(gpu) = device else {
            return self.packed(device, source, analysis, (decision, entry, select));
        };
        let kernels = self.expected_kernels(&decision, source, analysis, *gpu);
        gpu.with_kernels(kernels, || {
            self.packed(device, source, analysis, (decision, entry, select))
        })
    }

    /// Kernels that the check of a decision, packing and products are expected to need on a GPU.
    fn expected_kernels<T: Scalar>(
        &self,
        decision: &Decision,
        source: PackSource<'_, T>,
        analysis: &Analysis,
        gpu: Gpu,
    ) -> Vec<(Module, String)> {
        /// Number of the fastest plans that a check is expected to time, besides those of CSR.
        const FASTEST: usize = 3;
        let mut plans = vec![&decision.plan];
        let is_checked = matches!(self.tuning, Tuning::Check) && decision.basis == Basis::Predicted;
        if is_checked {
            let time = |c: &Candidate| c.prediction.map_or(f64::INFINITY, |p| p.product());
            let mut sorted: Vec<_> = decision.candidates.iter().collect();
            sorted.sort_by(|a, b| time(a).total_cmp(&time(b)));
            let is_csr = |c: &&&Candidate| matches!(c.plan, Plan::Csr(_));
            let csr = sorted.iter().filter(|c| is_csr(c) && c.verdict.may_be_timed());
            plans.extend(sorted.iter().take(FASTEST).chain(csr).map(|c| &c.plan));
        }
        let bytes = |plan: &Plan| {
            let same = decision.candidates.iter().find(|c| c.plan == *plan);
            same.map_or_else(|| source.csr_bytes() as u64, |c| c.work.matrix_bytes)
        };
        let kernels = |plan: &&Plan| plan.gpu_kernels::<T>(analysis, bytes(plan), gpu);
        let mut all: Vec<_> = plans.iter().flat_map(kernels).collect();
        all.extend(is_checked.then(gate));
        // For the next matrix, if the host has analysed this one.
        all.extend(source.on_gpu.into_iter().flat_map(|_| formats::analysis_kernels::<T>()));
        distinct(all)
    }

    /// Packs the chosen plan for a device, after a check or a timing run if the settings ask for
    /// one.
    fn packed<T: Scalar>(
        &self,
        device: &Device,
        source: PackSource<'_, T>,
        analysis: &Analysis,
        (mut decision, entry, select): (Decision, Option<StoreEntry>, f64),
    ) -> Result<Prepared<T>, Error> {
        let spec = device.spec();
        let mut ready = None;
        match &self.tuning {
            Tuning::Check if decision.basis == Basis::Predicted => {
                ready = self.check(device, source, analysis, &mut decision)?;
            }
            Tuning::Calibrate
                if decision.basis == Basis::Predicted
                    && self.pays(&mut decision, device, &spec) =>
            {
                ready = Some(self.calibrate(device, source, analysis, &mut decision)?);
                if let Some(entry) = entry {
                    entry.save(&mut decision, &spec);
                }
            }
            _ => {}
        }
        let (ready, timing) = match ready {
            Some(ready) => (ready, decision.timing_run().map_or(0.0, |run| run.seconds)),
            None => (Ready::pack(&decision.plan, source, device)?, 0.0),
        };
        Ok(Prepared::new(decision, ready.without_borrowed()?, select, timing))
    }

    /// Decides for a device by prediction, or on the given plan.
    pub(super) fn decide_on(
        &self,
        device: &Device,
        analysis: &Analysis,
        scalar: ScalarKind,
    ) -> Result<Decision, Error> {
        let profile = lookup::find(device, scalar, self.profile.as_ref())?;
        let available = device.memory()?;
        let mut request = Request::new(analysis, scalar, available);
        request.expected_calls = self.expected_calls.unwrap_or(request.expected_calls);
        request.memory_limit = self.memory_limit.unwrap_or(request.memory_limit).min(available);
        request.deterministic = self.deterministic;
        request.updatable = self.updatable;
        request.value_precision = self.value_precision.filter(|p| p.is_narrower_than(scalar));
        let mut spec = device.spec();
        if self.deterministic && spec.gpu.is_none() {
            spec.threads = profile.profile.device.threads;
        }
        match &self.tuning {
            Tuning::Predict | Tuning::Check | Tuning::Calibrate => {
                select::select(analysis, &spec, profile, request)
            }
            Tuning::Fixed(plan) => select::fixed(plan.clone(), analysis, &spec, profile, request),
        }
    }

    /// Store entry of the decision. None if decisions are not stored.
    fn store_entry<T: Scalar>(
        &self,
        source: PackSource<'_, T>,
        analysis: &Analysis,
        spec: &DeviceSpec,
        decision: &mut Decision,
    ) -> Result<Option<StoreEntry>, Error> {
        if !self.remember || decision.fixed {
            return Ok(None);
        }
        let Some(store) = Store::of_user() else {
            decision.store =
                Some(format!("there is no folder for stored decisions; set {STORE_VARIABLE}"));
            return Ok(None);
        };
        let (structure, cold) = (Fingerprint::of(source.on_host()?), self.calibration.cold);
        let key =
            DecisionKey::new(structure, analysis, spec, &decision.request, self.memory_limit, cold);
        Ok(Some(StoreEntry { store, key }))
    }

    /// True if a timing run is expected to pay, or is requested without a number of products.
    /// Otherwise the reason is recorded in the decision.
    fn pays(&self, decision: &mut Decision, device: &Device, spec: &DeviceSpec) -> bool {
        let (gain, cost) = expected_gain_and_cost(
            decision,
            &shortlist(decision, spec),
            self.calibration.policy(device),
        );
        let pays = self.calibration.always || self.expected_calls.is_none() || gain >= cost;
        if !pays {
            decision.basis = Basis::Unpaid { gain, cost };
        }
        pays
    }

    /// Checks the predicted plan with few products and returns the fastest plan, packed. `None` if
    /// the predicted plan is to be packed as it is: nothing can be checked
    /// ([`check_if_worthwhile`]), bits are to repeat, other work of a thread pool would be timed,
    /// or the check fails.
    fn check<T: Scalar>(
        &self,
        device: &Device,
        source: PackSource<'_, T>,
        analysis: &Analysis,
        decision: &mut Decision,
    ) -> Result<Option<Ready<ResidentMatrix<T>>>, Error> {
        let Request { memory_limit, deterministic, .. } = decision.request;
        let in_pool = *device == Device::Cpu && rayon::current_thread_index().is_some();
        if deterministic || in_pool {
            return Ok(None);
        }
        let matrix = CheckedMatrix {
            entries: source.nnz() as u64,
            is_large: ResidentMatrix::<T>::is_large(source.nrows(), source.nnz()),
            csr_bytes: Plan::Csr(csr::CsrPlan::Balanced).work(analysis, T::KIND).matrix_bytes,
            memory: memory_limit.saturating_mul(2).min(device.memory()? / 2),
        };
        let (clock, spec, mut span) = (WallClock::start(), device.spec(), None);
        let timer = || {
            span = Some(span!(DEBUG, "check", rows = source.nrows(), nnz = source.nnz(); plan));
            DevicePlanTimer::new(source, device, CacheState::Warm).map(DevicePlanTimer::borrowing)
        };
        let checked = check_if_worthwhile(timer, &clock, decision, &spec, matrix);
        // An error of the device comes again when the predicted plan is packed.
        let Ok(Some(Checked { ready, timing_run, products, limit })) = checked else {
            return Ok(None);
        };
        decision.settle(Basis::Checked { timing_run, products, limit }, analysis, &spec);
        span.iter().for_each(|span| span.record("plan", display(&decision.plan)));
        Ok(Some(ready))
    }

    /// Times the candidates nearest to the predicted one. Returns the winner, packed.
    fn calibrate<T: Scalar>(
        &self,
        device: &Device,
        source: PackSource<'_, T>,
        analysis: &Analysis,
        decision: &mut Decision,
    ) -> Result<Ready<ResidentMatrix<T>>, Error> {
        let (settings, spec) = (&self.calibration, device.spec());
        let span = span!(DEBUG, "calibrate", rows = source.nrows(), nnz = source.nnz(); plan);
        let shortlist = shortlist(decision, &spec);
        if let Device::Cuda(gpu) = device {
            // Later operators need no compilation, and nothing is compiled beside timed products.
            let kernels =
                |c: &&Candidate| c.plan.gpu_kernels::<T>(analysis, c.work.matrix_bytes, *gpu);
            let mut kernels: Vec<_> = shortlist.iter().flat_map(kernels).chain([gate()]).collect();
            kernels
                .extend(source.on_gpu.into_iter().flat_map(|_| formats::analysis_kernels::<T>()));
            gpu.with_kernels(distinct(kernels), || {});
        }
        let clock = WallClock::start();
        let timer = DevicePlanTimer::new(source, device, settings.cache())?;
        let Request { memory_limit, expected_calls, .. } = decision.request;
        let limits = Limits {
            seconds: settings.seconds,
            memory: settings.memory(memory_limit, device.memory()?),
            calls: expected_calls,
        };
        let (ready, timing_run) =
            calibrate(&timer, &clock, &shortlist, limits, settings.policy(device), settings.cold)?;
        decision.settle(Basis::Timed(timing_run), analysis, &spec);
        span.record("plan", display(&decision.plan));
        Ok(ready)
    }
}

impl StoreEntry {
    /// Loads the stored plan, if there is one that may be chosen now. The outcome is recorded in
    /// the decision.
    fn load(&self, decision: &mut Decision, analysis: &Analysis, spec: &DeviceSpec) {
        let found = self.store.find(&self.key, spec).and_then(|entry| {
            match decision.objection(&entry.timing_run.winner, analysis, spec) {
                Some(objection) => {
                    Err(Miss::Inadmissible(format!("{}, {objection}", entry.timing_run.winner)))
                }
                None => Ok(entry),
            }
        });
        match found {
            Ok(StoredDecision { timing_run, when, .. }) => {
                let age = unix_seconds().saturating_sub(when);
                decision.settle(Basis::Stored { timing_run, age }, analysis, spec);
            }
            Err(miss) => decision.store = Some(miss.to_string()),
        }
    }

    /// Stores the result of a timing run. The outcome is recorded in the decision.
    fn save(self, decision: &mut Decision, spec: &DeviceSpec) {
        let Some(timing_run) = decision.timing_run().cloned() else { return };
        let kept = self.store.keep(&StoredDecision::now(self.key, spec, timing_run));
        let now = match kept {
            Ok(()) => format!("now stored in {}", self.store.folder().display()),
            Err(error) => format!("storing it failed: {error}"),
        };
        decision.store = Some(match decision.store.take() {
            Some(miss) => format!("{miss}; {now}"),
            None => now,
        });
    }
}

impl<T: Scalar> Prepared<T> {
    fn new(decision: Decision, ready: Ready<ResidentMatrix<T>>, select: f64, check: f64) -> Self {
        let Ready { matrix, pack, upload } = ready;
        Self {
            decision,
            matrix,
            preparation: Preparation { analyze: 0.0, select, check, pack, upload },
        }
    }
}
