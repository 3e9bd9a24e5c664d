//! Order of entries that are given in any order.

use crate::arrays::{ArrayRef, ElementType, describe};
use crate::error::{Exception, raised};
use numpy::IntoPyArray;
use pyo3::prelude::*;
use sparseop::{Error, filled, listed};

/// Offsets of rows, and the positions of their entries.
struct RowOrder {
    offsets: Vec<i64>,
    positions: Vec<i64>,
}

/// Rows that cannot be sorted.
enum UnsortedRows {
    /// The entry whose row the matrix does not have.
    NoRow(usize),
    NoIntegers,
    Failed(Error),
}

impl From<Error> for UnsortedRows {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl RowOrder {
    /// Sorts entries by their rows; entries of a row keep their order.
    fn of<I: Copy + TryInto<usize>>(rows: &[I], nrows: usize) -> Result<Self, UnsortedRows> {
        let row = |at: usize| {
            let row = rows[at].try_into().ok().filter(|row| *row < nrows);
            row.ok_or(UnsortedRows::NoRow(at))
        };
        let mut offsets = filled(nrows.saturating_add(1), 0i64)?;
        for at in 0..rows.len() {
            offsets[row(at)? + 1] += 1;
        }
        for row in 0..nrows {
            offsets[row + 1] += offsets[row];
        }
        let mut next = listed(offsets.iter().copied())?;
        let mut positions = filled(rows.len(), 0)?;
        for at in 0..rows.len() {
            let place = &mut next[row(at)?];
            positions[*place as usize] = at as i64;
            *place += 1;
        }
        Ok(Self { offsets, positions })
    }
}

/// Row offsets of CSR for entries with these rows, and the order of the entries.
#[pyfunction]
pub(crate) fn row_order<'py>(
    py: Python<'py>,
    rows: &Bound<'py, PyAny>,
    nrows: usize,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let array = describe(rows, "rows")?;
    // SAFETY: the caller holds the array, and its elements have this type.
    let sorted = py.detach(|| unsafe {
        let rows: &ArrayRef = &array;
        match rows.elements {
            ElementType::I32 => RowOrder::of(rows.slice::<i32>(), nrows),
            ElementType::I64 => RowOrder::of(rows.slice::<i64>(), nrows),
            ElementType::U32 => RowOrder::of(rows.slice::<u32>(), nrows),
            ElementType::U64 => RowOrder::of(rows.slice::<u64>(), nrows),
            _ => Err(UnsortedRows::NoIntegers),
        }
    });
    let RowOrder { offsets, positions } = sorted.map_err(|unsorted| match unsorted {
        UnsortedRows::NoRow(at) => {
            let rows = format!("the {nrows} rows of the matrix");
            Exception::Matrix.error(py, format!("the row of entry {at} is not one of {rows}"))
        }
        UnsortedRows::NoIntegers => {
            Exception::Dtype.error(py, "the rows of the entries are not integers of 32 or 64 bits")
        }
        UnsortedRows::Failed(error) => raised(py, error),
    })?;
    Ok((offsets.into_pyarray(py).into_any(), positions.into_pyarray(py).into_any()))
}
