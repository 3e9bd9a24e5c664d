//! Output for encoded values.

use super::value::{Coder, Dictionary, Stored};
use crate::device::cpu::Output;
use crate::{Precision, Scalar};

/// Output for values that several threads store, each at its own positions.
pub(crate) enum Sink<'a, T> {
    Plain(Output<T>),
    Codes(Output<u8>, &'a Dictionary<T>),
    Halves(Precision, Output<u16>),
    Singles(Output<f32>),
    Same,
}

impl<'a, T: Scalar> Sink<'a, T> {
    /// Output into `stored`, which was made for the same coder.
    pub(crate) fn new(stored: &mut Stored<T>, coder: &'a Coder<T>) -> Self {
        match (stored, coder) {
            (Stored::Plain(values), _) => Self::Plain(Output::new(values)),
            (Stored::Codes(codes), Coder::Dictionary(dictionary)) => {
                Self::Codes(Output::new(codes), dictionary)
            }
            (Stored::Halves(precision, halves), _) => Self::Halves(*precision, Output::new(halves)),
            (Stored::Singles(singles), _) => Self::Singles(Output::new(singles)),
            _ => Self::Same,
        }
    }

    /// Stores a value at position `at`.
    ///
    /// # Safety
    ///
    /// As [`Output::set`].
    #[inline]
    pub(crate) unsafe fn put(&self, at: usize, value: T) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Plain(values) => values.set(at, value),
                Self::Codes(codes, dictionary) => codes.set(at, dictionary.code(value)),
                Self::Halves(precision, halves) => halves.set(at, precision.narrow(value) as u16),
                Self::Singles(singles) => {
                    singles.set(at, f32::from_bits(Precision::F32.narrow(value)))
                }
                Self::Same => {}
            }
        }
    }
}
