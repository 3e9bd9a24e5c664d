//! A file of any bytes in the store is an entry or a miss. An entry that is found is stored as a
//! file that is found as the same entry.
//!
//! An entry is bound to the machine: the bytes are edits of this machine's. Half of the edited
//! entries get a checksum that fits, so that their texts are parsed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sparseop::analysis::{Analysis, Fingerprint};
use sparseop::device::DeviceSpec;
use sparseop::matrix::gallery::Spec;
use sparseop::tuning::decision::{Request, TimedPlan, TimingOutcome, TimingRun};
use sparseop::tuning::store::{DecisionKey, Store, StoredDecision, sealed};
use sparseop::{Device, ScalarKind};
use sparseop_fuzz::edited;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::{fs, process};

/// An entry of a store, with its key and its file. The store is in a folder in memory, if there is
/// such a folder.
struct StoredEntry {
    store: Store,
    key: DecisionKey,
    device: DeviceSpec,
    file: PathBuf,
    text: Vec<u8>,
}

static ENTRY: LazyLock<StoredEntry> = LazyLock::new(|| {
    let store =
        Store::below(&sparseop_fuzz::folder().join(format!("sparseop-fuzz-{}", process::id())));
    let a = "poisson2d,n=4".parse::<Spec>().unwrap().generate::<f32>().unwrap();
    let analysis = Analysis::of(a.view());
    let device = Device::Cpu.spec();
    let request = Request::new(&analysis, ScalarKind::F32, u64::MAX);
    let structure = Fingerprint::of(a.view());
    let key = DecisionKey::new(structure, &analysis, &device, &request, None, false);
    let timed = |plan: &str, outcome| TimedPlan {
        plan: plan.parse().unwrap(),
        prepare: Some(1e-6),
        product: Some(2e-6),
        spread: None,
        rounds: 5,
        outcome,
    };
    let timing_run = TimingRun {
        winner: "csr(scalar)".parse().unwrap(),
        cold: false,
        timed_plans: vec![
            timed("csr(scalar)", TimingOutcome::Won),
            timed("ell", TimingOutcome::Failed { reason: "no memory".to_owned() }),
        ],
        groups: 1,
        seconds: 0.5,
        packing: 0.25,
        held_bytes: 200,
        decided: true,
    };
    store.keep(&StoredDecision::now(key.clone(), &device, timing_run)).unwrap();
    let file = fs::read_dir(store.folder()).unwrap().next().unwrap().unwrap().path();
    let text = fs::read(&file).unwrap();
    StoredEntry { store, key, device, file, text }
});

/// The entry without its last line, the checksum.
fn unsealed(entry: &[u8]) -> &[u8] {
    let end = entry[..entry.len() - 1].iter().rposition(|&byte| byte == b'\n');
    &entry[..end.unwrap()]
}

fuzz_target!(|edits: &[u8]| {
    let StoredEntry { store, key, device, file, text } = &*ENTRY;
    let written = match edits.split_first() {
        Some((first, edits)) if first % 2 == 1 => {
            let text = edited(unsealed(text), edits);
            String::from_utf8(text).map_or_else(|e| e.into_bytes(), |text| sealed(&text).into())
        }
        _ => edited(text, edits),
    };
    fs::write(file, written).unwrap();
    let found = store.find(key, device);
    assert!(found.is_ok() || !edits.is_empty());
    if let Ok(entry) = found {
        store.keep(&entry).unwrap();
        assert_eq!(store.find(key, device).unwrap(), entry);
    }
});
