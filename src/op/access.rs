//! Access to single entries: reading, locating and inserting them.

use super::SparseOp;
use crate::formats::{Access, ResidentMatrix, ValueArrays};
use crate::{Error, Scalar};

/// Reason why entries cannot be accessed on a GPU.
const ON_GPU: &str =
    "it is in the memory of the GPU; build an operator on the CPU, or look in `to_csr`";

/// Reason why entries cannot be accessed in some formats.
const SCATTERED: &str =
    "its entries can only be found all together; choose csr, or look in `to_csr`";

impl<T: Scalar> SparseOp<T> {
    /// Returns the element at a row and a column, both counted from 0. None if no entry is stored
    /// there. Entries that repeat a column are added.
    ///
    /// Takes the time of a pass through the row, in `jds` of a pass through all rows. The tables of
    /// operations in [`formats`](crate::formats) say which formats have it and
    /// [`insert`](Self::insert) on the CPU.
    ///
    /// ```
    /// # use sparseop::{Device, SparseOpBuilder, Tuning, matrix::Triplets};
    /// # let mut t = Triplets::new(2, 2)?;
    /// # t.push(0, 1, 3.0f64)?;
    /// let hyb = Tuning::Fixed("hyb(width:1)".parse()?);
    /// let mut op = SparseOpBuilder::new().device(Device::Cpu).tuning(hyb).build(&t)?;
    /// assert_eq!((op.get(0, 1)?, op.get(0, 0)?), (Some(3.0), None));
    /// op.insert(0, 0, 5.0)?;
    /// assert_eq!(op.row(0)?, [(1, 3.0), (0, 5.0)]);
    /// # Ok::<(), sparseop::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`]; [`Error::NoAccess`] in other formats and on a GPU.
    pub fn get(&self, row: usize, col: usize) -> Result<Option<T>, Error> {
        T::get(self, row, col)
    }

    pub(crate) fn get_impl(&self, row: usize, col: usize) -> Result<Option<T>, Error> {
        self.check_bounds(row, col)?;
        let mut found = None;
        self.access()?.visit_row(row, &mut |_, other, value| {
            if other as usize == col {
                found = Some(found.map_or(value, |sum| sum + value));
            }
        });
        Ok(found)
    }

    /// Returns the columns and values of a row, in the order in which they are stored.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn row(&self, row: usize) -> Result<Vec<(usize, T)>, Error> {
        T::row(self, row)
    }

    pub(crate) fn row_impl(&self, row: usize) -> Result<Vec<(usize, T)>, Error> {
        self.check_bounds(row, 0)?;
        let mut entries = Vec::new();
        self.access()?.visit_row(row, &mut |_, col, value| entries.push((col as usize, value)));
        Ok(entries)
    }

    /// Number of slots of the packed matrix, padding included; those of a COO part are the last.
    ///
    /// # Errors
    ///
    /// [`Error::NoAccess`] as for [`get`](Self::get).
    #[doc(hidden)]
    pub fn slots(&self) -> Result<usize, Error> {
        Ok(self.access()?.slot_count())
    }

    /// Row and column of the entry in a slot of the packed matrix. None for padding and past the
    /// last slot.
    ///
    /// # Errors
    ///
    /// [`Error::NoAccess`] as for [`get`](Self::get).
    #[doc(hidden)]
    pub fn position(&self, slot: usize) -> Result<Option<(usize, usize)>, Error> {
        Ok(self.access()?.position(slot).map(|(row, col)| (row, col as usize)))
    }

    /// Stores an element, and returns the previous one, if any. An existing entry takes the value
    /// (the first of those that repeat the column; the others become 0). Otherwise an entry is
    /// added at the end of its row if there is room: in padding of its row, or in a COO part, which
    /// has room for any entry and moves those behind it.
    ///
    /// The reported properties of the matrix do not change, except [`nnz`](Self::nnz) and
    /// [`memory_bytes`](Self::memory_bytes), nor does the plan. The next update of values locates
    /// the slots of the entries again.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get), [`Error::NoRoom`], and [`Error::ValueRange`] if values are
    /// [rounded](crate::SparseOpBuilder::value_precision) and this one is out of range; the
    /// operator is then unchanged.
    pub fn insert(&mut self, row: usize, col: usize, value: T) -> Result<Option<T>, Error> {
        T::insert(self, row, col, value)
    }

    pub(crate) fn insert_impl(
        &mut self,
        row: usize,
        col: usize,
        value: T,
    ) -> Result<Option<T>, Error> {
        let before = self.get(row, col)?;
        let value = self.settings.rounded_values(&[value])?[0];
        let mut places = Vec::new();
        self.access()?.visit_row(row, &mut |slot, other, _| {
            if other as usize == col {
                places.push(slot);
            }
        });
        let plan = self.decision.plan.to_string();
        let ResidentMatrix::Host(matrix) = &mut self.matrix else {
            unreachable!("there is no access on a GPU")
        };
        if let Some((&first, others)) = places.split_first() {
            let arrays = matrix.values_mut().and_then(ValueArrays::plain);
            let [one, two] = arrays.expect("what can be found is stored as it is");
            let split = one.len();
            let mut put = |slot: usize, value| match slot.checked_sub(split) {
                None => one[slot] = value,
                Some(slot) => two[slot] = value,
            };
            put(first, value);
            others.iter().for_each(|&slot| put(slot, T::ZERO));
            self.forget_copies();
            return Ok(before);
        }
        let access = matrix.access_mut().expect("an entry was looked for above");
        // The column is one of the matrix's, which are numbered in 32 bits.
        access.insert(row, col as u32, value).map_err(|reason| Error::NoRoom {
            plan,
            row,
            col,
            reason,
        })?;
        self.inserted += 1;
        self.updater = None;
        self.forget_copies();
        Ok(None)
    }

    fn access(&self) -> Result<&dyn Access<T>, Error> {
        let refused = |reason| Error::NoAccess {
            plan: self.decision.plan.to_string(),
            device: self.device.to_string(),
            reason,
        };
        match &self.matrix {
            ResidentMatrix::Host(matrix) => matrix.access().ok_or_else(|| refused(SCATTERED)),
            ResidentMatrix::Gpu(..) => Err(refused(ON_GPU)),
        }
    }

    fn check_bounds(&self, row: usize, col: usize) -> Result<(), Error> {
        let (nrows, ncols) = (self.nrows, self.ncols);
        // A row of a matrix without columns can be read, an element of it cannot.
        if row < nrows && (col < ncols || (col == 0 && ncols == 0)) {
            return Ok(());
        }
        Err(Error::OutOfBounds { row, col, nrows, ncols })
    }
}
