//! Banner and size line.

use super::scan::{count, line_end, next_line, words};
use super::{ParseProblem, excerpt};
use crate::Scalar;
use crate::error::suggestion;
use crate::matrix::MAX_DIMENSION;
use crate::matrix::assemble::MatrixEntry;

/// Layout of the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarketLayout {
    /// `row column value` lines.
    Coordinate,
    /// Every value, column by column.
    Array,
}

/// Type of the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Real,
    Integer,
    /// No values.
    Pattern,
}

/// Symmetry: entries that are omitted because others imply them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarketSymmetry {
    General,
    Symmetric,
    SkewSymmetric,
}

/// Contents of the first lines of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct MarketHeader {
    pub(super) layout: MarketLayout,
    pub(super) field: Field,
    pub(super) symmetry: MarketSymmetry,
    pub(super) nrows: usize,
    pub(super) ncols: usize,
    /// Declared number of lines with an entry.
    pub(super) declared: u64,
    /// Offset of the first line after the size line.
    pub(super) body: usize,
}

/// First word of every file.
pub(super) const BANNER: &[u8] = b"%%MatrixMarket";

const EXPECTED: &str = "expected `%%MatrixMarket matrix coordinate|array real|integer|pattern \
                        general|symmetric|skew-symmetric`";

/// True if a text begins like a Matrix Market file.
pub(super) fn has_banner(text: &[u8]) -> bool {
    text.get(..BANNER.len()).is_some_and(|start| start.eq_ignore_ascii_case(BANNER))
}

impl MarketHeader {
    pub(super) fn parse(text: &[u8]) -> Result<Self, ParseProblem> {
        if text.is_empty() {
            return Err(ParseProblem::new(format!("there is nothing in it; {EXPECTED}")));
        }
        let banner_end = line_end(text, 0);
        let (layout, field, symmetry) =
            banner(&text[..banner_end]).map_err(|message| ParseProblem::at(0, message))?;
        let Some(start) = next_line(text, banner_end + 1, text.len()) else {
            let message = format!("the size line `{}` is missing", layout.size_line());
            return Err(ParseProblem::at(text.len(), message));
        };
        let end = line_end(text, start);
        let numbers =
            sizes(layout, &text[start..end]).map_err(|message| ParseProblem::at(start, message))?;
        let (nrows, ncols) = (numbers[0] as usize, numbers[1] as usize);
        if symmetry != MarketSymmetry::General && nrows != ncols {
            let message = format!(
                "a symmetric or skew-symmetric matrix must be square, not {nrows} x {ncols}"
            );
            return Err(ParseProblem::at(start, message));
        }
        let declared = match layout {
            MarketLayout::Coordinate => numbers[2],
            MarketLayout::Array => symmetry.elements(numbers[0], numbers[1]),
        };
        Ok(Self {
            layout,
            field,
            symmetry,
            nrows,
            ncols,
            declared,
            body: (end + 1).min(text.len()),
        })
    }
}

impl MarketHeader {
    /// Least number of entries of the matrix if the text, of `len` bytes, is valid: the declared
    /// number, unless so many lines do not fit the text.
    pub(super) fn least_entries(&self, len: u64) -> usize {
        /// Length of a line with two indices, including its end.
        const LINE: u64 = 4;
        match self.layout {
            MarketLayout::Coordinate => {
                let lines = (len - self.body as u64).div_ceil(LINE);
                usize::try_from(self.declared.min(lines)).unwrap_or(usize::MAX)
            }
            // Zeros of an array are left out.
            MarketLayout::Array => 0,
        }
    }
}

impl MarketLayout {
    fn size_line(self) -> &'static str {
        match self {
            Self::Coordinate => "rows columns entries",
            Self::Array => "rows columns",
        }
    }
}

impl MarketSymmetry {
    /// Mirror image of `entry`, if the symmetry implies one.
    #[inline]
    pub(super) fn mirror<T: Scalar>(self, entry: MatrixEntry<T>) -> Option<MatrixEntry<T>> {
        let mirrored = |value| Some(MatrixEntry { row: entry.col, col: entry.row, value });
        match self {
            Self::General => None,
            _ if entry.row == entry.col => None,
            Self::Symmetric => mirrored(entry.value),
            Self::SkewSymmetric => mirrored(-entry.value),
        }
    }

    /// Number of elements listed in an array file. Dimensions are below 2³², so that nothing
    /// overflows.
    fn elements(self, nrows: u64, ncols: u64) -> u64 {
        match self {
            Self::General => nrows * ncols,
            Self::Symmetric => nrows * (nrows + 1) / 2,
            Self::SkewSymmetric => nrows * nrows.saturating_sub(1) / 2,
        }
    }
}

/// Parses the banner line.
fn banner(line: &[u8]) -> Result<(MarketLayout, Field, MarketSymmetry), String> {
    let lowercase = line.to_ascii_lowercase();
    let mut words = words(&lowercase);
    let mut word = |what: &str| {
        let word = words
            .next()
            .ok_or_else(|| format!("the banner does not name the {what}; {EXPECTED}"))?;
        Ok::<_, String>(String::from_utf8_lossy(word).into_owned())
    };
    if !word("format")?.as_bytes().eq_ignore_ascii_case(BANNER) {
        return Err(format!("{} is no Matrix Market banner; {EXPECTED}", excerpt(line)));
    }
    match word("object")?.as_str() {
        "matrix" => {}
        other => return Err(unknown("object", other, &["matrix"])),
    }
    let layout = match word("layout")?.as_str() {
        "coordinate" => MarketLayout::Coordinate,
        "array" => MarketLayout::Array,
        other => return Err(unknown("layout", other, &["coordinate", "array"])),
    };
    let field = match word("field")?.as_str() {
        "real" => Field::Real,
        "integer" => Field::Integer,
        "pattern" => Field::Pattern,
        "complex" => return Err(COMPLEX.to_owned()),
        other => return Err(unknown("field", other, &["real", "integer", "pattern"])),
    };
    let symmetry = match word("symmetry")?.as_str() {
        "general" => MarketSymmetry::General,
        "symmetric" => MarketSymmetry::Symmetric,
        "skew-symmetric" => MarketSymmetry::SkewSymmetric,
        "hermitian" => return Err(HERMITIAN.to_owned()),
        other => {
            return Err(unknown("symmetry", other, &["general", "symmetric", "skew-symmetric"]));
        }
    };
    match (layout, field, symmetry) {
        (MarketLayout::Array, Field::Pattern, _) => {
            Err("a pattern matrix has no values, so it cannot be an array; write it as coordinate"
                .to_owned())
        }
        (_, Field::Pattern, MarketSymmetry::SkewSymmetric) => Err(
            "a pattern matrix has no signs, so it cannot be skew-symmetric; write it as general"
                .to_owned(),
        ),
        _ => match words.next() {
            Some(extra) => Err(format!("unexpected {} at the end of the banner", excerpt(extra))),
            None => Ok((layout, field, symmetry)),
        },
    }
}

const COMPLEX: &str = "complex matrices are not supported; store the real and the imaginary part \
                       as two real matrices and combine their products";
const HERMITIAN: &str = "hermitian matrices are not supported; a real hermitian matrix is \
                         symmetric, write `symmetric` instead";

fn unknown(what: &str, word: &str, known: &[&str]) -> String {
    let (word_shown, hint) = (excerpt(word.as_bytes()), suggestion(word, known.iter().copied()));
    format!("{word_shown} is not a known {what}{hint}; expected {}", known.join(", "))
}

/// Parses the size line: rows, columns and, for coordinates, entries.
fn sizes(layout: MarketLayout, line: &[u8]) -> Result<[u64; 3], String> {
    let mut numbers = [0; 3];
    let mut words = words(line);
    let names: &[&str] = match layout {
        MarketLayout::Coordinate => &["rows", "columns", "entries"],
        MarketLayout::Array => &["rows", "columns"],
    };
    for (number, name) in numbers.iter_mut().zip(names) {
        let Some(word) = words.next() else {
            return Err(format!(
                "the size line has no number of {name}; expected `{}`",
                layout.size_line()
            ));
        };
        *number =
            count(word).ok_or_else(|| format!("{} is not a number of {name}", excerpt(word)))?;
        // Greater numbers are read as the largest one.
        if *name == "entries" && *number == u64::MAX {
            return Err(format!("{} entries are too many for any memory", excerpt(word)));
        }
        if *name != "entries" && *number > MAX_DIMENSION as u64 {
            return Err(format!(
                "{} {name} are too many: at most {MAX_DIMENSION} fit",
                excerpt(word)
            ));
        }
    }
    match words.next() {
        Some(extra) => {
            Err(format!("unexpected {} after the size `{}`", excerpt(extra), layout.size_line()))
        }
        None => Ok(numbers),
    }
}
