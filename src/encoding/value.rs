//! Encodings of values: in the matrix's own type, as codes of a dictionary, in a narrower type that
//! holds all of them exactly, or not at all if all are the same. Values are compared by their bits,
//! so the encoding is lossless: `0` and `-0` differ, and so do NaNs with different payloads.

use super::SLACK;
use crate::memory::zeroed;
use crate::{Precision, Scalar};
use rayon::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Largest number of values of a dictionary: the range of an 8-bit code.
pub(crate) const DICTIONARY: usize = 256;

/// Values per chunk of the parallel search for distinct values.
const CHUNK: usize = 1 << 14;

/// Smallest number of chunks per thread: some 100 µs, the time to wake a thread pool and to wait
/// for it. Fewer than 2¹⁹ values are not shared among threads.
const TOGETHER: usize = (1 << 18) / CHUNK + 1;

/// Slots of a hash table of values: four times the limit, so that a search seldom meets a second
/// key. A power of two.
pub(super) const SLOTS: usize = 4 * DICTIONARY;

/// 2⁶⁴ over the golden ratio: multiplying by it spreads keys over the upper bits (Knuth, TAOCP
/// 3, 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// First slot of the search for a key.
#[inline]
fn hash(bits: u64) -> usize {
    (bits.wrapping_mul(SPREAD) >> (u64::BITS - SLOTS.ilog2())) as usize
}

/// The distinct values found so far, by their bits: a small open-addressing table.
#[derive(Debug)]
pub(crate) struct ValueSet {
    /// Zero marks a free slot; `zero` stands for the value whose bits are zero.
    slots: Box<[u64; SLOTS]>,
    zero: bool,
    len: usize,
}

impl Default for ValueSet {
    fn default() -> Self {
        Self { slots: Box::new([0; SLOTS]), zero: false, len: 0 }
    }
}

impl ValueSet {
    /// Collects the distinct values. Stops early if there are more than [`DICTIONARY`].
    pub(crate) fn of<T: Scalar>(values: &[T]) -> Self {
        let many = AtomicBool::new(false);
        let sets = values.par_chunks(CHUNK).with_min_len(TOGETHER).fold(
            Self::default,
            |mut set, values| {
                if !many.load(Relaxed) {
                    set.add(values);
                    many.fetch_or(set.is_full(), Relaxed);
                }
                set
            },
        );
        sets.reduce(Self::default, Self::merge)
    }

    /// The set with this table of `keys` keys. A key is never zero; `zero` tells if zero is a
    /// value.
    pub(super) fn from_table(slots: Box<[u64; SLOTS]>, keys: usize, zero: bool) -> Self {
        Self { slots, zero, len: keys + usize::from(zero) }
    }

    /// Adds `values` until there are more than [`DICTIONARY`].
    ///
    /// Repeated values mostly repeat in the order of the rows. A stretch of values is compared with
    /// the values one period earlier, and is looked up only if it differs. The period is then the
    /// distance to the previous occurrence of the last few values (Lempel and Ziv, A universal
    /// algorithm for sequential data compression, 1977).
    pub(super) fn add<T: Scalar>(&mut self, values: &[T]) {
        /// Values that are compared at once.
        const STRETCH: usize = 16;
        /// Successive stretches that differ before the search for periods other than 1 is given up.
        const PATIENCE: usize = 16;
        let mut phrases = Phrases { last: 0, ends: [0; Phrases::COUNT] };
        let (mut period, mut different) = (1, 0);
        for (start, stretch) in (0usize..).step_by(STRETCH).zip(values.chunks(STRETCH)) {
            let before = start.checked_sub(period).map(|before| &values[before..]);
            if before.is_some_and(|before| same_bits(stretch, before)) {
                different = 0;
                continue;
            }
            if self.is_full() {
                return;
            }
            different += 1;
            if different > PATIENCE {
                period = 1;
                for value in stretch {
                    self.insert(value.bits());
                }
                continue;
            }
            for (at, value) in (start + 1..).zip(stretch) {
                period = phrases.distance(at, self.insert(value.bits()));
            }
        }
    }

    /// Adds a value. Returns a number below [`SLOTS`] that is unique to the value, except for that
    /// of zero.
    #[inline]
    fn insert(&mut self, bits: u64) -> usize {
        let mut slot = hash(bits);
        if bits == 0 {
            self.len += usize::from(!self.zero);
            self.zero = true;
            return slot;
        }
        while self.slots[slot] != bits {
            if self.slots[slot] == 0 {
                self.slots[slot] = bits;
                self.len += 1;
                return slot;
            }
            slot = (slot + 1) % SLOTS;
        }
        slot
    }

    /// True if there are more than [`DICTIONARY`] values.
    fn is_full(&self) -> bool {
        self.len > DICTIONARY
    }

    /// Union of both sets.
    pub(super) fn merge(mut self, other: Self) -> Self {
        if other.is_full() {
            return other;
        }
        for bits in other.bits() {
            if !self.is_full() {
                self.insert(bits);
            }
        }
        self
    }

    /// Bits of the values, in no particular order.
    fn bits(&self) -> impl Iterator<Item = u64> {
        self.slots.iter().copied().filter(|&bits| bits != 0).chain(self.zero.then_some(0))
    }

    /// The values, in no particular order.
    pub(crate) fn values<T: Scalar>(&self) -> Vec<T> {
        self.bits().map(T::from_bits).collect()
    }

    /// Number of values; `None` if there are more than [`DICTIONARY`].
    pub(crate) fn count(&self) -> Option<usize> {
        (!self.is_full()).then_some(self.len)
    }

    /// True if `1` is the only value.
    pub(crate) fn is_one<T: Scalar>(&self) -> bool {
        self.len == 1 && self.slots.contains(&T::ONE.bits())
    }
}

/// Previous occurrences of the last few values.
struct Phrases {
    /// Numbers of the last values, 16 bits each.
    last: u64,
    /// End of the latest occurrence of such numbers, by their hash.
    ends: [u32; Self::COUNT],
}

impl Phrases {
    const COUNT: usize = 256;

    /// Distance from position `at`, counted from 1, to the previous end of the last four values,
    /// the latest of which has this number. A guess between 1 and `at`.
    #[inline]
    fn distance(&mut self, at: usize, number: usize) -> usize {
        self.last = self.last << 16 | number as u64;
        let end = &mut self.ends
            [(self.last.wrapping_mul(SPREAD) >> (u64::BITS - Self::COUNT.ilog2())) as usize];
        at - std::mem::replace(end, at as u32) as usize
    }
}

/// True if `others` begins with values that have the bits of `values`.
#[inline]
fn same_bits<T: Scalar>(values: &[T], others: &[T]) -> bool {
    // All pairs are compared, without an early exit, so that the loop is vectorised.
    values.iter().zip(others).fold(0, |other, (a, b)| other | (a.bits() ^ b.bits())) == 0
}

/// Encoder of the values of a matrix.
#[derive(Debug)]
pub(crate) enum Coder<T> {
    /// The values themselves.
    Plain,
    /// Codes of at most [`DICTIONARY`] values.
    Dictionary(Dictionary<T>),
    /// The same numbers in a narrower precision that holds all of them.
    Narrow(Precision),
    /// Nothing is stored: all have the same bits. Zero if there are no values.
    Same(T),
}

impl<T: Scalar> Coder<T> {
    /// The shortest lossless encoding.
    pub(crate) fn of(values: &[T]) -> Self {
        Self::of_set(&ValueSet::of(values))
    }

    /// The shortest lossless encoding, from the distinct values.
    pub(super) fn of_set(set: &ValueSet) -> Self {
        match set.count() {
            None => Self::Plain,
            Some(0 | 1) => Self::Same(set.bits().next().map_or(T::ZERO, T::from_bits)),
            Some(_) => Self::Dictionary(Dictionary::of(set)),
        }
    }

    /// The precision, if it is narrower and holds all values; otherwise plain.
    pub(crate) fn narrow(values: &[T], precision: Precision) -> Self {
        let all = precision.is_narrower_than(T::KIND) && precision.holds_all(values);
        if all { Self::Narrow(precision) } else { Self::Plain }
    }

    /// Size of one stored value, in bytes.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Plain => size_of::<T>(),
            Self::Narrow(precision) => precision.size(),
            Self::Dictionary(_) => 1,
            Self::Same(_) => 0,
        }
    }

    /// Values of the codes: those of the dictionary by their codes, padded with zeros; or the
    /// single value; empty for numbers.
    pub(crate) fn into_dictionary(self) -> Vec<T> {
        match self {
            Self::Plain | Self::Narrow(_) => Vec::new(),
            Self::Dictionary(Dictionary { mut values, .. }) => {
                values.resize(DICTIONARY, T::ZERO);
                values
            }
            Self::Same(value) => vec![value],
        }
    }
}

/// Up to [`DICTIONARY`] values, in the order of their bits, with a hash table of their codes.
#[derive(Debug)]
pub(crate) struct Dictionary<T> {
    values: Vec<T>,
    keys: Box<[u64; SLOTS]>,
    codes: Box<[u8; SLOTS]>,
}

impl<T: Scalar> Dictionary<T> {
    fn of(set: &ValueSet) -> Self {
        let mut bits: Vec<u64> = set.bits().collect();
        bits.sort_unstable();
        let (mut keys, mut codes, mut used) =
            (Box::new([0; SLOTS]), Box::new([0; SLOTS]), [false; SLOTS]);
        // The bits of zero are also the key of free slots, but they come first and take the first
        // slot of their search.
        for (code, &bits) in bits.iter().enumerate() {
            let mut slot = hash(bits);
            while used[slot] {
                slot = (slot + 1) % SLOTS;
            }
            (keys[slot], codes[slot], used[slot]) = (bits, code as u8, true);
        }
        Self { values: bits.into_iter().map(T::from_bits).collect(), keys, codes }
    }

    /// Keys of the hash table, and their codes.
    pub(super) fn table(&self) -> (&[u64], &[u8]) {
        (&self.keys[..], &self.codes[..])
    }

    /// Code of a value of the dictionary; unspecified for other values.
    #[inline]
    pub(crate) fn code(&self, value: T) -> u8 {
        let bits = value.bits();
        let mut slot = hash(bits);
        while self.keys[slot] != bits {
            slot = (slot + 1) % SLOTS;
        }
        self.codes[slot]
    }
}

/// Encoded values. The values of the codes are stored once for the whole matrix: see
/// [`Coder::into_dictionary`].
#[derive(Debug, PartialEq)]
pub(crate) enum Stored<T> {
    /// The values themselves.
    Plain(Vec<T>),
    /// Codes of a dictionary.
    Codes(Vec<u8>),
    /// Bits of numbers of a 16-bit precision.
    Halves(Precision, Vec<u16>),
    /// 32-bit numbers.
    Singles(Vec<f32>),
    /// Nothing: all values are the same.
    Same,
}

/// Data of values in 16 bits or in 32 bits.
#[derive(Debug)]
pub(crate) enum Narrowed<H, S> {
    Halves(H),
    Singles(S),
}

/// Data of the slices and of the long rows.
pub(crate) type NarrowedPair<H, S> = Narrowed<[H; 2], [S; 2]>;

impl<H, S> Narrowed<H, S> {
    /// Combines the data of the slices with those of the long rows, made by the same coder;
    /// `nothing` if there are no long rows.
    pub(crate) fn and(self, long: Option<Self>, nothing: (H, S)) -> NarrowedPair<H, S> {
        match (self, long) {
            (Self::Halves(own), Some(Self::Halves(long))) => Narrowed::Halves([own, long]),
            (Self::Singles(own), Some(Self::Singles(long))) => Narrowed::Singles([own, long]),
            (Self::Halves(own), _) => Narrowed::Halves([own, nothing.0]),
            (Self::Singles(own), _) => Narrowed::Singles([own, nothing.1]),
        }
    }
}

/// Converts values to a precision. Returns the index of the first value that it does not hold as
/// the error.
pub(crate) fn narrowed<T: Scalar>(
    values: &[T],
    precision: Precision,
) -> Result<Narrowed<Vec<u16>, Vec<f32>>, usize> {
    if let Some(entry) = values.par_iter().position_first(|&value| !precision.holds(value)) {
        return Err(entry);
    }
    let bits = values.par_iter().map(|&value| precision.narrow(value));
    Ok(match precision {
        Precision::F32 => Narrowed::Singles(bits.map(f32::from_bits).collect()),
        Precision::Bf16 | Precision::F16 => {
            Narrowed::Halves(bits.map(|bits| bits as u16).collect())
        }
    })
}

/// Encodes values as codes and a dictionary. There are no codes if one value stands for all. `None`
/// if there are more values than `room`, which is 1 or [`DICTIONARY`].
pub(crate) fn coded<T: Scalar>(values: &[T], room: usize) -> Option<(Vec<u8>, Vec<T>)> {
    let coder = Coder::of(values);
    let codes = match &coder {
        Coder::Same(_) if room == 1 => Vec::new(),
        Coder::Same(_) => vec![0; values.len()],
        Coder::Dictionary(dictionary) if room == DICTIONARY => {
            values.par_iter().map(|&value| dictionary.code(value)).collect()
        }
        _ => return None,
    };
    let mut dictionary = coder.into_dictionary();
    dictionary.resize(room, T::ZERO);
    Some((codes, dictionary))
}

impl<T: Scalar> Stored<T> {
    /// Allocates `len` zeroed values of a coder.
    pub(crate) fn zeroed(coder: &Coder<T>, len: usize) -> Self {
        match coder {
            Coder::Plain => Self::Plain(with_slack(len)),
            Coder::Dictionary(_) => Self::Codes(with_slack(len)),
            Coder::Narrow(Precision::F32) => Self::Singles(with_slack(len)),
            Coder::Narrow(precision) => Self::Halves(*precision, with_slack(len)),
            Coder::Same(_) => Self::Same,
        }
    }

    /// Returns the value at position `at`.
    #[inline]
    pub(crate) fn get(&self, at: usize, dictionary: &[T]) -> T {
        match self {
            Self::Plain(values) => values[at],
            Self::Codes(codes) => dictionary[usize::from(codes[at])],
            Self::Halves(precision, halves) => precision.widen(u32::from(halves[at])),
            Self::Singles(singles) => Precision::F32.widen(singles[at].to_bits()),
            Self::Same => dictionary[0],
        }
    }

    /// The values, if they are stored in the matrix's own type.
    pub(crate) fn plain_mut(&mut self) -> Option<&mut [T]> {
        match self {
            Self::Plain(values) => Some(values),
            _ => None,
        }
    }

    /// The numbers, if they are stored in a narrower precision.
    pub(crate) fn narrow_mut(&mut self) -> Option<Narrowed<&mut [u16], &mut [f32]>> {
        match self {
            Self::Halves(_, halves) => Some(Narrowed::Halves(halves)),
            Self::Singles(singles) => Some(Narrowed::Singles(singles)),
            _ => None,
        }
    }

    /// The codes, if values are stored as codes.
    pub(crate) fn codes_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Codes(codes) => Some(codes),
            _ => None,
        }
    }

    /// Precision of the numbers if they are stored in a narrower one.
    pub(crate) fn narrow(&self) -> Option<Precision> {
        match self {
            Self::Halves(precision, _) => Some(*precision),
            Self::Singles(_) => Some(Precision::F32),
            _ => None,
        }
    }

    /// Number of values in `bytes` bytes.
    pub(crate) fn per(&self, bytes: usize) -> usize {
        match self {
            Self::Plain(_) => bytes / size_of::<T>(),
            Self::Codes(_) => bytes,
            Self::Halves(..) => bytes / size_of::<u16>(),
            Self::Singles(_) => bytes / size_of::<f32>(),
            Self::Same => 0,
        }
    }

    /// Size of all values, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Plain(values) => size_of_val(&**values),
            Self::Codes(codes) => codes.len(),
            Self::Halves(_, halves) => size_of_val(&**halves),
            Self::Singles(singles) => size_of_val(&**singles),
            Self::Same => 0,
        }
    }
}

/// `len` zeros, followed by [`SLACK`] readable bytes of zeros.
pub(crate) fn with_slack<N: Copy + Default>(len: usize) -> Vec<N> {
    let mut zeros = zeroed(len + SLACK / size_of::<N>());
    zeros.truncate(len);
    zeros
}

#[cfg(test)]
#[path = "value_tests.rs"]
mod tests;
