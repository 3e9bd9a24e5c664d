//! What an analysis costs, beside one parallel CSR product of the same matrix: it should stay below five of them.
//!
//! `cargo bench --bench analysis -- [CLASS]`

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rayon::prelude::*;
use sparseop::analysis::{Analysis, BlockFill, Fingerprint, Reuse, RowStats, Structure};
use sparseop::matrix::CsrMatrix;
use std::hint::black_box;
use std::time::Duration;

/// Rows one task of the product takes: a few tens of microseconds, …
const MAX_TASK_ROWS: usize = 1 << 12;

/// … or fewer, so that there are about this many tasks to share out.
const TASKS: usize = 64;

/// One well-mixed number for each counter (the finaliser of SplitMix64).
fn mix(counter: u64) -> u64 {
    let z = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A matrix of `n` columns, given the columns of each of its `m` rows.
fn matrix(m: usize, n: usize, row: impl Fn(usize) -> Vec<u32> + Sync) -> CsrMatrix<f64> {
    let rows: Vec<Vec<u32>> = (0..m)
        .into_par_iter()
        .map(|i| {
            let mut columns = row(i);
            columns.sort_unstable();
            columns.dedup();
            columns
        })
        .collect();
    let mut row_ptr = vec![0];
    row_ptr.extend(rows.iter().scan(0, |end, row| {
        *end += row.len();
        Some(*end)
    }));
    let col_idx = rows.concat();
    let values =
        (0..col_idx.len() as u64).into_par_iter().map(|k| mix(k) as f64 / 2f64.powi(64) - 0.5).collect();
    CsrMatrix::try_new(m, n, row_ptr, col_idx, values).unwrap()
}

/// The 5-point stencil on a grid of `n` × `n`.
fn stencil(n: usize) -> CsrMatrix<f64> {
    matrix(n * n, n * n, |i| {
        let (y, x) = (i / n, i % n);
        let there = [
            (true, i),
            (y > 0, i.wrapping_sub(n)),
            (y + 1 < n, i + n),
            (x > 0, i.wrapping_sub(1)),
            (x + 1 < n, i + 1),
        ];
        there.iter().filter(|t| t.0).map(|t| t.1 as u32).collect()
    })
}

/// 8 to 25 entries a row, within ±1000 of the diagonal.
fn banded(m: usize) -> CsrMatrix<f64> {
    matrix(m, m, |i| {
        let draw = |j: u64| mix((i as u64) << 8 | j);
        let col = |j| (i + (draw(j) % 2001) as usize).saturating_sub(1000).min(m - 1) as u32;
        (1..9 + draw(0) % 18).map(col).collect()
    })
}

/// 10 to 22 entries a row, anywhere.
fn uniform(m: usize) -> CsrMatrix<f64> {
    matrix(m, m, |i| {
        let draw = |j: u64| mix((i as u64) << 8 | j);
        (1..11 + draw(0) % 13).map(|j| (draw(j) % m as u64) as u32).collect()
    })
}

/// 3 × 3 blocks: nodes of 10 to 35 neighbours within ±3000.
fn blocks(nodes: usize) -> CsrMatrix<f64> {
    matrix(3 * nodes, 3 * nodes, |i| {
        let node = i / 3;
        let draw = |j: u64| mix((node as u64) << 8 | j);
        let neighbour = |j| (node + (draw(j) % 6001) as usize).saturating_sub(3000).min(nodes - 1) as u32;
        (1..11 + draw(0) % 26).flat_map(|j| (0..3).map(move |d| 3 * neighbour(j) + d)).collect()
    })
}

/// A planar grid graph of `n` × `n`, each edge kept with p = 0.62.
fn road(n: usize) -> CsrMatrix<f64> {
    let kept = |edge: usize| mix(edge as u64) % 100 < 62;
    matrix(n * n, n * n, |i| {
        let (y, x) = (i / n, i % n);
        let there = [
            (x + 1 < n && kept(2 * i), i + 1),
            (y + 1 < n && kept(2 * i + 1), i + n),
            (x > 0 && kept((2 * i).wrapping_sub(2)), i.wrapping_sub(1)),
            (y > 0 && kept((2 * i + 1).wrapping_sub(2 * n)), i.wrapping_sub(n)),
        ];
        there.iter().filter(|t| t.0).map(|t| t.1 as u32).collect()
    })
}

/// Few rows of 200 to 8200 entries at random columns.
fn lp() -> CsrMatrix<f64> {
    let n = 1_100_000;
    matrix(4284, n, |i| {
        let draw = |j: u64| mix((i as u64) << 16 | j);
        let share = (draw(0) % 1000) as f64 / 1000.0;
        (1..200 + (8000.0 * share * share) as u64).map(|j| (draw(j) % n as u64) as u32).collect()
    })
}

/// The yardstick: a parallel CSR product.
fn product(a: &CsrMatrix<f64>, x: &[f64], y: &mut [f64]) {
    let a = a.view();
    let task_rows = (a.nrows() / TASKS).clamp(1, MAX_TASK_ROWS);
    y.par_chunks_mut(task_rows).enumerate().for_each(|(task, y)| {
        for (row, y) in (task * task_rows..).zip(y) {
            let (columns, values) = a.row(row);
            *y = columns.iter().zip(values).map(|(&col, value)| value * x[col as usize]).sum();
        }
    });
}

fn class(c: &mut Criterion, name: &str, a: impl Fn() -> CsrMatrix<f64>) {
    // Generating takes longer than measuring, so criterion's own filter comes too late.
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    if !name.contains(filter.split('/').next().unwrap_or_default()) {
        return;
    }
    let a = a();
    let (x, mut y) = (vec![1.0; a.ncols()], vec![0.0; a.nrows()]);
    let mut group = c.benchmark_group(name);
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    group.throughput(Throughput::Elements(a.nnz() as u64));
    group.bench_function("product", |b| b.iter(|| product(&a, &x, black_box(&mut y))));
    group.bench_function("analysis", |b| b.iter(|| Analysis::of(black_box(a.view()))));
    group.bench_function("structure", |b| b.iter(|| Structure::of(black_box(a.view()))));
    group.bench_function("reuse", |b| b.iter(|| Reuse::of(a.ncols(), black_box(a.col_idx()))));
    group.bench_function("blocks", |b| b.iter(|| BlockFill::of(black_box(a.view()))));
    group.bench_function("fingerprint", |b| b.iter(|| Fingerprint::of(black_box(a.view()))));
    let lengths = Analysis::of(a.view()).row_lengths;
    group.bench_function("rows", |b| b.iter(|| RowStats::of(a.ncols(), black_box(&lengths))));
    group.finish();
}

fn classes(c: &mut Criterion) {
    class(c, "poisson2d", || stencil(2048));
    class(c, "banded", || banded(2_000_000));
    class(c, "uniform", || uniform(2_000_000));
    class(c, "femrandom", || blocks(150_000));
    class(c, "road", || road(2400));
    class(c, "lp", lp);
    class(c, "small", || stencil(100));
}

criterion_group!(benches, classes);
criterion_main!(benches);
