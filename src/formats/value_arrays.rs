//! Arrays with the values of a packed matrix, or the reason why it has none.

use super::ResidentMatrix;
use crate::device::{Buffer, Numbers};
use crate::{Precision, Scalar};

/// The two arrays of values of a packed matrix, whose slots are numbered consecutively. The second
/// may be empty.
pub(crate) type Arrays<A> = [A; 2];

/// Reason why values cannot be replaced, as a clause that completes
/// [`Error::NotUpdatable`](crate::Error::NotUpdatable).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoValueSlots(pub(super) &'static str);

impl NoValueSlots {
    /// Default of formats that do not expose their values.
    pub(crate) const NO_VALUE_SLOTS: Self = Self("the format has no slot for every value");
    /// Values stored as codes, or as one value for all entries.
    pub(crate) const CODED: Self =
        Self("it stores codes of few distinct values, or one value for all entries");
    /// A part of the values on another device.
    pub(crate) const ON_HOST: Self = Self("a part of the matrix is in the memory of the host");
    /// Encoded values on a GPU, whose new values would have to be checked.
    pub(super) const UNCHECKED: Self = Self(
        "it stores them in fewer bytes or as codes, and those in the memory of the GPU cannot be \
         checked on the way; `update_values` takes them from the host",
    );
    /// More distinct new values than codes.
    pub(super) const TOO_MANY_VALUES: Self =
        Self("it stores 8-bit codes, and there are more than 256 distinct new values");
    /// Different new values where one is stored for all entries.
    pub(super) const NOT_THE_SAME: Self =
        Self("it stores one value for all entries, and the new values differ");
    /// More slots than 32-bit indices can number.
    pub(super) const TOO_MANY: Self = Self("its slots need more than 32-bit indices");
}

/// Arrays of the values of a packed matrix, by their encoding.
#[derive(Debug)]
pub(crate) enum ValueArrays<Plain, Codes, Halves, Singles, Dictionary> {
    /// In the matrix's own type, and zero in slots without an entry.
    Plain(Arrays<Plain>),
    /// Codes, and the values that they stand for. There are no codes if one value stands for all.
    Codes(Option<Arrays<Codes>>, Dictionary),
    /// Bits of numbers of a 16-bit precision.
    Halves(Precision, Arrays<Halves>),
    /// 32-bit numbers.
    Singles(Arrays<Singles>),
}

impl<P, C, H, S, D> ValueArrays<P, C, H, S, D> {
    /// The arrays of values in the matrix's own type.
    pub(crate) fn plain(self) -> Result<Arrays<P>, NoValueSlots> {
        match self {
            Self::Plain(arrays) => Ok(arrays),
            _ => Err(NoValueSlots::CODED),
        }
    }

    /// The encoding, without the arrays.
    fn storage(&self) -> ValueStorage {
        match self {
            Self::Plain(_) => ValueArrays::Plain([(); 2]),
            Self::Codes(codes, _) => ValueArrays::Codes(codes.as_ref().map(|_| [(); 2]), ()),
            Self::Halves(precision, _) => ValueArrays::Halves(*precision, [(); 2]),
            Self::Singles(_) => ValueArrays::Singles([(); 2]),
        }
    }
}

/// Encoding of the values of a packed matrix.
pub(crate) type ValueStorage = ValueArrays<(), (), (), (), ()>;

/// Values of a packed matrix in host memory, or the reason why there are none to replace.
pub(crate) type HostValueArrays<'a, T> = Result<
    ValueArrays<&'a mut [T], &'a mut [u8], &'a mut [u16], &'a mut [f32], &'a mut [T]>,
    NoValueSlots,
>;

/// Values of a packed matrix in GPU memory, or the reason why there are none to replace.
pub(crate) type DeviceValueArrays<'a, T> = Result<
    ValueArrays<Numbers<T>, Numbers<u8>, Numbers<u16>, Numbers<f32>, &'a Buffer<T>>,
    NoValueSlots,
>;

impl<T: Scalar> ResidentMatrix<T> {
    /// Encoding of the values, or the reason why they cannot be replaced.
    pub(crate) fn storage(&mut self) -> Result<ValueStorage, NoValueSlots> {
        match self {
            Self::Host(matrix) => matrix.values_mut().map(|arrays| arrays.storage()),
            Self::Gpu(_, matrix) => matrix.values().map(|arrays| arrays.storage()),
        }
    }
}

#[cfg(test)]
impl ValueStorage {
    /// Precision of the numbers if they are stored in a narrower one.
    pub(crate) fn precision(&self) -> Option<Precision> {
        match self {
            Self::Halves(precision, _) => Some(*precision),
            Self::Singles(_) => Some(Precision::F32),
            Self::Plain(_) | Self::Codes(..) => None,
        }
    }
}
