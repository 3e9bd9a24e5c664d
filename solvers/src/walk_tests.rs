//! Tests of power iteration and PageRank.

use super::tests::{matrix, norm, op};
use super::*;
use sparseop::matrix::CsrMatrix;
use sparseop::{Device, SparseOpBuilder};
use sparseop_testkit::{devices, x_vector};
use std::ops::ControlFlow::{Break, Continue};

#[test]
fn power_iteration_finds_the_largest_eigenvalue() {
    for device in devices() {
        let n = 200;
        let a =
            matrix::<f64>(n, (0..n).map(|i| (i, i, if i == 77 { -5.0 } else { (i % 4) as f64 })));
        let settings = Settings { tolerance: 1e-10, ..Settings::default() };
        let find = |a: &CsrMatrix<f64>, settings| {
            power(&op(device, a), &x_vector(a.nrows()), settings, |_| Continue(())).unwrap()
        };
        let pair = find(&a, settings).converged().unwrap();
        assert!(
            (pair.value + 5.0).abs() < 1e-9 && pair.residual() <= 1e-10,
            "{} {}",
            pair.value,
            pair.residual()
        );
        assert!(
            (pair.vector[77].abs() - 1.0).abs() < 1e-9 && (norm(pair.vector) - 1.0).abs() < 1e-12
        );
        assert_eq!(pair.history.len(), pair.iterations);
        // Two eigenvalues of equal magnitude; the zero matrix.
        let pair = matrix(2, [(0, 0, 1.0), (1, 1, -1.0)]);
        let few = Settings { max_iterations: 50, ..settings };
        let error = find(&pair, few).converged().unwrap_err().to_string();
        assert!(
            error.contains("after 50 iterations") && error.contains("several eigenvalues"),
            "{error}"
        );
        assert_eq!(find(&matrix(3, []), few).outcome, Outcome::Breakdown);
        // The first estimate of the eigenvalue is 0, and so are all others: a rotation, and a
        // vector between both eigenvectors.
        for (a, start) in
            [(matrix(2, [(0, 1, -1.0), (1, 0, 1.0)]), [1.0, 0.0]), (pair.clone(), [1.0, 1.0])]
        {
            let found = power(&op(device, &a), &start, few, |_| Continue(())).unwrap();
            assert_eq!(
                (found.outcome, found.iterations),
                (Outcome::MaxIterations, 50),
                "{found:?}"
            );
            assert!(found.residual() > 1.0, "{found:?}");
        }
        // Vectors with squares that overflow or underflow.
        for size in [1e200, 1e-200] {
            let start = [size, 2.0 * size];
            let found = power(
                &op(device, &matrix(2, [(0, 0, 1.0), (1, 1, 3.0)])),
                &start,
                settings,
                |_| Continue(()),
            );
            assert!((found.unwrap().converged().unwrap().value - 3.0).abs() < 1e-9);
        }
        let error =
            power(&op(device, &pair), &[0.0, 0.0], few, |_| Continue(())).unwrap_err().to_string();
        assert!(error.contains("is zero"), "{error}");
    }
}

/// PageRank by the dense definition.
fn dense_rank(graph: &CsrMatrix<f64>, damping: f64) -> Vec<f64> {
    let n = graph.nrows();
    let mut ranks = vec![1.0 / n as f64; n];
    for _ in 0..500 {
        let mut next = vec![(1.0 - damping) / n as f64; n];
        for (page, from) in ranks.iter().enumerate() {
            let (cols, weights) = graph.view().row(page);
            let sum: f64 = weights.iter().sum();
            if sum == 0.0 {
                next.iter_mut().for_each(|rank| *rank += damping * from / n as f64);
            } else {
                cols.iter()
                    .zip(weights)
                    .for_each(|(col, w)| next[*col as usize] += damping * from * w / sum);
            }
        }
        ranks = next;
    }
    ranks
}

#[test]
fn ranks_are_those_of_the_definition_with_pages_that_link_nowhere() {
    // Pages 5 and 11 have no links, and page 7 only one of weight 0.
    let n = 40;
    let links = (0..n)
        .filter(|i| ![5, 7, 11].contains(i))
        .flat_map(|i| [(i, (i * i + 3) % n, 1.0), (i, (3 * i + 1) % n, 2.5)]);
    let graph = matrix::<f64>(n, links.chain([(7, 8, 0.0)]));
    for device in devices() {
        let builder = SparseOpBuilder::new().device(device.clone()).deterministic(true);
        for damping in [0.0, 0.5, 0.85, 0.99] {
            let expected = dense_rank(&graph, damping);
            let settings = Settings { tolerance: 1e-12, ..Settings::default() };
            let rank = || {
                PageRank::new(graph.view(), &builder)
                    .unwrap()
                    .rank(damping, settings, |_| Continue(()))
                    .unwrap()
            };
            let ranking = rank().converged().unwrap();
            let far = ranking.ranks.iter().zip(&expected).map(|(a, b)| (a - b).abs()).sum::<f64>();
            // The dense ranking is not converged either if damping is near 1.
            assert!(far < 2e-10 + damping.powi(500), "{far} at {damping} on {device}");
            assert!((ranking.ranks.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            let top = ranking.top(3);
            assert!(top.len() == 3 && top[0].1 >= top[1].1 && top[1].1 >= top[2].1);
            assert!(ranking.ranks.iter().all(|rank| *rank <= top[0].1));
            assert_eq!(rank().ranks, ranking.ranks);
            let settings = Settings { check_every: Some(1), ..settings };
            let ranks = PageRank::new(graph.view(), &builder).unwrap();
            let found = ranks.rank(damping, settings, |_| Break(())).unwrap();
            let few = (Outcome::Interrupted, 1);
            assert!((found.outcome, found.iterations) == few || damping == 0.0, "{found}");
        }
    }
}

#[test]
fn invalid_graphs_are_refused() {
    let builder = SparseOpBuilder::new().device(Device::Cpu);
    let negative = matrix::<f64>(2, [(0, 1, 1.0), (1, 0, -1.0)]);
    let error = PageRank::new(negative.view(), &builder).unwrap_err().to_string();
    assert!(error.contains("page 1, counted from 0, has one of -1"), "{error}");
    let huge = matrix::<f64>(2, [(0, 1, f64::MAX), (0, 0, f64::MAX)]);
    let error = PageRank::new(huge.view(), &builder).unwrap_err().to_string();
    assert!(error.contains("page 0, counted from 0, add up to more"), "{error}");
    assert!(
        PageRank::new(CsrMatrix::<f64>::zeros(2, 3).unwrap().view(), &builder)
            .unwrap_err()
            .to_string()
            .contains("square")
    );
    let empty = PageRank::new(CsrMatrix::<f64>::zeros(0, 0).unwrap().view(), &builder).unwrap();
    assert!(empty.rank(0.85, Settings::default(), |_| Continue(())).unwrap().ranks.is_empty());
    let error = empty.rank(1.0, Settings::default(), |_| Continue(())).unwrap_err().to_string();
    assert!(error.contains("below 1, not 1"), "{error}");
}

#[test]
fn the_best_of_many_pages_are_those_of_a_whole_order() {
    let pages = 20_000;
    // Every rank occurs twice.
    let ranks: Vec<f64> = (0..pages).map(|page| (page * 7919 % pages / 2) as f64).collect();
    let mut order: Vec<usize> = (0..pages).collect();
    order.sort_by(|a, b| ranks[*b].total_cmp(&ranks[*a]).then(a.cmp(b)));
    let outcome = Outcome::Converged;
    let ranking = Ranking { ranks, outcome, iterations: 0, history: Vec::new(), seconds: 0.0 };
    for count in [0, 1, 10, 3000, pages - 1, pages, usize::MAX] {
        let top: Vec<usize> = ranking.top(count).into_iter().map(|(page, _)| page).collect();
        assert_eq!(top, order[..count.min(pages)], "{count}");
    }
}
