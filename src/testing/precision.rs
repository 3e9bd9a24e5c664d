//! Tests of values in fewer bytes and of rounded values: every plan that stores them so, and
//! operators that use them.

use super::conformance::{check_plan, devices, product, scattered, small};
use super::{Oracle, x_vector};
use crate::analysis::Analysis;
use crate::device::{Device, DeviceVec, Stream};
use crate::formats::{Plan, ResidentMatrix};
use crate::matrix::{CsrMatrix, gallery};
use crate::{Error, Multivector, Precision, Scalar, ScalarKind, SparseOp, SparseOpBuilder, Tuning};

/// Numbers at the limits of a precision: the largest, the smallest, subnormal ones and both zeros.
fn borders(precision: Precision) -> Vec<f64> {
    let (least, place) = match precision {
        Precision::Bf16 => (-126, -133),
        Precision::F16 => (-14, -24),
        Precision::F32 => (-126, -149),
    };
    let power = |exponent: i32| 2f64.powi(exponent);
    // Sums of a few of them do not overflow in f32.
    let largest = precision.largest().min(2f64.powi(100));
    let all = [
        largest,
        power(least),
        power(place),
        3.0 * power(place),
        power(least) - power(place),
        0.0,
        1.0,
    ];
    all.into_iter().flat_map(|number| [number, -number]).collect()
}

/// The same pattern with more values of a precision than a dictionary has; the first ones are at
/// its limits.
fn narrow<T: Scalar>(a: &CsrMatrix<T>, precision: Precision) -> CsrMatrix<T> {
    let (mut a, borders) = (a.clone(), borders(precision));
    for (k, value) in a.values_mut().iter_mut().enumerate() {
        let number = match borders.get(k % 1000) {
            Some(&border) if k % 2000 < 1000 => border,
            _ => value.to_f64(),
        };
        *value = precision.round(T::from_f64(number)).unwrap();
    }
    a
}

const PLANS: [&str; 7] = [
    "psell(sigma:1,values:P)",
    "psell(sigma:1,values:P,group:4)",
    "psell(sigma:1,values:P,group:4,split:3)",
    "psell(sigma:40,values:P,split:60)",
    "psell(sigma:512,values:P,group:4)",
    "psell(sigma:100000,values:P,group:4)",
    "psell(sigma:100000,values:P,split:9)",
];

fn plan(text: &str, precision: Precision) -> Plan {
    text.replace('P', precision.name()).parse().unwrap()
}

/// Runs the conformance tests of every plan on awkward shapes.
fn check_all<T: Scalar>(precision: Precision) {
    for (name, a) in small::<T>() {
        let a = narrow(&a, precision);
        assert!(Analysis::of(a.view()).structure.exact_in.contains(precision), "{name}");
        for text in PLANS {
            check_plan(&plan(text, precision), &a, &format!("{name}, of numbers in {precision}"));
        }
    }
}

#[test]
fn conforms_in_bf16_and_f32() {
    check_all::<f32>(Precision::Bf16);
}

#[test]
fn conforms_in_f16_and_f32() {
    check_all::<f32>(Precision::F16);
}

#[test]
fn conforms_in_bf16_and_f64() {
    check_all::<f64>(Precision::Bf16);
}

#[test]
fn conforms_in_f16_and_f64() {
    check_all::<f64>(Precision::F16);
}

#[test]
fn conforms_in_f32_and_f64() {
    check_all::<f64>(Precision::F32);
}

/// The bits of values, with a single representation of NaN: a GPU has its own.
fn bits<T: Scalar>(values: &[T]) -> Vec<u64> {
    values.iter().map(|v| if v.to_f64().is_nan() { u64::MAX } else { v.bits() }).collect()
}

fn check_specials<T: Scalar>(precision: Precision) {
    let mut a = narrow(&scattered::<T>(300, 200, |row| row % 23), precision);
    for (k, value) in a.values_mut().iter_mut().enumerate().filter(|(k, _)| k % 7 == 3) {
        *value = T::from_f64([f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0][k / 7 % 4]);
    }
    let x = x_vector::<T>(200);
    for device in devices() {
        for text in PLANS {
            let plan = plan(text, precision);
            let context = format!("{plan} in {} on {device}", T::KIND);
            let mut matrix = ResidentMatrix::on(device, plan.pack(a.view()).unwrap()).unwrap();
            assert_eq!(matrix.storage().unwrap().precision(), Some(precision), "{context}");
            let unpacked = matrix.unpack().unwrap();
            let exact = |a: &CsrMatrix<T>| a.values().iter().map(|v| v.bits()).collect::<Vec<_>>();
            assert_eq!(exact(&unpacked), exact(&a), "{context}");
            // In the order of the rows, as without packing: special numbers give the same results.
            let y = product(device, &matrix, 300, &x);
            Oracle::of(a.view(), &x).check(&y).unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
        }
    }
}

#[test]
fn special_values_keep_their_bits_and_reach_their_rows() {
    for precision in [Precision::Bf16, Precision::F16] {
        check_specials::<f32>(precision);
    }
    Precision::ALL.into_iter().for_each(check_specials::<f64>);
}

#[test]
fn all_16_bit_numbers_are_multiplied_exactly() {
    // One value per row, and all of them in one long row: single loads and loads of four.
    for precision in [Precision::Bf16, Precision::F16] {
        let values: Vec<f32> =
            (0..=u16::MAX).map(|bits| precision.widen::<f32>(bits.into())).collect();
        let rows = values.len() / 4;
        let row_ptr = (0..=rows).map(|row| 4 * row).collect();
        let col_idx =
            (0..rows).flat_map(|row| (0..4).map(move |k| ((row + k) % rows) as u32)).collect();
        let a = CsrMatrix::try_new(rows, rows, row_ptr, col_idx, values).unwrap();
        for device in devices() {
            for text in PLANS {
                let plan = plan(text, precision);
                let matrix = ResidentMatrix::on(device, plan.pack(a.view()).unwrap()).unwrap();
                for k in 0..4 {
                    // One column of four is not zero. Zero times the others is zero, except for
                    // infinities and NaNs.
                    let x: Vec<f32> =
                        (0..rows).map(|col| if col % 4 == k { 1.0 } else { 0.0 }).collect();
                    let y = product(device, &matrix, rows, &x);
                    let expected: Vec<f32> = (0..rows)
                        .map(|row| {
                            let (cols, values) = a.view().row(row);
                            cols.iter()
                                .zip(values)
                                .map(|(&col, &v)| v * x[col as usize])
                                .fold(0.0, |s, p| s + p)
                        })
                        .collect();
                    let close = |(&y, &expected): (&f32, &f32)| {
                        y == expected || (y.is_nan() && expected.is_nan())
                    };
                    assert!(y.iter().zip(&expected).all(close), "{plan}, {k} on {device}");
                }
            }
        }
    }
}

fn builder(device: &Device, plan: &str) -> SparseOpBuilder {
    SparseOpBuilder::new().device(device.clone()).tuning(Tuning::Fixed(plan.parse().unwrap()))
}

/// Checks every product of an operator against that of a matrix.
fn check_products<T: Scalar>(op: &SparseOp<T>, a: &CsrMatrix<T>) {
    let context = format!("{} on {}", op.plan(), op.device());
    let fail = |wrong| panic!("{context}: {wrong}");
    assert_eq!(bits(op.to_csr().unwrap().values()), bits(a.values()), "{context}");
    let (x, mut y) = (x_vector::<T>(a.ncols()), vec![T::ZERO; a.nrows()]);
    op.apply(&x, &mut y).unwrap();
    let oracle = Oracle::of(a.view(), &x);
    oracle.check(&y).unwrap_or_else(fail);
    let (alpha, beta, before) = (T::from_f64(-1.5), T::from_f64(0.5), y.clone());
    op.apply_with(alpha, &x, beta, &mut y).unwrap();
    oracle.clone().scaled(alpha, beta, &before).check(&y).unwrap_or_else(fail);
    for k in [2, 3, 8] {
        let multi: Vec<T> = x.iter().flat_map(|&x| vec![x; k]).collect();
        let mut y = vec![T::ZERO; k * a.nrows()];
        op.apply_multi(Multivector::row_major(&multi, k), Multivector::row_major(&mut y, k))
            .unwrap();
        for v in 0..k {
            oracle
                .check(&y.iter().skip(v).step_by(k).copied().collect::<Vec<_>>())
                .unwrap_or_else(fail);
        }
    }
    let (x, mut y) = (x_vector::<T>(a.nrows()), vec![T::ZERO; a.ncols()]);
    op.apply_transpose(&x, &mut y).unwrap();
    Oracle::of(a.transpose().view(), &x).check(&y).unwrap_or_else(fail);
}

/// Checks that values are rounded first, and again by updates, for any plan.
fn check_rounded<T: Scalar>(precision: Precision) {
    let a = scattered::<T>(900, 700, |row| row % 23);
    let mut rounded = a.rounded_to(precision).unwrap().into_owned();
    let packed = format!("psell(sigma:1,values:{precision})");
    for device in devices() {
        for plan in ["csr", "ell", "hyb(width:9)", "psell(sigma:1)", &packed] {
            let op = builder(device, plan).value_precision(precision).build(&a).unwrap();
            check_products(&op, &rounded);
            let said = op.explain().to_string();
            let reason = if plan == packed { "stored in" } else { "`psell(values:" };
            assert!(
                said.contains(&format!("rounded to {precision}")) && said.contains(reason),
                "{said}"
            );
        }
        for updatable in [false, true] {
            let builder = SparseOpBuilder::new().device(device.clone()).updatable(updatable);
            let mut op = builder.value_precision(precision).build(&a).unwrap();
            let narrow = format!("values:{precision}");
            let tried =
                op.decision().candidates.iter().any(|c| c.plan.to_string().contains(&narrow));
            assert!(tried, "{}", op.explain());
            check_products(&op, &rounded);
            let mut b = a.clone();
            b.values_mut().iter_mut().for_each(|value| *value = *value * T::from_f64(3.7));
            op.update_values(b.values()).unwrap();
            check_products(&op, &b.rounded_to(precision).unwrap().into_owned());
            op.update_from(&a).unwrap();
            check_products(&op, &rounded);
        }
        let mut op = builder(device, &packed).value_precision(precision).build(&a).unwrap();
        let beyond: Vec<T> =
            (0..a.nnz()).map(|k| T::from_f64(if k == 5 { f64::MAX } else { 1.5 })).collect();
        let refused = op.update_values(&beyond);
        // The largest f64 is infinite in f32; an infinite f32 stays infinite.
        match T::KIND {
            ScalarKind::F64 => {
                assert!(matches!(refused, Err(Error::ValueRange { entry: 5, .. })), "{refused:?}")
            }
            ScalarKind::F32 => {
                refused.unwrap();
                rounded.values_mut().copy_from_slice(&beyond);
            }
        }
        assert_eq!(bits(op.to_csr().unwrap().values()), bits(rounded.values()));
        rounded = a.rounded_to(precision).unwrap().into_owned();
    }
}

#[test]
fn products_are_those_of_the_rounded_matrix_in_f32() {
    check_rounded::<f32>(Precision::Bf16);
    check_rounded::<f32>(Precision::F16);
}

#[test]
fn products_are_those_of_the_rounded_matrix_in_f64() {
    Precision::ALL.into_iter().for_each(check_rounded::<f64>);
}

#[test]
fn unrepresentable_values_are_refused_without_changes() {
    let mut a = scattered::<f64>(60, 50, |row| row % 9);
    for device in devices() {
        a.values_mut().fill(1.25);
        a.values_mut()[17] = 65520.0;
        let built =
            SparseOpBuilder::new().device(device.clone()).value_precision(Precision::F16).build(&a);
        assert!(
            matches!(built, Err(Error::ValueRange { entry: 17, place: Some(_), .. })),
            "{built:?}"
        );
        a.values_mut()[17] = 65519.0;
        let op =
            SparseOpBuilder::new().device(device.clone()).value_precision(Precision::F16).build(&a);
        assert_eq!(op.unwrap().to_csr().unwrap().values()[17], 65504.0);
        // Without rounding, new values must be exact in the plan's precision.
        a.values_mut()[17] = 2.5;
        let mut op = builder(device, "psell(values:f16)").build(&a).unwrap();
        let mut b = a.clone();
        b.values_mut()[20] = 0.1;
        let refused = op.update_values(b.values()).unwrap_err();
        assert!(matches!(refused, Error::ValueInexact { entry: 20, .. }), "{refused}");
        assert!(refused.to_string().contains("value_precision"), "{refused}");
        assert_eq!(op.to_csr().unwrap(), a);
        b.values_mut()[20] = 0.125;
        op.update_values(b.values()).unwrap();
        check_products(&op, &b);
        // On a GPU values cannot be checked without waiting.
        let (stream, values) =
            (Stream::new(device).unwrap(), DeviceVec::from_slice(device, a.values()).unwrap());
        let updated = op.update_values_device(&stream, &values);
        if *device == Device::Cpu {
            updated.unwrap();
            check_products(&op, &a);
        } else {
            assert!(matches!(updated, Err(Error::NotUpdatable { .. })), "{updated:?}");
            check_products(&op, &b);
            let mut op = builder(device, "csr").value_precision(Precision::F16).build(&a).unwrap();
            let updated = op.update_values_device(&stream, &values);
            assert!(matches!(updated, Err(Error::NotUpdatable { .. })), "{updated:?}");
        }
    }
}

#[test]
fn an_analysis_of_other_values_is_repeated() {
    let a = scattered::<f64>(900, 700, |row| row % 23);
    let analysis = Analysis::of(a.view());
    assert_eq!(analysis.structure.exact_in.narrowest(), None);
    let builder = SparseOpBuilder::new().device(Device::Cpu).value_precision(Precision::Bf16);
    let op = builder.build_analyzed(&a, &analysis).unwrap();
    let expected = Analysis::of(a.rounded_to(Precision::Bf16).unwrap().view()).structure;
    assert_eq!(*op.structure(), expected);
}

#[test]
fn values_that_are_narrow_already_take_fewer_bytes_by_themselves() {
    let single = "stencil27,n=12".parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
    let a = single.widen::<f64>();
    let analysis = Analysis::of(a.view());
    assert_eq!(analysis.structure.exact_in.narrowest(), Some(Precision::F32));
    let bytes =
        |text: &str| text.parse::<Plan>().unwrap().work(&analysis, ScalarKind::F64).matrix_bytes;
    let plain = bytes("psell(sigma:1)");
    let narrow = bytes("psell(sigma:1,values:f32)");
    // 4 bytes less per entry; the padding of slices differs by less than 16 bytes each.
    let (nnz, slices) = (a.nnz() as u64, a.nrows().div_ceil(32) as u64);
    assert!(plain - narrow >= 4 * nnz - 16 * slices && plain - narrow <= 4 * nnz + 16 * slices);
    assert_eq!(bytes("psell(sigma:1,values:f16)"), plain, "as they are");
    for device in devices() {
        let builder = SparseOpBuilder::new().device(device.clone());
        let candidates = |op: &SparseOp<f64>| {
            op.decision()
                .candidates
                .iter()
                .filter(|c| c.plan.to_string().contains("values:f32"))
                .count()
        };
        let op = builder.clone().build(&a).unwrap();
        assert!(candidates(&op) > 0, "{}", op.explain());
        assert!(
            op.decision().candidates.iter().all(|c| c.prediction.is_some()),
            "{}",
            op.explain()
        );
        check_products(&op, &a);
        // New values are arbitrary.
        assert_eq!(candidates(&builder.updatable(true).build(&a).unwrap()), 0);
    }
    let op = SparseOpBuilder::new().device(Device::Cpu).build(&single).unwrap();
    assert!(op.decision().candidates.iter().all(|c| !c.plan.to_string().contains("values:f32")));
}
