//! Tests with explicit packed arrays, and round trips of every kind of slice.

use super::super::index::{ALL, SliceShape};
use super::super::long::{Piece, long_bytes};
use super::*;
use crate::Precision;
use crate::matrix::CsrMatrix;
use crate::testing::{Oracle, chapter, x_vector};
use proptest::prelude::*;

const SORTED: Order = Order::Windows(usize::MAX);

fn packing(text: (ValueEncoding, u32, u32)) -> Packing {
    Packing { values: text.0, group: text.1, split: text.2, ..Packing::default() }
}

fn plain(group: u32) -> Packing {
    Packing { group, ..Packing::default() }
}

fn packed() -> Packing {
    Packing { values: ValueEncoding::Packed, ..Packing::default() }
}

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

/// Packs, multiplies and unpacks with every order, group and encoding. Returns the packed matrix in
/// natural order with single slots.
fn there_and_back(a: &CsrMatrix<f64>, long: u32) -> HostPsell<f64> {
    let x = x_vector(a.ncols());
    let oracle = Oracle::of(a.view(), &x);
    for order in [Order::Natural, Order::Windows(40), SORTED] {
        let narrow = Precision::ALL.map(ValueEncoding::Narrow);
        for values in [ValueEncoding::Plain, ValueEncoding::Packed].into_iter().chain(narrow) {
            for group in Packing::GROUPS {
                let packing = packing((values, group, long));
                let packed = HostPsell::pack(a.view(), order, packing).unwrap();
                let mut y = vec![f64::NAN; a.nrows()];
                packed.product(&x, &mut y);
                oracle.check(&y).unwrap_or_else(|wrong| panic!("{order:?} {packing:?}: {wrong}"));
                let unpacked = packed.to_csr().unwrap();
                assert_eq!(
                    (unpacked.row_ptr(), unpacked.col_idx()),
                    (a.row_ptr(), a.col_idx()),
                    "{order:?} {packing:?}"
                );
                let bits =
                    |a: &CsrMatrix<f64>| a.values().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&unpacked), bits(a), "{order:?} {packing:?}");
            }
        }
    }
    HostPsell::pack(a.view(), Order::Natural, packing((ValueEncoding::Plain, 1, long))).unwrap()
}

fn kinds(a: &HostPsell<f64>) -> Vec<Kind> {
    a.headers.iter().map(|header| header.shape().kind).collect()
}

fn columns(bytes: [u8; 8]) -> [u32; 2] {
    [0, 1].map(|half| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| bytes[4 * half + byte])))
}

#[test]
fn the_chapters_matrix_sorted() {
    let a = HostPsell::pack(chapter::matrix::<f32>().view(), SORTED, plain(1)).unwrap();
    assert_eq!(a.perm, Some(vec![2, 0, 3, 1]));
    let shape = SliceShape { kind: Kind::Relative8, step_columns: 1, full: 0, width: 3 }.to_bits();
    assert_eq!(a.headers, [Header { value_at: 0, index_at: 0, base: 0, shape }]);
    let [first, second] = columns([1, 0, 0, 2, 2, 3, 3, 0]);
    assert_eq!(a.index, [7, 7, 1, 0, first, second, 0, 0]);
    assert_eq!(a.values, Stored::Plain([&[2., 3., 1., 4., 1., 1., 1.][..], &[0.; 5]].concat()));
    assert!(a.dictionary.is_empty() && a.skip.is_none() && a.long.is_none());
    assert_eq!(a.bytes(), 16 + 32 + (32 + 16) + 16);
}

#[test]
fn the_chapters_matrix_in_its_order() {
    // Five slots would take 64 bytes, indices and their masks take 32.
    let a = HostPsell::pack(chapter::matrix::<f64>().view(), Order::Natural, packed()).unwrap();
    assert_eq!((kinds(&a), &a.perm), (vec![Kind::Relative8], &None));
    let [first, second] = columns([0, 1, 0, 2, 2, 3, 3, 0]);
    assert_eq!(a.index, [0b1101, 0b1101, 0b100, 0, first, second, 0, 0]);
    assert_eq!((&a.dictionary[..4], a.dictionary.len()), (&[1., 2., 3., 4.][..], 256));
    let codes = [2, 1, 0, 0, 3, 0, 0];
    assert_eq!(a.values, Stored::Codes([&codes[..], &[0; 9 + 16]].concat()));
}

#[test]
fn a_long_row_of_the_chapters_matrix() {
    let packing = packing((ValueEncoding::Plain, 1, 2));
    let a = HostPsell::pack(chapter::matrix::<f64>().view(), SORTED, packing).unwrap();
    assert_eq!(a.perm, Some(vec![0, 3, 1, 2]), "what is not in the slices is sorted as empty");
    assert_eq!(a.skip, Some(vec![0b1000]));
    let [first, _] = columns([0, 0, 2, 3, 0, 0, 0, 0]);
    assert_eq!(a.index, [3, 3, 0, 0, first, 0, 0, 0]);
    let long = a.long.as_ref().unwrap();
    assert_eq!(long.pieces, [Piece { begin: 0, count: 3, row: 2, first: 0, pieces: 1 }]);
    assert_eq!(
        (&long.col_idx[..], &long.values),
        (&[1, 2, 3][..], &Stored::Plain(vec![2., 4., 1.]))
    );
    // Header and skipped lanes, index, values, permutation.
    assert_eq!(a.bytes(), 16 + 4 + 32 + (32 + 16) + 16 + long.bytes());
    assert_eq!(long.bytes(), 24 + 3 * 12);
    assert_eq!(long.bytes(), long_bytes(&[(3, 1)], 8));
}

#[test]
fn long_rows_are_cut_into_pieces() {
    let rows = [vec![], (0..1200).collect(), vec![1], (0..512).collect()];
    let a = there_and_back(&matrix(1200, &rows, |k| (k % 7) as f64), 1);
    let long = a.long.unwrap();
    let piece = |begin, count, row, first, pieces| Piece { begin, count, row, first, pieces };
    let expected = [
        piece(0, 512, 1, 0, 3),
        piece(512, 512, 1, 0, 3),
        piece(1024, 176, 1, 0, 3),
        piece(1200, 512, 3, 3, 1),
    ];
    assert_eq!(long.pieces, expected);
    assert_eq!(long.rows().collect::<Vec<_>>(), [(1, 0..1200), (3, 1200..1712)]);
    assert_eq!(long.bytes(), long_bytes(&[(512, 1), (1200, 1)], 8));
}

/// Every row holds the diagonal and up to `reach` neighbours on either side.
fn stencil(n: u32, reach: u32) -> CsrMatrix<f64> {
    let rows: Vec<Vec<u32>> =
        (0..n).map(|i| (i.max(reach) - reach..(i + reach + 1).min(n)).collect()).collect();
    matrix(n as usize, &rows, |k| k as f64)
}

#[test]
fn diagonals_are_stored_once_for_all_slices_alike() {
    let a = there_and_back(&stencil(32 * 5, 1), Packing::MAX_SPLIT);
    assert_eq!(kinds(&a), [Kind::Diagonal; 5]);
    assert_eq!(a.headers.iter().map(|h| h.index_at).collect::<Vec<_>>(), [0, 3, 3, 3, 4]);
    let below = -1i32 as u32;
    let first = [[0, 1, 0, 0], [below, 0, 0, 0], [!1, 0, 0, 0]];
    let middle = [[below, 0, 1, 0]];
    let last = [[below, 0, 0, 0], [1, 0, 0, 0], [ALL >> 1, 0, 0, 0]];
    assert_eq!(a.index, [&first[..], &middle, &last].concat().concat());
    // 95 values in the first and the last slice, 96 in the others, two to a unit.
    assert_eq!(a.headers.iter().map(|h| h.value_at).collect::<Vec<_>>(), [0, 48, 96, 144, 192]);
    // The slots that all lanes have come first, lane by lane; then the others.
    let Stored::Plain(values) = &a.values else { panic!("plain values") };
    assert_eq!(values[..3], [0., 3., 6.], "the diagonal: second in every row but the first");
    assert_eq!((values[32], values[64]), (1., 2.), "above it, and below it from the second row on");
    assert_eq!(values[95], 0., "padding");
}

#[test]
fn groups_of_diagonals_stand_lane_by_lane() {
    let stencil = stencil(96, 2);
    let a = HostPsell::pack(stencil.view(), Order::Natural, plain(4)).unwrap();
    let middle = a.headers[1];
    assert_eq!((middle.shape().full, middle.shape().width), (5, 5));
    let Stored::Plain(values) = &a.values else { panic!("plain values") };
    let values = &values[middle.value_at as usize * 2..];
    let row = |row: usize| stencil.view().row(32 + row).1;
    assert_eq!(values[..8], [&row(0)[..4], &row(1)[..4]].concat());
    assert_eq!(values[128..130], [row(0)[4], row(1)[4]], "the fifth slot alone");
    assert!(a.is_diagonal());
}

#[test]
fn steps_that_all_lanes_have_stand_in_groups() {
    // Columns without diagonals: row i has 5 + i % 2 of them.
    let rows: Vec<Vec<u32>> =
        (0..32u32).map(|i| (0..5 + i % 2).map(|k| (i * 37 + k * 50) % 251).collect()).collect();
    let a = matrix(251, &rows, |k| k as f64);
    let packed = HostPsell::pack(a.view(), Order::Natural, plain(4)).unwrap();
    assert_eq!(kinds(&packed), [Kind::Relative8]);
    let Stored::Plain(values) = &packed.values else { panic!("plain values") };
    let row = |row: usize| a.view().row(row).1;
    assert_eq!(values[..8], [&row(0)[..4], &row(1)[..4]].concat());
    assert_eq!(values[128..130], [row(0)[4], row(1)[4]]);
    assert_eq!(values[160..162], [row(1)[5], row(3)[5]]);
    assert_eq!(packed.index[0], 0xAAAA_AAAA);
    let base = packed.headers[0].base;
    let bytes = packed.index[4].to_ne_bytes();
    assert_eq!(bytes.map(u32::from), [0, 1, 2, 3].map(|k| rows[0][k] - base));
}

#[test]
fn steps_have_an_index_each() {
    // Nodes of three unknowns: all rows of a node share their columns.
    let rows: Vec<Vec<u32>> = (0..96u32)
        .map(|i| [0, 7, 13].map(|d| (i / 3 + d) * 3).into_iter().flat_map(|c| c..c + 3).collect())
        .collect();
    let a = there_and_back(&matrix(200, &rows, |k| (k % 300) as f64), Packing::MAX_SPLIT);
    for header in &a.headers {
        let shape = header.shape();
        assert_eq!(
            (shape.kind, shape.step_columns, shape.full, shape.width),
            (Kind::Relative8, 3, 3, 3)
        );
    }
    assert_eq!(a.index.len() * 4, 3 * 96);
}

#[test]
fn every_kind_and_border_of_spans() {
    let spread = |span: u32| (0..32u32).map(move |i| vec![3 + (i % 2) * span, 3 + (i * i % 3)]);
    let rows: Vec<Vec<u32>> = [255, 256, 65_535, 65_536].into_iter().flat_map(spread).collect();
    let a = there_and_back(&matrix(70_000, &rows, |k| k as f64), Packing::MAX_SPLIT);
    assert_eq!(kinds(&a), [Kind::Relative8, Kind::Relative16, Kind::Relative16, Kind::Relative32]);
    assert_eq!(a.headers.iter().map(|h| h.base).collect::<Vec<_>>(), [3, 3, 3, 0]);
}

#[test]
fn rows_without_a_column_of_their_number_are_not_diagonal() {
    let rows: Vec<Vec<u32>> = (0..96u32).map(|i| vec![i / 2]).collect();
    for (ncols, expected) in [(48, Kind::Relative8), (95, Kind::Relative8), (96, Kind::Diagonal)] {
        let rows: Vec<Vec<u32>> =
            (0..96).map(|i| if i < 64 { rows[i].clone() } else { vec![i as u32 - 64] }).collect();
        assert_eq!(kinds(&there_and_back(&matrix(ncols, &rows, |_| 1.0), 9))[2], expected);
    }
}

#[test]
fn awkward_rows_come_back_in_their_order() {
    // Unsorted and repeated columns, empty rows and slices, a last slice of one row.
    let mut rows = vec![vec![]; 129];
    rows[0] = vec![5, 1, 5, 5];
    rows[31] = vec![9];
    rows[64..96].fill(vec![2, 2]);
    rows[128] = vec![0, 9, 3];
    let a = there_and_back(&matrix(10, &rows, |k| -(k as f64)), Packing::MAX_SPLIT);
    assert_eq!(
        kinds(&a)[1],
        Kind::Relative8,
        "a slice without entries, whose rows have no columns of their numbers"
    );
    for (m, n) in [(0, 0), (0, 5), (5, 0), (70, 3)] {
        let empty = there_and_back(&CsrMatrix::zeros(m, n).unwrap(), 1);
        assert_eq!(empty.bytes(), 16 * m.div_ceil(32) as u64);
    }
}

#[test]
fn long_rows_of_every_encoding() {
    let rows: Vec<Vec<u32>> = (0..70u32).map(|i| (0..i % 9 * 5).collect()).collect();
    let a = matrix(50, &rows, |k| [0.0, -0.0, f64::NAN, -f64::NAN][k % 4]);
    for long in [1, 4, 5, 39, 40] {
        let packed = there_and_back(&a, long);
        let expected: Vec<u32> =
            (0..70).filter(|&i| rows[i].len() > long as usize).map(|i| i as u32).collect();
        assert_eq!(
            packed.long.map_or(vec![], |long| long.rows().map(|(row, _)| row as u32).collect()),
            expected
        );
        let skipped = packed.skip.iter().flatten().map(|mask| mask.count_ones());
        assert_eq!(skipped.sum::<u32>() as usize, expected.len());
    }
    let one_value = matrix(50, &rows, |_| 7.0);
    let packed =
        HostPsell::pack(one_value.view(), Order::Natural, Packing { split: 9, ..packed() })
            .unwrap();
    assert_eq!((&packed.values, &packed.long.unwrap().values), (&Stored::Same, &Stored::Same));
    assert_eq!(packed.dictionary, [7.0]);
}

#[test]
fn rows_of_the_greatest_length_fit() {
    let len = Packing::MAX_SPLIT;
    let rows = [(0..len).collect::<Vec<_>>(), (0..=len).map(|k| k * 3).collect(), vec![1]];
    let a = there_and_back(&matrix(60_000, &rows, |k| k as f64), len);
    assert_eq!(a.long.unwrap().rows().map(|(row, _)| row).collect::<Vec<_>>(), [1]);
    assert_eq!(unit(u32::MAX as usize, "values").unwrap(), u32::MAX);
    let error = unit(1 << 32, "values").unwrap_err().to_string();
    assert!(error.contains("more than 68719476736 bytes of values"), "{error}");
}

#[test]
fn the_number_of_threads_does_not_count() {
    let rows: Vec<Vec<u32>> =
        (0..40_000u32).map(|i| (0..i % 23).map(|k| (i + k * k) % 40_000).collect()).collect();
    let a = matrix(40_000, &rows, |k| (k % 100) as f64);
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| HostPsell::pack(a.view(), Order::Windows(512), packed()).unwrap())
    };
    let (one, three) = (on(1), on(3));
    assert_eq!(
        (&one.headers, &one.index, &one.values),
        (&three.headers, &three.index, &three.values)
    );
    assert_eq!((one.perm, one.tasks), (three.perm, three.tasks));
}

#[test]
fn lanes_of_long_rows_are_filled_with_zeros() {
    type Row = fn(u32) -> Vec<u32>;
    // Diagonals, scattered columns, and steps of two and three; row 3 and row 40 are long.
    let is_long = |i: u32| i == 3 || i == 40;
    let of = |row: Row| {
        let rows =
            (0..64).map(|i| if is_long(i) { (0..30).map(|k| 4 * k).collect() } else { row(i) });
        matrix(200, &rows.collect::<Vec<_>>(), |k| 1.0 + k as f64)
    };
    let shapes: [(Row, Kind, usize); 4] = [
        (|i| (0..5).map(|k| i + 10 * k).collect(), Kind::Diagonal, 1),
        (|i| (0..5).map(|k| (i * 37 + k * 50) % 151).collect(), Kind::Relative8, 1),
        (|i| [0, 1, 90, 91].map(|k| k + i % 7).to_vec(), Kind::Relative8, 2),
        (|i| [0, 1, 2, 90, 91, 92].map(|k| k + i * i % 7).to_vec(), Kind::Relative8, 3),
    ];
    for (row, kind, step_columns) in shapes {
        let (a, len) = (of(row), row(0).len());
        let packed = there_and_back(&a, 9);
        assert_eq!(kinds(&packed), [kind; 2]);
        for header in &packed.headers {
            let steps = len / step_columns;
            let shape = SliceShape { kind, step_columns, full: steps, width: steps };
            assert_eq!(header.shape(), shape);
        }
        let Stored::Plain(values) = &packed.values else { panic!("plain values") };
        let zeros = values[..32 * len].iter().filter(|value| **value == 0.0).count();
        assert_eq!(zeros, len, "the lane of row 3");
        let x: Vec<f64> = (0..200).map(|k| f64::from(k % 11)).collect();
        let (oracle, mut y) = (Oracle::of(a.view(), &x), vec![0.0; 64]);
        for group in [1, 4] {
            let packing = packing((ValueEncoding::Plain, group, 9));
            let packed = HostPsell::pack(a.view(), Order::Natural, packing).unwrap();
            packed.product(&x, &mut y);
            let context = format!("{kind:?} in steps of {step_columns}, group {group}");
            assert_eq!(oracle.rel_error(&y), 0.0, "{context}: whole numbers");
        }
    }
}

/// Random rows, or nearly a stencil, or nodes of up to three unknowns.
fn rows() -> impl Strategy<Value = (u32, Vec<Vec<u32>>)> {
    let any = (1u32..400).prop_flat_map(|n| {
        let row = prop::collection::vec(0..n, 0..20);
        (Just(n), prop::collection::vec(row, 0..140))
    });
    let diagonal = (40u32..300, prop::collection::btree_set(-40i64..40, 1..6), 0u32..40).prop_map(
        |(n, offsets, hole)| {
            let row = |i: i64| {
                offsets.iter().map(move |d| i + d).filter(move |j| (0..i64::from(n)).contains(j))
            };
            let keep = |i: u32, j: &u32| hole == 0 || !(i * 7 + j).is_multiple_of(hole);
            let rows = (0..n)
                .map(|i| row(i64::from(i)).map(|j| j as u32).filter(|j| keep(i, j)).collect());
            (n, rows.collect())
        },
    );
    let nodes = (1u32..4, prop::collection::vec(prop::collection::vec(0u32..80, 0..9), 0..40))
        .prop_map(|(unknowns, nodes)| {
            let row = |node: &Vec<u32>| {
                node.iter().flat_map(|c| c * unknowns..(c + 1) * unknowns).collect::<Vec<_>>()
            };
            (
                80 * unknowns,
                nodes.iter().flat_map(|node| vec![row(node); unknowns as usize]).collect(),
            )
        });
    prop_oneof![any, diagonal, nodes]
}

proptest! {
    #[test]
    fn whatever_is_packed_is_unpacked(
        (n, rows) in rows(),
        modulus in prop_oneof![Just(1), Just(50), Just(100_000)],
        long in 0u32..30,
    ) {
        let long = if long == 0 { Packing::MAX_SPLIT } else { long };
        there_and_back(&matrix(n as usize, &rows, |k| (k % modulus) as f64 - 7.0), long);
    }
}
