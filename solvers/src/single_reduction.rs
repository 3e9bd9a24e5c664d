//! Conjugate gradients with one reduction per iteration.

use super::driver::{BREAKDOWN, INDEFINITE, NOT_FINITE, OWN, RR, RZ, Workspace, ZERO, counted};
use super::system::{Iteration, System, axpy, copy, scaled};
use sparseop::device::fused::{Coefficient, Combine, Dots, Instruction, Program, Step};
use sparseop::{DeviceVec, Error, Scalar};

/// u·Au and, in the next register, u·r, where u is the preconditioned residual.
const UW: u16 = OWN;
const UR: u16 = OWN + 1;
/// Step length along the next direction, and along the present one.
const ALPHA: u16 = OWN + 2;
const LAST: u16 = OWN + 3;
const BETA: u16 = OWN + 4;
const RHO: u16 = OWN + 5;
/// ‖r‖² / u·r at the start.
const SCALE: u16 = OWN + 6;
const CURVATURE: u16 = OWN + 7;
/// Minus the part of u·Au below which a curvature is the error of a difference, and their product.
const ROUNDING: u16 = OWN + 8;
const MIN: u16 = OWN + 9;

/// Conjugate gradients by A. Chronopoulos and C. W. Gear, s-step iterative methods for symmetric
/// linear systems (1989), with s = 1: the products A p follow by a recurrence from A u, so that
/// both inner products of an iteration are taken at the same time. 13 reads and writes of a vector
/// per iteration besides the product, and 5 more with a diagonal. `x` is updated one iteration
/// late, in the pass that computes the next direction, because both read `p`.
///
/// With a preconditioner the residual of an iteration is that of the norm √(u·r), scaled to
/// ‖r‖ at the start: a third inner product would be a second reduction.
#[derive(Debug)]
pub(super) struct SingleReductionCg<T: Scalar> {
    /// The direction, and its product.
    p: DeviceVec<T>,
    s: DeviceVec<T>,
    /// The preconditioned residual, if it is not the residual, and the product with it.
    u: Option<DeviceVec<T>>,
    w: DeviceVec<T>,
    first: Program,
    conclude: Program,
}

impl<T: Scalar> SingleReductionCg<T> {
    pub(super) fn new(workspace: &mut Workspace<'_, T>) -> Result<Self, Error> {
        // The curvature p·Ap is a difference, which rounding alone may make negative.
        let steps = [
            Instruction::StopUnlessFinite(NOT_FINITE, UW),
            Instruction::StopUnlessFinite(NOT_FINITE, UR),
            Instruction::StopUnlessAbove(INDEFINITE, UW, ZERO),
            Instruction::StopUnlessAbove(INDEFINITE, UR, ZERO),
            Instruction::Div(BETA, UR, RHO),
            Instruction::Add(RHO, UR, ZERO),
            Instruction::Div(CURVATURE, UR, ALPHA),
            Instruction::Mul(CURVATURE, CURVATURE, BETA),
            Instruction::Sub(CURVATURE, UW, CURVATURE),
            Instruction::Mul(MIN, UW, ROUNDING),
            Instruction::StopUnlessAbove(INDEFINITE, CURVATURE, MIN),
            Instruction::StopUnlessAbove(BREAKDOWN, CURVATURE, ZERO),
            Instruction::Div(ALPHA, UR, CURVATURE),
        ];
        let mut conclude =
            vec![Instruction::Add(LAST, ALPHA, ZERO), Instruction::Mul(RR, UR, SCALE)];
        conclude.extend(counted(RR));
        conclude.extend(steps);
        Ok(Self {
            p: workspace.zeros()?,
            s: workspace.zeros()?,
            u: workspace.preconditioned.then(|| workspace.zeros()).transpose()?,
            w: workspace.zeros()?,
            first: workspace.code.add(&steps),
            conclude: workspace.code.add(&conclude),
        })
    }

    /// Multiplies by the preconditioned residual, and computes the next coefficients.
    fn multiply(&mut self, system: &mut System<'_, T>, then: Program) -> Result<(), Error> {
        let System { op, passes, diagonal, r, .. } = system;
        let u = match &mut self.u {
            Some(u) => {
                passes.combine(u, scaled(Coefficient::ONE, r, diagonal.as_ref()))?;
                &*u
            }
            None => &*r,
        };
        op.apply_device(passes.stream(), u, &mut self.w)?;
        let (with, and) = (Some(&self.w), Some(&*r));
        passes.dots(Dots { of: u, with, and, at: UW, then, backward: true })
    }
}

impl<T: Scalar> Iteration<T> for SingleReductionCg<T> {
    fn start(&mut self, system: &mut System<'_, T>, registers: &mut [f64]) -> Result<(), Error> {
        let scale = registers[usize::from(RR)] / registers[usize::from(RZ)];
        // Divisions by 0 give 0: the first direction is the residual.
        let values = [(ALPHA, 0.0), (LAST, 0.0), (RHO, 0.0), (SCALE, scale), (ROUNDING, -1e-4)];
        system.set(registers, &values)?;
        system.passes.combine(&mut self.p, Combine::new())?;
        system.passes.combine(&mut self.s, Combine::new())?;
        self.multiply(system, self.first)
    }

    fn iterate(&mut self, system: &mut System<'_, T>, _: usize) -> Result<(), Error> {
        let System { passes, diagonal, x, r, .. } = system;
        let [along, keep] = [LAST, BETA].map(Coefficient::plus);
        let (with, diagonal) = (Coefficient::ONE, diagonal.as_ref());
        passes.step(x, &mut self.p, Step { along, with, r, diagonal, keep, backward: true })?;
        passes.combine(&mut self.s, Combine { keep: Some(keep), ..copy(&self.w) })?;
        let shorter = Combine { backward: true, ..axpy(Coefficient::minus(ALPHA), &self.s) };
        passes.combine(r, shorter)?;
        self.multiply(system, self.conclude)
    }

    fn finish(&mut self, system: &mut System<'_, T>, status: u16) -> Result<(), Error> {
        match status {
            NOT_FINITE => Ok(()),
            // The residual is that of the next `x` whenever the iteration ends.
            _ => system.last_step(Coefficient::plus(LAST), &self.p),
        }
    }
}
