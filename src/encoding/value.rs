//! How values are stored: as they are, as codes of a dictionary, in a type of fewer bytes that holds all of them exactly, or not at all when
//! all are the same. Values are compared by their bits, so that nothing is lost: `0` and `-0` differ, and so do NaNs of different payloads.

use super::SLACK;
use crate::device::cpu::Output;
use crate::memory::zeroed;
use crate::{Precision, Scalar};
use rayon::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Values a dictionary may have: what an 8-bit code can name.
pub(crate) const DICTIONARY: usize = 256;

/// Values one thread looks at in a stretch …
const CHUNK: usize = 1 << 14;

/// … and stretches that it takes together at least, some 100 µs, which is what a pool of threads takes to wake and to wait for: fewer than
/// 2¹⁹ values are not shared.
const TOGETHER: usize = (1 << 18) / CHUNK + 1;

/// Slots of a hash table of values: four times the limit, so that a search seldom meets a second key. A power of two.
pub(super) const SLOTS: usize = 4 * DICTIONARY;

/// 2⁶⁴ over the golden ratio: multiplying by it spreads keys over the upper bits (Knuth, TAOCP 3, 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The slot at which the search for a key begins.
#[inline]
fn hash(bits: u64) -> usize {
    (bits.wrapping_mul(SPREAD) >> (u64::BITS - SLOTS.ilog2())) as usize
}

/// The distinct values met so far, by their bits: a small open-addressing table.
#[derive(Debug)]
pub(crate) struct ValueSet {
    /// Zero marks a free slot; the value whose bits are zero is `zero`.
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
    /// The distinct ones of `values`, or more than [`DICTIONARY`] of them: then not all are looked at.
    pub(crate) fn of<T: Scalar>(values: &[T]) -> Self {
        let many = AtomicBool::new(false);
        let sets = values.par_chunks(CHUNK).with_min_len(TOGETHER).fold(Self::default, |mut set, values| {
            if !many.load(Relaxed) {
                set.add(values);
                many.fetch_or(set.is_full(), Relaxed);
            }
            set
        });
        sets.reduce(Self::default, Self::merge)
    }

    /// The set with this table, which has so many keys; zero is none of them, but may be a value.
    pub(super) fn from_table(slots: Box<[u64; SLOTS]>, keys: usize, zero: bool) -> Self {
        Self { slots, zero, len: keys + usize::from(zero) }
    }

    /// Adds `values` until there are more than [`DICTIONARY`].
    ///
    /// Where values repeat they mostly do so in the order of the rows: a stretch is compared with what stood one period before it, and its
    /// values are looked up only where it differs. The period is then how far before the last few of them stood last (Lempel and Ziv, A
    /// universal algorithm for sequential data compression, 1977).
    pub(super) fn add<T: Scalar>(&mut self, values: &[T]) {
        /// Values that are compared at once.
        const STRETCH: usize = 16;
        /// Stretches in succession that differ until no other period than 1 is looked for.
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

    /// Adds a value, and returns a number below [`SLOTS`] that is its alone, but for that of zero.
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

    /// Whether there are too many values for another one to matter.
    fn is_full(&self) -> bool {
        self.len > DICTIONARY
    }

    /// Both sets together.
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

    /// The bits of the values, in no order.
    fn bits(&self) -> impl Iterator<Item = u64> {
        self.slots.iter().copied().filter(|&bits| bits != 0).chain(self.zero.then_some(0))
    }

    /// The values, in no order.
    pub(crate) fn values<T: Scalar>(&self) -> Vec<T> {
        self.bits().map(T::from_bits).collect()
    }

    /// The number of values; none when there are more than [`DICTIONARY`].
    pub(crate) fn count(&self) -> Option<usize> {
        (!self.is_full()).then_some(self.len)
    }

    /// Whether the one value is `1`.
    pub(crate) fn is_one<T: Scalar>(&self) -> bool {
        self.len == 1 && self.slots.contains(&T::ONE.bits())
    }
}

/// Where the last few values stood before.
struct Phrases {
    /// Numbers of the last values, 16 bits each.
    last: u64,
    /// By the hash of such numbers, where they ended last.
    ends: [u32; Self::COUNT],
}

impl Phrases {
    const COUNT: usize = 256;

    /// How far before position `at`, counted from 1, the last four values ended before, the one with this number being the latest of them:
    /// a guess from 1 to `at`.
    #[inline]
    fn distance(&mut self, at: usize, number: usize) -> usize {
        self.last = self.last << 16 | number as u64;
        let end =
            &mut self.ends[(self.last.wrapping_mul(SPREAD) >> (u64::BITS - Self::COUNT.ilog2())) as usize];
        at - std::mem::replace(end, at as u32) as usize
    }
}

/// Whether as many values of `others` have the bits of `values`.
#[inline]
fn same_bits<T: Scalar>(values: &[T], others: &[T]) -> bool {
    // All comparisons, not the first that fails: they are made many at a time.
    values.iter().zip(others).fold(0, |other, (a, b)| other | (a.bits() ^ b.bits())) == 0
}

/// What a matrix's values become.
#[derive(Debug)]
pub(crate) enum Coder<T> {
    /// What they are.
    Plain,
    /// Codes of at most [`DICTIONARY`] values.
    Dictionary(Dictionary<T>),
    /// The same numbers in fewer bytes: those of a precision that holds all of them.
    Narrow(Precision),
    /// Nothing: all have the same bits. Zero where there are none.
    Same(T),
}

impl<T: Scalar> Coder<T> {
    /// The shortest that loses nothing.
    pub(crate) fn of(values: &[T]) -> Self {
        Self::of_set(&ValueSet::of(values))
    }

    /// The same, from the distinct values.
    pub(super) fn of_set(set: &ValueSet) -> Self {
        match set.count() {
            None => Self::Plain,
            Some(0 | 1) => Self::Same(set.bits().next().map_or(T::ZERO, T::from_bits)),
            Some(_) => Self::Dictionary(Dictionary::of(set)),
        }
    }

    /// Numbers of a precision, where they take fewer bytes and it holds all values; else what they are.
    pub(crate) fn narrow(values: &[T], precision: Precision) -> Self {
        let all = precision.is_narrower_than(T::KIND) && precision.holds_all(values);
        if all { Self::Narrow(precision) } else { Self::Plain }
    }

    /// Bytes of one stored value.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Plain => size_of::<T>(),
            Self::Narrow(precision) => precision.size(),
            Self::Dictionary(_) => 1,
            Self::Same(_) => 0,
        }
    }

    /// What codes stand for: the values of the dictionary by their codes, and zeros behind them; or the one value; nothing for numbers.
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

/// Up to [`DICTIONARY`] values, in the order of their bits, and where to find the code of each.
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
        let (mut keys, mut codes, mut used) = (Box::new([0; SLOTS]), Box::new([0; SLOTS]), [false; SLOTS]);
        // The bits of zero are the key of free slots too, but they come first and take the slot at which their search begins.
        for (code, &bits) in bits.iter().enumerate() {
            let mut slot = hash(bits);
            while used[slot] {
                slot = (slot + 1) % SLOTS;
            }
            (keys[slot], codes[slot], used[slot]) = (bits, code as u8, true);
        }
        Self { values: bits.into_iter().map(T::from_bits).collect(), keys, codes }
    }

    /// The keys of the hash table, and the codes that stand beside them.
    pub(super) fn table(&self) -> (&[u64], &[u8]) {
        (&self.keys[..], &self.codes[..])
    }

    /// The code of one of its values; there is no answer for others.
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

/// Values as they are stored; what codes stand for is kept once for the whole matrix: see [`Coder::into_dictionary`].
#[derive(Debug, PartialEq)]
pub(crate) enum Stored<T> {
    /// As they are.
    Plain(Vec<T>),
    /// Codes of a dictionary.
    Codes(Vec<u8>),
    /// The bits of numbers of a 16-bit precision.
    Halves(Precision, Vec<u16>),
    /// In 32 bits.
    Singles(Vec<f32>),
    /// Not at all.
    Same,
}

/// Something of values in 16 bits, or of values in 32.
#[derive(Debug)]
pub(crate) enum Narrowed<H, S> {
    Halves(H),
    Singles(S),
}

/// Two such things, of the slices and of the long rows.
pub(crate) type NarrowedPair<H, S> = Narrowed<[H; 2], [S; 2]>;

impl<H, S> Narrowed<H, S> {
    /// Of the slices this, and of the long rows that, which the same coder has made; `nothing` where there are no such rows.
    pub(crate) fn and(self, long: Option<Self>, nothing: (H, S)) -> NarrowedPair<H, S> {
        match (self, long) {
            (Self::Halves(own), Some(Self::Halves(long))) => Narrowed::Halves([own, long]),
            (Self::Singles(own), Some(Self::Singles(long))) => Narrowed::Singles([own, long]),
            (Self::Halves(own), _) => Narrowed::Halves([own, nothing.0]),
            (Self::Singles(own), _) => Narrowed::Singles([own, nothing.1]),
        }
    }
}

/// Values in the bytes of a precision; or the first that it does not hold, by its number.
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
        Precision::Bf16 | Precision::F16 => Narrowed::Halves(bits.map(|bits| bits as u16).collect()),
    })
}

/// The codes of values, none where one stands for all, and what they stand for; nothing where these are more than there is `room` for, which is
/// 1 or [`DICTIONARY`].
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
    /// Room for `len` values of a coder.
    pub(crate) fn zeroed(coder: &Coder<T>, len: usize) -> Self {
        match coder {
            Coder::Plain => Self::Plain(with_slack(len)),
            Coder::Dictionary(_) => Self::Codes(with_slack(len)),
            Coder::Narrow(Precision::F32) => Self::Singles(with_slack(len)),
            Coder::Narrow(precision) => Self::Halves(*precision, with_slack(len)),
            Coder::Same(_) => Self::Same,
        }
    }

    /// The value at position `at`.
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

    /// The values, where they are stored as they are.
    pub(crate) fn plain_mut(&mut self) -> Option<&mut [T]> {
        match self {
            Self::Plain(values) => Some(values),
            _ => None,
        }
    }

    /// The numbers, where they are stored in fewer bytes.
    pub(crate) fn narrow_mut(&mut self) -> Option<Narrowed<&mut [u16], &mut [f32]>> {
        match self {
            Self::Halves(_, halves) => Some(Narrowed::Halves(halves)),
            Self::Singles(singles) => Some(Narrowed::Singles(singles)),
            _ => None,
        }
    }

    /// The codes, where they are stored as such.
    pub(crate) fn codes_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Codes(codes) => Some(codes),
            _ => None,
        }
    }

    /// The precision of the numbers, where they are stored in fewer bytes.
    pub(crate) fn narrow(&self) -> Option<Precision> {
        match self {
            Self::Halves(precision, _) => Some(*precision),
            Self::Singles(_) => Some(Precision::F32),
            _ => None,
        }
    }

    /// Values in `bytes` of them.
    pub(crate) fn per(&self, bytes: usize) -> usize {
        match self {
            Self::Plain(_) => bytes / size_of::<T>(),
            Self::Codes(_) => bytes,
            Self::Halves(..) => bytes / size_of::<u16>(),
            Self::Singles(_) => bytes / size_of::<f32>(),
            Self::Same => 0,
        }
    }

    /// Bytes of all of them.
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

/// `len` zeros, and [`SLACK`] bytes of them behind.
pub(crate) fn with_slack<N: Copy + Default>(len: usize) -> Vec<N> {
    let mut zeros = zeroed(len + SLACK / size_of::<N>());
    zeros.truncate(len);
    zeros
}

/// Where several threads store values, each at its own positions.
pub(crate) enum Sink<'a, T> {
    Plain(Output<T>),
    Codes(Output<u8>, &'a Dictionary<T>),
    Halves(Precision, Output<u16>),
    Singles(Output<f32>),
    Same,
}

impl<'a, T: Scalar> Sink<'a, T> {
    /// Into `stored`, which was made for the same coder.
    pub(crate) fn new(stored: &mut Stored<T>, coder: &'a Coder<T>) -> Self {
        match (stored, coder) {
            (Stored::Plain(values), _) => Self::Plain(Output::new(values)),
            (Stored::Codes(codes), Coder::Dictionary(dictionary)) => {
                Self::Codes(Output::new(codes), dictionary)
            }
            (Stored::Halves(precision, halves), _) => Self::Halves(*precision, Output::new(halves)),
            (Stored::Singles(singles), _) => Self::Singles(Output::new(singles)),
            _ => Self::Same,
        }
    }

    /// Stores a value at position `at`.
    ///
    /// # Safety
    ///
    /// As [`Output::set`].
    #[inline]
    pub(crate) unsafe fn put(&self, at: usize, value: T) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Plain(values) => values.set(at, value),
                Self::Codes(codes, dictionary) => codes.set(at, dictionary.code(value)),
                Self::Halves(precision, halves) => halves.set(at, precision.narrow(value) as u16),
                Self::Singles(singles) => singles.set(at, f32::from_bits(Precision::F32.narrow(value))),
                Self::Same => {}
            }
        }
    }
}

#[cfg(test)]
#[path = "value_tests.rs"]
mod tests;
