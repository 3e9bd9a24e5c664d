//! Packed slices on a GPU: a warp a slice, a lane a row, and a warp a piece of a long row; everything in one launch.

mod march;
mod several;

pub(crate) use several::{DeviceVectors, Several};

use super::Header;
use super::index::LANES;
use super::long::{LongRows, Piece};
use super::slices::PackedSlices;
use super::value::{Narrowed, NarrowedPair, Stored};
use crate::device::{BLOCK, Buffer, Gpu, Launch, Module, Out, Ptr, Queue, Residency, RowKernel, Scratch};
use crate::{Error, Precision, Scalar};

/// A matrix in packed slices in the memory of a GPU.
#[derive(Debug)]
pub(crate) struct Uploaded<T> {
    nrows: usize,
    ncols: usize,
    group: usize,
    headers: Buffer<Header>,
    values: Values<T>,
    dictionary: Buffer<T>,
    index: Buffer<u32>,
    perm: Option<Buffer<u32>>,
    skip: Option<Buffer<u32>>,
    long: Option<Long<T>>,
    bytes: u64,
    /// Binary logarithm of the number of warps that share a slice.
    shift: u32,
    kernel: RowKernel,
}

/// Rows that are kept apart.
#[derive(Debug)]
pub(super) struct Long<T> {
    pieces: Buffer<Piece>,
    col_idx: Buffer<u32>,
    values: Values<T>,
    /// The sum of every piece.
    sums: Scratch<T>,
    /// How many pieces of a row are done, at its first piece; zero between products.
    done: Scratch<u32>,
}

/// Buffers of a packed matrix.
pub(super) struct Parts<T> {
    pub(super) headers: Buffer<Header>,
    pub(super) values: Values<T>,
    pub(super) dictionary: Buffer<T>,
    pub(super) index: Buffer<u32>,
    pub(super) perm: Option<Buffer<u32>>,
    pub(super) skip: Option<Buffer<u32>>,
    pub(super) long: Option<Long<T>>,
}

/// As [`Stored`].
#[derive(Debug)]
pub(super) enum Values<T> {
    Plain(Buffer<T>),
    Codes(Buffer<u8>),
    Halves(Precision, Buffer<u16>),
    Singles(Buffer<f32>),
    Same,
}

/// Where numbers are in the memory of a GPU, and how many.
type Numbers<N> = (Ptr<N>, usize);

impl<T: Scalar> Values<T> {
    fn new(stored: &Stored<T>, gpu: Gpu) -> Result<Self, Error> {
        Ok(match stored {
            Stored::Plain(values) => Self::Plain(gpu.upload(values)?),
            Stored::Codes(codes) => Self::Codes(gpu.upload(codes)?),
            Stored::Halves(precision, halves) => Self::Halves(*precision, gpu.upload(halves)?),
            Stored::Singles(singles) => Self::Singles(gpu.upload(singles)?),
            Stored::Same => Self::Same,
        })
    }

    fn to_host(&self) -> Result<Stored<T>, Error> {
        Ok(match self {
            Self::Plain(values) => Stored::Plain(values.to_vec()?),
            Self::Codes(codes) => Stored::Codes(codes.to_vec()?),
            Self::Halves(precision, halves) => Stored::Halves(*precision, halves.to_vec()?),
            Self::Singles(singles) => Stored::Singles(singles.to_vec()?),
            Self::Same => Stored::Same,
        })
    }

    fn plain(&self) -> Option<(Ptr<T>, usize)> {
        match self {
            Self::Plain(values) => Some((values.ptr(), values.len())),
            _ => None,
        }
    }

    fn narrow(&self) -> Option<Narrowed<Numbers<u16>, Numbers<f32>>> {
        match self {
            Self::Halves(_, halves) => Some(Narrowed::Halves((halves.ptr(), halves.len()))),
            Self::Singles(singles) => Some(Narrowed::Singles((singles.ptr(), singles.len()))),
            _ => None,
        }
    }

    fn codes(&self) -> Option<Numbers<u8>> {
        match self {
            Self::Codes(codes) => Some((codes.ptr(), codes.len())),
            _ => None,
        }
    }

    /// Where they begin; nowhere where they take no bytes.
    pub(super) fn ptr(&self) -> Ptr<u8> {
        match self {
            Self::Plain(values) => Ptr::from_address(values.ptr().address()),
            Self::Codes(codes) => codes.ptr(),
            Self::Halves(_, halves) => Ptr::from_address(halves.ptr().address()),
            Self::Singles(singles) => Ptr::from_address(singles.ptr().address()),
            Self::Same => Ptr::NULL,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Plain(values) => values.bytes(),
            Self::Codes(codes) => codes.bytes(),
            Self::Halves(_, halves) => halves.bytes(),
            Self::Singles(singles) => singles.bytes(),
            Self::Same => 0,
        }
    }

    /// The kernel file for them.
    fn file(&self) -> &'static str {
        match self {
            Self::Plain(_) => "packed_plain",
            Self::Codes(_) => "packed_coded",
            Self::Halves(Precision::Bf16, _) => "packed_bf16",
            Self::Halves(..) => "packed_f16",
            Self::Singles(_) => "packed_f32",
            Self::Same => "packed_same",
        }
    }
}

impl<T: Scalar> Long<T> {
    fn new(long: &LongRows<T>, gpu: Gpu) -> Result<Self, Error> {
        let values = Values::new(&long.values, gpu)?;
        Ok(Self::from_parts(gpu, gpu.upload(&long.pieces)?, gpu.upload(&long.col_idx)?, values))
    }

    pub(super) fn from_parts(
        gpu: Gpu,
        pieces: Buffer<Piece>,
        col_idx: Buffer<u32>,
        values: Values<T>,
    ) -> Self {
        let count = pieces.len();
        Self { pieces, col_idx, values, sums: Scratch::new(gpu, count), done: Scratch::cleared(gpu, count) }
    }

    fn to_host(&self) -> Result<LongRows<T>, Error> {
        Ok(LongRows {
            pieces: self.pieces.to_vec()?,
            col_idx: self.col_idx.to_vec()?,
            values: self.values.to_host()?,
            parts: Box::default(),
        })
    }

    fn bytes(&self) -> u64 {
        self.pieces.bytes() + self.col_idx.bytes() + self.values.bytes()
    }
}

/// Steps of a slice that a warp takes at a time: `packed_rows` in `kernels/packed.cuh`.
const BATCH: usize = 8;

/// Microseconds that a batch of steps takes, and a warp more in the grid.
const BATCH_US: f64 = 0.5;
const WARP_US: f64 = 0.36e-3;

/// The most warps that share a slice, as a binary logarithm: those of a block.
const MOST_SHIFT: u32 = 3;

/// More slices than this have warps enough, and are not looked at.
const MANY_SLICES: usize = 1 << 15;

/// Binary logarithm of the number of warps that share each slice of a matrix.
///
/// A warp takes its steps in batches, one after the other; more warps make chains shorter and the
/// grid larger. Measured on an H200 over 28 matrices of 30,000 to 5 million entries: a batch takes
/// 0.5 µs, most of it the latency of an index and of what it points at, and 1000 more warps 0.36 µs.
/// The law is the same on every GPU, since the bits of products depend on it; a matrix of which a part
/// is streamed has one warp a slice.
fn sharing(headers: &Buffer<Header>) -> Result<u32, Error> {
    if headers.len() > MANY_SLICES {
        return Ok(0);
    }
    let steps = headers.to_vec()?.iter().map(|header| header.shape().width).max().unwrap_or(0);
    Ok(warps_shift(headers.len(), steps))
}

/// The same for so many slices, the widest of which has so many steps.
pub(crate) fn warps_shift(slices: usize, steps: usize) -> u32 {
    if slices > MANY_SLICES {
        return 0;
    }
    let cost = |shift: &u32| {
        let chain = steps.div_ceil(BATCH << shift) as f64;
        chain * BATCH_US + (slices << shift) as f64 * WARP_US
    };
    (0..=MOST_SHIFT).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap_or(0)
}

/// Blocks in which every one of so many things has a warp.
fn blocks(warps: usize) -> u32 {
    // There are fewer than 2³² rows, so that neither pieces nor slices fill so many blocks.
    warps.div_ceil(BLOCK as usize / LANES) as u32
}

impl<T: Scalar> Uploaded<T> {
    /// Copies a packed matrix to the memory of a GPU.
    ///
    /// # Errors
    ///
    /// What allocating, copying and compiling give.
    pub(crate) fn new(host: &PackedSlices<T>, gpu: Gpu) -> Result<Self, Error> {
        let upload = |array: &Option<Vec<u32>>| array.as_ref().map(|array| gpu.upload(array)).transpose();
        let parts = Parts {
            headers: gpu.upload(&host.headers)?,
            values: Values::new(&host.values, gpu)?,
            dictionary: gpu.upload(&host.dictionary)?,
            index: gpu.upload(&host.index)?,
            perm: upload(&host.perm)?,
            skip: upload(&host.skip)?,
            long: host.long.as_ref().map(|long| Long::new(long, gpu)).transpose()?,
        };
        Self::from_parts(gpu, (host.nrows, host.ncols), host.group, parts, host.is_diagonal())
    }

    /// From the buffers of a matrix, of which all slices may be diagonal.
    ///
    /// # Errors
    ///
    /// What compiling gives.
    pub(super) fn from_parts(
        gpu: Gpu,
        (nrows, ncols): (usize, usize),
        group: usize,
        parts: Parts<T>,
        is_diagonal: bool,
    ) -> Result<Self, Error> {
        let Parts { headers, values, dictionary, index, perm, skip, long } = parts;
        let (file, diagonal) = (values.file(), if is_diagonal { "_diagonal" } else { "" });
        let optional = perm.iter().chain(&skip).map(Buffer::bytes).sum::<u64>();
        let arrays = [headers.bytes(), values.bytes(), index.bytes(), dictionary.bytes(), optional];
        let bytes = arrays.iter().sum::<u64>() + long.as_ref().map_or(0, Long::bytes);
        let residency = Residency::of::<T>(gpu, bytes, (nrows, ncols));
        let module = Module::of(file, residency);
        let shift = if residency.streams() { 0 } else { sharing(&headers)? };
        let module = if shift > 0 { module.split() } else { module };
        let name = format!("{file}{diagonal}_v{group}_{}", T::KIND);
        let kernel = RowKernel::new(gpu, module, residency, name)?;
        Ok(Self {
            nrows,
            ncols,
            group,
            headers,
            values,
            dictionary,
            index,
            perm,
            skip,
            long,
            bytes,
            shift,
            kernel,
        })
    }

    /// Enqueues the product, to `out`.
    ///
    /// # Errors
    ///
    /// What the GPU gives.
    ///
    /// # Safety
    ///
    /// `x` has `ncols` elements and what is written to has `nrows`, both in the memory of the matrix's GPU; they do not overlap, and they,
    /// the factors and the matrix live until the product is done.
    pub(crate) unsafe fn multiply(&self, queue: &Queue, x: Ptr<T>, out: Out<'_, T>) -> Result<(), Error> {
        let or_null = |array: &Option<Buffer<u32>>| array.as_ref().map_or(Ptr::NULL, Buffer::ptr);
        let pieces = self.long.as_ref().map_or(0, |long| long.pieces.len());
        let launch = Launch::new(blocks(pieces) + blocks(self.headers.len() << self.shift), BLOCK);
        let launch = launch.arg(self.headers.ptr()).arg(self.values.ptr()).arg(self.index.ptr());
        let launch = launch.arg(self.dictionary.ptr()).arg(or_null(&self.perm)).arg(or_null(&self.skip));
        let launch = launch.arg(self.nrows as u32);
        let launch = match &self.long {
            Some(long) => {
                let rows = launch.arg(long.pieces.ptr()).arg(long.col_idx.ptr()).arg(long.values.ptr());
                rows.arg(pieces as u32).arg(long.sums.on(queue)?).arg(long.done.on(queue)?)
            }
            None => {
                let rows = launch.arg(Ptr::<Piece>::NULL).arg(Ptr::<u32>::NULL).arg(Ptr::<u8>::NULL);
                rows.arg(0u32).arg(Ptr::<T>::NULL).arg(Ptr::<u32>::NULL)
            }
        };
        // SAFETY: these are the parameters of all kernels in packed.cuh; the vectors are the caller's promise.
        unsafe { self.kernel.launch(queue, &out, out.to(launch.arg(x)).arg(self.shift)) }
    }

    /// The values of the slices and of the long rows with their numbers, where they are stored as they are.
    pub(crate) fn plain_values(&self) -> Option<[(Ptr<T>, usize); 2]> {
        let long = self.long.as_ref().map_or(Some((Ptr::NULL, 0)), |long| long.values.plain());
        Some([self.values.plain()?, long?])
    }

    /// As [`plain_values`](Self::plain_values), where they are stored in fewer bytes.
    pub(crate) fn narrow_values(&self) -> Option<NarrowedPair<Numbers<u16>, Numbers<f32>>> {
        let long = self.long.as_ref().and_then(|long| long.values.narrow());
        Some(self.values.narrow()?.and(long, ((Ptr::NULL, 0), (Ptr::NULL, 0))))
    }

    /// As [`plain_values`](Self::plain_values), where they are stored as codes.
    pub(crate) fn codes(&self) -> Option<[Numbers<u8>; 2]> {
        let long = self.long.as_ref().and_then(|long| long.values.codes());
        Some([self.values.codes()?, long.unwrap_or((Ptr::NULL, 0))])
    }

    /// What codes stand for, or the one value that all have; nothing where values are numbers.
    pub(crate) fn dictionary(&self) -> &Buffer<T> {
        &self.dictionary
    }

    /// The precision of the values, where they are stored in fewer bytes.
    pub(crate) fn narrow(&self) -> Option<Precision> {
        match &self.values {
            Values::Halves(precision, _) => Some(*precision),
            Values::Singles(_) => Some(Precision::F32),
            _ => None,
        }
    }

    /// The matrix back in host memory, good for unpacking.
    ///
    /// # Errors
    ///
    /// What copying from the GPU gives.
    pub(crate) fn to_host(&self) -> Result<PackedSlices<T>, Error> {
        let download = |array: &Option<Buffer<u32>>| array.as_ref().map(Buffer::to_vec).transpose();
        Ok(PackedSlices {
            nrows: self.nrows,
            ncols: self.ncols,
            group: self.group,
            headers: self.headers.to_vec()?,
            values: self.values.to_host()?,
            dictionary: self.dictionary.to_vec()?,
            index: self.index.to_vec()?,
            perm: download(&self.perm)?,
            skip: download(&self.skip)?,
            long: self.long.as_ref().map(Long::to_host).transpose()?,
            parts: Box::default(),
        })
    }

    /// The kernel that multiplies with it.
    #[cfg(test)]
    pub(super) fn kernel_name(&self) -> String {
        format!("{:?} {}", self.kernel, self.group)
    }

    /// Bytes of the arrays.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How much of the arrays stays in the L2 between products.
    pub(crate) fn residency(&self) -> Residency {
        self.kernel.residency()
    }
}

#[cfg(test)]
mod tests {
    use super::warps_shift;

    #[test]
    fn few_long_slices_are_shared_and_many_or_short_ones_are_not() {
        assert_eq!(warps_shift(0, 0), 0);
        assert_eq!([1, 8].map(|steps| warps_shift(100, steps)), [0; 2], "a batch is not divided");
        assert_eq!(warps_shift(639, 305), 3);
        assert_eq!(warps_shift(3125, 64), 1);
        assert_eq!(warps_shift(3906, 27), 0);
        assert_eq!(warps_shift(32_768, 64), 0);
    }
}
