//! The matrix in the GPU's memory, in the formats that cuSPARSE reads.

use super::super::failure::RunFailure;
use super::layout::{PADDING, rows, slice_offsets, slots};
use sparseop::device::DeviceArray;
use sparseop::matrix::CsrView;
use sparseop::{Device, Error, Scalar};
use std::cell::RefCell;
use std::rc::{Rc, Weak};

/// Number of rows per slice.
const HEIGHT: usize = 32;

/// A matrix format of cuSPARSE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StorageLayout {
    Csr,
    Coo,
    SlicedEll,
}

/// Rows, columns and entries.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatrixShape {
    pub(super) nrows: i64,
    pub(super) ncols: i64,
    pub(super) nnz: i64,
}

/// The arrays of a matrix. All indices are signed, of 64 bits if `wide`, else of 32.
#[derive(Debug)]
pub(super) enum MatrixArrays {
    Csr {
        offsets: Rc<DeviceArray>,
        columns: Rc<DeviceArray>,
        values: Rc<DeviceArray>,
        wide: bool,
    },
    /// Sorted by rows.
    Coo {
        rows: Rc<DeviceArray>,
        columns: Rc<DeviceArray>,
        values: Rc<DeviceArray>,
        wide: bool,
    },
    /// Slices of `height` rows, each column-major. The column of a padded slot is -1.
    SlicedEll {
        slots: i64,
        height: i64,
        offsets: DeviceArray,
        columns: DeviceArray,
        values: DeviceArray,
        wide: bool,
    },
}

/// An array that lives as long as it has users.
#[derive(Debug, Default)]
struct CachedArray(RefCell<Weak<DeviceArray>>);

impl CachedArray {
    /// Returns the array, and makes it if it does not exist.
    fn get(
        &self,
        make: impl FnOnce() -> Result<DeviceArray, Error>,
    ) -> Result<Rc<DeviceArray>, Error> {
        if let Some(array) = self.0.borrow().upgrade() {
            return Ok(array);
        }
        let array = Rc::new(make()?);
        self.0.replace(Rc::downgrade(&array));
        Ok(array)
    }
}

/// Device arrays of one matrix that the algorithms share.
#[derive(Debug, Default)]
pub(in super::super) struct SharedArrays {
    /// Limit of the bytes of a padded format, the same as that of our own plans.
    limit: u64,
    offsets: CachedArray,
    rows: CachedArray,
    columns: CachedArray,
    values: CachedArray,
}

impl SharedArrays {
    /// No arrays, and a limit of `limit` bytes for padded formats.
    pub(in super::super) fn within(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }
}

impl MatrixShape {
    pub(super) fn of<T: Scalar>(a: CsrView<'_, T>) -> Self {
        // A matrix in memory has less than 2^63 rows, columns and entries.
        let [nrows, ncols, nnz] = [a.nrows(), a.ncols(), a.nnz()].map(|n| n as i64);
        Self { nrows, ncols, nnz }
    }

    /// True if some index or offset does not fit in 32 bits.
    fn is_wide(self) -> bool {
        [self.nrows, self.ncols, self.nnz].iter().any(|&n| n > i64::from(i32::MAX))
    }
}

impl MatrixArrays {
    /// Copies the arrays of a matrix to the device, except those that are already there.
    pub(super) fn of<T: Scalar>(
        a: CsrView<'_, T>,
        layout: StorageLayout,
        device: &Device,
        shared: &SharedArrays,
    ) -> Result<Self, RunFailure> {
        let wide = MatrixShape::of(a).is_wide();
        if layout == StorageLayout::SlicedEll {
            return Self::sliced(a, wide, device, shared.limit);
        }
        let columns = a.col_idx().iter().map(|&column| i64::from(column));
        let columns = shared.columns.get(|| indices(device, wide, columns))?;
        let values = shared.values.get(|| DeviceArray::from_slice(device, a.values()))?;
        if layout == StorageLayout::Coo {
            let rows = shared.rows.get(|| indices(device, wide, rows(a).map(|row| row as i64)))?;
            return Ok(Self::Coo { rows, columns, values, wide });
        }
        let offsets = a.row_ptr().iter().map(|&offset| offset as i64);
        let offsets = shared.offsets.get(|| indices(device, wide, offsets))?;
        Ok(Self::Csr { offsets, columns, values, wide })
    }

    fn sliced<T: Scalar>(
        a: CsrView<'_, T>,
        wide: bool,
        device: &Device,
        limit: u64,
    ) -> Result<Self, RunFailure> {
        let offsets = slice_offsets(a, HEIGHT);
        let count = offsets.last().copied().unwrap_or(0);
        let wide = wide || count > i32::MAX as usize;
        let index = if wide { size_of::<i64>() } else { size_of::<i32>() };
        let needed = (count * (index + size_of::<T>()) + offsets.len() * index) as u64;
        if needed > limit {
            return Err(RunFailure::Refused(format!(
                "cusparse sell needs {needed} bytes for the packed matrix, but the limit is \
                 {limit} bytes"
            )));
        }
        let (columns, values) = slots(a, HEIGHT, &offsets);
        let columns =
            columns.iter().map(|&column| if column == PADDING { -1 } else { i64::from(column) });
        Ok(Self::SlicedEll {
            slots: count as i64,
            height: HEIGHT as i64,
            columns: indices(device, wide, columns)?,
            offsets: indices(device, wide, offsets.iter().map(|&offset| offset as i64))?,
            values: DeviceArray::from_slice(device, &values)?,
            wide,
        })
    }
}

/// Copies indices to the device, as 64-bit numbers if `wide`, else as 32-bit ones, which hold all
/// of them.
fn indices(
    device: &Device,
    wide: bool,
    indices: impl Iterator<Item = i64>,
) -> Result<DeviceArray, Error> {
    if wide {
        DeviceArray::from_slice(device, &indices.collect::<Vec<i64>>())
    } else {
        DeviceArray::from_slice(device, &indices.map(|index| index as i32).collect::<Vec<i32>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparseop_testkit::chapter;

    /// Returns the contents of an array on the CPU.
    fn read<N: Copy>(array: &DeviceArray, len: usize) -> Vec<N> {
        // SAFETY: the tests ask for the array's own length and type.
        unsafe { std::slice::from_raw_parts(array.address() as *const N, len).to_vec() }
    }

    #[test]
    fn csr_and_coo_share_what_they_can() {
        let (a, shared) = (chapter::matrix::<f32>(), SharedArrays::default());
        let arrays =
            |layout| MatrixArrays::of(a.view(), layout, &Device::Cpu, &shared).ok().unwrap();
        let (csr, coo) = (arrays(StorageLayout::Csr), arrays(StorageLayout::Coo));
        let MatrixArrays::Csr { offsets, columns, values, wide: false } = &csr else {
            panic!("{csr:?}")
        };
        let MatrixArrays::Coo { rows, columns: also, values: too, wide: false } = &coo else {
            panic!("{coo:?}")
        };
        assert!(Rc::ptr_eq(columns, also) && Rc::ptr_eq(values, too));
        assert_eq!(read::<i32>(offsets, 5), [0, 2, 2, 5, 7]);
        assert_eq!(read::<i32>(rows, 7), [0, 0, 2, 2, 2, 3, 3]);
        assert_eq!(read::<i32>(columns, 7), [0, 2, 1, 2, 3, 0, 3]);
        assert_eq!(read::<f32>(values, 7), [3.0, 1.0, 2.0, 4.0, 1.0, 1.0, 1.0]);
        let kept = Rc::downgrade(columns);
        drop((csr, coo));
        assert!(kept.upgrade().is_none(), "no user is left");
    }

    #[test]
    fn slices_beyond_the_limit_are_refused() {
        let a = chapter::matrix::<f64>();
        let refused = MatrixArrays::of(
            a.view(),
            StorageLayout::SlicedEll,
            &Device::Cpu,
            &SharedArrays::within(1000),
        );
        let Err(RunFailure::Refused(text)) = refused else { panic!("{refused:?}") };
        assert_eq!(
            text,
            "cusparse sell needs 1160 bytes for the packed matrix, but the limit is 1000 bytes"
        );
    }

    #[test]
    fn indices_have_the_width_that_is_asked_for() {
        let given = || [7, -1].into_iter();
        assert_eq!(read::<i32>(&indices(&Device::Cpu, false, given()).unwrap(), 2), [7, -1]);
        assert_eq!(read::<i64>(&indices(&Device::Cpu, true, given()).unwrap(), 2), [7, -1]);
        let shape = MatrixShape { nrows: 1, ncols: 1, nnz: 1 << 31 };
        assert!(shape.is_wide() && !MatrixShape { nnz: (1 << 31) - 1, ..shape }.is_wide());
    }
}
