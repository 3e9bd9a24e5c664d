//! A linear system, and the interface of a method.

use super::SystemOperator;
use super::driver::{HISTORY, ITERATIONS, ring, status};
use sparseop::device::fused::Passes;
use sparseop::{DeviceVec, Error, Scalar, Stream};
use std::fmt::Debug;

/// The system, and the vectors common to all methods.
#[derive(Debug)]
pub(super) struct System<'a, T: Scalar> {
    pub(super) op: &'a dyn SystemOperator<T>,
    /// Number of own elements of a vector.
    pub(super) n: usize,
    pub(super) stream: Stream,
    /// Inverse of the diagonal, if there is a preconditioner.
    pub(super) diagonal: Option<DeviceVec<T>>,
    pub(super) b: DeviceVec<T>,
    pub(super) x: DeviceVec<T>,
    pub(super) r: DeviceVec<T>,
    /// The `x` at the last start of the method.
    pub(super) kept: DeviceVec<T>,
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
    /// Starts with the residual `system.r`, whose sums are in `registers`; the registers are then
    /// written.
    fn start(
        &mut self,
        system: &mut System<'_, T>,
        passes: &mut Passes<T>,
        registers: &mut Vec<f64>,
    ) -> Result<(), Error>;

    /// Number of the next batch; `None` if the method has to be restarted.
    fn next(&self) -> Option<usize> {
        Some(0)
    }

    /// Enqueues a batch of iterations, always the same for a number.
    fn batch(
        &mut self,
        system: &mut System<'_, T>,
        passes: &mut Passes<T>,
        number: usize,
        every: usize,
    ) -> Result<(), Error>;

    /// Evaluates the registers after a batch; `before` is the number of iterations before it.
    fn observe(&mut self, registers: &[f64], before: usize) -> BatchResults {
        let now = registers[usize::from(ITERATIONS)] as usize;
        let residuals = ring(registers, HISTORY, before, now).map(f64::sqrt).collect();
        BatchResults { residuals, status: status(registers) }
    }

    /// Updates `system.x`, if iterations leave it behind.
    fn finish(
        &mut self,
        _: &mut System<'_, T>,
        _: &mut Passes<T>,
        _status: u16,
    ) -> Result<(), Error> {
        Ok(())
    }

    /// Largest ratio of the residual to that of the preceding start for which a further restart is
    /// worthwhile.
    fn progress(&self) -> f64 {
        0.5
    }
}
