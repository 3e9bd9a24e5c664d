//! Tests of single entries: lookup in every plan, and insertion in plans with free slots.

use super::conformance::scattered;
use super::devices::gpu;
use super::{Oracle, chapter, x_vector};
use crate::device::Device;
use crate::formats::FormatKind;
use crate::matrix::CsrMatrix;
use crate::{Error, SparseOp, SparseOpBuilder, Tuning};

fn operator(plan: &str, a: &CsrMatrix<f64>) -> SparseOp<f64> {
    let plan = Tuning::Fixed(plan.parse().unwrap());
    SparseOpBuilder::new().device(Device::Cpu).tuning(plan).build(a).unwrap()
}

fn matrices() -> [CsrMatrix<f64>; 4] {
    [
        chapter::matrix(),
        scattered(67, 90, |row| (row * 7) % 23),
        scattered(100, 40, |row| if row % 7 == 3 { 9 } else { 0 }),
        CsrMatrix::zeros(5, 3).unwrap(),
    ]
}

#[test]
fn rows_elements_and_slots_are_those_of_the_matrix() {
    for a in &matrices() {
        for text in FormatKind::ALL.iter().flat_map(|kind| kind.examples()) {
            let op = operator(text, a);
            // Which formats have access is in their `operations.md`, as another test checks.
            if let Err(refused) = op.row(0) {
                assert!(matches!(refused, Error::NoAccess { .. }), "{refused}");
                assert!(
                    op.slots().is_err() && op.position(0).is_err() && op.get(0, 0).is_err(),
                    "{text}"
                );
                continue;
            }
            let mut stored = Vec::new();
            for row in 0..a.nrows() {
                let (cols, values) = a.view().row(row);
                let entries = || cols.iter().map(|&col| col as usize).zip(values.iter().copied());
                assert_eq!(
                    op.row(row).unwrap(),
                    entries().collect::<Vec<_>>(),
                    "row {row}, {text}"
                );
                stored.extend(entries().map(|(col, _)| (row, col)));
                for col in 0..a.ncols() {
                    let expected = entries().filter(|entry| entry.0 == col).map(|entry| entry.1);
                    assert_eq!(
                        op.get(row, col).unwrap(),
                        expected.reduce(|a, b| a + b),
                        "{row}, {col}, {text}"
                    );
                }
            }
            // Every entry is in one slot; the others are padding.
            let slots = op.slots().unwrap();
            let mut found: Vec<_> =
                (0..slots).filter_map(|slot| op.position(slot).unwrap()).collect();
            found.sort_unstable();
            stored.sort_unstable();
            assert_eq!(found, stored, "{text}");
            assert_eq!(op.position(slots).unwrap(), None, "{text}");
        }
    }
}

#[test]
fn inserted_entries_take_part_in_products() {
    for a in &matrices() {
        for text in [
            "ell",
            "ell(lengths)",
            "sell(c:5,sigma:7)",
            "sell(c:32,sigma:1)",
            "hyb(width:2)",
            "coo",
            "csr",
            "jds",
        ] {
            let (mut op, mut entries) = (operator(text, a), rows_of(a));
            let bytes = op.memory_bytes();
            let (mut added, mut refused) = (0, 0);
            for k in 0..3 * a.nrows() {
                let (row, col, value) = (k * 5 % a.nrows(), k * 11 % a.ncols(), k as f64 + 0.5);
                let before = op.get(row, col).unwrap();
                match op.insert(row, col, value) {
                    Ok(replaced) => {
                        assert_eq!(replaced, before, "{text}");
                        added += u64::from(before.is_none());
                        put(&mut entries[row], col, value);
                    }
                    Err(Error::NoRoom { .. }) => refused += 1,
                    Err(error) => panic!("{error}, {text}"),
                }
            }
            let expected = matrix_of(&entries, a.ncols());
            assert_eq!(op.to_csr().unwrap(), expected, "{text}");
            assert_eq!(op.nnz(), expected.nnz() as u64, "{text}");
            let any = ["hyb(width:2)", "coo"].contains(&text);
            let none = ["csr", "jds"].contains(&text);
            assert!(!any || refused == 0, "{refused} found no room, {text}");
            assert!(!none || added == 0, "{added} were added, {text}");
            assert!(any || op.memory_bytes() == bytes, "{text}");
            let (x, mut y) = (x_vector(a.ncols()), vec![f64::NAN; a.nrows()]);
            op.apply(&x, &mut y).unwrap();
            Oracle::of(expected.view(), &x)
                .check(&y)
                .unwrap_or_else(|wrong| panic!("{text}: {wrong}"));
            // The order of the values has changed.
            let renewed: Vec<f64> = (0..expected.nnz()).map(|k| k as f64).collect();
            op.update_values(&renewed).unwrap();
            assert_eq!(op.to_csr().unwrap().values(), renewed, "{text}");
        }
    }
}

#[test]
fn places_of_values_found_before_an_insertion_are_not_used_after_it() {
    let a = chapter::matrix::<f64>();
    let mut op = operator("hyb(width:2)", &a);
    op.update_values(a.values()).unwrap();
    // The row has an entry in the COO part already, and so has the next row.
    assert_eq!(op.insert(2, 0, 7.0).unwrap(), None);
    assert!(matches!(
        op.update_values(a.values()),
        Err(Error::ValuesLength { expected: 8, found: 7 })
    ));
    let values: Vec<f64> = (0..8).map(f64::from).collect();
    op.update_values(&values).unwrap();
    assert_eq!(op.to_csr().unwrap().values(), values);
}

#[test]
fn missing_entries_are_refused() {
    let a = chapter::matrix::<f64>();
    let mut op = operator("ell", &a);
    for (row, col) in [(4, 0), (0, 4), (usize::MAX, usize::MAX)] {
        assert!(matches!(op.get(row, col), Err(Error::OutOfBounds { nrows: 4, ncols: 4, .. })));
        assert!(matches!(op.insert(row, col, 1.0), Err(Error::OutOfBounds { .. })));
    }
    assert!(op.row(4).is_err() && op.position(usize::MAX).unwrap().is_none());
    let full = op.insert(2, 0, 1.0).unwrap_err().to_string();
    assert!(full.contains("row 2, column 0") && full.contains("`hyb` and `coo`"), "{full}");
    assert_eq!(op.to_csr().unwrap(), a);
    let Some(gpu) = gpu() else { return };
    let builder =
        SparseOpBuilder::new().device(gpu.clone()).tuning(Tuning::Fixed("ell".parse().unwrap()));
    let mut op = builder.build(&a).unwrap();
    assert!(matches!(op.get(0, 0), Err(Error::NoAccess { .. })));
    assert!(matches!(op.insert(0, 0, 1.0), Err(Error::NoAccess { .. })));
}

type Row = Vec<(u32, f64)>;

fn rows_of(a: &CsrMatrix<f64>) -> Vec<Row> {
    let row = |row| {
        let (cols, values) = a.view().row(row);
        cols.iter().copied().zip(values.iter().copied()).collect()
    };
    (0..a.nrows()).map(row).collect()
}

/// Inserts into a row of the model, as `insert` should.
fn put(row: &mut Row, col: usize, value: f64) {
    let mut value = Some(value);
    for entry in row.iter_mut().filter(|entry| entry.0 as usize == col) {
        entry.1 = value.take().unwrap_or(0.0);
    }
    row.extend(value.map(|value| (col as u32, value)));
}

fn matrix_of(rows: &[Row], ncols: usize) -> CsrMatrix<f64> {
    let mut row_ptr = vec![0];
    row_ptr.extend(rows.iter().scan(0, |end, row| {
        *end += row.len();
        Some(*end)
    }));
    let (col_idx, values) = rows.iter().flatten().copied().unzip();
    CsrMatrix::try_new(rows.len(), ncols, row_ptr, col_idx, values).unwrap()
}
