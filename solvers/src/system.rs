//! A linear system, the passes of several methods, and the interface of a method.

use super::SystemOperator;
use super::driver::{BB, HISTORY, ITERATIONS, REGISTERS, RR, RZ, ring, set, status};
use sparseop::device::fused::{Coefficient, Combine, Dots, ONE, Partner, Passes, Program, STATUS};
use sparseop::{DeviceVec, Error, Scalar};
use std::fmt::Debug;

/// The system, the vectors common to all methods, and the passes over vectors.
#[derive(Debug)]
pub(super) struct System<'a, T: Scalar> {
    pub(super) op: &'a dyn SystemOperator<T>,
    /// Number of own elements of a vector.
    pub(super) n: usize,
    pub(super) passes: Passes<T>,
    /// The registers as they were last read or written.
    pub(super) registers: Vec<f64>,
    /// Inverse of the diagonal, if there is a preconditioner.
    pub(super) diagonal: Option<DeviceVec<T>>,
    pub(super) b: DeviceVec<T>,
    pub(super) x: DeviceVec<T>,
    pub(super) r: DeviceVec<T>,
    /// The `x` at the last start of the method.
    pub(super) kept: DeviceVec<T>,
}

impl<T: Scalar> System<'_, T> {
    /// Clears the status and sets the number of iterations.
    pub(super) fn reset(&mut self, iterations: usize) -> Result<(), Error> {
        let new = [(STATUS, 0.0), (ITERATIONS, iterations as f64)];
        set(&mut self.passes, &mut self.registers, &new)
    }

    /// Reads the registers.
    pub(super) fn read(&mut self) -> Result<Vec<f64>, Error> {
        self.registers = self.passes.read()?;
        Ok(self.registers.clone())
    }

    /// Writes the registers, some of them with new values.
    pub(super) fn set(&mut self, all: &mut [f64], new: &[(u16, f64)]) -> Result<(), Error> {
        set(&mut self.passes, all, new)?;
        self.registers.copy_from_slice(all);
        Ok(())
    }

    /// Computes r = b − A x and returns the registers with its sums.
    pub(super) fn residual(&mut self) -> Result<Vec<f64>, Error> {
        let Self { op, passes, diagonal, b, x, r, .. } = self;
        op.apply_device(passes.stream(), x, r)?;
        let difference = Combine {
            keep: Some(Coefficient::minus(ONE)),
            diagonal: diagonal.as_ref(),
            sums: residual_sums(diagonal.as_ref()),
            at: RR,
            ..copy(b)
        };
        passes.combine(r, difference)?;
        let is_plain = diagonal.is_none();
        let mut registers = self.read()?;
        if is_plain {
            registers[usize::from(RZ)] = registers[usize::from(RR)];
        }
        Ok(registers)
    }

    /// Enqueues the computation of ‖b‖² in the register [`BB`].
    pub(super) fn square_b(&mut self) -> Result<(), Error> {
        let Self { passes, b, .. } = self;
        let then = Program::default();
        passes.dots(Dots { of: b, with: Some(b), and: None, at: BB, then, backward: false })
    }

    /// Takes a step along a direction, whatever the status.
    pub(super) fn last_step(&mut self, along: Coefficient, p: &DeviceVec<T>) -> Result<(), Error> {
        self.passes.combine(&mut self.x, Combine { always: true, ..axpy(along, p) })
    }
}

/// The pass y = u.
pub(super) fn copy<T: Scalar>(u: &DeviceVec<T>) -> Combine<'_, T> {
    scaled(Coefficient::ONE, u, None)
}

/// The pass y = y + c u.
pub(super) fn axpy<T: Scalar>(c: Coefficient, u: &DeviceVec<T>) -> Combine<'_, T> {
    Combine { keep: Some(Coefficient::ONE), ..scaled(c, u, None) }
}

/// The pass y = c (diagonal ∘ u); y = c u without a diagonal.
pub(super) fn scaled<'a, T: Scalar>(
    c: Coefficient,
    u: &'a DeviceVec<T>,
    diagonal: Option<&'a DeviceVec<T>>,
) -> Combine<'a, T> {
    Combine { add: Some((c, u)), diagonal, scaled: diagonal.is_some(), ..Combine::new() }
}

/// The sums of a pass that computes a residual: Σ r² and, with a diagonal, Σ d r².
pub(super) fn residual_sums<T: Scalar>(diagonal: Option<&DeviceVec<T>>) -> [Partner; 2] {
    [Partner::Itself, diagonal.map_or(Partner::Absent, |_| Partner::Scaled)]
}

/// Results of a batch of iterations.
pub(super) struct BatchResults {
    /// ‖r‖ after each iteration.
    pub(super) residuals: Vec<f64>,
    /// Final status; 0 while the iteration continues.
    pub(super) status: u16,
}

/// A method of solution.
pub(super) trait Iteration<T: Scalar>: Debug {
    /// Number of registers.
    fn registers(&self) -> usize {
        usize::from(REGISTERS)
    }

    /// Number of iterations after which the method has to be restarted, each of which enqueues
    /// other work. `None` if all iterations enqueue the same.
    fn restart(&self) -> Option<usize> {
        None
    }

    /// Starts with the residual `system.r`, whose sums are in `registers`; the registers are then
    /// written.
    fn start(&mut self, system: &mut System<'_, T>, registers: &mut [f64]) -> Result<(), Error>;

    /// Enqueues an iteration. `number` is its number since the start, from 0, if the method has to
    /// be [restarted](Self::restart).
    fn iterate(&mut self, system: &mut System<'_, T>, number: usize) -> Result<(), Error>;

    /// Evaluates the registers after a batch; `before` is the number of iterations before it.
    fn observe(&mut self, registers: &[f64], before: usize) -> BatchResults {
        let now = registers[usize::from(ITERATIONS)] as usize;
        let residuals = ring(registers, HISTORY, before, now).map(f64::sqrt).collect();
        BatchResults { residuals, status: status(registers) }
    }

    /// Updates `system.x`, if iterations leave it behind.
    fn finish(&mut self, _: &mut System<'_, T>, _status: u16) -> Result<(), Error> {
        Ok(())
    }

    /// Largest ratio of the residual to that of the preceding start for which a further restart is
    /// worthwhile.
    fn progress(&self) -> f64 {
        0.5
    }
}
