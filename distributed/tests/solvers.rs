//! Solvers on several parts: the same iterations and the same bits as on one.

mod common;

use common::{bits, devices, gallery, on};
use sparseop::matrix::CsrMatrix;
use sparseop::{ErrorKind, Scalar};
use sparseop_distributed::{Devices, DistributedBuilder, DistributedOp};
use sparseop_solvers::{Jacobi, Method, PageRank, Settings, SolverBuilder, link_matrix};

const METHODS: [Method; 5] = [
    Method::Cg,
    Method::SingleReductionCg,
    Method::BiCgStab,
    Method::Gmres { restart: 20 },
    Method::Chebyshev { bounds: None },
];

/// Solves A x = b with b = A 1.
fn solve<T: Scalar>(
    op: &DistributedOp<T>,
    method: Method,
    tolerance: f64,
) -> (Vec<u64>, Vec<f64>, usize) {
    let n = op.nrows();
    let (mut b, mut x) = (vec![T::ZERO; n], vec![T::ZERO; n]);
    op.apply(&vec![T::ONE; n], &mut b).unwrap();
    let settings = Settings { tolerance, ..Settings::default() };
    let report = op.solve(method, settings, true, &b, &mut x).unwrap().converged().unwrap();
    let close = |x: &T| (x.to_f64() - 1.0).abs() < 1e4 * tolerance;
    assert!(x.iter().all(close), "{report}");
    (bits(&x), report.history.clone(), report.iterations)
}

fn solutions_have_the_same_bits<T: Scalar>(tolerance: f64) {
    for spec in ["poisson2d,n=30,values=laplacian", "poisson3d,n=9,values=laplacian"] {
        let a = gallery::<T>(spec);
        for (one, several) in devices(&[2, 3, 4]) {
            for method in METHODS {
                let expected = solve(&on(&one, &a), method, tolerance);
                for parts in &several {
                    let found = solve(&on(parts, &a), method, tolerance);
                    assert!(found == expected, "{spec}, {}, {parts:?}", method.name());
                }
            }
        }
    }
}

#[test]
fn solutions_have_the_bits_of_one_part_in_f32() {
    solutions_have_the_same_bits::<f32>(1e-5);
}

#[test]
fn solutions_have_the_bits_of_one_part_in_f64() {
    solutions_have_the_same_bits::<f64>(1e-10);
}

/// Parts whose interior rows are multiplied beside the messages, in captured iterations.
#[test]
fn large_parts_have_the_bits_of_one_part() {
    let a = gallery::<f64>("poisson3d,n=80,values=laplacian");
    for (one, several) in devices(&[2]) {
        let expected = solve(&on(&one, &a), Method::Cg, 1e-8);
        for parts in &several {
            assert!(solve(&on(parts, &a), Method::Cg, 1e-8) == expected, "{parts:?}");
        }
    }
}

#[test]
fn solutions_are_those_of_one_operator() {
    let a: CsrMatrix<f64> = gallery("poisson2d,n=30,values=laplacian");
    let op = sparseop::SparseOp::auto(&a).unwrap();
    let (b, mut x) = (vec![1.0; a.nrows()], vec![0.0; a.nrows()]);
    let jacobi = Jacobi::of(a.view()).unwrap();
    let solver = SolverBuilder::new(Method::Cg).jacobi(jacobi);
    let single = solver.build(&op).unwrap().solve(&b, &mut x).unwrap();
    let given = (0..a.nrows() as u32).map(|row| row % 3).collect();
    for builder in [DistributedBuilder::new(4), DistributedBuilder::new(3).partition(given)] {
        let (op, mut found) = (builder.build(&a).unwrap(), vec![0.0; a.nrows()]);
        let report = op.solve(Method::Cg, Settings::default(), true, &b, &mut found).unwrap();
        assert!(report.iterations.abs_diff(single.iterations) <= 2, "{report}, {single}");
        assert!(x.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-5 * a.abs()), "{report}");
    }
}

#[test]
fn ranks_have_the_bits_of_one_part_and_are_those_of_one_operator() {
    let graph: CsrMatrix<f64> = gallery("rmat,scale=9,values=pattern");
    let links = link_matrix(graph.view()).unwrap();
    let settings = Settings { tolerance: 1e-10, ..Settings::default() };
    let single = PageRank::new(graph.view(), &sparseop::SparseOpBuilder::new()).unwrap();
    let single = single.rank(0.85, settings, |_| std::ops::ControlFlow::Continue(())).unwrap();
    for (one, several) in devices(&[2, 3, 4]) {
        let expected = on(&one, &links).rank_pages(0.85, settings).unwrap().converged().unwrap();
        assert_eq!(expected.ranks.len(), graph.nrows());
        for (a, b) in single.ranks.iter().zip(&expected.ranks) {
            assert!((a - b).abs() < 1e-12, "{a} {b}");
        }
        for parts in &several {
            let found = on(parts, &links).rank_pages(0.85, settings).unwrap();
            assert_eq!(found.iterations, expected.iterations);
            assert!(bits(&found.ranks) == bits(&expected.ranks), "{parts:?}");
        }
    }
}

#[test]
fn systems_of_all_sizes_are_solved() {
    for n in [0, 1, 2, 3, 9] {
        let values = (0..n).map(|row| 1.0 + f64::from(row)).collect::<Vec<_>>();
        let columns: Vec<u32> = (0..n as u32).collect();
        let ends: Vec<usize> = (0..=n as usize).collect();
        let a = CsrMatrix::try_new(n as usize, n as usize, ends, columns, values).unwrap();
        for (one, several) in devices(&[4]) {
            let op = on(several.last().unwrap_or(&one), &a);
            systems_are_solved(&op);
        }
    }
}

fn systems_are_solved(op: &DistributedOp<f64>) {
    let n = op.nrows();
    for method in METHODS {
        let (b, mut x) = (vec![1.0; n], vec![0.0; n]);
        let report = op.solve(method, Settings::default(), false, &b, &mut x).unwrap();
        report.converged().unwrap_or_else(|error| panic!("{n}, {}: {error}", method.name()));
    }
}

#[test]
fn bad_systems_are_refused_and_the_operator_stays_usable() {
    let a: CsrMatrix<f64> = gallery("poisson2d,n=20,values=laplacian");
    for (one, several) in devices(&[3]) {
        refuses_bad_systems(&on(several.last().unwrap_or(&one), &a));
    }
    let (settings, cpu) = (Settings::default(), Devices::cpu(2));
    let wide = on(&cpu, &CsrMatrix::<f64>::zeros(2, 3).unwrap());
    let refused = wide.solve(Method::Cg, settings, false, &[1.0; 2], &mut [0.0; 2]).unwrap_err();
    assert_eq!(refused.to_string(), "cg needs a square matrix, and this one is 2 x 3");
    let zero = on(&cpu, &CsrMatrix::<f64>::zeros(3, 3).unwrap());
    let refused = zero.solve(Method::Cg, settings, true, &[1.0; 3], &mut [0.0; 3]).unwrap_err();
    assert!(matches!(refused, sparseop::Error::ZeroDiagonal { row: 0 }), "{refused}");
}

fn refuses_bad_systems(op: &DistributedOp<f64>) {
    let n = op.nrows();
    let (mut b, mut x) = (vec![1.0; n], vec![0.0; n]);
    let settings = Settings::default();
    let short = op.solve(Method::Cg, settings, false, &b[1..], &mut x).unwrap_err();
    assert_eq!(short.kind(), ErrorKind::WrongLength);
    // In the rows of one part alone.
    b[n - 1] = f64::NAN;
    let refused = op.solve(Method::Cg, settings, false, &b, &mut x).unwrap_err().to_string();
    assert!(refused.contains(&format!("{}", n - 1)), "{refused}");
    b[n - 1] = 1.0;
    let never = Settings { tolerance: -1.0, ..settings };
    assert!(op.solve(Method::Cg, never, false, &b, &mut x).is_err());
    let tiny = vec![1e-200; n];
    assert!(op.solve(Method::Cg, settings, false, &tiny, &mut x).is_err());
    op.solve(Method::Cg, settings, true, &b, &mut x).unwrap().converged().unwrap();
}
