//! Multivectors of SpMM in GPU memory.

use crate::device::{Gpu, Kernel, Module, Ptr, VectorUnits};
use crate::{Error, Scalar, ScalarKind};

/// Largest number of bytes of `x` that the lanes of a row load together: a cache line.
const LINE: usize = 128;

/// Addresses and layout of the multivectors of a product on a GPU.
///
/// Element `c` of vector `v` is at `x[c · stride + v]`, row `r` of its product at
/// `y[r · row + v · vector]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceVectors<T> {
    pub(crate) x: Ptr<T>,
    pub(crate) stride: usize,
    pub(crate) y: Ptr<T>,
    pub(crate) row: usize,
    pub(crate) vector: usize,
    /// Number of vectors.
    pub(crate) count: usize,
}

impl<T: Scalar> DeviceVectors<T> {
    /// Largest number of vectors per launch.
    pub(crate) const MAX: usize = LINE / size_of::<T>();

    /// Numbers of vectors per unit for which kernels exist, widest first.
    pub(crate) const UNITS: &'static [usize] = match T::KIND {
        ScalarKind::F32 => &[4, 2],
        ScalarKind::F64 => &[2],
    };

    /// Widest unit in which `x` can be loaded; `None` if layout or alignment of the vectors permits
    /// none.
    pub(crate) fn unit(&self) -> Option<usize> {
        let fits = |&&unit: &&usize| self.stride.is_multiple_of(unit) && is_aligned(self.x, unit);
        Self::UNITS.iter().find(fits).copied()
    }

    /// Binary logarithm of the number of lanes with a unit of `unit` vectors each.
    pub(crate) fn lane_shift(&self, unit: usize) -> u32 {
        self.count.div_ceil(unit).next_power_of_two().trailing_zeros()
    }

    /// The multivectors in units of `unit` vectors, as kernel parameters.
    pub(crate) fn in_units(&self, unit: usize) -> VectorUnits<T> {
        let Self { x, stride, y, row, vector, count } = *self;
        let (stride, row, vector) = ((stride / unit) as u32, row as u64, vector as u64);
        VectorUnits { x, stride, y, row, vector, count: count as u32, whole: self.is_whole(unit) }
    }

    /// True if `y` can be stored in units of `unit` vectors.
    fn is_whole(&self, unit: usize) -> bool {
        let whole = self.row.is_multiple_of(unit) && self.count.is_multiple_of(unit);
        whole && self.vector == 1 && is_aligned(self.y, unit)
    }
}

/// Kernels of an SpMM, one per [unit](DeviceVectors::UNITS).
#[derive(Debug)]
pub(crate) struct UnitKernels(Vec<(usize, Kernel)>);

impl UnitKernels {
    /// Loads the kernels that `name` names for each unit.
    ///
    /// # Errors
    ///
    /// Errors of kernel compilation.
    pub(crate) fn load<T: Scalar>(
        gpu: Gpu,
        module: Module,
        name: impl Fn(usize) -> String,
    ) -> Result<Self, Error> {
        let kernel = |&unit: &usize| Ok((unit, gpu.kernel(module, &name(unit))?));
        DeviceVectors::<T>::UNITS.iter().map(kernel).collect::<Result<_, _>>().map(Self)
    }

    /// The kernel for the widest unit.
    pub(crate) fn widest(&self) -> Kernel {
        self.0[0].1
    }

    /// The widest unit of the vectors, and its kernel.
    pub(crate) fn of<T: Scalar>(&self, vectors: &DeviceVectors<T>) -> (usize, &Kernel) {
        let Some(unit) = vectors.unit() else { unreachable!("the caller has vectors with a unit") };
        let (_, kernel) = self.0.iter().find(|kernel| kernel.0 == unit).expect("one for each");
        (unit, kernel)
    }
}

/// True if units of `unit` numbers can be loaded or stored at `ptr`.
fn is_aligned<T>(ptr: Ptr<T>, unit: usize) -> bool {
    ptr.address().is_multiple_of((unit * size_of::<T>()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors<T>(x: u64, stride: usize, y: u64, count: usize) -> DeviceVectors<T> {
        let (x, y) = (Ptr::from_address(x), Ptr::from_address(y));
        DeviceVectors { x, stride, y, row: stride, vector: 1, count }
    }

    #[test]
    fn units_are_as_wide_as_the_vectors_stand() {
        let unit = |x, stride| vectors::<f32>(x, stride, 0, stride).unit();
        assert_eq!([unit(256, 8), unit(256, 6), unit(256, 7)], [Some(4), Some(2), None]);
        assert_eq!([unit(264, 8), unit(260, 8)], [Some(2), None], "where they begin counts, too");
        let unit = |x, stride| vectors::<f64>(x, stride, 0, stride).unit();
        assert_eq!(
            [unit(256, 8), unit(256, 2), unit(256, 3), unit(264, 2)],
            [Some(2), Some(2), None, None]
        );
    }

    #[test]
    fn only_aligned_and_complete_units_are_stored_whole() {
        let whole = |y, stride, count| vectors::<f32>(0, stride, y, count).is_whole(4);
        assert_eq!(
            [whole(16, 8, 8), whole(8, 8, 8), whole(16, 6, 4), whole(16, 8, 6)],
            [true, false, false, false]
        );
        assert!(!DeviceVectors { vector: 9, ..vectors::<f32>(0, 8, 0, 8) }.is_whole(4));
    }
}
