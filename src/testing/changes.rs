//! Tests of operators after arbitrary sequences of changes, compared with lists of entries: derived
//! data from before a change must not be used after it.

use super::conformance::{devices, few_cases, scattered};
use super::devices::keep_busy;
use super::spmm::{apply_multi, apply_multi_device};
use crate::formats::{FormatKind, Layout};
use crate::matrix::CsrMatrix;
use crate::{DeviceVec, Error, SparseOp, SparseOpBuilder, Stream, Tuning};

/// A fixed sequence of pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    /// Integers, so that sums are exact in any order.
    fn vector(&mut self, len: usize) -> Vec<f64> {
        (0..len).map(|_| self.below(17) as f64 - 8.0).collect()
    }
}

/// Entries of every row, in order.
struct Model {
    rows: Vec<Vec<(usize, f64)>>,
    ncols: usize,
}

impl Model {
    fn of(a: &CsrMatrix<f64>) -> Self {
        let row = |row| {
            let (cols, values) = a.view().row(row);
            cols.iter().map(|col| *col as usize).zip(values.iter().copied()).collect()
        };
        Self { rows: (0..a.nrows()).map(row).collect(), ncols: a.ncols() }
    }

    fn entries(&mut self) -> impl Iterator<Item = &mut f64> {
        self.rows.iter_mut().flatten().map(|entry| &mut entry.1)
    }

    fn product(&self, x: &[f64]) -> Vec<f64> {
        self.rows.iter().map(|row| row.iter().map(|(col, value)| value * x[*col]).sum()).collect()
    }

    fn transposed(&self, x: &[f64]) -> Vec<f64> {
        let mut y = vec![0.0; self.ncols];
        for (row, x) in self.rows.iter().zip(x) {
            row.iter().for_each(|(col, value)| y[*col] += value * x);
        }
        y
    }

    /// Stores an element. A new one is added only if there is `room`.
    fn insert(&mut self, row: usize, col: usize, value: f64, room: bool) {
        let mut there = self.rows[row].iter_mut().filter(|entry| entry.0 == col);
        match there.next() {
            Some(first) => {
                first.1 = value;
                there.for_each(|entry| entry.1 = 0.0);
            }
            None if room => self.rows[row].push((col, value)),
            None => {}
        }
    }
}

/// Checks one product of a random kind.
fn check(op: &SparseOp<f64>, model: &Model, dice: &mut Dice, context: &str) {
    let (nrows, ncols) = (op.nrows(), op.ncols());
    let mut y = dice.vector(nrows);
    match dice.below(4) {
        0 => {
            let x = dice.vector(ncols);
            op.apply(&x, &mut y).unwrap();
            assert_eq!(y, model.product(&x), "{context}");
        }
        1 => {
            let (x, before) = (dice.vector(ncols), y.clone());
            op.apply_with(2.0, &x, -3.0, &mut y).unwrap();
            let expected =
                model.product(&x).into_iter().zip(before).map(|(ax, y)| 2.0 * ax - 3.0 * y);
            assert_eq!(y, expected.collect::<Vec<_>>(), "scaled, {context}");
        }
        2 => {
            let (k, x) = (1 + dice.below(5), dice.vector(5 * ncols));
            let x = &x[..k * ncols];
            let mut y = vec![f64::NAN; k * nrows];
            apply_multi(op, k, x, &mut y, Layout::ColumnMajor).unwrap();
            let expected: Vec<f64> = x.chunks(ncols).flat_map(|x| model.product(x)).collect();
            assert_eq!(y, expected, "{k} vectors, {context}");
        }
        _ => {
            let x = dice.vector(nrows);
            let mut y = vec![f64::NAN; ncols];
            op.apply_transpose(&x, &mut y).unwrap();
            assert_eq!(y, model.transposed(&x), "transposed, {context}");
        }
    }
}

/// Applies a random change.
fn change(op: &mut SparseOp<f64>, model: &mut Model, dice: &mut Dice, context: &str) {
    if dice.below(2) == 0 {
        let (row, col, value) =
            (dice.below(op.nrows()), dice.below(op.ncols()), 1.0 + dice.below(9) as f64);
        let nnz = op.nnz();
        match op.insert(row, col, value) {
            Ok(before) => {
                assert_eq!(op.nnz(), nnz + u64::from(before.is_none()), "{context}");
                model.insert(row, col, value, true);
            }
            Err(Error::NoRoom { .. } | Error::NoAccess { .. }) => {}
            Err(error) => panic!("{context}: {error}"),
        }
        return;
    }
    let values = dice.vector(op.nnz() as usize);
    let updated = if dice.below(2) == 0 {
        op.update_values(&values)
    } else {
        let stream = Stream::new(op.device()).unwrap();
        let values = DeviceVec::from_slice(op.device(), &values).unwrap();
        let enqueued = op.update_values_device(&stream, &values);
        stream.synchronize().unwrap();
        enqueued
    };
    match updated {
        Ok(()) => model.entries().zip(values).for_each(|(entry, value)| *entry = value),
        Err(Error::NotUpdatable { .. }) => {}
        Err(error) => panic!("{context}: {error}"),
    }
}

#[test]
fn any_sequence_of_changes_and_products_agrees_with_the_definition() {
    let symmetric =
        CsrMatrix::try_new(3, 3, vec![0, 2, 4, 5], vec![0, 1, 0, 1, 2], vec![1., 5., 5., 2., 3.]);
    let matrices = [scattered(40, 31, |row| (row * 7) % 11), symmetric.unwrap()];
    // The values of every other round may change.
    let (rounds, steps) = if few_cases() { (2, 3) } else { (4, 12) };
    for device in devices() {
        for (text, a) in FormatKind::ALL
            .iter()
            .flat_map(|kind| kind.examples())
            .flat_map(|text| matrices.iter().map(move |a| (text, a)))
        {
            let plan = Tuning::Fixed(text.parse().unwrap());
            let builder = SparseOpBuilder::new().device(device.clone()).tuning(plan);
            let mut dice = Dice(a.nnz() as u64);
            for round in 0..rounds {
                let mut model = Model::of(a);
                model.entries().for_each(|value| *value = value.round());
                let mut rounded = a.clone();
                rounded.values_mut().iter_mut().for_each(|value| *value = value.round());
                let mut op = builder.clone().updatable(round % 2 == 1).build(&rounded);
                if let (Err(Error::NotUpdatable { .. }), 1) = (&op, round % 2) {
                    op = builder.build(&rounded);
                }
                let mut op = op.unwrap();
                for step in 0..steps {
                    let context = format!("{text} on {device}, round {round}, step {step}");
                    change(&mut op, &mut model, &mut dice, &context);
                    check(&op, &model, &mut dice, &context);
                    check(&op, &model, &mut dice, &context);
                }
                assert_eq!(Model::of(&op.to_csr().unwrap()).rows, model.rows, "{text} on {device}");
            }
        }
    }
}

#[test]
fn copies_that_are_made_while_new_values_are_under_way_hold_them() {
    let a = scattered(500, 500, |row| 20 + row % 7);
    let plans: &[&str] =
        if few_cases() { &["psell(sigma:1)"] } else { &["csr", "ell", "psell(sigma:1)"] };
    for device in devices() {
        for plan in plans {
            let plan = Tuning::Fixed(plan.parse().unwrap());
            let mut op = SparseOpBuilder::new()
                .device(device.clone())
                .tuning(plan)
                .updatable(true)
                .build(&a)
                .unwrap();
            let (stream, mut dice) = (Stream::new(device).unwrap(), Dice(1));
            let x = dice.vector(500);
            let on_device = DeviceVec::from_slice(device, &x).unwrap();
            let mut y = DeviceVec::zeros(device, 500).unwrap();
            let mut model = Model::of(&a);
            for what in ["the matrix", "the transposed one", "several vectors"] {
                let values = dice.vector(a.nnz());
                let new = DeviceVec::from_slice(device, &values).unwrap();
                // Without waiting, the old values would be read.
                let _busy = keep_busy(&op, &stream, &on_device, &mut y);
                op.update_values_device(&stream, &new).unwrap();
                model.entries().zip(&values).for_each(|(entry, value)| *entry = *value);
                let context = format!("{what}, {} on {device}", op.plan());
                match what {
                    "the matrix" => assert_eq!(op.to_csr().unwrap().values(), values, "{context}"),
                    "several vectors" => {
                        let both = DeviceVec::from_slice(device, &x.repeat(2)).unwrap();
                        let mut y = DeviceVec::zeros(device, 1000).unwrap();
                        apply_multi_device(&op, &stream, 2, &both, &mut y, Layout::ColumnMajor)
                            .unwrap();
                        assert_eq!(y.to_vec().unwrap(), model.product(&x).repeat(2), "{context}");
                    }
                    _ => {
                        op.apply_transpose_device(&stream, &on_device, &mut y).unwrap();
                        assert_eq!(y.to_vec().unwrap(), model.transposed(&x), "{context}");
                    }
                }
            }
        }
    }
}
