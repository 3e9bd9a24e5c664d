//! Products on a GPU with vectors in host memory.

use crate::device::{Buffer, Gpu, Pinned, Ptr, Queue};
use crate::{Error, Scalar};

/// Staging buffers of products with vectors in host memory on a GPU.
#[derive(Debug)]
pub(super) struct StagingBuffers<T> {
    queue: Queue,
    host_x: Pinned<T>,
    host_y: Pinned<T>,
    x: Buffer<T>,
    y: Buffer<T>,
}

impl<T: Scalar> StagingBuffers<T> {
    pub(super) fn new(gpu: Gpu, nrows: usize, ncols: usize) -> Result<Self, Error> {
        Ok(Self {
            queue: gpu.new_queue()?,
            host_x: gpu.pinned(ncols)?,
            host_y: gpu.pinned(nrows)?,
            x: gpu.zeroed(ncols)?,
            y: gpu.zeroed(nrows)?,
        })
    }

    /// True if the buffers are for vectors of these lengths.
    pub(super) fn fits(&self, x: usize, y: usize) -> bool {
        (self.x.len(), self.y.len()) == (x, y)
    }

    /// Copies `x` in, and `y` if it is `read`; enqueues `work`, copies `y` out, and waits.
    pub(super) fn run(
        &mut self,
        x: &[T],
        y: &mut [T],
        read: bool,
        work: impl FnOnce(&Queue, Ptr<T>, Ptr<T>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.host_x.as_mut_slice().copy_from_slice(x);
        if read {
            self.host_y.as_mut_slice().copy_from_slice(y);
        }
        // SAFETY: the buffers have the lengths of the host buffers, and all of them outlive the
        // wait.
        unsafe {
            self.queue.copy_in(self.x.ptr(), self.host_x.as_slice())?;
            if read {
                self.queue.copy_in(self.y.ptr(), self.host_y.as_slice())?;
            }
        }
        work(&self.queue, self.x.ptr(), self.y.ptr())?;
        // SAFETY: as above.
        unsafe { self.queue.copy_out(self.host_y.as_mut_slice(), self.y.ptr())? };
        self.queue.synchronize()?;
        y.copy_from_slice(self.host_y.as_slice());
        Ok(())
    }
}
