//! Number of reductions over all parts, of which each waits for the slowest part.

use super::tests::{norm, poisson, product};
use super::*;
use sparseop::device::fused::SharedSums;
use sparseop::matrix::{CsrMatrix, gallery};
use sparseop::{Device, DeviceVec, SparseOp, SparseOpBuilder, Stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An operator whose sums are counted.
#[derive(Debug)]
struct Counted {
    op: SparseOp<f64>,
    sums: Arc<Reductions>,
}

#[derive(Debug, Default)]
struct Reductions(AtomicUsize);

impl SharedSums for Reductions {
    fn block(&self) -> usize {
        1024
    }

    fn total(&self, blocks: &[[f64; 2]]) -> Result<[f64; 2], Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(blocks.iter().fold([0.0; 2], |[a, b], [c, d]| [a + c, b + d]))
    }
}

impl SystemOperator<f64> for Counted {
    fn shape(&self) -> (usize, usize) {
        (self.op.nrows(), self.op.ncols())
    }

    fn device(&self) -> &Device {
        self.op.device()
    }

    fn apply_device(
        &self,
        stream: &Stream,
        x: &DeviceVec<f64>,
        y: &mut DeviceVec<f64>,
    ) -> Result<(), Error> {
        self.op.apply_device(stream, x, y)
    }

    fn shared_sums(&self) -> Option<Arc<dyn SharedSums>> {
        Some(self.sums.clone())
    }
}

/// Report of a solve of A x = A 1, and the number of its reductions.
fn solve(a: &CsrMatrix<f64>, method: Method, jacobi: bool) -> (Report, usize) {
    let op = SparseOpBuilder::new().device(Device::Cpu).deterministic(true).build(a).unwrap();
    let op = Counted { op, sums: Arc::default() };
    let (b, mut x) = (product(a, &vec![1.0; a.ncols()]), vec![0.0; a.ncols()]);
    let mut builder = SolverBuilder::new(method);
    if jacobi {
        builder = builder.jacobi(Jacobi::of(a.view()).unwrap());
    }
    let report = builder.build(&op).unwrap().solve(&b, &mut x).unwrap().converged().unwrap();
    let far = norm(x.iter().map(|x| x - 1.0)) / norm(x.iter().copied());
    assert!(far < 1e-5, "{far} {report}");
    (report, op.sums.0.load(Ordering::Relaxed))
}

#[test]
fn an_iteration_has_one_reduction_in_place_of_two() {
    let stencil = "stencil27,n=12,values=laplacian".parse::<gallery::Spec>().unwrap();
    for a in [poisson(), stencil.generate().unwrap()] {
        for jacobi in [false, true] {
            let (plain, two) = solve(&a, Method::Cg, jacobi);
            let (single, one) = solve(&a, Method::SingleReductionCg, jacobi);
            // Besides: the norm of b, residuals at the start and at the end, the first steps.
            let begun = 3 + 3 * (single.restarts + 1);
            assert!(two >= 2 * plain.iterations, "{two} in {plain}");
            assert!(one <= single.iterations + begun, "{one} in {single}");
            let most = plain.iterations + plain.iterations / 10 + 3;
            assert!(single.iterations <= most, "{single} for {plain}");
            if !jacobi && single.restarts == 0 {
                let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-3 * b;
                let same = single.history.iter().zip(&plain.history).take(20).all(near);
                assert!(same, "{:?} {:?}", single.history, plain.history);
            }
        }
    }
}
