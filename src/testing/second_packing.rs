//! Tests of second packings for SpMM.

use super::conformance::devices;
use super::spmm::{Case, RUNS, apply_multi, diagonals, nothing, skewed};
use crate::device::Device;
use crate::formats::{Layout, Plan, Target};
use crate::matrix::gallery;
use crate::{Error, SparseOpBuilder, Tuning};

#[test]
fn a_second_packing_is_counted_explained_and_limited() {
    check_second_packing(&skewed(), "csr(balanced)");
    let grid = "stencil27,n=45".parse::<gallery::Spec>().unwrap().generate();
    check_second_packing(&Case::with(grid.unwrap(), &[8]), "psell");
}

/// Checks second packings of a matrix that has this format as such on a GPU.
fn check_second_packing(case: &Case<f64>, format: &str) {
    let second = Plan::for_spmm(&case.analysis, Target::Gpu, 1, None).to_string();
    assert!(second.starts_with(format), "{second}");
    for device in devices() {
        let op = case.build(device, &"coo".parse().unwrap());
        let before = op.memory_bytes();
        let x = case.x(2, Layout::RowMajor);
        let mut y = nothing(2 * case.a.nrows());
        apply_multi(&op, 2, &x, &mut y, Layout::RowMajor).unwrap();
        let text = op.explain().to_string();
        assert!(op.memory_bytes() > before && text.contains("\nvectors  "), "{text}");
        let builder = SparseOpBuilder::new().device(device.clone()).memory_limit(before);
        let limited = builder.tuning(Tuning::Fixed("coo".parse().unwrap())).build(&case.a).unwrap();
        let refused = apply_multi(&limited, 2, &x, &mut y, Layout::RowMajor).unwrap_err();
        assert!(matches!(refused, Error::MemoryLimit { limit: 0, .. }), "{refused}");
        let on_gpu = ["psell(sigma:512)"].into_iter().filter(|_| *device != Device::Cpu);
        for shared in ["csr(balanced)"].into_iter().chain(on_gpu) {
            let op = case.build(device, &shared.parse().unwrap());
            let before = op.memory_bytes();
            apply_multi(&op, 2, &x, &mut y, Layout::RowMajor).unwrap();
            let text = op.explain().to_string();
            let grown = op.memory_bytes() - before;
            assert!(grown * 50 <= before && text.contains("the same arrays"), "{grown} {text}");
            let (x, mut y) = (case.x(8, Layout::RowMajor), nothing(8 * case.a.nrows()));
            apply_multi(&op, 8, &x, &mut y, Layout::RowMajor).unwrap();
            let text = op.explain().to_string();
            let (own, other) = if shared == "csr(balanced)" { (2, "psell") } else { (4, "csr") };
            let again = *device != Device::Cpu && second.starts_with(other);
            let both = text.contains(&format!("at most {own}\nvectors  {other}"));
            assert_eq!(both, again, "{text}");
            assert_eq!(op.memory_bytes() - before > grown * 2, again, "{text}");
            let op = case.build(device, &shared.parse().unwrap());
            apply_multi(&op, 8, &x, &mut y, Layout::RowMajor).unwrap();
            assert_ne!(op.explain().to_string().contains("the same arrays"), again, "{shared}");
        }
    }
}

#[test]
fn more_vectors_than_a_launch_of_packed_sell_have_csr() {
    let grid = "stencil27,n=45".parse::<gallery::Spec>().unwrap().generate();
    let case = Case::<f64>::with(grid.unwrap(), &[18]);
    for device in devices().iter().filter(|device| **device != Device::Cpu) {
        let op = case.build(device, &"psell(sigma:1,group:4)".parse().unwrap());
        // Column-major vectors and odd numbers of vectors are multiplied few at a time.
        let (own, both) =
            ("the same arrays", "at most 16 in row-major order\nvectors  csr(balanced)");
        for (k, layout, expected) in [
            (16, Layout::RowMajor, own),
            (17, Layout::RowMajor, own),
            (18, Layout::ColumnMajor, own),
            (18, Layout::RowMajor, both),
        ] {
            let mut y = nothing(k * case.a.nrows());
            apply_multi(&op, k, &case.x(k, layout), &mut y, layout).unwrap();
            case.check(k, layout, &y, "psell");
            let text = op.explain().to_string();
            assert!(text.contains(expected), "{k} {layout:?}: {text}");
            assert_eq!(text.contains(both), expected == both, "{k} {layout:?}: {text}");
        }
    }
}

#[test]
fn the_own_arrays_serve_if_there_is_no_memory_for_a_second_packing() {
    let case = skewed::<f64>();
    for device in devices().iter().filter(|device| **device != Device::Cpu) {
        let plan: Plan = "psell(sigma:512)".parse().unwrap();
        let build = |builder: SparseOpBuilder| {
            let builder = builder.device(device.clone()).tuning(Tuning::Fixed(plan.clone()));
            builder.build(&case.a).unwrap()
        };
        let (x, mut y) = (case.x(8, Layout::RowMajor), nothing(8 * case.a.nrows()));
        let mut multiply = |op: &crate::SparseOp<f64>| {
            apply_multi(op, 8, &x, &mut y, Layout::RowMajor).unwrap();
            case.check(8, Layout::RowMajor, &y, "psell");
            op.explain().to_string()
        };
        let mut free = build(SparseOpBuilder::new());
        let matrix = free.memory_bytes();
        assert!(multiply(&free).contains("vectors  csr(balanced)"));
        // In the second case the matrix would fit a second time as packed SELL, but not as CSR.
        let twice = 2 * matrix + 4096;
        let entries = (case.a.nnz() * (size_of::<f64>() + size_of::<u32>())) as u64;
        assert!(matrix + entries > twice, "{entries}, {matrix}");
        for limit in [matrix, twice] {
            let limited = build(SparseOpBuilder::new().memory_limit(limit));
            for _ in 0..2 {
                let text = multiply(&limited);
                let is_own = text.contains("the same arrays");
                assert!(is_own && limited.memory_bytes() == matrix, "{limit}: {text}");
            }
        }
        // New values have to be packed again at every update.
        free.update_values(case.a.values()).unwrap();
        let updatable = build(SparseOpBuilder::new().updatable(true));
        for op in [free, updatable] {
            assert!(multiply(&op).contains("the same arrays"));
        }
    }
}

#[test]
fn several_vectors_need_no_memory_beside_diagonals() {
    let case = Case::with(diagonals::<f32>(61_003, 61_003, &RUNS), &[8]);
    for device in devices().iter().filter(|device| **device != Device::Cpu) {
        let plan: Plan = "psell(sigma:1)".parse().unwrap();
        let matrix = case.build(device, &plan).memory_bytes();
        let build = |limit| {
            let builder = SparseOpBuilder::new().device(device.clone()).memory_limit(limit);
            builder.tuning(Tuning::Fixed(plan.clone())).build(&case.a)
        };
        // The limit is compared with an estimate of the size.
        let limit = match build(matrix) {
            Err(Error::MemoryLimit { needed, .. }) => needed,
            other => other.map(|_| matrix).unwrap(),
        };
        assert!(limit <= matrix + matrix / 500, "{limit}, {matrix}");
        let op = build(limit).unwrap();
        for k in [8, 2] {
            let mut y = nothing(k * case.a.nrows());
            apply_multi(&op, k, &case.x(k, Layout::RowMajor), &mut y, Layout::RowMajor).unwrap();
            case.check(k, Layout::RowMajor, &y, "psell");
        }
        assert_eq!(op.memory_bytes(), matrix);
    }
}
