//! Tests that a GPU packs the same bytes as the host. Nothing is tested without a GPU.

use super::super::cuda::DevicePsell;
use super::super::host::HostPsell;
use super::super::{Header, Stored, ValueEncoding};
use super::*;
use crate::device::{Device, Gpu};
use crate::formats::DeviceMatrix;
use crate::matrix::{CsrMatrix, gallery};
use crate::testing::{awkward, gpu, x_vector};
use proptest::prelude::*;

/// Windows that blocks sort as a whole, several or one at a time, and windows that are sorted digit
/// by digit.
const ORDERS: [Order; 7] = [
    Order::Natural,
    Order::Windows(2),
    Order::Windows(32),
    Order::Windows(40),
    Order::Windows(4096),
    Order::Windows(9000),
    Order::Windows(usize::MAX),
];

const ENCODINGS: [ValueEncoding; 2] = [ValueEncoding::Plain, ValueEncoding::Packed];

/// All buffers of a matrix by name, as bits; `None` for an absent buffer.
fn buffers<T: Scalar>(a: &DevicePsell<T>) -> Vec<(&'static str, Option<Vec<u64>>)> {
    let host = a.to_host().unwrap();
    let words = |words: &[u32]| words.iter().map(|&word| u64::from(word)).collect::<Vec<_>>();
    let bits = |values: &[T]| values.iter().map(|value| value.bits()).collect::<Vec<_>>();
    let stored = |values: &Stored<T>| match values {
        Stored::Plain(values) => Some(bits(values)),
        Stored::Codes(codes) => Some(codes.iter().map(|&code| u64::from(code)).collect()),
        Stored::Halves(..) | Stored::Singles(_) | Stored::Same => None,
    };
    let header = |h: &Header| words(&[h.value_at, h.index_at, h.base, h.shape]);
    let long = host.long.as_ref();
    let pieces = long.map(|long| {
        let piece = |p: &super::super::long::Piece| {
            [vec![p.begin], words(&[p.count, p.row, p.first, p.pieces])].concat()
        };
        long.pieces.iter().flat_map(piece).collect()
    });
    vec![
        ("headers", Some(host.headers.iter().flat_map(header).collect())),
        ("dictionary", Some(bits(&host.dictionary))),
        ("perm", host.perm.as_deref().map(words)),
        ("skip", host.skip.as_deref().map(words)),
        ("index", Some(words(&host.index))),
        ("values", stored(&host.values)),
        ("pieces", pieces),
        ("columns of long rows", long.map(|long| words(&long.col_idx))),
        ("values of long rows", long.and_then(|long| stored(&long.values))),
    ]
}

fn packing(values: ValueEncoding, group: u32, split: u32) -> Packing {
    Packing { values, group, split, ..Packing::default() }
}

/// Packs on both sides and compares.
fn check<T: Scalar>(gpu: Gpu, a: &CsrMatrix<T>, order: Order, packing: Packing, name: &str) {
    let context = format!("{name} in {}, {order:?}, {packing:?}", T::KIND);
    let host = DevicePsell::new(&HostPsell::pack(a.view(), order, packing).unwrap(), gpu).unwrap();
    let there = CsrSource::upload(a.view(), gpu).unwrap();
    let there = pack(&there, order, packing).unwrap();
    let there = there.unwrap_or_else(|| panic!("{context}: left to the host"));
    for ((what, expected), (_, found)) in buffers(&host).into_iter().zip(buffers(&there)) {
        let lengths = |v: &Option<Vec<u64>>| v.as_ref().map(Vec::len);
        assert_eq!(lengths(&found), lengths(&expected), "{context}: length of {what}");
        let pairs = expected.iter().flatten().zip(found.iter().flatten());
        if let Some((at, (expected, found))) =
            pairs.enumerate().find(|(_, (expected, found))| expected != found)
        {
            panic!("{context}: {what}[{at}] is {found:x}, and {expected:x} on the host");
        }
    }
    assert_eq!(
        (there.device_bytes(), there.kernel_name()),
        (host.device_bytes(), host.kernel_name()),
        "{context}"
    );
}

/// Checks all packings of a matrix.
fn check_all<T: Scalar>(gpu: Gpu, a: &CsrMatrix<T>, longs: &[u32], name: &str) {
    for order in ORDERS {
        for values in ENCODINGS {
            for group in Packing::GROUPS {
                for &long in longs {
                    check(gpu, a, order, packing(values, group, long), name);
                }
            }
        }
    }
}

const LONGS: [u32; 3] = [4, 60, Packing::MAX_SPLIT];

#[test]
fn awkward_matrices() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    for (name, a) in awkward::<f32>() {
        check_all(gpu, &a, &LONGS, name);
    }
    for (name, a) in awkward::<f64>() {
        check_all(gpu, &a, &LONGS[1..2], name);
    }
}

fn galleries<T: Scalar>(gpu: Gpu, nnz: usize) {
    for entry in gallery::list() {
        for values in gallery::Values::ALL {
            let spec = entry.spec().scaled_to(nnz).with_values(values);
            check_all(gpu, &spec.generate::<T>().unwrap(), &LONGS[1..], &spec.to_string());
        }
    }
}

#[test]
fn the_gallery_in_f32() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    galleries::<f32>(gpu, 20_000);
}

#[test]
fn the_gallery_in_f64() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    galleries::<f64>(gpu, 20_000);
}

#[test]
fn many_rows_in_every_order() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    for text in ["road,n=150", "webbase,rows=20000", "poisson2d,n=170", "circuit,rows=20000"] {
        let Ok(spec) = text.parse::<gallery::Spec>() else { panic!("{text}") };
        check_all(gpu, &spec.generate::<f32>().unwrap(), &[3, 60], text);
    }
}

/// A matrix of 100 rows with these columns and values.
fn matrix<T: Scalar>(
    ncols: usize,
    cols: impl Fn(usize) -> Vec<u32>,
    value: impl Fn(usize) -> T,
) -> CsrMatrix<T> {
    let rows: Vec<Vec<u32>> = (0..100).map(cols).collect();
    let mut row_ptr = vec![0];
    row_ptr.extend(rows.iter().scan(0, |end, row| {
        *end += row.len();
        Some(*end)
    }));
    let col_idx = rows.concat();
    let values = (0..col_idx.len()).map(value).collect();
    CsrMatrix::try_new(100, ncols, row_ptr, col_idx, values).unwrap()
}

#[test]
fn columns_far_apart() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    let ncols = u32::MAX as usize - 1;
    type Columns = fn(usize) -> Vec<u32>;
    let cases: [(&str, Columns); 6] = [
        ("31 bits and a sign", |row| vec![(1 << 31) - 1 + row as u32]),
        ("one more", |row| vec![(1 << 31) + row as u32]),
        ("the last column", |row| vec![row as u32, u32::MAX - 2]),
        ("16 bits", |row| vec![7 + (row as u32 % 2) * 65_535]),
        ("17 bits", |row| vec![7 + (row as u32 % 2) * 65_536]),
        ("steps of three", |_| vec![0, 1, 2, 255, 256, 257]),
    ];
    for (name, cols) in cases {
        check_all(gpu, &matrix(ncols, cols, |k| k as f64), &[Packing::MAX_SPLIT], name);
    }
}

#[test]
fn any_bits_of_values() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    let nan = f64::from_bits(0x7ff8_0000_dead_beef);
    let special = [0.0, -0.0, f64::NAN, nan, f64::INFINITY, 1.0, f64::from_bits(1)];
    let cols = |row: usize| (0..20).map(|k| (row + k * k) as u32).collect();
    for (name, distinct) in [("one", 1), ("256", 256), ("257", 257), ("all", usize::MAX)] {
        check_all(gpu, &matrix(1000, cols, |k| (k % distinct) as f64), &[60], name);
        check_all(gpu, &matrix(1000, cols, |k| 1.0 + (k % distinct) as f64), &[60], name);
    }
    check_all(gpu, &matrix(1000, cols, |k| special[k % special.len()]), &[60], "specials");
    check_all(gpu, &matrix(1000, cols, |_| 0.0), &[60], "zeros");
    check_all(gpu, &matrix(1000, cols, |_| -0.0), &[60], "zeros with a sign");
}

/// The rows between stencils are of other kinds, and slices with the same slots are not adjacent.
#[test]
fn slots_that_are_shared() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    let mut row_ptr = vec![0];
    let mut col_idx = Vec::new();
    for row in 0..20_000u32 {
        match row / 32 % 7 {
            0..4 => col_idx.extend([row, row + 1 + row / 32 % 3, row + 90]),
            4 => {}
            5 => col_idx.extend((0..9).map(|k| (row * 77 + k * 1013) % 20_000)),
            _ => col_idx.extend([row, row + 7].into_iter().skip((row % 5 == 0).into())),
        }
        row_ptr.push(col_idx.len());
    }
    let values = x_vector::<f64>(col_idx.len());
    let a = CsrMatrix::try_new(20_000, 20_100, row_ptr, col_idx, values).unwrap();
    check_all(gpu, &a, &[60], "stencils and others");
    // With long rows, whose lanes are filled but where a column would be -1 or 300.
    let long = |row: usize| row.is_multiple_of(7) || row == 99;
    let row = |row: usize| match long(row) {
        true => (0..70).map(|k| 3 * k).collect(),
        false => [1, 0, 201].map(|k| (row + k).saturating_sub(1) as u32).to_vec(),
    };
    check_all(gpu, &matrix::<f32>(300, row, |k| k as f32), &[60], "long rows among stencils");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_matrix(
        rows in prop::collection::vec(prop::collection::vec(0u32..90, 0..12), 1..150),
        order in prop::sample::select(&ORDERS[..]),
        packed in any::<bool>(),
        group in prop::sample::select(&Packing::GROUPS[..]),
        long in 1u32..14,
    ) {
        if let Some(&Device::Cuda(gpu)) = gpu() {
            let row = |r: usize| rows.get(r).cloned().unwrap_or_default();
            let values = ENCODINGS[usize::from(packed)];
            let a = matrix(90, row, |k| (k % 7) as f64);
            check(gpu, &a, order, packing(values, group, long), "any");
        }
    }
}

/// Columns of wide slices, one case for each special property. A portion ends at PORTION.
fn wide_columns(case: usize, row: usize) -> Vec<u32> {
    const PORTION: u32 = super::super::constants::PORTION as u32;
    let at = row as u32;
    let band = |len: u32| (at..at + len).collect::<Vec<_>>();
    let short = || vec![at, at + 3, at + 50];
    let nodes =
        |count: u32, len: u32| (0..count).flat_map(|n| (0..len).map(move |k| 7 * n + k)).collect();
    let swapped = |mut cols: Vec<u32>, k: u32| {
        cols.swap(k as usize - 1, k as usize);
        cols
    };
    match case {
        // Lengths close to those of whole portions, next to short rows.
        0 if row % 32 == 5 => band(PORTION + at / 32 - 1),
        1 if row % 32 == 31 => (0..2 * PORTION + at / 32 - 1).map(|k| 9 * k + at).collect(),
        2 if row.is_multiple_of(32) => (0..3 * PORTION + at / 32 - 1).map(|k| 301 * k).collect(),
        0..3 => short(),
        // Very long rows next to empty ones: a diagonal per entry takes no more than an index.
        3 if row == 40 => (0..Packing::MAX_SPLIT).map(|k| 70 * k).collect(),
        3 if row == 3 => (0..Packing::MAX_SPLIT).collect(),
        3 => vec![],
        // Diagonals that all rows have, diagonals that some have, and slices that share them with
        // the slice after the next.
        4 => band(500),
        5 if row / 32 == 1 => (at..at + 900).filter(|k| k % 3 != at % 2).collect(),
        5 => (at..at + 700).filter(|col| (col - at).is_multiple_of(1 + at % 2)).collect(),
        6 => (at..at + 20 * (at % 32)).filter(|col| col % 50 != 0).collect(),
        // The longest row is not the one with the outermost diagonals.
        7 if row.is_multiple_of(4) => (at + 2000..at + 2400).collect(),
        7 => band(390),
        // Steps of several columns; one step broken at the end of a portion, and one before it.
        8 => nodes(100 + 2 * (at % 9), 2),
        9 => nodes(PORTION + at % 7, 3),
        10 if row % 32 == 9 => {
            let mut cols: Vec<u32> = nodes(PORTION, 3);
            cols[PORTION as usize..].iter_mut().for_each(|col| *col += 1);
            cols[PORTION as usize] -= 1;
            cols
        }
        10 => nodes(70, 3),
        // Not ascending at the end of a portion and elsewhere; the same column twice.
        11 if row % 32 == 20 => swapped(band(2 * PORTION + 5), PORTION),
        12 if row % 32 == 21 => swapped(band(2 * PORTION + 5), 2 * PORTION + 1),
        13 if row % 32 == 22 => (0..300).map(|k| at + k.min(PORTION - 1)).collect(),
        11..14 => band(2 * PORTION),
        14 => (0..250 + at).rev().collect(),
        // Too many diagonals.
        15 => (0..400 + at).map(|k| 1000 * k + (k * 7919 + at * 104_729) % 1000).collect(),
        // Columns more than 31 bits apart, the first ones late.
        16 => (0..300).map(|k| if k == 250 { 0 } else { u32::MAX - 1000 + k }).collect(),
        17 => (0..300).map(|k| if k < 250 { at + k } else { u32::MAX - 1000 + k }).collect(),
        // Diagonals of a slice with a long row, and of one without.
        18 if row == 41 => band(450),
        18 => (at..at + 300).filter(|col| !(col - at).is_multiple_of(97 + at % 2)).collect(),
        _ => vec![],
    }
}

const WIDE_CASES: std::ops::Range<usize> = 0..19;

fn wide_slices_with<T: Scalar>(gpu: Gpu, of: fn(usize) -> T) {
    const ORDERS: [Order; 3] = [Order::Natural, Order::Windows(32), Order::Windows(usize::MAX)];
    let ncols = u32::MAX as usize - 1;
    for case in WIDE_CASES {
        for (name, distinct) in [("all", usize::MAX), ("few", 7), ("one", 1)] {
            let a = matrix(ncols, |row| wide_columns(case, row), |k| of(1 + k % distinct));
            for (order, values) in
                ORDERS.into_iter().flat_map(|order| ENCODINGS.map(|v| (order, v)))
            {
                for (group, long) in
                    [(1, Packing::MAX_SPLIT), (4, Packing::MAX_SPLIT), (4, 193), (4, 400)]
                {
                    let context = format!("wide slices {case} of {name} values");
                    check(gpu, &a, order, packing(values, group, long), &context);
                }
            }
        }
    }
}

#[test]
fn wide_slices_in_f32() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    wide_slices_with(gpu, |k| k as f32);
}

#[test]
fn wide_slices_in_f64() {
    let Some(&Device::Cuda(gpu)) = gpu() else { return };
    wide_slices_with(gpu, |k| k as f64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Consecutive rows of all kinds, so that slices hold rows of several kinds.
    #[test]
    fn any_wide_matrix(
        rows in prop::collection::vec((0u32..4, 1u32..4, 0u32..700), 1..70),
        order in prop::sample::select(&ORDERS[..]),
        packed in any::<bool>(),
        group in prop::sample::select(&Packing::GROUPS[..]),
        long in prop::sample::select(&[100, 192, 193, 500, Packing::MAX_SPLIT][..]),
    ) {
        if let Some(&Device::Cuda(gpu)) = gpu() {
            let row = |r: usize| match rows.get(r).copied() {
                Some((0, step, len)) => (0..len).map(|k| r as u32 + step * k).collect(),
                Some((1, step, len)) => (0..len).map(|k| step * k + k % step).collect(),
                Some((2, step, len)) => (0..len % 9).map(|k| step * 300 * k).collect(),
                Some((_, _, len)) => (0..len / 3 * 3).map(|k| 5 * (k / 3) + k % 3).collect(),
                None => vec![],
            };
            let values = ENCODINGS[usize::from(packed)];
            let a = matrix(9000, row, |k| (k % 7) as f32);
            check(gpu, &a, order, packing(values, group, long), "any");
        }
    }
}
