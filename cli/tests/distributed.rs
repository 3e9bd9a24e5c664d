//! `sparseop plan-distributed`.

mod common;

use common::{sparseop, stdout};
use serde_json::Value;
use sparseop_distributed::Link;

#[test]
fn the_simulation_says_where_scaling_ends() {
    let text = stdout(&["plan-distributed", "gallery:poisson2d,n=200", "--ranks", "1..4096"]);
    assert_eq!(
        text.lines().filter(|line| line.contains(" µs") || line.contains(" ns")).count(),
        16
    );
    assert!(text.contains("\nwithout ranks: "), "{text}");
    assert!(text.contains("scaling of products ends at "), "{text}");
    assert!(text.contains("scaling of iterations of CG ends at "), "{text}");
}

#[test]
fn the_simulation_as_json_has_these_keys() {
    let args = ["plan-distributed", "gallery:small", "--ranks", "1,3", "--json"];
    let text = stdout(&args);
    let Value::Object(object) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
    let keys: Vec<&str> = object.keys().map(String::as_str).collect();
    let expected = [
        "bandwidth_gbps",
        "device",
        "dtype",
        "iteration",
        "latency_us",
        "matrix",
        "ncols",
        "nnz",
        "nrows",
        "product",
        "ranks",
        "single",
    ];
    assert_eq!(keys, expected);
    let Value::Object(step) = &object["ranks"][1] else { panic!("{text}") };
    let keys: Vec<&str> = step.keys().map(String::as_str).collect();
    let expected = [
        "boundary_share",
        "compute_us",
        "empty",
        "exchange_us",
        "fits",
        "halo_bytes",
        "imbalance",
        "iteration_us",
        "neighbours",
        "nnz",
        "product_us",
        "ranks",
        "rows",
        "sum_us",
        "total_bytes",
        "vector_us",
    ];
    assert_eq!(keys, expected);
    assert_eq!(step["neighbours"], 2);
}

#[test]
fn bad_numbers_of_ranks_are_wrong_usage() {
    for ranks in ["0", "8..1", "many"] {
        let output =
            sparseop(&["plan-distributed", "gallery:small", "--ranks", ranks]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{ranks}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("--ranks"), "{ranks}");
    }
}

/// On GPUs the link is that of a host, and overhead ends scaling earlier than on CPUs.
#[test]
fn ranks_on_gpus_are_predicted_where_there_is_one() {
    let args = ["plan-distributed", "gallery:poisson2d,n=200", "--device", "cuda", "--json"];
    if sparseop_testkit::gpu().is_none() {
        assert!(!sparseop(&args).output().unwrap().status.success());
        return;
    }
    let object: Value = serde_json::from_str(&stdout(&args)).unwrap();
    assert_eq!(object["latency_us"], Link::NVLINK.latency * 1e6);
    assert!(object["product"]["efficient"].as_u64().unwrap() <= 4, "{object}");
}

#[test]
fn links_have_names_and_options_of_timing_are_ignored() {
    let of = |arguments: &[&str]| -> Value {
        let args = [&["plan-distributed", "gallery:small", "--json"], arguments].concat();
        serde_json::from_str(&stdout(&args)).unwrap()
    };
    assert_eq!(of(&[])["bandwidth_gbps"], Link::NETWORK.bandwidth * 1e-9);
    let nvlink = of(&["--link", "nvlink", "--latency", "3"]);
    assert_eq!(nvlink["bandwidth_gbps"], Link::NVLINK.bandwidth * 1e-9);
    assert!((nvlink["latency_us"].as_f64().unwrap() - 3.0).abs() < 1e-9, "{nvlink}");
    let args =
        ["plan-distributed", "gallery:small", "--tuning", "calibrate", "--memory-limit", "1"];
    let output = sparseop(&args).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    assert!(message.contains("--tuning is ignored"), "{message}");
    assert!(message.contains("64 ranks does not fit"), "{message}");
}

/// Without MPI every process of a job would solve the same system and write the same file.
#[cfg(not(feature = "mpi"))]
#[test]
fn a_job_of_several_processes_needs_mpi() {
    for (command, matrix) in [("solve", "gallery:small"), ("rank", "gallery:small,values=pattern")]
    {
        let run = |size| {
            let mut program = sparseop(&[command, matrix, "--max-iter", "1000"]);
            program.env("OMPI_COMM_WORLD_SIZE", size).output().unwrap()
        };
        let refused = run("2");
        assert_eq!(refused.status.code(), Some(1));
        let message = String::from_utf8_lossy(&refused.stderr);
        assert!(message.contains("one of 2 processes of a job"), "{message}");
        let alone = String::from_utf8_lossy(&run("1").stderr).into_owned();
        assert!(!alone.contains("processes of a job"), "{alone}");
    }
}
