//! Gain of cache blocking: estimated from a sample of the panels, without packing.

use super::panel::{Panel, PanelRows};
use crate::analysis::{Analysis, PendingSample, RowStats, Sample, Sampler, Structure, ratio};
use crate::{Error, parallel};

/// Number of sampled panels.
const PANELS: usize = 8;

/// Rows at the start of a panel that are all examined.
const DENSE_ROWS: usize = 64;

/// Estimated work with tiles, for a matrix whose gathers miss the cache. Estimated from a
/// sample of its panels and entries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Blocking {
    /// True if the columns of all sampled rows are in order, equal ones allowed.
    pub(super) sorted: bool,
    /// Estimates for tiles of 49152 and of 24576 columns: 192 KiB of `f32` and of `f64`.
    estimates: [TileEstimate; 2],
}

/// Estimated work with tiles of one size: windows, or hot columns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TileEstimate {
    /// Maximum number of columns of a tile.
    pub(super) columns: u32,
    /// Non-empty cells over entries if every panel is cut into windows of `columns` columns.
    pub(super) cells: f64,
    /// Tiles per entry if every panel is cut into windows of `columns` columns.
    pub(super) tiles: f64,
    /// Share of the entries that lie in the `columns` columns with the most entries.
    pub(super) hot: f64,
}

impl Blocking {
    /// Number of entries below which there is too little to gain.
    const MIN: u64 = 1 << 20;

    /// Reuse distance, in entries, within which a multiprocessor still has a part of `x` in its
    /// first-level cache, as the cost model takes it.
    const NEAR: f64 = 8192.0;

    /// Share of the gathers that must miss the first-level cache.
    const MISSING: f64 = 0.1;

    /// Number of entries from which on gathers that hit that cache are slow, too, if rows are long:
    /// shared memory delivers three times as many elements. On an H200 the products of six such
    /// matrices with 7.5 to 24 million entries take 0.71 to 0.94 times as long as those of CSR,
    /// those of four with 4.3 to 5 million 0.9 to 1.8 times.
    const MANY: u64 = 6 << 20;

    /// Least mean number of entries of a row, for each window of 24576 columns, that is called
    /// long: a row has a sum for each window. Matrices of finite elements have shorter rows.
    const PER_WINDOW: f64 = 64.0;

    /// Sizes of tiles that are measured, in columns.
    const COLUMNS: [u32; 2] = [49_152, 24_576];

    /// The estimate of an analysed matrix, if it was measured.
    pub(super) fn of(analysis: &Analysis) -> Option<&Self> {
        analysis.probes.get()
    }

    /// Measures `a`. None if it has too few entries, or if hardly any of its gathers miss and its
    /// rows are not long: the estimate does not matter in that case.
    ///
    /// # Errors
    ///
    /// Errors of a GPU that has the matrix in its memory.
    pub(super) fn new(
        a: Sampler<'_>,
        rows: &RowStats,
        structure: &Structure,
    ) -> Result<Option<Self>, Error> {
        let missing = 1.0 - structure.reuse.share_within(Self::NEAR);
        let windows = a.ncols().div_ceil(Self::COLUMNS[1] as usize) as f64;
        let has_long_rows = rows.nnz >= Self::MANY && rows.mean >= Self::PER_WINDOW * windows;
        if rows.nnz < Self::MIN || missing < Self::MISSING && !has_long_rows {
            return Ok(None);
        }
        let frequencies = a.frequencies()?;
        let rows = PanelRows::sampled(a, DENSE_ROWS, (0..PANELS).map(|i| first_row(a.nrows(), i)))?;
        let panels = PanelSample::of_all(a, &rows)?.map(|sample| sample.windows());
        let frequencies = frequencies()?;
        let estimate = |i: usize| {
            let ((cells, tiles, _), columns) = (panels[i], Self::COLUMNS[i]);
            TileEstimate { columns, cells, tiles, hot: frequencies.share_in(columns, a.ncols()) }
        };
        let sorted = panels.iter().all(|panel| panel.2);
        Ok(Some(Self { sorted, estimates: [estimate(0), estimate(1)] }))
    }

    /// Estimate for tiles of `columns` columns: a bound from the nearest measured size.
    pub(super) fn with(&self, columns: u32) -> TileEstimate {
        let [wide, narrow] = self.estimates;
        let measured = if columns >= wide.columns { wide } else { narrow };
        let smaller = (f64::from(measured.columns) / f64::from(columns.max(1))).max(1.0);
        TileEstimate {
            columns,
            cells: (measured.cells * smaller).min(1.0),
            tiles: (measured.tiles * smaller).min(1.0),
            hot: measured.hot / smaller,
        }
    }
}

/// First row of sampled panel number `i`.
fn first_row(nrows: usize, i: usize) -> usize {
    nrows * i / PANELS
}

/// Rows of the sampled panels whose cells are counted.
struct PanelSample<'a> {
    panels: Vec<Panel>,
    /// Number of counted rows, and entries of each panel.
    sizes: Vec<(usize, usize)>,
    /// Columns of the counted rows of all panels.
    rows: Sample<'a, u32>,
}

impl<'a> PanelSample<'a> {
    /// Takes panels of windows of at most as many columns as each of `COLUMNS`.
    fn of_all(a: Sampler<'a>, rows: &PanelRows<'_>) -> Result<[Self; 2], Error> {
        /// Largest number of rows of a panel whose cells are counted.
        const ROWS: usize = 64;
        /// Number of entries of a panel after which counting ends.
        const ENTRIES: usize = 1 << 13;
        let nrows = a.nrows();
        let panel = |i: usize| {
            let first = first_row(nrows, i % PANELS);
            Panel::starting_at(rows, first, Blocking::COLUMNS[i / PANELS])
        };
        let panels = parallel::map(Blocking::COLUMNS.len() * PANELS, 1, panel);
        let counted =
            |panel: &Panel| panel.rows.clone().step_by(panel.rows.len().div_ceil(ROWS).max(1));
        let rows = panels.iter().flat_map(|(panel, _)| counted(panel));
        let mut entries = a.entries(rows.map(|row| row..row + 1))?.into_iter();
        let mut sample = |panels: &[(Panel, usize)]| {
            let (mut sizes, mut ranges) = (Vec::new(), Vec::new());
            for (panel, all) in panels {
                let (mut visited, before) = (0, ranges.len());
                for own in entries.by_ref().take(counted(panel).len()) {
                    if visited < ENTRIES {
                        visited += own.len();
                        ranges.push(own);
                    }
                }
                sizes.push((ranges.len() - before, *all));
            }
            Ok::<_, Error>((sizes, a.columns(ranges)?))
        };
        let (wide, narrow) = panels.split_at(PANELS);
        let [first, second] = [sample(wide)?, sample(narrow)?];
        let of = |panels: &[(Panel, usize)], (sizes, rows): (_, PendingSample<'a, u32>)| {
            let panels = panels.iter().map(|(panel, _)| panel.clone()).collect();
            Ok::<_, Error>(Self { panels, sizes, rows: rows.wait()? })
        };
        Ok([of(wide, first)?, of(narrow, second)?])
    }

    /// Non-empty cells and tiles over entries, and true if all sampled rows are sorted.
    fn windows(&self) -> (f64, f64, bool) {
        let sampled = parallel::map(PANELS, 1, |i| {
            let (panel, (rows, entries)) = (&self.panels[i], self.sizes[i]);
            let first: usize = self.sizes[..i].iter().map(|(rows, _)| rows).sum();
            let (mut visited, mut cells, mut all_sorted) = (0, 0, true);
            let mut windows = Vec::new();
            for cols in (first..first + rows).map(|row| self.rows.get(row)) {
                // Rows in between may have columns outside of the sampled span.
                let within = |col: &&u32| **col >= panel.first_col;
                windows.clear();
                let sorted = cols.is_sorted();
                all_sorted &= sorted;
                if sorted {
                    let before = cols.partition_point(|&col| col < panel.first_col);
                    panel.for_each_cell(&cols[before..], |window, _| windows.push(window));
                } else {
                    windows.extend(cols.iter().filter(within).map(|&col| panel.window(col).0));
                    windows.sort_unstable();
                    windows.dedup();
                }
                cells += windows.len();
                visited += cols.len();
            }
            ([cells as f64, visited as f64, f64::from(panel.windows), entries as f64], all_sorted)
        });
        let ([cells, visited, windows, entries], sorted) = sampled
            .into_iter()
            .fold(([0.0; 4], true), |a, b| (std::array::from_fn(|i| a.0[i] + b.0[i]), a.1 && b.1));
        (ratio(cells, visited), ratio(windows, entries), sorted)
    }
}

#[cfg(test)]
mod tests {
    use super::super::panel::tests::panels;
    use super::*;
    use crate::matrix::gallery;

    #[test]
    fn only_measurements_that_are_read_are_made() {
        let blocking = |spec: &str| {
            let a = spec.parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
            Blocking::of(&Analysis::of(a.view())).copied()
        };
        assert_eq!(blocking("poisson2d,n=600"), None);
        assert_eq!(blocking("uniform,rows=1k"), None);
        // Gathers hit the first-level cache: rows are long enough, or they are not.
        let banded = |nnz| format!("artificial,rows=30k,nnz={nnz},band=1,deviation=9,longest=900");
        assert!(blocking(&banded("7M")).unwrap().with(24_576).cells < 0.02);
        assert_eq!(blocking(&banded("5M")), None, "few entries");
        assert_eq!(blocking("poisson3d,n=100"), None, "short rows");
        // Sixteen entries a row in thirteen windows, and all columns are equally frequent.
        let uniform = blocking("uniform,rows=300k").unwrap().with(24_576);
        assert!(uniform.cells > 0.5 && (uniform.hot - 0.08).abs() < 0.03, "{uniform:?}");
    }

    #[test]
    fn a_sample_agrees_with_the_whole() {
        for spec in ["lognormal,rows=200k", "lp,rows=500", "rmat,scale=17"] {
            let a = spec.parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
            let analysis = Analysis::of(a.view());
            let Some(blocking) = Blocking::of(&analysis) else {
                panic!("{spec}: {:?}", analysis.rows.nnz)
            };
            for estimated in blocking.estimates {
                let panels = panels(&a, estimated.columns);
                let tiles: u32 = panels.iter().map(|panel| panel.windows).sum();
                let mut cells = 0;
                for panel in &panels {
                    panel.rows.clone().for_each(|row| {
                        panel.for_each_cell(a.view().row(row).0, |_, _| cells += 1)
                    });
                }
                let (cells, tiles) =
                    (f64::from(cells) / a.nnz() as f64, f64::from(tiles) / a.nnz() as f64);
                assert!(
                    (estimated.cells / cells - 1.0).abs() < 0.2,
                    "{spec}: {estimated:?}, cells {cells}"
                );
                assert!(
                    (0.4..2.5).contains(&(estimated.tiles / tiles)),
                    "{spec}: {estimated:?}, tiles {tiles}"
                );
                let mut counts = vec![0usize; a.ncols()];
                a.col_idx().iter().for_each(|&col| counts[col as usize] += 1);
                counts.sort_unstable_by(|a, b| b.cmp(a));
                let hot: usize = counts.iter().take(estimated.columns as usize).sum();
                let hot = hot as f64 / a.nnz() as f64;
                // Columns chosen by a sample are not exactly the most frequent ones.
                assert!(
                    estimated.hot < hot + 0.02 && estimated.hot > 0.6 * hot,
                    "{spec}: {estimated:?}, hot {hot}"
                );
            }
        }
    }
}
