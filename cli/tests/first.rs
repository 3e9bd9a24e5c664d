//! `sparseop bench --first`: the parts of the time to a first product, in processes of their own.

mod common;

use common::{sparseop, stdout};
use serde_json::Value;

const PARTS: [&str; 11] = [
    "start_us",
    "open_us",
    "read_us",
    "analyze_us",
    "select_us",
    "check_us",
    "pack_us",
    "upload_us",
    "rest_us",
    "product_us",
    "total_us",
];

#[test]
fn the_parts_of_every_state_add_up_to_its_total() {
    let matrices = ["gallery:poisson2d,n=30", "gallery:poisson2d,n=40"];
    let text = stdout(&["bench", "--first", "--device", "cpu", "--json", matrices[0], matrices[1]]);
    let reports: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), 2);
    for (report, matrix) in reports.iter().zip(matrices) {
        assert_eq!(report["matrix"], matrix);
        let states = report["first"].as_array().unwrap();
        let names: Vec<_> = states.iter().map(|state| state["state"].as_str().unwrap()).collect();
        assert_eq!(names, ["new", "again"]);
        for state in states {
            let us = PARTS.map(|part| state[part].as_f64().unwrap());
            let (total, sum) = (us[10], us[..10].iter().sum::<f64>());
            assert!((total - sum).abs() <= 1e-6 * total, "{state}");
            assert!(us.iter().all(|us| *us >= 0.0) && us[9] > 0.0, "{state}");
        }
        assert!(states[0]["start_us"].as_f64().unwrap() > 0.0, "the second needs no process");
    }
}

#[test]
fn a_matrix_that_cannot_be_read_fails_with_its_name() {
    let assert = sparseop(&["bench", "--first", "--device", "cpu", "missing.mtx"]).assert().code(1);
    let text = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(text.contains("missing.mtx"), "{text}");
}
