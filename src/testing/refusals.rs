//! Tests of invalid input: every operation refuses it with a typed error that names the cause,
//! before anything is written. Overlap of `x` and `y` is excluded by the borrow checker: see
//! `SparseOp::apply`.

use super::conformance::{devices, fits, of_rows, scattered};
use super::devices::gpu;
use super::spmm::{apply_multi, apply_multi_device};
use crate::analysis::Analysis;
use crate::device::{Device, DeviceVec, Stream};
use crate::formats::Layout::RowMajor;
use crate::formats::{FormatKind, Plan};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar, SparseOp, SparseOpBuilder, Tuning};

/// Content of every result vector, which must be unchanged afterwards.
const UNTOUCHED: f64 = 7.5;

/// 6 x 9.
fn wide(device: &Device) -> SparseOp<f64> {
    let a = scattered(6, 9, |row| 1 + row % 3);
    SparseOpBuilder::new().device(device.clone()).build(&a).unwrap()
}

fn ones(device: &Device, len: usize) -> DeviceVec<f64> {
    DeviceVec::from_slice(device, &vec![1.0; len]).unwrap()
}

/// The vector refused for its length, and the required length.
fn length(result: Result<(), Error>) -> (&'static str, usize) {
    match result.unwrap_err() {
        Error::VectorLength { vector, expected, .. } => (vector, expected),
        Error::VectorsLength { vectors, count, len, .. } => (vectors, count * len),
        error => panic!("{error}"),
    }
}

#[test]
fn shapes_in_host_memory() {
    for device in devices() {
        let op = wide(device);
        let (long, mut y) = (vec![1.0; 20], [UNTOUCHED; 20]);
        // Lengths of x and y; the refused vector, and its required length.
        for (x, to, culprit) in
            [(8, 6, ("x", 9)), (9, 7, ("y", 6)), (0, 0, ("x", 9)), (6, 9, ("x", 9))]
        {
            assert_eq!(length(op.apply(&long[..x], &mut y[..to])), culprit);
            assert_eq!(length(op.apply_with(0.0, &long[..x], 0.0, &mut y[..to])), culprit);
        }
        for (x, to, culprit) in [(7, 9, ("x", 6)), (6, 8, ("y", 9)), (9, 6, ("x", 6))] {
            assert_eq!(length(op.apply_transpose(&long[..x], &mut y[..to])), culprit);
        }
        for (x, to, culprit) in [(17, 12, ("x", 18)), (18, 13, ("y", 12)), (9, 6, ("x", 18))] {
            assert_eq!(length(apply_multi(&op, 2, &long[..x], &mut y[..to], RowMajor)), culprit);
        }
        assert_eq!(y, [UNTOUCHED; 20]);
        assert!(matches!(op.get(6, 0), Err(Error::OutOfBounds { .. })));
    }
}

#[test]
fn shapes_on_the_device() {
    for device in devices() {
        let (op, stream) = (wide(device), Stream::new(device).unwrap());
        let untouched = |len| DeviceVec::from_slice(device, &vec![UNTOUCHED; len]).unwrap();
        let vector = |len| ones(device, len);
        let (mut six, mut nine) = (untouched(6), untouched(9));
        assert_eq!(length(op.apply_device(&stream, &vector(6), &mut six)), ("x", 9));
        assert_eq!(length(op.apply_device(&stream, &vector(9), &mut nine)), ("y", 6));
        assert_eq!(
            length(op.apply_device_with(&stream, 1.0, &vector(9), 1.0, &mut nine)),
            ("y", 6)
        );
        assert_eq!(length(op.apply_transpose_device(&stream, &vector(9), &mut nine)), ("x", 6));
        assert_eq!(length(op.apply_transpose_device(&stream, &vector(6), &mut six)), ("y", 9));
        assert_eq!(
            length(apply_multi_device(&op, &stream, 2, &vector(9), &mut nine, RowMajor)),
            ("x", 18)
        );
        assert_eq!(
            length(apply_multi_device(&op, &stream, 2, &vector(18), &mut nine, RowMajor)),
            ("y", 12)
        );
        assert!(matches!(
            six.copy_from(&[0.0; 5]),
            Err(Error::CopyLength { expected: 6, found: 5 })
        ));
        assert_eq!(
            (six.to_vec().unwrap(), nine.to_vec().unwrap()),
            (vec![UNTOUCHED; 6], vec![UNTOUCHED; 9])
        );
        // The operator remains usable.
        op.apply_device(&stream, &vector(9), &mut six).unwrap();
    }
}

/// The object refused for its device.
fn misplaced(result: Result<(), Error>) -> &'static str {
    match result.unwrap_err() {
        Error::WrongDevice { what, .. } => what,
        error => panic!("{error}"),
    }
}

#[test]
fn objects_on_another_device() {
    let (cpu, Some(gpu)) = (&Device::Cpu, gpu()) else { return };
    for (here, there) in [(gpu, cpu), (cpu, gpu)] {
        let mut op = wide(here);
        let nnz = op.nnz() as usize;
        let [stream, other] = [here, there].map(|device| Stream::new(device).unwrap());
        let (x, x_there) = (ones(here, 18), ones(there, 18));
        let (mut y, mut y_there) = (ones(here, 12), ones(there, 12));
        let multi = |stream: &Stream, x: &DeviceVec<f64>, y: &mut DeviceVec<f64>| {
            misplaced(apply_multi_device(&op, stream, 2, x, y, RowMajor))
        };
        assert_eq!(multi(&stream, &x_there, &mut y), "x");
        assert_eq!(multi(&stream, &x, &mut y_there), "y");
        assert_eq!(multi(&other, &x, &mut y), "stream");
        let (six, nine, six_there) = (ones(here, 6), ones(here, 9), ones(there, 6));
        let (mut to, mut to_there) = (ones(here, 9), ones(there, 9));
        assert_eq!(misplaced(op.apply_transpose_device(&stream, &six_there, &mut to)), "x");
        assert_eq!(misplaced(op.apply_transpose_device(&stream, &six, &mut to_there)), "y");
        assert_eq!(misplaced(op.apply_transpose_device(&other, &six, &mut to)), "stream");
        assert_eq!(misplaced(op.apply_device(&other, &nine, &mut ones(here, 6))), "stream");
        assert_eq!(misplaced(op.update_values_device(&stream, &ones(there, nnz))), "values");
        assert_eq!(misplaced(op.update_values_device(&other, &ones(here, nnz))), "stream");
    }
}

/// Shape of the matrices in which infinities are followed.
const ROWS: usize = 150;
const COLUMNS: usize = 211;

/// Checks which rows an infinity or NaN in `x` reaches: exactly those with an entry in its column.
fn reaches_exactly_the_rows_with_an_entry<T: Scalar>() {
    // Empty, short and long rows, and columns without an entry.
    reaches_exactly(&scattered::<T>(ROWS, COLUMNS, |row| match row % 25 {
        0 | 7 => 0,
        12 => 90,
        _ => 1 + row % 6,
    }));
    // Long rows among others of which none is empty: packed SELL fills their lanes, with columns
    // that the others have and, along diagonals, with the next ones.
    let is_long = |row: usize| row % 16 == 5;
    reaches_exactly(&scattered::<T>(ROWS, COLUMNS, |r| if is_long(r) { 90 } else { 3 + r % 4 }));
    let row =
        |row: usize| if is_long(row) { row + 3..(row + 90).min(COLUMNS) } else { row..row + 3 };
    reaches_exactly(&of_rows::<T, _>(COLUMNS, (0..ROWS).map(row)));
}

fn reaches_exactly<T: Scalar>(a: &CsrMatrix<T>) {
    let (transposed, analysis) = (a.transpose(), Analysis::of(a.view()));
    let plans = FormatKind::ALL.iter().flat_map(|kind| kind.examples());
    let plans = plans.map(|text| text.parse::<Plan>().unwrap());
    let plans: Vec<Plan> = plans.filter(|plan| fits(plan, &analysis, T::KIND)).collect();
    assert!(plans.len() > FormatKind::ALL.len());
    for (device, plan) in devices().iter().flat_map(|d| plans.iter().map(move |plan| (d, plan))) {
        let builder = SparseOpBuilder::new().device(device.clone());
        let op = builder.tuning(Tuning::Fixed(plan.clone())).build(a).unwrap();
        let check = |a: &CsrMatrix<T>, at: usize, bad: f64, y: &[T]| {
            for (row, y) in y.iter().enumerate() {
                let is_reached = a.view().row(row).0.contains(&(at as u32));
                assert_eq!(y.to_f64().is_finite(), !is_reached, "{bad} at {at}, row {row}, {plan}");
            }
        };
        // Padding may stand for the first column, the last or any other; row 69 is long.
        for at in [0, 1, 69, ROWS / 2, ROWS - 1, COLUMNS - 1] {
            for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let (mut x, mut y) = (vec![T::ONE; COLUMNS], vec![T::ZERO; ROWS]);
                x[at] = T::from_f64(bad);
                op.apply(&x, &mut y).unwrap();
                check(a, at, bad, &y);
                // As many as `csr(balanced)` multiplies by chunks, and more.
                for count in [2, 3, 8] {
                    let many: Vec<T> = x.iter().flat_map(|x| vec![*x; count]).collect();
                    let mut results = vec![T::ZERO; count * ROWS];
                    apply_multi(&op, count, &many, &mut results, RowMajor).unwrap();
                    (0..count).for_each(|k| {
                        let one: Vec<T> = results.iter().skip(k).step_by(count).copied().collect();
                        check(a, at, bad, &one);
                    });
                }
                if at < ROWS {
                    let (mut x, mut y) = (vec![T::ONE; ROWS], vec![T::ZERO; COLUMNS]);
                    x[at] = T::from_f64(bad);
                    op.apply_transpose(&x, &mut y).unwrap();
                    check(&transposed, at, bad, &y);
                }
            }
        }
    }
}

#[test]
fn nan_and_inf_reach_exactly_the_rows_with_an_entry() {
    reaches_exactly_the_rows_with_an_entry::<f32>();
    reaches_exactly_the_rows_with_an_entry::<f64>();
}

#[test]
fn another_pattern_with_as_many_entries() {
    for device in devices() {
        let mut op = wide(device);
        let a = op.to_csr().unwrap();
        let mut cols = a.col_idx().to_vec();
        cols[0] = (cols[0] + 1) % 9;
        let moved =
            CsrMatrix::try_new(6, 9, a.row_ptr().to_vec(), cols, a.values().to_vec()).unwrap();
        let taller = scattered::<f64>(7, 9, |row| if row < 6 { 1 + row % 3 } else { 0 });
        for other in [&moved, &taller] {
            let refused = op.update_from(other);
            assert!(matches!(refused, Err(Error::OtherPattern { .. })), "{refused:?} on {device}");
        }
        assert_eq!(op.to_csr().unwrap(), a);
        op.update_from(&a).unwrap();
    }
}
