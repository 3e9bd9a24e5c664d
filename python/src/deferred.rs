//! Products with arrays of a library that passes its stream only when it imports the result, as JAX
//! does.

use crate::arrays::{ArrayLibrary, ArrayRef, borrowed_on};
use crate::checked::{CheckedProduct, run};
use crate::error::raised;
use crate::shared::SharedOp;
use crate::stream;
use pyo3::prelude::*;
use sparseop::Stream;
use std::mem::take;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of arrays that are kept for enqueued products, and of their bytes.
const KEPT: usize = 16;
const KEPT_BYTES: usize = 64 << 20;

/// Arrays that enqueued products read, each with the stream of the product. If they were released,
/// their library could use their memory for other results on other streams.
static READ: Mutex<Vec<(Stream, ArrayRef)>> = Mutex::new(Vec::new());

/// A checked product on a GPU without a stream.
pub(crate) struct DeferredProduct {
    pub(crate) op: Arc<SharedOp>,
    pub(crate) x: Py<PyAny>,
    pub(crate) library: ArrayLibrary,
    pub(crate) product: CheckedProduct,
}

impl DeferredProduct {
    /// Enqueues the product on the stream of the library that imports the result, or waits for the
    /// product if the library passes no stream.
    pub(crate) fn enqueue(
        mut self,
        py: Python<'_>,
        ordinal: usize,
        raw: Option<u64>,
    ) -> PyResult<()> {
        let stream = match raw {
            Some(raw) => stream::wrapped(py, &self.op.device, ordinal, raw, None)?,
            None => stream::own(py, &self.op.device, ordinal)?,
        };
        // Lets the stream wait for `x`.
        let x = borrowed_on(self.x.bind(py), self.library, &stream)?;
        self.product.stream = Some(stream.clone());
        self.product.waits = raw.is_none();
        run(py, &self.op, &self.product)?;
        match raw {
            Some(_) => keep(py, stream, x),
            None => Ok(()),
        }
    }
}

/// Keeps an array that enqueued work reads until the work has ended.
fn keep(py: Python<'_>, stream: Stream, array: ArrayRef) -> PyResult<()> {
    let due = {
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        read.push((stream, array));
        let bytes: usize = read.iter().map(|(_, array)| array.bytes()).sum();
        if read.len() < KEPT && bytes < KEPT_BYTES { Vec::new() } else { take(&mut *read) }
    };
    let ended = py.detach(|| due.iter().try_for_each(|(stream, _)| stream.synchronize()));
    ended.map_err(|error| raised(py, error))
}
