//! Tests of SpMM and of products with the transposed matrix, for every plan on awkward shapes.

use super::conformance::{awkward, devices, few_cases, fits, scattered};
use super::{Oracle, x_vector};
use crate::analysis::Analysis;
use crate::device::{Device, DeviceVec, Stream};
use crate::formats::{FormatKind, Layout, Multivector, Plan};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar, SparseOp, SparseOpBuilder, Tuning};

/// Numbers of vectors: complete units and SIMD vectors, less and more than those, and more than one
/// pass, with and without incomplete units.
const COUNTS: [usize; 9] = [1, 2, 3, 4, 7, 8, 16, 33, 40];

/// Number of entries above which a few numbers of vectors are enough, as under a slow tool.
const LARGE: usize = 20_000;
const FEW_COUNTS: [usize; 3] = [2, 8, 33];

const LAYOUTS: [Layout; 2] = [Layout::RowMajor, Layout::ColumnMajor];

/// A matrix, vectors for it, and their products.
pub(super) struct Case<T> {
    pub(super) a: CsrMatrix<T>,
    /// Numbers of vectors of a multivector.
    counts: &'static [usize],
    pub(super) analysis: Analysis,
    vectors: Vec<Vec<T>>,
    oracles: Vec<Oracle>,
    transposed: (Vec<T>, Oracle),
}

impl<T: Scalar> Case<T> {
    fn new(a: CsrMatrix<T>) -> Self {
        let few = few_cases() || a.nnz() > LARGE;
        let counts: &[usize] = if few { &FEW_COUNTS } else { &COUNTS };
        Self::with(a, counts)
    }

    pub(super) fn with(a: CsrMatrix<T>, counts: &'static [usize]) -> Self {
        let most = counts.iter().copied().max().unwrap_or(0);
        let vectors: Vec<Vec<T>> = (0..most).map(|v| different(a.ncols(), v)).collect();
        let oracles = vectors.iter().map(|x| Oracle::of(a.view(), x)).collect();
        let x = x_vector(a.nrows());
        let transposed = Oracle::of(a.transpose().view(), &x);
        Self {
            analysis: Analysis::of(a.view()),
            counts,
            vectors,
            oracles,
            transposed: (x, transposed),
            a,
        }
    }

    /// Operator whose own arrays serve any number of vectors if they can.
    pub(super) fn operator(&self, device: &Device, plan: &Plan) -> SparseOp<T> {
        self.build(device, plan).without_second_packing()
    }

    pub(super) fn build(&self, device: &Device, plan: &Plan) -> SparseOp<T> {
        let builder =
            SparseOpBuilder::new().device(device.clone()).tuning(Tuning::Fixed(plan.clone()));
        builder.build_analyzed(&self.a, &self.analysis).unwrap()
    }

    /// The first `k` vectors in a layout.
    pub(super) fn x(&self, k: usize, layout: Layout) -> Vec<T> {
        match layout {
            Layout::ColumnMajor => self.vectors[..k].concat(),
            Layout::RowMajor => (0..self.a.ncols())
                .flat_map(|i| self.vectors[..k].iter().map(move |x| x[i]))
                .collect(),
        }
    }

    /// Checks the products of the first `k` vectors.
    pub(super) fn check(&self, k: usize, layout: Layout, y: &[T], context: &str) {
        for v in 0..k {
            let one = column(y, self.a.nrows(), k, v, layout);
            self.oracles[v].check(&one).unwrap_or_else(|wrong| {
                panic!("vector {v} of {k}, {layout:?}, {context}: {wrong}")
            });
        }
    }
}

/// A vector that depends on `number`; some have an Inf or a NaN.
fn different<T: Scalar>(len: usize, number: usize) -> Vec<T> {
    let mut x = x_vector::<T>(len);
    if len > 0 {
        x.rotate_left(number * 7 % len);
        x.iter_mut().for_each(|x| *x = T::from_f64(x.to_f64() * (1.0 + number as f64)));
        let special = match number % 8 {
            3 => f64::INFINITY,
            5 => f64::NAN,
            _ => return x,
        };
        x[number % len] = T::from_f64(special);
    }
    x
}

/// Product number `v` of `k`.
fn column<T: Scalar>(y: &[T], nrows: usize, k: usize, v: usize, layout: Layout) -> Vec<T> {
    match layout {
        Layout::ColumnMajor => y[v * nrows..(v + 1) * nrows].to_vec(),
        Layout::RowMajor => (0..nrows).map(|i| y[i * k + v]).collect(),
    }
}

/// Content that must not survive.
pub(super) fn nothing<T: Scalar>(len: usize) -> Vec<T> {
    vec![T::from_f64(f64::NAN); len]
}

/// `Y = A X` with vectors in host memory.
pub(super) fn apply_multi<T: Scalar>(
    op: &SparseOp<T>,
    k: usize,
    x: &[T],
    y: &mut [T],
    layout: Layout,
) -> Result<(), Error> {
    op.apply_multi(Multivector::new(x, k, layout), Multivector::new(y, k, layout))
}

/// `Y = A X` with vectors on the device.
pub(super) fn apply_multi_device<T: Scalar>(
    op: &SparseOp<T>,
    stream: &Stream,
    k: usize,
    x: &DeviceVec<T>,
    y: &mut DeviceVec<T>,
    layout: Layout,
) -> Result<(), Error> {
    op.apply_multi_device(stream, Multivector::new(x, k, layout), Multivector::new(y, k, layout))
}

fn on_device<T: Scalar>(op: &SparseOp<T>, k: usize, layout: Layout, x: &[T]) -> Vec<T> {
    let stream = Stream::new(op.device()).unwrap();
    let x = DeviceVec::from_slice(op.device(), x).unwrap();
    let mut y = DeviceVec::from_slice(op.device(), &nothing(k * op.nrows())).unwrap();
    apply_multi_device(op, &stream, k, &x, &mut y, layout).unwrap();
    y.to_vec().unwrap()
}

/// Checks every example plan of a format on every awkward matrix, on every device.
pub(crate) fn check_spmm<T: Scalar>(format: FormatKind) {
    for (name, a) in awkward::<T>() {
        let case = Case::new(a);
        for text in format.examples() {
            let plan: Plan = text.parse().unwrap();
            if !fits(&plan, &case.analysis, T::KIND) {
                continue;
            }
            for device in devices() {
                let op = case.operator(device, &plan);
                let context = format!("{plan} on {name} in {} on {device}", T::KIND);
                multivectors(&op, &case, &context);
                transposed(&op, &case, &context);
            }
        }
    }
}

/// Checks SpMM with every number of vectors of a case, in host memory and on the device.
pub(super) fn multivectors<T: Scalar>(op: &SparseOp<T>, case: &Case<T>, context: &str) {
    for &k in case.counts {
        for layout in LAYOUTS {
            let x = case.x(k, layout);
            let mut y = nothing(k * case.a.nrows());
            apply_multi(op, k, &x, &mut y, layout).unwrap();
            case.check(k, layout, &y, context);
            let also = on_device(op, k, layout, &x);
            case.check(k, layout, &also, context);
            // A single vector is multiplied by the plan itself.
            let same = same_bits(&y, &also) || (k == 1 && !op.plan().is_deterministic());
            assert!(same, "in host memory and not, {k} vectors, {layout:?}, {context}");
        }
    }
}

fn transposed<T: Scalar>(op: &SparseOp<T>, case: &Case<T>, context: &str) {
    // The plan was given, and may exceed the memory limit for the transpose.
    let wide = Analysis::of(case.a.transpose().view());
    if !fits(op.plan(), &wide, T::KIND) {
        return;
    }
    let (x, oracle) = &case.transposed;
    let mut y = nothing(case.a.ncols());
    op.apply_transpose(x, &mut y).unwrap();
    oracle.check(&y).unwrap_or_else(|wrong| panic!("transposed, {context}: {wrong}"));
    let stream = Stream::new(op.device()).unwrap();
    let x = DeviceVec::from_slice(op.device(), x).unwrap();
    let mut y = DeviceVec::from_slice(op.device(), &nothing(case.a.ncols())).unwrap();
    op.apply_transpose_device(&stream, &x, &mut y).unwrap();
    oracle
        .check(&y.to_vec().unwrap())
        .unwrap_or_else(|wrong| panic!("transposed on the device, {context}: {wrong}"));
}

pub(super) fn same_bits<T: Scalar>(one: &[T], other: &[T]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.bits() == b.bits())
}

/// Rows of very different lengths, one of them split many times.
pub(super) fn skewed<T: Scalar>() -> Case<T> {
    let length = |row| 300 / (1 + row * 37 % 200);
    Case::new(scattered(9000, 5000, |row| if row == 4000 { 90_000 } else { length(row) }))
}

/// Plans with rows, with slices, with split long rows, and with neither.
pub(super) const PLANS: [&str; 5] =
    ["csr(balanced)", "csr(scalar)", "psell(sigma:512,split:60)", "psell(sigma:1,group:4)", "coo"];

pub(super) const RUNS: [(i64, i64); 6] =
    [(-301, 3), (-64, 2), (-1, 3), (31, 5), (100, 1), (290, 4)];

/// Runs of diagonals: the first of each, and their number. Some lack entries, in every slice or in
/// some, so that complete and incomplete slots of a slice occur in any order; the last slice is
/// incomplete. There may be more columns than rows.
pub(super) fn diagonals<T: Scalar>(rows: i64, cols: i64, runs: &[(i64, i64)]) -> CsrMatrix<T> {
    let has = |row: i64, delta: i64| match delta {
        0 => true,
        -63 | 33 => row % 32 != 0,
        -1 | 291 => row % 100 != 99,
        _ => delta % 7 != 0 || row % 5 != 2,
    };
    let (mut row_ptr, mut col_idx, mut values) = (vec![0], vec![], vec![]);
    for row in 0..rows {
        let deltas = runs.iter().flat_map(|&(first, len)| first..first + len);
        for delta in deltas.filter(|&delta| (0..cols).contains(&(row + delta)) && has(row, delta)) {
            col_idx.push((row + delta) as u32);
            values.push(T::from_f64(((row * 31 + delta * 17) % 101) as f64 / 8.0 - 5.0));
        }
        row_ptr.push(col_idx.len());
    }
    CsrMatrix::try_new(rows as usize, cols as usize, row_ptr, col_idx, values).unwrap()
}

fn check_diagonals<T: Scalar>() {
    let case = Case::with(
        diagonals::<T>(1003, 1003, &RUNS),
        &[1, 2, 3, 4, 5, 6, 8, 9, 15, 16, 24, 31, 32, 33, 64],
    );
    for text in ["psell(sigma:1)", "psell(sigma:1,group:4)"] {
        for device in devices() {
            let op = case.operator(device, &text.parse().unwrap());
            multivectors(&op, &case, &format!("{text} on diagonals in {} on {device}", T::KIND));
        }
    }
}

#[test]
fn diagonals_in_runs_take_any_number_of_vectors_in_f32() {
    check_diagonals::<f32>();
}

#[test]
fn diagonals_in_runs_take_any_number_of_vectors_in_f64() {
    check_diagonals::<f64>();
}

/// Enough slices for the sliding-window SpMM, with one band of columns and with three.
fn check_window<T: Scalar>(counts: &'static [usize]) {
    let planes =
        [-1700, 0, 1700].map(|plane| [-41, 0, 41].map(|line| (plane + line - 1, 3))).concat();
    let matrices = [
        diagonals::<T>(61_003, 61_003, &RUNS),
        diagonals(75_000, 75_000, &planes),
        diagonals(60_020, 60_900, &planes),
    ];
    for a in matrices {
        let case = Case::with(a, counts);
        for text in ["psell(sigma:1)", "psell(sigma:1,group:4)"] {
            for device in devices().iter().filter(|device| **device != Device::Cpu) {
                let op = case.operator(device, &text.parse().unwrap());
                let before = op.memory_bytes();
                let columns = case.a.ncols();
                multivectors(
                    &op,
                    &case,
                    &format!("{text}, {columns} columns in {} on {device}", T::KIND),
                );
                // Hopper and later data-centre GPUs use the sliding window, and count its memory.
                // Others may lack the shared memory.
                let instructions = device.spec().instructions;
                let capability: u32 = instructions.trim_start_matches("sm_").parse().unwrap();
                let has_window = op.memory_bytes() > before;
                assert!(
                    capability >= 120 || has_window == (capability >= 90),
                    "{text}, {columns} columns on {instructions}"
                );
            }
        }
    }
}

#[test]
fn graphs_of_a_sliding_window_and_of_groups_own_their_inputs() {
    let diagonals = Case::with(diagonals::<f32>(61_003, 61_003, &RUNS), &[8]);
    let cases = [(&diagonals, "psell(sigma:1)"), (&skewed(), "csr(balanced)")];
    let gpus = devices().iter().filter(|device| **device != Device::Cpu);
    for (device, (case, plan)) in gpus.flat_map(|device| cases.map(|case| (device, case))) {
        let op = case.operator(device, &plan.parse().unwrap());
        let (stream, x) = (Stream::new(device).unwrap(), case.x(8, Layout::RowMajor));
        let expected = on_device(&op, 8, Layout::RowMajor, &x);
        let x = DeviceVec::from_slice(device, &x).unwrap();
        let mut y = DeviceVec::from_slice(device, &nothing(8 * case.a.nrows())).unwrap();
        let graph = stream
            .capture(&mut || apply_multi_device(&op, &stream, 8, &x, &mut y, Layout::RowMajor))
            .unwrap();
        let bytes = op.memory_bytes();
        drop((op, x));
        // Memory that is free now is allocated, in buffers of all sizes.
        let others: Vec<_> = (2..20)
            .flat_map(|shift| std::iter::repeat_n(bytes as usize >> shift, 4))
            .map(|len| {
                DeviceVec::from_slice(device, &vec![f32::NAN; len / size_of::<f32>()]).unwrap()
            })
            .collect();
        graph.launch(&stream).unwrap();
        assert!(same_bits(&y.to_vec().unwrap(), &expected), "{device}");
        drop(others);
    }
}

#[test]
fn the_window_slides_along_diagonals_in_f32() {
    check_window::<f32>(&[4, 5, 7, 8, 9, 16]);
}

#[test]
fn the_window_slides_along_diagonals_in_f64() {
    check_window::<f64>(&[2, 3, 4, 5, 8]);
}

#[test]
fn any_number_of_vectors_without_elements_takes_no_time() {
    for device in devices() {
        let a = CsrMatrix::<f64>::zeros(0, 0).unwrap();
        let op = SparseOpBuilder::new().device(device.clone()).build(&a).unwrap();
        let stream = Stream::new(device).unwrap();
        let nothing = || DeviceVec::zeros(device, 0).unwrap();
        for layout in LAYOUTS {
            apply_multi(&op, usize::MAX, &[], &mut [], layout).unwrap();
            apply_multi_device(&op, &stream, usize::MAX, &nothing(), &mut nothing(), layout)
                .unwrap();
        }
    }
}

#[test]
fn wrong_lengths_are_refused_and_y_is_untouched() {
    for device in devices() {
        let a = CsrMatrix::try_new(2, 3, vec![0, 1, 2], vec![2, 0], vec![1.0f64, 4.0]).unwrap();
        let op = SparseOpBuilder::new().device(device.clone()).build(&a).unwrap();
        let mut y = [7.0; 8];
        let wrong =
            apply_multi(&op, 4, &[1.0; 8], &mut y, Layout::RowMajor).unwrap_err().to_string();
        assert!(
            wrong.contains("`x` has 8 elements, but 4 vectors for a matrix of 2 x 3 have 4 x 3"),
            "{wrong}"
        );
        let short = apply_multi(&op, 4, &[1.0; 12], &mut y[..7], Layout::ColumnMajor).unwrap_err();
        assert!(
            matches!(short, Error::VectorsLength { vectors: "y", count: 4, len: 2, found: 7, .. }),
            "{short}"
        );
        let many = apply_multi(&op, usize::MAX, &[1.0; 3], &mut y, Layout::RowMajor).unwrap_err();
        assert!(matches!(many, Error::VectorsLength { vectors: "x", .. }), "{many}");
        assert_eq!(y, [7.0; 8]);
        apply_multi(&op, 0, &[], &mut [], Layout::RowMajor).unwrap();
        apply_multi(&op, 4, &[1.0; 12], &mut y, Layout::ColumnMajor).unwrap();
        assert_eq!(y, [1.0, 4.0, 1.0, 4.0, 1.0, 4.0, 1.0, 4.0]);
    }
}

#[test]
fn vectors_of_any_alignment_are_multiplied() {
    let case = skewed::<f32>();
    let nrows = case.a.nrows();
    for device in devices().iter().filter(|device| **device != Device::Cpu) {
        for text in ["csr(balanced)", "psell(sigma:512)"] {
            let op = case.operator(device, &text.parse().unwrap());
            let stream = Stream::new(device).unwrap();
            for (k, offset) in [2, 3, 4, 8].into_iter().flat_map(|k| [(k, 1), (k, 2), (k, 4)]) {
                let x = [vec![0.0; offset], case.x(k, Layout::RowMajor)].concat();
                let mut x = DeviceVec::from_slice(device, &x).unwrap();
                let mut y = DeviceVec::from_slice(device, &nothing(k * nrows)).unwrap();
                let multiply = |x: &mut DeviceVec<f32>| {
                    apply_multi_device(&op, &stream, k, x, &mut y, Layout::RowMajor)
                };
                x.with_part(offset..offset + k * case.a.ncols(), multiply).unwrap();
                stream.synchronize().unwrap();
                let context = format!("{text}, {offset} elements off");
                case.check(k, Layout::RowMajor, &y.to_vec().unwrap(), &context);
            }
        }
    }
}

#[test]
fn captured_products_are_those_that_are_enqueued() {
    let case = skewed::<f32>();
    for device in devices().iter().filter(|device| **device != Device::Cpu) {
        for text in PLANS {
            let op = case.operator(device, &text.parse().unwrap());
            let stream = Stream::new(device).unwrap();
            let shapes = [2, 4, 8].map(|k| (k, Layout::RowMajor));
            let shapes = shapes.into_iter().chain([(33, Layout::ColumnMajor)]);
            let capture = |(k, layout)| {
                let x = case.x(k, layout);
                let expected = on_device(&op, k, layout, &x);
                let x = DeviceVec::from_slice(device, &x).unwrap();
                let mut y = DeviceVec::from_slice(device, &nothing(k * case.a.nrows())).unwrap();
                let graph = stream
                    .capture(&mut || apply_multi_device(&op, &stream, k, &x, &mut y, layout))
                    .unwrap();
                (graph, y, expected, k)
            };
            let captured: Vec<_> = shapes.map(capture).collect();
            // Graphs own what they use.
            drop(op);
            for (graph, y, expected, k) in captured {
                for _ in 0..3 {
                    graph.launch(&stream).unwrap();
                }
                assert!(same_bits(&y.to_vec().unwrap(), &expected), "{text}, {k} vectors");
            }
        }
    }
}

#[test]
fn threads_and_streams_share_an_operator() {
    // On a CPU, rows so short that `coo` multiplies two vectors by SpMVs.
    let short = Case::new(scattered(3000, 500, |row| row % 23));
    let skewed = skewed::<f64>();
    let plans = ["coo", "csr(balanced)"];
    for (device, text) in devices().iter().flat_map(|device| plans.map(|text| (device, text))) {
        let case = if *device == Device::Cpu { &short } else { &skewed };
        let op = case.operator(device, &text.parse().unwrap());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let op = &op;
                scope.spawn(move || {
                    let columns = [2, 3].map(|k| (k, Layout::ColumnMajor));
                    let (k, layout) = [(8, Layout::RowMajor), columns[0], columns[1]][thread % 3];
                    let x = case.x(k, layout);
                    let mut y = nothing(k * case.a.nrows());
                    for _ in 0..5 {
                        apply_multi(op, k, &x, &mut y, layout).unwrap();
                        case.check(k, layout, &y, text);
                        case.check(k, layout, &on_device(op, k, layout, &x), text);
                    }
                });
            }
        });
    }
}
