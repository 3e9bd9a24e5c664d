//! A trial of a GPU before it is chosen: memory, copies and a launch.

use super::Gpu;
use crate::Error;
use crate::device::{Launch, Out, Scaling, kernels};

/// Number of elements.
const LEN: usize = 64;

impl Gpu {
    /// Copies a vector to the GPU, doubles it there, and copies it back.
    ///
    /// # Errors
    ///
    /// [`Error::Gpu`], [`Error::GpuMemory`] or [`Error::KernelCompile`] if a step fails, or if the
    /// result is wrong.
    pub(crate) fn test(&self) -> Result<(), Error> {
        let kernel = self.kernel("scaled", "scaled_f32")?;
        let mut host = self.pinned::<f32>(LEN)?;
        host.as_mut_slice().fill(1.5);
        let (product, y) = (self.uninitialised(LEN)?, self.zeroed(LEN)?);
        let by = Scaling { alpha: 2.0f32.into(), beta: 1.0f32.into() };
        let (first, out) = (product.ptr(), Out::scaled(y.ptr(), by));
        let launch = Launch::over(LEN, 1).with(kernels::scaled::Scaled {
            product: first,
            nrows: LEN as u32,
            out,
        });
        let queue = self.queue();
        // SAFETY: the kernel is `scaled_f32`; all vectors have `LEN` elements and live until the
        // work is done.
        let enqueued = unsafe {
            queue
                .copy_in(first, host.as_slice())
                .and_then(|()| kernel.launch(queue, launch))
                .and_then(|()| queue.copy_out(host.as_mut_slice(), y.ptr()))
        };
        // What was enqueued before a failure uses the vectors.
        enqueued.and(queue.synchronize())?;
        if host.as_slice().iter().all(|element| *element == 3.0) {
            return Ok(());
        }
        Err(Error::Gpu {
            device: self.to_string(),
            action: "compute in a trial".to_owned(),
            code: None,
            message: "the result is wrong".to_owned(),
        })
    }
}
