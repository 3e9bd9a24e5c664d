//! Those who multiply: our own operator on any device, and what it is compared with.

use super::baseline::Product;
use sparseop::tuning::stopwatch::turn;
use sparseop::{Device, DeviceVec, Error, Scalar, SparseOp, Stream};
use std::rc::Rc;

/// One who multiplies one matrix with one vector.
pub(super) trait Engine<T> {
    /// The product once, into `y`, which holds something else.
    ///
    /// # Errors
    ///
    /// What went wrong.
    fn answer(&mut self, y: &mut [T]) -> Result<(), Error>;

    /// The product so many times, and the seconds all of them took, on vectors that stay where the engine runs.
    ///
    /// # Errors
    ///
    /// What went wrong.
    fn turn(&mut self, repeats: u32) -> Result<f64, Error>;
}

/// Our own operator.
pub(super) struct Own<T: Scalar> {
    op: SparseOp<T>,
    stream: Stream,
    x: Rc<DeviceVec<T>>,
    y: DeviceVec<T>,
}

impl<T: Scalar> Own<T> {
    pub(super) fn new(op: SparseOp<T>, x: Rc<DeviceVec<T>>) -> Result<Self, Error> {
        let y = DeviceVec::zeros(op.device(), op.nrows())?;
        Ok(Self { stream: Stream::new(op.device())?, op, x, y })
    }
}

impl<T: Scalar> Engine<T> for Own<T> {
    fn answer(&mut self, y: &mut [T]) -> Result<(), Error> {
        self.y.copy_from(y)?;
        self.op.apply_device(&self.stream, &self.x, &mut self.y)?;
        self.y.copy_to(y)
    }

    fn turn(&mut self, repeats: u32) -> Result<f64, Error> {
        let Self { op, stream, x, y } = self;
        turn(stream, repeats, || op.apply_device(stream, x, y))
    }
}

/// A product of vectors in host memory.
pub(super) struct OnHost<'a, T> {
    multiply: Product<'a, T>,
    x: &'a [T],
    y: Vec<T>,
    stream: Stream,
}

impl<'a, T: Scalar> OnHost<'a, T> {
    pub(super) fn new(multiply: Product<'a, T>, x: &'a [T], nrows: usize) -> Self {
        let stream = Stream::new(&Device::Cpu).expect("the CPU has streams enough");
        Self { multiply, x, y: vec![T::ZERO; nrows], stream }
    }
}

impl<T: Scalar> Engine<T> for OnHost<'_, T> {
    fn answer(&mut self, y: &mut [T]) -> Result<(), Error> {
        (self.multiply)(self.x, y);
        Ok(())
    }

    fn turn(&mut self, repeats: u32) -> Result<f64, Error> {
        let Self { multiply, x, y, stream } = self;
        turn(stream, repeats, || {
            multiply(x, y);
            Ok(())
        })
    }
}
