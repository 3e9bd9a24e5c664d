//! Tests of `y = alpha A x + beta y` for every plan, on every device.

use super::conformance::{devices, few_cases, fits, scattered};
use super::devices::gpu;
use super::{Oracle, chapter, x_vector};
use crate::analysis::Analysis;
use crate::device::{Device, DeviceVec, Factor, Scaling, Stream};
use crate::formats::{FormatKind, Plan, ResidentMatrix, Scaler};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar, ScalarKind, SparseOp, SparseOpBuilder, Tuning};

/// Factors, including special values.
const FACTORS: &[(f64, f64)] = &[
    (1.0, 0.0),
    (2.5, 0.0),
    (0.0, 0.0),
    (0.0, 1.5),
    (1.0, 1.0),
    (-0.5, 3.0),
    (-0.0, -0.0),
    (f64::NAN, 1.0),
];

/// Factors of a test: under a slow tool one pair, with which `y` is read and written.
fn factors() -> &'static [(f64, f64)] {
    if few_cases() { &[(-0.5, 3.0)] } else { FACTORS }
}

/// Checks one packed matrix with all factors, as numbers and as elements of vectors.
pub(super) fn check<T: Scalar>(
    device: &Device,
    matrix: &ResidentMatrix<T>,
    a: &CsrMatrix<T>,
    x: &[T],
    context: &str,
) {
    let (stream, scaler) = (Stream::new(device).unwrap(), Scaler::new(a.nrows()));
    let nan = T::from_f64(f64::NAN);
    let oracle = Oracle::of(a.view(), x);
    for &(alpha, beta) in factors() {
        let (alpha, beta) = (T::from_f64(alpha), T::from_f64(beta));
        // Operands of a factor of 0 are NaN.
        let x = if alpha == T::ZERO { vec![nan; x.len()] } else { x.to_vec() };
        let before = if beta == T::ZERO { vec![nan; a.nrows()] } else { x_vector(a.nrows()) };
        let oracle = oracle.clone().scaled(alpha, beta, &before);
        let factors = DeviceVec::from_slice(device, &[alpha, nan, beta]).unwrap();
        let x = DeviceVec::from_slice(device, &x).unwrap();
        let number = Scaling { alpha: alpha.into(), beta: beta.into() };
        let element = Scaling { alpha: Factor::from(&factors), beta: Factor::Element(&factors, 2) };
        let mixed = Scaling { alpha: number.alpha, beta: element.beta };
        for (form, by) in [("numbers", number), ("elements", element), ("one of each", mixed)] {
            let mut y = DeviceVec::from_slice(device, &before).unwrap();
            matrix.enqueue_scaled(&scaler, &stream, &x, &mut y, by).unwrap();
            let checked = oracle.check(&y.to_vec().unwrap());
            checked.unwrap_or_else(|wrong| {
                panic!("{alpha} A x + {beta} y, {form}, {context}: {wrong}")
            });
        }
    }
}

/// Rows of all lengths, one of them in many tasks.
fn skewed() -> CsrMatrix<f32> {
    scattered(9000, 5000, |row| if row == 4000 { 90_000 } else { row % 23 })
}

/// Every plan within the memory limit for the matrix.
fn plans(a: &CsrMatrix<f32>) -> impl Iterator<Item = Plan> {
    let analysis = Analysis::of(a.view());
    let plans = FormatKind::ALL
        .iter()
        .flat_map(|kind| kind.examples())
        .map(|text| text.parse::<Plan>().unwrap());
    plans.filter(move |plan| fits(plan, &analysis, ScalarKind::F32))
}

fn operator<T: Scalar>(device: &Device, plan: &Plan, a: &CsrMatrix<T>) -> SparseOp<T> {
    SparseOpBuilder::new()
        .device(device.clone())
        .tuning(Tuning::Fixed(plan.clone()))
        .build(a)
        .unwrap()
}

#[test]
fn vectors_in_host_memory() {
    let a = scattered::<f64>(700, 900, |row| row % 41);
    let (x, before) = (x_vector(900), x_vector::<f64>(700));
    for device in devices() {
        for text in ["csr(balanced)", "sell", "hyb(width:9)", "hyb(width:9,tail:host)", "tiles"] {
            let op = operator(device, &text.parse().unwrap(), &a);
            for (alpha, beta) in factors().iter().copied() {
                let mut y = if beta == 0.0 { vec![f64::NAN; 700] } else { before.clone() };
                op.apply_with(alpha, &x, beta, &mut y).unwrap();
                let oracle = Oracle::of(a.view(), &x).scaled(alpha, beta, &before);
                oracle
                    .check(&y)
                    .unwrap_or_else(|wrong| panic!("{alpha}, {beta}, {text}, {device}: {wrong}"));
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_y_is_untouched() {
    for device in devices() {
        let op = operator(device, &"csr".parse().unwrap(), &chapter::matrix::<f32>());
        let stream = Stream::new(device).unwrap();
        let vector = |data: &[f32]| DeviceVec::from_slice(device, data).unwrap();
        let (x, two, mut y) = (vector(&[1.0; 4]), vector(&[1.0; 2]), vector(&[7.0; 4]));
        let past = Factor::Element(&two, 2);
        for (result, expected) in [
            (op.apply_device_with(&stream, 1.0f32, &two, 1.0f32, &mut y), "`x` has 2 elements"),
            (op.apply_device_with(&stream, past, &x, 1.0f32, &mut y), "`alpha` has 2 elements"),
            (op.apply_device_with(&stream, 1.0f32, &x, past, &mut y), "`beta` has 2 elements"),
            (op.apply_with(1.0, &[1.0; 3], 1.0, &mut [0.0; 4]), "`x` has 3 elements"),
            (op.apply_with(1.0, &[1.0; 4], 1.0, &mut [0.0; 5]), "`y` has 5 elements"),
        ] {
            let message = result.unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        assert_eq!(y.to_vec().unwrap(), [7.0; 4]);
    }
    let (cpu, Some(gpu)) = (&Device::Cpu, gpu()) else { return };
    let op = operator(gpu, &"csr".parse().unwrap(), &chapter::matrix::<f32>());
    let (stream, elsewhere) =
        (Stream::new(gpu).unwrap(), DeviceVec::from_slice(cpu, &[1.0f32]).unwrap());
    let (x, mut y) = (DeviceVec::zeros(gpu, 4).unwrap(), DeviceVec::zeros(gpu, 4).unwrap());
    let refused = op.apply_device_with(&stream, 1.0f32, &x, &elsewhere, &mut y);
    assert!(matches!(refused, Err(Error::WrongDevice { what: "beta", .. })), "{refused:?}");
}

#[test]
fn a_graph_reads_its_factors_at_launch() {
    let Some(device) = gpu() else { return };
    let a = skewed();
    let x: Vec<f32> = x_vector(5000);
    let waits = |plan: &Plan| plan.to_string().contains("tail:host");
    for plan in plans(&a).filter(|plan| !waits(plan)) {
        let stream = Stream::new(device).unwrap();
        let mut factors = DeviceVec::from_slice(device, &[0.0, 0.0]).unwrap();
        let mut y = DeviceVec::from_slice(device, &x_vector(9000)).unwrap();
        // The very first product is the captured one, and the graph keeps the operator alive.
        let graph = {
            let op = operator(device, &plan, &a);
            let x = DeviceVec::from_slice(device, &x).unwrap();
            stream.capture(&mut || {
                op.apply_device_with(&stream, &factors, &x, Factor::Element(&factors, 1), &mut y)
            })
        };
        let graph = graph.unwrap();
        for (alpha, beta) in [(2.0f32, 0.5f32), (-1.0, 0.0)] {
            let before = y.to_vec().unwrap();
            factors.copy_from(&[alpha, beta]).unwrap();
            graph.launch(&stream).unwrap();
            let oracle = Oracle::of(a.view(), &x).scaled(alpha, beta, &before);
            oracle.check(&y.to_vec().unwrap()).unwrap_or_else(|wrong| panic!("{plan}: {wrong}"));
        }
    }
}
