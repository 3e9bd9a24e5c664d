//! Packed SELL on a GPU: one warp per slice, one lane per row, and a warp or half of one per piece
//! of a long row, in a single launch.

mod kernel;
mod spmm;
mod window;

use spmm::Spmm;

use super::host::HostPsell;
use super::index::LANES;
use super::long::{LongRows, Piece};
use super::plan::SliceWarps;
use super::{DeviceValues, Header};
use crate::device::{
    BLOCK, Buffer, Gpu, Launch, Out, Ptr, Queue, Residency, RowKernel, Scratch, kernels,
};
use crate::formats::encoded::map_array;
use crate::formats::{DeviceMatrix, DeviceSpmm, DeviceValueArrays, row_products};
use crate::matrix::CsrMatrix;
use crate::{Error, Precision, Scalar};
use kernel::{ValueForm, kernel_name, module_of, warps_shift_of};
use std::sync::Arc;

pub(crate) use kernel::{expected_kernel, steps_of_warp};

/// A packed SELL matrix in GPU memory.
#[derive(Debug)]
pub(crate) struct DevicePsell<T> {
    nrows: usize,
    ncols: usize,
    group: usize,
    warps: SliceWarps,
    headers: Buffer<Header>,
    values: DeviceValues<T>,
    dictionary: Buffer<T>,
    index: Buffer<u32>,
    perm: Option<Buffer<u32>>,
    skip: Option<Buffer<u32>>,
    long: Option<DeviceLongRows<T>>,
    bytes: u64,
    /// Binary logarithm of the number of warps that share a slice.
    shift: u32,
    /// Binary logarithm of the number of pieces of long rows that a warp sums.
    piece_shift: u32,
    kernel: RowKernel,
}

/// Long rows, which are stored outside of the slices.
#[derive(Debug)]
pub(super) struct DeviceLongRows<T> {
    pieces: Buffer<Piece>,
    col_idx: Buffer<u32>,
    values: DeviceValues<T>,
    /// Sum of every piece.
    sums: Scratch<T>,
    /// Number of finished pieces of a row, at its first piece; zero between products.
    done: Scratch<u32>,
}

/// Buffers of a packed matrix.
pub(super) struct PsellBuffers<T> {
    pub(super) headers: Buffer<Header>,
    pub(super) values: DeviceValues<T>,
    pub(super) dictionary: Buffer<T>,
    pub(super) index: Buffer<u32>,
    pub(super) perm: Option<Buffer<u32>>,
    pub(super) skip: Option<Buffer<u32>>,
    pub(super) long: Option<DeviceLongRows<T>>,
}

impl<T: Scalar> DeviceValues<T> {
    /// Form in which the values are stored.
    fn form(&self) -> ValueForm {
        match self {
            Self::Plain(_) => ValueForm::Plain,
            Self::Codes(_) => ValueForm::Coded,
            Self::Halves(precision, _) => ValueForm::Narrow(*precision),
            Self::Singles(_) => ValueForm::Narrow(Precision::F32),
            Self::Same => ValueForm::Same,
        }
    }
}

impl<T: Scalar> DeviceLongRows<T> {
    fn new(long: &LongRows<T>, gpu: Gpu) -> Result<Self, Error> {
        let values = DeviceValues::new(&long.values, gpu)?;
        Ok(Self::from_buffers(gpu, gpu.upload(&long.pieces)?, gpu.upload(&long.col_idx)?, values))
    }

    pub(super) fn from_buffers(
        gpu: Gpu,
        pieces: Buffer<Piece>,
        col_idx: Buffer<u32>,
        values: DeviceValues<T>,
    ) -> Self {
        let count = pieces.len();
        Self {
            pieces,
            col_idx,
            values,
            sums: Scratch::new(gpu, count),
            done: Scratch::cleared(gpu, count),
        }
    }

    fn to_host(&self) -> Result<LongRows<T>, Error> {
        Ok(LongRows {
            pieces: self.pieces.to_vec()?,
            col_idx: self.col_idx.to_vec()?,
            values: self.values.to_host()?,
            tasks: Box::default(),
        })
    }

    fn bytes(&self) -> u64 {
        self.pieces.bytes() + self.col_idx.bytes() + self.values.bytes()
    }
}

/// Number of pieces of long rows up to which each has a warp for itself, which an H200 executes at
/// the same time as the first slices.
const FEW_PIECES: usize = 1 << 12;

/// Mean number of entries of a piece above which it has a warp for itself. An H200 took 1.19 times
/// as long as `csr(balanced)` with 40 full rows of 214,000 in `f64` and two pieces for each warp,
/// 1.03 times with one.
const SHORT_PIECE: usize = 256;

/// Number of blocks with `warps` warps in total.
fn blocks(warps: usize) -> u32 {
    // There are fewer than 2³² rows, so the blocks of pieces and of slices fit 32 bits.
    warps.div_ceil(BLOCK as usize / LANES) as u32
}

impl<T: Scalar> DevicePsell<T> {
    /// Copies a packed matrix to GPU memory.
    ///
    /// # Errors
    ///
    /// Errors of allocation, copies and kernel compilation.
    pub(crate) fn new(host: &HostPsell<T>, gpu: Gpu) -> Result<Self, Error> {
        let upload =
            |array: &Option<Vec<u32>>| array.as_ref().map(|array| gpu.upload(array)).transpose();
        let buffers = PsellBuffers {
            headers: gpu.upload(&host.headers)?,
            values: DeviceValues::new(&host.values, gpu)?,
            dictionary: gpu.upload(&host.dictionary)?,
            index: gpu.upload(&host.index)?,
            perm: upload(&host.perm)?,
            skip: upload(&host.skip)?,
            long: host.long.as_ref().map(|long| DeviceLongRows::new(long, gpu)).transpose()?,
        };
        let arrangement = (host.group, host.warps);
        Self::from_buffers(gpu, (host.nrows, host.ncols), arrangement, buffers, host.is_diagonal())
    }

    /// Builds the matrix from its buffers. `is_diagonal` selects the kernel for matrices all of
    /// whose slices are diagonal.
    ///
    /// # Errors
    ///
    /// Errors of kernel compilation.
    pub(super) fn from_buffers(
        gpu: Gpu,
        (nrows, ncols): (usize, usize),
        (group, warps): (usize, SliceWarps),
        buffers: PsellBuffers<T>,
        is_diagonal: bool,
    ) -> Result<Self, Error> {
        let PsellBuffers { headers, values, dictionary, index, perm, skip, long } = buffers;
        let name = values.form().spmv_module();
        let optional = perm.iter().chain(&skip).map(Buffer::bytes).sum::<u64>();
        let arrays = [headers.bytes(), values.bytes(), index.bytes(), dictionary.bytes(), optional];
        let bytes = arrays.iter().sum::<u64>() + long.as_ref().map_or(0, DeviceLongRows::bytes);
        let residency = Residency::of::<T>(gpu, bytes, (nrows, ncols)).with_final_results();
        let shift = match warps {
            SliceWarps::One => 0,
            SliceWarps::Auto => warps_shift_of(&headers, bytes)?,
        };
        let (module, residency) = module_of(name, shift, residency);
        let kernel = kernel_name(name, is_diagonal, group, T::KIND);
        let kernel = RowKernel::new(gpu, module, residency, kernel)?;
        let has_short_pieces = long.as_ref().is_some_and(|long| {
            let pieces = long.pieces.len();
            pieces > FEW_PIECES && long.col_idx.len() <= SHORT_PIECE * pieces
        });
        let piece_shift = u32::from(has_short_pieces && shift == 0 && !is_diagonal);
        Ok(Self {
            nrows,
            ncols,
            group,
            warps,
            headers,
            values,
            dictionary,
            index,
            perm,
            skip,
            long,
            bytes,
            shift,
            piece_shift,
            kernel,
        })
    }

    /// Enqueues the product, with its result in `out`.
    ///
    /// # Errors
    ///
    /// Errors of the GPU.
    ///
    /// # Safety
    ///
    /// `x` has `ncols` elements and the output has `nrows`, both in the memory of the matrix's GPU.
    /// They do not overlap, and they, the factors and the matrix live until the product is done.
    pub(crate) unsafe fn multiply(
        &self,
        queue: &Queue,
        x: Ptr<T>,
        out: Out<'_, T>,
    ) -> Result<(), Error> {
        let or_null = |array: &Option<Buffer<u32>>| array.as_ref().map_or(Ptr::NULL, Buffer::ptr);
        let pieces = self.long.as_ref().map_or(0, |long| long.pieces.len());
        let long_blocks = blocks(pieces.div_ceil(1 << self.piece_shift));
        let launch = Launch::new(long_blocks + blocks(self.headers.len() << self.shift), BLOCK);
        let (long_pieces, long_cols, long_values) = match &self.long {
            Some(long) => (long.pieces.ptr(), long.col_idx.ptr(), long.values.ptr()),
            None => (Ptr::NULL, Ptr::NULL, Ptr::NULL),
        };
        let (sums, done) = match &self.long {
            Some(long) => (long.sums.on(queue)?, long.done.on(queue)?),
            None => (Ptr::NULL, Ptr::NULL),
        };
        let launch = launch.with(kernels::psell_spmv::Packed {
            headers: self.headers.ptr().cast(),
            values: self.values.ptr(),
            index: self.index.ptr().cast(),
            dictionary: self.dictionary.ptr(),
            perm: or_null(&self.perm),
            skip: or_null(&self.skip),
            nrows: self.nrows as u32,
            pieces: long_pieces,
            long_cols,
            long_values,
            count: pieces as u32,
            sums,
            done,
            piece_shift: self.piece_shift,
            x,
            out,
            shift: self.shift,
            l2_shares: self.kernel.residency().l2_shares(queue),
        });
        // SAFETY: the kernel is one of psell_spmv.cuh; the vectors are the caller's promise.
        unsafe { self.kernel.launch(queue, &out, launch) }
    }

    /// Copies the matrix to host memory, for unpacking.
    ///
    /// # Errors
    ///
    /// Errors of copies from the GPU.
    pub(crate) fn to_host(&self) -> Result<HostPsell<T>, Error> {
        let download = |array: &Option<Buffer<u32>>| array.as_ref().map(Buffer::to_vec).transpose();
        Ok(HostPsell {
            nrows: self.nrows,
            ncols: self.ncols,
            group: self.group,
            warps: self.warps,
            headers: self.headers.to_vec()?,
            values: self.values.to_host()?,
            dictionary: self.dictionary.to_vec()?,
            index: self.index.to_vec()?,
            perm: download(&self.perm)?,
            skip: download(&self.skip)?,
            long: self.long.as_ref().map(DeviceLongRows::to_host).transpose()?,
            tasks: Box::default(),
        })
    }

    /// Name of the kernel that multiplies with the matrix.
    #[cfg(test)]
    pub(super) fn kernel_name(&self) -> String {
        format!("{:?} {}", self.kernel, self.group)
    }
}

impl<T: Scalar> DeviceMatrix<T> for DevicePsell<T> {
    row_products!();

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        self.to_host()?.to_csr()
    }

    fn values(&self) -> DeviceValueArrays<'_, T> {
        let numbers = |values: &DeviceValues<T>| map_array!(values, array => array.numbers());
        let long = self.long.as_ref().map(|long| numbers(&long.values));
        Ok(numbers(&self.values).and(long, &self.dictionary))
    }

    fn spmm_limit(&self) -> usize {
        usize::MAX
    }

    fn spmm(
        self: Arc<Self>,
        gpu: Gpu,
        has_tables: bool,
    ) -> Result<Option<Box<dyn DeviceSpmm<T>>>, Error> {
        Ok(Some(Box::new(Spmm::new(self, gpu, has_tables)?)))
    }

    fn device_bytes(&self) -> u64 {
        self.bytes
    }

    fn residency(&self) -> Residency {
        self.kernel.residency()
    }
}

#[cfg(test)]
mod tests {
    use super::super::HostPsell;
    use super::DevicePsell;
    use super::kernel::warps_shift;
    use crate::device::{Device, Gpu};
    use crate::formats::Plan;
    use crate::testing::{Oracle, gpu, scattered, x_vector};
    use crate::{Scalar, SparseOp, SparseOpBuilder, Tuning};

    /// Checks rows of 1 to 40 pieces, and others of one piece behind them.
    fn check_long_rows<T: Scalar>(gpu: Gpu, epsilon: f64) {
        const COLUMNS: usize = 30_000;
        let lengths = [600, 3, 65, 1027, 65, 20_000, 90, 512, 5, 1024, 2000];
        let len = |row: usize| if row < 209 { lengths[row % 11] } else { 65 };
        let x = x_vector::<T>(COLUMNS);
        let plan: Plan = "psell(sigma:1,split:64)".parse().unwrap();
        let Plan::Psell(psell) = &plan else { unreachable!("it is packed SELL") };
        let shifts = [209, 210, 10_210].map(|rows| {
            let a = scattered::<T>(rows, COLUMNS, len);
            let host = HostPsell::pack(a.view(), psell.order(), psell.packing()).unwrap();
            let packed = DevicePsell::new(&host, gpu).unwrap();
            assert_eq!(packed.shift, 0);
            let builder = SparseOpBuilder::new().device(Device::Cuda(gpu));
            let op: SparseOp<T> = builder.tuning(Tuning::Fixed(plan.clone())).build(&a).unwrap();
            let (oracle, mut y) = (Oracle::of(a.view(), &x), vec![T::ZERO; rows]);
            // The counters of the pieces are used again.
            for _ in 0..2 {
                op.apply(&x, &mut y).unwrap();
                let error = oracle.rel_error(&y);
                assert!(error <= epsilon, "{rows} rows: {error:e}");
            }
            packed.piece_shift
        });
        assert_eq!(shifts, [0, 0, 1], "half a warp for each of more than 4096 short pieces");
    }

    #[test]
    fn pieces_of_a_whole_warp_and_of_half_a_warp() {
        let Some(&Device::Cuda(gpu)) = gpu() else { return };
        check_long_rows::<f32>(gpu, 1e-5);
        check_long_rows::<f64>(gpu, 1e-13);
    }

    #[test]
    fn few_long_slices_are_shared_and_many_or_short_ones_are_not() {
        assert_eq!(warps_shift(0, 0, 0), 0);
        assert_eq!(
            [1, 8].map(|steps| warps_shift(100, steps, 0)),
            [0; 2],
            "a batch is not divided"
        );
        assert_eq!(warps_shift(639, 305, 20_000_000), 3);
        assert_eq!(warps_shift(3125, 64, 20_000_000), 1);
        assert_eq!(warps_shift(3906, 27, 20_000_000), 0);
        assert_eq!(warps_shift(32_768, 64, 20_000_000), 0);
        let large = |steps| warps_shift(3700, steps, 50_000_000);
        assert_eq!(
            [64, 110, 280].map(large),
            [0, 0, 2],
            "streamed unless the critical path takes longer"
        );
    }
}
