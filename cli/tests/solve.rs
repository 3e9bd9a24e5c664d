//! `sparseop solve` and `sparseop rank`: results, files, exit codes and messages.

mod common;

use common::{sparseop, stdout};
use serde_json::Value;
use std::fs;

const POISSON: &str = "gallery:poisson2d,n=20,values=laplacian";

/// A graph of four pages. The last one has no links.
const GRAPH: &str =
    "%%MatrixMarket matrix coordinate pattern general\n4 4 5\n1 2\n1 3\n2 3\n3 1\n3 4\n";

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).unwrap()
}

/// Output and messages of the program, which must exit with `code`.
fn failing(args: &[&str], code: i32) -> (String, String) {
    let assert = sparseop(args).assert().code(code);
    let output = assert.get_output();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

fn numbers(path: &std::path::Path) -> Vec<f64> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .filter(|line| !line.starts_with('%'))
        .skip(1)
        .map(|line| line.parse().unwrap())
        .collect()
}

#[test]
fn every_method_recovers_a_solution_of_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (x, residuals) = (folder.path().join("x.mtx"), folder.path().join("r.mtx"));
    for method in ["cg", "single-reduction-cg", "bicgstab", "gmres", "chebyshev"] {
        for preconditioner in ["none", "jacobi"] {
            let files = ["--out", x.to_str().unwrap(), "--history", residuals.to_str().unwrap()];
            let args = [
                "solve",
                POISSON,
                "--method",
                method,
                "--preconditioner",
                preconditioner,
                "--json",
            ];
            let report = json(&[&args[..], &files].concat());
            assert_eq!(
                (&report["converged"], &report["outcome"]),
                (&true.into(), &"converged".into()),
                "{report}"
            );
            assert!(
                report["residual"].as_f64().unwrap() <= 1e-8
                    && report["seconds"].as_f64().unwrap() > 0.0
            );
            assert!(report["plan"].as_str().is_some() && report["method"] == method);
            let iterations = report["iterations"].as_u64().unwrap() as usize;
            assert_eq!(numbers(&residuals).len(), iterations + 1);
            let x = numbers(&x);
            assert!(x.len() == 400 && x.iter().all(|x| (x - 1.0).abs() < 1e-5), "{method}: {x:?}");
        }
    }
}

#[test]
fn a_right_hand_side_is_read_and_an_eigenvalue_found() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b, x] = ["a.mtx", "b.mtx", "x.mtx"]
        .map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    fs::write(&a, "%%MatrixMarket matrix coordinate real symmetric\n2 2 3\n1 1 4\n2 1 1\n2 2 3\n")
        .unwrap();
    fs::write(&b, "1\n2\n").unwrap();
    for dtype in ["f32", "f64"] {
        let text =
            stdout(&["solve", &a, "--rhs", &b, "--tol", "1e-6", "--dtype", dtype, "--out", &x]);
        assert!(text.contains("converged") && text.contains("2 iterations"), "{text}");
        let found = numbers(x.as_ref());
        assert!(
            (found[0] - 1.0 / 11.0).abs() < 1e-6 && (found[1] - 7.0 / 11.0).abs() < 1e-6,
            "{found:?}"
        );
    }
    let report = json(&["solve", &a, "--method", "power", "--json"]);
    let exact = 3.5 + 1.25f64.sqrt();
    assert!((report["eigenvalue"].as_f64().unwrap() - exact).abs() < 1e-7, "{report}");
}

#[test]
fn an_iteration_is_compared_with_its_products() {
    let report = json(&["solve", POISSON, "--timing", "--json"]);
    assert!(
        report["product_us"].as_f64().unwrap() > 0.0
            && report["seconds_per_iteration"].as_f64().unwrap() > 0.0
    );
    assert_eq!(report["vector_bytes"], 10 * 400 * 8);
    // On the CPU the bandwidth of copies is not known.
    assert!(report["bound_us"].is_null() && report["over_bound"].is_null());
}

#[test]
fn results_without_convergence_are_written_and_exit_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let x = folder.path().join("x.mtx");
    let (out, said) =
        failing(&["solve", POISSON, "--max-iter", "3", "--json", "--out", x.to_str().unwrap()], 1);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["converged"], &report["iterations"]), (&false.into(), &3.into()));
    assert!(said.contains("error: cg has not converged after 3 iterations"), "{said}");
    assert_eq!(numbers(&x).len(), 400);
}

/// Symmetric matrix with a positive diagonal and the eigenvalues (3 ± √17) / 2, one below 0.
const INDEFINITE: &str =
    "%%MatrixMarket matrix coordinate real symmetric\n2 2 3\n1 1 1\n2 1 2\n2 2 2\n";

/// Symmetric matrix with a zero on the diagonal.
const SADDLE: &str = "%%MatrixMarket matrix coordinate real symmetric\n2 2 2\n1 1 2\n2 1 1\n";

/// Matrix that is not symmetric.
const UPWIND: &str = "%%MatrixMarket matrix coordinate real general\n3 3 5\n1 1 2\n2 1 -1\n\
                      2 2 2\n3 2 -1\n3 3 2\n";

#[test]
fn the_method_is_chosen_by_the_matrix_and_the_reason_printed() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text, method, reason) in [
        ("indefinite.mtx", INDEFINITE, "gmres", "symmetric, but not positive definite"),
        ("saddle.mtx", SADDLE, "gmres", "entry 2, 2 (counted from 1) is not above 0"),
        ("upwind.mtx", UPWIND, "bicgstab", "40.0 % of its entries differ"),
    ] {
        let path = folder.path().join(name).to_str().unwrap().to_owned();
        fs::write(&path, text).unwrap();
        let report = json(&["solve", &path, "--json"]);
        assert_eq!((&report["method"], &report["converged"]), (&method.into(), &true.into()));
        let text = stdout(&["solve", &path]);
        assert!(text.starts_with(&format!("{name}: converged, ")), "{text}");
        assert!(text.contains(&format!("method   {method}: ")) && text.contains(reason), "{text}");
    }
    let text = stdout(&["solve", POISSON]);
    assert!(text.contains("method   cg: the matrix is symmetric"), "{text}");
}

#[test]
fn a_named_method_that_cannot_work_is_refused_with_the_alternatives() {
    let folder = tempfile::tempdir().unwrap();
    let upwind = folder.path().join("upwind.mtx").to_str().unwrap().to_owned();
    fs::write(&upwind, UPWIND).unwrap();
    for method in ["cg", "chebyshev"] {
        let (out, said) = failing(&["solve", &upwind, "--method", method], 1);
        assert_eq!(out, "", "no iteration is made");
        assert!(said.contains("upwind.mtx: ") && said.contains("is not symmetric"), "{said}");
        assert!(said.contains("use --method bicgstab or --method gmres"), "{said}");
    }
    let saddle = folder.path().join("saddle.mtx").to_str().unwrap().to_owned();
    fs::write(&saddle, SADDLE).unwrap();
    let (_, said) = failing(&["solve", &saddle, "--method", "cg"], 1);
    assert!(said.contains("entry 2, 2 (counted from 1) is not above 0"), "{said}");
}

#[test]
fn wrong_systems_and_wrong_usage_have_different_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let wide = path("wide.mtx", "%%MatrixMarket matrix coordinate real general\n2 3 1\n1 1 1\n");
    let hollow =
        path("hollow.mtx", "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 1 1\n");
    let (short, nan) = (path("short.txt", "1\n2\n"), path("nan.txt", &"nan\n".repeat(400)));
    let negative =
        path("negative.mtx", "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 2 -1\n");
    for (args, expected) in [
        (&["solve", &wide][..], "needs a square matrix, and this one is 2 x 3"),
        (&["solve", POISSON, "--rhs", &short], "`b` has 2 elements"),
        (&["solve", POISSON, "--rhs", &nan], "element 0 of vector `b` is NaN"),
        (&["solve", POISSON, "--rhs", "nowhere.mtx"], "nowhere.mtx"),
        (&["solve", &hollow, "--preconditioner", "jacobi"], "the diagonal is 0 in row 1"),
        (&["rank", &wide], "pagerank needs a square matrix"),
        (&["rank", &negative], "page 1 has one of -1"),
    ] {
        let (_, said) = failing(args, 1);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    for (args, expected) in [
        (
            &["solve", "a.mtx", "--method", "cgs"][..],
            "possible values: auto, cg, single-reduction-cg, bicgstab, gmres, chebyshev, power",
        ),
        (&["solve", "a.mtx", "--tol", "0"], "a number above 0"),
        (&["solve", "a.mtx", "--restart", "101"], "101 is not in 1..=100"),
        (&["solve", "a.mtx", "--eigenvalues", "2,1"], "the lower one first"),
        (&["solve", "a.mtx", "--max-iter", "0"], "0 is not in 1.."),
        (&["rank", "a.mtx", "--damping", "1"], "below 1"),
    ] {
        let (_, said) = failing(args, 2);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
}

#[test]
fn pages_are_ranked_as_worked_out_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let [graph, out] =
        ["g.mtx", "r.mtx"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    fs::write(&graph, GRAPH).unwrap();
    // At damping 1/2, in units of the rank that jumps give to every page: r1 = 1 + r3/4, r2 = 1 +
    // r1/4, r3 = 1 + r1/4 + r2/2, r4 = 1 + r3/4. Hence r3 = 1 + 1/4 + r3/16 + 1/2 + r1/8 = 15/8 +
    // 3/32 r3.
    let report = json(&[
        "rank",
        &graph,
        "--damping",
        "0.5",
        "--tol",
        "1e-13",
        "--top",
        "2",
        "--json",
        "--out",
        &out,
    ]);
    let r3 = 15.0 / 8.0 / (1.0 - 3.0 / 32.0);
    let r1 = 1.0 + r3 / 4.0;
    let r2 = 1.0 + r1 / 4.0;
    let r4 = 1.0 + r3 / 4.0;
    let sum = r1 + r2 + r3 + r4;
    let expected = [r1, r2, r3, r4].map(|r| r / sum);
    let ranks = numbers(out.as_ref());
    assert!(
        ranks.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12),
        "{ranks:?} {expected:?}"
    );
    assert_eq!(report["top"].as_array().unwrap().len(), 2);
    assert_eq!((&report["top"][0]["page"], &report["converged"]), (&3.into(), &true.into()));
    let text = stdout(&["rank", &graph, "--top", "4"]);
    assert_eq!(text.lines().count(), 5, "{text}");
    let (_, said) = failing(&["rank", &graph, "--max-iter", "2", "--tol", "1e-12"], 1);
    assert!(said.contains("pagerank has not converged after 2 iterations"), "{said}");
}

#[test]
fn unused_options_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let b = folder.path().join("b.txt");
    fs::write(&b, "1\n").unwrap();
    let args = [
        "solve",
        POISSON,
        "--method",
        "power",
        "--preconditioner",
        "jacobi",
        "--rhs",
        b.to_str().unwrap(),
    ];
    let args = [&args[..], &["--eigenvalues", "1,2", "--max-iter", "2", "--json"]].concat();
    let (out, said) = failing(&args, 1);
    for option in ["--preconditioner", "--rhs", "--eigenvalues"] {
        assert!(said.contains(&format!("{option} is ignored: power does not use it")), "{said}");
    }
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["preconditioner"], "none");
}
