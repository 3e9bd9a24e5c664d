//! Stabilised bi-conjugate gradients.

use super::driver::{BREAKDOWN, NOT_FINITE, OWN, RR, RZ, ZERO, counted};
use super::system::{Iteration, System};
use sparseop::device::Device;
use sparseop::device::fused::{
    Code, Coefficient, Combine, Dots, Instruction, Partner, Passes, Program,
};
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
    pub(super) fn new(
        device: &Device,
        n: usize,
        preconditioned: bool,
        code: &mut Code,
    ) -> Result<Self, Error> {
        let zeros = || DeviceVec::zeros(device, n);
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
        let scaled = if preconditioned { Some([zeros()?, zeros()?]) } else { None };
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
    fn start(
        &mut self,
        system: &mut System<'_, T>,
        passes: &mut Passes<T>,
        registers: &mut Vec<f64>,
    ) -> Result<(), Error> {
        let rr = registers[usize::from(RR)];
        for (register, value) in
            [(RHO, rr), (SHADOW, rr), (NOTHING, T::EPSILON.powi(2)), (BETA, 0.0), (GAMMA, 0.0)]
        {
            registers[usize::from(register)] = value;
        }
        passes.write(registers)?;
        passes.combine(
            &mut self.shadow,
            Combine { add: Some((Coefficient::ONE, &system.r)), ..Combine::new() },
        )?;
        passes.combine(&mut self.p, Combine::new())?;
        passes.combine(&mut self.v, Combine::new())
    }

    fn batch(
        &mut self,
        system: &mut System<'_, T>,
        passes: &mut Passes<T>,
        _: usize,
        every: usize,
    ) -> Result<(), Error> {
        for _ in 0..every {
            self.once(system, passes)?;
        }
        Ok(())
    }
}

impl<T: Scalar> BiCgStab<T> {
    fn once(&mut self, system: &mut System<'_, T>, passes: &mut Passes<T>) -> Result<(), Error> {
        let System { op, stream, diagonal, x, r, .. } = system;
        let Self { shadow, p, v, t, scaled, step_length, stabilise, conclude } = self;
        let diagonal = diagonal.as_ref();
        let (plus, minus, keep) = (Coefficient::plus, Coefficient::minus, Some(Coefficient::ONE));
        let precondition = |passes: &mut Passes<T>, to: &mut DeviceVec<T>, from: &DeviceVec<T>| {
            passes.combine(
                to,
                Combine {
                    add: Some((Coefficient::ONE, from)),
                    diagonal,
                    scaled: true,
                    ..Combine::new()
                },
            )
        };
        let next = Combine {
            keep: Some(plus(BETA)),
            add: Some((Coefficient::ONE, &*r)),
            and: Some((minus(GAMMA), &*v)),
            ..Combine::new()
        };
        passes.combine(p, next)?;
        if let Some([direction, _]) = scaled {
            precondition(passes, direction, p)?;
        }
        op.apply_device(stream, scaled.as_ref().map_or(&*p, |[direction, _]| direction), v)?;
        passes.dots(Dots {
            of: v,
            with: Some(shadow),
            and: None,
            at: RV,
            then: *step_length,
            backward: true,
        })?;
        passes.combine(r, Combine { keep, add: Some((minus(ALPHA), &*v)), ..Combine::new() })?;
        if let Some([_, half]) = scaled {
            precondition(passes, half, r)?;
        }
        let (direction, half) =
            scaled.as_ref().map_or((&*p, &*r), |[direction, half]| (direction, half));
        op.apply_device(stream, half, t)?;
        passes.dots(Dots {
            of: t,
            with: Some(r),
            and: Some(t),
            at: RV,
            then: *stabilise,
            backward: true,
        })?;
        let along = Combine {
            keep,
            add: Some((plus(ALPHA), direction)),
            and: Some((plus(OMEGA), half)),
            ..Combine::new()
        };
        passes.combine(x, along)?;
        let shorter = Combine {
            keep,
            add: Some((minus(OMEGA), &*t)),
            with: Some(shadow),
            sums: [Partner::Itself, Partner::Other],
            at: RR,
            then: *conclude,
            backward: true,
            ..Combine::new()
        };
        passes.combine(r, shorter)
    }
}
