//! Events for profilers: spans, and ranges of a library in place of NVTX.

use sparseop::matrix::{CsrMatrix, gallery};
use sparseop::{Device, SparseOpBuilder, Tuning};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Event, Level, Metadata, Subscriber};

/// A recorded span.
#[derive(Debug, Clone, Default)]
struct RecordedSpan {
    name: String,
    level: String,
    parent: Option<u64>,
    fields: BTreeMap<String, String>,
}

impl Visit for RecordedSpan {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

/// Records every span of the library down to a level, in the order of their beginnings.
struct Recorder {
    level: Level,
    seen: Arc<Mutex<Vec<RecordedSpan>>>,
    within: Mutex<Vec<u64>>,
    /// Number of calls that ask for a span or begin one.
    asked: Arc<AtomicUsize>,
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        metadata.target().starts_with("sparseop") && *metadata.level() <= self.level
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut seen = self.seen.lock().unwrap();
        let (name, level) =
            (span.metadata().name().to_owned(), span.metadata().level().to_string());
        let parent = self.within.lock().unwrap().last().copied();
        let mut new = RecordedSpan { name, level, parent, fields: BTreeMap::new() };
        span.record(&mut new);
        seen.push(new);
        Id::from_u64(seen.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        values.record(&mut self.seen.lock().unwrap()[span.into_u64() as usize - 1]);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, span: &Id) {
        self.within.lock().unwrap().push(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        assert_eq!(self.within.lock().unwrap().pop(), Some(span.into_u64()), "spans end in turn");
    }
}

/// The right to be the only subscriber: whether a span is recorded is cached for all threads.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    fn new(level: Level) -> Self {
        Self { level, seen: Arc::default(), within: Mutex::default(), asked: Arc::default() }
    }
}

/// Spans of some work.
fn spans(level: Level, work: impl FnOnce()) -> Vec<RecordedSpan> {
    let _alone = alone();
    let recorder = Recorder::new(level);
    let seen = Arc::clone(&recorder.seen);
    with_default(recorder, work);
    std::mem::take(&mut *seen.lock().unwrap())
}

fn matrix() -> CsrMatrix<f64> {
    "poisson2d,n=20".parse::<gallery::Spec>().unwrap().generate().unwrap()
}

fn names(seen: &[RecordedSpan]) -> Vec<&str> {
    seen.iter().map(|span| &*span.name).collect()
}

#[test]
fn every_step_has_a_span_with_what_it_is_about() {
    let a = matrix();
    let (x, mut y) = (vec![1.0; a.ncols()], vec![0.0; a.nrows()]);
    let mut plan = String::new();
    let mut bytes = 0;
    let seen = spans(Level::TRACE, || {
        let mut op = SparseOpBuilder::new().device(Device::Cpu).updatable(true).build(&a).unwrap();
        op.apply(&x, &mut y).unwrap();
        op.apply_with(2.0, &x, 1.0, &mut y).unwrap();
        op.update_values(a.values()).unwrap();
        (plan, bytes) = (op.plan().to_string(), op.memory_bytes());
    });
    // An updatable operator may pack its pattern a second time.
    assert_eq!(names(&seen)[..4], ["build", "analyze", "select", "pack"]);
    assert_eq!(names(&seen)[seen.len() - 3..], ["apply", "apply", "update"]);
    let sizes = [("rows", a.nrows()), ("nnz", a.nnz())];
    for span in &seen[..4] {
        let of = |(field, size): (&str, usize)| span.fields[field] == size.to_string();
        assert!(sizes.into_iter().all(of) && span.level == "DEBUG", "{span:?}");
        assert_eq!(span.parent, (span.name != "build").then_some(1), "{span:?}");
    }
    let (select, pack, apply) = (&seen[2], &seen[3], &seen[seen.len() - 3]);
    assert!(
        select.fields["plan"] == plan && select.fields["candidates"].parse::<u32>().unwrap() > 3,
        "{select:?}"
    );
    assert_eq!(pack.fields["plan"], plan);
    assert!((1..=bytes).contains(&pack.fields["bytes"].parse().unwrap()), "{pack:?}");
    assert_eq!(apply.fields["plan"], plan);
    assert_eq!((&*apply.fields["device"], &*apply.fields["vectors"]), ("cpu", "1"));
    assert_eq!(apply.fields["bytes"], pack.fields["bytes"]);
    assert_eq!((&*apply.level, apply.parent), ("TRACE", None));
    assert_eq!(seen.last().unwrap().fields["nnz"], a.nnz().to_string());
}

#[test]
fn products_are_traces_and_a_calibration_is_one_span() {
    let a = matrix();
    let seen = spans(Level::DEBUG, || {
        let builder = SparseOpBuilder::new().device(Device::Cpu).tuning(Tuning::Calibrate);
        let op = builder.build(&a).unwrap();
        op.apply(&vec![1.0; a.ncols()], &mut vec![0.0; a.nrows()]).unwrap();
    });
    assert_eq!(names(&seen)[..4], ["build", "analyze", "select", "calibrate"]);
    let packed: Vec<_> = seen.iter().filter(|span| span.name == "pack").collect();
    assert!(packed.len() > 1 && packed.iter().all(|span| span.parent == Some(4)), "{seen:?}");
    assert!(seen[3].fields.contains_key("plan") && !names(&seen).contains(&"apply"));
}

#[test]
fn the_transposed_matrix_is_built_within_the_product_that_needs_it() {
    let a = "lp,rows=300".parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
    let seen = spans(Level::TRACE, || {
        let builder = SparseOpBuilder::new().device(Device::Cpu).tuning(Tuning::Predict);
        let op = builder.build(&a).unwrap();
        op.apply_transpose(&vec![1.0; a.nrows()], &mut vec![0.0; a.ncols()]).unwrap();
    });
    let last = seen.last().unwrap();
    assert_eq!(names(&seen).iter().filter(|name| **name == "pack").count(), 2, "{seen:?}");
    assert_eq!((&*last.name, &*last.fields["rows"]), ("apply", &*a.ncols().to_string()));
}

#[test]
fn a_product_without_a_recorded_span_asks_no_subscriber() {
    let _alone = alone();
    let a = matrix();
    let op = SparseOpBuilder::new().device(Device::Cpu).build(&a).unwrap();
    let (x, mut y) = (vec![1.0; a.ncols()], vec![0.0; a.nrows()]);
    let recorder = Recorder::new(Level::DEBUG);
    let asked = Arc::clone(&recorder.asked);
    with_default(recorder, || {
        // The first product registers its spans.
        op.apply(&x, &mut y).unwrap();
        let before = asked.load(Ordering::Relaxed);
        (0..1000).for_each(|_| op.apply(&x, &mut y).unwrap());
        assert_eq!(asked.load(Ordering::Relaxed), before);
    });
}
