//! Conformance of the kernels for matrices that do not fit the L2 of a GPU, on small matrices, and
//! for many short rows.

use super::child;
use super::conformance::{check_on, few_cases, fits, scattered, small};
use super::devices::gpu;
use super::spmm::{Case, multivectors};
use crate::analysis::Analysis;
use crate::device::{Device, Residency, TEST_L2_BYTES};
use crate::formats::{FormatKind, Plan, ResidentMatrix, Target};
use crate::matrix::CsrMatrix;
use crate::{Scalar, SparseOpBuilder, Tuning};
use rayon::prelude::*;

/// Sizes of an L2 that hold a part of some matrices, of one block and of many blocks. Larger ones
/// are streamed, and smaller ones stay.
const L2_BYTES: [&str; 2] = ["20000", "200000"];

/// Plans with kernels of their own for SpMM, and numbers of vectors: one unit or two. For more
/// vectors than a unit `csr(balanced)` has a packing in slices.
const SPMM_PLANS: [&str; 3] =
    ["csr(balanced)", "psell(sigma:1,warps:1)", "psell(sigma:512,group:4,warps:1)"];
const SPMM_COUNTS: [usize; 2] = [2, 4];

/// The size of the L2 is one for the whole process, so that each has a process of its own.
#[test]
fn kernels_for_matrices_larger_than_the_l2_conform() {
    const NAME: &str = "testing::residency::kernels_for_matrices_larger_than_the_l2_conform";
    if std::env::var_os(TEST_L2_BYTES).is_some() {
        let device = gpu().expect("the parent process has one");
        check::<f32>(device);
        return check::<f64>(device);
    }
    if gpu().is_none() {
        return;
    }
    // One after the other, since all compile the same kernels.
    L2_BYTES.iter().for_each(|bytes| child::finish(child::start(NAME, (TEST_L2_BYTES, bytes))));
}

/// Checks every example plan of every format on the small awkward matrices, and SpMM. Some of them
/// are streamed, and of some a part stays in the L2.
fn check<T: Scalar>(device: &Device) {
    let matrices: Vec<_> = small::<T>().collect();
    // Tools that slow products down see one plan of a format, and smaller matrices.
    let count = if few_cases() { 1 } else { usize::MAX };
    let texts = FormatKind::ALL.iter().flat_map(|kind| kind.examples().iter().take(count));
    let texts: Vec<_> = texts.collect();
    texts.par_iter().for_each(|text| {
        let plan = with_one_warp(text);
        let fitting =
            matrices.iter().filter(|(_, a)| fits(&plan, &Analysis::of(a.view()), T::KIND));
        for (name, a) in fitting {
            check_on(device, &plan, a, &format!("{plan} on {name} in {}", T::KIND));
        }
    });
    matrices.par_iter().for_each(|(name, a)| {
        let case = Case::with(a.clone(), &SPMM_COUNTS);
        for text in SPMM_PLANS {
            let op = case.operator(device, &text.parse().unwrap());
            multivectors(&op, &case, &format!("{text} on {name} in {}", T::KIND));
        }
    });
    // The vectors of these matrices are large beside the smaller L2 alone.
    let is_smaller = std::env::var(TEST_L2_BYTES).is_ok_and(|bytes| bytes == L2_BYTES[0]);
    let results = is_smaller.then_some("and so are results");
    for plan in ["csr(vector:8)", "csr(balanced)", "psell(sigma:1,warps:1)"] {
        let found = matrices.iter().map(|(_, a)| residency(device, plan, a).to_string());
        let found: Vec<_> = found.collect();
        let any = |text| found.iter().any(|residency| residency.contains(text));
        for text in ["of the matrix stay", "is streamed"].into_iter().chain(results) {
            assert!(any(text) || few_cases(), "{plan} in {}: {found:?}", T::KIND);
        }
    }
}

/// Residency of a matrix packed on a GPU.
fn residency<T: Scalar>(device: &Device, plan: &str, a: &CsrMatrix<T>) -> Residency {
    let packed = plan.parse::<Plan>().unwrap().pack(a.view()).unwrap();
    ResidentMatrix::on(device, packed).unwrap().residency().unwrap()
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

#[test]
fn many_short_rows_in_f32() {
    many_short_rows::<f32>();
}

#[test]
fn many_short_rows_in_f64() {
    many_short_rows::<f64>();
}

/// Threads multiply several rows each, with padding, without, and with a COO part.
fn many_short_rows<T: Scalar>() {
    let Some(device @ Device::Cuda(own)) = gpu() else { return };
    let nrows = (1 << 18) + 77;
    let plans = ["ell", "jds(diagonals)", "jds(diagonals,tail:2)"];
    let lengths: [fn(usize) -> usize; 3] =
        [|_| 1, |row| row % 5, |row| if row == 1000 { 50 } else { row % 3 }];
    for (length, plans) in lengths.into_iter().zip([&plans[..2], &plans[..2], &plans[2..]]) {
        let a = scattered::<T>(nrows, 3000, length);
        for text in plans {
            let plan: Plan = text.parse().unwrap();
            let work = plan.work(&Analysis::of(a.view()), T::KIND);
            assert!(plan.cost_key_of(Target::Gpu, &work).ends_with(".short"), "{text}");
            check_on(device, &plan, &a, &format!("{text} on {} entries", a.nnz()));
        }
    }
    for (file, kernel) in [("ell", "ell_short"), ("jds", "jds_short_diagonals")] {
        assert!(own.is_loaded(file.into(), &format!("{kernel}_{}", T::KIND)), "{kernel}");
    }
}

#[test]
fn an_explanation_states_what_stays_in_the_l2() {
    let Some(device) = gpu() else { return };
    let a = scattered::<f32>(2000, 2000, |row| row % 9);
    let plan = Tuning::Fixed("csr(balanced)".parse().unwrap());
    let op = SparseOpBuilder::new().device(device.clone()).tuning(plan).build(&a).unwrap();
    let text = op.explain().to_string();
    assert!(
        text.contains("\ncache    a product touches 0.1 MB") && text.contains("all stays"),
        "{text}"
    );
}
