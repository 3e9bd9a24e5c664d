//! Input that solvers refuse, and input that is still being computed.

use super::tests::{matrix, op, poisson, product, residual};
use super::*;
use sparseop::matrix::CsrMatrix;
use sparseop::{DeviceVec, SparseOpBuilder, Stream};
use sparseop_testkit::{devices, keep_busy, x_vector};

#[test]
fn wrong_input_is_refused() {
    for device in devices() {
        let square = op(device, &poisson::<f64>());
        let wide = SparseOpBuilder::new()
            .device(device.clone())
            .build(&CsrMatrix::<f64>::zeros(2, 3).unwrap())
            .unwrap();
        let refused = |method, op, settings| {
            SolverBuilder::new(method)
                .settings(settings)
                .build(op)
                .map(|_| ())
                .unwrap_err()
                .to_string()
        };
        let default = Settings::default();
        for (message, expected) in [
            (
                refused(Method::Cg, &wide, default),
                "cg needs a square matrix, and this one is 2 x 3",
            ),
            (refused(Method::Gmres { restart: 0 }, &square, default), "1 to 100 iterations, not 0"),
            (
                refused(Method::Chebyshev { bounds: Some((2.0, 1.0)) }, &square, default),
                "not 2 and 1",
            ),
            (refused(Method::Cg, &square, Settings { tolerance: f64::NAN, ..default }), "not NaN"),
            (
                refused(Method::Cg, &square, Settings { max_iterations: 0, ..default }),
                "at least one",
            ),
            (
                refused(Method::Cg, &square, Settings { check_every: Some(129), ..default }),
                "not 129",
            ),
        ] {
            assert!(message.contains(expected), "{message}");
        }
        let mut solver = SolverBuilder::new(Method::Cg).build(&square).unwrap();
        let n = square.nrows();
        let mut b = vec![1.0; n];
        let mut x = vec![0.0; n];
        assert!(
            solver
                .solve(&b[1..], &mut x)
                .unwrap_err()
                .to_string()
                .contains("`b` has 1599 elements")
        );
        b[17] = f64::NAN;
        let expected = "element 17 of vector `b` is NaN";
        assert!(solver.solve(&b, &mut x).unwrap_err().to_string().contains(expected));
        let on = DeviceVec::from_slice(device, &b).unwrap();
        let mut y = DeviceVec::zeros(device, n).unwrap();
        assert!(solver.solve_device(&on, &mut y).unwrap_err().to_string().contains(expected));
        assert_eq!(x, vec![0.0; n]);
        // The solver remains usable; a right-hand side of 0 gives 0.
        x[3] = 5.0;
        let report = solver.solve(&vec![0.0; n], &mut x).unwrap();
        assert_eq!((report.outcome, report.iterations, x), (Outcome::Converged, 0, vec![0.0; n]));
        let jacobi = Jacobi::of(matrix::<f64>(1, [(0, 0, 2.0)]).view()).unwrap();
        let error = SolverBuilder::new(Method::Cg).jacobi(jacobi).build(&square).unwrap_err();
        assert!(error.to_string().contains("`diagonal` has 1 elements"), "{error}");
    }
}

#[test]
fn a_right_hand_side_too_small_to_be_squared_is_not_taken_for_zero() {
    for device in devices() {
        let op = op(device, &matrix::<f64>(2, [(0, 0, 2.0), (1, 1, 4.0)]));
        let mut solver = SolverBuilder::new(Method::Cg).build(&op).unwrap();
        let mut x = [0.0; 2];
        let error = solver.solve(&[1e-170, 0.0], &mut x).unwrap_err().to_string();
        assert!(error.contains("cg: the square of the norm of `b`"), "{error}");
        let report = solver.solve(&[1e-100, 1e-101], &mut x).unwrap();
        assert_eq!(report.outcome, Outcome::Converged);
        assert!(
            (x[0] / 5e-101 - 1.0).abs() < 1e-8 && (x[1] / 2.5e-102 - 1.0).abs() < 1e-7,
            "{x:?}"
        );
    }
}

#[test]
fn vectors_of_another_stream_are_waited_for() {
    for device in devices() {
        let a = poisson::<f64>();
        let op = op(device, &a);
        let n = a.nrows();
        let x = DeviceVec::from_slice(device, &x_vector::<f64>(n)).unwrap();
        let expected = product(&a, &x_vector(n));
        let mut solver = SolverBuilder::new(Method::Cg).build(&op).unwrap();
        let stream = Stream::new(device).unwrap();
        let mut b = DeviceVec::zeros(device, n).unwrap();
        let mut y = DeviceVec::zeros(device, n).unwrap();
        // A solver that did not wait would read zeros, and return `x` = 0 without an iteration.
        let _busy = keep_busy(&op, &stream, &y, &mut b);
        op.apply_device(&stream, &x, &mut b).unwrap();
        let report = solver.solve_device(&b, &mut y).unwrap();
        assert!(report.outcome == Outcome::Converged && report.iterations > 0, "{report:?}");
        assert!(residual(&a, &expected, &y.to_vec().unwrap()) < 1e-7);
    }
}

#[test]
fn a_diagonal_without_an_inverse_is_refused() {
    let of = |entries: &[(usize, usize, f64)]| {
        Jacobi::of(matrix::<f64>(2, entries.iter().copied()).view())
    };
    assert_eq!(of(&[(0, 0, 2.0), (1, 0, 5.0), (1, 1, -4.0)]).unwrap().inverse, [0.5, -0.25]);
    assert!(of(&[(0, 0, 2.0), (1, 0, 5.0)]).unwrap_err().to_string().contains("0 in row 1"));
    assert!(
        of(&[(0, 0, f64::INFINITY), (1, 1, 1.0)])
            .unwrap_err()
            .to_string()
            .contains("element 0 of vector `diagonal`")
    );
    let tiny = of(&[(0, 0, 1.0), (1, 1, 1e-310)]).unwrap_err().to_string();
    assert!(tiny.contains("element 1 of vector `1 / diagonal` is inf"), "{tiny}");
    assert!(
        Jacobi::of(CsrMatrix::<f32>::zeros(2, 3).unwrap().view())
            .unwrap_err()
            .to_string()
            .contains("square")
    );
}
