//! Encodings of the columns of a slice: kinds, sizes, and the choice for a slice.

pub(crate) use super::constants::{ALIGNMENT, MAX_WIDTH};
use super::constants::{DIAGONAL, DIAGONAL_SLOTS, RELATIVE8, RELATIVE16, RELATIVE32, WIDTH_BITS};
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
    /// Lanes with an entry in the slot.
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
    pub(crate) entries: u32,
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
    /// Chooses the kind with the fewest bytes, the first of [`Kind::ALL`] among equals.
    ///
    /// `first_row` is the row of the first lane if the lanes are consecutive rows. If it is `None`,
    /// the slice is not diagonal. No lane has more than [`MAX_WIDTH`] entries.
    pub(crate) fn choose(
        &mut self,
        columns: &LaneColumns<'_>,
        first_row: Option<usize>,
    ) -> Encoded {
        let survey = Survey::of(columns);
        let relative = survey.relative();
        // A slot takes at least a word.
        let most = (relative.index_bytes as usize / size_of::<u32>())
            .min(DIAGONAL_SLOTS * survey.longest)
            .min(MAX_WIDTH as usize);
        let diagonal = first_row.is_some_and(|row| {
            survey.ascending && self.diagonals(columns, row, survey.longest, most)
        });
        let index_bytes = slot_bytes(&self.slots) as u32;
        if !diagonal || index_bytes > relative.index_bytes {
            return relative;
        }
        let full = self.slots.iter().filter(|slot| slot.mask == ALL).count();
        let shape =
            SliceShape { kind: Kind::Diagonal, step_columns: 1, full, width: self.slots.len() };
        Encoded { shape, base: 0, entries: relative.entries, index_bytes }
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
    shortest: usize,
    /// Smallest and largest column; 0 without entries.
    first: u32,
    last: u32,
    /// True if the columns of every row are strictly ascending.
    ascending: bool,
    /// Number of columns in a step, the largest such that all rows consist of whole steps.
    step_columns: usize,
}

impl Survey {
    fn of(columns: &LaneColumns<'_>) -> Self {
        let (mut first, mut last, mut ascending) = (u32::MAX, 0, true);
        let mut holds = STEP_COLUMNS.map(|_| true);
        let (mut entries, mut longest, mut shortest) = (0, 0, usize::MAX);
        for row in columns {
            (entries, longest, shortest) =
                (entries + row.len(), longest.max(row.len()), shortest.min(row.len()));
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
        Self { entries, longest, shortest, first: first.min(last), last, ascending, step_columns }
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
        let indices = self.entries / self.step_columns * kind.index_size();
        let index_bytes = (padded((width - full) * size_of::<u32>()) + padded(indices)) as u32;
        let shape = SliceShape { kind, step_columns: self.step_columns, full, width };
        Encoded { shape, base, entries: self.entries as u32, index_bytes }
    }
}

/// True if a row consists of steps of `step_columns` consecutive columns.
fn consists_of_steps(row: &[u32], step_columns: usize) -> bool {
    let follows = |columns: &[u32]| columns.windows(2).all(|pair| pair[1] == pair[0] + 1);
    row.len().is_multiple_of(step_columns) && row.chunks_exact(step_columns).all(follows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(kind: Kind, step_columns: usize, full: usize, width: usize) -> SliceShape {
        SliceShape { kind, step_columns, full, width }
    }

    fn choose(rows: &[Vec<u32>], first_row: Option<usize>) -> (Encoded, Vec<Slot>) {
        let mut columns: LaneColumns<'_> = [&[]; LANES];
        columns.iter_mut().zip(rows).for_each(|(lane, row)| *lane = row);
        let mut chooser = Chooser::default();
        let encoded = chooser.choose(&columns, first_row);
        let slots = chooser.slots().to_vec();
        (encoded, if encoded.shape.kind == Kind::Diagonal { slots } else { Vec::new() })
    }

    fn full(row: impl Fn(u32) -> Vec<u32>) -> Vec<Vec<u32>> {
        (0..LANES as u32).map(row).collect()
    }

    #[test]
    fn shapes_survive_their_bits() {
        for kind in Kind::ALL {
            for (step_columns, full, width) in
                [(1, 0, 0), (2, 5, 9), (3, MAX_WIDTH as usize, MAX_WIDTH as usize)]
            {
                let shape = shape(kind, step_columns, full, width);
                assert_eq!(SliceShape::from_bits(shape.to_bits()), shape);
            }
        }
        let shape = shape(Kind::Relative16, 3, 1, 2);
        assert_eq!(shape.to_bits(), 2 | 2 << 2 | 1 << 4 | 2 << 18);
    }

    #[test]
    fn diagonals_close_to_one_another_are_collected_like_others() {
        let wide = |longest: u32, gap: u32| {
            let row = |row: u32| {
                (row..row + longest).filter(|col| col * col % (7 + row) != gap).collect()
            };
            full(row)
        };
        for rows in
            [wide(500, 3), wide(300, 0), wide(120, 1), vec![(5..400).collect(), vec![], vec![30]]]
        {
            let mut expected = std::collections::BTreeMap::<i32, u32>::new();
            for (lane, row) in rows.iter().enumerate() {
                row.iter().for_each(|&col| {
                    *expected.entry(col as i32 - 40 - lane as i32).or_default() |= 1 << lane
                });
            }
            let mut columns: LaneColumns<'_> = [&[]; LANES];
            columns.iter_mut().zip(&rows).for_each(|(lane, row)| *lane = row);
            let longest = rows.iter().map(Vec::len).max().unwrap();
            let mut chooser = Chooser::default();
            assert!(chooser.diagonals(&columns, 40, longest, expected.len()));
            assert!(
                chooser.slots().iter().map(|slot| (slot.delta, slot.mask)).eq(expected.clone())
            );
            assert!(!chooser.diagonals(&columns, 40, longest, expected.len() - 1));
        }
    }

    #[test]
    fn a_stencil_is_diagonal_where_its_rows_are_in_their_order() {
        let rows = full(|row| vec![row + 99, row + 100, row + 101]);
        let (encoded, slots) = choose(&rows, Some(100));
        assert_eq!(encoded.shape, shape(Kind::Diagonal, 1, 3, 3));
        assert_eq!((encoded.entries, encoded.index_bytes), (96, 16));
        assert_eq!(slots, [-1, 0, 1].map(|delta| Slot { delta, mask: ALL }));
        let (sorted, _) = choose(&rows, None);
        assert_eq!(sorted.shape, shape(Kind::Relative8, 3, 1, 1));
        assert_eq!((sorted.base, sorted.index_bytes), (99, 32));
    }

    #[test]
    fn slots_are_merged_in_order_with_the_lanes_that_have_them() {
        let rows = full(|row| match row {
            3 => vec![3, 9],
            4 => vec![],
            _ => vec![row, row + 40],
        });
        let (encoded, slots) = choose(&rows, Some(0));
        let missing = ALL & !(1 << 4);
        let expected = [(0, missing), (6, 1 << 3), (40, missing & !(1 << 3))];
        assert_eq!(slots, expected.map(|(delta, mask)| Slot { delta, mask }));
        assert_eq!((encoded.shape.full, encoded.shape.width, encoded.entries), (0, 3, 62));
        assert_eq!(encoded.index_bytes, 32, "deltas and masks, padded");
    }

    #[test]
    fn slots_that_every_lane_has_need_no_mask() {
        // Five slots that all lanes have, one that one lane lacks: 32 bytes and 2 · 16; as indices
        // 6 · 32 and a mask.
        let rows = full(|row| {
            [0, 5, 9, 13, 20]
                .map(|d| row + d)
                .into_iter()
                .chain((row > 0).then_some(row + 31))
                .collect()
        });
        let (encoded, slots) = choose(&rows, Some(0));
        assert_eq!((encoded.shape.full, encoded.shape.width, encoded.index_bytes), (5, 6, 64));
        assert_eq!(slots[5], Slot { delta: 31, mask: !1 });
        // The same number of bytes either way: the lower kind.
        let rows = full(|row| if row < 16 { vec![row] } else { vec![] });
        let (encoded, _) = choose(&rows, Some(0));
        assert_eq!((encoded.shape.kind, encoded.index_bytes), (Kind::Diagonal, 32));
        assert_eq!(choose(&rows, None).0.index_bytes, 32);
        // Fewer bytes as indices.
        let rows = full(|row| if row < 8 { vec![row, row * row + 9] } else { vec![] });
        assert_eq!(choose(&rows, Some(0)).0.shape.kind, Kind::Relative8);
    }

    #[test]
    fn too_many_diagonals_unsorted_or_repeated_columns_are_not_diagonal() {
        for rows in [
            full(|row| vec![row * row % 31]),
            full(|row| vec![row + 1, row]),
            full(|row| vec![row, row]),
        ] {
            let (encoded, _) = choose(&rows, Some(0));
            assert_eq!(encoded.shape.kind, Kind::Relative8);
            assert_eq!(encoded.index_bytes as usize, encoded.entries as usize);
        }
    }

    #[test]
    fn diagonals_further_away_than_31_bits_are_none() {
        let rows = full(|row| vec![row, u32::MAX - 40 + row / 4]);
        let (encoded, _) = choose(&rows, Some(0));
        assert_eq!((encoded.shape.kind, encoded.base), (Kind::Relative32, 0));
        let near = full(|row| vec![(1 << 31) - 1 + row]);
        assert_eq!(choose(&near, Some(0)).0.shape.kind, Kind::Diagonal);
        let far = full(|row| vec![(1 << 31) + row]);
        assert_eq!(choose(&far, Some(0)).0.shape.kind, Kind::Relative8);
    }

    #[test]
    fn the_span_decides_on_the_bits() {
        for (span, kind, base) in [
            (255, Kind::Relative8, 7),
            (256, Kind::Relative16, 7),
            (65_535, Kind::Relative16, 7),
            (65_536, Kind::Relative32, 0),
        ] {
            let (encoded, _) = choose(&full(|row| vec![7 + (row % 2) * span]), None);
            assert_eq!((encoded.shape.kind, encoded.base), (kind, base), "span {span}");
        }
        // The largest index is that of the first column of the last step.
        let (encoded, _) = choose(&full(|_| vec![0, 1, 2, 255, 256, 257]), None);
        assert_eq!((encoded.shape.kind, encoded.shape.step_columns), (Kind::Relative8, 3));
    }

    #[test]
    fn steps_have_as_many_columns_in_all_rows() {
        let step_columns = |rows: &[Vec<u32>]| choose(rows, None).0.shape.step_columns;
        let node = |first: u32, len: u32| (first..first + len).collect::<Vec<_>>();
        assert_eq!(step_columns(&full(|row| node(row, 6))), 3);
        assert_eq!(step_columns(&full(|row| node(row, 4))), 2);
        assert_eq!(step_columns(&full(|row| node(row, if row == 5 { 2 } else { 6 }))), 2);
        assert_eq!(step_columns(&full(|row| node(row, if row == 5 { 0 } else { 6 }))), 3);
        assert_eq!(step_columns(&full(|row| node(row, 5))), 1);
        assert_eq!(step_columns(&full(|_| vec![4, 5, 6, 2, 3, 4])), 3, "steps need no order");
        assert_eq!(step_columns(&full(|_| vec![4, 5, 7])), 1);
    }

    #[test]
    fn rows_of_different_length_need_masks() {
        let rows = full(|row| (0..3 + row % 4).map(|k| k * 5 % 17).collect());
        let (encoded, _) = choose(&rows, None);
        assert_eq!((encoded.shape.full, encoded.shape.width, encoded.entries), (3, 6, 144));
        assert_eq!(encoded.index_bytes, 16 + 144);
        // A lane without a row has no entries, so that no step is full.
        let (encoded, _) = choose(&rows[..31], None);
        assert_eq!((encoded.shape.full, encoded.shape.width), (0, 6));
    }

    #[test]
    fn nothing_takes_nothing() {
        let (encoded, _) = choose(&[], Some(0));
        assert_eq!(encoded.shape, shape(Kind::Diagonal, 1, 0, 0));
        assert_eq!((encoded.base, encoded.entries, encoded.index_bytes), (0, 0, 0));
        assert_eq!(choose(&[], None).0.shape.kind, Kind::Relative8);
    }
}
