//! Plans of JDS and their spelling.

use super::sections::Sectioning;
use crate::Error;
use crate::analysis::Histogram;
use crate::formats::PlanArgs;
use std::fmt::{self, Display};

/// Plan `jds(diagonals)` or `jds(sections:…)`, each optionally with `tail:…`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JdsPlan {
    /// Storage of the sorted rows.
    pub layout: JdsLayout,
    /// Length after which rows are cut, the rest going to COO. None keeps every row whole.
    pub tail: Option<TailLength>,
}

/// Storage of the sorted rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JdsLayout {
    /// Unpadded jagged diagonals.
    Diagonals,
    /// Sections, each padded to its own width.
    Sections(Sectioning, Launches),
}

/// Number of launches for the sections on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Launches {
    /// All in one launch.
    #[default]
    Fused,
    /// `launch:each`: each in a launch of its own.
    Each,
}

/// Values of `launch`.
const LAUNCHES: &[(&str, Launches)] = &[("fused", Launches::Fused), ("each", Launches::Each)];

/// Length after which rows are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailLength {
    /// A fixed number of entries.
    Fixed(u32),
    /// `tail:auto`: the length that fewer rows exceed than fill a strip.
    Auto,
}

/// Rows that fill a strip of vectors, and two warps.
pub(super) const STRIP_ROWS: u64 = 64;

impl TailLength {
    /// Length after which rows are cut.
    pub fn resolve(self, histogram: &Histogram) -> u32 {
        match self {
            Self::Fixed(length) => length,
            Self::Auto => histogram.exceeded_by_fewer_than(STRIP_ROWS),
        }
    }
}

impl JdsPlan {
    /// Parses the arguments between the parentheses.
    pub(super) fn parse(args: &mut PlanArgs<'_>) -> Result<Self, Error> {
        let diagonals = args.flag("diagonals")?;
        let sectioning = Sectioning::parse(args)?;
        let launches = args.word("launch", LAUNCHES)?;
        let layout = match (diagonals, sectioning, launches) {
            (true, None, None) => JdsLayout::Diagonals,
            (false, ..) => {
                JdsLayout::Sections(sectioning.unwrap_or_default(), launches.unwrap_or_default())
            }
            (true, ..) => {
                return Err(
                    args.error("it is either `diagonals` or `sections`, not both".to_owned())
                );
            }
        };
        let tail = match args.value("tail")? {
            None => None,
            Some("auto") => Some(TailLength::Auto),
            Some(text) => Some(TailLength::Fixed(args.to_number("tail", text)?)),
        };
        Ok(Self { layout, tail })
    }
}

impl Display for JdsPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layout {
            JdsLayout::Diagonals => f.write_str("(diagonals")?,
            JdsLayout::Sections(sectioning, Launches::Fused) => write!(f, "({sectioning}")?,
            JdsLayout::Sections(sectioning, Launches::Each) => {
                write!(f, "({sectioning},launch:each")?
            }
        }
        match self.tail {
            None => f.write_str(")"),
            Some(TailLength::Auto) => f.write_str(",tail:auto)"),
            Some(TailLength::Fixed(length)) => write!(f, ",tail:{length})"),
        }
    }
}

impl JdsPlan {
    /// Length of the longest row of every section, longest section first, for rows of these
    /// lengths; empty without sections. If rows are cut at a tail, their remaining length counts.
    pub fn section_widths(&self, histogram: &Histogram) -> Vec<u32> {
        match self.layout {
            JdsLayout::Diagonals => Vec::new(),
            // Row lengths fit `u32`.
            JdsLayout::Sections(sectioning, _) => sectioning
                .sections(&self.cut(histogram).0)
                .iter()
                .map(|section| section.width as u32)
                .collect(),
        }
    }

    /// Histogram with every row cut at the tail, and that length.
    pub(super) fn cut(&self, histogram: &Histogram) -> (Histogram, u32) {
        match self.tail {
            None => (histogram.clone(), u32::MAX),
            Some(tail) => {
                let length = tail.resolve(histogram);
                (histogram.clipped(length), length)
            }
        }
    }
}
