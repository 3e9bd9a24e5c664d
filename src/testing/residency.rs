//! Conformance of the kernels for matrices that do not fit the L2 of a GPU, on small matrices.

use super::child;
use super::conformance::{awkward, check_plan};
use super::devices::gpu;
use crate::Scalar;
use crate::device::TEST_L2_BYTES;
use crate::formats::{FormatKind, Plan};

/// Sizes of an L2: one that holds nothing, so that all of a matrix is streamed, and two that hold a
/// part of matrices of one block, and of many blocks.
const L2_BYTES: [&str; 3] = ["0", "20000", "1000000"];

/// The size of the L2 is one for the whole process, so that each has a process of its own.
#[test]
fn kernels_for_matrices_larger_than_the_l2_conform() {
    const NAME: &str = "testing::residency::kernels_for_matrices_larger_than_the_l2_conform";
    if std::env::var_os(TEST_L2_BYTES).is_some() {
        assert!(gpu().is_some(), "the parent process has one");
        check::<f32>();
        return check::<f64>();
    }
    if gpu().is_none() {
        return;
    }
    let started = L2_BYTES.map(|bytes| child::start(NAME, (TEST_L2_BYTES, bytes)));
    started.into_iter().for_each(child::finish);
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
