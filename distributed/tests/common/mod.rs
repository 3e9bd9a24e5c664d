//! Matrices of the tests.
#![allow(dead_code)]

use sparseop::matrix::{CsrMatrix, gallery};
use sparseop::{Device, Scalar};
use sparseop_distributed::{Devices, DistributedOp};
use sparseop_testkit::gpu;

pub(crate) fn gallery<T: Scalar>(spec: &str) -> CsrMatrix<T> {
    spec.parse::<gallery::Spec>().unwrap().generate().unwrap()
}

/// Matrices of all shapes: even and skewed rows, no halo, nothing but halo, rectangular, empty.
pub(crate) fn matrices<T: Scalar>() -> Vec<(&'static str, CsrMatrix<T>)> {
    let diagonal = |n: usize, shift: usize| {
        let columns = (0..n as u32).map(|row| (row + shift as u32) % n as u32).collect();
        let values = (0..n).map(|row| T::from_f64(1.0 + row as f64)).collect();
        CsrMatrix::try_new(n, n, (0..=n).collect(), columns, values).unwrap()
    };
    let zeros = |rows, columns| CsrMatrix::zeros(rows, columns).unwrap();
    let rectangle = |rows: usize, columns: usize| {
        let entries = (0..rows).flat_map(|row| (0..row % 5).map(move |k| (row, k)));
        let position = |(row, k): (usize, usize)| ((row * 31 + k * 17) % columns) as u32;
        let columns_of = entries.clone().map(position).collect();
        let values = entries.map(|(row, k)| T::from_f64(0.3 * row as f64 - k as f64)).collect();
        let ends = (0..=rows).map(|end| (0..end).map(|row| row % 5).sum::<usize>()).collect();
        CsrMatrix::try_new(rows, columns, ends, columns_of, values).unwrap()
    };
    vec![
        ("grid", gallery("poisson2d,n=40")),
        ("skewed", gallery("webbase,rows=3k")),
        ("graph", gallery("rmat,scale=9")),
        ("fem", gallery("fem3d,n=6")),
        ("no halo", diagonal(50, 0)),
        ("all halo", diagonal(50, 25)),
        ("wide", rectangle(30, 200)),
        ("tall", rectangle(200, 30)),
        ("one row", rectangle(1, 7)),
        ("one column", rectangle(9, 1)),
        ("one element", diagonal(1, 0)),
        ("no rows", zeros(0, 5)),
        ("no columns", zeros(5, 0)),
        ("nothing", zeros(0, 0)),
        ("no entries", zeros(12, 12)),
        ("large", gallery("banded,rows=40k")),
    ]
}

/// The CPU and the GPUs of this machine: one device, and several.
pub(crate) fn devices(counts: &[usize]) -> Vec<(Devices, Vec<Devices>)> {
    let mut all = vec![(Devices::cpu(1), counts.iter().map(|&count| count.into()).collect())];
    if gpu().is_some() {
        let gpus = Device::gpus();
        let several = (2..=gpus.len()).map(|count| gpus[..count].to_vec().into()).collect();
        all.push((gpus[..1].to_vec().into(), several));
    }
    all
}

pub(crate) fn on<T: Scalar>(devices: &Devices, a: &CsrMatrix<T>) -> DistributedOp<T> {
    DistributedOp::auto(a, devices).unwrap()
}

pub(crate) fn one_part<T: Scalar>(a: &CsrMatrix<T>) -> DistributedOp<T> {
    on(&Devices::cpu(1), a)
}

pub(crate) fn bits<T: Scalar>(numbers: &[T]) -> Vec<u64> {
    numbers.iter().map(|number| number.bits()).collect()
}
