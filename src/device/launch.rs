//! What a kernel is called with.

use std::marker::PhantomData;

/// Threads of a block where nothing speaks for another number.
pub(crate) const BLOCK: u32 = 256;

/// Kernel parameters a launch has room for.
pub(super) const MAX_ARGS: usize = 24;

/// An address in the memory of a GPU.
#[derive(Debug)]
pub(crate) struct Ptr<T>(u64, PhantomData<*mut T>);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

// SAFETY: an address that nothing on the host reads through.
unsafe impl<T> Send for Ptr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Ptr<T> {}

impl<T> Ptr<T> {
    /// What stands for no memory at all.
    pub(crate) const NULL: Self = Self(0, PhantomData);

    /// The address as a number.
    pub(crate) const fn address(self) -> u64 {
        self.0
    }

    /// The address that a driver gave.
    pub(crate) const fn from_address(address: u64) -> Self {
        Self(address, PhantomData)
    }

    /// The address of the element `count` further on.
    pub(crate) const fn add(self, count: usize) -> Self {
        Self::from_address(self.0 + (count * size_of::<T>()) as u64)
    }
}

/// A value that is handed to a kernel as it is.
pub(crate) trait Arg {
    /// The value's bytes, the lowest first.
    fn bits(self) -> u64;
}

impl Arg for u32 {
    fn bits(self) -> u64 {
        u64::from(self)
    }
}

impl Arg for u64 {
    fn bits(self) -> u64 {
        self
    }
}

impl<T> Arg for Ptr<T> {
    fn bits(self) -> u64 {
        self.0
    }
}

/// The grid and the parameters of a launch; plain data, made without allocating.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launch {
    blocks: u32,
    threads: u32,
    shared_bytes: u32,
    args: [u64; MAX_ARGS],
    len: usize,
}

impl Launch {
    /// So many blocks of so many threads.
    pub(crate) const fn new(blocks: u32, threads: u32) -> Self {
        Self { blocks, threads, shared_bytes: 0, args: [0; MAX_ARGS], len: 0 }
    }

    /// As many blocks of [`BLOCK`] threads as give every item `threads_per_item` of them.
    pub(crate) fn over(items: usize, threads_per_item: u32) -> Self {
        let blocks = (items as u64 * u64::from(threads_per_item)).div_ceil(u64::from(BLOCK));
        // Formats hold fewer than 2³² rows and pieces, and no item takes more than a block's worth of threads.
        let blocks = u32::try_from(blocks).expect("no grid has 2³² blocks");
        Self::new(blocks, BLOCK)
    }

    /// Gives every block so much shared memory beside its own; see `Gpu::resident_blocks`.
    #[must_use]
    pub(crate) const fn with_shared(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// Adds a parameter.
    #[must_use]
    pub(crate) fn arg(mut self, value: impl Arg) -> Self {
        self.args[self.len] = value.bits();
        self.len += 1;
        self
    }

    /// Blocks of the grid.
    pub(crate) const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Threads of a block.
    pub(crate) const fn threads(&self) -> u32 {
        self.threads
    }

    /// Bytes of shared memory of a block beside its own.
    #[cfg(feature = "cuda")]
    pub(crate) const fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// The parameters, each in the low bytes of a word.
    #[cfg(feature = "cuda")]
    pub(crate) fn args(&mut self) -> &mut [u64] {
        &mut self.args[..self.len]
    }
}
