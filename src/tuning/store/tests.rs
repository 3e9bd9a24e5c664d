use super::*;
use crate::device::{Device, GpuSpec};
use crate::testing::chapter;
use crate::tuning::decision::{TimedPlan, TimingOutcome};
use std::fs;
use std::time::{Duration, SystemTime};

fn key() -> DecisionKey {
    let a = chapter::matrix::<f32>();
    let analysis = Analysis::of(a.view());
    let request = Request::new(&analysis, ScalarKind::F32, u64::MAX);
    DecisionKey::new(
        Fingerprint::of(a.view()),
        &analysis,
        &Device::Cpu.spec(),
        &request,
        None,
        false,
    )
}

/// A timing run of two plans, one of which failed.
fn timing_run() -> TimingRun {
    let timed_plan = |plan: &str, product: Option<f64>, outcome| TimedPlan {
        plan: plan.parse().unwrap(),
        prepare: product,
        product,
        spread: product,
        rounds: 5,
        outcome,
    };
    let failed = TimingOutcome::Failed { reason: "it was \"too\" slow".to_owned() };
    TimingRun {
        winner: "sell(c:32,sigma:512)".parse().unwrap(),
        cold: false,
        timed_plans: vec![
            timed_plan("csr", None, failed),
            timed_plan("sell(c:32,sigma:512)", Some(1e-5), TimingOutcome::Won),
        ],
        groups: 1,
        seconds: 0.5,
        packing: 0.25,
        held_bytes: 200,
        decided: true,
    }
}

fn entry() -> StoredDecision {
    StoredDecision::new(key(), &Device::Cpu.spec(), 1_800_000_000, timing_run())
}

fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::below(folder.path());
    (folder, store)
}

#[test]
fn stored_decisions_are_found_by_their_key_only() {
    let (_folder, store) = store();
    let cpu = Device::Cpu.spec();
    assert_eq!(store.find(&key(), &cpu), Err(Miss::Unknown));
    store.keep(&entry()).unwrap();
    assert_eq!(store.find(&key(), &cpu), Ok(entry()));
    let others: [DecisionKey; 9] = [
        DecisionKey { structure: "00000000000000000000000000000abc".parse().unwrap(), ..key() },
        DecisionKey { scalar: ScalarKind::F64, ..key() },
        DecisionKey { values: ValueClass::Ones, ..key() },
        DecisionKey { device: "another".to_owned(), ..key() },
        DecisionKey { threads: key().threads + 1, ..key() },
        DecisionKey { calls: 0, ..key() },
        DecisionKey { memory_limit: Some(1 << 30), ..key() },
        DecisionKey { deterministic: true, ..key() },
        DecisionKey { cold: true, ..key() },
    ];
    for other in others {
        assert_eq!(store.find(&other, &cpu), Err(Miss::Unknown), "{other:?}");
    }
}

#[test]
fn the_key_follows_from_the_matrix_and_the_request() {
    let a = chapter::matrix::<f64>();
    let analysis = Analysis::of(a.view());
    let request =
        Request { expected_calls: 12_345, ..Request::new(&analysis, ScalarKind::F64, u64::MAX) };
    let key = DecisionKey::new(
        Fingerprint::of(a.view()),
        &analysis,
        &Device::Cpu.spec(),
        &request,
        Some(7),
        true,
    );
    assert_eq!(
        (key.calls, key.memory_limit, key.cold, key.values),
        (4, Some(7), true, ValueClass::Few)
    );
    assert_eq!(key.threads, Device::Cpu.spec().threads);
    let structure = Fingerprint::of(a.view());
    let cpu = Device::Cpu.spec();
    let more = DeviceSpec { threads: cpu.threads + 1, ..cpu };
    assert_ne!(DecisionKey::new(structure, &analysis, &more, &request, Some(7), true), key);
}

#[test]
fn outdated_and_foreign_entries_are_misses_with_a_reason() {
    let (_folder, store) = store();
    let cpu = Device::Cpu.spec();
    let mut old = entry();
    old.kernels = "cpu-0".to_owned();
    store.keep(&old).unwrap();
    let miss = store.find(&key(), &cpu).unwrap_err().to_string();
    assert!(miss.contains("out of date") && miss.contains("kernels of another version"), "{miss}");

    let text = |entry: &StoredDecision| sealed(&ron::to_string(entry).unwrap());
    let path = store.folder().join(key().file());
    fs::write(&path, text(&entry()).replacen("schema:5", "schema:99", 1)).unwrap();
    assert!(matches!(store.find(&key(), &cpu), Err(Miss::Stale(reason)) if reason.contains("99")));
    let foreign = StoredDecision { key: DecisionKey { threads: 1000, ..key() }, ..entry() };
    fs::write(&path, text(&foreign)).unwrap();
    assert_eq!(store.find(&key(), &cpu), Err(Miss::Foreign));

    let gpu = |driver: &str| GpuSpec { l2_bytes: 1, memory_bytes: 1, driver: driver.to_owned() };
    let on = |driver: &str| DeviceSpec { gpu: Some(gpu(driver)), ..Device::Cpu.spec() };
    store.keep(&StoredDecision::new(key(), &on("12.9"), 0, timing_run())).unwrap();
    assert!(store.find(&key(), &on("12.9")).is_ok());
    let other = store.find(&key(), &on("13.0"));
    assert!(matches!(other, Err(Miss::Stale(reason)) if reason.contains("driver")));
}

#[test]
fn damaged_entries_are_misses_and_are_replaced() {
    let (_folder, store) = store();
    let cpu = Device::Cpu.spec();
    store.keep(&entry()).unwrap();
    let path = store.folder().join(key().file());
    let whole = fs::read(&path).unwrap();
    let miss = || match store.find(&key(), &cpu) {
        Err(Miss::Damaged(reason)) => reason,
        found => panic!("{found:?}"),
    };
    for cut in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
        fs::write(&path, &whole[..cut]).unwrap();
        miss();
    }
    let text = String::from_utf8(whole).unwrap();
    for (from, to) in
        [("rounds: 5", "rounds: 0"), ("product: Some(0.00001)", "product: Some(0.00002)")]
    {
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        assert!(miss().contains("checksum"));
    }
    // What only a program can have written, checksum included.
    let (text, _) = text.rsplit_once(SEAL).unwrap();
    let nested = format!("(schema: 5, key: {}", "(".repeat(30_000));
    for wrong in [
        text.replace("sell(c:32,sigma:512)", "cell(c:32)"),
        text.replacen("winner: \"sell(c:32,sigma:512)\"", "winner: \"ell\"", 1),
        text.replacen("cold: false", "cold: maybe", 1),
        nested,
    ] {
        assert_ne!(wrong, text);
        fs::write(&path, sealed(&wrong)).unwrap();
        miss();
    }
    fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
    miss();
    for (number, wrong) in [
        ("prepare: Some(0.00001)", "prepare: Some(NaN)"),
        ("product: Some(0.00001)", "product: Some(inf)"),
        ("product: Some(0.00001)", "product: Some(-0.00001)"),
        ("spread: Some(0.00001)", "spread: Some(-inf)"),
        ("seconds: 0.5", "seconds: NaN"),
        ("packing: 0.25", "packing: -0.25"),
        ("packing: 0.25", "packing: 1e400"),
        ("packing: 0.25,", ""),
    ] {
        assert!(text.contains(number), "{text}");
        fs::write(&path, sealed(&text.replacen(number, wrong, 1))).unwrap();
        let reason = miss();
        assert!(reason.contains(wrong.split(':').next().unwrap()), "{reason}");
    }
    fs::write(&path, "x".repeat(MAX_BYTES as usize + 1)).unwrap();
    assert!(matches!(store.find(&key(), &cpu), Err(Miss::Untrusted(why)) if why.contains("65536")));
    store.keep(&entry()).unwrap();
    assert!(store.find(&key(), &cpu).is_ok());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let miss = store.find(&key(), &cpu).unwrap_err();
    assert!(matches!(&miss, Miss::Untrusted(why) if why.contains("not a regular file")), "{miss}");
    assert!(store.keep(&entry()).is_err(), "a folder is not replaced");
}

#[test]
fn the_oldest_go_when_there_are_too_many() {
    let (_folder, store) = store();
    let store = Store { capacity: 2, ..store };
    let cpu = Device::Cpu.spec();
    let of = |calls| DecisionKey { calls, ..key() };
    for (age, calls) in [(30, 3), (10, 1), (20, 2)] {
        store.keep(&StoredDecision { key: of(calls), ..entry() }).unwrap();
        let past = SystemTime::now() - Duration::from_secs(age);
        let file = fs::File::open(store.folder().join(of(calls).file())).unwrap();
        file.set_modified(past).unwrap();
    }
    store.keep(&StoredDecision { key: of(9), ..entry() }).unwrap();
    assert_eq!(
        [1, 2, 3, 9].map(|calls| store.find(&of(calls), &cpu).is_ok()),
        [true, false, false, true]
    );
}

#[test]
fn entries_whose_time_is_yet_to_come_go_first() {
    let (_folder, store) = store();
    let store = Store { capacity: 1, ..store };
    let cpu = Device::Cpu.spec();
    let of = |calls| DecisionKey { calls, ..key() };
    // The clock was ahead.
    store.keep(&StoredDecision { key: of(1), when: u64::MAX, ..entry() }).unwrap();
    let file = fs::File::open(store.folder().join(of(1).file())).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(86_400)).unwrap();
    assert!(store.find(&of(1), &cpu).is_ok());
    store.keep(&StoredDecision { key: of(2), ..entry() }).unwrap();
    assert_eq!([1, 2].map(|calls| store.find(&of(calls), &cpu).is_ok()), [false, true]);
}

#[test]
fn a_folder_that_cannot_be_is_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let store = Store::below(&file);
    assert_eq!(store.find(&key(), &Device::Cpu.spec()), Err(Miss::Unknown));
    let message = store.keep(&entry()).unwrap_err().to_string();
    assert!(message.contains("decisions") && !message.contains('\n'), "{message}");
}

#[test]
fn many_share_a_folder() {
    let (_folder, store) = store();
    store.keep(&entry()).unwrap();
    std::thread::scope(|scope| {
        for when in 0..20 {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..50 {
                    store.keep(&StoredDecision { when, ..entry() }).unwrap();
                    let found = store
                        .find(&key(), &Device::Cpu.spec())
                        .expect("always there, always whole");
                    assert_eq!(found.timing_run, timing_run());
                }
            });
        }
    });
    assert_eq!(fs::read_dir(store.folder()).unwrap().count(), 1, "nothing is left behind");
    // While the folder is deleted an entry is whole or a miss.
    std::thread::scope(|scope| {
        let deleting = scope.spawn(|| {
            (0..200).for_each(|_| drop(fs::remove_dir_all(store.folder())));
        });
        while !deleting.is_finished() {
            let _ = store.keep(&entry());
            let found = store.find(&key(), &Device::Cpu.spec());
            assert!(found.is_err() || found == Ok(entry()), "{found:?}");
        }
    });
    store.keep(&entry()).unwrap();
    assert_eq!(store.find(&key(), &Device::Cpu.spec()), Ok(entry()));
}

#[test]
fn other_files_neither_count_nor_are_removed() {
    let (_folder, store) = store();
    let store = Store { capacity: 2, ..store };
    let cpu = Device::Cpu.spec();
    let of = |calls| DecisionKey { calls, ..key() };
    store.keep(&StoredDecision { key: of(1), ..entry() }).unwrap();
    // Files of the user, a few with names as those of entries, and many with other names.
    let namesakes = (0..9).map(|n| format!("{n:032x}-{n:016x}.ron"));
    let others = (0..4200).map(|n| format!("{n}.ron")).chain(namesakes).chain(["notes".to_owned()]);
    let others: Vec<_> = others.map(|name| store.folder().join(name)).collect();
    let past = SystemTime::now() - Duration::from_secs(60);
    for (number, path) in others.iter().enumerate() {
        fs::write(path, "my notes").unwrap();
        if number % 2 == 0 {
            fs::File::open(path).unwrap().set_modified(past).unwrap();
        }
    }
    store.keep(&StoredDecision { key: of(2), ..entry() }).unwrap();
    assert_eq!([1, 2].map(|calls| store.find(&of(calls), &cpu).is_ok()), [true, true]);
    assert!(others.iter().all(|path| path.exists()));
}

#[cfg(unix)]
#[test]
fn only_what_the_user_alone_can_have_written_is_read() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
    let (folder, store) = store();
    let cpu = Device::Cpu.spec();
    store.keep(&entry()).unwrap();
    let path = store.folder().join(key().file());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    assert_eq!((mode(store.folder()), mode(&path)), (0o700, 0o600));
    let miss = || match store.find(&key(), &cpu) {
        Err(Miss::Untrusted(reason)) => reason,
        found => panic!("{found:?}"),
    };
    set(&path, 0o620);
    let reason = miss();
    let file = path.display().to_string();
    assert!(reason.contains(&file) && reason.contains("chmod go-w"), "{reason}");
    assert!(reason.contains(STORE_VARIABLE) && crate::file_warnings().contains(&reason));
    set(&path, 0o644);
    assert!(store.find(&key(), &cpu).is_ok(), "others may read it");
    // Only the superuser can give files away.
    let user = fs::metadata(&path).unwrap().uid();
    let other = user + 1;
    for given in [path.as_path(), store.folder()] {
        if chown(given, Some(other), None).is_ok() {
            let reason = miss();
            assert!(reason.contains(&format!("belongs to user {other}")), "{reason}");
            assert!(!reason.contains("remove"), "{reason}");
            chown(given, Some(user), None).unwrap();
        } else {
            println!("skipped: {} cannot be given to another user", given.display());
        }
    }
    assert!(store.find(&key(), &cpu).is_ok());
    set(store.folder(), 0o770);
    miss();
    assert!(store.keep(&entry()).is_err());
    set(store.folder(), 0o700);

    // A pipe without a writer, and links, which are replaced and not followed.
    fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    miss();
    store.keep(&entry()).unwrap();
    assert!(store.find(&key(), &cpu).is_ok());
    let other = folder.path().join("other");
    fs::rename(&path, &other).unwrap();
    let text = fs::read(&other).unwrap();
    for target in [&other, Path::new("/dev/zero")] {
        symlink(target, &path).unwrap();
        miss();
        store.keep(&StoredDecision { when: 1, ..entry() }).unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        fs::remove_file(&path).unwrap();
    }
    assert_eq!(fs::read(&other).unwrap(), text);

    // A link in place of the folder.
    let moved = folder.path().join("moved");
    fs::rename(store.folder(), &moved).unwrap();
    symlink(&moved, store.folder()).unwrap();
    assert!(miss().contains("symbolic link"));
    assert!(store.keep(&entry()).is_err());
}
