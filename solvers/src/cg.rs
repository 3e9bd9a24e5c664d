//! Conjugate gradients.

use super::driver::{
    CONVERGED, EXHAUSTED, INDEFINITE, ITERATIONS, NOT_FINITE, OWN, RR, RZ, SECOND, THIRD, ZERO,
    counted,
};
use super::system::{Iteration, System};
use sparseop::device::Device;
use sparseop::device::fused::{
    Code, Coefficient, Combine, Dots, Instruction, Partner, Passes, Program, Step,
};
use sparseop::{DeviceVec, Error, Scalar};

const PQ: u16 = OWN;
const ALPHA: u16 = OWN + 1;
const BETA: u16 = OWN + 2;
const RHO: u16 = OWN + 3;

/// Conjugate gradients, with ten reads and writes of a vector per iteration besides the product,
/// and two of the diagonal if there is one. `x` is one step late: the step is combined with the
/// next direction, which reads the same vector.
#[derive(Debug)]
pub(super) struct Cg<T: Scalar> {
    p: DeviceVec<T>,
    q: DeviceVec<T>,
    step_length: Program,
    conclude: Program,
}

impl<T: Scalar> Cg<T> {
    pub(super) fn new(
        device: &Device,
        n: usize,
        preconditioned: bool,
        code: &mut Code,
    ) -> Result<Self, Error> {
        let step_length = code.add(&[
            Instruction::StopUnlessFinite(NOT_FINITE, PQ),
            Instruction::StopUnlessAbove(INDEFINITE, PQ, ZERO),
            Instruction::StopUnlessAbove(INDEFINITE, RHO, ZERO),
            Instruction::Div(ALPHA, RHO, PQ),
        ]);
        // Step lengths are kept for estimates of the eigenvalues of the matrix.
        let rho = if preconditioned { RZ } else { RR };
        let mut conclude = vec![
            Instruction::Div(BETA, rho, RHO),
            Instruction::Add(RHO, rho, ZERO),
            Instruction::Push(SECOND, ALPHA, ITERATIONS),
            Instruction::Push(THIRD, BETA, ITERATIONS),
        ];
        conclude.extend(counted(RR));
        let conclude = code.add(&conclude);
        Ok(Self {
            p: DeviceVec::zeros(device, n)?,
            q: DeviceVec::zeros(device, n)?,
            step_length,
            conclude,
        })
    }
}

impl<T: Scalar> Iteration<T> for Cg<T> {
    fn start(
        &mut self,
        system: &mut System<'_, T>,
        passes: &mut Passes<T>,
        registers: &mut Vec<f64>,
    ) -> Result<(), Error> {
        registers[usize::from(RHO)] = registers[usize::from(RZ)];
        passes.write(registers)?;
        let diagonal = system.diagonal.as_ref();
        let first = Combine {
            add: Some((Coefficient::ONE, &system.r)),
            diagonal,
            scaled: diagonal.is_some(),
            ..Combine::new()
        };
        passes.combine(&mut self.p, first)
    }

    fn batch(
        &mut self,
        system: &mut System<'_, T>,
        passes: &mut Passes<T>,
        _: usize,
        every: usize,
    ) -> Result<(), Error> {
        let System { op, stream, diagonal, x, r, .. } = system;
        let (diagonal, Self { p, q, step_length, conclude }) = (diagonal.as_ref(), self);
        let second = if diagonal.is_some() { Partner::Scaled } else { Partner::Absent };
        for _ in 0..every {
            op.apply_device(stream, p, q)?;
            // Alternating directions: elements that the preceding pass has left in the cache come
            // first.
            passes.dots(Dots {
                of: p,
                with: Some(q),
                and: None,
                at: PQ,
                then: *step_length,
                backward: true,
            })?;
            let shorter = Combine {
                keep: Some(Coefficient::ONE),
                add: Some((Coefficient::minus(ALPHA), &*q)),
                diagonal,
                sums: [Partner::Itself, second],
                at: RR,
                then: *conclude,
                ..Combine::new()
            };
            passes.combine(r, shorter)?;
            let [along, keep] = [ALPHA, BETA].map(Coefficient::plus);
            passes.step(
                x,
                p,
                Step { along, with: Coefficient::ONE, r, diagonal, keep, backward: true },
            )?;
        }
        Ok(())
    }

    fn finish(
        &mut self,
        system: &mut System<'_, T>,
        passes: &mut Passes<T>,
        status: u16,
    ) -> Result<(), Error> {
        finish_step(system, passes, &self.p, Coefficient::plus(ALPHA), status)
    }
}

/// Performs the last step, which was not combined with a next direction because of the status.
pub(super) fn finish_step<T: Scalar>(
    system: &mut System<'_, T>,
    passes: &mut Passes<T>,
    p: &DeviceVec<T>,
    along: Coefficient,
    status: u16,
) -> Result<(), Error> {
    if !matches!(status, CONVERGED | EXHAUSTED) {
        return Ok(());
    }
    last_step(system, passes, p, along)
}

/// Performs a step along a direction, whatever the status.
pub(super) fn last_step<T: Scalar>(
    system: &mut System<'_, T>,
    passes: &mut Passes<T>,
    p: &DeviceVec<T>,
    along: Coefficient,
) -> Result<(), Error> {
    let last = Combine {
        keep: Some(Coefficient::ONE),
        add: Some((along, p)),
        always: true,
        ..Combine::new()
    };
    passes.combine(&mut system.x, last)
}
