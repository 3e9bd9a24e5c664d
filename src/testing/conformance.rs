//! Conformance tests of every plan of every format, on awkward shapes.

pub(super) use super::devices::{devices, few_cases};
use super::{Oracle, x_vector};
use crate::analysis::Analysis;
use crate::device::{Device, DeviceVec, Stream};
use crate::formats::{FormatKind, Plan, ResidentMatrix, any_plan};
use crate::matrix::{CsrMatrix, gallery};
use crate::{Error, Scalar, ScalarKind};
use proptest::prelude::*;

/// Tests of one format, for both scalar types.
macro_rules! format_suite {
    ($module:ident, $Format:ident) => {
        mod $module {
            use crate::formats::FormatKind;

            #[test]
            fn conforms_in_f32() {
                crate::testing::check_format::<f32>(FormatKind::$Format);
            }

            #[test]
            fn conforms_in_f64() {
                crate::testing::check_format::<f64>(FormatKind::$Format);
            }

            #[test]
            fn few_products() {
                crate::testing::check_few::<f64>(FormatKind::$Format);
            }

            #[test]
            fn several_vectors_and_the_transpose_in_f32() {
                crate::testing::check_spmm::<f32>(FormatKind::$Format);
            }

            #[test]
            fn several_vectors_and_the_transpose_in_f64() {
                crate::testing::check_spmm::<f64>(FormatKind::$Format);
            }
        }
    };
}
pub(crate) use format_suite;

/// Checks every example plan of a format on every awkward matrix.
pub(crate) fn check_format<T: Scalar>(format: FormatKind) {
    for (name, a) in awkward::<T>() {
        for text in format.examples() {
            check_plan(&text.parse().unwrap(), &a, name);
        }
    }
}

/// The awkward matrices that are small enough for products one by one.
pub(super) fn small<T: Scalar>() -> impl Iterator<Item = (&'static str, CsrMatrix<T>)> {
    const ENTRIES: usize = 30_000;
    awkward().into_iter().filter(|(_, a)| a.nnz() <= ENTRIES)
}

/// Most entries of an awkward matrix under a tool that slows products down.
const FEW_ENTRIES: usize = 4000;

/// Memory limit in bytes.
const MEMORY_LIMIT: u64 = 64 << 20;

/// True if a format holds the matrix within the memory limit. Other plans are skipped, as an
/// operator refuses them: ELL on a row of 90,000 entries.
pub(super) fn fits(plan: &Plan, analysis: &Analysis, scalar: ScalarKind) -> bool {
    let bytes = plan.work(analysis, scalar).matrix_bytes;
    bytes <= MEMORY_LIMIT && plan.refusal(analysis).is_none()
}

/// Checks one plan on one matrix.
pub(super) fn check_plan<T: Scalar>(plan: &Plan, a: &CsrMatrix<T>, name: &str) {
    let context = format!("{plan} on {name} in {}", T::KIND);
    let analysis = Analysis::of(a.view());
    if plan.refusal(&analysis).is_some() {
        let refused = plan.pack(a.view());
        assert!(matches!(refused, Err(Error::PlanLimit { .. })), "{refused:?}: {context}");
    }
    if !fits(plan, &analysis, T::KIND) {
        return;
    }
    let work = plan.work(&analysis, T::KIND);
    let packed = plan.pack(a.view()).unwrap();
    check_bytes(packed.matrix_bytes(), plan, &analysis, T::KIND, &context);
    assert!(work.slots + work.outside >= a.nnz() as u64, "slots of {context}");
    for device in devices() {
        check_on(device, plan, a, &format!("{context} on {device}"));
    }
}

/// Checks that the bytes of a packed matrix are those predicted, within the format's bounds.
fn check_bytes(found: u64, plan: &Plan, analysis: &Analysis, scalar: ScalarKind, context: &str) {
    let estimated = plan.work(analysis, scalar).matrix_bytes;
    let bounds = plan.estimate_bounds(analysis).unwrap();
    assert!(
        (bounds.start() * found as f64..=bounds.end() * found as f64).contains(&(estimated as f64)),
        "{estimated} bytes were estimated, {found} were found: {context}"
    );
}

/// `A x` under a plan on a device, over a `y` full of NaN.
pub(crate) fn product<T: Scalar>(
    device: &Device,
    matrix: &ResidentMatrix<T>,
    nrows: usize,
    x: &[T],
) -> Vec<T> {
    let stream = Stream::new(device).unwrap();
    let x = DeviceVec::from_slice(device, x).unwrap();
    // Previous content of y must not survive.
    let mut y = DeviceVec::from_slice(device, &vec![T::from_f64(f64::NAN); nrows]).unwrap();
    matrix.enqueue(&stream, &x, &mut y).unwrap();
    y.to_vec().unwrap()
}

/// Checks one plan on one matrix on one device.
pub(super) fn check_on<T: Scalar>(device: &Device, plan: &Plan, a: &CsrMatrix<T>, context: &str) {
    let pack = |a: &CsrMatrix<T>| ResidentMatrix::on(device, plan.pack(a.view()).unwrap()).unwrap();
    let resident = pack(a);
    assert_eq!(resident.unpack().unwrap(), *a, "unpacking {context}");
    let work = plan.work(&Analysis::of(a.view()), T::KIND);
    if *device != Device::Cpu && plan.to_string().contains("tail:host") && work.outside > 0 {
        // The host keeps its part of the arrays.
        let all = work.matrix_bytes;
        assert!(
            (1..all).contains(&resident.bytes()),
            "{} of {all} bytes, {context}",
            resident.bytes()
        );
    } else {
        check_bytes(resident.bytes(), plan, &Analysis::of(a.view()), T::KIND, context);
    }
    let multiply = |x: &[T]| product(device, &resident, a.nrows(), x);
    let x = x_vector::<T>(a.ncols());
    Oracle::of(a.view(), &x)
        .check(&multiply(&x))
        .unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
    super::scaled::check(device, &resident, a, &x, context);
    super::update::check(device, plan, a, &x, context);

    // Small integers: sums are exact in any order.
    let integers: Vec<T> = (0..a.ncols()).map(|i| T::from_f64((i % 7) as f64 - 3.0)).collect();
    let mut whole = a.clone();
    whole
        .values_mut()
        .iter_mut()
        .enumerate()
        .for_each(|(i, v)| *v = T::from_f64((i % 5) as f64 - 2.0));
    let y = product(device, &pack(&whole), a.nrows(), &integers);
    assert_eq!(Oracle::of(whole.view(), &integers).rel_error(&y), 0.0, "integers, {context}");

    // An Inf or NaN reaches exactly the rows that touch it.
    for special in [f64::INFINITY, f64::NAN] {
        let mut x = x.clone();
        for i in (0..a.ncols()).step_by(5) {
            x[i] = T::from_f64(special);
        }
        Oracle::of(a.view(), &x)
            .check(&multiply(&x))
            .unwrap_or_else(|wrong| panic!("{special}, {context}: {wrong}"));
    }
}

/// A matrix with the given columns in each row.
pub(crate) fn of_rows<T: Scalar, R: Iterator<Item = usize>>(
    ncols: usize,
    rows: impl Iterator<Item = R>,
) -> CsrMatrix<T> {
    let mut row_ptr = vec![0];
    let mut col_idx = Vec::new();
    for row in rows {
        col_idx.extend(row.map(|col| col as u32));
        row_ptr.push(col_idx.len());
    }
    let values = x_vector(col_idx.len());
    CsrMatrix::try_new(row_ptr.len() - 1, ncols, row_ptr, col_idx, values).unwrap()
}

/// A matrix whose row `i` has `len(i)` entries at scattered columns, unsorted and with repetitions.
pub(crate) fn scattered<T: Scalar>(
    nrows: usize,
    ncols: usize,
    len: impl Fn(usize) -> usize,
) -> CsrMatrix<T> {
    let row = |row| (0..len(row)).map(move |k| (row * 31 + k * 17 + k * k) % ncols);
    of_rows(ncols, (0..nrows).map(row))
}

/// A matrix with the diagonal and its neighbours in every row.
fn stencil<T: Scalar>(n: usize) -> CsrMatrix<T> {
    of_rows(n, (0..n).map(|row| row.saturating_sub(1)..(row + 2).min(n)))
}

/// Generated matrices of every kind, of 20,000 entries; under a slow tool some, of 2,000.
pub(crate) fn small_gallery() -> impl Iterator<Item = gallery::Spec> {
    let (each, entries) = if few_cases() { (5, 2000) } else { (1, 20_000) };
    gallery::list().iter().step_by(each).map(move |entry| entry.spec().scaled_to(entries))
}

/// Shapes that are likely to break kernels.
pub(crate) fn awkward<T: Scalar>() -> Vec<(&'static str, CsrMatrix<T>)> {
    let zeros = |m, n| CsrMatrix::zeros(m, n).unwrap();
    let mut all = vec![
        ("the matrix of Kirk & Hwu", super::chapter::matrix()),
        ("the exercise's matrix", super::chapter::exercise()),
        ("0 x 0", zeros(0, 0)),
        ("0 x 5", zeros(0, 5)),
        ("5 x 0", zeros(5, 0)),
        ("no entries", zeros(70, 3)),
        ("one row", scattered(1, 50, |_| 37)),
        ("one column", scattered(67, 1, |row| usize::from(row % 3 != 0))),
        ("one dense row", scattered(130, 200, |row| if row == 77 { 200 } else { 2 })),
        (
            "empty rows between and at both ends",
            scattered(100, 40, |row| if row % 7 == 3 { 9 } else { 0 }),
        ),
        ("row lengths from 0 to 40", scattered(200, 300, |row| (row * 7) % 41)),
        ("a staircase", scattered(66, 66, |row| row)),
        ("a stencil", stencil(1000)),
        ("explicit zeros", {
            let mut a = scattered::<T>(40, 40, |row| row % 4);
            a.values_mut().fill(T::ZERO);
            a
        }),
        // Large enough for several tasks, with a row longer than two of them and empty rows at the
        // cuts.
        (
            "a skewed matrix in tasks",
            scattered(9000, 5000, |row| match row {
                4000 => 90_000,
                4001..4500 => 0,
                _ => row % 23,
            }),
        ),
        // A GPU's chunks have 2048 entries: rows over a few and over many chunks, and rows that end
        // with one.
        (
            "rows over some chunks",
            scattered(700, 900, |row| match row {
                100 => 5000,
                101 => 20_000,
                102..110 => 0,
                300 => 69_000,
                301 => 70_000,
                _ => row % 4,
            }),
        ),
        ("rows of a chunk", scattered(12, 3000, |row| 2046 + row % 3)),
        (
            "rows of a chunk and nothing",
            scattered(5000, 3000, |row| if row % 1000 == 7 { 2048 } else { 0 }),
        ),
        ("only one long row", scattered(300, 1000, |row| if row == 299 { 150_000 } else { 0 })),
        ("a stencil in tasks", stencil(40_000)),
    ];
    let borders: &[usize] = match few_cases() {
        true => &[7, 32, 33, 65],
        false => &[7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65],
    };
    for &n in borders {
        all.push(("a border of vectors and slices", scattered(n, n, |row| 1 + row % 3)));
        all.push(("a full square", scattered(n, n, |_| n)));
    }
    if few_cases() {
        all.retain(|(_, a)| a.nnz() <= FEW_ENTRIES);
    }
    all
}

/// Any small matrix, including unsorted and repeated columns.
fn any_matrix() -> impl Strategy<Value = CsrMatrix<f64>> {
    (1usize..90, 1usize..90).prop_flat_map(|(nrows, ncols)| {
        let row = prop::collection::vec((0..ncols as u32, -4i8..5), 0..30);
        prop::collection::vec(prop_oneof![2 => row, 1 => Just(Vec::new())], nrows).prop_map(
            move |rows| {
                let mut row_ptr = vec![0];
                row_ptr.extend(rows.iter().scan(0, |end, row| {
                    *end += row.len();
                    Some(*end)
                }));
                let (col_idx, values) =
                    rows.into_iter().flatten().map(|(col, v)| (col, f64::from(v))).unzip();
                CsrMatrix::try_new(nrows, ncols, row_ptr, col_idx, values).unwrap()
            },
        )
    })
}

/// Any of some examples, with other numbers if it may have them.
pub(crate) fn any_example(examples: &'static [&'static str]) -> BoxedStrategy<String> {
    let numbers = prop::collection::vec(1u32..400, 4);
    let changed = (prop::sample::select(examples), numbers).prop_map(|(text, numbers)| {
        let mut numbers = numbers.into_iter();
        let words = text.split_inclusive([':', ',']).map(|word| {
            let digits = word.trim_end_matches([')', ',']);
            match (digits.parse::<u32>(), numbers.next()) {
                (Ok(_), Some(number)) => word.replacen(digits, &number.to_string(), 1),
                _ => word.to_owned(),
            }
        });
        let changed: String = words.collect();
        if changed.parse::<Plan>().is_ok() { changed } else { text.to_owned() }
    });
    changed.boxed()
}

proptest! {
    #[test]
    fn any_plan_on_any_matrix(plan in any_plan(), a in any_matrix()) {
        check_plan(&plan, &a, "a random matrix");
    }
}

/// Rows of contiguous columns: in each chunk of a GPU from 1 to 40 equal rows, then rows of very
/// different lengths, and rows that are cut.
fn contiguous<T: Scalar>() -> CsrMatrix<T> {
    let equal = [1, 2, 3, 7, 8, 15, 16, 31, 32, 40].map(|rows| vec![1900 / rows; rows]).concat();
    let unequal = vec![900, 3, 0, 700, 5, 0, 0, 200, 90, 2000, 4, 6000, 0, 61, 62];
    let lengths = [equal, unequal, vec![300; 20], vec![140; 40]].concat();
    of_rows(6500, lengths.into_iter().enumerate().map(|(row, len)| row..row + len))
}

#[test]
fn striped_chunks_with_any_number_of_row_ends_conform() {
    let plan = "csr(balanced)".parse().unwrap();
    check_plan(&plan, &contiguous::<f32>(), "contiguous columns");
    check_plan(&plan, &contiguous::<f64>(), "contiguous columns");
}

#[test]
fn every_name_is_listed_once() {
    let mut names: Vec<_> = FormatKind::ALL.iter().map(|k| k.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), FormatKind::ALL.len());
    assert_eq!(ScalarKind::ALL.len(), 2);
}
