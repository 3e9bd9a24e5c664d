//! GPU memory, and host memory that the GPU can access.

use super::api::{self, DriverError};
use super::driver::Attempt;
use super::staging::Byte;
use super::{Gpu, Queue, peer_calls};
use crate::device::{Numbers, Ptr};
use crate::{Error, memory};
use cudarc::driver::sys;
use std::any::Any;
use std::cmp::Reverse;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// GPU memory, freed on drop if it is owned.
#[derive(Debug)]
pub(crate) struct Buffer<T> {
    gpu: Gpu,
    address: u64,
    len: usize,
    owner: Owner,
    /// The memory that this is a part of, if any.
    _whole: Option<Arc<dyn Any + Send + Sync>>,
    _elements: PhantomData<T>,
}

/// Owner of GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// Another value or library, which frees it.
    Other,
    /// The buffer.
    Buffer,
    /// The buffer; the memory is from a pool.
    BufferOfPool,
}

// SAFETY: an address and a length; accesses through them are ordered by queues.
unsafe impl<T: Send> Send for Buffer<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Buffer<T> {}

impl Gpu {
    /// Free device memory, in bytes.
    pub(crate) fn free_memory(&self) -> Result<u64, Error> {
        let _current = self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the function writes two numbers.
        let asked = unsafe { api::mem_get_info(&mut free, &mut total) };
        asked.attempt(self.ordinal(), || "ask for free memory".to_owned())?;
        Ok(free as u64)
    }

    /// Waits for everything enqueued on any queue of the GPU.
    pub(crate) fn synchronize(&self) -> Result<(), Error> {
        // The context as a whole is not synchronised: that would break captures in other threads.
        let queues: Vec<_> = self.queues().iter().filter_map(Weak::upgrade).collect();
        // All queues are synchronised, even if one fails.
        queues.iter().map(|queue| queue.synchronize()).fold(Ok(()), Result::and)
    }

    /// Allocates `len` uninitialised elements. Enqueues nothing.
    pub(crate) fn uninitialised<T: Copy>(&self, len: usize) -> Result<Buffer<T>, Error> {
        // SAFETY: the content of the memory has no type until it is written.
        self.allocated_by(len, |address, bytes| unsafe { api::mem_alloc(address, bytes) })
    }

    /// Allocates two arrays of uninitialised elements at once: an allocation takes 60 to 100 µs,
    /// and its end 30 to 50, whatever the size. Both are freed together. Tools that check accesses
    /// do not see one that is behind the first array.
    pub(crate) fn uninitialised_pair<A: Copy, B: Copy>(
        &self,
        (one, other): (usize, usize),
    ) -> Result<(Buffer<A>, Buffer<B>), Error> {
        /// Alignment of the second array, in bytes.
        const ALIGNMENT: usize = 256;
        let first = one.checked_mul(size_of::<A>());
        let first = first.and_then(|bytes| bytes.checked_next_multiple_of(ALIGNMENT));
        let both = first.zip(other.checked_mul(size_of::<B>()));
        let both = both.and_then(|(first, second)| first.checked_add(second));
        let (Some(start), Some(bytes)) = (first, both) else {
            return Ok((self.uninitialised(one)?, self.uninitialised(other)?));
        };
        let whole = Arc::new(self.uninitialised::<u8>(bytes)?);
        let address = whole.address;
        Ok((
            Buffer::of_whole(*self, address, one, whole.clone()),
            Buffer::of_whole(*self, address + start as u64, other, whole),
        ))
    }

    /// Allocates `len` uninitialised elements by a call of the driver, which is repeated without
    /// the memory that is kept for later work if the memory does not suffice.
    pub(super) fn allocated_by<T: Copy>(
        &self,
        len: usize,
        allocate: impl Fn(&mut u64, usize) -> Result<(), DriverError>,
    ) -> Result<Buffer<T>, Error> {
        match self.allocated(len, &allocate) {
            Err(Error::GpuMemory { .. }) if self.free_spare() => self.allocated(len, &allocate),
            allocated => allocated,
        }
    }

    /// Working memory of at least `bytes` bytes for work on the default queue: kept from earlier
    /// work ([`keep_working_memory`](Self::keep_working_memory)), or allocated.
    pub(crate) fn working_memory(&self, bytes: usize) -> Result<Buffer<u8>, Error> {
        let mut spare = self.spare();
        let smallest = spare.iter().position(|memory| memory.len() >= bytes);
        let found = smallest.map(|at| spare.remove(at));
        drop(spare);
        found.map_or_else(|| self.uninitialised(bytes), Ok)
    }

    /// Keeps working memory, which no other queue uses any more, for later work on the default
    /// queue: the largest pieces so far, which together have at most a thousandth of the memory.
    /// An allocation takes 60 to 100 µs, and its end 30 to 50.
    pub(crate) fn keep_working_memory(&self, memory: Buffer<u8>) {
        /// Largest number of kept pieces: a check has its vectors while plans are packed.
        const PIECES: usize = 2;
        let mut left = self.0.spec.gpu.as_ref().map_or(0, |gpu| gpu.memory_bytes) / 1000;
        let mut spare = self.spare();
        let mut all = std::mem::take(&mut *spare);
        all.push(memory);
        all.sort_by_key(|memory| Reverse(memory.len()));
        let (kept, freed): (Vec<_>, Vec<_>) = all.into_iter().partition(|memory| {
            let fits = memory.bytes() <= left;
            left -= if fits { memory.bytes() } else { 0 };
            fits
        });
        let mut kept = kept.into_iter();
        *spare = kept.by_ref().take(PIECES).collect();
        spare.reverse();
        drop(spare);
        drop((kept, freed));
    }

    /// Frees the memory that is kept for later work. False if there is none.
    fn free_spare(&self) -> bool {
        !std::mem::take(&mut *self.spare()).is_empty()
    }

    /// The memory that is kept for later work, in ascending order of size.
    fn spare(&self) -> MutexGuard<'_, Vec<Buffer<u8>>> {
        self.0.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn allocated<T: Copy>(
        &self,
        len: usize,
        allocate: impl Fn(&mut u64, usize) -> Result<(), DriverError>,
    ) -> Result<Buffer<T>, Error> {
        let buffer = |address| Buffer::new(*self, address, len, Owner::Buffer);
        if len == 0 || size_of::<T>() == 0 {
            return Ok(buffer(0));
        }
        let _current = self.bind()?;
        let _relaxed = Relaxed::new();
        let needed =
            len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
        let allocated = match needed {
            Some(bytes) => api::value(0, |address| allocate(address, bytes)),
            None => Err(api::OUT_OF_MEMORY),
        };
        match allocated {
            Ok(address) => Ok(buffer(address)),
            Err(api::OUT_OF_MEMORY) => Err(Error::GpuMemory {
                device: self.to_string(),
                needed: needed.map_or(u64::MAX, |bytes| bytes as u64),
                free: self.free_memory().unwrap_or(0),
            }),
            refused => {
                refused.attempt(self.ordinal(), || format!("allocate {len} elements")).map(buffer)
            }
        }
    }

    /// Allocates `len` zeroed elements.
    pub(crate) fn zeroed<T: Copy>(&self, len: usize) -> Result<Buffer<T>, Error> {
        self.uninitialised(len)?.zeroed()
    }

    /// Copies `data` to device memory.
    pub(crate) fn upload<T: Copy>(&self, data: &[T]) -> Result<Buffer<T>, Error> {
        let buffer = self.uninitialised(data.len())?;
        buffer.write(self.queue(), data)?;
        Ok(buffer)
    }

    /// Copies a buffer of this GPU, after everything enqueued on the default queue, and waits.
    pub(crate) fn copied<T: Copy>(&self, from: &Buffer<T>) -> Result<Buffer<T>, Error> {
        let buffer = self.uninitialised(from.len())?;
        // SAFETY: both have this length and live until the copy is done.
        unsafe { self.queue().copy_on_device(buffer.ptr(), from.ptr(), from.len())? };
        self.queue().synchronize()?;
        Ok(buffer)
    }

    /// Allocates zeroed page-locked host memory, the fastest for copies to and from the GPU.
    pub(crate) fn pinned<T: Copy>(&self, len: usize) -> Result<Pinned<T>, Error> {
        let bytes = len * size_of::<T>();
        let start = if bytes == 0 {
            std::ptr::NonNull::dangling().as_ptr()
        } else {
            let _current = self.bind()?;
            let _relaxed = Relaxed::new();
            // Portable: every context of the process may copy from it.
            let flags = sys::CU_MEMHOSTALLOC_PORTABLE;
            // SAFETY: a new allocation, zeroed before it is read.
            let start = api::value(std::ptr::null_mut(), |start| unsafe {
                api::mem_host_alloc(start, bytes, flags)
            });
            let start = start
                .attempt(self.ordinal(), || format!("page-lock {bytes} bytes of host memory"))?;
            // SAFETY: the driver has allocated `bytes` bytes.
            unsafe { std::ptr::write_bytes(start.cast::<u8>(), 0, bytes) };
            start.cast()
        };
        Ok(Pinned { gpu: *self, start, len })
    }
}

impl<T> Buffer<T> {
    /// Wraps memory that another owner frees.
    pub(super) fn of_others(gpu: Gpu, address: u64, len: usize) -> Self {
        Self::new(gpu, address, len, Owner::Other)
    }

    fn new(gpu: Gpu, address: u64, len: usize, owner: Owner) -> Self {
        Self { gpu, address, len, owner, _whole: None, _elements: PhantomData }
    }

    /// A part of other memory. Without elements it has no address.
    fn of_whole(gpu: Gpu, address: u64, len: usize, whole: Arc<dyn Any + Send + Sync>) -> Self {
        let (address, owner) = (if len == 0 { 0 } else { address }, Owner::Other);
        Self { gpu, address, len, owner, _whole: Some(whole), _elements: PhantomData }
    }

    /// The buffer, whose memory is from a pool. No other queue than the default one uses it when it
    /// is dropped.
    pub(super) fn of_pool(mut self) -> Self {
        self.owner = Owner::BufferOfPool;
        self
    }
}

impl<T: Copy> Buffer<T> {
    /// Returns a handle of some elements, which keeps all of them alive.
    pub(crate) fn part(self: &Arc<Self>, elements: Range<usize>) -> Self
    where
        T: Send + Sync + 'static,
    {
        assert!(elements.start <= elements.end && elements.end <= self.len, "elements exist");
        let address = self.ptr().add(elements.start).address();
        Self::of_whole(self.gpu, address, elements.len(), self.clone())
    }

    /// Returns a second handle of the same memory, which does not free it.
    ///
    /// # Safety
    ///
    /// It is not used after `self` is dropped.
    pub(crate) unsafe fn alias<U>(&self) -> Buffer<U> {
        const { assert!(size_of::<T>() == size_of::<U>()) };
        Buffer::of_others(self.gpu, self.address, self.len)
    }

    /// The buffer, after all its bytes have been set to 0.
    pub(super) fn zeroed(self) -> Result<Self, Error> {
        let (_relaxed, queue) = (Relaxed::new(), self.gpu.queue());
        // SAFETY: the buffer has `len` elements.
        unsafe { queue.clear(self.ptr(), self.len)? };
        queue.synchronize()?;
        Ok(self)
    }

    /// Returns the GPU of the memory.
    pub(crate) fn gpu(&self) -> Gpu {
        self.gpu
    }

    /// Replaces memory that another library frees by a copy.
    pub(crate) fn copy_borrowed(buffer: &mut Arc<Self>) -> Result<(), Error> {
        if buffer.owner == Owner::Other && buffer._whole.is_none() {
            *buffer = Arc::new(buffer.gpu.copied(buffer)?);
        }
        Ok(())
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// Address of the first element.
    pub(crate) fn ptr(&self) -> Ptr<T> {
        Ptr::from_address(self.address)
    }

    /// Address and number of the elements.
    pub(crate) fn numbers(&self) -> Numbers<T> {
        (self.ptr(), self.len)
    }

    /// Copies `data` in, after everything enqueued on `queue`, and waits.
    pub(crate) fn write(&self, queue: &Queue, data: &[T]) -> Result<(), Error> {
        assert_eq!(data.len(), self.len, "as many elements as the buffer has");
        let (to, len) = (Ptr::from_address(self.address), size_of_val(data));
        // SAFETY: the bytes of the slice.
        let bytes: &[Byte] = unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), len) };
        // SAFETY: the lengths are equal, and the wait outlasts the copy.
        unsafe {
            if !self.gpu.0.staging_in.copy_in(queue, to, bytes)? {
                queue.copy_in(to, bytes)?;
            }
        }
        queue.synchronize()
    }

    /// Copies everything out, after everything enqueued on `queue`, and waits.
    pub(crate) fn read(&self, queue: &Queue, data: &mut [T]) -> Result<(), Error> {
        assert_eq!(data.len(), self.len, "as many elements as the buffer has");
        #[cfg(test)]
        count_copied(self.bytes());
        // SAFETY: as above.
        unsafe { queue.copy_out(data, self.ptr())? };
        queue.synchronize()
    }

    /// Copies everything to host memory, after everything enqueued on the default queue of the GPU.
    pub(crate) fn to_vec(&self) -> Result<Vec<T>, Error> {
        let mut data: Vec<T> = memory::reserved(self.len)?;
        #[cfg(test)]
        count_copied(self.bytes());
        let (queue, bytes) = (self.gpu.queue(), self.len * size_of::<T>());
        // SAFETY: the vector has the capacity, and the copy fills all of it before the length is
        // set; `T` is plain data that was copied in or zeroed.
        unsafe {
            let to = std::slice::from_raw_parts_mut(data.as_mut_ptr().cast::<Byte>(), bytes);
            if !self.gpu.0.staging_out.copy_out(queue, to, self.ptr().cast())? {
                queue.copy_out(to, self.ptr().cast())?;
                queue.synchronize()?;
            }
            data.set_len(self.len);
        }
        Ok(data)
    }
}

#[cfg(test)]
thread_local! {
    /// Bytes that this thread has copied from buffers of GPUs.
    static COPIED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
pub(super) fn count_copied(bytes: u64) {
    COPIED.set(COPIED.get() + bytes);
}

/// Bytes that this thread has copied from buffers of GPUs so far.
#[cfg(test)]
pub(crate) fn copied_bytes() -> u64 {
    COPIED.get()
}

/// Guard during which this thread may allocate and load kernels, even if another capture in the
/// process uses a stricter mode: nothing of it becomes part of a graph.
pub(super) struct Relaxed(u32);

impl Relaxed {
    pub(super) fn new() -> Self {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;
        // SAFETY: exchanges the capture mode of this thread with the given one.
        let _ = unsafe { api::thread_exchange_capture_mode(&mut mode) };
        Self(mode)
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ = unsafe { api::thread_exchange_capture_mode(&mut self.0) };
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if self.owner == Owner::Other || self.address == 0 {
            return;
        }
        let (gpu, address, owner) = (self.gpu, self.address, self.owner);
        peer_calls::after_call(move || {
            if let Ok(_current) = gpu.bind() {
                let _relaxed = Relaxed::new();
                if owner == Owner::BufferOfPool {
                    return free_of_pools(gpu, address);
                }
                // SAFETY: the address came from the driver and is freed once. The driver waits for
                // work that may use it. An error here belongs to earlier work, which reports it
                // itself.
                let _ = unsafe { api::mem_free(address) };
            }
        });
    }
}

/// Memory of pools that is not freed yet, since a wait for the default queue of its GPU failed.
static UNFREED: Mutex<Vec<(Gpu, u64)>> = Mutex::new(Vec::new());

/// Frees memory of a pool after everything enqueued on the default queue: the driver does not wait
/// for work with such memory.
fn free_of_pools(gpu: Gpu, address: u64) {
    let unfreed = || UNFREED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut memory = std::mem::take(&mut *unfreed());
    memory.push((gpu, address));
    memory.retain(|(gpu, address)| {
        let waited = gpu.bind().and_then(|current| gpu.queue().synchronize().map(|()| current));
        // SAFETY: the address came from the driver and is freed once; its work is done. An error
        // here belongs to earlier work.
        waited.map(|_current| unsafe { api::mem_free(*address) }).is_err()
    });
    unfreed().append(&mut memory);
}

/// Page-locked host memory, freed when dropped.
#[derive(Debug)]
pub(crate) struct Pinned<T> {
    gpu: Gpu,
    start: *mut T,
    len: usize,
}

// SAFETY: it owns its memory as a `Vec` does.
unsafe impl<T: Send> Send for Pinned<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Pinned<T> {}

impl<T: Copy> Pinned<T> {
    /// Address of the first element, for the host and for the GPU.
    pub(crate) fn start(&self) -> *mut T {
        self.start
    }

    /// The elements.
    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: `len` elements, initialised at least with zeros.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// The elements, mutable.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        if self.len * size_of::<T>() == 0 {
            return;
        }
        let (gpu, address) = (self.gpu, self.start as usize);
        peer_calls::after_call(move || {
            if let Ok(_current) = gpu.bind() {
                // SAFETY: the memory came from the driver and is freed once.
                let _ = unsafe { api::mem_free_host(address as *mut c_void) };
            }
        });
    }
}
