//! Tiles on a GPU: for every stripe a launch that multiplies and one that sums, followed by one for
//! the rows that are cut.

use super::constants::{MULTIPLY_THREADS, RUN_BYTES, SUM_THREADS};
use super::{GROUP, HostTiles, SlotValues, TilesPlan, TilesShape, is_equal, pack};
use crate::analysis::Analysis;
use crate::device::{
    BANK_LINE, Buffer, Gpu, Kernel, Launch, Module, Ptr, Queue, Residency, Scratch, kernels,
};
use crate::formats::{DeviceMatrix, DeviceValueArrays, HostMatrix, ValueArrays};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar};

/// Kernel file of products.
const FILE: &str = "tiles";

/// Arrays of a tiled matrix in GPU memory.
#[derive(Debug)]
pub(super) struct TileArrays<T> {
    pub(super) shape: TilesShape,
    pub(super) chunk_rows: Buffer<u32>,
    pub(super) chunk_ptr: Buffer<u32>,
    pub(super) positions: Buffer<u16>,
    pub(super) row_ends: Buffer<u16>,
    pub(super) tile_ptr: Buffer<u32>,
    pub(super) cols: Buffer<u16>,
    pub(super) values: SlotValues<T, Buffer<T>>,
    /// Position in chunk order of each group in tile order.
    pub(super) destinations: Buffer<u32>,
    /// First group of each stripe, the same in both orders, and the number of groups.
    pub(super) stripe_ptr: Vec<u32>,
}

/// A tiled matrix in GPU memory.
#[derive(Debug)]
pub(super) struct DeviceTiles<T> {
    arrays: TileArrays<T>,
    multiply: SharedMemoryKernel,
    sum: SharedMemoryKernel,
    add_carries: Kernel,
    /// Products of a stripe.
    products: Scratch<T>,
    /// Carry of every chunk: its sum of the row that continues in the next chunk.
    carries: Scratch<T>,
    residency: Residency,
}

/// A kernel whose blocks use dynamic shared memory.
#[derive(Debug)]
struct SharedMemoryKernel {
    kernel: Kernel,
    bytes: u32,
    /// Number of resident blocks.
    resident: u32,
}

impl SharedMemoryKernel {
    fn new(gpu: Gpu, module: Module, name: &str, threads: u32, bytes: u32) -> Result<Self, Error> {
        let kernel = gpu.kernel(module, name)?;
        Ok(Self { kernel, bytes, resident: gpu.resident_blocks(kernel, threads, bytes)? })
    }
}

/// Kernels of products that are expected to be needed.
pub(super) fn expected_kernels<T: Scalar>(
    plan: &TilesPlan,
    analysis: &Analysis,
    bytes: u64,
    gpu: Gpu,
) -> [(Module, String); 3] {
    let shape = (analysis.rows.nrows, analysis.rows.ncols);
    let module = Module::of(FILE, Residency::of::<T>(gpu, bytes, shape).whole());
    let infix = if plan.packed && is_equal(analysis) { "_equal" } else { "" };
    [
        (module, format!("tiles_multiply{infix}_{}", T::KIND)),
        (module, format!("tiles_sum_{}", T::KIND)),
        (FILE.into(), format!("tiles_carries_{}", T::KIND)),
    ]
}

/// Inverse of a permutation of the numbers 0, 1, 2, ...
fn inverse(numbers: &[u32]) -> Vec<u32> {
    let mut places = vec![0; numbers.len()];
    for (place, &number) in (0..).zip(numbers) {
        places[number as usize] = place;
    }
    places
}

impl<T: Scalar> TileArrays<T> {
    pub(super) fn upload(host: &HostTiles<T>, gpu: Gpu) -> Result<Self, Error> {
        let shape = host.shape;
        let first_group = |stripe: usize| host.tile_ptr[stripe * shape.blocks()];
        Ok(Self {
            shape,
            chunk_rows: gpu.upload(&host.chunk_rows)?,
            chunk_ptr: gpu.upload(&host.chunk_ptr)?,
            positions: gpu.upload(&host.positions)?,
            row_ends: gpu.upload(&host.row_ends)?,
            tile_ptr: gpu.upload(&host.tile_ptr)?,
            cols: gpu.upload(&host.cols)?,
            values: host.values.copied(|values| gpu.upload(values))?,
            destinations: gpu.upload(&inverse(&host.home))?,
            stripe_ptr: (0..=shape.stripes()).map(first_group).collect(),
        })
    }

    fn bytes(&self) -> u64 {
        let words = [&self.chunk_rows, &self.chunk_ptr, &self.tile_ptr, &self.destinations];
        let halves = [&self.positions, &self.row_ends, &self.cols];
        let words: u64 = words.iter().map(|array| array.bytes()).sum();
        words + halves.iter().map(|array| array.bytes()).sum::<u64>() + self.values.bytes()
    }

    fn to_host(&self) -> Result<HostTiles<T>, Error> {
        Ok(HostTiles {
            shape: self.shape,
            chunk_rows: self.chunk_rows.to_vec()?,
            chunk_ptr: self.chunk_ptr.to_vec()?,
            home: inverse(&self.destinations.to_vec()?),
            positions: self.positions.to_vec()?,
            row_ends: self.row_ends.to_vec()?,
            tile_ptr: self.tile_ptr.to_vec()?,
            cols: self.cols.to_vec()?,
            values: self.values.copied(Buffer::to_vec)?,
            tasks: pack::tasks(&self.shape),
        })
    }
}

impl<T: Scalar> DeviceTiles<T> {
    /// Copies the arrays to the host.
    #[cfg(test)]
    pub(super) fn to_host(&self) -> Result<HostTiles<T>, Error> {
        self.arrays.to_host()
    }

    pub(super) fn new(arrays: TileArrays<T>, gpu: Gpu) -> Result<Self, Error> {
        let (shape, scalar, size) = (arrays.shape, T::KIND, size_of::<T>() as u32);
        let most = arrays.stripe_ptr.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
        // An SpMV also writes and reads the products of a stripe.
        let bytes = arrays.bytes() + (most as usize * GROUP * size_of::<T>()) as u64;
        let residency = Residency::of::<T>(gpu, bytes, (shape.nrows, shape.ncols)).whole();
        let module = Module::of(FILE, residency);
        let infix = arrays.values.infix();
        let x_bytes = shape.width.min(shape.ncols as u32) * size;
        // Products occupy whole lines of banks.
        let chunk_bytes = shape.chunk * size + BANK_LINE as u32;
        Ok(Self {
            multiply: SharedMemoryKernel::new(
                gpu,
                module,
                &format!("tiles_multiply{infix}_{scalar}"),
                MULTIPLY_THREADS,
                x_bytes,
            )?,
            sum: SharedMemoryKernel::new(
                gpu,
                module,
                &format!("tiles_sum_{scalar}"),
                SUM_THREADS,
                chunk_bytes,
            )?,
            add_carries: gpu.kernel(FILE, &format!("tiles_carries_{scalar}"))?,
            products: Scratch::new(gpu, most as usize * GROUP),
            carries: Scratch::new(gpu, shape.chunk_count()),
            residency,
            arrays,
        })
    }

    /// Launch that multiplies a stripe.
    fn multiply(&self, stripe: usize, x: Ptr<T>, products: Ptr<T>) -> Launch {
        let (first, end) = (self.arrays.stripe_ptr[stripe], self.arrays.stripe_ptr[stripe + 1]);
        let runs = (end - first) as usize * (GROUP * size_of::<T>() / RUN_BYTES);
        let blocks = runs.div_ceil(MULTIPLY_THREADS as usize).min(self.multiply.resident as usize);
        let launch = Launch::new(blocks as u32, MULTIPLY_THREADS).with_shared(self.multiply.bytes);
        let (values, value) = self.arrays.values.params();
        let tiles = self.arrays.shape.blocks();
        launch.with(kernels::tiles::Multiply {
            tile_ptr: self.arrays.tile_ptr.ptr().add(stripe * tiles),
            tiles: tiles as u32,
            first_group: first,
            groups: end - first,
            cols: self.arrays.cols.ptr(),
            values,
            value,
            destinations: self.arrays.destinations.ptr(),
            width: self.arrays.shape.width,
            ncols: self.arrays.shape.ncols as u32,
            x,
            products,
        })
    }

    /// Launch that sums the chunks of a stripe.
    fn sum(&self, stripe: usize, products: Ptr<T>, y: Ptr<T>, carries: Ptr<T>) -> Launch {
        let chunks = self.arrays.shape.chunks_of(stripe);
        let launch = Launch::new(chunks.len() as u32, SUM_THREADS).with_shared(self.sum.bytes);
        launch.with(kernels::tiles::Sum {
            chunk_rows: self.arrays.chunk_rows.ptr(),
            chunk_ptr: self.arrays.chunk_ptr.ptr(),
            positions: self.arrays.positions.ptr(),
            row_ends: self.arrays.row_ends.ptr(),
            chunk: self.arrays.shape.chunk,
            nrows: self.arrays.shape.nrows as u32,
            nnz: self.arrays.shape.nnz as u64,
            first_chunk: chunks.start as u32,
            first_group: self.arrays.stripe_ptr[stripe],
            products,
            y,
            carries,
        })
    }
}

impl<T: Scalar> DeviceMatrix<T> for DeviceTiles<T> {
    unsafe fn spmv(&self, queue: &Queue, x: Ptr<T>, y: Ptr<T>) -> Result<(), Error> {
        let (products, carries) = (self.products.on(queue)?, self.carries.on(queue)?);
        for stripe in 0..self.arrays.shape.stripes() {
            let (multiply, sum) =
                (self.multiply(stripe, x, products), self.sum(stripe, products, y, carries));
            // SAFETY: the kernels are `tiles_multiply` and `tiles_sum`, with room for the products
            // of any stripe and a carry for every chunk; the vectors are the caller's promise.
            unsafe {
                self.multiply.kernel.launch(queue, multiply)?;
                self.sum.kernel.launch(queue, sum)?;
            }
        }
        // Chunk c has a part of the row with which chunk c + 1 begins; the last chunk has no carry.
        let cuts = self.arrays.shape.chunk_count().saturating_sub(1);
        let (rows, count) = (self.arrays.chunk_rows.ptr().add(1), cuts as u64);
        let params = kernels::tiles::Carries { rows, carries, count, y };
        let launch = Launch::over(cuts, 1).with(params);
        // SAFETY: the kernel is `tiles_carries`; the rows are those of `y`.
        unsafe { self.add_carries.launch(queue, launch) }
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        self.arrays.to_host()?.unpack()
    }

    fn values(&self) -> DeviceValueArrays<'_, T> {
        Ok(ValueArrays::Plain([self.arrays.values.array()?.numbers(), Default::default()]))
    }

    fn device_bytes(&self) -> u64 {
        self.arrays.bytes()
    }

    fn residency(&self) -> Residency {
        self.residency
    }
}
