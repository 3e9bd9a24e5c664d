//! Encodings of values: in the matrix's own type, as codes of a dictionary, in a narrower type that
//! holds all of them exactly, or not at all if all are the same. Values are compared by their bits,
//! so the encoding is lossless: `0` and `-0` differ, and so do NaNs with different payloads.

use crate::analysis::value_set::{DICTIONARY, VALUE_SLOTS, ValueSet, hash};
use crate::device::cpu::Output;
use crate::device::{Buffer, Gpu, Ptr};
use crate::formats::ValueArrays;
use crate::memory::try_zeroed;
use crate::parallel::map_each;
use crate::{Error, Precision, Scalar};
use bytemuck::Zeroable;
use std::fmt::{self, Display};

/// Bytes that can be read behind the last value of a packed matrix: the rest of a vector.
const SLACK: usize = 64;

/// Encoding of values that a plan asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueEncoding {
    /// In the matrix's own type.
    Plain,
    /// As codes of a dictionary if there are at most 256 values, not at all if there is one,
    /// otherwise in the matrix's own type.
    Packed,
    /// In a narrower precision if it holds all of them exactly, otherwise in the matrix's own type.
    /// Products are computed in the matrix's own type.
    Narrow(Precision),
}

impl ValueEncoding {
    /// Values of the argument `values` of a plan.
    pub(crate) const WORDS: &'static [(&'static str, Self)] = &[
        ("plain", Self::Plain),
        ("packed", Self::Packed),
        ("bf16", Self::Narrow(Precision::Bf16)),
        ("f16", Self::Narrow(Precision::F16)),
        ("f32", Self::Narrow(Precision::F32)),
    ];
}

impl Display for ValueEncoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::WORDS.iter().find(|word| word.1 == *self);
        f.write_str(word.expect("every encoding is listed").0)
    }
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
    pub(crate) fn of_set(set: &ValueSet) -> Self {
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
    keys: Box<[u64; VALUE_SLOTS]>,
    codes: Box<[u8; VALUE_SLOTS]>,
}

impl<T: Scalar> Dictionary<T> {
    fn of(set: &ValueSet) -> Self {
        let mut bits: Vec<u64> = set.bits().collect();
        bits.sort_unstable();
        let (mut keys, mut codes, mut used) =
            (Box::new([0; VALUE_SLOTS]), Box::new([0; VALUE_SLOTS]), [false; VALUE_SLOTS]);
        // The bits of zero are also the key of free slots, but they come first and take the first
        // slot of their search.
        for (code, &bits) in bits.iter().enumerate() {
            let mut slot = hash(bits);
            while used[slot] {
                slot = (slot + 1) % VALUE_SLOTS;
            }
            (keys[slot], codes[slot], used[slot]) = (bits, code as u8, true);
        }
        Self { values: bits.into_iter().map(T::from_bits).collect(), keys, codes }
    }

    /// Keys of the hash table, and their codes.
    pub(crate) fn table(&self) -> (&[u64], &[u8]) {
        (&self.keys[..], &self.codes[..])
    }

    /// Code of a value of the dictionary; unspecified for other values.
    #[inline]
    pub(crate) fn code(&self, value: T) -> u8 {
        let bits = value.bits();
        let mut slot = hash(bits);
        while self.keys[slot] != bits {
            slot = (slot + 1) % VALUE_SLOTS;
        }
        self.codes[slot]
    }
}

/// Encoded values, by the types of their arrays. The values of the codes are stored once for the
/// whole matrix: see [`Coder::into_dictionary`].
#[derive(Debug, PartialEq)]
pub(crate) enum EncodedValues<Plain, Codes, Halves, Singles> {
    /// The values themselves.
    Plain(Plain),
    /// Codes of a dictionary.
    Codes(Codes),
    /// Bits of numbers of a 16-bit precision.
    Halves(Precision, Halves),
    /// 32-bit numbers.
    Singles(Singles),
    /// Nothing: all values are the same.
    Same,
}

/// Encoded values in host memory.
pub(crate) type Stored<T> = EncodedValues<Vec<T>, Vec<u8>, Vec<u16>, Vec<f32>>;

/// Encoded values in GPU memory.
pub(crate) type DeviceValues<T> = EncodedValues<Buffer<T>, Buffer<u8>, Buffer<u16>, Buffer<f32>>;

/// Replaces the array of [`EncodedValues`] by an expression of it, whatever its type.
macro_rules! map_array {
    ($values:expr, $array:ident => $new:expr) => {{
        use $crate::formats::encoded::EncodedValues;
        match $values {
            EncodedValues::Plain($array) => EncodedValues::Plain($new),
            EncodedValues::Codes($array) => EncodedValues::Codes($new),
            EncodedValues::Halves(precision, $array) => EncodedValues::Halves(*precision, $new),
            EncodedValues::Singles($array) => EncodedValues::Singles($new),
            EncodedValues::Same => EncodedValues::Same,
        }
    }};
}
pub(crate) use map_array;

impl<P: Default, C: Default, H: Default, S: Default> EncodedValues<P, C, H, S> {
    /// Combines the arrays of the slices with those of the long rows, made by the same coder, and
    /// with the values of the codes.
    pub(crate) fn and<D>(self, long: Option<Self>, dictionary: D) -> ValueArrays<P, C, H, S, D> {
        let long = long.unwrap_or_else(|| map_array!(&self, _array => Default::default()));
        match (self, long) {
            (Self::Plain(own), Self::Plain(long)) => ValueArrays::Plain([own, long]),
            (Self::Codes(own), Self::Codes(long)) => {
                ValueArrays::Codes(Some([own, long]), dictionary)
            }
            (Self::Halves(precision, own), Self::Halves(_, long)) => {
                ValueArrays::Halves(precision, [own, long])
            }
            (Self::Singles(own), Self::Singles(long)) => ValueArrays::Singles([own, long]),
            _ => ValueArrays::Codes(None, dictionary),
        }
    }
}

impl<A> EncodedValues<A, A, A, A> {
    /// The array. `None` if nothing is stored.
    pub(crate) fn array(self) -> Option<A> {
        match self {
            Self::Plain(array)
            | Self::Codes(array)
            | Self::Halves(_, array)
            | Self::Singles(array) => Some(array),
            Self::Same => None,
        }
    }
}

/// Converts values to a precision, and their bits to the type in which they are stored.
///
/// # Errors
///
/// [`Error::ValueInexact`] with the first value that the precision does not hold.
pub(crate) fn narrowed<T: Scalar, N: Send>(
    values: &[T],
    precision: Precision,
    stored: impl Fn(u32) -> N + Sync,
) -> Result<Vec<N>, Error> {
    if precision.holds_all(values) {
        return Ok(map_each(values.len(), |i| stored(precision.narrow(values[i]))));
    }
    let entry = values.iter().position(|&value| !precision.holds(value)).unwrap_or_default();
    Err(Error::ValueInexact { entry, value: values[entry].to_f64(), precision })
}

/// Encodes values as codes and a dictionary. There are no codes if one value stands for all. `None`
/// if there are more values than `room`, which is 1 or [`DICTIONARY`].
pub(crate) fn coded<T: Scalar>(values: &[T], room: usize) -> Option<(Vec<u8>, Vec<T>)> {
    let coder = Coder::of(values);
    let codes = match &coder {
        Coder::Same(_) if room == 1 => Vec::new(),
        Coder::Same(_) => vec![0; values.len()],
        Coder::Dictionary(dictionary) if room == DICTIONARY => {
            map_each(values.len(), |i| dictionary.code(values[i]))
        }
        _ => return None,
    };
    let mut dictionary = coder.into_dictionary();
    dictionary.resize(room, T::ZERO);
    Some((codes, dictionary))
}

impl<T: Scalar> DeviceValues<T> {
    /// Copies the values to a GPU.
    ///
    /// # Errors
    ///
    /// [`Error::GpuMemory`].
    pub(crate) fn new(stored: &Stored<T>, gpu: Gpu) -> Result<Self, Error> {
        Ok(map_array!(stored, array => gpu.upload(array)?))
    }

    /// Copies the values from the GPU.
    ///
    /// # Errors
    ///
    /// Errors of copying from the GPU.
    pub(crate) fn to_host(&self) -> Result<Stored<T>, Error> {
        Ok(map_array!(self, array => array.to_vec()?))
    }

    /// Address of the values; null if they take no bytes.
    pub(crate) fn ptr(&self) -> Ptr<u8> {
        map_array!(self, array => array.ptr().cast()).array().unwrap_or(Ptr::NULL)
    }

    /// Bytes of the values.
    pub(crate) fn bytes(&self) -> u64 {
        map_array!(self, array => array.bytes()).array().unwrap_or(0)
    }
}

impl<T: Scalar> Stored<T> {
    /// Allocates `len` zeroed values of a coder.
    ///
    /// # Errors
    ///
    /// [`Error::HostMemory`].
    pub(crate) fn zeroed(coder: &Coder<T>, len: usize) -> Result<Self, Error> {
        Ok(match coder {
            Coder::Plain => Self::Plain(with_slack(len)?),
            Coder::Dictionary(_) => Self::Codes(with_slack(len)?),
            Coder::Narrow(Precision::F32) => Self::Singles(with_slack(len)?),
            Coder::Narrow(precision) => Self::Halves(*precision, with_slack(len)?),
            Coder::Same(_) => Self::Same,
        })
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
        map_array!(self, array => size_of_val(&**array)).array().unwrap_or(0)
    }
}

/// Output for values that several threads store, each at its own positions.
pub(crate) type Sink<'a, T> =
    EncodedValues<Output<T>, (Output<u8>, &'a Dictionary<T>), Output<u16>, Output<f32>>;

impl<'a, T: Scalar> Sink<'a, T> {
    /// Output into `stored`, which was made for the same coder.
    pub(crate) fn new(stored: &mut Stored<T>, coder: &'a Coder<T>) -> Self {
        match (stored, coder) {
            (Stored::Plain(values), _) => Self::Plain(Output::new(values)),
            (Stored::Codes(codes), Coder::Dictionary(dictionary)) => {
                Self::Codes((Output::new(codes), dictionary))
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
                Self::Codes((codes, dictionary)) => codes.set(at, dictionary.code(value)),
                Self::Halves(precision, halves) => halves.set(at, precision.narrow(value) as u16),
                Self::Singles(singles) => {
                    singles.set(at, f32::from_bits(Precision::F32.narrow(value)))
                }
                Self::Same => {}
            }
        }
    }
}

/// `len` zeros, followed by [`SLACK`] readable bytes of zeros.
///
/// # Errors
///
/// [`Error::HostMemory`].
pub(crate) fn with_slack<N: Zeroable>(len: usize) -> Result<Vec<N>, Error> {
    let mut zeros = try_zeroed(len + SLACK / size_of::<N>())?;
    zeros.truncate(len);
    Ok(zeros)
}

#[cfg(test)]
#[path = "encoded_tests.rs"]
mod tests;
