//! Streams of the caller.

use crate::failure::{Failure, catch_panics};
use crate::memory::{check_place, give};
use crate::types::sparseop_status;
use sparseop::{Device, Stream};
use std::ffi::c_void;

/// A CUDA stream of the caller.
pub struct sparseop_stream(pub(crate) Stream);

/// Wraps a CUstream (cudaStream_t) of the primary context of a GPU, for products on it. NULL is
/// the legacy default stream; the per-thread default stream is refused. The wrapper owns the
/// scratch memory of products: create one wrapper per stream, not per product.
///
/// # Safety
///
/// The CUstream outlives the wrapper. `stream` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_stream_wrap(
    ordinal: u32,
    cuda_stream: *mut c_void,
    stream: *mut *mut sparseop_stream,
) -> sparseop_status {
    catch_panics(|| {
        check_place("stream", stream)?;
        let device = Device::cuda(ordinal as usize)?;
        // SAFETY: the caller's promise.
        let wrapped = unsafe { Stream::from_raw(&device, cuda_stream)? };
        // SAFETY: as above.
        unsafe { give("stream", stream, Box::into_raw(Box::new(sparseop_stream(wrapped)))) }
    })
}

/// Destroys a wrapper, not the stream. NULL is ignored.
///
/// # Safety
///
/// The wrapper was created by sparseop_stream_wrap and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sparseop_stream_destroy(stream: *mut sparseop_stream) {
    catch_panics(|| {
        if !stream.is_null() {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(stream) });
        }
        Ok::<_, Failure>(())
    });
}
