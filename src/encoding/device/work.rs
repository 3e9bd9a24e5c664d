//! Working memory, launches and running sums of packing.

use crate::Error;
use crate::device::{BLOCK, Buffer, Gpu, Launch, Ptr, Queue};
use std::cell::RefCell;

/// Numbers of a tile of running sums; `TILE` in kernels/pack_rows.cu.
const TILE: usize = 8 * BLOCK as usize;

/// Bytes at whose multiples pieces of the working memory begin.
const ALIGNMENT: usize = 256;

/// Working memory of a matrix that is being packed: mostly one allocation, since each takes as long as a product.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) gpu: Gpu,
    memory: RefCell<Memory>,
}

#[derive(Debug)]
struct Memory {
    chunks: Vec<Buffer<u8>>,
    /// Bytes of the last chunk that are taken.
    taken: usize,
}

impl Work {
    /// With so many bytes at once.
    pub(super) fn new(gpu: Gpu, bytes: usize) -> Result<Self, Error> {
        let memory = Memory { chunks: vec![gpu.unset(bytes)?], taken: 0 };
        Ok(Self { gpu, memory: RefCell::new(memory) })
    }

    fn queue(&self) -> &'static Queue {
        self.gpu.queue()
    }

    /// Memory for `len` elements with anything in it, until all is dropped.
    pub(super) fn take<N: Copy>(&self, len: usize) -> Result<Ptr<N>, Error> {
        let mut memory = self.memory.borrow_mut();
        let bytes = (len * size_of::<N>()).next_multiple_of(ALIGNMENT);
        if memory.chunks.last().is_none_or(|chunk| chunk.len() - memory.taken < bytes) {
            memory.chunks.push(self.gpu.unset(bytes)?);
            memory.taken = 0;
        }
        let start = memory.chunks.last().map_or(0, |chunk| chunk.ptr().address());
        let ptr = Ptr::from_address(start + memory.taken as u64);
        memory.taken += bytes;
        Ok(ptr)
    }

    /// The same, zeroed by what is enqueued next.
    pub(super) fn cleared<N: Copy>(&self, len: usize) -> Result<Ptr<N>, Error> {
        let ptr = self.take(len)?;
        // SAFETY: so many elements, which live until the work is dropped, after everything that is enqueued.
        unsafe { self.queue().clear(ptr, len)? };
        Ok(ptr)
    }

    /// Memory that outlasts the work, zeroed by what is enqueued next.
    pub(super) fn output<N: Copy>(&self, len: usize) -> Result<Buffer<N>, Error> {
        let buffer = self.gpu.unset(len)?;
        // SAFETY: so many elements; freeing them waits.
        unsafe { self.queue().clear(buffer.ptr(), len)? };
        Ok(buffer)
    }

    /// Copies from the GPU, after everything that was enqueued.
    pub(super) fn read<N: Copy>(&self, from: Ptr<N>, to: &mut [N]) -> Result<(), Error> {
        // SAFETY: callers read what they took; the wait outlasts the copy.
        unsafe { self.queue().copy_out(to, from)? };
        self.queue().synchronize()
    }

    /// Enqueues a kernel of `kernels/<module>.cu`.
    ///
    /// # Safety
    ///
    /// As of [`Kernel::launch`](crate::device::Kernel::launch).
    pub(super) unsafe fn run(&self, module: &'static str, name: &str, launch: Launch) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.gpu.kernel(module, name)?.launch(self.queue(), launch) }
    }

    /// Turns each of `arrays` arrays of `count` numbers, which stand one behind the other, into the sums of the numbers before each, and
    /// writes the sums of all to `totals`, which are zero.
    ///
    /// # Safety
    ///
    /// There are so many numbers and totals in the memory of the GPU.
    pub(super) unsafe fn scan(
        &self,
        numbers: Ptr<u64>,
        count: usize,
        arrays: u32,
        totals: Ptr<u64>,
    ) -> Result<(), Error> {
        let tiles = count.div_ceil(TILE) as u32;
        let sums = self.take::<u64>((tiles * arrays) as usize)?;
        let launch = Launch::new(tiles * arrays, BLOCK).arg(numbers).arg(count as u64).arg(tiles).arg(sums);
        // SAFETY: a block for every tile, the parameters of both kernels, and the caller's promise.
        unsafe {
            self.run("pack_rows", "pack_scan_sums", launch)?;
            self.scan_tiles(sums, tiles, arrays, totals)?;
            self.run("pack_rows", "pack_scan_numbers", launch)
        }
    }

    /// The same for arrays of few numbers, a block each.
    ///
    /// # Safety
    ///
    /// As of [`scan`](Self::scan).
    pub(super) unsafe fn scan_tiles(
        &self,
        sums: Ptr<u64>,
        tiles: u32,
        arrays: u32,
        totals: Ptr<u64>,
    ) -> Result<(), Error> {
        let blocks = if tiles == 0 { 0 } else { arrays };
        let launch = Launch::new(blocks, BLOCK).arg(sums).arg(tiles).arg(totals);
        // SAFETY: the parameters of the kernel, and the caller's promise.
        unsafe { self.run("pack_rows", "pack_scan_tiles", launch) }
    }
}
