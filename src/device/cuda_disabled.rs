//! Build without GPU support. Its types are uninhabited, and used by the names that they have in
//! `cuda/`; signatures and documentation are those there.

use super::{DeviceSpec, GpuRuntime, Launch, Module, Numbers, Ptr};
use crate::Error;
use std::any::Any;
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

pub(crate) use self::{
    NoBuffer as Buffer, NoHostArrays as HostArrays, NoKernel as Kernel, NoPinned as Pinned,
    NoQueue as Queue, NoRecording as Recording,
};
pub use self::{NoGpu as Gpu, NoPeerCall as PeerCall};

/// The reason why no GPU is used.
pub(super) const REASON: &str =
    "this build of sparseop has no GPU support; build it with the feature `cuda`";

/// Version of the GPU kernels; there are none.
pub(super) const KERNELS: &str = "none";

/// Words that describe memory to other processes.
pub(crate) const SHARED_WORDS: usize = 9;

/// Bytes of an identifier of NCCL.
pub const ID_BYTES: usize = 128;

/// A GPU. This build has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoGpu {}

/// Reports that nothing is used.
pub(super) fn runtime() -> GpuRuntime {
    let missing = || Err(REASON.to_owned());
    GpuRuntime { driver: missing(), nvrtc: missing(), embedded: Vec::new(), cache: None }
}

/// Returns the number of GPUs, or the reason why none can be used.
pub(super) fn count() -> Result<usize, String> {
    Err(REASON.to_owned())
}

/// Opens GPU number `n`, or returns the reason why it cannot be used.
pub(super) fn open(_: usize) -> Result<Gpu, String> {
    Err(REASON.to_owned())
}

/// A call in which kernels wait for other GPUs.
#[derive(Debug)]
pub enum NoPeerCall {}

impl NoPeerCall {
    /// Runs a part of the call on this thread.
    pub fn run<R>(&self, _: impl FnOnce() -> R) -> R {
        match *self {}
    }
}

impl NoGpu {
    /// Device ordinal.
    #[doc(hidden)]
    pub fn ordinal(&self) -> usize {
        match *self {}
    }

    pub(crate) fn peer_call(&self) -> PeerCall {
        match *self {}
    }

    pub(crate) fn multiprocessors(&self) -> usize {
        match *self {}
    }

    pub(crate) fn capability(&self) -> (u32, u32) {
        match *self {}
    }

    pub(super) fn spec(&self) -> DeviceSpec {
        match *self {}
    }

    pub(crate) fn test(&self) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn free_memory(&self) -> Result<u64, Error> {
        match *self {}
    }

    /// Bandwidth of a copy within device memory, reads and writes counted, in bytes per second.
    /// Measured once.
    pub(crate) fn copy_bandwidth(&self) -> Result<f64, Error> {
        match *self {}
    }

    pub(crate) fn launch_us(&self) -> Result<f64, Error> {
        match *self {}
    }

    pub(crate) fn upload_bandwidth(&self) -> Result<f64, Error> {
        match *self {}
    }

    pub(crate) fn synchronize(&self) -> Result<(), Error> {
        match *self {}
    }

    pub(crate) fn uninitialised<T: Copy>(&self, _: usize) -> Result<Buffer<T>, Error> {
        match *self {}
    }

    pub(crate) fn uninitialised_pair<A: Copy, B: Copy>(
        &self,
        _: (usize, usize),
    ) -> Result<(Buffer<A>, Buffer<B>), Error> {
        match *self {}
    }

    pub(crate) fn working_memory(&self, _: usize) -> Result<Buffer<u8>, Error> {
        match *self {}
    }

    pub(crate) fn keep_working_memory(&self, _: Buffer<u8>) {
        match *self {}
    }

    pub(crate) fn zeroed<T: Copy>(&self, _: usize) -> Result<Buffer<T>, Error> {
        match *self {}
    }

    pub(crate) fn upload<T: Copy>(&self, _: &[T]) -> Result<Buffer<T>, Error> {
        match *self {}
    }

    pub(crate) unsafe fn foreign<T: Copy>(
        &self,
        _: &'static str,
        _: u64,
        _: usize,
    ) -> Result<Buffer<T>, Error> {
        match *self {}
    }

    pub(crate) unsafe fn known<T: Copy>(&self, _: u64, _: usize) -> Buffer<T> {
        match *self {}
    }

    pub(crate) fn pinned<T: Copy>(&self, _: usize) -> Result<Pinned<T>, Error> {
        match *self {}
    }

    pub(crate) fn can_access(&self, _: Gpu) -> Result<bool, Error> {
        match *self {}
    }

    pub(crate) fn zeroed_for<T: Copy>(&self, _: &[Gpu], _: usize) -> Result<Buffer<T>, Error> {
        match *self {}
    }

    pub(crate) fn identity(&self) -> Result<[u64; 2], Error> {
        match *self {}
    }

    pub(crate) fn map_shared(&self, _: [u64; SHARED_WORDS]) -> Result<MappedMemory, Error> {
        match *self {}
    }

    pub(crate) fn l2_bytes(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn compile_kernels(&self, _: impl Fn(usize, usize) + Sync) -> Result<usize, Error> {
        match *self {}
    }

    #[cfg(test)]
    pub(crate) fn is_loaded(&self, _: Module, _: &str) -> bool {
        match *self {}
    }

    pub(crate) fn needs_no_compiler(&self, _: &[(Module, String)]) -> bool {
        match *self {}
    }

    pub(crate) fn with_kernels<R>(&self, _: Vec<(Module, String)>, _: impl FnOnce() -> R) -> R {
        match *self {}
    }

    pub(crate) fn kernel(&self, _: impl Into<Module>, _: &str) -> Result<Kernel, Error> {
        match *self {}
    }

    pub(crate) fn shared_memory(&self, _: Kernel) -> Result<u32, Error> {
        match *self {}
    }

    pub(crate) fn own_shared_memory(&self, _: Kernel) -> Result<u32, Error> {
        match *self {}
    }

    /// Allows launches of a kernel with this many bytes of dynamic shared memory per block. Returns
    /// the number of such blocks, with this many threads, that are resident at once.
    pub(crate) fn resident_blocks(&self, _: Kernel, _: u32, _: u32) -> Result<u32, Error> {
        match *self {}
    }

    pub(crate) fn queue(&self) -> &'static Queue {
        match *self {}
    }

    pub(crate) fn new_queue(&self) -> Result<Queue, Error> {
        match *self {}
    }

    pub(crate) fn preferred_queue(&self) -> Result<Queue, Error> {
        match *self {}
    }

    pub(crate) unsafe fn foreign_queue(&self, _: u64) -> Result<Queue, Error> {
        match *self {}
    }
}

impl Display for NoGpu {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

/// Device memory.
#[derive(Debug)]
pub(crate) struct NoBuffer<T> {
    never: Gpu,
    _elements: PhantomData<T>,
}

/// A rank of NCCL.
#[derive(Debug)]
pub(crate) struct Nccl(Gpu);

impl Nccl {
    pub(crate) fn is_found() -> bool {
        false
    }

    pub(crate) fn new_id() -> Result<[u8; ID_BYTES], Error> {
        Err(Error::Communication { message: REASON.to_owned() })
    }

    pub(crate) fn join(
        gpu: Gpu,
        _: [usize; 2],
        _: [u8; ID_BYTES],
        _: Duration,
    ) -> Result<Self, Error> {
        match gpu {}
    }

    pub(crate) unsafe fn exchange(
        &self,
        _: &Queue,
        _: &[(usize, Range<u64>)],
        _: &[(usize, Range<u64>)],
    ) -> Result<(), Error> {
        match self.0 {}
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.0 {}
    }

    pub(crate) fn abort(&self, _: &Error) {
        match self.0 {}
    }
}

/// Memory of another process.
#[derive(Debug)]
pub(crate) struct MappedMemory(Gpu);

impl MappedMemory {
    pub(crate) fn address(&self) -> u64 {
        match self.0 {}
    }
}

impl<T: Copy> NoBuffer<T> {
    pub(crate) fn gpu(&self) -> Gpu {
        self.never
    }

    pub(crate) fn shared(&self) -> Result<[u64; SHARED_WORDS], Error> {
        match self.never {}
    }

    pub(crate) fn copy_borrowed(buffer: &mut Arc<Self>) -> Result<(), Error> {
        match buffer.never {}
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

    pub(crate) fn numbers(&self) -> Numbers<T> {
        match self.never {}
    }

    pub(crate) unsafe fn alias<U>(&self) -> Buffer<U> {
        match self.never {}
    }

    pub(crate) fn part(self: &Arc<Self>, _: Range<usize>) -> Self {
        match self.never {}
    }

    pub(crate) fn write(&self, _: &Queue, _: &[T]) -> Result<(), Error> {
        match self.never {}
    }

    pub(crate) fn read(&self, _: &Queue, _: &mut [T]) -> Result<(), Error> {
        match self.never {}
    }

    pub(crate) fn to_vec(&self) -> Result<Vec<T>, Error> {
        match self.never {}
    }
}

/// Page-locked host memory for arrays that kernels read and write.
#[derive(Debug)]
pub(crate) struct NoHostArrays(Gpu);

impl NoHostArrays {
    pub(crate) fn new(gpu: Gpu) -> Result<Self, Error> {
        match gpu {}
    }

    pub(crate) fn take<N: Copy>(&self, _: usize) -> Option<(*mut N, Ptr<N>)> {
        match self.0 {}
    }

    pub(crate) fn mark(&self) -> Result<(), Error> {
        match self.0 {}
    }

    pub(crate) fn wait(&self, _: usize) -> Result<(), Error> {
        match self.0 {}
    }
}

/// Page-locked host memory.
#[derive(Debug)]
pub(crate) struct NoPinned<T> {
    never: Gpu,
    _elements: PhantomData<T>,
}

impl<T: Copy> NoPinned<T> {
    pub(crate) fn start(&self) -> *mut T {
        match self.never {}
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        match self.never {}
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        match self.never {}
    }
}

/// An in-order queue of GPU work: a CUDA stream.
#[derive(Debug)]
pub(crate) struct NoQueue {
    never: Gpu,
}

/// Beginning and end of the work of a queue beside that of another.
#[derive(Debug)]
pub(crate) struct Fork(Gpu);

impl Fork {
    pub(crate) fn new(gpu: Gpu) -> Result<Self, Error> {
        match gpu {}
    }

    pub(crate) fn begin(&self, _: &Queue, _: &Queue) -> Result<(), Error> {
        match self.0 {}
    }

    pub(crate) fn join(&self, _: &Queue, _: &Queue) -> Result<(), Error> {
        match self.0 {}
    }
}

impl NoQueue {
    pub(crate) fn other_bytes(&self) -> &AtomicU64 {
        match self.never {}
    }

    pub(crate) fn gpu(&self) -> Gpu {
        self.never
    }

    pub(crate) fn id(&self) -> u64 {
        match self.never {}
    }

    pub(crate) fn raw(&self) -> u64 {
        match self.never {}
    }

    pub(crate) fn synchronize(&self) -> Result<(), Error> {
        match self.never {}
    }

    pub(crate) unsafe fn clear<T: Copy>(&self, _: Ptr<T>, _: usize) -> Result<(), Error> {
        match self.never {}
    }

    pub(crate) unsafe fn copy_in<T: Copy>(&self, _: Ptr<T>, _: &[T]) -> Result<(), Error> {
        match self.never {}
    }

    pub(crate) unsafe fn copy_out<T: Copy>(&self, _: &mut [T], _: Ptr<T>) -> Result<(), Error> {
        match self.never {}
    }

    pub(crate) fn seconds(&self, _: &mut dyn FnMut() -> Result<(), Error>) -> Result<f64, Error> {
        match self.never {}
    }

    pub(crate) fn is_capturing(&self) -> Result<bool, Error> {
        match self.never {}
    }

    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, ()>, Error> {
        match self.never {}
    }

    pub(crate) fn lock_to_wait(&self, _: &str) -> Result<MutexGuard<'_, ()>, Error> {
        match self.never {}
    }

    pub(crate) fn records(&self) -> bool {
        match self.never {}
    }

    pub(crate) fn capture_number(&self) -> Option<u64> {
        match self.never {}
    }

    pub(crate) fn keep(&self, _: Arc<dyn Any + Send + Sync>) {
        match self.never {}
    }

    pub(crate) fn capture(
        &self,
        _: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Recording, Error> {
        match self.never {}
    }
}

/// A captured graph, ready to be launched.
#[derive(Debug)]
pub(crate) struct NoRecording {
    never: Gpu,
}

impl NoRecording {
    pub(crate) fn launch(&self, _: &Queue) -> Result<(), Error> {
        match self.never {}
    }
}

/// A compiled kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoKernel {
    never: Gpu,
}

impl NoKernel {
    pub(crate) unsafe fn launch(&self, _: &Queue, _: Launch) -> Result<(), Error> {
        match self.never {}
    }
}
