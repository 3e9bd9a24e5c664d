//! Symmetry of a matrix; measured only on request, because it requires a transpose.

use super::rows::ratio;
use crate::matrix::{CsrMatrix, CsrView};
use crate::{Error, Scalar, parallel};
use serde::{Deserialize, Serialize};
use std::ops::{AddAssign, Range};

/// Rows that a task compares.
const ROWS_PER_TASK: usize = 1 << 10;

/// Number of positions (i, j) of a matrix whose mirror image (j, i) exists, and comparison of their
/// values. A *place* is a position with one entry or several, which add up in the order in which
/// they are stored; a place on the diagonal is its own mirror image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symmetry {
    /// True if there are as many rows as columns.
    pub square: bool,
    /// Places that hold entries.
    pub places: u64,
    /// Places whose mirror image holds entries too.
    pub mirrored: u64,
    /// Places whose mirror image holds the same value.
    pub equal: u64,
    /// Places whose mirror image holds the negated value; on the diagonal, zeros.
    pub opposite: u64,
}

impl Symmetry {
    /// Compares `a` with its transpose. Needs about the memory of `a` once more, twice if its
    /// columns are unsorted.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub fn of<T: Scalar>(a: CsrView<'_, T>) -> Result<Self, Error> {
        T::symmetry(a)
    }

    pub(crate) fn of_impl<T: Scalar>(a: CsrView<'_, T>) -> Result<Self, Error> {
        let transposed = a.try_transpose()?;
        let sorted = a.columns().are_sorted();
        // Transposing twice sorts the columns and keeps the order of entries with the same place.
        let copy = (!sorted).then(|| transposed.view().try_transpose()).transpose()?;
        let (a, transposed) = (copy.as_ref().map_or(a, CsrMatrix::view), transposed.view());
        let add = |sum: &mut Self, rows: Range<usize>| {
            for row in rows {
                let mirror =
                    if row < transposed.nrows() { transposed.row(row) } else { (&[][..], &[][..]) };
                *sum += Self::of_row(a.row(row), mirror);
            }
        };
        let merge = |mut sum: Self, part| {
            sum += part;
            sum
        };
        let sum = parallel::fold(a.nrows(), ROWS_PER_TASK, Self::default, add, merge);
        Ok(Self { square: a.nrows() == a.ncols(), ..sum })
    }

    /// True if the matrix equals its transpose.
    pub fn symmetric(&self) -> bool {
        self.square && self.equal == self.places
    }

    /// True if the matrix equals its negated transpose.
    pub fn skew_symmetric(&self) -> bool {
        self.square && self.opposite == self.places
    }

    /// Share of the places, from 0 to 1, whose mirror image holds entries; 0 without entries.
    pub fn pattern_share(&self) -> f64 {
        ratio(self.mirrored as f64, self.places as f64)
    }

    /// Share of the places, from 0 to 1, whose mirror image holds the same value; 0 without
    /// entries.
    pub fn numeric_share(&self) -> f64 {
        ratio(self.equal as f64, self.places as f64)
    }

    /// Merges a sorted row with the same row of the transpose, sorted too.
    fn of_row<T: Scalar>(mut row: (&[u32], &[T]), mut mirror: (&[u32], &[T])) -> Self {
        let mut sum = Self::default();
        while let Some((col, value)) = take_place(&mut row) {
            let skipped = mirror.0.partition_point(|&c| c < col);
            mirror = (&mirror.0[skipped..], &mirror.1[skipped..]);
            sum.places += 1;
            if mirror.0.first() == Some(&col)
                && let Some((_, image)) = take_place(&mut mirror)
            {
                sum.mirrored += 1;
                sum.equal += u64::from(value == image);
                sum.opposite += u64::from(value == -image);
            }
        }
        sum
    }
}

/// Removes the entries of the first place from a sorted row and returns its column and their sum.
fn take_place<T: Scalar>(row: &mut (&[u32], &[T])) -> Option<(u32, T)> {
    let (columns, values) = *row;
    let col = *columns.first()?;
    let len = columns.iter().take_while(|&&c| c == col).count();
    *row = (&columns[len..], &values[len..]);
    let sum = values[1..len].iter().fold(values[0], |sum, &value| sum + value);
    Some((col, sum))
}

impl AddAssign for Symmetry {
    fn add_assign(&mut self, other: Self) {
        self.places += other.places;
        self.mirrored += other.mirrored;
        self.equal += other.equal;
        self.opposite += other.opposite;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Triplets;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn of(
        nrows: usize,
        ncols: usize,
        row_ptr: &[usize],
        col_idx: &[u32],
        values: &[f64],
    ) -> Symmetry {
        let a = CsrView::try_new(nrows, ncols, row_ptr, col_idx, values).unwrap();
        Symmetry::of(a).unwrap()
    }

    #[test]
    fn symmetric_skew_and_neither() {
        // 2 5 / 5 0, unsorted and with the 2 in two entries
        let s = of(2, 2, &[0, 3, 4], &[1, 0, 0, 0], &[5., 1., 1., 5.]);
        assert!(s.symmetric() && !s.skew_symmetric());
        assert_eq!((s.places, s.mirrored, s.equal, s.opposite), (3, 3, 3, 0));
        // . 4 / -4 .
        let s = of(2, 2, &[0, 1, 2], &[1, 0], &[4., -4.]);
        assert!(s.skew_symmetric() && !s.symmetric());
        // 1 2 / . 3
        let s = of(2, 2, &[0, 2, 3], &[0, 1, 1], &[1., 2., 3.]);
        assert!(!s.symmetric() && !s.skew_symmetric());
        assert_eq!((s.pattern_share(), s.numeric_share()), (2.0 / 3.0, 2.0 / 3.0));
    }

    #[test]
    fn rectangles_are_never_symmetric() {
        let s = of(2, 3, &[0, 1, 3], &[1, 0, 2], &[4., 4., 1.]);
        assert!(!s.square && !s.symmetric());
        assert_eq!((s.places, s.equal), (3, 2));
        assert_eq!(of(3, 1, &[0, 0, 0, 1], &[0], &[1.]).places, 1);
    }

    #[test]
    fn nothing() {
        assert!(of(0, 0, &[0], &[], &[]).symmetric());
        assert!(!of(0, 2, &[0], &[], &[]).symmetric());
        assert_eq!(of(2, 2, &[0, 0, 0], &[], &[]).pattern_share(), 0.0);
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(
            m in 1usize..6, n in 1usize..6,
            entries in prop::collection::vec((0usize..6, 0usize..6, -2i32..3), 0..30),
        ) {
            let mut t = Triplets::new(m, n).unwrap();
            let mut places = BTreeMap::new();
            for (i, j, value) in entries {
                let (i, j, value) = (i % m, j % n, f64::from(value));
                t.push(i, j, value).unwrap();
                *places.entry((i, j)).or_insert(0.0) += value;
            }
            let count = |holds: fn(f64, f64) -> bool| {
                let image = |i, j| places.get(&(j, i)).copied();
                let matches = |(&(i, j), &v)| image(i, j).is_some_and(|w| holds(v, w));
                places.iter().filter(|&entry| matches(entry)).count() as u64
            };
            let s = Symmetry::of(t.to_csr().view()).unwrap();
            prop_assert_eq!(s.places, places.len() as u64);
            prop_assert_eq!(s.mirrored, count(|_, _| true));
            prop_assert_eq!(s.equal, count(|v, w| v == w));
            prop_assert_eq!(s.opposite, count(|v, w| v == -w));
        }
    }
}
