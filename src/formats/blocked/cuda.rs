//! Cache-blocked format on a GPU: one launch gathers the hot columns, one multiplies the pieces of
//! tiles, one multiplies the other pieces, and one adds partial sums.

use super::constants::WINDOW_THREADS;
use super::cpu::Spare;
use super::{BlockedPlan, HostBlocked, Pieces, SlotValues, SplitRows, TileTable, pack};
use crate::analysis::Analysis;
use crate::device::{
    BLOCK, Buffer, Gpu, Kernel, Launch, Module, Ptr, Queue, Residency, Scratch, WARP, kernels,
};
use crate::formats::values::is_equal;
use crate::formats::{DeviceMatrix, DeviceValueArrays, HostMatrix, ValueArrays};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};

/// Name of the kernel file.
const FILE: &str = "blocked";

/// A cache-blocked matrix in GPU memory.
#[derive(Debug)]
pub(super) struct DeviceBlocked<T> {
    nrows: usize,
    ncols: usize,
    arrays: DeviceArrays<T>,
    /// Kernel that multiplies the tiles.
    sum_tiles: SumTiles,
    gather: Kernel,
    sum_far: Kernel,
    add_partial_sums: Kernel,
    /// Lanes that add the partial sums of a row.
    lanes: u32,
    residency: Residency,
    partial_sums: Scratch<T>,
    /// Gathered `x` of the hot columns.
    hot_x: Scratch<T>,
}

/// The arrays of a [`HostBlocked`] in GPU memory.
#[derive(Debug)]
pub(super) struct DeviceArrays<T> {
    pub(super) hot: Buffer<u32>,
    pub(super) tile_ptr: Buffer<u32>,
    pub(super) windows: Buffer<[u32; 2]>,
    pub(super) near: UploadedPieces<T, u16>,
    pub(super) far: UploadedPieces<T, u32>,
    pub(super) split_rows: Buffer<u32>,
    pub(super) split_ptr: Buffer<u32>,
    pub(super) order: Buffer<u32>,
}

impl<T: Scalar> DeviceArrays<T> {
    fn bytes(&self) -> u64 {
        let words = [&self.hot, &self.tile_ptr, &self.split_rows, &self.split_ptr, &self.order];
        let words: u64 = words.iter().map(|array| array.bytes()).sum();
        words + self.windows.bytes() + self.near.bytes() + self.far.bytes()
    }
}

/// Pieces in GPU memory.
#[derive(Debug)]
pub(super) struct UploadedPieces<T, C> {
    pub(super) cols: Buffer<C>,
    pub(super) values: SlotValues<T, Buffer<T>>,
    pub(super) flags: Buffer<u16>,
    pub(super) piece_ptr: Buffer<u32>,
    pub(super) targets: Buffer<u32>,
}

/// Kernel that multiplies the tiles.
#[derive(Debug)]
enum SumTiles {
    /// With `x` in shared memory: kernel, bytes of shared memory per block, number of blocks.
    Shared(Kernel, u32, u32),
    /// With `x` in global memory: the GPU does not have enough shared memory per block.
    Memory(Kernel),
}

impl SumTiles {
    fn new<T: Scalar>(widest: u32, values: &str, gpu: Gpu, module: Module) -> Result<Self, Error> {
        let kernel = gpu.kernel(module, &format!("blocked_window{values}_{}", T::KIND))?;
        let bytes = widest * size_of::<T>() as u32;
        if bytes > gpu.shared_memory(kernel)? {
            return Ok(Self::Memory(
                gpu.kernel(module, &format!("blocked_near{values}_{}", T::KIND))?,
            ));
        }
        let resident = gpu.resident_blocks(kernel, WINDOW_THREADS, bytes)?;
        Ok(Self::Shared(kernel, bytes, resident))
    }
}

impl<T: Scalar, C: Copy> UploadedPieces<T, C> {
    fn new(host: &Pieces<T, C>, gpu: Gpu) -> Result<Self, Error> {
        Ok(Self {
            cols: gpu.upload(&host.cols)?,
            values: host.values.copied(|values| gpu.upload(values))?,
            flags: gpu.upload(&host.flags)?,
            piece_ptr: gpu.upload(&host.piece_ptr)?,
            targets: gpu.upload(&host.targets)?,
        })
    }

    fn pieces(&self) -> u32 {
        // Packing ensures that the number fits 32 bits.
        (self.piece_ptr.len() - 1) as u32
    }

    fn to_host(&self) -> Result<Pieces<T, C>, Error> {
        Ok(Pieces {
            cols: self.cols.to_vec()?,
            values: self.values.copied(Buffer::to_vec)?,
            flags: self.flags.to_vec()?,
            piece_ptr: self.piece_ptr.to_vec()?,
            targets: self.targets.to_vec()?,
            bounds: pack::bounds(self.pieces() as usize),
        })
    }

    fn bytes(&self) -> u64 {
        self.cols.bytes()
            + self.values.bytes()
            + self.flags.bytes()
            + self.piece_ptr.bytes()
            + self.targets.bytes()
    }
}

/// Kernels that the products of a matrix of `bytes` bytes are expected to need.
pub(super) fn expected_kernels<T: Scalar>(
    plan: &BlockedPlan,
    analysis: &Analysis,
    bytes: u64,
    gpu: Gpu,
) -> Vec<(Module, String)> {
    let shape = (analysis.rows.nrows, analysis.rows.ncols);
    let module = Module::of(FILE, Residency::of::<T>(gpu, bytes, shape));
    let infix = if plan.packed && is_equal(analysis) { "_equal" } else { "" };
    let tiles = [format!("window{infix}"), format!("far{infix}"), "gather".to_owned()];
    let names = tiles.into_iter().chain([1, 4, 32].map(|lanes| format!("add{lanes}")));
    names.map(|name| (module, format!("blocked_{name}_{}", T::KIND))).collect()
}

/// Lanes per row for adding partial sums: about as many as a row has.
const fn lanes(rows: usize, partial_sums: usize) -> u32 {
    match partial_sums / if rows == 0 { 1 } else { rows } {
        0..3 => 1,
        3..12 => 4,
        _ => 32,
    }
}

impl<T: Scalar> DeviceBlocked<T> {
    pub(super) fn new(host: &HostBlocked<T>, gpu: Gpu) -> Result<Self, Error> {
        let arrays = DeviceArrays {
            hot: gpu.upload(&host.hot)?,
            tile_ptr: gpu.upload(&host.tiles.tile_ptr)?,
            windows: gpu.upload(&host.tiles.windows)?,
            near: UploadedPieces::new(&host.near, gpu)?,
            far: UploadedPieces::new(&host.far, gpu)?,
            split_rows: gpu.upload(&host.split.rows)?,
            split_ptr: gpu.upload(&host.split.ptr)?,
            order: gpu.upload(&host.order)?,
        };
        let partial_sums = host.split.ptr[host.split.ptr.len() - 1] as usize;
        let widest = host.tiles.windows.iter().map(|[_, width]| *width).max().unwrap_or(0);
        Self::of_arrays(gpu, (host.nrows, host.ncols), arrays, widest, partial_sums)
    }

    /// A matrix of arrays in GPU memory, with windows of at most `widest` columns and
    /// `partial_sums` partial sums.
    pub(super) fn of_arrays(
        gpu: Gpu,
        (nrows, ncols): (usize, usize),
        arrays: DeviceArrays<T>,
        widest: u32,
        partial_sums: usize,
    ) -> Result<Self, Error> {
        let residency = Residency::of::<T>(gpu, arrays.bytes(), (nrows, ncols));
        let module = Module::of(FILE, residency);
        let kernel = |name: &str| gpu.kernel(module, &format!("blocked_{name}_{}", T::KIND));
        let lanes = lanes(arrays.split_rows.len(), partial_sums);
        let hot = arrays.hot.len();
        Ok(Self {
            nrows,
            ncols,
            sum_tiles: SumTiles::new::<T>(widest, arrays.near.values.infix(), gpu, module)?,
            gather: kernel("gather")?,
            sum_far: kernel(&format!("far{}", arrays.far.values.infix()))?,
            add_partial_sums: kernel(&format!("add{lanes}"))?,
            arrays,
            lanes,
            residency,
            partial_sums: Scratch::new(gpu, partial_sums),
            hot_x: Scratch::new(gpu, hot),
        })
    }

    /// Returns the kernel that multiplies tiles, and its launch.
    fn sum_tiles(
        &self,
        queue: &Queue,
        x: Ptr<T>,
        y: Ptr<T>,
        partial_sums: Ptr<T>,
    ) -> (Kernel, Launch) {
        let pieces = self.arrays.near.pieces();
        let (kernel, launch) = match self.sum_tiles {
            SumTiles::Shared(kernel, bytes, resident) => {
                (kernel, Launch::new(resident.min(pieces), WINDOW_THREADS).with_shared(bytes))
            }
            SumTiles::Memory(kernel) => (kernel, Self::warps(pieces)),
        };
        let (values, value) = self.arrays.near.values.params();
        let launch = launch.with(kernels::blocked::Window {
            cols: self.arrays.near.cols.ptr(),
            values,
            value,
            flags: self.arrays.near.flags.ptr(),
            piece_ptr: self.arrays.near.piece_ptr.ptr(),
            pieces,
            targets: self.arrays.near.targets.ptr(),
            y,
            partial_sums,
            nrows: self.nrows as u32,
            x,
            tile_ptr: self.arrays.tile_ptr.ptr(),
            tiles: self.arrays.windows.len() as u32,
            windows: self.arrays.windows.ptr(),
            l2_shares: self.residency.l2_shares(queue),
        });
        (kernel, launch)
    }

    /// The matrix in host memory.
    pub(super) fn to_host(&self) -> Result<HostBlocked<T>, Error> {
        let arrays = &self.arrays;
        let ptr = arrays.split_ptr.to_vec()?;
        Ok(HostBlocked {
            nrows: self.nrows,
            ncols: self.ncols,
            hot: arrays.hot.to_vec()?,
            tiles: TileTable {
                tile_ptr: arrays.tile_ptr.to_vec()?,
                windows: arrays.windows.to_vec()?,
            },
            near: arrays.near.to_host()?,
            far: arrays.far.to_host()?,
            split: SplitRows {
                rows: arrays.split_rows.to_vec()?,
                bounds: pack::split_bounds(&ptr),
                ptr,
            },
            order: arrays.order.to_vec()?,
            scratch: Spare::default(),
        })
    }

    /// Launch with one warp per piece.
    const fn warps(pieces: u32) -> Launch {
        Launch::new(pieces.div_ceil(BLOCK / WARP), BLOCK)
    }
}

impl<T: Scalar> DeviceMatrix<T> for DeviceBlocked<T> {
    unsafe fn spmv(&self, queue: &Queue, x: Ptr<T>, y: Ptr<T>) -> Result<(), Error> {
        let (partial_sums, hot_x) = (self.partial_sums.on(queue)?, self.hot_x.on(queue)?);
        let hot = self.arrays.hot.len();
        if hot > 0 {
            let (cols, count) = (self.arrays.hot.ptr(), hot as u32);
            let params = kernels::blocked::Gather { cols, count, x, to: hot_x };
            // SAFETY: the kernel is `blocked_gather`, with room for `x` of every hot column. The
            // vectors are the caller's promise, here and below.
            unsafe { self.gather.launch(queue, Launch::over(hot, 1).with(params))? };
        }
        let (kernel, launch) =
            self.sum_tiles(queue, if hot > 0 { hot_x } else { x }, y, partial_sums);
        // SAFETY: the kernel is `blocked_window` or `blocked_near`, with room for all sums.
        unsafe { kernel.launch(queue, launch)? };
        let (values, value) = self.arrays.far.values.params();
        let launch = Self::warps(self.arrays.far.pieces()).with(kernels::blocked::Far {
            cols: self.arrays.far.cols.ptr(),
            values,
            value,
            flags: self.arrays.far.flags.ptr(),
            piece_ptr: self.arrays.far.piece_ptr.ptr(),
            pieces: self.arrays.far.pieces(),
            targets: self.arrays.far.targets.ptr(),
            y,
            partial_sums,
            nrows: self.nrows as u32,
            x,
            l2_shares: self.residency.l2_shares(queue),
        });
        // SAFETY: the kernel is `blocked_far`, as above.
        unsafe { self.sum_far.launch(queue, launch)? };
        let (rows, ptr) = (self.arrays.split_rows.ptr(), self.arrays.split_ptr.ptr());
        let count = self.arrays.split_rows.len();
        let params = kernels::blocked::Add { rows, ptr, count: count as u32, partial_sums, y };
        let launch = Launch::over(count, self.lanes).with(params);
        // SAFETY: the kernel is `blocked_add`; all partial sums have been written, and the rows are
        // those of `y`.
        unsafe { self.add_partial_sums.launch(queue, launch) }
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        self.to_host()?.unpack()
    }

    fn values(&self) -> DeviceValueArrays<'_, T> {
        let DeviceArrays { near, far, .. } = &self.arrays;
        let (near, far) = (near.values.array()?.numbers(), far.values.array()?.numbers());
        Ok(ValueArrays::Plain([near, far]))
    }

    fn device_bytes(&self) -> u64 {
        self.arrays.bytes()
    }

    fn residency(&self) -> Residency {
        self.residency
    }
}
