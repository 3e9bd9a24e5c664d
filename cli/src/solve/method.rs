//! The method of a system: the one asked for, or one that suits the matrix.

use super::Name;
use crate::console::percent;
use clap::ValueEnum;
use rayon::prelude::*;
use sparseop::Scalar;
use sparseop::matrix::{CsrMatrix, CsrView};

/// Largest relative difference of a symmetric matrix and its transpose: allows values that were
/// rounded to 8 digits.
const ROUNDING: f64 = 1e-8;

/// Properties of a matrix that decide on the method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Suitability {
    /// ‖A − Aᵀ‖ / ‖A‖ in the Frobenius norm.
    asymmetry: f64,
    /// Share of the entries that differ from their transposed entry.
    differing: f64,
    /// First row, from 0, whose diagonal entry is not above 0.
    not_positive: Option<usize>,
}

/// Some rows of a matrix, compared with those of its transpose.
#[derive(Debug, Clone, Copy)]
pub(super) struct ComparedRows {
    /// Σ (a − aᵀ)² and Σ a².
    pub(super) squares: f64,
    pub(super) all: f64,
    /// Number of entries that differ from their transposed entry.
    pub(super) differing: f64,
    /// Number of all entries.
    pub(super) entries: f64,
    /// First row, from 0, whose diagonal entry is not above 0.
    pub(super) not_positive: Option<usize>,
}

impl ComparedRows {
    /// Compares the rows from `first` on with those of the transpose.
    pub(super) fn of<T: Scalar>(a: CsrView<'_, T>, mirror: CsrView<'_, T>, first: usize) -> Self {
        let rows = (0..a.nrows()).into_par_iter();
        let compared = rows.map(|row| differences(a.row(row), mirror.row(row)));
        let add = |x: (f64, f64, u64), y: (f64, f64, u64)| (x.0 + y.0, x.1 + y.1, x.2 + y.2);
        let (squares, all, differing) = compared.reduce(|| (0.0, 0.0, 0), add);
        let is_positive = |&row: &usize| {
            let (columns, values) = a.row(row);
            let entries = columns.iter().zip(values);
            let places = entries.filter(|(column, _)| **column as usize == first + row);
            places.map(|(_, value)| value.to_f64()).sum::<f64>() > 0.0
        };
        let not_positive = (0..a.nrows()).into_par_iter().find_first(|row| !is_positive(row));
        Self {
            squares,
            all,
            differing: differing as f64,
            entries: a.nnz() as f64,
            not_positive: not_positive.map(|row| first + row),
        }
    }
}

impl Suitability {
    /// Compares a matrix with its transpose. `None` if it is not square, or if there is no memory
    /// for the transpose.
    pub(super) fn of<T: Scalar>(a: &CsrMatrix<T>) -> Option<Self> {
        if a.nrows() != a.ncols() {
            return None;
        }
        let transposed = a.view().try_transpose().ok()?;
        Some(Self::from(&[ComparedRows::of(a.view(), transposed.view(), 0)]))
    }

    /// Properties of a matrix from those of its rows, some at a time.
    pub(super) fn from(rows: &[ComparedRows]) -> Self {
        let sum = |of: fn(&ComparedRows) -> f64| rows.iter().map(of).sum::<f64>();
        let (squares, all) = (sum(|rows| rows.squares), sum(|rows| rows.all));
        Self {
            asymmetry: if all == 0.0 { 0.0 } else { (squares / all).sqrt() },
            differing: sum(|rows| rows.differing) / sum(|rows| rows.entries).max(1.0),
            not_positive: rows.iter().find_map(|rows| rows.not_positive),
        }
    }

    fn is_symmetric(&self) -> bool {
        self.asymmetry <= ROUNDING
    }

    /// The method for a matrix with these properties, and the reason.
    pub(super) fn method(&self) -> (Name, String) {
        match self.obstacle() {
            None => (Name::Cg, "the matrix is symmetric and its diagonal above 0".to_owned()),
            Some(obstacle) if self.is_symmetric() => (Name::Gmres, obstacle),
            Some(obstacle) => (Name::Bicgstab, obstacle),
        }
    }

    /// The reason why the matrix is not symmetric positive definite, if one was found.
    fn obstacle(&self) -> Option<String> {
        if !self.is_symmetric() {
            let differing = percent(self.differing);
            return Some(format!(
                "the matrix is not symmetric: {differing} of its entries differ from the \
                 transposed one"
            ));
        }
        let row = self.not_positive?;
        let row = row + 1;
        Some(format!(
            "the matrix is not positive definite: entry {row}, {row} (counted from 1) is not \
             above 0"
        ))
    }

    /// The error about a named method that needs another matrix.
    pub(super) fn refusal(&self, method: Name) -> Option<String> {
        if !needs_positive_definite(method) {
            return None;
        }
        let (obstacle, name) = (self.obstacle()?, method.to_possible_value()?);
        let name = name.get_name();
        Some(format!(
            "{name} needs a symmetric positive definite matrix, and {obstacle}; use --method \
             bicgstab or --method gmres"
        ))
    }
}

/// True for the methods that need a symmetric positive definite matrix.
pub(super) fn needs_positive_definite(method: Name) -> bool {
    matches!(method, Name::Cg | Name::SingleReductionCg | Name::Chebyshev)
}

/// Squares of the differences of two sorted rows, squares of the first row's values, and the number
/// of its entries that differ by more than rounding.
fn differences<T: Scalar>(row: (&[u32], &[T]), mirror: (&[u32], &[T])) -> (f64, f64, u64) {
    let (mut squares, mut all, mut differing) = (0.0, 0.0, 0);
    let mut others = mirror.0.iter().zip(mirror.1).peekable();
    for (column, value) in row.0.iter().zip(row.1) {
        let value = value.to_f64();
        // An entry without one in the first row is counted in the row of its own transposed entry.
        while let Some((_, other)) = others.next_if(|(other, _)| *other < column) {
            squares += other.to_f64().powi(2);
        }
        let same = others.next_if(|(other, _)| *other == column);
        let other = same.map_or(0.0, |(_, other)| other.to_f64());
        squares += (value - other).powi(2);
        all += value * value;
        let tolerance = ROUNDING * value.abs().max(other.abs());
        differing += u64::from((value - other).abs() > tolerance || value.is_nan());
    }
    squares += others.map(|(_, other)| other.to_f64().powi(2)).sum::<f64>();
    (squares, all, differing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suitability(values: [f64; 4]) -> Suitability {
        let a = CsrMatrix::try_new(2, 2, vec![0, 2, 4], vec![0, 1, 0, 1], values.to_vec()).unwrap();
        Suitability::of(&a).unwrap()
    }

    #[test]
    fn the_method_suits_the_matrix() {
        let method = |values| suitability(values).method().0;
        assert_eq!(method([4.0, 1.0, 1.0, 3.0]), Name::Cg);
        assert_eq!(method([4.0, 1.0, 1.0 + 1e-12, 3.0]), Name::Cg, "rounded");
        assert_eq!(method([4.0, 1.0, 1.5, 3.0]), Name::Bicgstab);
        assert_eq!(method([4.0, 1.0, 1.0, 0.0]), Name::Gmres);
        assert_eq!(method([4.0, f64::NAN, 1.0, 3.0]), Name::Bicgstab);
    }

    #[test]
    fn an_entry_without_its_mirror_image_counts() {
        let a = CsrMatrix::try_new(2, 2, vec![0, 2, 3], vec![0, 1, 1], vec![1.0, 2.0, 1.0]);
        let found = Suitability::of(&a.unwrap()).unwrap();
        assert!((found.asymmetry - (8.0f64 / 6.0).sqrt()).abs() < 1e-15, "{found:?}");
        assert!((found.differing - 1.0 / 3.0).abs() < 1e-15, "{found:?}");
        let wide = CsrMatrix::try_new(1, 2, vec![0, 1], vec![1], vec![1.0]).unwrap();
        assert_eq!(Suitability::of(&wide), None);
    }

    #[test]
    fn only_methods_for_definite_matrices_are_refused() {
        let found = suitability([4.0, 1.0, 1.5, 3.0]);
        let refusal = found.refusal(Name::Cg).unwrap();
        assert!(refusal.contains("50.0 % of its entries differ"), "{refusal}");
        assert!(refusal.ends_with("use --method bicgstab or --method gmres"), "{refusal}");
        assert!(found.refusal(Name::Chebyshev).is_some());
        assert_eq!([Name::Bicgstab, Name::Gmres].map(|name| found.refusal(name)), [None, None]);
    }
}
