//! Tests of overlapping launches: a product sees all results of the work enqueued directly before
//! it.

use super::conformance::scattered;
use super::devices::gpu;
use super::x_vector;
use crate::device::{Device, DeviceVec, Stream};
use crate::matrix::CsrMatrix;
use crate::{Scalar, SparseOp, SparseOpBuilder, Tuning};

/// Number of products of a chain; each multiplies the result of the previous one.
const CHAIN: usize = 10;

/// Number of repetitions of a chain, alternating between two start vectors.
const ROUNDS: usize = 30;

/// A chain of products on one stream.
struct Chain<T: Scalar> {
    stream: Stream,
    starts: [DeviceVec<T>; 2],
    /// Each is written by every other launch, and read by the ones between: a launch reads the
    /// vector that the previous launch writes, and writes the one that it reads.
    between: [DeviceVec<T>; 2],
}

impl<T: Scalar> Chain<T> {
    fn new(device: &Device, len: usize) -> Self {
        let start = |shift| {
            let mut x = x_vector::<T>(len);
            x.rotate_left(shift);
            DeviceVec::from_slice(device, &x).unwrap()
        };
        Self {
            stream: Stream::new(device).unwrap(),
            starts: [start(0), start(1)],
            between: [0, 1].map(|_| DeviceVec::zeros(device, len).unwrap()),
        }
    }

    /// Bits of the last product. With `waiting`, each product waits for the previous one; otherwise
    /// they are enqueued at once.
    fn bits(&mut self, op: &SparseOp<T>, start: usize, waiting: bool) -> Vec<u64> {
        for k in 0..CHAIN {
            let [one, other] = &mut self.between;
            let (done, y) = if k % 2 == 0 { (&*other, one) } else { (&*one, other) };
            let x = if k == 0 { &self.starts[start] } else { done };
            op.apply_device(&self.stream, x, y).unwrap();
            if waiting {
                self.stream.synchronize().unwrap();
            }
        }
        self.stream.synchronize().unwrap();
        self.between[(CHAIN - 1) % 2].to_vec().unwrap().into_iter().map(Scalar::bits).collect()
    }
}

/// Plans whose launches overlap.
const PLANS: [&str; 5] = [
    "csr(balanced)",
    "psell(sigma:512,group:4,split:64)",
    "csr(vector:4)",
    "csr(scalar)",
    "psell(sigma:1)",
];

/// Number of plans in [`PLANS`] that do not process a long row sequentially; they come first.
const FOR_LONG_ROWS: usize = 2;

/// Square matrices and plans for them: a matrix whose product is as short as a launch, one with
/// rows that chunks cut once or twice each, and one with rows cut into more chunks or pieces than a
/// warp has lanes.
fn cases<T: Scalar>() -> Vec<(CsrMatrix<T>, &'static [&'static str])> {
    let small = scattered(700, 700, |row| row % 19);
    let cut = scattered(3000, 3000, |row| if row % 40 == 0 { 2500 } else { row % 19 });
    let long =
        scattered(30_000, 30_000, |row| if row == 9 || row == 20_000 { 150_000 } else { row % 7 });
    let mut cases = vec![(small, &PLANS[..]), (cut, &PLANS), (long, &PLANS[..FOR_LONG_ROWS])];
    for (a, _) in &mut cases {
        // Scaled so that ten products neither overflow nor vanish.
        a.values_mut().iter_mut().for_each(|value| *value = *value * T::from_f64(0.125));
    }
    cases
}

fn operator<T: Scalar>(gpu: &Device, plan: &str, a: &CsrMatrix<T>) -> SparseOp<T> {
    let tuning = Tuning::Fixed(plan.parse().unwrap());
    SparseOpBuilder::new().device(gpu.clone()).tuning(tuning).updatable(true).build(a).unwrap()
}

fn chains<T: Scalar>(gpu: &Device) {
    for (a, plans) in cases::<T>() {
        let mut chain = Chain::new(gpu, a.nrows());
        for plan in plans {
            let op = operator(gpu, plan, &a);
            let expected = [0, 1].map(|start| chain.bits(&op, start, true));
            assert!(expected[0] != expected[1], "{plan}: both starts end alike");
            for round in 0..ROUNDS {
                let same = chain.bits(&op, round % 2, false) == expected[round % 2];
                assert!(same, "{plan}, {} entries in {}, round {round}", a.nnz(), T::KIND);
            }
        }
    }
}

#[test]
fn products_of_previous_products() {
    let Some(gpu) = gpu() else { return };
    chains::<f32>(gpu);
    chains::<f64>(gpu);
}

#[test]
fn products_with_values_that_have_just_been_updated() {
    let Some(gpu) = gpu() else { return };
    for (a, plans) in cases::<f64>() {
        let other: Vec<f64> = a.values().iter().map(|value| value * 0.5 + 0.01).collect();
        let values = [a.values(), &other].map(|values| DeviceVec::from_slice(gpu, values).unwrap());
        let mut chain = Chain::new(gpu, a.nrows());
        for plan in plans {
            let mut op = operator(gpu, plan, &a);
            let expected = [0, 1].map(|which| {
                op.update_values_device(&chain.stream, &values[which]).unwrap();
                chain.stream.synchronize().unwrap();
                chain.bits(&op, 0, true)
            });
            assert!(expected[0] != expected[1], "{plan}: both values end alike");
            for round in 0..ROUNDS {
                op.update_values_device(&chain.stream, &values[round % 2]).unwrap();
                let same = chain.bits(&op, 0, false) == expected[round % 2];
                assert!(same, "{plan}, {} entries, round {round}", a.nnz());
            }
        }
    }
}
