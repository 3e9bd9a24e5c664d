//! The program's interface to other programs: exit codes, JSON, output streams, atomic files.

mod common;

use common::{sparseop, stdout};
use serde_json::Value;
use std::fs;
use std::io::Write;

const TEXT: &str = "%%MatrixMarket matrix coordinate real general\n2 3 2\n1 3 1.5\n2 1 -2\n";

/// Standard error of the program. It must exit with `code` and, if it fails entirely, print no
/// result.
fn stderr(args: &[&str], code: i32) -> String {
    let assert = sparseop(args).assert().code(code);
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}

fn json(args: &[&str]) -> Vec<Value> {
    stdout(args).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The keys of an object; serde_json sorts them.
fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn sorted(mut keys: Vec<&str>) -> Vec<&str> {
    keys.sort_unstable();
    keys
}

fn path(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn more_vectors_than_memory_are_refused() {
    let args = ["bench", "gallery:poisson2d,n=1500", "--vectors", "65535", "--seconds", "0.01"];
    let assert = sparseop(&args).assert().code(1);
    let said = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(
        said.contains("65535 vectors and their products need") && said.contains("use fewer"),
        "{said}"
    );
}

#[test]
fn wrong_usage_exits_with_2_and_names_the_nearest_spelling() {
    for (args, expected) in [
        (&["bench", "a.mtx", "--plans", "auto,sel(c:32)"][..], "did you mean `sell`?"),
        (&["bench", "a.mtx", "--tuning", "calibrated"], "predict, check, calibrate"),
        (&["bench", "a.mtx", "--calibration-seconds", "0"], "a number of seconds above 0"),
        (&["bench", "a.mtx", "--baselines", "cuspars"], "possible values: sprs, cusparse, none"),
        (&["bench", "a.mtx", "--seconds", "0"], "a number of seconds above 0"),
        (&["bench", "a.mtx", "--cache", "lukewarm"], "possible values: warm, company, cold"),
        (&["apply", "a.mtx", "--plan", "sell(sigm:2)"], "did you mean `sigma`?"),
        (&["analyze", "gallery:bandd"], "did you mean `banded`?"),
        (&["analyze", "gallery:random,seed=4..4"], "`seed=4..4` is an empty range"),
        (&["apply", "gallery:random,seed=1..=4"], "`seed=1..=4` is not a whole number"),
        (&["gallery", "list", "random,sed=1..=4"], "did you mean `seed`?"),
        (&["gallery", "write", "banded,row=3", "a.mtx"], "did you mean `rows`?"),
        (&["analyze", "a.mtx", "--device", "cup"], "did you mean `cpu`?"),
        (&["analyze", "a.mtx", "--dtype", "f16"], "f32, f64"),
        (&["analyze", "a.mtx", "--value-precision", "f64"], "bf16, f16, f32"),
        (&["analyze", "a.mtx", "--memory-limit", "2Q"], "2G, 512M"),
        (&["analyze", "a.mtx", "--expected-calls", "0"], "0 is not in 1.."),
        (&["analyze", "a.mtx", "-q", "-v"], "cannot be used with"),
        (&["solve", "a.mtx", "--out", "b", "--history", "./b"], "the file of two outputs"),
        (&["tune", "a.mtx", "--out", "b", "--records", "b"], "the file of two outputs"),
        (&["tune", "--from", "a.zst", "--out", "./a.zst"], "of an input and of an output"),
        (&["tune", "a.mtx", "--validate", "b", "--out", "b"], "of an input and of an output"),
        (&["apply", "a.mtx", "--out", "a.mtx"], "of an input and of an output"),
        (&["solve", "a.mtx", "--rhs", "b", "--out", "b"], "of an input and of an output"),
        (&["tune", "a.mtx", "--out", "b", "--report", "b.journal"], "the file of two outputs"),
        (&["analyze"], "<MATRIX>..."),
        (&["analise", "a.mtx"], "analyze"),
        (&[], "Usage"),
    ] {
        let message = stderr(args, 2);
        assert!(message.contains(expected), "{args:?}: {message}");
    }
}

#[test]
fn bad_input_exits_with_1_and_one_message() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, bytes: &[u8]| {
        fs::write(folder.path().join(name), bytes).unwrap();
        path(&folder, name)
    };
    let packed = gzip(&TEXT.repeat(100));
    let header_only = at("header.mtx", b"%%MatrixMarket matrix coordinate real general\n2 3 2\n");
    let truncated = at("cut.mtx.gz", &packed[..packed.len() / 2]);
    let empty = at("empty.mtx", b"");
    let no_profile = at("profile.ron", b"nonsense");
    fs::create_dir(folder.path().join("nothing")).unwrap();
    for (args, expected) in [
        (&["analyze", "nowhere.mtx"][..], "cannot open nowhere.mtx: No such file"),
        (&["analyze", &path(&folder, "nothing")], "there is no matrix in"),
        (&["analyze", &header_only], "header.mtx:"),
        (&["analyze", &truncated], "cut.mtx.gz"),
        (&["analyze", &empty], "empty.mtx"),
        (&["analyze", "gallery:small", "--profile", "nowhere.ron"], "cannot read nowhere.ron"),
        (&["analyze", "gallery:small", "--profile", &no_profile], "not a profile"),
        (&["analyze", "gallery:small", "--device", "cuda:99"], "`cuda:99` is not available"),
        (&["analyze", "gallery:dense,n=1M"], "GiB"),
        (&["apply", "gallery:small", "--x", "nowhere.mtx"], "nowhere.mtx"),
        (
            &["apply", "gallery:circuit,rows=30k", "--plan", "ell"],
            "plan ell needs 1357560000 bytes",
        ),
        (
            &["gallery", "write", "small", "/nowhere/a.mtx"],
            "cannot create /nowhere/a.mtx: No such file",
        ),
    ] {
        let message = stderr(args, 1);
        let lines: Vec<&str> = message.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(lines.len() == 1 && lines[0].contains(expected), "{args:?}: {message}");
        assert!(!message.contains("panicked"), "{args:?}: {message}");
        assert_eq!(
            message.matches("No such file").count(),
            message.matches("os error").count(),
            "{message}"
        );
    }
    let line = stderr(&["analyze", &header_only], 1);
    assert!(line.contains("header.mtx:2") || line.contains("header.mtx:3"), "{line}");
}

#[test]
fn a_plan_over_the_memory_limit_is_refused_with_both_numbers() {
    let args =
        ["bench", "gallery:circuit,rows=30k", "--plans", "ell", "--seconds", "0.01", "--json"];
    let assert = sparseop(&args).assert().code(1);
    let message = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(
        message.contains("needs 1357560000 bytes") && message.contains("limit is 67108864 bytes"),
        "{message}"
    );
    let report: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    let refused = &report["runs"][0];
    assert_eq!(keys(refused), ["completed", "engine", "error", "plan"]);
    assert_eq!((&refused["plan"], &refused["completed"]), (&"ell".into(), &false.into()));
    assert_eq!(report["runs"][1]["engine"], "sprs");

    // Among all candidates, one that is too large is no failure.
    let limit = [
        "--plans",
        "all",
        "--memory-limit",
        "650K",
        "--seconds",
        "0.001",
        "--json",
        "--baselines",
        "none",
    ];
    let report = &json(&[&["bench", "gallery:small"], &limit[..]].concat())[0];
    let runs = report["runs"].as_array().unwrap();
    assert!(
        runs.iter().any(|run| run["completed"] == false)
            && runs.iter().any(|run| run["completed"] == true)
    );
}

#[test]
fn a_missing_baseline_is_a_failed_run_and_the_others_continue() {
    let args = ["bench", "gallery:small", "--plans", "csr", "--seconds", "0.001", "--json"];
    let assert =
        sparseop(&[&args[..], &["--baselines", "cusparse,sprs"]].concat()).assert().code(1);
    let message = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(message.contains("cusparse csr_alg1: it needs an NVIDIA GPU"), "{message}");
    assert_eq!(message.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{message}");
    let report: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    let runs: Vec<_> = report["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| (&r["engine"], &r["completed"]))
        .collect();
    let expected = [("sparseop", true), ("cusparse", false), ("sprs", true)]
        .map(|(e, c)| (e.into(), c.into()));
    assert_eq!(runs, expected.iter().map(|(e, c)| (e, c)).collect::<Vec<_>>());
}

#[test]
fn several_vectors_and_the_transposed_matrix_are_compared_with_what_they_replace() {
    let bench =
        ["bench", "gallery:lp,rows=200", "--plans", "auto,csr", "--seconds", "0.001", "--json"];
    let name = |run: &Value| {
        format!("{} {}", run["engine"].as_str().unwrap(), run["plan"].as_str().unwrap())
    };
    let multi = ["--vectors", "3", "--layout", "column", "--baselines", "none", "--device", "cpu"];
    let report = &json(&[&bench[..], &multi].concat())[0];
    assert_eq!((&report["vectors"], &report["layout"]), (&3.into(), &"column".into()));
    let runs = report["runs"].as_array().unwrap();
    assert!(
        runs.iter().all(|run| run["completed"] == true && run["rel_error"].as_f64() < Some(1e-12))
    );
    assert_eq!(name(&runs[runs.len() - 1]), "sparseop one vector");
    let plain = json(&[&bench[..], &["--baselines", "none", "--device", "cpu"]].concat());
    let report = &json(&[&bench[..], &["--transpose", "--device", "cpu"]].concat())[0];
    assert_eq!((&report["transposed"], &report["nrows"]), (&true.into(), &plain[0]["ncols"]));
    let runs = report["runs"].as_array().unwrap();
    let names: Vec<String> = runs.iter().map(name).collect();
    assert_eq!(names[names.len() - 2..], ["sparseop apply_transpose", "sprs csr"]);
    assert!(runs.iter().all(|run| run["completed"] == true));
    let refused = stderr(&["bench", "gallery:small", "--vectors", "1"], 2);
    assert!(refused.contains("1 is not in 2.."), "{refused}");
}

#[test]
fn every_engine_is_timed_in_the_requested_cache_state() {
    let bench = ["bench", "gallery:lp,rows=200", "--plans", "csr", "--seconds", "0.001", "--json"];
    for (cache, task) in [
        ("warm", &["--baselines", "sprs"][..]),
        ("company", &["--baselines", "sprs"]),
        ("cold", &["--baselines", "sprs"]),
        ("company", &["--transpose"]),
        ("cold", &["--vectors", "3", "--baselines", "none"]),
    ] {
        let report = &json(&[&bench[..], task, &["--cache", cache, "--device", "cpu"]].concat())[0];
        assert_eq!(report["cache"], cache);
        let runs = report["runs"].as_array().unwrap();
        assert!(runs.len() > 1 && runs.iter().all(|run| run["completed"] == true), "{runs:?}");
        assert!(runs.iter().all(|run| run["median_us"].as_f64() > Some(0.0)), "{runs:?}");
    }
    let table = stdout(&[&bench[..6], &["--cache", "cold"]].concat());
    assert!(table.contains(" entries in f64, cache cold, on "), "{table}");
}

#[test]
fn the_named_cusparse_is_opened() {
    let args =
        ["bench", "gallery:lp,rows=20", "--plans", "csr", "--baselines", "cusparse", "--json"];
    let named = |path: &str| {
        let assert =
            sparseop(&args).env("SPARSEOP_CUSPARSE", path).env("SPARSEOP_DEVICE", "cpu").assert();
        serde_json::from_slice::<Value>(&assert.code(1).get_output().stdout).unwrap()["runs"][1]
            .clone()
    };
    let missing = named("/nowhere/libcusparse.so.12");
    assert_eq!(keys(&missing), ["completed", "engine", "error", "plan"], "no version: {missing}");
    assert_eq!((&missing["engine"], &missing["completed"]), (&"cusparse".into(), &false.into()));
}

#[test]
fn bench_prints_one_object_a_line_with_exactly_these_keys() {
    let plans = "auto,sell(c:32,sigma:512),csr,csr(scalar)";
    let args = [
        "bench",
        "gallery:small",
        "gallery:lp,rows=20",
        "--plans",
        plans,
        "--seconds",
        "0.01",
        "--json",
    ];
    let text = stdout(&args);
    let reports: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), 2);
    let top = [
        "matrix",
        "nrows",
        "ncols",
        "nnz",
        "dtype",
        "device",
        "cache",
        "auto_plan",
        "predicted_plan",
        "calibrated_plan",
        "prepare_us",
        "runs",
        "busy",
    ];
    let positions = top.map(|key| text.find(&format!("\"{key}\":")).unwrap());
    assert!(positions.is_sorted(), "{text}");
    for report in &reports {
        assert_eq!(keys(report), sorted(top.to_vec()));
        assert_eq!(keys(&report["prepare_us"]), ["analyze", "check", "pack", "select", "upload"]);
        let runs = report["runs"].as_array().unwrap();
        let (sprs, ours) = runs.split_last().unwrap();
        let common = ["engine", "plan", "completed", "median_us", "min_us", "rel_error"];
        assert_eq!(keys(sprs), sorted(common.to_vec()));
        assert_eq!((&sprs["engine"], &sprs["plan"]), (&"sprs".into(), &"csr".into()));
        let more = ["matrix_bytes", "traffic_bytes", "gflops", "gbps", "deterministic"];
        for run in ours {
            assert_eq!(keys(run), sorted([&common[..], &more].concat()));
            assert_eq!((&run["engine"], &run["completed"]), (&"sparseop".into(), &true.into()));
            assert!(
                run["median_us"].as_f64() >= run["min_us"].as_f64()
                    && run["min_us"].as_f64() > Some(0.0)
            );
            assert_eq!(run["deterministic"], true);
        }
        let mut names: Vec<_> = ours.iter().map(|run| run["plan"].as_str().unwrap()).collect();
        assert_eq!(names[0], report["auto_plan"], "in the order of asking");
        assert!(names.contains(&"csr(scalar)") && names.contains(&"sell(c:32,sigma:512)"));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ours.len(), "each plan once");
    }
    assert_eq!(reports[0]["matrix"], "gallery:small");
    assert_eq!((&reports[0]["nnz"], &reports[0]["dtype"]), (&49_600.into(), &"f64".into()));
    assert_eq!(reports[0]["cache"], "warm", "where nothing else is asked for");
    assert_eq!((&reports[0]["calibrated_plan"], &reports[1]["nrows"]), (&Value::Null, &20.into()));
}

#[test]
fn analyze_and_the_others_print_objects_too() {
    let report = &json(&["analyze", "gallery:small", "--json", "--symmetry", "--dtype", "f32"])[0];
    let expected = [
        "analyze_us",
        "candidates",
        "device",
        "dtype",
        "expected_calls",
        "fingerprint",
        "formats",
        "hyb_widths",
        "jds_sections",
        "matrix",
        "ncols",
        "nnz",
        "nrows",
        "pattern",
        "plan",
        "products",
        "profile",
        "rows",
        "select_us",
        "structure",
        "symmetry",
    ];
    assert_eq!(keys(report), expected);
    assert_eq!(report["hyb_widths"].as_array().unwrap().len(), 8);
    assert_eq!(report["jds_sections"].as_array().unwrap().len(), 3);
    assert_eq!(json(&["gallery", "list", "--json"]).len(), sparseop::matrix::gallery::list().len());
    assert_eq!(json(&["devices", "--json"])[0]["device"], "cpu");
    let applied = &json(&["apply", "gallery:small,n=2", "--json"])[0];
    assert_eq!(applied["y"].as_array().unwrap().len(), 4);
}

#[test]
fn values_are_rounded_when_asked_to_and_complex_ones_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b, complex] = ["a.mtx", "b.mtx", "c.mtx"].map(|name| path(&folder, name));
    fs::write(&a, "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 0.1\n2 1 70000\n")
        .unwrap();
    fs::write(&b, "%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 0.1\n").unwrap();
    fs::write(&complex, "%%MatrixMarket matrix array complex general\n1 1\n1 2\n").unwrap();
    let message = stderr(&["apply", &a, "--value-precision", "f16"], 1);
    assert!(
        message.contains("at row 1 and column 0, is 7e4") && message.contains("choose bf16"),
        "{message}"
    );
    let applied = &json(&["apply", &a, "--value-precision", "bf16", "--json"])[0];
    assert_eq!(applied["value_precision"], "bf16");
    assert_eq!(applied["y"], serde_json::json!([0.10009765625, 70144.0]));
    assert_eq!(json(&["apply", &a, "--json"])[0].get("value_precision"), None);
    let plan = "psell(values:f16)";
    let said = stderr(&["apply", &b, "--plan", plan, "--value-precision", "f16", "-v"], 0);
    assert!(said.contains("rounded to f16, stored in f16, multiplied in f64"), "{said}");
    assert_eq!(
        json(&["analyze", &b, "--value-precision", "f16", "--json"])[0]["value_precision"],
        "f16"
    );
    let solved = &json(&["solve", &b, "--value-precision", "f16", "--json"])[0];
    assert_eq!((&solved["value_precision"], &solved["converged"]), (&"f16".into(), &true.into()));
    let bench = [
        "bench",
        &b,
        "--value-precision",
        "f16",
        "--plans",
        "auto",
        "--baselines",
        "none",
        "--seconds",
        "0.01",
    ];
    assert_eq!(json(&[&bench[..], &["--json"]].concat())[0]["value_precision"], "f16");
    for args in [&["apply", &complex][..], &["analyze", &complex], &["apply", &b, "--x", &complex]]
    {
        let message = stderr(args, 1);
        assert!(
            message.contains("store the real and the imaginary part as two real matrices"),
            "{message}"
        );
    }
}

#[test]
fn a_failed_matrix_does_not_stop_the_others() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("b.mtx"), TEXT).unwrap();
    fs::write(folder.path().join("a.mtx.gz"), gzip(TEXT)).unwrap();
    fs::write(folder.path().join("README.txt"), "no matrix").unwrap();
    let names = |reports: &[Value]| -> Vec<String> {
        reports.iter().map(|r| r["matrix"].as_str().unwrap().to_owned()).collect()
    };
    let all = json(&["analyze", folder.path().to_str().unwrap(), "gallery:small,n=3", "--json"]);
    assert_eq!(names(&all), ["a.mtx.gz", "b.mtx", "gallery:small,n=3"]);

    fs::write(folder.path().join("aa.mtx"), "nonsense").unwrap();
    let assert = sparseop(&["analyze", folder.path().to_str().unwrap(), "--json"]).assert().code(1);
    let output = assert.get_output();
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 2);
    assert!(String::from_utf8_lossy(&output.stderr).contains("aa.mtx"));
}

#[test]
fn a_product_from_files_to_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let [a, x, y] = ["a.mtx", "x.txt", "y.mtx.gz"].map(|name| path(&folder, name));
    fs::write(&a, TEXT).unwrap();
    fs::write(&x, "1\n2\n4\n").unwrap();
    assert_eq!(stdout(&["apply", &a, "--x", &x, "--out", &y]), "");
    assert_eq!(sparseop::matrix::market::read_vector::<f64>(&y).unwrap(), [6.0, -2.0]);

    let printed = stdout(&["apply", &a, "--plan", "coo", "--dtype", "f32"]);
    assert_eq!(printed, "%%MatrixMarket matrix array real general\n2 1\n1.5\n-2.0\n");
    assert!(stderr(&["apply", &a], 0).contains("x is all ones"));
    assert_eq!(stderr(&["apply", &a, "-q"], 0), "");
    assert!(stderr(&["apply", &a, "--out", &y, "-v"], 0).contains("the product took"));

    fs::write(&x, "1\n2\n").unwrap();
    let message = stderr(&["apply", &a, "--x", &x], 1);
    assert!(
        message.contains("`x` has 2 elements, but the matrix is 2 x 3 and needs 3"),
        "{message}"
    );
}

#[test]
fn a_range_stands_for_a_matrix_of_each_number() {
    let text = "gallery:random,nnz=1k,seed=2..=3";
    let names = ["gallery:random,nnz=1k,seed=2", "gallery:random,nnz=1k,seed=3"];
    let all = json(&["analyze", text, "--json"]);
    assert_eq!(all.iter().map(|report| &report["matrix"]).collect::<Vec<_>>(), names);
    let listed = json(&["gallery", "list", text, "--json"]);
    let [two, three] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!(
        (two["name"].as_str().unwrap(), three["nrows"].clone()),
        (&names[0][8..], all[1]["nrows"].clone())
    );
    // The description of a seed's matrix is the same everywhere.
    let structure = two["structure"].as_str().unwrap();
    assert!(
        structure.contains("row lengths: ") && structure != three["structure"].as_str().unwrap()
    );
    let assert = sparseop(&["analyze", names[0], "-v"]).assert().success();
    let said = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(said.contains(structure), "{said}");
}

#[test]
fn a_written_gallery_matrix_is_the_generated_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = path(&folder, "banded.mtx.zst");
    sparseop(&["gallery", "write", "banded,rows=100", &file]).assert().success();
    let fingerprint = |matrix: &str| json(&["analyze", matrix, "--json"])[0]["fingerprint"].clone();
    assert_eq!(fingerprint(&file), fingerprint("gallery:banded,rows=100"));
}

#[test]
fn failed_writes_leave_no_file() {
    let folder = tempfile::tempdir().unwrap();
    // A folder that is not empty cannot be replaced by a file.
    let target = folder.path().join("taken.mtx");
    fs::create_dir_all(target.join("inside")).unwrap();
    let message = stderr(&["gallery", "write", "small", target.to_str().unwrap()], 1);
    assert!(message.contains("taken.mtx"), "{message}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
