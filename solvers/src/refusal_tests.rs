//! Tests of invalid input: vectors on another device, matrices that are not square, numbers that
//! are not finite.

use super::tests::{matrix, op};
use super::*;
use sparseop::matrix::CsrMatrix;
use sparseop::{Device, DeviceVec, SparseOp, SparseOpBuilder};
use sparseop_testkit::devices;
use std::ops::ControlFlow::Continue;

/// A 6 x 6 matrix: twice the identity.
fn square(device: &Device) -> SparseOp<f64> {
    op(device, &matrix(6, (0..6).map(|i| (i, i, 2.0))))
}

/// A 6 x 9 matrix with one entry per row.
fn wide(device: &Device) -> SparseOp<f64> {
    let a = CsrMatrix::try_new(6, 9, (0..7).collect(), (2..8).collect(), vec![1.0; 6]).unwrap();
    op(device, &a)
}

fn ones(device: &Device) -> DeviceVec<f64> {
    DeviceVec::from_slice(device, &[1.0; 6]).unwrap()
}

#[test]
fn vectors_on_another_device() {
    let [cpu, gpu] = devices() else { return };
    for (here, there) in [(gpu, cpu), (cpu, gpu)] {
        let system = square(here);
        let mut solver = SolverBuilder::new(Method::Cg).build(&system).unwrap();
        let solved = solver.solve_device(&ones(there), &mut ones(here)).map(drop);
        assert!(matches!(solved, Err(Error::WrongDevice { .. })), "{solved:?}");
        let solved = solver.solve_device(&ones(here), &mut ones(there)).map(drop);
        assert!(matches!(solved, Err(Error::WrongDevice { .. })), "{solved:?}");
    }
}

#[test]
fn systems_that_are_not_square() {
    for device in devices() {
        let (op, settings) = (wide(device), Settings::default());
        for method in [
            Method::Cg,
            Method::BiCgStab,
            Method::Gmres { restart: 5 },
            Method::Chebyshev { bounds: None },
        ] {
            let refused = SolverBuilder::new(method).build(&op).map(drop);
            let named = matches!(refused, Err(Error::NotSquare { nrows: 6, ncols: 9, .. }));
            assert!(named, "{refused:?}");
        }
        let found = power(&op, &[1.0; 9], settings, |_| Continue(())).map(drop);
        assert!(matches!(found, Err(Error::NotSquare { .. })), "{found:?}");
        assert!(matches!(estimate_bounds(&op, None), Err(Error::NotSquare { .. })));
        let builder = SparseOpBuilder::new().device(device.clone());
        let graph = CsrMatrix::<f64>::zeros(2, 3).unwrap();
        let ranked = PageRank::new(graph.view(), &builder).map(drop);
        assert!(matches!(ranked, Err(Error::NotSquare { .. })), "{ranked:?}");
    }
}

#[test]
fn numbers_that_are_not_finite() {
    for device in devices() {
        let op = square(device);
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut vector = [1.0; 6];
            vector[4] = bad;
            let on_device = || DeviceVec::from_slice(device, &vector).unwrap();
            let mut solver = SolverBuilder::new(Method::BiCgStab).build(&op).unwrap();
            let mut x = [0.0; 6];
            for (refused, culprit) in [
                (solver.solve(&vector, &mut x), "b"),
                (solver.solve(&[1.0; 6], &mut vector.clone()), "x"),
                (solver.solve_device(&on_device(), &mut ones(device)), "b"),
                (solver.solve_device(&ones(device), &mut on_device()), "x"),
            ] {
                let error = refused.map(drop).unwrap_err();
                let named =
                    matches!(error, Error::NotFinite { vector, index: 4, .. } if vector == culprit);
                assert!(named, "{error} on {device}");
            }
            assert!(solver.solve(&[1.0; 6], &mut x).unwrap().converged().is_ok());
            let found = power(&op, &vector, Settings::default(), |_| Continue(())).map(drop);
            let named = matches!(found, Err(Error::NotFinite { vector: "start", index: 4, .. }));
            assert!(named, "{found:?}");
        }
    }
}
