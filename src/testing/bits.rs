//! Reproducibility: every product of every plan repeats its bits, in every process and with any
//! number of threads. Solutions in several processes: `cli/tests/determinism.rs`.

use super::conformance::{devices, fits, scattered};
use super::devices::gpu;
use super::spmm::apply_multi_device;
use super::{child, spmm, x_vector};
use crate::analysis::Analysis;
use crate::device::{Device, DeviceVec, Stream, TEST_L2_BYTES};
use crate::formats::{FormatKind, Layout, Plan};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar, SparseOp, SparseOpBuilder, Tuning};
use std::fmt::Write;
use std::fs;

/// Number of repetitions of a product.
const REPEATS: usize = 200;

/// The same for kernels of large matrices.
const FEW_REPEATS: usize = 20;

/// Numbers of threads: one, as many as a machine with few cores has, and numbers that do not divide
/// the work evenly.
const THREADS: [usize; 4] = [1, 2, 3, 5];

/// Numbers of vectors of a multivector: as many as `csr(balanced)` multiplies by chunks, a multiple
/// of the unit of a GPU, and one that is not.
const FEW: usize = 2;
const EVEN: usize = 8;
const ODD: usize = 7;

/// Rows of very different lengths, one of them split many times. The matrix has several tasks on
/// the CPU, and is three times as large on a GPU.
fn skewed<T: Scalar>(device: &Device) -> CsrMatrix<T> {
    // On the CPU rows are short enough for products with two vectors by SpMVs.
    let (scale, long) = if *device == Device::Cpu { (1, 12_000) } else { (3, 60_000) };
    let length = |row| 300 / (1 + row * 37 % 200);
    scattered(3000 * scale, 2000 * scale, |row| if row == 1300 { long } else { length(row) })
}

/// All plans within the memory limit for the matrix and its transpose.
fn plans<T: Scalar>(a: &CsrMatrix<T>) -> Vec<Plan> {
    let both = [Analysis::of(a.view()), Analysis::of(a.transpose().view())];
    let examples = FormatKind::ALL.iter().flat_map(|kind| kind.examples());
    let mut plans: Vec<Plan> = examples.map(|text| text.parse().unwrap()).collect();
    plans.retain(|plan| both.iter().all(|a| fits(plan, a, T::KIND)));
    plans
}

fn operator<T: Scalar>(device: &Device, plan: &Plan, a: &CsrMatrix<T>) -> SparseOp<T> {
    SparseOpBuilder::new()
        .device(device.clone())
        .tuning(Tuning::Fixed(plan.clone()))
        .build(a)
        .unwrap()
}

/// Operands of products, on the operator's device.
struct Vectors<T: Scalar> {
    stream: Stream,
    one: DeviceVec<T>,
    across: DeviceVec<T>,
    few: DeviceVec<T>,
    even: DeviceVec<T>,
    odd: DeviceVec<T>,
    before: DeviceVec<T>,
}

impl<T: Scalar> Vectors<T> {
    fn new(device: &Device, a: &CsrMatrix<T>) -> Self {
        let vector = |len| DeviceVec::from_slice(device, &x_vector::<T>(len)).unwrap();
        Self {
            stream: Stream::new(device).unwrap(),
            one: vector(a.ncols()),
            across: vector(a.nrows()),
            few: vector(FEW * a.ncols()),
            even: vector(EVEN * a.ncols()),
            odd: vector(ODD * a.ncols()),
            before: vector(a.nrows()),
        }
    }
}

/// A product into a vector of the length of its result, with arbitrary content.
type Product<T> = fn(&SparseOp<T>, &Vectors<T>, &mut DeviceVec<T>) -> Result<(), Error>;

/// Name of the product of few vectors that every plan of the CPU multiplies.
const FEW_COLUMNS: &str = "column-major, 2 vectors";

/// Every product of an operator, with its name and the length of its result.
fn products<T: Scalar>(op: &SparseOp<T>) -> [(&'static str, usize, Product<T>); 7] {
    [
        ("plain", op.nrows(), |op, v, y| op.apply_device(&v.stream, &v.one, y)),
        ("scaled", op.nrows(), |op, v, y| {
            y.copy_from(&v.before.to_vec()?)?;
            op.apply_device_with(&v.stream, T::from_f64(0.7), &v.one, T::from_f64(-1.3), y)
        }),
        ("transposed", op.ncols(), |op, v, y| op.apply_transpose_device(&v.stream, &v.across, y)),
        ("row-major, 2 vectors", FEW * op.nrows(), |op, v, y| {
            apply_multi_device(op, &v.stream, FEW, &v.few, y, Layout::RowMajor)
        }),
        (FEW_COLUMNS, FEW * op.nrows(), |op, v, y| {
            apply_multi_device(op, &v.stream, FEW, &v.few, y, Layout::ColumnMajor)
        }),
        ("row-major, 8 vectors", EVEN * op.nrows(), |op, v, y| {
            apply_multi_device(op, &v.stream, EVEN, &v.even, y, Layout::RowMajor)
        }),
        ("column-major, 7 vectors", ODD * op.nrows(), |op, v, y| {
            apply_multi_device(op, &v.stream, ODD, &v.odd, y, Layout::ColumnMajor)
        }),
    ]
}

/// Bits of a product into a vector full of NaN.
fn bits<T: Scalar>(
    op: &SparseOp<T>,
    vectors: &Vectors<T>,
    len: usize,
    product: Product<T>,
) -> Vec<u64> {
    let nothing = vec![T::from_f64(f64::NAN); len];
    let mut y = DeviceVec::from_slice(op.device(), &nothing).unwrap();
    product(op, vectors, &mut y).unwrap();
    y.to_vec().unwrap().into_iter().map(Scalar::bits).collect()
}

/// Plans with SpMM kernels for their own arrays.
const OWN_ON_CPU: &[&str] = &["csr(balanced)"];
const OWN_ON_GPU: &[&str] = &["csr(balanced)", "psell(sigma:1,group:4)", "psell(sigma:512)"];

/// A plan whose SpMM uses a second packing.
const PACKED_AGAIN: &str = "coo";

/// True if SpMM is repeated: that of plans with kernels for their own arrays, and of
/// [`PACKED_AGAIN`] for all that use a second packing, which does not depend on the plan.
fn repeats_spmm<T: Scalar>(op: &SparseOp<T>) -> bool {
    op.spmm_limit(Layout::RowMajor) > 0 || op.plan().to_string() == PACKED_AGAIN
}

fn repeat<T: Scalar>(device: &Device) {
    let (own, by_spmvs) = repeated(device, &skewed::<T>(device), REPEATS);
    let expected = if *device == Device::Cpu { OWN_ON_CPU } else { OWN_ON_GPU };
    assert!(expected.iter().all(|text| own.iter().any(|plan| plan == text)), "{own:?}");
    assert!(!own.iter().any(|plan| plan == PACKED_AGAIN), "{own:?}");
    assert!(*device != Device::Cpu || by_spmvs > 0, "no plan multiplies two vectors by SpMVs");
}

/// Repeats the products of all plans of a matrix. Returns the plans with SpMM kernels for their own
/// arrays, and the number of those that multiply two vectors by SpMVs.
fn repeated<T: Scalar>(device: &Device, a: &CsrMatrix<T>, repeats: usize) -> (Vec<String>, usize) {
    let vectors = Vectors::new(device, a);
    let (mut own, mut by_spmvs) = (Vec::new(), 0);
    for plan in plans(a) {
        let op = operator(device, &plan, a).without_second_packing();
        by_spmvs += usize::from(op.spmm_limit(Layout::ColumnMajor) == FEW);
        if op.spmm_limit(Layout::RowMajor) > 0 {
            own.push(plan.to_string());
        }
        for (at, (name, len, product)) in products(&op).into_iter().enumerate() {
            let is_spmm = at >= 3;
            let is_of_plan = name == FEW_COLUMNS && op.spmm_limit(Layout::ColumnMajor) >= FEW;
            if is_spmm && !is_of_plan && !repeats_spmm(&op) {
                continue;
            }
            let first = bits(&op, &vectors, len, product);
            // What stays in the L2 of a GPU does not matter.
            vectors.stream.set_other_bytes(u64::MAX);
            let beside = bits(&op, &vectors, len, product);
            vectors.stream.set_other_bytes(0);
            assert!(beside == first || !plan.is_deterministic(), "{name}, {plan}: other bits");
            let other = (1..repeats).find(|_| bits(&op, &vectors, len, product) != first);
            assert_eq!(plan.is_deterministic(), plan.to_string() != "coo(atomic)", "{plan}");
            if is_spmm || plan.is_deterministic() {
                assert_eq!(other, None, "{name}, {plan} in {} on {device}: other bits", T::KIND);
            } else if *device != Device::Cpu {
                let found = if other.is_some() { "other" } else { "the same" };
                eprintln!(
                    "{name}, {plan} in {} on {device}, not deterministic: {found} bits",
                    T::KIND
                );
            }
        }
    }
    (own, by_spmvs)
}

#[test]
fn every_product_repeats_its_bits_in_f32() {
    devices().iter().for_each(repeat::<f32>);
}

#[test]
fn every_product_repeats_its_bits_in_f64() {
    devices().iter().for_each(repeat::<f64>);
}

/// Of one matrix a part stays in the L2, the other one has short rows. The size of the L2 is one
/// for the whole process.
#[test]
fn products_with_kernels_of_large_matrices_repeat_their_bits() {
    const NAME: &str = "testing::bits::products_with_kernels_of_large_matrices_repeat_their_bits";
    const L2_BYTES: &str = "1000000";
    let Some(device) = gpu() else { return };
    if std::env::var_os(TEST_L2_BYTES).is_none() {
        return child::finish(child::start(NAME, (TEST_L2_BYTES, L2_BYTES)));
    }
    let skewed_f64 = skewed::<f64>(device);
    let balanced = operator(device, &"csr(balanced)".parse().unwrap(), &skewed_f64);
    let explained = balanced.explain().to_string();
    assert!(explained.contains("of the matrix stay"), "{explained}");
    let short = |row: usize| row % 5;
    repeated(device, &skewed::<f32>(device), FEW_REPEATS);
    repeated(device, &skewed_f64, FEW_REPEATS);
    repeated(device, &scattered::<f32>(9000, 6000, short), FEW_REPEATS);
    repeated(device, &scattered::<f64>(9000, 6000, short), FEW_REPEATS);
}

/// A line for every product of every plan on a device, with a hash of its bits.
fn hashes<T: Scalar>(device: &Device) -> String {
    let a = skewed::<T>(device);
    let vectors = Vectors::new(device, &a);
    let mut lines = String::new();
    for plan in plans(&a).iter().filter(|plan| plan.is_deterministic()) {
        let op = operator(device, plan, &a);
        for (name, len, product) in products(&op) {
            let found = bits(&op, &vectors, len, product);
            let hash = found.iter().fold(0u64, |hash, bits| hash.wrapping_mul(31) ^ bits);
            writeln!(lines, "{name}, {plan} in {} on {device}: {hash:x}", T::KIND).unwrap();
        }
    }
    lines
}

#[test]
fn every_product_has_the_same_bits_in_every_process() {
    const NAME: &str = "testing::bits::every_product_has_the_same_bits_in_every_process";
    /// Environment variable of a process: the file for its hashes.
    const FILE: &str = "SPARSEOP_TEST_BITS";
    if let Some(file) = std::env::var_os(FILE) {
        let of = |device| hashes::<f32>(device) + &hashes::<f64>(device);
        return fs::write(file, devices().iter().map(of).collect::<String>()).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| {
        let file = folder.path().join(name);
        child::finish(child::start(NAME, (FILE, file.to_str().unwrap())));
        fs::read_to_string(file).unwrap()
    });
    let changed: Vec<_> = first.lines().zip(second.lines()).filter(|(a, b)| a != b).collect();
    assert!(changed.is_empty() && first.len() == second.len(), "{changed:?}");
    assert!(first.lines().count() > 12 * FormatKind::ALL.len(), "{first}");
}

fn threads<T: Scalar>() {
    let a = skewed::<T>(&Device::Cpu);
    let vectors = Vectors::new(&Device::Cpu, &a);
    let pools = THREADS
        .map(|threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap());
    for plan in plans(&a) {
        let op = operator(&Device::Cpu, &plan, &a);
        for (name, len, product) in products(&op) {
            // Outside of a pool the thread team computes the product.
            let first = bits(&op, &vectors, len, product);
            for pool in &pools {
                let found = pool.install(|| bits(&op, &vectors, len, product));
                let count = pool.current_num_threads();
                assert!(found == first, "{name}, {plan} in {}, {count} threads", T::KIND);
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads_in_f32() {
    threads::<f32>();
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads_in_f64() {
    threads::<f64>();
}

#[test]
fn updated_values_give_the_bits_of_new_operators_whatever_the_threads() {
    let a = skewed::<f64>(&Device::Cpu);
    let mut b = a.clone();
    b.values_mut().reverse();
    let vectors = Vectors::new(&Device::Cpu, &a);
    for plan in plans(&a).iter().filter(|plan| !plan.to_string().contains("values:")) {
        let new = operator(&Device::Cpu, plan, &b);
        for count in THREADS {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build().unwrap();
            let mut op = operator(&Device::Cpu, plan, &a);
            pool.install(|| op.update_values(b.values())).unwrap();
            for (name, len, product) in products(&op) {
                let expected = bits(&new, &vectors, len, product);
                assert!(
                    bits(&op, &vectors, len, product) == expected,
                    "{name}, {plan}, {count} threads"
                );
            }
        }
    }
}

#[test]
fn the_deterministic_choice_does_not_depend_on_the_number_of_threads() {
    for spec in
        ["webbase,rows=2k", "webbase,rows=8k", "banded,rows=3k", "rmat,scale=12", "poisson2d,n=90"]
    {
        let a = spec.parse::<crate::matrix::gallery::Spec>().unwrap().generate::<f32>().unwrap();
        let builder = SparseOpBuilder::new().device(Device::Cpu).deterministic(true);
        let plans = THREADS.map(|count| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build().unwrap();
            pool.install(|| builder.build(&a)).unwrap().plan().clone()
        });
        assert!(plans.iter().all(|plan| *plan == plans[0]), "{spec}: {plans:?}");
    }
}

#[test]
fn deterministic_builds_have_one_plan_and_equal_bits() {
    for device in devices() {
        for spec in ["webbase,rows=20k", "stencil27,n=16", "rmat,scale=11", "lp,rows=50"] {
            let a =
                spec.parse::<crate::matrix::gallery::Spec>().unwrap().generate::<f64>().unwrap();
            let vectors = Vectors::new(device, &a);
            let build = || {
                SparseOpBuilder::new().device(device.clone()).deterministic(true).build(&a).unwrap()
            };
            let (op, again) = (build(), build());
            assert!(
                op.plan().is_deterministic() && op.plan() == again.plan(),
                "{spec} on {device}"
            );
            assert!(op.transposed().unwrap().plan().is_deterministic(), "{spec} on {device}");
            for (name, len, product) in products(&op) {
                let first = bits(&op, &vectors, len, product);
                assert!(
                    first == bits(&again, &vectors, len, product),
                    "{name}, {spec} on {device}"
                );
            }
        }
    }
}

#[test]
fn few_column_major_vectors_are_spmvs_on_the_cpu() {
    // Short rows, one of them long, and near columns.
    let a = scattered(3000, 500, |row| if row == 1300 { 6000 } else { row % 23 });
    let case = spmm::Case::<f64>::with(a, &[2, 3]);
    let (nrows, ncols) = (case.a.nrows(), case.a.ncols());
    for text in spmm::PLANS.into_iter().filter(|text| !text.starts_with("csr")) {
        let op = case.operator(&Device::Cpu, &text.parse().unwrap());
        let before = op.memory_bytes();
        for k in [2, 3] {
            let x = case.x(k, Layout::ColumnMajor);
            let (mut y, mut one) = (spmm::nothing(k * nrows), spmm::nothing(nrows));
            spmm::apply_multi(&op, k, &x, &mut y, Layout::ColumnMajor).unwrap();
            let packs = op.memory_bytes() > before;
            assert_eq!(packs, k > 2, "{text}, {k} vectors");
            let explained = op.explain().to_string();
            assert!(explained.contains("for at most 2 in column-major order"), "{explained}");
            assert_eq!(explained.matches("\nvectors  ").count(), 1 + usize::from(packs));
            for v in (0..k).filter(|_| !packs) {
                op.apply(&x[v * ncols..(v + 1) * ncols], &mut one).unwrap();
                assert!(
                    spmm::same_bits(&one, &y[v * nrows..(v + 1) * nrows]),
                    "{text}, {v} of {k}"
                );
            }
        }
    }
}
