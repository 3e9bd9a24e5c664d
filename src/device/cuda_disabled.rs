//! A build without GPU support: there is no GPU, and the types say so. The same names and signatures as `cuda/`.

use super::{DeviceSpec, Launch, Module, Ptr};
use crate::Error;
use std::any::Any;
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::sync::{Arc, MutexGuard};

/// Why no GPU is used.
pub(super) const REASON: &str = "this build of sparseop has no GPU support; build it with the feature `cuda`";

/// The version of the kernels; there are none.
pub(super) const KERNELS: &str = "none";

/// A GPU; in this build there can be none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gpu {}

/// How many GPUs there are, or why none can be used.
pub(super) fn count() -> Result<usize, String> {
    Err(REASON.to_owned())
}

/// GPU number `n`, or why it cannot be used.
pub(super) fn open(_: usize) -> Result<Gpu, String> {
    Err(REASON.to_owned())
}

impl Gpu {
    /// Its number.
    #[doc(hidden)]
    pub fn ordinal(&self) -> usize {
        match *self {}
    }

    /// Its multiprocessors.
    pub(crate) fn multiprocessors(&self) -> usize {
        match *self {}
    }

    /// Its compute capability.
    pub(crate) fn capability(&self) -> (u32, u32) {
        match *self {}
    }

    pub(super) fn spec(&self) -> DeviceSpec {
        match *self {}
    }

    /// Bytes of its memory that are free.
    pub(crate) fn free_memory(&self) -> Result<u64, Error> {
        match *self {}
    }

    /// Bytes a second that a copy within its memory reads and writes, measured once.
    pub(crate) fn copy_bandwidth(&self) -> Result<f64, Error> {
        match *self {}
    }

    /// Microseconds between kernels of next to no work, measured once.
    pub(crate) fn launch_us(&self) -> Result<f64, Error> {
        match *self {}
    }

    /// Bytes a second from page-locked memory of the host, measured once.
    pub(crate) fn upload_bandwidth(&self) -> Result<f64, Error> {
        match *self {}
    }

    /// Waits until everything enqueued on any of its queues is done.
    pub(crate) fn synchronize(&self) -> Result<(), Error> {
        match *self {}
    }

    /// Memory for `len` elements, with anything in it; enqueues nothing.
    pub(crate) fn unset<T: Copy>(&self, _: usize) -> Result<Buffer<T>, Error> {
        match *self {}
    }

    /// Memory for `len` elements, zeroed.
    pub(crate) fn zeroed<T: Copy>(&self, _: usize) -> Result<Buffer<T>, Error> {
        match *self {}
    }

    /// A copy of `data` in its memory.
    pub(crate) fn upload<T: Copy>(&self, _: &[T]) -> Result<Buffer<T>, Error> {
        match *self {}
    }

    /// `len` elements that somebody else has allocated.
    pub(crate) unsafe fn foreign<T: Copy>(
        &self,
        _: &'static str,
        _: u64,
        _: usize,
    ) -> Result<Buffer<T>, Error> {
        match *self {}
    }

    /// Host memory that copies to and from it go through quickest, zeroed.
    pub(crate) fn pinned<T: Copy>(&self, _: usize) -> Result<Pinned<T>, Error> {
        match *self {}
    }

    /// Bytes of its L2 cache.
    pub(crate) fn l2_bytes(&self) -> u64 {
        match *self {}
    }

    /// The kernel `name` of a module, compiled for it.
    pub(crate) fn kernel(&self, _: impl Into<Module>, _: &str) -> Result<Kernel, Error> {
        match *self {}
    }

    /// The most bytes of shared memory that a block can be given beside the kernel's own.
    pub(crate) fn shared_memory(&self, _: Kernel) -> Result<u32, Error> {
        match *self {}
    }

    /// Bytes of shared memory that a kernel has of its own.
    pub(crate) fn own_shared_memory(&self, _: Kernel) -> Result<u32, Error> {
        match *self {}
    }

    /// Lets a kernel be launched with so many bytes of shared memory a block beside its own, and tells how many such blocks, of so many
    /// threads, run at once.
    pub(crate) fn resident_blocks(&self, _: Kernel, _: u32, _: u32) -> Result<u32, Error> {
        match *self {}
    }

    /// The queue that is used where none is given.
    pub(crate) fn queue(&self) -> &'static Queue {
        match *self {}
    }

    /// A queue of its own.
    pub(crate) fn new_queue(&self) -> Result<Queue, Error> {
        match *self {}
    }

    /// A queue around a `CUstream` that somebody else owns.
    pub(crate) unsafe fn foreign_queue(&self, _: u64) -> Result<Queue, Error> {
        match *self {}
    }
}

impl Display for Gpu {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

/// Memory of a GPU.
#[derive(Debug)]
pub(crate) struct Buffer<T> {
    never: Gpu,
    _elements: PhantomData<T>,
}

impl<T: Copy> Buffer<T> {
    pub(crate) fn gpu(&self) -> Gpu {
        self.never
    }

    pub(crate) fn len(&self) -> usize {
        match self.never {}
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self.never {}
    }

    pub(crate) fn ptr(&self) -> Ptr<T> {
        match self.never {}
    }

    /// The same memory once more.
    pub(crate) unsafe fn alias<U>(&self) -> Buffer<U> {
        match self.never {}
    }

    /// Copies `data` in, after everything enqueued on `queue`, and waits.
    pub(crate) fn write(&self, _: &Queue, _: &[T]) -> Result<(), Error> {
        match self.never {}
    }

    /// Copies everything out, after everything enqueued on `queue`, and waits.
    pub(crate) fn read(&self, _: &Queue, _: &mut [T]) -> Result<(), Error> {
        match self.never {}
    }

    /// A copy of everything, after everything enqueued on the GPU's own queue.
    pub(crate) fn to_vec(&self) -> Result<Vec<T>, Error> {
        match self.never {}
    }
}

/// Page-locked host memory.
#[derive(Debug)]
pub(crate) struct Pinned<T> {
    never: Gpu,
    _elements: PhantomData<T>,
}

impl<T: Copy> Pinned<T> {
    pub(crate) fn as_slice(&self) -> &[T] {
        match self.never {}
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        match self.never {}
    }
}

/// Work for a GPU, done in order: a CUDA stream.
#[derive(Debug)]
pub(crate) struct Queue {
    never: Gpu,
}

impl Queue {
    pub(crate) fn gpu(&self) -> Gpu {
        self.never
    }

    /// A number that no other living queue has.
    pub(crate) fn id(&self) -> u64 {
        match self.never {}
    }

    /// The `CUstream`.
    pub(crate) fn raw(&self) -> u64 {
        match self.never {}
    }

    /// Waits until everything is done.
    pub(crate) fn synchronize(&self) -> Result<(), Error> {
        match self.never {}
    }

    /// Enqueues setting memory to zero bytes.
    pub(crate) unsafe fn clear<T: Copy>(&self, _: Ptr<T>, _: usize) -> Result<(), Error> {
        match self.never {}
    }

    /// Enqueues a copy to the GPU.
    pub(crate) unsafe fn copy_in<T: Copy>(&self, _: Ptr<T>, _: &[T]) -> Result<(), Error> {
        match self.never {}
    }

    /// Enqueues a copy from the GPU.
    pub(crate) unsafe fn copy_out<T: Copy>(&self, _: &mut [T], _: Ptr<T>) -> Result<(), Error> {
        match self.never {}
    }

    /// Seconds that what `work` enqueues takes on the GPU.
    pub(crate) fn seconds(&self, _: &mut dyn FnMut() -> Result<(), Error>) -> Result<f64, Error> {
        match self.never {}
    }

    /// Whether what is enqueued becomes part of a graph instead of being done.
    pub(crate) fn is_capturing(&self) -> Result<bool, Error> {
        match self.never {}
    }

    /// Keeps other threads from enqueuing between the launches of one product.
    pub(crate) fn turn(&self) -> Result<MutexGuard<'_, ()>, Error> {
        match self.never {}
    }

    /// Whether this thread is capturing a graph with [`Queue::capture`].
    pub(crate) fn records(&self) -> bool {
        match self.never {}
    }

    /// The number of the capture by this thread, if there is one.
    pub(crate) fn capture_number(&self) -> Option<u64> {
        match self.never {}
    }

    /// Keeps something until the graph that is being captured is gone.
    pub(crate) fn keep(&self, _: Arc<dyn Any + Send + Sync>) {
        match self.never {}
    }

    /// What `work` enqueues, as a graph.
    pub(crate) fn capture(&self, _: &mut dyn FnMut() -> Result<(), Error>) -> Result<Recording, Error> {
        match self.never {}
    }
}

/// A captured graph, ready to be launched.
#[derive(Debug)]
pub(crate) struct Recording {
    never: Gpu,
}

impl Recording {
    /// Enqueues everything that was captured.
    pub(crate) fn launch(&self, _: &Queue) -> Result<(), Error> {
        match self.never {}
    }
}

/// A compiled kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel {
    never: Gpu,
}

impl Kernel {
    /// Enqueues a launch; nothing for a grid without blocks.
    pub(crate) unsafe fn launch(&self, _: &Queue, _: Launch) -> Result<(), Error> {
        match self.never {}
    }
}
