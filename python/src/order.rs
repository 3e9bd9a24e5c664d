//! Order of entries that are given in any order.

use crate::arrays::{ArrayRef, ElementType, describe};
use crate::error::Exception;
use numpy::IntoPyArray;
use pyo3::prelude::*;

/// Offsets of rows, and the positions of their entries.
struct RowOrder {
    offsets: Vec<i64>,
    positions: Vec<i64>,
}

impl RowOrder {
    /// Sorts entries by their rows; entries of a row keep their order.
    ///
    /// # Errors
    ///
    /// The first row that the matrix does not have.
    fn of<I: Copy + TryInto<usize>>(rows: &[I], nrows: usize) -> Result<Self, usize> {
        let row = |at: usize| rows[at].try_into().ok().filter(|row| *row < nrows).ok_or(at);
        let mut offsets = vec![0i64; nrows + 1];
        for at in 0..rows.len() {
            offsets[row(at)? + 1] += 1;
        }
        for row in 0..nrows {
            offsets[row + 1] += offsets[row];
        }
        let mut next = offsets.clone();
        let mut positions = vec![0; rows.len()];
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
            _ => Err(0),
        }
    });
    let RowOrder { offsets, positions } = sorted.map_err(|at| {
        let message = format!("the row of entry {at} is not one of the {nrows} rows of the matrix");
        Exception::Matrix.error(py, message)
    })?;
    Ok((offsets.into_pyarray(py).into_any(), positions.into_pyarray(py).into_any()))
}
