//! Calls of the GPU driver that fail in one of two parts, and GPUs that are lost: a typed error or
//! a right answer, no wait without an end, and never a wrong product afterwards. One GPU is counted
//! twice.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "../../tests/driver_faults/library.rs"]
#[allow(dead_code)]
mod library;

use library::{Faults, Results, Trial, in_process_with_library};
use sparseop::matrix::{CsrMatrix, gallery};
use sparseop::{Device, Error, ErrorKind, SparseOpBuilder};
use sparseop_distributed::{DistributedBuilder, DistributedOp};
use sparseop_solvers::{Method, Settings, SolverBuilder};
use std::env;
use std::time::Duration;

/// Failures of each kind in the whole work; with `SPARSEOP_TEST_LARGE` every call fails.
const FAILURES: usize = 100;

/// Time limits of parts that are built, of those that work, and of the first ones, whose kernels
/// are compiled.
const BUILDING: Duration = Duration::from_secs(5);
const WORKING: Duration = Duration::from_secs(1);
const COMPILING: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    Settings { max_iterations: 40, ..Settings::default() }
}

/// Builds an operator.
fn build<'a>(
    gpus: &[Device],
    limit: Duration,
    a: &CsrMatrix<f64>,
    op: &'a mut Option<DistributedOp<f64>>,
) -> Result<&'a mut DistributedOp<f64>, Error> {
    let builder = DistributedBuilder::new(gpus.to_vec()).time_limit(limit);
    Ok(op.insert(builder.build(a)?))
}

fn multiply(op: &DistributedOp<f64>) -> Result<Vec<f64>, Error> {
    let mut y = vec![0.0; op.nrows()];
    op.apply(&vec![1.0; op.ncols()], &mut y).map(|()| y)
}

/// Builds an operator and uses it. The results that are complete are in `done`.
fn work(
    gpus: &[Device],
    limit: Duration,
    a: &CsrMatrix<f64>,
    op: &mut Option<DistributedOp<f64>>,
    done: &mut Results,
) -> Result<(), Error> {
    let op = build(gpus, limit, a, op)?;
    done.push(multiply(op)?);
    let (x, mut y) = (vec![1.0; a.nrows()], vec![0.0; a.ncols()]);
    op.apply_transpose(&x, &mut y)?;
    done.push(y.clone());
    op.update_values(a.values())?;
    done.push(multiply(op)?);
    op.solve(Method::Cg, settings(), true, &x, &mut y)?;
    done.push(y);
    Ok(())
}

fn every_failure(faults: &Faults) {
    let gpus = &Device::gpus()[..2];
    let spec: gallery::Spec = "poisson3d,n=12,values=laplacian".parse().unwrap();
    let a: CsrMatrix<f64> = spec.generate().unwrap();
    let mut y = vec![0.0; a.nrows()];
    let cpu = SparseOpBuilder::new().device(Device::Cpu).build(&a).unwrap();
    cpu.apply(&vec![1.0; a.ncols()], &mut y).unwrap();
    // Loads the kernels of one part.
    for gpu in gpus {
        let op = SparseOpBuilder::new().device(gpu.clone()).build(&a).unwrap();
        let solver = SolverBuilder::new(Method::Cg).settings(settings());
        solver.build(&op).unwrap().solve(&y, &mut vec![0.0; a.ncols()]).unwrap();
    }
    let kinds = &[ErrorKind::OutOfMemory, ErrorKind::Gpu, ErrorKind::Communication];
    // The first time memory for other GPUs and their kernels are missing.
    let right = vec![y];
    let trial = Trial { name: "building", right: &right, kinds, failures: None, gpus: 2 };
    trial.run(faults, |op, _| build(gpus, BUILDING, &a, op).map(drop), multiply);
    let mut right = Results::new();
    // It loads further kernels.
    work(gpus, COMPILING, &a, &mut None, &mut right).unwrap();
    let failures = env::var_os("SPARSEOP_TEST_LARGE").is_none().then_some(FAILURES);
    let trial = Trial { name: "working", right: &right, failures, ..trial };
    trial.run(faults, |op, done| work(gpus, WORKING, &a, op, done), multiply);
}

#[test]
fn every_call_of_the_driver_may_fail_in_one_of_two_parts() {
    let test = "every_call_of_the_driver_may_fail_in_one_of_two_parts";
    in_process_with_library(test, &[("SPARSEOP_GPU_INSTANCES", "2")], every_failure);
}
