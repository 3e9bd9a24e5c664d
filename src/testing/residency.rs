//! Conformance of the kernels for matrices that do not fit the L2 of a GPU, on small matrices.

use super::conformance::{awkward, check_plan};
use super::devices::gpu;
use crate::Scalar;
use crate::device::TEST_L2_BYTES;
use crate::formats::{FormatKind, Plan};
use std::process::{Command, Stdio};

/// An L2 that holds nothing, so that all of a matrix is streamed, and one that holds a part of most
/// of them.
const L2_BYTES: [&str; 2] = ["0", "20000"];

/// The size of the L2 is one for the whole process, so that each has a process of its own.
#[test]
fn kernels_for_matrices_larger_than_the_l2_conform() {
    const NAME: &str = "testing::residency::kernels_for_matrices_larger_than_the_l2_conform";
    if gpu().is_none() {
        return;
    }
    if std::env::var_os(TEST_L2_BYTES).is_some() {
        check::<f32>();
        return check::<f64>();
    }
    let start = |bytes: &&str| {
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.args([NAME, "--exact"]).env(TEST_L2_BYTES, bytes).stdout(Stdio::piped());
        process.spawn().unwrap()
    };
    let started: Vec<_> = L2_BYTES.iter().map(start).collect();
    for (process, bytes) in started.into_iter().zip(L2_BYTES) {
        let output = process.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "with an L2 of {bytes} bytes: {text}");
    }
}

/// Checks every example plan of every format on every awkward matrix.
fn check<T: Scalar>() {
    let matrices = awkward::<T>();
    for text in FormatKind::ALL.iter().flat_map(|kind| kind.examples()) {
        let plan = with_one_warp(text);
        matrices.iter().for_each(|(name, a)| check_plan(&plan, a, name));
    }
}

/// The plan with one warp for each slice: several share the slices of a small matrix, which is not
/// streamed.
fn with_one_warp(text: &str) -> Plan {
    let psell = text.strip_prefix("psell(").and_then(|rest| rest.strip_suffix(')'));
    match psell {
        Some(words) if !words.contains("warps") => format!("psell({words},warps:1)").parse(),
        _ => text.parse(),
    }
    .unwrap()
}

#[test]
fn packed_slices_have_one_warp_each() {
    let text = |text| with_one_warp(text).to_string();
    assert_eq!(text("psell(sigma:1,group:4)"), "psell(sigma:1,group:4,warps:1)");
    assert_eq!(text("psell(sigma:1,warps:1)"), "psell(sigma:1,warps:1)");
    assert_eq!(text("csr(balanced)"), "csr(balanced)");
}
