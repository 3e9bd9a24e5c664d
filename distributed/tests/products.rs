//! Products of several parts: the answers, and the same bits as with one part.

mod common;

use common::{bits, devices, matrices, on, one_part};
use sparseop::matrix::CsrMatrix;
use sparseop::{Device, ErrorKind, Layout, Multivector, Scalar, SparseOp};
use sparseop_distributed::{Balance, Devices, DistributedBuilder, DistributedOp};
use sparseop_testkit::{Oracle, x_vector};

/// Checks a product against the oracle.
fn check<T: Scalar>(name: &str, a: &CsrMatrix<T>, x: &[T], y: &[T]) {
    Oracle::of(a.view(), x).check(y).unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// Every matrix with every kind of device.
fn pairs<'a, D, M>(devices: &'a [D], matrices: &'a [M]) -> impl Iterator<Item = (&'a D, &'a M)> {
    devices.iter().flat_map(move |device| matrices.iter().map(move |matrix| (device, matrix)))
}

fn parts_have_the_same_bits<T: Scalar>() {
    let devices = devices(&[2, 3, 4, 7]);
    let matrices = matrices::<T>();
    for ((one, several), (name, a)) in pairs(&devices, &matrices) {
        let (x, across) = (x_vector::<T>(a.ncols()), x_vector::<T>(a.nrows()));
        let whole = on(one, a);
        let nothing = T::from_f64(f64::NAN);
        let (mut y, mut back) = (vec![nothing; a.nrows()], vec![nothing; a.ncols()]);
        whole.apply(&x, &mut y).unwrap();
        whole.apply_transpose(&across, &mut back).unwrap();
        check(name, a, &x, &y);
        let transposed = a.transpose();
        check(name, &transposed, &across, &back);
        for parts in several {
            let op = on(parts, a);
            let (mut found, mut found_back) = (vec![nothing; a.nrows()], vec![nothing; a.ncols()]);
            op.apply(&x, &mut found).unwrap();
            assert!(bits(&found) == bits(&y), "{name}, {parts:?}");
            op.apply_transpose(&across, &mut found_back).unwrap();
            assert!(bits(&found_back) == bits(&back), "{name}, {parts:?}, transposed");
            assert_eq!(op.nnz() as usize, a.nnz());
        }
    }
}

#[test]
fn products_have_the_bits_of_one_part_in_f32() {
    parts_have_the_same_bits::<f32>();
}

#[test]
fn products_have_the_bits_of_one_part_in_f64() {
    parts_have_the_same_bits::<f64>();
}

#[test]
fn several_vectors_are_multiplied_as_by_one_operator() {
    let devices = devices(&[4]);
    let matrices = matrices::<f64>();
    for ((one, several), (name, a)) in pairs(&devices, &matrices) {
        let on_gpus = *one != Devices::cpu(1);
        let several = several.last().unwrap_or(one);
        let (one, several) = (on(one, a), on(several, a));
        for count in [0, 1, 2, 5, 8] {
            let x = x_vector::<f64>(count * a.ncols());
            let vector = || vec![f64::NAN; count * a.nrows()];
            for layout in [Layout::RowMajor, Layout::ColumnMajor] {
                let [mut single, mut expected, mut y] = [vector(), vector(), vector()];
                let x = Multivector::new(&x[..], count, layout);
                one.apply_multi(x, Multivector::new(&mut expected[..], count, layout)).unwrap();
                several.apply_multi(x, Multivector::new(&mut y[..], count, layout)).unwrap();
                let same = bits(&y) == bits(&expected);
                // On GPUs the kernel of several vectors is chosen by the matrix.
                assert!(same || on_gpus, "{name}, {count} vectors, {layout:?}");
                let op = SparseOp::auto(a).unwrap();
                op.apply_multi(x, Multivector::new(&mut single[..], count, layout)).unwrap();
                let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * (1.0 + a.abs());
                assert!(single.iter().zip(&y).all(close), "{name}, {count} vectors, {layout:?}");
            }
        }
    }
}

#[test]
fn a_given_partition_gives_every_row_the_same_bits() {
    let devices = devices(&[3]);
    let matrices = matrices::<f64>();
    for ((one, several), (name, a)) in pairs(&devices, &matrices) {
        let several = several.last().unwrap_or(one);
        let parts = several.len() as u32;
        let part_of_row: Vec<_> = (0..a.nrows() as u32).map(|row| row * 7 % parts).collect();
        let rows_of = |part| part_of_row.iter().filter(|&&of_row| of_row == part).count() as u64;
        let given: Vec<_> = (0..parts).map(rows_of).collect();
        let builder = DistributedBuilder::new(several).partition(part_of_row);
        let mut op = builder.build(a).unwrap();
        let found: Vec<_> = op.explain().parts.iter().map(|part| part.rows).collect();
        assert_eq!(found, given, "{name}");
        let (x, across) = (x_vector::<f64>(a.ncols()), x_vector::<f64>(a.nrows()));
        let (mut expected, mut y) = (vec![0.0; a.nrows()], vec![f64::NAN; a.nrows()]);
        let whole = if *one == Devices::cpu(1) {
            on(one, a)
        } else {
            DistributedBuilder::new(one).partition(vec![0; a.nrows()]).build(a).unwrap()
        };
        whole.apply(&x, &mut expected).unwrap();
        op.apply(&x, &mut y).unwrap();
        assert!(bits(&y) == bits(&expected), "{name}");
        let mut back = vec![f64::NAN; a.ncols()];
        op.apply_transpose(&across, &mut back).unwrap();
        let transposed = a.transpose();
        check(name, &transposed, &across, &back);
        let mut halved = a.clone();
        halved.values_mut().iter_mut().for_each(|value| *value *= 0.5);
        op.update_values(halved.values()).unwrap();
        op.apply(&x, &mut y).unwrap();
        expected.iter_mut().for_each(|sum| *sum *= 0.5);
        assert!(bits(&y) == bits(&expected), "{name}, updated");
    }
}

#[test]
fn new_values_have_the_bits_of_a_new_operator() {
    let devices = devices(&[3]);
    let matrices = matrices::<f64>();
    for ((one, several), (name, a)) in pairs(&devices, &matrices) {
        let mut other = a.clone();
        other.values_mut().reverse();
        let mut op = on(several.last().unwrap_or(one), a);
        let (x, across) = (x_vector::<f64>(a.ncols()), x_vector::<f64>(a.nrows()));
        let (mut y, mut back) = (vec![f64::NAN; a.nrows()], vec![f64::NAN; a.ncols()]);
        op.apply_transpose(&across, &mut back).unwrap();
        op.update_values(other.values()).unwrap();
        let new = on(one, &other);
        let (mut expected, mut expected_back) = (y.clone(), back.clone());
        op.apply(&x, &mut y).unwrap();
        new.apply(&x, &mut expected).unwrap();
        assert!(bits(&y) == bits(&expected), "{name}");
        op.apply_transpose(&across, &mut back).unwrap();
        new.apply_transpose(&across, &mut expected_back).unwrap();
        assert!(bits(&back) == bits(&expected_back), "{name}, transposed");
    }
}

#[test]
fn parts_of_equal_predicted_time_have_the_same_bits() {
    for (name, a) in matrices::<f64>() {
        let builder = DistributedBuilder::new(3).balance(Balance::PredictedTime);
        let op = builder.build(&a).unwrap();
        let (x, mut y) = (x_vector::<f64>(a.ncols()), vec![f64::NAN; a.nrows()]);
        let mut expected = y.clone();
        op.apply(&x, &mut y).unwrap();
        one_part(&a).apply(&x, &mut expected).unwrap();
        assert!(bits(&y) == bits(&expected), "{name}");
    }
}

#[test]
fn any_plan_gives_the_right_answer() {
    let devices = devices(&[3]);
    let matrices = matrices::<f32>();
    for ((one, several), (name, a)) in pairs(&devices, &matrices) {
        let several = several.last().unwrap_or(one);
        let op = DistributedBuilder::new(several).same_bits(false).build(a).unwrap();
        let (x, mut y) = (x_vector::<f32>(a.ncols()), vec![f32::NAN; a.nrows()]);
        op.apply(&x, &mut y).unwrap();
        check(name, a, &x, &y);
    }
}

#[test]
fn parts_on_gpus_have_packed_sell_with_the_bits_of_one_gpu() {
    let Some(Device::Cuda(_)) = sparseop_testkit::gpu() else { return };
    for spec in ["stencil27,n=64", "stencil27,n=64,values=laplacian"] {
        let a: CsrMatrix<f32> = common::gallery(spec);
        let x = x_vector::<f32>(a.ncols());
        let product = |gpus: &[Device]| {
            let op = on(&Devices::from(gpus.to_vec()), &a);
            let explanation = op.explain();
            let plans = || explanation.parts.iter().flat_map(|part| &part.plans);
            let sliced = |plan: &String| plan.is_empty() || plan.starts_with("psell");
            assert!(plans().all(sliced), "{spec}: {explanation}");
            let mut y = vec![f32::NAN; a.nrows()];
            op.apply(&x, &mut y).unwrap();
            check(spec, &a, &x, &y);
            bits(&y)
        };
        let gpus = Device::gpus();
        let expected = product(&gpus[..1]);
        for count in 2..=gpus.len() {
            assert!(product(&gpus[..count]) == expected, "{spec} on {count} GPUs");
        }
    }
}

#[test]
fn bad_input_is_refused_and_the_operator_stays_usable() {
    let a = matrices::<f64>().swap_remove(0).1;
    let n = a.nrows();
    let mut op = DistributedOp::auto(&a, 3).unwrap();
    let (x, mut y) = (vec![1.0; n], vec![7.0; n]);
    let kinds = [
        op.apply(&x[1..], &mut y).unwrap_err().kind(),
        op.apply(&x, &mut y[1..]).unwrap_err().kind(),
        op.apply_transpose(&x[1..], &mut y).unwrap_err().kind(),
        op.update_values(&[1.0]).unwrap_err().kind(),
        op.apply_multi(Multivector::row_major(&x, 2), Multivector::row_major(&mut y, 2))
            .unwrap_err()
            .kind(),
    ];
    assert_eq!(kinds, [ErrorKind::WrongLength; 5]);
    assert_eq!(y, vec![7.0; n], "untouched");
    op.apply(&x, &mut y).unwrap();
    let none = DistributedOp::auto(&a, 0).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::InvalidArgument);
    let short = DistributedBuilder::new(2).partition(vec![0; 3]).build(&a).unwrap_err();
    assert!(short.to_string().contains("parts of 3 rows, but the matrix has"), "{short}");
    let beyond = DistributedBuilder::new(2).partition(vec![2; n]).build(&a).unwrap_err();
    assert!(beyond.to_string().contains("row 0 is in part 2"), "{beyond}");
    let limit = sparseop::SparseOpBuilder::new().memory_limit(8);
    let refused = DistributedBuilder::new(2).operator(limit).build(&a).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory, "{refused}");
}

#[test]
fn the_explanation_has_every_part() {
    let a: CsrMatrix<f64> = matrices().swap_remove(0).1;
    let op = DistributedOp::auto(&a, 4).unwrap();
    let explanation = op.explain();
    assert_eq!(explanation.parts.len(), 4);
    assert_eq!(explanation.parts.iter().map(|part| part.nnz).sum::<u64>(), a.nnz() as u64);
    // Rows of a grid are coupled to their neighbours, 8 bytes for each point of a line.
    assert_eq!(explanation.parts[1].neighbours, 2);
    assert_eq!(explanation.parts[1].halo_bytes, 2 * 40 * 8, "{explanation}");
    assert!(explanation.imbalance() < 1.1, "{explanation}");
    let text = explanation.to_string();
    assert!(text.starts_with("1600 x 1600, 7840 entries in 4 parts"), "{text}");
    assert_eq!(text.lines().count(), 6, "{text}");
}

#[test]
fn one_operator_serves_many_threads() {
    let a: CsrMatrix<f64> = matrices().swap_remove(0).1;
    for (one, several) in devices(&[3]) {
        serves_many_threads(&on(several.last().unwrap_or(&one), &a), &a);
    }
}

fn serves_many_threads(op: &DistributedOp<f64>, a: &CsrMatrix<f64>) {
    let x = x_vector::<f64>(a.ncols());
    let mut expected = vec![0.0; a.nrows()];
    op.apply(&x, &mut expected).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let mut y = vec![0.0; a.nrows()];
                    op.apply(&x, &mut y).unwrap();
                    assert!(bits(&y) == bits(&expected));
                }
            });
        }
    });
}
