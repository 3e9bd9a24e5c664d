//! Encodings of the columns of a slice: kinds, sizes, and the choice for a slice.

pub(crate) use super::constants::{ALIGNMENT, MAX_WIDTH};
use super::constants::{DIAGONAL, DIAGONAL_SLOTS, RELATIVE8, RELATIVE16, RELATIVE32, WIDTH_BITS};
use crate::device::cpu::set_lanes;
use std::hash::{Hash, Hasher};

/// Rows per slice: the lanes of a warp.
pub(crate) const LANES: usize = 32;

/// Numbers of columns in a step that are detected, largest first.
const STEP_COLUMNS: [usize; 2] = [3, 2];

/// Mask of all lanes.
pub(crate) const ALL: u32 = u32::MAX;

/// Columns of every lane, in the order of their entries. Empty for a lane without a row in the
/// slices.
pub(crate) type LaneColumns<'a> = [&'a [u32]; LANES];

/// Most lanes of a slice with long rows that are filled.
const MOST_FILLED: u32 = LANES as u32 / 4;

/// Rows of a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneRows<'a> {
    pub(crate) columns: LaneColumns<'a>,
    /// Row of the first lane if the slice may be diagonal: the lanes are consecutive rows, and
    /// their numbers are column numbers.
    pub(crate) first_row: Option<usize>,
    /// Lanes with long rows, which have no columns here.
    pub(crate) long: u32,
    /// Number of columns of the matrix.
    pub(crate) ncols: usize,
}

impl LaneRows<'_> {
    /// Lanes with long rows that are filled in the slots that all other lanes have. If they are
    /// many, none is.
    fn filled(&self) -> u32 {
        filled(self.long)
    }
}

/// Those of the lanes with long rows that are filled.
pub(super) fn filled(long: u32) -> u32 {
    if long.count_ones() <= MOST_FILLED { long } else { 0 }
}

/// Encoding of the columns of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// Slots along diagonals: one distance from the row for all lanes.
    Diagonal = DIAGONAL,
    /// 8-bit index per step, relative to the base of the slice.
    Relative8 = RELATIVE8,
    /// 16-bit index per step, relative to the base of the slice.
    Relative16 = RELATIVE16,
    /// 32-bit column per step.
    Relative32 = RELATIVE32,
}

impl Kind {
    /// Number of kinds.
    pub(crate) const COUNT: usize = Self::ALL.len();

    const ALL: [Self; 4] = [Self::Diagonal, Self::Relative8, Self::Relative16, Self::Relative32];

    /// Size of one index, in bytes.
    pub(super) const fn index_size(self) -> usize {
        match self {
            Self::Relative8 => 1,
            Self::Relative16 => 2,
            Self::Diagonal | Self::Relative32 => 4,
        }
    }
}

/// A slot of a diagonal slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Column minus row.
    pub(crate) delta: i32,
    /// Lanes with an entry in the slot, and filled ones.
    pub(crate) mask: u32,
}

impl Hash for Slot {
    /// Hashed as one word: wide slices have thousands of slots.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.mask) << u32::BITS | u64::from(self.delta.cast_unsigned()));
    }
}

/// Layout of a slice, stored in the last word of its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SliceShape {
    pub(crate) kind: Kind,
    /// Number of consecutive columns in a step, which share an index; 1 in diagonal slices.
    pub(crate) step_columns: usize,
    /// Number of steps that every lane has; in diagonal slices, number of slots that every lane
    /// has.
    pub(crate) full: usize,
    /// Number of steps of the longest lane; in diagonal slices, number of slots.
    pub(crate) width: usize,
}

impl SliceShape {
    /// Packs kind (2 bits) | columns of a step - 1 (2 bits) | full (14 bits) | width (14 bits), low
    /// bits first.
    pub(crate) const fn to_bits(self) -> u32 {
        self.kind as u32
            | (self.step_columns as u32 - 1) << 2
            | (self.full as u32) << 4
            | (self.width as u32) << (4 + WIDTH_BITS)
    }

    /// Unpacks the shape from its bits.
    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self {
            kind: Kind::ALL[(bits & 3) as usize],
            step_columns: (bits >> 2 & 3) as usize + 1,
            full: (bits >> 4 & MAX_WIDTH) as usize,
            width: (bits >> (4 + WIDTH_BITS)) as usize,
        }
    }
}

/// Size of the slots of a diagonal slice in bytes: the deltas of the slots that every lane has,
/// those of the others, and the masks of the others, each padded.
pub(crate) fn slot_bytes(slots: &[Slot]) -> usize {
    let full = slots.iter().filter(|slot| slot.mask == ALL).count();
    let words = |count: usize| padded(count * size_of::<u32>());
    words(full) + 2 * words(slots.len() - full)
}

/// Encoding of a slice, before it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Encoded {
    pub(crate) shape: SliceShape,
    /// Column that indices are relative to.
    pub(crate) base: u32,
    /// Number of stored values: entries, and places of filled lanes.
    pub(crate) stored: u32,
    /// Number of places of filled lanes.
    pub(crate) filled: u32,
    /// Size of the index in bytes, a multiple of [`ALIGNMENT`].
    pub(crate) index_bytes: u32,
}

impl Encoded {
    /// Number of slots if the slice is diagonal, otherwise 0.
    pub(crate) fn slots(&self) -> usize {
        if self.shape.kind == Kind::Diagonal { self.shape.width } else { 0 }
    }
}

/// Rounds `bytes` up to a multiple of [`ALIGNMENT`].
pub(crate) const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Chooses the encoding of slices, reusing its scratch memory.
#[derive(Debug, Default)]
pub(crate) struct Chooser {
    slots: Vec<Slot>,
    spare: Vec<Slot>,
    masks: Vec<u32>,
}

impl Chooser {
    /// Chooses the kind with the fewest bytes of index, the first of [`Kind::ALL`] among equals.
    /// No lane has more than [`MAX_WIDTH`] entries.
    pub(crate) fn choose(&mut self, rows: &LaneRows<'_>) -> Encoded {
        let filled = rows.filled();
        let survey = Survey::of(&rows.columns, filled);
        let relative = survey.relative();
        // A slot takes at least a word.
        let most = (relative.index_bytes as usize / size_of::<u32>())
            .min(DIAGONAL_SLOTS * survey.longest)
            .min(MAX_WIDTH as usize);
        let diagonal = rows.first_row.is_some_and(|row| {
            let found =
                survey.ascending && self.diagonals(&rows.columns, row, survey.longest, most);
            if found {
                self.fill(filled, row, rows.ncols);
            }
            found
        });
        let index_bytes = slot_bytes(&self.slots) as u32;
        if !diagonal || index_bytes > relative.index_bytes {
            return relative;
        }
        let full = self.slots.iter().filter(|slot| slot.mask == ALL).count();
        let shape =
            SliceShape { kind: Kind::Diagonal, step_columns: 1, full, width: self.slots.len() };
        let places = full as u32 * filled.count_ones();
        let stored = survey.entries as u32 + places;
        Encoded { shape, base: 0, stored, filled: places, index_bytes }
    }

    /// Adds the lanes of `filled` to the slots that all other lanes have and whose columns exist
    /// in those lanes too.
    fn fill(&mut self, filled: u32, first_row: usize, ncols: usize) {
        let exists = |lane: usize, delta: i32| {
            let column = (first_row + lane) as i64 + i64::from(delta);
            // As on a GPU, where the number of columns has 32 bits.
            usize::try_from(column).is_ok_and(|column| column < ncols.min(u32::MAX as usize))
        };
        for slot in self.slots.iter_mut().filter(|slot| slot.mask | filled == ALL) {
            if set_lanes(filled).all(|lane| exists(lane, slot.delta)) {
                slot.mask = ALL;
            }
        }
    }

    /// Slots of the slice last encoded, if it is diagonal.
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Collects the slots of rows with strictly ascending columns and at most `longest` entries.
    /// Returns false if there are more than `most`.
    fn diagonals(
        &mut self,
        columns: &LaneColumns<'_>,
        first_row: usize,
        longest: usize,
        most: usize,
    ) -> bool {
        /// Row length above which rows with nearby diagonals are collected in a table.
        const TABLE_LENGTH: usize = 128;
        /// Largest range of diagonals per entry of the longest row for which the table is used.
        const CLOSE: usize = 2;
        self.slots.clear();
        let rows = || (first_row..).zip(columns.iter()).filter(|(_, columns)| !columns.is_empty());
        let delta = |row: usize, col: u32| i64::from(col) - row as i64;
        let first = rows().map(|(row, columns)| delta(row, columns[0])).min().unwrap_or(0);
        let last =
            rows().map(|(row, columns)| delta(row, columns[columns.len() - 1])).max().unwrap_or(0);
        let (Ok(first), Ok(_)) = (i32::try_from(first), i32::try_from(last)) else { return false };
        let reach = (last - i64::from(first)) as usize + 1;
        if longest > TABLE_LENGTH && reach <= CLOSE * longest {
            self.masks.clear();
            self.masks.resize(reach, 0);
            let masks = &mut self.masks[..];
            for (row, columns) in rows() {
                let bit = 1 << (row - first_row);
                let start = (row as u32).wrapping_add_signed(first);
                columns.iter().for_each(|&col| masks[col.wrapping_sub(start) as usize] |= bit);
            }
            let slots = (first..).zip(&self.masks).map(|(delta, &mask)| Slot { delta, mask });
            self.slots.extend(slots.filter(|slot| slot.mask != 0));
            return self.slots.len() <= most;
        }
        for (row, columns) in rows() {
            self.add_row(columns, row as u32, 1 << (row - first_row));
            if self.slots.len() > most {
                return false;
            }
        }
        true
    }

    /// Adds a row to the slots.
    fn add_row(&mut self, columns: &[u32], row: u32, bit: u32) {
        let delta = |col: u32| col.wrapping_sub(row) as i32;
        // Most rows of a stencil have the slots of the previous row.
        if self.slots.len() == columns.len() {
            let same = self.slots.iter().zip(columns).all(|(slot, &col)| slot.delta == delta(col));
            if same {
                self.slots.iter_mut().for_each(|slot| slot.mask |= bit);
                return;
            }
        }
        self.spare.clear();
        let mut known = self.slots.iter().copied().peekable();
        for &col in columns {
            let delta = delta(col);
            while let Some(slot) = known.next_if(|slot| slot.delta < delta) {
                self.spare.push(slot);
            }
            let mask = known.next_if(|slot| slot.delta == delta).map_or(0, |slot| slot.mask);
            self.spare.push(Slot { delta, mask: mask | bit });
        }
        self.spare.extend(known);
        std::mem::swap(&mut self.slots, &mut self.spare);
    }
}

/// Statistics of a slice, from one pass over its columns.
struct Survey {
    entries: usize,
    longest: usize,
    /// Number of entries of the shortest row other than those of filled lanes.
    shortest: usize,
    /// Number of filled lanes.
    filled: usize,
    /// Smallest and largest column; 0 without entries.
    first: u32,
    last: u32,
    /// True if the columns of every row are strictly ascending.
    ascending: bool,
    /// Number of columns in a step, the largest such that all rows consist of whole steps.
    step_columns: usize,
}

impl Survey {
    fn of(columns: &LaneColumns<'_>, filled: u32) -> Self {
        let (mut first, mut last, mut ascending) = (u32::MAX, 0, true);
        let mut holds = STEP_COLUMNS.map(|_| true);
        let (mut entries, mut longest, mut shortest) = (0, 0, usize::MAX);
        for (lane, row) in columns.iter().enumerate() {
            let is_filled = filled >> lane & 1 != 0;
            (entries, longest) = (entries + row.len(), longest.max(row.len()));
            shortest = shortest.min(if is_filled { usize::MAX } else { row.len() });
            let [start, .., end] = row else {
                if let [only] = row {
                    (first, last) = (first.min(*only), last.max(*only));
                    holds = STEP_COLUMNS.map(|_| false);
                }
                continue;
            };
            // All pairs are compared, without an early exit, so that the loop is vectorised.
            let falls =
                row.iter().zip(&row[1..]).fold(0, |falls, (a, b)| falls | u32::from(a >= b));
            let rises = falls == 0;
            let (start, end) = match rises {
                true => (*start, *end),
                false => row.iter().fold((u32::MAX, 0), |m, &col| (m.0.min(col), m.1.max(col))),
            };
            (first, last, ascending) = (first.min(start), last.max(end), ascending & rises);
            for (holds, step_columns) in holds.iter_mut().zip(STEP_COLUMNS) {
                *holds = *holds && consists_of_steps(row, step_columns);
            }
        }
        let held = STEP_COLUMNS.into_iter().zip(holds).find(|(_, holds)| *holds);
        let step_columns = held.map_or(1, |(step_columns, _)| step_columns);
        let (first, filled) = (first.min(last), filled.count_ones() as usize);
        Self { entries, longest, shortest, filled, first, last, ascending, step_columns }
    }

    /// The slice with indices relative to its smallest column, or with the columns themselves.
    fn relative(&self) -> Encoded {
        // The largest index belongs to the first column of a step.
        let span = (self.last - self.first).saturating_sub(self.step_columns as u32 - 1);
        let (kind, base) = match (u8::try_from(span), u16::try_from(span)) {
            (Ok(_), _) => (Kind::Relative8, self.first),
            (_, Ok(_)) => (Kind::Relative16, self.first),
            _ => (Kind::Relative32, 0),
        };
        let (full, width) = (self.shortest / self.step_columns, self.longest / self.step_columns);
        let filled = self.filled * full * self.step_columns;
        let stored = self.entries + filled;
        let indices = stored / self.step_columns * kind.index_size();
        let index_bytes = (padded((width - full) * size_of::<u32>()) + padded(indices)) as u32;
        let shape = SliceShape { kind, step_columns: self.step_columns, full, width };
        Encoded { shape, base, stored: stored as u32, filled: filled as u32, index_bytes }
    }
}

/// True if a row consists of steps of `step_columns` consecutive columns.
fn consists_of_steps(row: &[u32], step_columns: usize) -> bool {
    let follows = |columns: &[u32]| columns.windows(2).all(|pair| pair[1] == pair[0] + 1);
    row.len().is_multiple_of(step_columns) && row.chunks_exact(step_columns).all(follows)
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
