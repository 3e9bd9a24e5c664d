//! Stabilised bi-conjugate gradients.

use super::driver::{BREAKDOWN, NOT_FINITE, OWN, RR, RZ, Workspace, ZERO, counted};
use super::system::{Iteration, System, axpy, copy, scaled};
use sparseop::device::fused::{Coefficient, Combine, Dots, Instruction, Partner, Program};
use sparseop::{DeviceVec, Error, Scalar};

/// Σ r̂ v, and the first of the sums for [`OMEGA`].
const RV: u16 = OWN;
const TT: u16 = OWN + 1;
const ALPHA: u16 = OWN + 2;
const BETA: u16 = OWN + 3;
const RHO: u16 = OWN + 4;
const OMEGA: u16 = OWN + 5;
/// β ω
const GAMMA: u16 = OWN + 6;
/// Squared cosine below which two vectors count as orthogonal.
const NOTHING: u16 = OWN + 7;
/// ‖r̂‖²
const SHADOW: u16 = OWN + 8;
const A: u16 = OWN + 9;
const B: u16 = OWN + 10;

/// BiCGSTAB, with two products per iteration. `r` is also the `s` of the first half.
#[derive(Debug)]
pub(super) struct BiCgStab<T: Scalar> {
    shadow: DeviceVec<T>,
    p: DeviceVec<T>,
    v: DeviceVec<T>,
    t: DeviceVec<T>,
    /// Preconditioned `p` and `s`, if there is a preconditioner.
    scaled: Option<[DeviceVec<T>; 2]>,
    step_length: Program,
    stabilise: Program,
    conclude: Program,
}

impl<T: Scalar> BiCgStab<T> {
    pub(super) fn new(workspace: &mut Workspace<'_, T>) -> Result<Self, Error> {
        let code = &mut workspace.code;
        let step_length = code.add(&[
            Instruction::StopUnlessFinite(NOT_FINITE, RV),
            Instruction::Mul(A, RV, RV),
            Instruction::StopAtMost(BREAKDOWN, A, ZERO),
            Instruction::Div(ALPHA, RHO, RV),
        ]);
        // 0 if t is 0: s is also 0, or the matrix is singular.
        let stabilise = code
            .add(&[Instruction::StopUnlessFinite(NOT_FINITE, TT), Instruction::Div(OMEGA, RV, TT)]);
        let mut conclude = counted(RR).to_vec();
        conclude.extend([
            // If r is orthogonal to its shadow, there is no next direction.
            Instruction::Mul(A, RZ, RZ),
            Instruction::Mul(B, RR, SHADOW),
            Instruction::Mul(B, B, NOTHING),
            Instruction::StopAtMost(BREAKDOWN, A, B),
            Instruction::Mul(A, OMEGA, OMEGA),
            Instruction::StopAtMost(BREAKDOWN, A, ZERO),
            Instruction::Div(BETA, RZ, RHO),
            Instruction::Div(A, ALPHA, OMEGA),
            Instruction::Mul(BETA, BETA, A),
            Instruction::Mul(GAMMA, BETA, OMEGA),
            Instruction::Add(RHO, RZ, ZERO),
        ]);
        let conclude = code.add(&conclude);
        let zeros = || workspace.zeros();
        let scaled = if workspace.preconditioned { Some([zeros()?, zeros()?]) } else { None };
        Ok(Self {
            shadow: zeros()?,
            p: zeros()?,
            v: zeros()?,
            t: zeros()?,
            scaled,
            step_length,
            stabilise,
            conclude,
        })
    }
}

impl<T: Scalar> Iteration<T> for BiCgStab<T> {
    fn start(&mut self, system: &mut System<'_, T>, registers: &mut [f64]) -> Result<(), Error> {
        let (rr, nothing) = (registers[usize::from(RR)], T::EPSILON.powi(2));
        let values = [(RHO, rr), (SHADOW, rr), (NOTHING, nothing), (BETA, 0.0), (GAMMA, 0.0)];
        system.set(registers, &values)?;
        system.passes.combine(&mut self.shadow, copy(&system.r))?;
        system.passes.combine(&mut self.p, Combine::new())?;
        system.passes.combine(&mut self.v, Combine::new())
    }

    fn iterate(&mut self, system: &mut System<'_, T>, _: usize) -> Result<(), Error> {
        let System { op, passes, diagonal, x, r, .. } = system;
        let Self { shadow, p, v, t, scaled: preconditioned, .. } = self;
        let diagonal = diagonal.as_ref();
        let (plus, minus) = (Coefficient::plus, Coefficient::minus);
        let next = Combine { keep: Some(plus(BETA)), and: Some((minus(GAMMA), &*v)), ..copy(r) };
        passes.combine(p, next)?;
        if let Some([direction, _]) = preconditioned {
            passes.combine(direction, scaled(Coefficient::ONE, p, diagonal))?;
        }
        let direction = preconditioned.as_ref().map_or(&*p, |[direction, _]| direction);
        op.apply_device(passes.stream(), direction, v)?;
        let (with, then) = (Some(&*shadow), self.step_length);
        passes.dots(Dots { of: v, with, and: None, at: RV, then, backward: true })?;
        passes.combine(r, axpy(minus(ALPHA), v))?;
        if let Some([_, half]) = preconditioned {
            passes.combine(half, scaled(Coefficient::ONE, r, diagonal))?;
        }
        let (direction, half) =
            preconditioned.as_ref().map_or((&*p, &*r), |[direction, half]| (direction, half));
        op.apply_device(passes.stream(), half, t)?;
        let (with, and, then) = (Some(&*r), Some(&*t), self.stabilise);
        passes.dots(Dots { of: t, with, and, at: RV, then, backward: true })?;
        let along = Combine { and: Some((plus(OMEGA), half)), ..axpy(plus(ALPHA), direction) };
        passes.combine(x, along)?;
        let shorter = Combine {
            with: Some(shadow),
            sums: [Partner::Itself, Partner::Other],
            at: RR,
            then: self.conclude,
            backward: true,
            ..axpy(minus(OMEGA), t)
        };
        passes.combine(r, shorter)
    }
}
