//! A linear system and one step of a method.

use super::driver::{HISTORY, ITERATIONS, ring, status};
use sparseop::device::fused::Passes;
use sparseop::{DeviceVec, Error, Scalar, SparseOp, Stream};
use std::fmt::Debug;

/// The system, and the vectors that every method has.
#[derive(Debug)]
pub(super) struct System<'a, T: Scalar> {
    pub(super) op: &'a SparseOp<T>,
    pub(super) stream: Stream,
    /// The inverse of the diagonal, where there is a preconditioner.
    pub(super) diagonal: Option<DeviceVec<T>>,
    pub(super) b: DeviceVec<T>,
    pub(super) x: DeviceVec<T>,
    pub(super) r: DeviceVec<T>,
    /// The `x` that the method was last begun anew from.
    pub(super) kept: DeviceVec<T>,
}

/// What an iteration has come to since it was last looked at.
pub(super) struct Seen {
    /// ‖r‖ after each iteration.
    pub(super) residuals: Vec<f64>,
    /// Why it has ended; 0 while it goes on.
    pub(super) status: u16,
}

/// A method.
pub(super) trait Iteration<T: Scalar>: Debug {
    /// Begins with the residual `system.r`, whose sums are in `registers`; these are then written.
    fn start(
        &mut self,
        system: &mut System<'_, T>,
        passes: &mut Passes<T>,
        registers: &mut Vec<f64>,
    ) -> Result<(), Error>;

    /// The number of the next batch; none when the method has to begin anew.
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

    /// What the registers say after a batch, where `before` iterations had been made before it.
    fn observe(&mut self, registers: &[f64], before: usize) -> Seen {
        let now = registers[usize::from(ITERATIONS)] as usize;
        let residuals = ring(registers, HISTORY, before, now).map(f64::sqrt).collect();
        Seen { residuals, status: status(registers) }
    }

    /// Brings `system.x` up to date, where iterations leave it behind.
    fn finish(&mut self, _: &mut System<'_, T>, _: &mut Passes<T>, _status: u16) -> Result<(), Error> {
        Ok(())
    }

    /// What a new beginning has to bring, of the residual before, to be worth another.
    fn progress(&self) -> f64 {
        0.5
    }
}
