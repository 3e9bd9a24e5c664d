//! Panels: rows that reuse the elements of `x` they share.

use super::constants::{LEAST_DENSITY, MOST_DENSITY, PANEL_ALIGN};
use crate::Error;
use crate::analysis::Sampler;
use crate::matrix::CsrColumns;
use std::ops::Range;

/// A panel: consecutive rows and the span of their columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Panel {
    pub(super) rows: Range<usize>,
    /// First column, rounded down to a multiple of 8.
    pub(super) first_col: u32,
    /// Number of windows that the columns are cut into.
    pub(super) windows: u32,
    /// Columns per window, a multiple of 8.
    pub(super) width: u32,
}

impl Panel {
    /// Returns the panel that begins with row `first`, in windows of at most `widest` columns, a
    /// multiple of 8, and the number of its entries.
    pub(super) fn starting_at(rows: &PanelRows<'_>, first: usize, widest: u32) -> (Self, usize) {
        let mut examined = rows.examined(first).peekable();
        let begin = examined.peek().map_or(rows.nnz, |row| row.begin);
        let (mut span, mut end) = (ColumnSpan::EMPTY, (rows.nrows, rows.nnz));
        for row in examined {
            let next = span.union(row.span);
            let entries = (row.begin - begin) as u64;
            let columns = span.columns().max(widest.into());
            let more = next.windows(widest) > span.windows(widest);
            if entries >= MOST_DENSITY * columns || (entries >= LEAST_DENSITY * columns && more) {
                end = (row.number, row.begin);
                break;
            }
            span = next;
        }
        (Self::covering(first..end.0, span, widest), end.1 - begin)
    }

    /// The panel of rows with this column span, in windows of at most `widest` columns.
    pub(super) fn covering(rows: Range<usize>, span: ColumnSpan, widest: u32) -> Self {
        let windows = span.windows(widest);
        let width = span.columns().div_ceil(windows.max(1)).next_multiple_of(PANEL_ALIGN.into());
        let first_col = span.min.min(span.max) / PANEL_ALIGN * PANEL_ALIGN;
        Self { rows, first_col, windows: windows as u32, width: width as u32 }
    }

    /// Returns the window of a column, and the first column behind that window.
    pub(super) fn window(&self, col: u32) -> (u32, u64) {
        let window = (col - self.first_col) / self.width;
        (window, u64::from(self.first_col) + (u64::from(window) + 1) * u64::from(self.width))
    }

    /// Calls `visit` with the window and the number of entries of every non-empty cell of a row:
    /// its entries in one window, which are consecutive. The windows of the row must not decrease.
    pub(super) fn for_each_cell(&self, mut cols: &[u32], mut visit: impl FnMut(u32, usize)) {
        while let Some(&first) = cols.first() {
            let (window, end) = self.window(first);
            let len = cols.partition_point(|&col| u64::from(col) < end);
            visit(window, len);
            cols = &cols[len..];
        }
    }
}

/// Smallest and largest column of some rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct ColumnSpan {
    pub(super) min: u32,
    pub(super) max: u32,
}

impl ColumnSpan {
    /// Span of rows without entries.
    const EMPTY: Self = Self { min: u32::MAX, max: 0 };

    fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// Number of columns, counted from the aligned start of the first window; 0 if there are none.
    fn columns(self) -> u64 {
        let first = u64::from(self.min / PANEL_ALIGN * PANEL_ALIGN);
        if self.min > self.max { 0 } else { u64::from(self.max) + 1 - first }
    }

    /// Number of windows of at most `widest` columns.
    fn windows(self, widest: u32) -> u64 {
        self.columns().div_ceil(widest.into())
    }
}

/// Rows of a matrix, as input for building panels.
pub(super) struct PanelRows<'a> {
    nrows: usize,
    nnz: usize,
    rows: Rows<'a>,
    /// Rows of a panel after which the distance to the next examined row grows by one:
    /// `usize::MAX` examines every row.
    sampling: usize,
}

/// Starts and column spans of rows.
enum Rows<'a> {
    /// Spans are computed for any row, from its first and its last column: columns are sorted.
    Sorted(CsrColumns<'a>),
    /// Spans are computed for any row, from all of its columns.
    Any(CsrColumns<'a>),
    /// The examined rows of panels are known.
    Examined(Vec<Vec<ExaminedRow>>),
}

/// A row that is examined for a panel.
#[derive(Debug, Clone, Copy)]
struct ExaminedRow {
    number: usize,
    /// Entries before it.
    begin: usize,
    span: ColumnSpan,
}

impl<'a> PanelRows<'a> {
    /// Exact panels of a matrix.
    pub(super) fn all(a: CsrColumns<'a>) -> Self {
        let rows = if a.are_sorted() { Rows::Sorted(a) } else { Rows::Any(a) };
        Self { nrows: a.nrows(), nnz: a.nnz(), rows, sampling: usize::MAX }
    }

    /// Approximate panels that begin with the rows `firsts`, whose rows are examined at distances
    /// that grow by one every `sampling` rows.
    ///
    /// # Errors
    ///
    /// Errors of a GPU that has the matrix in its memory.
    pub(super) fn sampled(
        a: Sampler<'a>,
        sampling: usize,
        firsts: impl Iterator<Item = usize>,
    ) -> Result<Self, Error> {
        let (nrows, nnz) = (a.nrows(), a.nnz());
        let mut own = Self { nrows, nnz, rows: Rows::Examined(Vec::new()), sampling };
        own.rows = match a {
            Sampler::Host(a) => Rows::Any(a),
            Sampler::Gpu(gpu) => {
                // Row numbers have 32 bits.
                let of_panel = |first| own.numbers(first).map(|row| row as u32);
                let panels: Vec<Vec<u32>> = firsts.map(|first| of_panel(first).collect()).collect();
                let mut found = gpu.spans(&panels.concat())?.into_iter();
                let examined = |panel: &Vec<u32>| {
                    let rows = panel.iter().zip(found.by_ref());
                    let row = |(&row, ([min, max], begin)): (&u32, ([u32; 2], usize))| {
                        ExaminedRow { number: row as usize, begin, span: ColumnSpan { min, max } }
                    };
                    rows.map(row).collect()
                };
                Rows::Examined(panels.iter().map(examined).collect())
            }
        };
        Ok(own)
    }

    /// Numbers of the rows that are examined for a panel that begins with row `first`.
    fn numbers(&self, first: usize) -> impl Iterator<Item = usize> {
        let (nrows, sampling) = (self.nrows, self.sampling);
        let next = move |row: &usize| Some(row + 1 + (row - first) / sampling);
        std::iter::successors(Some(first), next).take_while(move |&row| row < nrows)
    }

    /// Rows that are examined for a panel that begins with row `first`.
    fn examined(&self, first: usize) -> impl Iterator<Item = ExaminedRow> {
        let known = match &self.rows {
            Rows::Examined(panels) => {
                let of = |rows: &&Vec<ExaminedRow>| rows.first().is_some_and(|r| r.number == first);
                panels.iter().find(of).map_or(&[][..], |rows| rows)
            }
            _ => &[],
        };
        let computed = match &self.rows {
            Rows::Sorted(a) | Rows::Any(a) => Some(a.row_ptr()),
            Rows::Examined(_) => None,
        };
        let computed = computed.into_iter().flat_map(move |offsets| {
            self.numbers(first).map(move |number| ExaminedRow {
                number,
                begin: offsets[number],
                span: self.span(number),
            })
        });
        known.iter().copied().chain(computed)
    }

    /// Least and largest column of a row.
    fn span(&self, row: usize) -> ColumnSpan {
        let of = |min, max| ColumnSpan { min, max };
        match &self.rows {
            Rows::Sorted(a) => match a.row(row) {
                [] => ColumnSpan::EMPTY,
                cols => of(cols[0], cols[cols.len() - 1]),
            },
            Rows::Any(a) => {
                let columns = a.row(row).iter();
                columns.fold(ColumnSpan::EMPTY, |span, &col| span.union(of(col, col)))
            }
            Rows::Examined(_) => unreachable!("the spans of examined rows are known"),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::Scalar;
    use crate::matrix::CsrMatrix;

    /// The panels of a matrix with sorted rows.
    pub(in super::super) fn panels<T: Scalar>(a: &CsrMatrix<T>, widest: u32) -> Vec<Panel> {
        let rows = PanelRows::all(a.view().columns());
        let mut panels: Vec<Panel> = Vec::new();
        while panels.last().map_or(0, |panel| panel.rows.end) < a.nrows() {
            let first = panels.last().map_or(0, |panel| panel.rows.end);
            panels.push(Panel::starting_at(&rows, first, widest).0);
        }
        panels
    }

    /// Matrix with the given columns per row.
    fn matrix(ncols: usize, rows: &[&[u32]]) -> CsrMatrix<f32> {
        let ends = rows.iter().scan(0, |end, row| {
            *end += row.len();
            Some(*end)
        });
        let row_ptr = std::iter::once(0).chain(ends).collect();
        let cols = rows.concat();
        let values = vec![1.0; cols.len()];
        CsrMatrix::try_new(rows.len(), ncols, row_ptr, cols, values).unwrap()
    }

    #[test]
    fn panels_by_hand() {
        let full: Vec<u32> = (0..8).collect();
        let far: Vec<u32> = (8..16).collect();
        // Four full rows suffice for one window, and the fifth row would need another.
        let a = matrix(16, &[&full, &full, &full, &full, &far, &[], &far]);
        let panel = |rows, first_col, windows, width| Panel { rows, first_col, windows, width };
        assert_eq!(panels(&a, 8), [panel(0..4, 0, 1, 8), panel(4..7, 8, 1, 8)]);
        // Eight rows are the maximum in any case.
        let a = matrix(16, &[&full[..]; 9]);
        assert_eq!(panels(&a, 8), [panel(0..8, 0, 1, 8), panel(8..9, 0, 1, 8)]);
        // Windows share the columns evenly.
        let a = matrix(100, &[&[3, 28]]);
        assert_eq!(panels(&a, 24), [panel(0..1, 0, 2, 16)]);
        assert_eq!(panels(&matrix(5, &[&[], &[]]), 8), [panel(0..2, 0, 0, 0)]);
    }

    #[test]
    fn the_cells_of_a_row_by_hand() {
        let panel = Panel { rows: 0..1, first_col: 8, windows: 3, width: 16 };
        let mut cells = Vec::new();
        panel.for_each_cell(&[8, 23, 40, 41, 41], |window, len| cells.push((window, len)));
        assert_eq!(cells, [(0, 2), (2, 3)]);
    }
}
