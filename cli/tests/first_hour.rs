//! First use of the program: answers first, warnings that name the cause, suggestions.

mod common;

use common::{sparseop, stdout};
use std::fs;

/// Output and messages of the program, which must exit with `code`.
fn both(args: &[&str], code: i32) -> (String, String) {
    let assert = sparseop(args).assert().code(code);
    let output = assert.get_output();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_answer_is_the_first_line() {
    let text = stdout(&["analyze", "gallery:small"]);
    let mut lines = text.lines();
    let answer = lines.next().unwrap();
    assert!(answer.starts_with("gallery:small: ") && answer.contains(" per product"), "{text}");
    assert!(lines.next().unwrap().starts_with("gain     "), "{text}");
    assert!(lines.next().unwrap().starts_with("why      "), "{text}");
    assert!(text.lines().count() < 16 && text.contains("-v: "), "{text}");
    let details = stdout(&["analyze", "gallery:small", "-v"]);
    assert!(details.contains("row length       3 to 5") && details.contains("HYB width"));

    let args = ["bench", "gallery:small", "--seconds", "0.01"];
    let text = stdout(&args);
    let answer = text.lines().next().unwrap();
    assert!(answer.starts_with("gallery:small: auto takes "), "{text}");
    assert!(
        answer.contains(" per product, ") && answer.contains("times as fast as sprs"),
        "{text}"
    );
    assert!(!text.contains("Gflop/s"), "{text}");
    assert!(stdout(&[&args[..], &["-v"]].concat()).contains("Gflop/s"));

    let (ranks, said) = both(&["rank", "gallery:rmat,scale=8,values=pattern", "--top", "3"], 0);
    assert!(ranks.starts_with("page  rank") && ranks.lines().count() == 4, "{ranks}");
    assert!(said.contains("256 pages, numbered from 1, and "), "{said}");
}

#[test]
fn small_matrices_have_times_above_zero() {
    for args in [&["analyze", "gallery:small,n=3"][..], &["analyze", "gallery:small,n=3", "-v"]] {
        let text = stdout(args);
        assert!(text.contains(" ns") && !text.contains("0.0 µs"), "{text}");
        assert!(!text.contains("0.00 ms"), "{text}");
    }
}

#[test]
fn a_memory_limit_below_every_plan_names_the_smallest() {
    for command in ["analyze", "bench", "apply"] {
        let (_, said) = both(&[command, "gallery:small", "--memory-limit", "10K"], 1);
        assert!(said.contains("no plan fits the memory limit of 10240 bytes: "), "{said}");
        assert!(said.contains("needs the least of all"), "{said}");
    }
}

#[test]
fn a_generated_matrix_without_its_prefix_is_suggested() {
    for (command, name) in [("bench", "fem3d"), ("apply", "banded,rows=5k")] {
        let (_, said) = both(&[command, name], 1);
        assert!(said.contains(&format!("did you mean `gallery:{name}`?")), "{said}");
    }
    let (_, said) = both(&["bench", "cant.mtx"], 1);
    assert!(said.starts_with("error: cannot open cant.mtx: ") && !said.contains("mean"), "{said}");
}

#[test]
fn a_plan_that_gains_nothing_is_not_praised() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("one.mtx").to_str().unwrap().to_owned();
    fs::write(&file, "%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 2\n").unwrap();
    for calls in ["1", "1000", "100000000"] {
        let text = stdout(&["analyze", &file, "--expected-calls", calls]);
        assert!(!text.contains("gain     0."), "{text}");
        assert!(text.contains("1 x 1, 1 entry in f64; rows of 1 entry\n"), "{text}");
    }
    let text = stdout(&["solve", &file]);
    assert!(text.contains(": converged, 1 iteration of cg in "), "{text}");
}

#[test]
fn words_near_a_word_for_plans_are_suggested() {
    let (_, said) = both(&["bench", "gallery:small", "--plans", "al"], 2);
    assert!(said.contains("did you mean `all`?"), "{said}");
}

#[test]
fn values_that_are_not_finite_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.mtx").to_str().unwrap().to_owned();
    let text = "%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 nan\n2 1 inf\n2 2 1\n";
    fs::write(&file, text).unwrap();
    for command in ["analyze", "apply", "bench"] {
        let output = sparseop(&[command, &file]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("a.mtx: 1 of the 3 values are NaN and 1 infinite"), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn entries_above_the_diagonal_of_a_symmetric_file_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.mtx").to_str().unwrap().to_owned();
    let write = |symmetry: &str, entries: &str| {
        let head = format!("%%MatrixMarket matrix coordinate real {symmetry}\n2 2 3\n");
        fs::write(&file, head + entries).unwrap();
    };
    write("symmetric", "1 1 4\n2 1 1\n1 2 1\n");
    let (sums, said) = both(&["apply", &file], 0);
    assert!(said.contains("a.mtx: 1 entry above the diagonal of a symmetric file"), "{said}");
    assert!(sums.ends_with("\n6.0\n2.0\n"), "both triangles are added: {sums}");
    let (_, said) = both(&["apply", &file, "-q"], 0);
    assert_eq!(said, "");
    write("general", "1 1 4\n2 1 1\n1 2 1\n");
    let (_, said) = both(&["apply", &file], 0);
    assert!(!said.contains("above the diagonal"), "{said}");
}

#[test]
fn a_large_file_is_announced_with_its_size() {
    let folder = tempfile::tempdir().unwrap();
    let write = |spec: &str, name: &str| {
        let file = folder.path().join(name).to_str().unwrap().to_owned();
        both(&["gallery", "write", spec, &file], 0).1
    };
    let said = write("banded,rows=40k", "large.mtx.zst");
    assert!(
        said.contains("large.mtx.zst takes about 2") && said.contains(" MiB, before"),
        "{said}"
    );
    assert!(!write("small", "small.mtx").contains("takes about"));
}

#[test]
fn tuning_names_formats_and_times_and_no_kernels() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("a.ron").to_str().unwrap().to_owned();
    let matrices = ["gallery:small,n=10", "gallery:banded,rows=500"];
    let options = ["--seconds", "0.01", "--dtype", "f64", "--no-remember", "--out", &out];
    let (text, said) = both(&[&["tune"][..], &matrices, &options].concat(), 0);
    assert!(said.contains("the profile never chooses them"), "{said}");
    assert!(!said.contains("psell.") && !said.contains("tiles."), "{said}");
    assert!(!text.contains("predicted over measured"), "{text}");
    assert!(text.contains("regret (time of the chosen plan over that of the fastest)"), "{text}");
}

#[test]
fn devices_names_everything_that_products_need() {
    let folder = tempfile::tempdir().unwrap();
    let run = || {
        let mut command = sparseop(&["devices"]);
        command.env("SPARSEOP_STORE", folder.path()).env("SPARSEOP_CACHE", folder.path());
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = run();
    for part in ["cpu ", "driver ", "NVRTC ", "cache ", "store ", "profile "] {
        assert!(text.lines().any(|line| line.starts_with(part)), "{part}: {text}");
    }
    assert!(text.contains("sparseop/decisions: 0 decisions, 0 B"), "{text}");
    assert!(text.contains("--tuning calibrate --remember"), "{text}");
    let args = ["analyze", "gallery:small,n=9", "--tuning", "calibrate", "--remember"];
    let seconds = ["--calibration-seconds", "0.05"];
    let mut calibrate = sparseop(&[&args[..], &seconds].concat());
    assert!(calibrate.env("SPARSEOP_STORE", folder.path()).output().unwrap().status.success());
    assert!(run().contains("sparseop/decisions: 1 decision, "), "{}", run());
    let json = stdout(&["devices", "--json"]);
    for part in ["driver", "NVRTC", "cache", "store", "profile"] {
        let start = format!("{{\"requirement\":\"{part}\",\"state\":");
        assert!(json.lines().any(|line| line.starts_with(&start)), "{part}: {json}");
    }
    let starts = ["{\"device\":", "{\"requirement\":"];
    assert!(json.lines().all(|line| starts.iter().any(|start| line.starts_with(start))), "{json}");
}

#[test]
fn the_generated_systems_in_the_help_of_solve_are_solvable() {
    let help = stdout(&["solve", "--help"]);
    let named = help.split_whitespace().filter(|word| word.starts_with("gallery:poisson"));
    let specs: Vec<String> = named
        .map(|word| {
            let words =
                word.split(',').map(|part| if part.starts_with("n=") { "n=12" } else { part });
            words.collect::<Vec<_>>().join(",")
        })
        .collect();
    assert!(specs.len() >= 2, "{help}");
    for spec in specs {
        let text = stdout(&["solve", &spec]);
        assert!(text.starts_with(&format!("{spec}: converged, ")), "{text}");
        assert!(text.contains("method   cg: the matrix is symmetric"), "{text}");
    }
}

#[test]
fn generated_matrices_are_solvable_and_rankable_as_they_are() {
    for spec in ["poisson2d,n=12", "fem3d,n=4", "small,n=9", "stencil27,n=5"] {
        let text = stdout(&["solve", &format!("gallery:{spec}")]);
        assert!(text.starts_with(&format!("gallery:{spec},values=laplacian: converged")), "{text}");
    }
    let text = stdout(&["rank", "gallery:rmat,scale=8", "--json"]);
    assert!(text.contains(r#""graph":"gallery:rmat,scale=8,values=pattern""#), "{text}");
    let given = "gallery:small,n=9,values=random";
    let (_, said) = both(&["rank", given], 1);
    assert!(said.contains("the weight of a link is a finite number from 0 on"), "{said}");
    let (_, said) = both(&["solve", "gallery:lp,rows=30,columns=60"], 1);
    assert!(said.contains("solve needs a square matrix, and this one is 30 x 60"), "{said}");
}
