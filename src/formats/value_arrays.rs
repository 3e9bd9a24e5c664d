//! Arrays with the values of a packed matrix, or what it has in place of them.

use super::encoded::{EncodedDevice, EncodedHost};
use super::{DeviceMatrix, HostMatrix, ResidentMatrix, ValueStorage};
use crate::Scalar;
use crate::device::Ptr;

/// The two arrays of values of a packed matrix, whose slots are numbered consecutively. The second
/// may be empty.
pub(crate) type Arrays<A> = [A; 2];

/// Reason why values cannot be replaced, as a clause that completes
/// [`Error::NotUpdatable`](crate::Error::NotUpdatable).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoValueSlots(pub(super) &'static str);

impl NoValueSlots {
    /// Default of formats that do not expose their values.
    pub(crate) const NO_VALUE_SLOTS: Self =
        Self("its format does not keep every value in a place of its own");
    /// Values stored as codes, or as one value for all entries.
    pub(crate) const CODED: Self =
        Self("it keeps codes of the few values that there were, or only one for all entries");
    /// A part of the values on another device.
    pub(crate) const ON_HOST: Self = Self("a part of the matrix is in the memory of the host");
    /// Encoded values on a GPU, whose new values would have to be checked.
    pub(super) const UNCHECKED: Self = Self(
        "it stores them in fewer bytes or as codes, and those in the memory of the GPU cannot be \
         checked on the way; `update_values` takes them from the host",
    );
    /// More distinct new values than codes.
    pub(super) const TOO_MANY_VALUES: Self =
        Self("it keeps codes of values, which name no more than 256, and the new ones are more");
    /// Different new values where one is stored for all entries.
    pub(super) const NOT_THE_SAME: Self =
        Self("it keeps one for all entries, and the new ones are not all the same");
    /// More slots than 32-bit indices can number.
    pub(super) const TOO_MANY: Self = Self("its slots need more than 32-bit indices");
}

/// Substitute for arrays of values in a packed matrix.
#[derive(Debug)]
pub(crate) enum NoArrays<E> {
    /// Nothing, for this reason.
    Reason(NoValueSlots),
    /// Values that are stored in fewer bytes or as codes.
    Encoded(E),
}

impl<E> From<NoValueSlots> for NoArrays<E> {
    fn from(reason: NoValueSlots) -> Self {
        Self::Reason(reason)
    }
}

impl<E> NoArrays<E> {
    pub(super) fn reason(self) -> NoValueSlots {
        match self {
            Self::Reason(reason) => reason,
            Self::Encoded(_) => NoValueSlots::CODED,
        }
    }

    fn encoded(self) -> Option<E> {
        match self {
            Self::Reason(_) => None,
            Self::Encoded(encoded) => Some(encoded),
        }
    }
}

/// Values of a packed matrix in host memory.
pub(crate) type HostValueArrays<'a, T> =
    Result<Arrays<&'a mut [T]>, NoArrays<&'a mut dyn EncodedHost<T>>>;

/// Addresses and lengths of the arrays of values of a packed matrix in the memory of a GPU.
pub(crate) type DeviceValueArrays<'a, T> =
    Result<Arrays<(Ptr<T>, usize)>, NoArrays<&'a dyn EncodedDevice<T>>>;

impl<T: Scalar> dyn HostMatrix<T> {
    /// Values that are stored in fewer bytes or as codes.
    pub(super) fn encoded_mut(&mut self) -> Option<&mut dyn EncodedHost<T>> {
        self.values_mut().err()?.encoded()
    }
}

impl<T: Scalar> dyn DeviceMatrix<T> {
    /// Values that are stored in fewer bytes or as codes.
    pub(super) fn encoded(&self) -> Option<&dyn EncodedDevice<T>> {
        self.values().err()?.encoded()
    }
}

impl<T: Scalar> ResidentMatrix<T> {
    /// Storage of the values.
    pub(crate) fn storage(&mut self) -> ValueStorage {
        match self {
            Self::Host(matrix) => matrix.encoded_mut().map_or(ValueStorage::Plain, |a| a.storage()),
            Self::Gpu(_, matrix) => matrix.encoded().map_or(ValueStorage::Plain, |a| a.storage()),
        }
    }
}
