//! Arrays of cuSPARSE's formats beyond CSR, prepared on the host.

use sparseop::Scalar;
use sparseop::matrix::CsrView;

/// Column of a padded slot. No matrix has this column.
pub(super) const PADDING: u32 = u32::MAX;

/// The row of every entry.
pub(super) fn rows<T: Scalar>(a: CsrView<'_, T>) -> impl Iterator<Item = usize> + '_ {
    (0..a.nrows()).flat_map(move |row| std::iter::repeat_n(row, a.row_len(row)))
}

/// First slot of every slice of `height` rows, and at last the number of slots. A slice is as wide
/// as its longest row. The last one is padded to its full height.
pub(super) fn slice_offsets<T: Scalar>(a: CsrView<'_, T>, height: usize) -> Vec<usize> {
    let width =
        |first| (first..a.nrows().min(first + height)).map(|row| a.row_len(row)).max().unwrap_or(0);
    let mut offsets = vec![0];
    let mut end = 0;
    for first in (0..a.nrows()).step_by(height) {
        end += height * width(first);
        offsets.push(end);
    }
    offsets
}

/// Columns and values of all slots: slice after slice, and in a slice the first entries of its
/// rows, then the second ones.
pub(super) fn slots<T: Scalar>(
    a: CsrView<'_, T>,
    height: usize,
    offsets: &[usize],
) -> (Vec<u32>, Vec<T>) {
    let slots = offsets.last().copied().unwrap_or(0);
    let (mut columns, mut values) = (vec![PADDING; slots], vec![T::ZERO; slots]);
    for row in 0..a.nrows() {
        let first = offsets[row / height] + row % height;
        let (cols, vals) = a.row(row);
        for (k, (&column, &value)) in cols.iter().zip(vals).enumerate() {
            columns[first + k * height] = column;
            values[first + k * height] = value;
        }
    }
    (columns, values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparseop::matrix::CsrMatrix;
    use sparseop_testkit::chapter;

    #[test]
    fn every_entry_has_its_row() {
        let a = chapter::matrix::<f32>();
        assert_eq!(rows(a.view()).collect::<Vec<_>>(), [0, 0, 2, 2, 2, 3, 3]);
    }

    #[test]
    fn slices_of_two_rows() {
        const P: u32 = PADDING;
        let a = chapter::matrix::<f32>();
        let offsets = slice_offsets(a.view(), 2);
        assert_eq!(offsets, [0, 4, 10]);
        let (columns, values) = slots(a.view(), 2, &offsets);
        assert_eq!(columns, [0, P, 2, P, 1, 0, 2, 3, 3, P]);
        assert_eq!(values, [3.0, 0.0, 1.0, 0.0, 2.0, 1.0, 4.0, 1.0, 1.0, 0.0]);
    }

    #[test]
    fn the_last_slice_is_filled_up() {
        const P: u32 = PADDING;
        let a = chapter::matrix::<f64>();
        let offsets = slice_offsets(a.view(), 3);
        assert_eq!(offsets, [0, 9, 15]);
        let (columns, _) = slots(a.view(), 3, &offsets);
        assert_eq!(columns, [0, P, 1, 2, P, 2, P, P, 3, 0, P, P, 3, P, P]);
    }

    #[test]
    fn no_rows_take_no_slots() {
        let a = CsrMatrix::<f32>::zeros(0, 3).unwrap();
        let offsets = slice_offsets(a.view(), 32);
        assert_eq!((offsets.as_slice(), rows(a.view()).count()), (&[0][..], 0));
        assert!(slots(a.view(), 32, &offsets).0.is_empty());
    }
}
