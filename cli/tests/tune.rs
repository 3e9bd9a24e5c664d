//! Tuning from the command line: measurements are kept and can be fitted again.

mod common;

use common::{sparseop, stdout};
use serde_json::Value;
use sparseop::tuning::profile::Profile;
use sparseop::tuning::store::sealed;
use std::fs;
use std::path::Path;

/// Small matrices of three classes, timed very briefly.
const MATRICES: [&str; 6] = [
    "gallery:small,n=30",
    "gallery:banded,rows=500",
    "gallery:uniform,rows=500",
    "--dtype",
    "f32",
    "--seconds=0.1",
];

/// The arguments of a run in a folder.
fn arguments<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["tune"], &MATRICES[..], &["--out", out], more].concat()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&[args, &["--json"]].concat())).unwrap()
}

fn warnings(args: &[&str]) -> String {
    let output = sparseop(args).assert().success().get_output().stderr.clone();
    String::from_utf8(output).unwrap()
}

/// A folder, the path of the profile in it, and that of its journal.
fn folder() -> (tempfile::TempDir, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("mine.ron").to_str().unwrap().to_owned();
    let journal = format!("{out}.journal");
    (folder, out, journal)
}

#[test]
fn an_exhausted_budget_leaves_a_profile_and_a_journal() {
    let (_folder, out, journal) = folder();
    let first = json(&arguments(&out, &["--budget", "0.000001s"]));
    assert_eq!((&first["measured"], &first["reused"]), (&1.into(), &0.into()));
    assert_eq!(first["left_out"].as_array().unwrap().len(), 2);
    assert_eq!(Profile::read(Path::new(&out)).unwrap().records.len(), 1);
    assert!(Path::new(&journal).exists());

    let second = json(&arguments(&out, &[]));
    assert_eq!((&second["measured"], &second["reused"]), (&3.into(), &1.into()));
    assert!(second["left_out"].as_array().unwrap().is_empty());
    let profile = Profile::read(Path::new(&out)).unwrap();
    assert!(profile.validation.held_out.is_some() && profile.records.len() == 3);
    assert!(!Path::new(&journal).exists(), "what it was for is done");
}

#[test]
fn torn_lines_are_measured_again_and_stale_ones_are_not_used() {
    let (_folder, out, journal) = folder();
    let budget = arguments(&out, &["--budget", "0.000001s"]);
    json(&budget);
    let whole = fs::read_to_string(&journal).unwrap();
    // Killed while it was writing a line.
    for torn in [&b"(matrix:\"gallery:banded"[..], b"\xff\n", b"\xff"] {
        fs::write(&journal, [whole.as_bytes(), torn].concat()).unwrap();
        assert_eq!(json(&budget)["reused"], 1);
        assert_eq!(fs::read_to_string(&journal).unwrap(), whole);
    }

    // A measurement with a number that cannot be, and one without a number.
    for (from, to) in [("cv:", "cv:-1"), ("cv:", "other:")] {
        assert!(whole.contains(from), "{whole}");
        fs::write(&journal, whole.replacen(from, to, 1)).unwrap();
        assert_eq!(json(&budget)["reused"], 0, "{to}");
    }
    for (from, to) in [
        ("kernels:\"cpu-", "kernels:\"old-"),
        ("layout:2", "layout:7"),
        ("seconds: 0.1", "seconds: 9.0"),
    ] {
        assert!(whole.contains(from), "{whole}");
        fs::write(&journal, whole.replacen(from, to, 1)).unwrap();
        let said = warnings(&budget);
        assert!(said.contains("is restarted"), "{said}");
    }
    // Killed while it was writing the first line.
    fs::write(&journal, &whole[..20]).unwrap();
    assert!(warnings(&budget).contains("is restarted"));
    assert_eq!(json(&arguments(&out, &["--budget", "0.000001s", "--fresh"]))["reused"], 0);
}

/// The message of a run that fails.
fn refusal(args: &[&str]) -> String {
    let output = sparseop(args).assert().code(1).get_output().stderr.clone();
    String::from_utf8(output).unwrap()
}

#[test]
fn a_file_that_is_no_journal_stays() {
    let (folder, out, journal) = folder();
    for text in ["no journal at all\n", "(schema:2,\n", "\n", "", "(", "(layout:1,policy:"] {
        fs::write(&journal, text).unwrap();
        for more in [&[][..], &["--fresh"]] {
            let said = refusal(&arguments(&out, more));
            assert!(said.contains(&journal) && said.contains("move it away"), "{said}");
        }
        assert_eq!(fs::read_to_string(&journal).unwrap(), text);
    }
    fs::remove_file(&journal).unwrap();
    refusal(&["tune", folder.path().to_str().unwrap(), "--out", &out]);
    assert!(!Path::new(&journal).exists(), "a run without matrices leaves no journal");
}

#[test]
fn a_second_run_with_the_same_output_is_refused() {
    let (_folder, out, journal) = folder();
    fs::write(&journal, "(layout:2,policy:\"").unwrap();
    let first = fs::File::open(&journal).unwrap();
    first.try_lock().unwrap();
    let said = refusal(&arguments(&out, &[]));
    assert!(said.contains("another process") && said.contains(&journal), "{said}");
    assert!(Path::new(&journal).exists() && !Path::new(&out).exists());
    drop(first);
    json(&arguments(&out, &[]));
    assert!(Path::new(&out).exists() && !Path::new(&journal).exists());
}

#[test]
fn a_read_only_output_is_refused_before_anything_is_measured() {
    let (_folder, out, journal) = folder();
    fs::write(&out, "mine").unwrap();
    let mut permissions = fs::metadata(&out).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&out, permissions).unwrap();
    let said = refusal(&arguments(&out, &[]));
    assert!(said.contains(&out) && said.contains("read-only"), "{said}");
    assert_eq!(fs::read_to_string(&out).unwrap(), "mine");
    assert!(!Path::new(&journal).exists());
}

#[cfg(unix)]
#[test]
fn a_journal_is_neither_a_link_nor_a_pipe() {
    let (folder, out, journal) = folder();
    let notes = folder.path().join("notes");
    fs::write(&notes, "my notes").unwrap();
    std::os::unix::fs::symlink(&notes, &journal).unwrap();
    let said = refusal(&arguments(&out, &["--budget", "0.000001s"]));
    assert!(said.contains(&journal) && said.contains("symbolic link; remove it"), "{said}");
    assert!(Path::new(&journal).is_symlink());
    assert_eq!(fs::read_to_string(&notes).unwrap(), "my notes");
    fs::remove_file(&journal).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&journal).status().unwrap().success());
    let said = refusal(&arguments(&out, &[]));
    assert!(said.contains("not a regular file"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_journal_of_another_user_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let (_folder, out, journal) = folder();
    let text = "(layout:2,policy:\"";
    fs::write(&journal, text).unwrap();
    fs::set_permissions(&journal, fs::Permissions::from_mode(0o666)).unwrap();
    let said = refusal(&arguments(&out, &[]));
    assert!(said.contains(&journal) && said.contains("chmod go-w"), "{said}");
    fs::set_permissions(&journal, fs::Permissions::from_mode(0o644)).unwrap();
    // Only the superuser can give files away.
    if std::os::unix::fs::chown(&journal, Some(65_534), None).is_err() {
        println!("skipped: no file can be given to another user");
        return;
    }
    let said = refusal(&arguments(&out, &["--fresh"]));
    assert!(said.contains(&journal) && said.contains("it belongs to user 65534"), "{said}");
    assert_eq!(fs::read_to_string(&journal).unwrap(), text);
}

#[test]
fn a_file_that_changed_is_measured_again() {
    let (folder, out, _) = folder();
    let file = folder.path().join("a.mtx").to_str().unwrap().to_owned();
    let write = |spec: &str| drop(sparseop(&["gallery", "write", spec, &file]).assert().success());
    let run = || {
        let args = [
            "tune",
            &file,
            "gallery:small,n=30",
            "--dtype",
            "f32",
            "--seconds=0.005",
            "--out",
            &out,
        ];
        json(&[&args[..], &["--budget", "0.000001s"]].concat())["reused"].clone()
    };
    write("banded,rows=500");
    assert_eq!([run(), run()], [0, 1]);
    write("banded,rows=501");
    assert_eq!(run(), 0);
}

#[cfg(unix)]
#[test]
fn a_killed_run_can_be_resumed() {
    use std::time::{Duration, Instant};
    let (_folder, out, journal) = folder();
    let mut args = arguments(&out, &[]);
    // Long enough to be killed.
    let long = ["gallery:road,n=60", "--seconds=0.3"];
    args.retain(|arg| !arg.starts_with("--seconds"));
    args.extend(long);
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_sparseop"))
        .args(&args)
        .envs([("RAYON_NUM_THREADS", "2"), ("SPARSEOP_DEVICE", "cpu"), ("SPARSEOP_PROFILE", "off")])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let patience = Instant::now() + Duration::from_secs(120);
    let lines = || fs::read_to_string(&journal).map_or(0, |text| text.lines().count());
    while lines() < 2 {
        assert!(Instant::now() < patience, "no matrix was ever measured");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!Path::new(&out).exists());
    let kept = lines() - 1;
    let done = json(&args);
    assert!(
        done["reused"].as_u64().unwrap() as usize >= kept.min(3) && done["measured"] == 4,
        "{done}"
    );
    assert!(Path::new(&out).exists() && !Path::new(&journal).exists());
}

#[test]
fn stored_decisions_replace_calibration() {
    let (folder, out, _) = folder();
    let store = folder.path().join("store");
    let run = |args: &[&str]| {
        let output =
            sparseop(args).env("SPARSEOP_STORE", &store).assert().success().get_output().clone();
        String::from_utf8(output.stdout).unwrap()
    };
    let forget =
        ["tune", "gallery:banded,rows=500", "--seconds=0.005", "--out", &out, "--no-remember"];
    run(&forget);
    assert!(!store.exists(), "nothing is kept that is not to be");
    run(&arguments(&out, &[]));
    let best = |matrix: &str| {
        let profile = Profile::read(Path::new(&out)).unwrap();
        let record = profile.records.iter().find(|record| record.matrix == matrix).unwrap().clone();
        record.runs.iter().min_by(|a, b| a.product_us.total_cmp(&b.product_us)).unwrap().product_us
    };
    for matrix in ["gallery:banded,rows=500", "gallery:uniform,rows=500"] {
        // Calibration is requested, but the stored decision is used instead.
        let args =
            ["analyze", matrix, "--dtype", "f32", "--remember", "--tuning", "calibrate", "--json"];
        let found: Value = serde_json::from_str(&run(&args)).unwrap();
        let measured = found["candidates"][0]["measured_us"].as_f64().unwrap();
        assert_eq!(found["candidates"][0]["plan"], found["plan"]);
        // With its share of the preparation over a thousand products the plan need not be the
        // fastest, but is not far from it.
        assert!(
            measured >= best(matrix) * 0.999 && measured <= best(matrix) * 3.0,
            "{measured} {}",
            best(matrix)
        );
        let text = run(&["analyze", matrix, "--dtype", "f32", "--remember"]);
        assert!(text.contains(" per product measured earlier on "), "{text}");
        let text = run(&["analyze", matrix, "--dtype", "f32", "--remember", "-v"]);
        assert!(text.contains("timing run none, stored "), "{text}");
    }
    // Nothing is stored for the other scalar type.
    let other = run(&["analyze", "gallery:banded,rows=500", "--dtype", "f64", "--remember"]);
    assert!(other.contains("no stored decision"), "{other}");
}

#[test]
fn repeated_timing_runs_report_the_agreement_of_decisions() {
    let (_folder, out, _) = folder();
    let result = json(&arguments(&out, &["--repeat", "4"]));
    let repeat = &result["repeat"];
    assert_eq!(
        (&repeat["timing_runs"], &repeat["matrices"], &repeat["judged"]),
        (&4.into(), &3.into(), &0.into())
    );
    for way in ["successive", "fresh"] {
        let agreement = &repeat[way];
        let differing = agreement["differing"].as_array().unwrap();
        assert_eq!(agreement["agreeing"].as_u64().unwrap() as usize + differing.len(), 3);
        for one in differing {
            let decisions = one["decisions"].as_array().unwrap();
            let votes: u64 =
                decisions.iter().map(|decided| decided["timing_runs"].as_u64().unwrap()).sum();
            assert!(decisions.len() > 1 && votes == 4, "{one}");
        }
        assert!(agreement["largest_excess"].as_f64().unwrap() >= 1.0);
        assert_eq!(agreement["regret"]["matrices"], 12);
    }
    let text = stdout(&arguments(&out, &["--repeat", "2"]));
    for expected in
        ["2 timing runs of each of 3 matrices", "successive, each starting", "fresh, each starting"]
    {
        assert!(text.contains(expected), "{text}");
    }
    assert!(json(&arguments(&out, &[])).get("repeat").is_none());
    sparseop(&arguments(&out, &["--repeat", "0"])).assert().code(2);
}

/// The stored plan of a matrix, and the plans of its timing run, the slowest last.
fn remembered(store: &Path, matrix: &str) -> (String, Vec<String>) {
    let args = ["analyze", matrix, "--dtype", "f32", "--remember", "--json"];
    let output =
        sparseop(&args).env("SPARSEOP_STORE", store).assert().success().get_output().clone();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let candidates = found["candidates"].as_array().unwrap().iter();
    let mut timed: Vec<(f64, String)> =
        candidates.filter_map(|c| Some((c["measured_us"].as_f64()?, text(&c["plan"])))).collect();
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));
    (text(&found["plan"]), timed.into_iter().map(|(_, plan)| plan).collect())
}

#[test]
fn a_run_starts_from_the_stored_decision() {
    let (folder, out, _) = folder();
    let store = folder.path().join("store");
    let matrix = "gallery:poisson2d,n=200";
    let tune = || {
        let args = ["tune", matrix, "--dtype", "f32", "--seconds=0.5", "--out", &out];
        sparseop(&args).env("SPARSEOP_STORE", &store).assert().success();
        remembered(&store, matrix)
    };
    let (first, timed) = tune();
    assert!(timed.len() > 4 && timed.contains(&first), "{timed:?}");
    let far = timed.last().unwrap();
    assert_ne!(&first, far);
    // As if that run had chosen another plan, which is far from the fastest: it is given up.
    let folder = fs::read_dir(store.join("sparseop/decisions")).unwrap();
    let entry = folder.map(|file| file.unwrap().path()).next().unwrap();
    let text = fs::read_to_string(&entry).unwrap();
    let (text, _checksum) = text.rsplit_once("\n//").unwrap();
    let text = text.replacen(&format!("winner: \"{first}\""), &format!("winner: \"{far}\""), 1);
    fs::write(&entry, sealed(&text)).unwrap();
    assert_eq!(&remembered(&store, matrix).0, far);
    let (second, _) = tune();
    assert_ne!(&second, far);
}

#[test]
fn calibration_is_compared_with_all_plans() {
    let (folder, out, _) = folder();
    let records = folder.path().join("mine.records").to_str().unwrap().to_owned();
    let page = folder.path().join("page.html").to_str().unwrap().to_owned();
    let first = json(&arguments(&out, &["--calibrate", "--records", &records, "--report", &page]));
    let calibrated = &first["calibrated"];
    assert_eq!(
        (&calibrated["held_out"], &calibrated["regret"]["matrices"]),
        (&false.into(), &3.into())
    );
    let classes = calibrated["classes"].as_object().unwrap();
    assert_eq!(classes.keys().collect::<Vec<_>>(), ["banded", "small", "uniform"]);
    let worst = calibrated["worst"].as_array().unwrap();
    assert_eq!(worst.len(), 3);
    assert_eq!(worst[0]["regret"], calibrated["regret"]["worst"]);
    for one in worst {
        let time = |which: &str| one[which]["product_us"].as_f64().unwrap();
        assert!(
            time("chosen") > 0.0 && time("fastest") > 0.0 && one["regret"].as_f64() >= Some(1.0),
            "{one}"
        );
        assert!(
            one["timed_plans"].as_u64() > Some(1) && one["seconds"].as_f64() > Some(0.0),
            "{one}"
        );
        assert_eq!(one["why"].is_null(), one["chosen"]["plan"] == one["fastest"]["plan"], "{one}");
    }
    let validation = Profile::read(Path::new(&out)).unwrap().validation;
    let regret = validation.calibrated.unwrap();
    assert!((regret.worst - calibrated["regret"]["worst"].as_f64().unwrap()).abs() < 1e-12);
    assert!(stdout(&["profile", "show", &out]).contains("calibrated"));
    assert!(fs::read_to_string(&page).unwrap().contains("Regret of calibration"));

    let text = stdout(&arguments(&out, &["--calibrate", "--held-out", &records]));
    let expected =
        "predicted by profiles fitted without the matrix's class, over 3 matrices: regret";
    assert!(text.contains(expected), "{text}");
    sparseop(&arguments(&out, &["--held-out", &records])).assert().code(2);
    let other = fs::read_to_string(&records).unwrap().replacen("name:\"", "name:\"Another ", 1);
    fs::write(&records, other).unwrap();
    let refused =
        sparseop(&arguments(&out, &["--calibrate", "--held-out", &records])).assert().code(1);
    let said = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
    assert!(said.contains("are of Another "), "{said}");
}

#[test]
fn kept_measurements_give_the_same_profile_again() {
    let (folder, out, _) = folder();
    let records = folder.path().join("mine.zst").to_str().unwrap().to_owned();
    let again = folder.path().join("again.ron").to_str().unwrap().to_owned();
    let plain = folder.path().join("mine.records").to_str().unwrap().to_owned();
    json(&arguments(&out, &["--records", &records]));
    json(&["tune", "--from", &records, "--out", &again, "--records", &plain]);
    assert_eq!(fs::read_to_string(&out).unwrap(), fs::read_to_string(&again).unwrap());
    json(&["tune", "--from", &plain, "--out", &again, "--no-records"]);
    let profile = Profile::read(Path::new(&again)).unwrap();
    assert!(profile.records.is_empty() && profile.validation.held_out.is_some());

    let text = stdout(&["tune", "--from", &plain, "--explain-worst", "1"]);
    for expected in
        ["predicted", "measured", "correction", "held-out regret by class", "mean regret"]
    {
        assert!(text.contains(expected), "{text}");
    }

    // The regret on matrices that were not fitted to.
    let others = folder.path().join("others.zst").to_str().unwrap().to_owned();
    let other_out = folder.path().join("others.ron").to_str().unwrap().to_owned();
    let measure = ["tune", "gallery:poisson2d,n=150", "--device", "cpu", "--seconds", "0.01"];
    let to_files = ["--no-remember", "--out", &other_out, "--records", &others];
    json(&[&measure[..], &to_files[..]].concat());
    let page = folder.path().join("page.html").to_str().unwrap().to_owned();
    let validate = ["tune", "--from", &plain, "--validate", &others];
    let text = stdout(&[&validate[..], &["--report", &page]].concat());
    for expected in ["not fitted to", "structures of the fit"] {
        assert!(text.contains(expected), "{text}");
    }
    assert!(fs::read_to_string(&page).unwrap().contains("matrices that were not fitted to"));
    let validated = json(&validate);
    let regret = &validated["unfitted"][0]["regret"];
    // The profile has coefficients in f32 only.
    assert_eq!((&regret["f32"]["matrices"], &regret["f64"]), (&1.into(), &().into()));
    let curve = validated["learning_curve"].as_array().unwrap();
    assert!(curve.iter().all(|step| step["regret"][0]["matrices"] == 1), "{curve:?}");
    let refused = sparseop(&["tune", "--from", &plain, "--validate", &plain]).assert().code(1);
    let said = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
    assert!(said.contains("was fitted to; validate with measurements of others"), "{said}");

    // Measurements of other kernels do not judge a profile.
    let older = fs::read_to_string(&plain).unwrap().replacen("kernels:\"cpu-", "kernels:\"old-", 1);
    let older_file = folder.path().join("older").to_str().unwrap().to_owned();
    for (text, expected) in [
        (older.as_str(), "kernels of another version"),
        (older.lines().next().unwrap(), "header line"),
    ] {
        fs::write(&older_file, text).unwrap();
        let args = ["tune", "--from", &plain, "--validate", &older_file];
        let refused = sparseop(&args).assert().code(1);
        let said = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
        assert!(said.contains(expected), "{said}");
    }

    // Measurements of two devices do not make one profile.
    let other = fs::read_to_string(&plain).unwrap().replacen("kernels:\"cpu-", "kernels:\"old-", 1);
    let strange = folder.path().join("strange").to_str().unwrap().to_owned();
    fs::write(&strange, other).unwrap();
    let refused = sparseop(&["tune", "--from", &plain, "--from", &strange]).assert().code(1);
    let said = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
    assert!(said.contains("kernels of another version"), "{said}");
    let whole = fs::read_to_string(&plain).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(whole.contains(from), "{whole}");
        whole.replacen(from, to, 1)
    };
    for (text, expected) in [
        (String::new(), "header line"),
        ("(layout:1)\n".to_owned(), "header line"),
        (changed("threads:2", "threads:0"), "line 1: it was measured on 0 threads"),
        (changed("copy_bandwidth:Some(", "copy_bandwidth:Some(-"), "line 1: its ceilings must be"),
        (changed("nrows:", "nrows:1844674407370"), "line 2: nrows of `gallery:small"),
        (changed("cv:", "cv:-1"), "line 2: cv of `gallery:small"),
        (changed("cv:", "cv:inf,mean:"), "line 2: "),
        (changed("cv:", "other:"), "line 2: "),
        (changed("class:\"", "class:\"\\u{1b}"), "line 2: its names are"),
    ] {
        fs::write(&strange, text).unwrap();
        let refused = sparseop(&["tune", "--from", &strange]).assert().code(1);
        let said = String::from_utf8(refused.get_output().stderr.clone()).unwrap();
        assert!(said.contains("strange") && said.contains(expected), "{said}");
    }
}
