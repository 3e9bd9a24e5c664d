//! Picture of a matrix's pattern: at most 256 × 256 pixels, darker with more entries.

use super::axis::px;
use super::grouped;
use anyhow::Result;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use maud::{Markup, html};
use rayon::prelude::*;
use sparseop::Scalar;
use sparseop::matrix::CsrView;

/// Maximum number of pixels along a side.
const PIXELS: usize = 256;

/// Number of shades. The first one is transparent.
const SHADES: usize = 16;

/// Colour of all shades, of medium brightness: visible on a light page and on a dark one.
const COLOUR: [u8; 3] = [0x2f, 0x74, 0xd0];

/// Opacity of the palest shade: a single entry of a million is visible.
const PALEST: f64 = 0.35;

/// Units of the drawing along its longer side.
const SIDE: f64 = 270.0;

/// Minimum width of the drawing as a share of its length, for matrices with many more rows than
/// columns, and the reverse.
const NARROWEST: f64 = 0.3;

/// Picture of the positions of a matrix's entries.
#[derive(Debug)]
pub(crate) struct Raster {
    nrows: usize,
    ncols: usize,
    /// Rows and columns of one pixel.
    cell: (usize, usize),
    /// Least and greatest share of occupied positions in a pixel that has any.
    density: Option<(f64, f64)>,
    /// The picture as PNG, in base 64.
    image: String,
}

impl Raster {
    /// Counts the entries in every pixel, in one parallel pass.
    ///
    /// # Errors
    ///
    /// If the picture cannot be encoded.
    pub(crate) fn of<T: Scalar>(a: CsrView<'_, T>) -> Result<Self> {
        let (nrows, ncols) = (a.nrows(), a.ncols());
        let cell = (nrows.div_ceil(PIXELS).max(1), ncols.div_ceil(PIXELS).max(1));
        let (height, width) = (nrows.div_ceil(cell.0), ncols.div_ceil(cell.1));
        let counts: Vec<u64> =
            (0..height).into_par_iter().flat_map_iter(|y| line(a, y, cell)).collect();
        let area = |pixel: usize| {
            let rows = cell.0.min(nrows - pixel / width * cell.0);
            rows as f64 * cell.1.min(ncols - pixel % width * cell.1) as f64
        };
        let densities: Vec<f64> =
            counts.iter().enumerate().map(|(pixel, &count)| count as f64 / area(pixel)).collect();
        let filled = || densities.iter().copied().filter(|&d| d > 0.0);
        let density = filled().reduce(f64::min).zip(filled().reduce(f64::max));
        let shades: Vec<u8> = densities.iter().map(|&d| shade(d, density)).collect();
        let png = if shades.is_empty() { Vec::new() } else { encode(width, height, &shades)? };
        Ok(Self { nrows, ncols, cell, density, image: BASE64_STANDARD.encode(png) })
    }

    /// Draws the picture with its frame and caption.
    pub(super) fn draw(&self, name: &str) -> Markup {
        const MARGIN: f64 = 26.0;
        let longer = self.nrows.max(self.ncols).max(1) as f64;
        let side = |n: usize| px(SIDE * (n as f64 / longer).max(NARROWEST));
        let (width, height) = (side(self.ncols), side(self.nrows));
        let (nrows, ncols) = (grouped(self.nrows as u64), grouped(self.ncols as u64));
        let said = format!("Pattern of {name}, {nrows} rows by {ncols} columns");
        let middle = px(MARGIN + height / 2.0);
        let turn = format!("rotate(-90 16 {middle})");
        html! {
            figure class="pattern" {
                h4 { "Pattern" }
                svg role="img" aria-label=(said)
                    viewBox={ "0 0 " (SIDE + MARGIN + 2.0) " " (px(height + MARGIN + 2.0)) } {
                    text x=(px(MARGIN + width / 2.0)) y="16" text-anchor="middle" {
                        (ncols) " columns"
                    }
                    text x="16" y=(middle) text-anchor="middle" transform=(turn) { (nrows) " rows" }
                    @if self.density.is_some() {
                        image class="pixels" x=(MARGIN) y=(MARGIN) width=(width) height=(height)
                            preserveAspectRatio="none"
                            href={ "data:image/png;base64," (self.image) } {}
                    }
                    rect class="frame" x=(MARGIN) y=(MARGIN) width=(width) height=(height) {}
                }
                figcaption { (self.caption()) }
            }
        }
    }

    fn caption(&self) -> String {
        let Some((least, most)) = self.density else { return "There are no entries.".to_owned() };
        if self.cell == (1, 1) {
            return "One pixel per position.".to_owned();
        }
        let (rows, cols) = (grouped(self.cell.0 as u64), grouped(self.cell.1 as u64));
        format!(
            "One pixel per {rows} × {cols} positions, {} (palest) to {} (darkest) occupied.",
            percentage(least),
            percentage(most)
        )
    }
}

/// Counts the entries of one line of pixels.
fn line<T: Scalar>(a: CsrView<'_, T>, y: usize, cell: (usize, usize)) -> Vec<u64> {
    let mut counts = vec![0; a.ncols().div_ceil(cell.1)];
    let (from, to) = (y * cell.0, ((y + 1) * cell.0).min(a.nrows()));
    // Columns are `u32`, and so is the number of them in a pixel.
    let step = cell.1 as u32;
    for &col in &a.col_idx()[a.row_ptr()[from]..a.row_ptr()[to]] {
        counts[(col / step) as usize] += 1;
    }
    counts
}

/// Shade of a density: by its logarithm, from the palest to the darkest.
fn shade(density: f64, range: Option<(f64, f64)>) -> u8 {
    match range {
        Some((least, most)) if density > 0.0 && most > least => {
            let share = (density / least).ln() / (most / least).ln();
            1 + (share * (SHADES - 2) as f64).round() as u8
        }
        Some(_) if density > 0.0 => (SHADES - 1) as u8,
        _ => 0,
    }
}

/// Encodes the picture as PNG, with one byte per pixel and a palette of shades.
fn encode(width: usize, height: usize, shades: &[u8]) -> Result<Vec<u8>> {
    let mut png = Vec::new();
    let mut encoder = png::Encoder::new(&mut png, width as u32, height as u32);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(COLOUR.repeat(SHADES));
    let opacity = |shade: usize| PALEST + (1.0 - PALEST) * (shade - 1) as f64 / (SHADES - 2) as f64;
    let opacities = (1..SHADES).map(|shade| (opacity(shade) * 255.0).round() as u8);
    encoder.set_trns(std::iter::once(0).chain(opacities).collect::<Vec<u8>>());
    encoder.set_compression(png::Compression::High);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(shades)?;
    writer.finish()?;
    Ok(png)
}

/// Formats a share above 0 in per cent, however small.
fn percentage(share: f64) -> String {
    let percent = share * 100.0;
    // Two significant digits.
    let decimals = (1.0 - percent.log10().floor()).max(0.0) as usize;
    format!("{percent:.decimals$} %")
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparseop::matrix::CsrMatrix;

    fn counts(a: &CsrMatrix<f64>, cell: (usize, usize)) -> Vec<Vec<u64>> {
        (0..a.nrows().div_ceil(cell.0)).map(|y| line(a.view(), y, cell)).collect()
    }

    #[test]
    fn every_entry_is_counted_in_its_pixel() {
        let (row_ptr, col_idx) = (vec![0, 2, 2, 5], vec![0, 4, 1, 2, 3]);
        let a = CsrMatrix::try_new(3, 5, row_ptr, col_idx, vec![1.0; 5]).unwrap();
        assert_eq!(counts(&a, (1, 1)), [[1, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0, 1, 1, 1, 0]]);
        assert_eq!(
            counts(&a, (2, 2)),
            [[1, 0, 1], [1, 2, 0]],
            "the last row and column are cut off"
        );
    }

    #[test]
    fn large_matrices_shrink_and_empty_ones_have_no_picture() {
        let a = CsrMatrix::<f32>::zeros(1000, 0).unwrap();
        let raster = Raster::of(a.view()).unwrap();
        assert_eq!((raster.cell, raster.density), ((4, 1), None));
        assert_eq!(raster.caption(), "There are no entries.");
        let n = 1000;
        let (row_ptr, col_idx) = ((0..=n).collect(), (0..n as u32).collect());
        let a = CsrMatrix::try_new(n, n, row_ptr, col_idx, vec![1.0f32; n]).unwrap();
        let raster = Raster::of(a.view()).unwrap();
        assert_eq!((raster.cell, raster.density), ((4, 4), Some((0.25, 0.25))));
        let bytes = BASE64_STANDARD.decode(&raster.image).unwrap();
        let mut png = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        assert_eq!((png.info().width, png.info().height), (250, 250));
        let mut shades = vec![0; 250 * 250];
        png.next_frame(&mut shades).unwrap();
        assert!((0..shades.len()).all(|i| (shades[i] > 0) == (i % 251 == 0)), "a diagonal");
    }

    #[test]
    fn the_darkest_is_the_densest() {
        let range = Some((0.001, 1.0));
        assert_eq!([0.0, 0.001, 1.0].map(|d| shade(d, range)), [0, 1, 15]);
        assert_eq!(shade(0.5, Some((0.5, 0.5))), 15);
    }
}
