//! Streams of other libraries, each wrapped once: a wrapper owns the scratch memory of products.

use crate::error::raised;
use pyo3::prelude::*;
use sparseop::{Device, Stream};
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// Maximum number of wrapped streams, the latest last.
const KEPT: usize = 32;

/// A wrapped stream.
struct KeptStream {
    ordinal: usize,
    /// The `CUstream`. None for a stream of this library.
    raw: Option<u64>,
    stream: Stream,
    /// The caller's object, which keeps its stream alive.
    _owner: Option<Py<PyAny>>,
}

static STREAMS: Mutex<Vec<KeptStream>> = Mutex::new(Vec::new());

/// Wraps a `CUstream` of the caller. `owner` keeps it alive; without one it lives until the end of
/// the process.
pub(crate) fn wrapped(
    py: Python<'_>,
    device: &Device,
    ordinal: usize,
    raw: u64,
    owner: Option<&Bound<'_, PyAny>>,
) -> PyResult<Stream> {
    kept(py, ordinal, Some(raw), owner, || {
        let raw = std::ptr::with_exposed_provenance_mut::<c_void>(raw as usize);
        // SAFETY: this is the current stream of the array's library on that GPU, and the owner is
        // kept as long as the wrapper.
        unsafe { Stream::from_raw(device, raw) }
    })
}

/// The stream of this library for a GPU, for libraries that do not pass their own.
pub(crate) fn own(py: Python<'_>, device: &Device, ordinal: usize) -> PyResult<Stream> {
    kept(py, ordinal, None, None, || Stream::new(device))
}

fn kept(
    py: Python<'_>,
    ordinal: usize,
    raw: Option<u64>,
    owner: Option<&Bound<'_, PyAny>>,
    make: impl FnOnce() -> Result<Stream, sparseop::Error>,
) -> PyResult<Stream> {
    let find = |streams: &Vec<KeptStream>| {
        let same = |kept: &&KeptStream| (kept.ordinal, kept.raw) == (ordinal, raw);
        streams.iter().find(same).map(|kept| kept.stream.clone())
    };
    if let Some(stream) = find(&STREAMS.lock().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(stream);
    }
    let stream = make().map_err(|error| raised(py, error))?;
    let owner = owner.map(|owner| owner.clone().unbind());
    let kept = KeptStream { ordinal, raw, stream: stream.clone(), _owner: owner };
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    streams.push(kept);
    let oldest = (streams.len() > KEPT).then(|| streams.remove(0));
    // Dropping it may run code of Python.
    drop(streams);
    drop(oldest);
    Ok(stream)
}
