use super::*;
use proptest::prelude::*;
use sparseop::matrix::{CsrMatrix, Triplets, gallery};
use sparseop::{Device, DeviceVec, Scalar, SparseOp, SparseOpBuilder, Tuning};
use sparseop_testkit::{Oracle, devices, x_vector};
use std::ops::ControlFlow::{Break, Continue};

const METHODS: [Method; 5] = [
    Method::Cg,
    Method::SingleReductionCg,
    Method::BiCgStab,
    Method::Gmres { restart: 30 },
    Method::Chebyshev { bounds: None },
];

pub(super) fn matrix<T: Scalar>(
    n: usize,
    entries: impl IntoIterator<Item = (usize, usize, f64)>,
) -> CsrMatrix<T> {
    let mut t = Triplets::new(n, n).unwrap();
    entries.into_iter().for_each(|(row, col, value)| t.push(row, col, T::from_f64(value)).unwrap());
    t.to_csr()
}

pub(super) fn poisson<T: Scalar>() -> CsrMatrix<T> {
    "poisson2d,n=40,values=laplacian".parse::<gallery::Spec>().unwrap().generate().unwrap()
}

/// Convection and diffusion on a line, with rows scaled from 1 to `scale`: not symmetric, and a
/// case for Jacobi preconditioning.
fn convection<T: Scalar>(n: usize, scale: f64) -> CsrMatrix<T> {
    let entries = (0..n).flat_map(|i| {
        let s = 1.0 + (scale - 1.0) * i as f64 / n as f64;
        let beside = [(i.checked_sub(1), -1.4 * s), (Some(i + 1).filter(|j| *j < n), -0.6 * s)];
        let beside = beside.into_iter().filter_map(move |(j, v)| Some((i, j?, v)));
        beside.chain([(i, i, 2.1 * s)])
    });
    matrix(n, entries)
}

pub(super) fn op<T: Scalar>(device: &Device, a: &CsrMatrix<T>) -> SparseOp<T> {
    SparseOpBuilder::new().device(device.clone()).deterministic(true).build(a).unwrap()
}

pub(super) fn product<T: Scalar>(a: &CsrMatrix<T>, x: &[T]) -> Vec<f64> {
    let row = |row| {
        let (cols, values) = a.view().row(row);
        cols.iter().zip(values).map(|(col, v)| v.to_f64() * x[*col as usize].to_f64()).sum::<f64>()
    };
    (0..a.nrows()).map(row).collect()
}

pub(super) fn norm(v: impl IntoIterator<Item = f64>) -> f64 {
    v.into_iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// ‖b − A x‖ / ‖b‖, computed from the matrix alone.
pub(super) fn residual<T: Scalar>(a: &CsrMatrix<T>, b: &[T], x: &[T]) -> f64 {
    let difference = product(a, x).into_iter().zip(b).map(|(ax, b)| b.to_f64() - ax);
    norm(difference) / norm(b.iter().map(|b| b.to_f64()))
}

/// Solves for a known solution and checks it; returns the report.
fn solves<T: Scalar>(
    device: &Device,
    a: &CsrMatrix<T>,
    method: Method,
    jacobi: bool,
    tolerance: f64,
) -> Report {
    let op = op(device, a);
    let exact = x_vector::<T>(a.nrows());
    let b: Vec<T> = product(a, &exact).into_iter().map(T::from_f64).collect();
    Oracle::of(a.view(), &exact).check(&b).unwrap();
    let settings = Settings { tolerance, max_iterations: 4000, ..Settings::default() };
    let mut builder = SolverBuilder::new(method).settings(settings);
    if jacobi {
        builder = builder.jacobi(Jacobi::of(a.view()).unwrap());
    }
    let mut solver = builder.build(&op).unwrap();
    let mut x = vec![T::ZERO; a.nrows()];
    let report = solver.solve(&b, &mut x).unwrap();
    let context = format!("{method:?}, Jacobi {jacobi}, {} on {device}: {report:?}", T::KIND);
    assert_eq!(report.outcome, Outcome::Converged, "{context}");
    let found = residual(a, &b, &x);
    assert!(
        found <= 1.01 * tolerance && (found - report.residual).abs() <= 0.01 * tolerance,
        "{found} {context}"
    );
    assert_eq!(report.history.len(), report.iterations + 1, "{context}");
    // Repeated with other vectors and with vectors on the device: the same bits.
    let again = solver.solve(&b, &mut vec![T::ZERO; a.nrows()]).unwrap();
    let (on, mut y) =
        (DeviceVec::from_slice(device, &b).unwrap(), DeviceVec::zeros(device, b.len()).unwrap());
    let third = solver.solve_device(&on, &mut y).unwrap();
    for other in [again, third] {
        assert_eq!(
            (&other.history, other.residual),
            (&report.history, report.residual),
            "{context}"
        );
    }
    assert_eq!(y.to_vec().unwrap(), x, "{context}");
    report
}

#[test]
fn every_method_solves_a_symmetric_system() {
    for device in devices() {
        for method in METHODS {
            for jacobi in [false, true] {
                solves::<f64>(device, &poisson(), method, jacobi, 1e-9);
                solves::<f32>(device, &poisson(), method, jacobi, 1e-4);
            }
        }
    }
}

#[test]
fn asymmetric_systems_are_solved_and_jacobi_scales_rows() {
    for device in devices() {
        let a = convection::<f64>(400, 1e4);
        for method in
            [Method::BiCgStab, Method::Gmres { restart: 60 }, Method::Gmres { restart: 100 }]
        {
            solves(device, &a, method, true, 1e-9);
        }
        solves(device, &convection::<f64>(200, 1.0), Method::BiCgStab, false, 1e-9);
        // A symmetric matrix with rows of very different magnitudes.
        let n = 300;
        let s = |i: usize| 1.0 + 1e3 * (i as f64 / n as f64);
        let uneven = matrix::<f64>(
            n,
            (0..n).flat_map(|i| {
                let beside = (i + 1 < n).then(|| -(s(i) * s(i + 1)).sqrt());
                let pair = beside.map(|v| [(i, i + 1, v), (i + 1, i, v)]);
                pair.into_iter().flatten().chain([(i, i, 2.5 * s(i))])
            }),
        );
        let plain = solves(device, &uneven, Method::Cg, false, 1e-8);
        let scaled = solves(device, &uneven, Method::Cg, true, 1e-8);
        assert!(
            2 * scaled.iterations < plain.iterations,
            "{} and {}",
            scaled.iterations,
            plain.iterations
        );
    }
}

#[test]
fn results_do_not_depend_on_the_check_interval() {
    for device in devices() {
        let (a, b) = (poisson::<f64>(), x_vector::<f64>(1600));
        let op = op(device, &a);
        for method in METHODS {
            let solve = |every: usize| {
                let settings = Settings { check_every: Some(every), ..Settings::default() };
                let mut x = vec![0.0; b.len()];
                let mut solver = SolverBuilder::new(method).settings(settings).build(&op).unwrap();
                let report = solver.solve(&b, &mut x).unwrap();
                (report.history, x)
            };
            let first = solve(1);
            assert!(
                [2, 7, 128].into_iter().all(|every| solve(every) == first),
                "{method:?} on {device}"
            );
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let a = "poisson2d,n=200,values=laplacian"
        .parse::<gallery::Spec>()
        .unwrap()
        .generate::<f64>()
        .unwrap();
    let (op, b) = (op(&Device::Cpu, &a), x_vector::<f64>(40_000));
    let settings = Settings { max_iterations: 40, ..Settings::default() };
    let all = || {
        let solve = |method| {
            let mut x = vec![0.0; b.len()];
            let solver =
                SolverBuilder::new(method).settings(settings).jacobi(Jacobi::of(a.view()).unwrap());
            let report = solver.build(&op).unwrap().solve(&b, &mut x).unwrap();
            (report.history, x)
        };
        let pair = power(&op, &b, settings, |_| Continue(())).unwrap();
        (METHODS.map(solve), pair.value, pair.vector)
    };
    let first = all();
    for threads in [1, 2, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        assert!(pool.install(all) == first, "{threads} threads");
    }
}

#[test]
fn bits_repeat_two_hundred_times() {
    let (a, b) = (poisson::<f64>(), x_vector::<f64>(1600));
    for device in devices() {
        let op = op(device, &a);
        for method in METHODS {
            let settings = Settings { max_iterations: 20, ..Settings::default() };
            let mut solver = SolverBuilder::new(method).settings(settings).build(&op).unwrap();
            let mut solve = || {
                let mut x = vec![0.0; b.len()];
                (solver.solve(&b, &mut x).unwrap().history, x)
            };
            let first = solve();
            assert!((1..200).all(|_| solve() == first), "{method:?} on {device}");
        }
    }
}

/// Report of a method for a system that it cannot solve.
fn fails(device: &Device, a: &CsrMatrix<f64>, method: Method, settings: Settings) -> Report {
    let op = op(device, a);
    let b = vec![1.0; a.nrows()];
    let mut x = vec![0.0; a.nrows()];
    let report = SolverBuilder::new(method)
        .settings(settings)
        .build(&op)
        .unwrap()
        .solve(&b, &mut x)
        .unwrap();
    let message = report.clone().converged().unwrap_err().to_string();
    assert!(
        message.contains("has not converged after") && message.contains(report.outcome.advice()),
        "{message}"
    );
    report
}

#[test]
fn failures_have_their_reason() {
    let some = Settings { max_iterations: 200, ..Settings::default() };
    let indefinite = matrix(4, (0..4).map(|i| (i, i, if i == 2 { -1.0 } else { 1.0 + i as f64 })));
    let rotation = matrix(2, [(0, 1, 1.0), (1, 0, -1.0)]);
    let singular = matrix(3, [(0, 0, 1.0), (1, 1, 2.0)]);
    let not_finite = matrix(2, [(0, 0, f64::NAN), (1, 1, 1.0)]);
    for device in devices() {
        for method in [Method::Cg, Method::SingleReductionCg] {
            let report = fails(device, &indefinite, method, some);
            assert_eq!(report.outcome, Outcome::NotPositiveDefinite, "{report:?}");
        }
        // r̂ and A p are orthogonal, in the first iteration and after a restart.
        assert_eq!(fails(device, &rotation, Method::BiCgStab, some).outcome, Outcome::Breakdown);
        for method in [Method::BiCgStab, Method::Gmres { restart: 3 }] {
            let outcome = fails(device, &singular, method, some).outcome;
            assert!(
                matches!(outcome, Outcome::Breakdown | Outcome::Stagnated),
                "{method:?}: {outcome:?}"
            );
        }
        for method in
            [Method::Cg, Method::SingleReductionCg, Method::BiCgStab, Method::Gmres { restart: 3 }]
        {
            assert_eq!(
                fails(device, &not_finite, method, some).outcome,
                Outcome::NotFinite,
                "{method:?}"
            );
        }
        let few = Settings { max_iterations: 7, ..Settings::default() };
        for method in METHODS {
            let report = fails(device, &poisson(), method, few);
            assert_eq!(
                (report.outcome, report.iterations),
                (Outcome::MaxIterations, 7),
                "{method:?}"
            );
            assert!(report.residual.is_finite());
        }
        // A tolerance below the precision of the scalar type.
        let beyond = Settings { tolerance: 1e-30, ..Settings::default() };
        for method in
            [Method::Cg, Method::SingleReductionCg, Method::BiCgStab, Method::Gmres { restart: 50 }]
        {
            let report = fails(device, &poisson(), method, beyond);
            assert!(
                matches!(report.outcome, Outcome::Stagnated | Outcome::Breakdown),
                "{method:?}: {:?}",
                report.outcome
            );
            assert!(report.residual < 1e-12, "{method:?}: {}", report.residual);
        }
        // Eigenvalues outside the bounds.
        let wrong = Method::Chebyshev { bounds: Some((0.1, 1.0)) };
        assert_eq!(
            fails(device, &poisson(), wrong, Settings::default()).outcome,
            Outcome::Diverged
        );
    }
}

#[test]
fn failed_solves_do_not_worsen_x() {
    // Singular, and inconsistent with `b`: the remainder from rounding must not be a divisor.
    let ones = matrix(2, [(0, 0, 1.0), (0, 1, 1.0), (1, 0, 1.0), (1, 1, 1.0)]);
    let some = Settings { max_iterations: 200, ..Settings::default() };
    for device in devices() {
        let methods = [
            Method::BiCgStab,
            Method::Gmres { restart: 30 },
            Method::Chebyshev { bounds: Some((0.1, 0.5)) },
        ];
        for (a, method) in methods
            .into_iter()
            .flat_map(|method| [(&ones, method), (&poisson(), method)].map(|(a, m)| (a.clone(), m)))
        {
            let op = op(device, &a);
            let mut b = vec![0.0; a.nrows()];
            b[0] = 1.0;
            let mut x = vec![0.0; b.len()];
            let report = SolverBuilder::new(method)
                .settings(some)
                .build(&op)
                .unwrap()
                .solve(&b, &mut x)
                .unwrap();
            let found = residual(&a, &b, &x);
            assert!(
                found <= 1.0 && (found - report.residual).abs() < 1e-12,
                "{method:?}: {found} {report:?}"
            );
            assert!(x.iter().all(|x: &f64| x.abs() < 1e3), "{method:?}: {x:?}");
        }
    }
}

#[test]
fn a_restart_of_gmres_that_gains_nothing_is_stagnation() {
    // A cyclic shift: GMRES makes no progress before the last of n iterations.
    let n = 12;
    let shift = matrix(n, (0..n).map(|i| (i, (i + 1) % n, 1.0)));
    for device in devices() {
        let op = op(device, &shift);
        let mut b = vec![0.0; n];
        b[0] = 1.0;
        let solve = |restart: usize| {
            let mut x = vec![0.0; n];
            (
                SolverBuilder::new(Method::Gmres { restart })
                    .build(&op)
                    .unwrap()
                    .solve(&b, &mut x)
                    .unwrap(),
                x,
            )
        };
        assert_eq!(solve(5).0.outcome, Outcome::Stagnated);
        let (report, x) = solve(n);
        assert_eq!((report.outcome, report.iterations), (Outcome::Converged, n));
        assert!(residual(&shift, &b, &x) < 1e-12);
    }
}

#[test]
fn plans_without_graph_capture_solve_too() {
    for device in devices() {
        let a = poisson::<f64>();
        let plan = Tuning::Fixed("hyb(width:4,tail:host)".parse().unwrap());
        let op = SparseOpBuilder::new().device(device.clone()).tuning(plan).build(&a).unwrap();
        let (b, mut x) = (vec![1.0; 1600], vec![0.0; 1600]);
        let report = SolverBuilder::new(Method::Cg).build(&op).unwrap().solve(&b, &mut x).unwrap();
        assert!(report.outcome == Outcome::Converged && residual(&a, &b, &x) < 1e-8);
    }
}

#[test]
fn progress_starts_at_the_initial_x() {
    let a = poisson::<f64>();
    let op = op(&Device::Cpu, &a);
    let b = vec![1.0; 1600];
    let calls = std::cell::RefCell::new(Vec::new());
    let mut solver = SolverBuilder::new(Method::Cg)
        .progress(|progress| {
            calls.borrow_mut().push(progress);
            Continue(())
        })
        .build(&op)
        .unwrap();
    let mut x = vec![0.0; 1600];
    let report = solver.solve(&b, &mut x).unwrap();
    let first: Vec<f64> = calls.borrow().iter().map(|progress| progress.residual).collect();
    assert_eq!(first, report.history);
    assert_eq!(calls.borrow().last().unwrap().iterations, report.iterations);
    assert_eq!(report.history[0], 1.0);
    let again = solver.solve(&b, &mut x).unwrap();
    assert_eq!((again.iterations, again.residual), (0, report.residual));
}

#[test]
fn an_observer_ends_an_iteration_and_the_solver_can_be_used_again() {
    let a = poisson::<f64>();
    let b = x_vector::<f64>(1600);
    for (device, method) in devices().iter().flat_map(|device| {
        let methods = [Method::Cg, Method::BiCgStab, Method::Gmres { restart: 30 }];
        methods.map(move |method| (device.clone(), method))
    }) {
        let op = op(&device, &a);
        let stops = std::cell::Cell::new(true);
        let observer = |progress: Progress| match progress.iterations {
            8.. if stops.get() => Break(()),
            _ => Continue(()),
        };
        let settings = Settings { check_every: Some(4), ..Settings::default() };
        let builder = SolverBuilder::new(method).settings(settings).progress(observer);
        let mut solver = builder.build(&op).unwrap();
        let mut x = vec![0.0; 1600];
        let report = solver.solve(&b, &mut x).unwrap();
        assert_eq!((report.outcome, report.iterations), (Outcome::Interrupted, 8), "{method:?}");
        // The x of the iteration so far.
        assert!(report.residual < 1.0 && residual(&a, &b, &x) < 1.0, "{report}");
        stops.set(false);
        solver.solve(&b, &mut x).unwrap().converged().unwrap();
        assert!(residual(&a, &b, &x) <= 1e-8, "{method:?}");
    }
    // Also while bounds are estimated.
    let op = op(&Device::Cpu, &a);
    let builder = SolverBuilder::new(Method::Chebyshev { bounds: None }).progress(|_| Break(()));
    let error = builder.build(&op).unwrap_err().to_string();
    assert!(error.contains("interrupted"), "{error}");
}

#[test]
fn the_bounds_of_a_known_spectrum_are_found() {
    for device in devices() {
        let n = 500;
        let a = matrix::<f64>(n, (0..n).map(|i| (i, i, 1.0 + 9.0 * (i as f64) / (n - 1) as f64)));
        let (low, high) = estimate_bounds(&op(device, &a), None).unwrap();
        assert!((0.9..1.0).contains(&low) && (10.0..10.6).contains(&high), "{low} {high}");
        let jacobi = Jacobi::of(a.view()).unwrap();
        let (low, high) = estimate_bounds(&op(device, &a), Some(&jacobi)).unwrap();
        assert!((0.9..1.0).contains(&low) && (1.0..1.1).contains(&high), "{low} {high}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn conjugate_gradients_need_about_as_many_iterations_as_there_are_unknowns(
        n in 1usize..40,
        links in proptest::collection::vec((0usize..40, 0usize..40, 0.01f64..1.0), 0..120),
    ) {
        // The Laplacian of a weighted graph plus a small multiple of the identity: symmetric and
        // positive definite.
        let links = links.into_iter().map(|(i, j, w)| (i % n, j % n, w)).filter(|(i, j, _)| i != j);
        let entries = links.flat_map(|(i, j, w)| [(i, j, -w), (j, i, -w), (i, i, w), (j, j, w)]);
        let a = matrix::<f64>(n, entries.chain((0..n).map(|i| (i, i, 0.1))));
        let op = op(&Device::Cpu, &a);
        let (b, mut x) = (x_vector::<f64>(n), vec![0.0; n]);
        let report = SolverBuilder::new(Method::Cg).build(&op).unwrap().solve(&b, &mut x).unwrap();
        prop_assert_eq!(report.outcome, Outcome::Converged);
        let iterations = report.iterations;
        prop_assert!(iterations <= n + 5, "{} iterations for {} unknowns", iterations, n);
        prop_assert!(residual(&a, &b, &x) <= 1e-8);
    }
}
