//! Sizes of slices, computed without writing them.

use super::host::{SliceBatch, SlicedRows};
use super::index::{ALIGNMENT, Encoded, Kind, LANES, padded};
use std::collections::HashMap;
use std::hash::Hash;

/// Contents and sizes of the slices of a matrix, or of a sample of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SliceSizes {
    /// Number of slices of 32 rows.
    pub(crate) slices: u64,
    /// Number of entries in slices, without those of long rows.
    pub(crate) entries: u64,
    /// Number of stored values in slices: entries, and places of filled lanes.
    pub(crate) stored: u64,
    /// Number of stored values in diagonal slices, and in slices with indices of 8, 16 and 32 bits.
    pub(crate) stored_by_kind: [u64; Kind::COUNT],
    /// Bytes of indices, masks and slots.
    pub(crate) index_bytes: u64,
    /// Bytes of values of 1, 2, 4 and 8 bytes each, with the padding between slices.
    pub(crate) value_bytes: [u64; VALUE_SIZES.len()],
    /// Lanes of slots that some lanes lack.
    pub(crate) masked_slots: u64,
    /// Largest number of slots of a lane of a slice.
    pub(crate) lane_slots: u64,
    /// Largest number of steps of a slice: slots, or slots with one index.
    pub(crate) steps: u64,
}

/// Sizes of a stored value, other than zero.
const VALUE_SIZES: [usize; 4] = [1, 2, 4, 8];

impl SliceSizes {
    /// Bytes of values of `size` bytes each, with the padding between and behind slices; 0 if
    /// values take no bytes.
    pub(crate) fn value_bytes(&self, size: usize) -> u64 {
        let bytes =
            VALUE_SIZES.iter().position(|&known| known == size).map_or(0, |i| self.value_bytes[i]);
        if bytes == 0 { 0 } else { bytes + ALIGNMENT as u64 }
    }

    /// Adds a slice. The index bytes of a diagonal slice are not added, because slices may share
    /// them.
    fn add(&mut self, encoded: &Encoded) {
        let shape = encoded.shape;
        self.slices += 1;
        self.entries += u64::from(encoded.stored - encoded.filled);
        self.stored += u64::from(encoded.stored);
        self.stored_by_kind[shape.kind as usize] += u64::from(encoded.stored);
        self.index_bytes +=
            if shape.kind == Kind::Diagonal { 0 } else { u64::from(encoded.index_bytes) };
        for (bytes, size) in self.value_bytes.iter_mut().zip(VALUE_SIZES) {
            *bytes += padded(encoded.stored as usize * size) as u64;
        }
        self.masked_slots += ((shape.width - shape.full) * shape.step_columns * LANES) as u64;
        self.lane_slots = self.lane_slots.max((shape.width * shape.step_columns) as u64);
        self.steps = self.steps.max(shape.width as u64);
    }

    /// Adds slices. Returns the slots of the diagonal ones, or numbers that stand for them, each
    /// with its bytes and the number of slices that have it.
    fn add_all<S: Eq + Hash>(
        &mut self,
        slices: impl Iterator<Item = (Encoded, S)>,
    ) -> HashMap<S, (u64, u32)> {
        let mut all: HashMap<S, (u64, u32)> = HashMap::new();
        for (encoded, slots) in slices {
            self.add(&encoded);
            if encoded.shape.kind == Kind::Diagonal {
                all.entry(slots).or_insert((u64::from(encoded.index_bytes), 0)).1 += 1;
            }
        }
        all
    }

    /// Estimates the sizes of `slices` slices with `entries` entries from a sample of them, each
    /// with its slots or a number that stands for them.
    ///
    /// All sizes except the slots of a lane and the steps scale with the entries. The share of
    /// diagonal slices outside of the sample with slots that are new to it is taken to be the share
    /// of slices in the sample whose slots occur once: the probability of an unseen species is
    /// about the share of species seen once (Good, Biometrika 40, 1953).
    pub(crate) fn estimated<S: Eq + Hash>(
        sample: impl Iterator<Item = (Encoded, S)>,
        slices: u64,
        entries: u64,
    ) -> Self {
        let mut sizes = Self::default();
        let different = sizes.add_all(sample);
        let sum = |met: &dyn Fn(u32) -> bool| {
            different.values().filter(|(_, times)| met(*times)).map(|(bytes, _)| bytes).sum::<u64>()
        };
        let known = sum(&|_| true);
        let unseen = sum(&|times| times == 1) as f64
            * (entries as f64 / sizes.entries.max(1) as f64 - 1.0).max(0.0);
        // Half a unit of padding on average.
        let padding = if entries == 0 { 0 } else { slices * ALIGNMENT as u64 / 2 };
        let scaled = sizes.scaled_to(entries);
        Self {
            slices,
            index_bytes: scaled.index_bytes + known + unseen as u64,
            value_bytes: VALUE_SIZES.map(|size| scaled.stored * size as u64 + padding),
            ..scaled
        }
    }

    /// Scales the sizes to slices with `entries` entries.
    pub(crate) fn scaled_to(self, entries: u64) -> Self {
        let scaled = scaling(entries, self.entries);
        Self {
            entries,
            stored: scaled(self.stored),
            stored_by_kind: self.stored_by_kind.map(&scaled),
            index_bytes: scaled(self.index_bytes),
            value_bytes: self.value_bytes.map(&scaled),
            masked_slots: scaled(self.masked_slots),
            ..self
        }
    }

    /// Estimates the sizes of slices whose lanes with long rows are not filled.
    pub(crate) fn without_filled_lanes(self) -> Self {
        let scaled = scaling(self.entries, self.stored);
        Self {
            stored: self.entries,
            stored_by_kind: self.stored_by_kind.map(&scaled),
            value_bytes: self.value_bytes.map(&scaled),
            ..self
        }
    }
}

/// Scales counts by `to` over `from`.
fn scaling(to: u64, from: u64) -> impl Fn(u64) -> u64 {
    let scale = to as f64 / from.max(1) as f64;
    move |count| (count as f64 * scale).round() as u64
}

impl SlicedRows<'_> {
    /// Sizes of all slices, exactly as packing produces them.
    pub(crate) fn sizes(self) -> SliceSizes {
        let batches = self.encode();
        let mut sizes = SliceSizes::default();
        let slices = batches.iter().flat_map(SliceBatch::iter);
        let different = sizes.add_all(slices.map(|(encoded, slots)| (*encoded, slots)));
        sizes.index_bytes += different.values().map(|(bytes, _)| bytes).sum::<u64>();
        sizes
    }
}
