//! Launch configuration and parameters of a kernel.

use super::constants::BLOCK;
use std::marker::PhantomData;

/// Largest number of kernel parameters of a launch.
pub(super) const MAX_ARGS: usize = 24;

/// An address in GPU memory.
#[derive(Debug)]
pub(crate) struct Ptr<T>(u64, PhantomData<*mut T>);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> Default for Ptr<T> {
    fn default() -> Self {
        Self::NULL
    }
}

// SAFETY: an address that the host never reads through.
unsafe impl<T> Send for Ptr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Ptr<T> {}

/// Address and number of elements of an array in GPU memory.
pub(crate) type Numbers<T> = (Ptr<T>, usize);

impl<T> Ptr<T> {
    /// The null pointer.
    pub(crate) const NULL: Self = Self(0, PhantomData);

    /// The address as a number.
    pub(crate) const fn address(self) -> u64 {
        self.0
    }

    /// Wraps an address returned by the driver.
    pub(crate) const fn from_address(address: u64) -> Self {
        Self(address, PhantomData)
    }

    /// The same address, of elements of another type.
    pub(crate) const fn cast<U>(self) -> Ptr<U> {
        Ptr::from_address(self.0)
    }

    /// Address of the element `count` elements further on.
    pub(crate) const fn add(self, count: usize) -> Self {
        Self::from_address(self.0 + (count * size_of::<T>()) as u64)
    }
}

/// A value that is passed to a kernel unchanged.
pub(crate) trait Arg {
    /// The bytes of the value, lowest first.
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

/// Parameters of a kernel.
pub(crate) trait Params {
    /// Adds them to a launch, in order.
    fn add_to(self, launch: Launch) -> Launch;
}

/// Grid and parameters of a launch. Plain data, without allocation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launch {
    blocks: u32,
    threads: u32,
    shared_bytes: u32,
    args: [u64; MAX_ARGS],
    len: usize,
}

/// Multivectors of an SpMM as its kernels load and store them: adjacent vectors in units.
pub(crate) struct VectorUnits<T> {
    pub(crate) x: Ptr<T>,
    /// Units from a column to the next one.
    pub(crate) stride: u32,
    pub(crate) y: Ptr<T>,
    /// Elements of `y` from a row to the next one, and from a vector to the next one.
    pub(crate) row: u64,
    pub(crate) vector: u64,
    /// Number of vectors.
    pub(crate) count: u32,
    /// True if every unit of `y` is stored at once.
    pub(crate) whole: bool,
}

impl<T> VectorUnits<T> {
    /// Adds the kernel parameters.
    pub(super) fn to(self, launch: Launch) -> Launch {
        let Self { x, stride, y, row, vector, count, whole } = self;
        let launch = launch.arg(x).arg(stride).arg(y).arg(row).arg(vector);
        launch.arg(count).arg(u32::from(whole))
    }
}

impl Launch {
    /// A launch of `blocks` blocks of `threads` threads each.
    pub(crate) const fn new(blocks: u32, threads: u32) -> Self {
        Self { blocks, threads, shared_bytes: 0, args: [0; MAX_ARGS], len: 0 }
    }

    /// A launch with enough blocks of [`BLOCK`] threads to give every item `threads_per_item`
    /// threads.
    pub(crate) fn over(items: usize, threads_per_item: u32) -> Self {
        let blocks = (items as u64 * u64::from(threads_per_item)).div_ceil(u64::from(BLOCK));
        // Formats hold fewer than 2³² rows and pieces, and an item takes at most one block of
        // threads.
        let blocks = u32::try_from(blocks).expect("no grid has 2³² blocks");
        Self::new(blocks, BLOCK)
    }

    /// Sets the dynamic shared memory of a block, in bytes; see `Gpu::resident_blocks`.
    #[must_use]
    pub(crate) const fn with_shared(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// Adds the parameters of a kernel.
    #[must_use]
    pub(crate) fn with(self, params: impl Params) -> Self {
        params.add_to(self)
    }

    /// Adds a parameter.
    #[must_use]
    pub(super) fn arg(mut self, value: impl Arg) -> Self {
        self.args[self.len] = value.bits();
        self.len += 1;
        self
    }

    /// Number of blocks in the grid.
    pub(crate) const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Number of threads per block.
    pub(crate) const fn threads(&self) -> u32 {
        self.threads
    }

    /// Dynamic shared memory of a block, in bytes.
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
