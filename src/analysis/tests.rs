//! The whole analysis, compared with literal expectations and naive definitions.

use super::*;
use crate::matrix::CsrMatrix;
use crate::{ExactIn, Precision, ScalarKind};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Matrix with the given columns in its rows; `value` maps the number of an entry to its value.
fn matrix(ncols: usize, rows: &[Vec<u32>], value: impl Fn(usize) -> f64) -> CsrMatrix<f64> {
    let mut row_ptr = vec![0];
    row_ptr.extend(rows.iter().scan(0, |end, row| {
        *end += row.len();
        Some(*end)
    }));
    let col_idx = rows.concat();
    let values = (0..col_idx.len()).map(value).collect();
    CsrMatrix::try_new(rows.len(), ncols, row_ptr, col_idx, values).unwrap()
}

/// Pattern and structure of a matrix of ones.
fn estimated(ncols: usize, rows: &[Vec<u32>]) -> (Pattern, Structure) {
    let a = matrix(ncols, rows, |_| 1.0);
    (Pattern::of(a.view()), Analysis::of(a.view()).structure)
}

#[test]
fn a_tridiagonal_matrix_by_hand() {
    // x x . . .
    // x x x . .
    // . x x x .
    // . . x x x
    // . . . x x
    let rows = [vec![0, 1], vec![0, 1, 2], vec![1, 2, 3], vec![2, 3, 4], vec![3, 4]];
    let (p, s) = estimated(5, &rows);
    assert_eq!((p.lower_bandwidth, p.upper_bandwidth, p.bandwidth(), p.diagonals), (1, 1, 1, 3));
    assert_eq!(p.profile, 4);
    assert_eq!((s.shifted, s.contiguous), (8.0 / 13.0, 8.0 / 13.0));
    assert_eq!((p.sorted, p.duplicates, s.all_ones), (true, false, true));
    assert_eq!(s.distinct_values, Distinct::Exactly(1));
    assert_eq!((p.span_below_8_bits, p.span_below_16_bits), (1.0, 1.0));
    assert_eq!(
        p.blocks,
        BlockFill { b2: 13.0 / 28.0, b3: 13.0 / 36.0, b4: 13.0 / 64.0, exact: true }
    );
    assert_eq!((s.reuse.first, s.reuse.counts[0]), (1, 12));
}

#[test]
fn an_unsorted_corner_by_hand() {
    // . . . x
    // . . . .
    // x . x x   stored as 3 3 0 2
    let rows = [vec![3], vec![], vec![3, 3, 0, 2]];
    let a = matrix(4, &rows, |k| if k == 0 { -0.0 } else { 0.0 });
    let (p, s) = (Pattern::of(a.view()), Analysis::of(a.view()).structure);
    assert_eq!((p.lower_bandwidth, p.upper_bandwidth, p.profile), (2, 3, 2));
    assert_eq!((p.diagonals, s.shifted), (4, 0.0));
    assert_eq!((p.sorted, p.duplicates, s.all_ones), (false, true, false));
    assert_eq!(s.distinct_values, Distinct::Exactly(2));
}

#[test]
fn spans_of_slices() {
    // Three slices, the last of one row: spans 255, 256 and 65,535; a fourth without entries.
    let mut rows = vec![vec![]; 97];
    (rows[0], rows[31]) = (vec![1], vec![256]);
    rows[32] = vec![256, 0];
    rows[64] = vec![0, 65_535];
    let (p, _) = estimated(65_537, &rows);
    assert_eq!((p.span_below_8_bits, p.span_below_16_bits), (0.5, 1.0));
    rows[96] = vec![0, 65_536];
    let (p, _) = estimated(65_537, &rows);
    assert_eq!((p.span_below_8_bits, p.span_below_16_bits), (0.25, 0.75));
}

#[test]
fn nothing_is_all_zeros() {
    for (m, n) in [(0, 0), (0, 5), (5, 0), (5, 5)] {
        let a = CsrMatrix::<f32>::zeros(m, n).unwrap();
        let analysis = Analysis::of(a.view());
        assert_eq!(analysis.rows, RowStats::of(n, &vec![0; m]));
        assert_eq!(analysis.row_lengths, vec![0; m]);
        let spans = if m == 0 { 0.0 } else { 1.0 };
        let nothing = Structure {
            shifted: 0.0,
            contiguous: 0.0,
            distinct_values: Distinct::Exactly(0),
            all_ones: false,
            exact_in: ExactIn::default().below(ScalarKind::F32),
            reuse: Reuse::default(),
        };
        let nowhere = Pattern {
            lower_bandwidth: 0,
            upper_bandwidth: 0,
            profile: 0,
            span_below_8_bits: spans,
            span_below_16_bits: spans,
            diagonals: 0,
            sorted: true,
            duplicates: false,
            blocks: BlockFill { exact: true, ..BlockFill::default() },
        };
        assert_eq!(Pattern::of(a.view()), nowhere);
        assert_eq!(analysis.structure, nothing);
    }
}

#[test]
fn one_dense_row() {
    let n = 50_000;
    let mut rows = vec![vec![]; 40];
    rows[33] = (0..n).collect();
    let a = matrix(n as usize, &rows, |k| k as f64);
    let analysis = Analysis::of(a.view());
    let (p, s) = (Pattern::of(a.view()), &analysis.structure);
    assert_eq!((p.diagonals, p.lower_bandwidth, p.upper_bandwidth), (u64::from(n), 33, n - 34));
    assert_eq!((p.profile, s.shifted, p.span_below_16_bits), (33, 0.0, 1.0));
    assert!(s.contiguous > 0.99 && s.contiguous < 1.0);
    assert_eq!((s.distinct_values, s.reuse.first), (Distinct::Many, s.reuse.window.div_ceil(8)));
    assert!((p.blocks.b2 - 0.5).abs() < 1e-12);
    assert_eq!((analysis.rows.half_rows, analysis.rows.max), (1, n));
}

/// Rows of many lengths, some empty, some long, so that window and slice boundaries meet in all
/// ways.
fn uneven(m: u32) -> CsrMatrix<f64> {
    let n = 30_011u32;
    let len = |i: u32| if i % 4001 == 7 { 9000 } else { i % 11 * (i % 11) % 11 };
    let rows: Vec<Vec<u32>> =
        (0..m).map(|i| (0..len(i)).map(|j| (i + j * (1 + i % 3 * 1013)) % n).collect()).collect();
    matrix(n as usize, &rows, |k| (k % 200) as f64)
}

#[test]
fn the_number_of_threads_does_not_count() {
    // A few tasks of one thread each, and enough rows, entries and values that all of them are
    // distributed.
    for (rows, shared) in [(20_000, false), (2 * PARALLEL_MIN as u32, true)] {
        let a = uneven(rows);
        assert_eq!(a.nnz() > 2 * PARALLEL_MIN, shared);
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| (Analysis::of(a.view()), Pattern::of(a.view())))
        };
        let (analysis, pattern) = on(1);
        assert_eq!((&analysis, &pattern), (&on(3).0, &on(3).1));
        assert_eq!(analysis, Analysis::of(a.view()), "outside a pool");
        assert_eq!(analysis.structure.distinct_values, Distinct::Exactly(200));
        assert_eq!(analysis.rows, RowStats::of(a.ncols(), &analysis.row_lengths));
    }
}

#[test]
fn uneven_rows_agree_with_the_definition() {
    check(&uneven(20_000));
}

#[test]
fn facts_survive_json() {
    let a = uneven(20_000);
    let (analysis, pattern) = (Analysis::of(a.view()), Pattern::of(a.view()));
    let json = serde_json::to_string(&(&analysis.rows, &analysis.structure, &pattern)).unwrap();
    let (rows, structure, same): (RowStats, Structure, Pattern) =
        serde_json::from_str(&json).unwrap();
    assert_eq!(same, pattern);
    assert_eq!(
        (rows.histogram, rows.half_rows),
        (analysis.rows.histogram, analysis.rows.half_rows)
    );
    assert_eq!(structure.reuse, analysis.structure.reuse);
}

/// Checks all features of the pattern and the values by their definitions.
fn check(a: &CsrMatrix<f64>) {
    let (p, s) = (Pattern::of(a.view()), Analysis::of(a.view()).structure);
    let rows: Vec<&[u32]> = (0..a.nrows()).map(|row| a.view().row(row).0).collect();
    let offsets: Vec<i64> = (0i64..)
        .zip(&rows)
        .flat_map(|(i, row)| row.iter().map(move |&col| i64::from(col) - i))
        .collect();
    let largest = |sign: i64| offsets.iter().map(|d| sign * d).max().unwrap_or(0).max(0);
    assert_eq!(i64::from(p.upper_bandwidth), largest(1));
    assert_eq!(i64::from(p.lower_bandwidth), largest(-1));
    assert_eq!(p.diagonals as usize, offsets.iter().collect::<BTreeSet<_>>().len());

    let reach =
        |(i, row): (u64, &&[u32])| row.iter().map(|&col| i.saturating_sub(u64::from(col))).max();
    assert_eq!(p.profile, (0..).zip(&rows).filter_map(reach).sum::<u64>());

    let slices = rows.chunks(32).map(<[_]>::concat);
    let spans: Vec<u32> = slices
        .map(|c| c.iter().max().zip(c.iter().min()).map_or(0, |(max, min)| max - min))
        .collect();
    let share = |limit| {
        rows::ratio(spans.iter().filter(|&&s| s < limit).count() as f64, spans.len() as f64)
    };
    assert_eq!((p.span_below_8_bits, p.span_below_16_bits), (share(1 << 8), share(1 << 16)));

    assert_eq!(p.sorted, rows.iter().all(|row| row.is_sorted()));
    assert_eq!(p.duplicates, rows.iter().any(|row| row.windows(2).any(|w| w[0] == w[1])));
    assert_eq!(s.all_ones, a.nnz() > 0 && a.values().iter().all(|&v| v == 1.0));
    let distinct = a.values().iter().map(|v| v.to_bits()).collect::<BTreeSet<_>>().len();
    let many = distinct > Distinct::LIMIT as usize;
    assert_eq!(
        s.distinct_values,
        if many { Distinct::Many } else { Distinct::Exactly(distinct as u32) }
    );
    assert_eq!(
        s.exact_in.contains(Precision::F32),
        a.values().iter().all(|&v| f64::from(v as f32) == v)
    );
}

proptest! {
    #[test]
    fn small_matrices_agree_with_the_definition(
        n in 1u32..400,
        mut rows in prop::collection::vec(prop::collection::vec(0u32..400, 0..6), 0..80),
        sort: bool, ones: bool,
    ) {
        for row in &mut rows {
            row.iter_mut().for_each(|col| *col %= n);
            if sort {
                row.sort_unstable();
            }
        }
        let a = matrix(n as usize, &rows, |k| if ones { 1.0 } else { k as f64 });
        check(&a);
    }

    #[test]
    fn stencils_agree_with_the_definition(
        n in 1u32..60,
        offsets in prop::collection::btree_set(-9i64..10, 1..5),
    ) {
        let row = |i| offsets.iter().map(move |d| i + d).filter(|j| (0..i64::from(n)).contains(j));
        let rows: Vec<Vec<u32>> =
            (0..i64::from(n)).map(|i| row(i).map(|j| j as u32).collect()).collect();
        check(&matrix(n as usize, &rows, |_| 1.0));
    }
}
