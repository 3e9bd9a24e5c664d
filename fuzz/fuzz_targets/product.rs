//! Products of any small matrix under any plan on the CPU have the result of the definition. The
//! values are small integers, so that sums are exact in any order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sparseop::formats::FormatKind;
use sparseop::matrix::CsrMatrix;
use sparseop::{Device, ErrorKind, Layout, Multivector, SparseOpBuilder, Tuning};

/// `A x` by the definition, or `Aᵀ x`.
fn product(entries: &[(usize, usize, f64)], rows: usize, transposed: bool, x: &[f64]) -> Vec<f64> {
    let mut y = vec![0.0; rows];
    for &(row, col, value) in entries {
        let (row, col) = if transposed { (col, row) } else { (row, col) };
        y[row] += value * x[col];
    }
    y
}

fuzz_target!(|bytes: &[u8]| {
    let [plan, nrows, ncols, vectors, rest @ ..] = bytes else { return };
    let (nrows, ncols) = (usize::from(*nrows), usize::from(*ncols));
    let plans: Vec<&str> =
        FormatKind::ALL.iter().flat_map(|kind| kind.examples()).copied().collect();
    let plan = plans[usize::from(*plan) % plans.len()];
    // Three bytes an entry, in any order; entries may repeat.
    let mut entries: Vec<(usize, usize, f64)> = rest
        .chunks_exact(3)
        .filter(|_| nrows > 0 && ncols > 0)
        .map(|e| (usize::from(e[0]) % nrows, usize::from(e[1]) % ncols, f64::from(e[2] as i8)))
        .collect();
    entries.sort_by_key(|entry| entry.0);
    let starts = (0..=nrows).map(|row| entries.partition_point(|entry| entry.0 < row)).collect();
    let columns = entries.iter().map(|entry| entry.1 as u32).collect();
    let values = entries.iter().map(|entry| entry.2).collect();
    let a = CsrMatrix::try_new(nrows, ncols, starts, columns, values).unwrap();
    let builder = SparseOpBuilder::new().device(Device::Cpu).updatable(true);
    let mut op = match builder.tuning(Tuning::Fixed(plan.parse().unwrap())).build(&a) {
        Ok(op) => op,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{plan}: {error}");
            return;
        }
    };
    let x: Vec<f64> = (0..ncols).map(|i| (i % 7) as f64 - 3.0).collect();
    let expected = product(&entries, nrows, false, &x);
    let mut y = vec![f64::NAN; nrows];
    op.apply(&x, &mut y).unwrap();
    assert_eq!(y, expected, "{plan}");
    op.apply_with(2.0, &x, -1.0, &mut y).unwrap();
    assert_eq!(y, expected, "{plan}, scaled");
    let z: Vec<f64> = (0..nrows).map(|i| (i % 5) as f64 - 2.0).collect();
    let mut back = vec![f64::NAN; ncols];
    op.apply_transpose(&z, &mut back).unwrap();
    assert_eq!(back, product(&entries, ncols, true, &z), "{plan}, transposed");
    let count = usize::from(*vectors) % 9;
    for layout in [Layout::RowMajor, Layout::ColumnMajor] {
        let place = |i: usize, k: usize, rows: usize| match layout {
            Layout::RowMajor => i * count + k,
            _ => k * rows + i,
        };
        let (mut many, mut results) = (vec![0.0; ncols * count], vec![f64::NAN; nrows * count]);
        for (i, k) in (0..ncols).flat_map(|i| (0..count).map(move |k| (i, k))) {
            many[place(i, k, ncols)] = x[i] + k as f64;
        }
        op.apply_multi(
            Multivector::new(&many[..], count, layout),
            Multivector::new(&mut results[..], count, layout),
        )
        .unwrap();
        for k in 0..count {
            let own: Vec<f64> = x.iter().map(|x| x + k as f64).collect();
            let expected = product(&entries, nrows, false, &own);
            let found: Vec<f64> = (0..nrows).map(|i| results[place(i, k, nrows)]).collect();
            assert_eq!(found, expected, "{plan}, vector {k} of {count}, {layout:?}");
        }
    }
    let doubled: Vec<f64> = a.values().iter().map(|value| 2.0 * value).collect();
    if op.update_values(&doubled).is_ok() {
        op.apply(&x, &mut y).unwrap();
        let twice: Vec<f64> = expected.iter().map(|y| 2.0 * y).collect();
        assert_eq!(y, twice, "{plan}, updated");
    }
});
