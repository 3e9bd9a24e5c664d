//! Working memory, and launches and prefix sums of work on the default queue of a GPU.

use super::constants::{BLOCK, SCANNED};
use super::kernels::scan::{Blocks, Sums};
use super::{Buffer, Device, DeviceVec, Gpu, Launch, Ptr, Queue};
use crate::{Error, Scalar};
use std::cell::RefCell;

/// Kernel file of the prefix sums.
pub(crate) const SCAN: &str = "scan";

/// Numbers per block of a prefix sum.
const BLOCK_NUMBERS: usize = SCANNED * BLOCK as usize;

/// Alignment of the arrays in a buffer, in bytes.
const ALIGNMENT: usize = 256;

/// Working memory of a matrix that is being analysed or packed: mostly one allocation, because each
/// takes as long as a product.
#[derive(Debug)]
pub(crate) struct WorkingMemory {
    pub(crate) gpu: Gpu,
    memory: RefCell<Memory>,
}

#[derive(Debug)]
struct Memory {
    buffers: Vec<Buffer<u8>>,
    /// Bytes of the last buffer in use.
    taken: usize,
}

impl WorkingMemory {
    /// Allocates `bytes` bytes of scratch memory at once.
    pub(crate) fn new(gpu: Gpu, bytes: usize) -> Result<Self, Error> {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        let memory = Memory { buffers: vec![gpu.working_memory(bytes)?], taken: 0 };
        Ok(Self { gpu, memory: RefCell::new(memory) })
    }

    fn queue(&self) -> &'static Queue {
        self.gpu.queue()
    }

    /// Returns uninitialised memory for `len` elements, valid until `self` is dropped.
    pub(crate) fn take<N: Copy>(&self, len: usize) -> Result<Ptr<N>, Error> {
        let mut memory = self.memory.borrow_mut();
        let bytes = Self::bytes::<N>(len);
        if memory.buffers.last().is_none_or(|buffer| buffer.len() - memory.taken < bytes) {
            memory.buffers.push(self.gpu.uninitialised(bytes)?);
            memory.taken = 0;
        }
        let start = memory.buffers.last().map_or(0, |buffer| buffer.ptr().address());
        let ptr = Ptr::from_address(start + memory.taken as u64);
        memory.taken += bytes;
        Ok(ptr)
    }

    /// Number of bytes that [`take`](Self::take) takes for `len` elements.
    pub(crate) fn bytes<N>(len: usize) -> usize {
        (len * size_of::<N>()).next_multiple_of(ALIGNMENT)
    }

    /// Returns a vector of `len` elements, and enqueues its zeroing.
    ///
    /// # Safety
    ///
    /// The vector is not used after `self` is dropped, and work on other queues that uses it is
    /// done before, or [`free`](Self::free) is called.
    pub(crate) unsafe fn zeroed_vector<T: Scalar>(
        &self,
        device: &Device,
        len: usize,
    ) -> Result<DeviceVec<T>, Error> {
        let address = self.cleared::<T>(len)?.address();
        // SAFETY: `len` elements, and the caller's promise.
        unsafe { DeviceVec::from_known(device, address, len) }
    }

    /// Frees the memory instead of keeping it for later work: the driver waits for work that may
    /// use it.
    pub(crate) fn free(&mut self) {
        self.memory.get_mut().buffers.clear();
    }

    /// Returns memory for `len` elements and enqueues its zeroing.
    pub(crate) fn cleared<N: Copy>(&self, len: usize) -> Result<Ptr<N>, Error> {
        let ptr = self.take(len)?;
        self.clear(ptr, len)?;
        Ok(ptr)
    }

    /// Enqueues the zeroing of memory that was taken.
    pub(crate) fn clear<N: Copy>(&self, memory: Ptr<N>, len: usize) -> Result<(), Error> {
        // SAFETY: `len` elements, which live until `self` is dropped, after all enqueued work.
        unsafe { self.queue().clear(memory, len) }
    }

    /// Allocates memory that outlives `self`, and enqueues its zeroing.
    pub(crate) fn output<N: Copy>(&self, len: usize) -> Result<Buffer<N>, Error> {
        let buffer = self.gpu.uninitialised(len)?;
        // SAFETY: `len` elements; freeing them waits.
        unsafe { self.queue().clear(buffer.ptr(), len)? };
        Ok(buffer)
    }

    /// The same for two arrays, which are allocated and freed together.
    pub(crate) fn output_pair<A: Copy, B: Copy>(
        &self,
        lengths: (usize, usize),
    ) -> Result<(Buffer<A>, Buffer<B>), Error> {
        let (one, other) = self.gpu.uninitialised_pair::<A, B>(lengths)?;
        // SAFETY: as many elements; freeing them waits.
        unsafe {
            self.queue().clear(one.ptr(), one.len())?;
            self.queue().clear(other.ptr(), other.len())?;
        }
        Ok((one, other))
    }

    /// Copies from the GPU, after everything enqueued.
    pub(crate) fn read<N: Copy>(&self, from: Ptr<N>, to: &mut [N]) -> Result<(), Error> {
        // SAFETY: callers read memory that they took, which lives as long as `self`.
        unsafe { self.gpu.known(from.address(), to.len()) }.read(self.queue(), to)
    }

    /// Copies `len` elements from the GPU, after everything enqueued.
    pub(crate) fn read_vec<N: Copy>(&self, from: Ptr<N>, len: usize) -> Result<Vec<N>, Error> {
        // SAFETY: callers read memory that they took, which lives as long as `self`.
        unsafe { self.gpu.known(from.address(), len) }.to_vec()
    }

    /// Copies to the GPU, after everything enqueued, and waits.
    pub(crate) fn write<N: Copy>(&self, to: Ptr<N>, data: &[N]) -> Result<(), Error> {
        // SAFETY: callers write memory that they took, which lives as long as `self`.
        unsafe { self.gpu.known(to.address(), data.len()) }.write(self.queue(), data)
    }

    /// Enqueues a kernel of `kernels/<module>.cu`.
    ///
    /// # Safety
    ///
    /// As for [`Kernel::launch`](crate::device::Kernel::launch).
    pub(crate) unsafe fn run(
        &self,
        module: &'static str,
        name: &str,
        launch: Launch,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.gpu.kernel(module, name)?.launch(self.queue(), launch) }
    }

    /// Replaces each of `arrays` adjacent arrays of `count` numbers by its exclusive prefix sums,
    /// and writes the totals to `totals`, which are zero.
    ///
    /// # Safety
    ///
    /// The numbers and totals are in the memory of the GPU.
    pub(crate) unsafe fn scan(
        &self,
        numbers: Ptr<u64>,
        count: usize,
        arrays: u32,
        totals: Ptr<u64>,
    ) -> Result<(), Error> {
        let blocks = count.div_ceil(BLOCK_NUMBERS) as u32;
        let sums = self.take::<u64>((blocks * arrays) as usize)?;
        let params = Sums { data: numbers, count: count as u64, blocks, sums };
        let launch = Launch::new(blocks * arrays, BLOCK).with(params);
        // SAFETY: there is a sum for every block, and the caller's promise.
        unsafe {
            self.run(SCAN, "scan_sums", launch)?;
            self.scan_blocks(sums, blocks, arrays, totals)?;
            self.run(SCAN, "scan_numbers", launch)
        }
    }

    /// The same for arrays of few numbers, one block per array.
    ///
    /// # Safety
    ///
    /// As for [`scan`](Self::scan).
    pub(crate) unsafe fn scan_blocks(
        &self,
        sums: Ptr<u64>,
        blocks: u32,
        arrays: u32,
        totals: Ptr<u64>,
    ) -> Result<(), Error> {
        let arrays = if blocks == 0 { 0 } else { arrays };
        let launch = Launch::new(arrays, BLOCK).with(Blocks { sums, blocks, totals });
        // SAFETY: the caller's promise.
        unsafe { self.run(SCAN, "scan_blocks", launch) }
    }
}

impl Drop for WorkingMemory {
    fn drop(&mut self) {
        // Everything is enqueued on the default queue, or done.
        let first = self.memory.get_mut().buffers.drain(..).next();
        first.into_iter().for_each(|first| self.gpu.keep_working_memory(first));
    }
}
