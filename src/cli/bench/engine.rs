//! Those who multiply: our own operator on any device, and what it is compared with.

use super::baseline::Product;
use super::task::Several;
use sparseop::tuning::stopwatch::turn;
use sparseop::{Device, DeviceVec, Error, Scalar, SparseOp, Stream};
use std::rc::Rc;

/// One who multiplies one matrix with one vector, or with several.
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

    /// What it multiplies.
    fn several(&self) -> Several {
        Several::ONE
    }
}

/// Which product of an operator.
#[derive(Debug, Clone, Copy)]
pub(super) enum Which {
    /// With the matrix.
    Plain(Several),
    /// With its transpose.
    Transposed,
}

/// Our own operator.
pub(super) struct Own<T: Scalar> {
    op: SparseOp<T>,
    which: Which,
    stream: Stream,
    x: Rc<DeviceVec<T>>,
    y: DeviceVec<T>,
}

impl<T: Scalar> Own<T> {
    pub(super) fn new(op: SparseOp<T>, which: Which, x: Rc<DeviceVec<T>>) -> Result<Self, Error> {
        let len = match which {
            Which::Plain(several) => several.count * op.nrows(),
            Which::Transposed => op.ncols(),
        };
        let y = DeviceVec::zeros(op.device(), len)?;
        let mut own = Self { stream: Stream::new(op.device())?, op, which, x, y };
        // What is made at the first product is made now.
        own.multiply()?;
        Ok(own)
    }

    /// The operator.
    pub(super) fn op(&self) -> &SparseOp<T> {
        &self.op
    }

    fn multiply(&mut self) -> Result<(), Error> {
        let Self { op, stream, x, y, .. } = self;
        match self.which {
            Which::Plain(Several::ONE) => op.apply_device(stream, x, y),
            Which::Plain(Several { count, layout }) => op.apply_multi_device(stream, count, x, y, layout),
            Which::Transposed => op.apply_transpose_device(stream, x, y),
        }
    }
}

impl<T: Scalar> Engine<T> for Own<T> {
    fn answer(&mut self, y: &mut [T]) -> Result<(), Error> {
        self.y.copy_from(y)?;
        self.multiply()?;
        self.y.copy_to(y)
    }

    fn turn(&mut self, repeats: u32) -> Result<f64, Error> {
        let stream = self.stream.clone();
        turn(&stream, repeats, || self.multiply())
    }

    fn several(&self) -> Several {
        match self.which {
            Which::Plain(several) => several,
            Which::Transposed => Several::ONE,
        }
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
