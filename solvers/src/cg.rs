//! Conjugate gradients.

use super::driver::{
    CONVERGED, EXHAUSTED, INDEFINITE, ITERATIONS, NOT_FINITE, OWN, RR, RZ, SECOND, THIRD,
    Workspace, ZERO, counted,
};
use super::system::{Iteration, System, axpy, residual_sums, scaled};
use sparseop::device::fused::{Coefficient, Combine, Dots, Instruction, Program, Step};
use sparseop::{DeviceVec, Error, Scalar};

const PQ: u16 = OWN;
const ALPHA: u16 = OWN + 1;
const BETA: u16 = OWN + 2;
const RHO: u16 = OWN + 3;

/// Conjugate gradients, with ten reads and writes of a vector per iteration besides the product,
/// and two of the diagonal if there is one. `x` is updated after the residual is tested, in the
/// pass that computes the next direction, because both read `p`.
#[derive(Debug)]
pub(super) struct Cg<T: Scalar> {
    p: DeviceVec<T>,
    q: DeviceVec<T>,
    step_length: Program,
    conclude: Program,
}

impl<T: Scalar> Cg<T> {
    pub(super) fn new(workspace: &mut Workspace<'_, T>) -> Result<Self, Error> {
        let step_length = workspace.code.add(&[
            Instruction::StopUnlessFinite(NOT_FINITE, PQ),
            Instruction::StopUnlessAbove(INDEFINITE, PQ, ZERO),
            Instruction::StopUnlessAbove(INDEFINITE, RHO, ZERO),
            Instruction::Div(ALPHA, RHO, PQ),
        ]);
        let rho = if workspace.preconditioned { RZ } else { RR };
        let mut conclude = vec![
            Instruction::Div(BETA, rho, RHO),
            Instruction::Add(RHO, rho, ZERO),
            // The coefficients alpha and beta of all iterations are kept: eigenvalues are estimated
            // from them.
            Instruction::Push(SECOND, ALPHA, ITERATIONS),
            Instruction::Push(THIRD, BETA, ITERATIONS),
        ];
        conclude.extend(counted(RR));
        let conclude = workspace.code.add(&conclude);
        Ok(Self { p: workspace.zeros()?, q: workspace.zeros()?, step_length, conclude })
    }
}

impl<T: Scalar> Iteration<T> for Cg<T> {
    fn start(&mut self, system: &mut System<'_, T>, registers: &mut [f64]) -> Result<(), Error> {
        system.set(registers, &[(RHO, registers[usize::from(RZ)])])?;
        let first = scaled(Coefficient::ONE, &system.r, system.diagonal.as_ref());
        system.passes.combine(&mut self.p, first)
    }

    fn iterate(&mut self, system: &mut System<'_, T>, _: usize) -> Result<(), Error> {
        let System { op, passes, diagonal, x, r, .. } = system;
        let (diagonal, Self { p, q, step_length, conclude }) = (diagonal.as_ref(), self);
        op.apply_device(passes.stream(), p, q)?;
        // Alternating directions: elements that the preceding pass has left in the cache come
        // first.
        let (with, then) = (Some(&*q), *step_length);
        passes.dots(Dots { of: p, with, and: None, at: PQ, then, backward: true })?;
        let shorter = Combine {
            diagonal,
            sums: residual_sums(diagonal),
            at: RR,
            then: *conclude,
            ..axpy(Coefficient::minus(ALPHA), q)
        };
        passes.combine(r, shorter)?;
        let [along, keep] = [ALPHA, BETA].map(Coefficient::plus);
        let with = Coefficient::ONE;
        passes.step(x, p, Step { along, with, r, diagonal, keep, backward: true })
    }

    fn finish(&mut self, system: &mut System<'_, T>, status: u16) -> Result<(), Error> {
        finish_step(system, Coefficient::plus(ALPHA), &self.p, status)
    }
}

/// Adds the last step to `x` if the iteration ended before the pass that would have done it.
pub(super) fn finish_step<T: Scalar>(
    system: &mut System<'_, T>,
    along: Coefficient,
    p: &DeviceVec<T>,
    status: u16,
) -> Result<(), Error> {
    match status {
        CONVERGED | EXHAUSTED => system.last_step(along, p),
        _ => Ok(()),
    }
}
