//! Tests of new values on the same pattern, for every plan on every device.

use super::conformance::{devices, product, scattered};
use super::devices::gpu;
use super::spmm::apply_multi;
use super::{Oracle, chapter, x_vector};
use crate::device::{Device, DeviceVec, Stream};
use crate::formats::psell::ValueEncoding;
use crate::formats::{Plan, ResidentMatrix, Updater};
use crate::matrix::{CsrMatrix, gallery};
use crate::{Error, Layout, Scalar, ScalarKind, SparseOp, SparseOpBuilder, Tuning};
use std::collections::HashSet;

/// The same pattern with other values, all of them different.
fn renewed<T: Scalar>(a: &CsrMatrix<T>, round: f64) -> CsrMatrix<T> {
    let mut b = a.clone();
    let changed =
        |(k, value): (usize, T)| T::from_f64(round) * value + T::from_f64(k as f64 * 1e-3);
    let values: Vec<T> = x_vector(a.nnz()).into_iter().enumerate().map(changed).collect();
    b.values_mut().copy_from_slice(&values);
    b
}

/// Number of different values that the codes of a plan can represent, if it uses codes.
fn room<T: Scalar>(plan: &Plan, a: &CsrMatrix<T>) -> Option<usize> {
    let Plan::Psell(psell) = plan else { return None };
    if psell.values() != ValueEncoding::Packed {
        return None;
    }
    match different(a) {
        0 | 1 => Some(1),
        2..=256 => Some(256),
        _ => None,
    }
}

/// Number of different values, by their bits.
fn different<T: Scalar>(a: &CsrMatrix<T>) -> usize {
    a.values().iter().map(|value| value.bits()).collect::<HashSet<_>>().len()
}

/// The same pattern with `few` different values.
fn of_few<T: Scalar>(a: &CsrMatrix<T>, round: f64, few: usize) -> CsrMatrix<T> {
    let mut b = a.clone();
    let values = b.values_mut().iter_mut().enumerate();
    values.for_each(|(k, value)| *value = T::from_f64(round + (k * 7 % few) as f64));
    b
}

/// Updates one packed matrix twice, from host memory and on the device. A refusal must have a
/// reason.
pub(super) fn check<T: Scalar>(
    device: &Device,
    plan: &Plan,
    a: &CsrMatrix<T>,
    x: &[T],
    context: &str,
) {
    let stream = Stream::new(device).unwrap();
    let mut matrix = ResidentMatrix::on(device, plan.pack(a.view()).unwrap()).unwrap();
    let updater = match Updater::new(plan, &mut matrix, a.view(), false) {
        Ok(updater) => updater,
        Err(error) => {
            let spelled = plan.to_string();
            let coded = spelled.contains("values:packed");
            let host = spelled.contains("tail:host") && *device != Device::Cpu;
            assert!(
                matches!(error, Error::NotUpdatable { .. }) && (coded || host),
                "{error}: {context}"
            );
            assert_eq!(matrix.unpack().unwrap(), *a, "{context}");
            return;
        }
    };
    let (narrow, room) = (matrix.storage().unwrap().precision(), room(plan, a));
    let checked_on_host = (narrow.is_some() || room.is_some()) && *device != Device::Cpu;
    for round in [1.5, -0.5] {
        let mut b = renewed(a, round);
        if let Some(room) = room.filter(|&room| different(&b) > room) {
            let before = matrix.unpack().unwrap();
            let refused = updater.update(&mut matrix, b.values());
            assert!(matches!(refused, Err(Error::NotUpdatable { .. })), "{refused:?}: {context}");
            assert_eq!(matrix.unpack().unwrap(), before, "{context}");
            b = of_few(a, round, room);
        }
        if let Some(precision) = narrow {
            let before = matrix.unpack().unwrap();
            if b.values().iter().any(|&value| !precision.holds(value)) {
                let refused = updater.update(&mut matrix, b.values());
                assert!(
                    matches!(refused, Err(Error::ValueInexact { .. })),
                    "{refused:?}: {context}"
                );
            }
            assert_eq!(matrix.unpack().unwrap(), before, "{context}");
            b = b.rounded_to(precision).unwrap().into_owned();
        }
        let values = DeviceVec::from_slice(device, b.values()).unwrap();
        let enqueued = round < 0.0 && {
            let enqueued = updater.enqueue(&mut matrix, &stream, &values);
            let refused = matches!(enqueued, Err(Error::NotUpdatable { .. }));
            assert_eq!(refused, checked_on_host, "{enqueued:?}: {context}");
            refused || enqueued.map(|()| true).unwrap()
        };
        if !enqueued || checked_on_host {
            updater.update(&mut matrix, b.values()).unwrap();
        }
        stream.synchronize().unwrap();
        assert_eq!(matrix.unpack().unwrap(), b, "{context}");
        let y = product(device, &matrix, a.nrows(), x);
        Oracle::of(b.view(), x)
            .check(&y)
            .unwrap_or_else(|wrong| panic!("updated, {context}: {wrong}"));
    }
}

fn operator<T: Scalar>(device: &Device, plan: &str, a: &CsrMatrix<T>) -> SparseOp<T> {
    let plan = Tuning::Fixed(plan.parse().unwrap());
    SparseOpBuilder::new().device(device.clone()).tuning(plan).build(a).unwrap()
}

#[test]
fn an_updated_operator_has_the_bits_of_a_new_one() {
    let a = scattered::<f64>(5000, 4000, |row| row % 23);
    let x = x_vector(4000);
    for device in devices() {
        for plan in
            ["csr(balanced)", "sell", "hyb(width:9)", "jds(sections:3,tail:4)", "psell(group:4)"]
        {
            let mut op = operator(device, plan, &a);
            let bytes = op.memory_bytes();
            for round in 1..4 {
                let b = renewed(&a, f64::from(round));
                op.update_from(&b).unwrap();
                let (mut updated, mut new) = (vec![0.0; 5000], vec![0.0; 5000]);
                op.apply(&x, &mut updated).unwrap();
                operator(device, plan, &b).apply(&x, &mut new).unwrap();
                assert_eq!(updated, new, "{plan} on {device}");
            }
            // If values are not in their order: 4 bytes per entry, and on a GPU 4.5 per slot,
            // including some padding.
            let entries = a.nnz() as u64;
            let expected = match device {
                _ if plan.starts_with("csr") => 0..=0,
                Device::Cpu => 4 * entries..=4 * entries,
                Device::Cuda(_) => 4 * entries + entries / 2..=9 * entries,
            };
            let map = op.memory_bytes() - bytes;
            assert!(
                expected.contains(&map),
                "{map} bytes for {entries} entries, {plan} on {device}"
            );
        }
    }
}

#[test]
fn entries_of_long_rows_empty_rows_and_permuted_rows_find_their_slots() {
    fn check_all<T: Scalar>() {
        let a = scattered::<T>(613, 20_000, |row| match row {
            17 => 9000,
            row if row % 5 == 0 => 0,
            row => row * 7 % 41,
        });
        let x = x_vector(a.ncols());
        for device in devices() {
            for text in [
                "ell",
                "ell(lengths)",
                "sell(c:32,sigma:1)",
                "sell(c:32,sigma:256)",
                "sell(c:7,sigma:64)",
                "jds",
                "jds(diagonals)",
                "jds(sections:3,tail:4)",
                "hyb(width:9)",
                "psell(sigma:512,group:4,split:64)",
                "psell(sigma:512,values:f32)",
                "psell(sigma:512,values:bf16)",
                "tiles",
                "blocked(hot:192)",
            ] {
                if T::KIND == ScalarKind::F32 && text.contains("values:f32") {
                    continue;
                }
                check(
                    device,
                    &text.parse().unwrap(),
                    &a,
                    &x,
                    &format!("{text} in {} on {device}", T::KIND),
                );
            }
        }
    }
    check_all::<f32>();
    check_all::<f64>();
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_changes() {
    let a = chapter::matrix::<f32>();
    for device in devices() {
        let mut op = operator(device, "ell", &a);
        let (short, stream) = (DeviceVec::zeros(device, 6).unwrap(), Stream::new(device).unwrap());
        let other = chapter::exercise::<f32>();
        assert_eq!(other.nnz(), a.nnz(), "only the pattern differs");
        for (result, expected) in [
            (op.update_values(&[1.0; 6]), "6 values were given for 7 entries"),
            (op.update_values_device(&stream, &short), "6 values were given for 7 entries"),
            (op.update_from(&other), "4 x 4 with 7 entries, does not have the pattern"),
            (
                op.update_from(&CsrMatrix::zeros(4, 4).unwrap()),
                "0 entries, does not have the pattern",
            ),
        ] {
            let message = result.unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        assert_eq!(op.to_csr().unwrap(), a);
    }
    let (cpu, Some(gpu)) = (&Device::Cpu, gpu()) else { return };
    let (mut op, values) = (operator(gpu, "ell", &a), DeviceVec::zeros(cpu, 7).unwrap());
    let refused = op.update_values_device(&Stream::new(gpu).unwrap(), &values);
    assert!(matches!(refused, Err(Error::WrongDevice { what: "values", .. })), "{refused:?}");
}

#[test]
fn codes_of_values_are_avoided_if_updatable_and_refused_otherwise() {
    let a = "stencil27,n=12".parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
    for device in devices() {
        for plan in ["blocked(values:packed)", "tiles(values:packed)"] {
            let a = of_few(&a, 3.0, 1);
            let mut op = operator(device, plan, &a);
            let refused = op.update_values(a.values()).unwrap_err().to_string();
            assert!(refused.contains("updatable(true)"), "{refused}");
            assert_eq!(op.to_csr().unwrap(), a);
            let fixed = Tuning::Fixed(plan.parse().unwrap());
            let builder = SparseOpBuilder::new().device(device.clone()).updatable(true);
            let refused = builder.clone().tuning(fixed).build(&a).unwrap_err();
            assert!(matches!(refused, Error::NotUpdatable { .. }), "{refused}");
            let mut op = builder.build(&a).unwrap();
            let candidates =
                op.decision().candidates.iter().map(|candidate| candidate.plan.to_string());
            assert!(
                candidates.into_iter().all(|plan| !plan.contains("values:packed")),
                "{}",
                op.explain()
            );
            let b = renewed(&a, 2.0);
            op.update_values(b.values()).unwrap();
            assert_eq!(op.to_csr().unwrap(), b);
        }
    }
}

#[test]
fn codes_take_as_many_new_values_as_they_can_name() {
    let a = scattered::<f64>(900, 700, |row| if row == 400 { 600 } else { row % 23 });
    let x = x_vector(700);
    for device in devices() {
        for (text, few, room) in [
            ("psell(sigma:1,values:packed)", 5, 256),
            ("psell(sigma:512,values:packed,group:4,split:64)", 200, 256),
            ("psell(sigma:100000,values:packed)", 1, 1),
        ] {
            let mut op = operator(device, text, &of_few(&a, 1.0, few));
            let stream = Stream::new(device).unwrap();
            let on_device = DeviceVec::from_slice(device, &x).unwrap();
            let mut y = DeviceVec::zeros(device, 900).unwrap();
            let graph = stream.capture(&mut || op.apply_device(&stream, &on_device, &mut y));
            assert_eq!(graph.is_ok(), *device != Device::Cpu, "{text} on {device}");
            for (round, values) in [(2.0, room), (0.5, 1), (-7.25, room)] {
                let b = of_few(&a, round, values);
                op.update_values(b.values()).unwrap();
                assert_eq!(op.to_csr().unwrap(), b, "{text} on {device}");
                let (mut updated, mut new) = (vec![0.0; 900], vec![0.0; 900]);
                op.apply(&x, &mut updated).unwrap();
                operator(device, text, &b).apply(&x, &mut new).unwrap();
                assert_eq!(updated, new, "{text} on {device}");
                if let Ok(graph) = &graph {
                    graph.launch(&stream).unwrap();
                    assert_eq!(y.to_vec().unwrap(), new, "captured, {text}");
                }
                // One value more than there are codes, and values in the memory of a GPU.
                let more = of_few(&a, 3.0, room + 1);
                let refused = op.update_values(more.values()).unwrap_err();
                let reason =
                    if room == 1 { "the new values differ" } else { "more than 256 distinct" };
                let message = refused.to_string();
                assert!(
                    message.contains(reason) && message.contains("build the operator anew"),
                    "{message}"
                );
                let values = DeviceVec::from_slice(device, b.values()).unwrap();
                let enqueued = op.update_values_device(&stream, &values);
                assert_eq!(enqueued.is_ok(), *device == Device::Cpu, "{enqueued:?}");
                assert_eq!(op.to_csr().unwrap(), b, "{text} on {device}");
            }
        }
    }
}

#[test]
fn a_graph_updates_and_multiplies() {
    let Some(device) = gpu() else { return };
    let a = scattered::<f64>(5000, 4000, |row| row % 23);
    let x: Vec<f64> = x_vector(4000);
    for text in
        ["csr(balanced)", "ell", "hyb(width:9)", "jds(sections:3,tail:4)", "psell", "tiles", "coo"]
    {
        let plan: Plan = text.parse().unwrap();
        let stream = Stream::new(device).unwrap();
        let mut values = DeviceVec::from_slice(device, a.values()).unwrap();
        let mut y = DeviceVec::zeros(device, 5000).unwrap();
        // The graph keeps the operator, the map and the vectors alive.
        let graph = {
            let builder = SparseOpBuilder::new().device(device.clone()).updatable(true);
            let mut op = builder.tuning(Tuning::Fixed(plan)).build(&a).unwrap();
            let x = DeviceVec::from_slice(device, &x).unwrap();
            stream.capture(&mut || {
                op.update_values_device(&stream, &values)?;
                op.apply_device(&stream, &x, &mut y)
            })
        };
        let graph = graph.unwrap();
        for round in 1..4 {
            let b = renewed(&a, f64::from(round));
            values.copy_from(b.values()).unwrap();
            graph.launch(&stream).unwrap();
            let checked = Oracle::of(b.view(), &x).check(&y.to_vec().unwrap());
            checked.unwrap_or_else(|wrong| panic!("{text}: {wrong}"));
        }
    }
}

/// Checks `A X` for two vectors, row-major, and `Aᵀ x`.
fn check_copies(op: &SparseOp<f64>, a: &CsrMatrix<f64>) {
    let (x, mut y) = (x_vector::<f64>(a.nrows()), vec![f64::NAN; a.ncols()]);
    op.apply_transpose(&x, &mut y).unwrap();
    Oracle::of(a.transpose().view(), &x).check(&y).unwrap();
    let x: Vec<f64> = x_vector::<f64>(a.ncols());
    let (twice, mut y) =
        (x.iter().flat_map(|&x| [x, x]).collect::<Vec<_>>(), vec![f64::NAN; 2 * a.nrows()]);
    apply_multi(op, 2, &twice, &mut y, Layout::RowMajor).unwrap();
    let oracle = Oracle::of(a.view(), &x);
    for vector in 0..2 {
        let y: Vec<f64> = y.iter().skip(vector).step_by(2).copied().collect();
        oracle.check(&y).unwrap();
    }
}

#[test]
fn copies_of_the_matrix_do_not_outlive_its_values() {
    let a = scattered::<f64>(900, 700, |row| row % 23);
    for device in devices() {
        let stream = Stream::new(device).unwrap();
        // Plans whose own arrays are used for SpMM on the CPU, on both, on a GPU, and on neither.
        for plan in ["csr", "csr(balanced)", "psell(sigma:1)", "hyb(width:9)"] {
            let mut op = operator(device, plan, &a);
            check_copies(&op, &a);
            let b = renewed(&a, 2.0);
            op.update_values(b.values()).unwrap();
            check_copies(&op, &b);
            let b = renewed(&a, 3.0);
            op.update_from(&b).unwrap();
            check_copies(&op, &b);
            let b = renewed(&a, 4.0);
            let values = DeviceVec::from_slice(device, b.values()).unwrap();
            op.update_values_device(&stream, &values).unwrap();
            check_copies(&op, &b);
        }
    }
    let mut op = operator(&Device::Cpu, "hyb(width:9)", &a);
    for (row, col) in [(1, 650), (22, 3)] {
        check_copies(&op, &op.to_csr().unwrap());
        op.insert(row, col, 7.5).unwrap();
        check_copies(&op, &op.to_csr().unwrap());
    }
}

#[test]
fn a_matrix_that_was_symmetric_need_not_be_afterwards() {
    let mut a = "poisson2d,n=12".parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
    a.values_mut().fill(0.5);
    for device in devices() {
        let builder = SparseOpBuilder::new().device(device.clone()).updatable(true).transpose(true);
        let mut op = builder.build(&a).unwrap();
        assert!(std::ptr::eq(op.transposed().unwrap(), &op));
        let b = renewed(&a, 2.0);
        op.update_values(b.values()).unwrap();
        check_copies(&op, &b);
        assert!(!std::ptr::eq(op.transposed().unwrap(), &op));
        op.update_values(a.values()).unwrap();
        check_copies(&op, &a);
        assert!(std::ptr::eq(op.transposed().unwrap(), &op));
    }
}

#[test]
fn copies_are_refused_where_a_graph_updates() {
    let Some(device) = gpu() else { return };
    let a = scattered::<f64>(900, 700, |row| row % 23);
    let builder = SparseOpBuilder::new().device(device.clone()).updatable(true);
    let mut op = builder.tuning(Tuning::Fixed("hyb(width:9)".parse().unwrap())).build(&a).unwrap();
    let (stream, values) =
        (Stream::new(device).unwrap(), DeviceVec::from_slice(device, a.values()).unwrap());
    check_copies(&op, &a);
    let graph = stream.capture(&mut || op.update_values_device(&stream, &values)).unwrap();
    graph.launch(&stream).unwrap();
    assert!(matches!(op.transposed(), Err(Error::UpdatedByGraph { .. })));
    let refused = apply_multi(&op, 2, &[0.0; 1400], &mut [0.0; 1800], Layout::RowMajor);
    assert!(matches!(refused, Err(Error::UpdatedByGraph { .. })));
    assert_eq!(op.to_csr().unwrap(), a);
}
