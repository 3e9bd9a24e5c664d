//! Products whose arguments were checked.

use crate::arrays::{host_slice, host_slice_mut};
use crate::error::raised;
use crate::shared::{SharedOp, either, side};
use pyo3::prelude::*;
use sparseop::{DeviceVec, Error, Layout, Multivector, Scalar, SparseOp, Stream};

/// Options of a product `y = alpha A x + beta y`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProductOptions {
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
    /// True if vectors in host memory are copied to the operator's GPU and back.
    pub(crate) staged: bool,
}

impl ProductOptions {
    pub(crate) const PLAIN: Self = Self { alpha: 1.0, beta: 0.0, staged: false };

    fn is_plain(self) -> bool {
        self.alpha == 1.0 && self.beta == 0.0
    }
}

/// A checked product.
pub(crate) struct CheckedProduct {
    pub(crate) transposed: bool,
    pub(crate) x: (u64, usize),
    pub(crate) y: (u64, usize),
    /// Number and layout of several vectors.
    pub(crate) vectors: Option<(usize, Layout)>,
    pub(crate) options: ProductOptions,
    /// None for vectors in host memory.
    pub(crate) stream: Option<Stream>,
    /// True if the product has ended when the call returns.
    pub(crate) waits: bool,
}

/// Multiplies without the GIL.
pub(crate) fn run(py: Python<'_>, shared: &SharedOp, product: &CheckedProduct) -> PyResult<()> {
    let done = py.detach(|| {
        // SAFETY: the arrays are alive, contiguous, of the operator's type and without common
        // memory: their descriptions were checked. Other threads could write to them meanwhile, as
        // for every function of NumPy.
        either!(&*shared.read(), op => unsafe { execute(op, product) })
    });
    done.map_err(|error| raised(py, error))
}

/// # Safety
///
/// The vectors of the product are alive, have the operator's scalar type and as many elements as
/// stated, on its device or in host memory without a stream, and have nothing in common.
unsafe fn execute<T: Scalar>(op: &SparseOp<T>, product: &CheckedProduct) -> Result<(), Error> {
    let op = side(op, product.transposed)?;
    let ProductOptions { alpha, beta, .. } = product.options;
    let (plain, alpha, beta) = (product.options.is_plain(), T::from_f64(alpha), T::from_f64(beta));
    let Some(stream) = &product.stream else {
        // SAFETY: the caller's promise.
        let (x, y) = unsafe {
            (
                host_slice::<T>(product.x.0, product.x.1),
                host_slice_mut::<T>(product.y.0, product.y.1),
            )
        };
        return match product.vectors {
            None if plain => op.apply(x, y),
            None => op.apply_with(alpha, x, beta, y),
            Some((count, layout)) => {
                let (x, y) =
                    (Multivector::new(x, count, layout), Multivector::new(y, count, layout));
                op.apply_multi_with(alpha, x, beta, y)
            }
        };
    };
    // SAFETY: the caller's promise; the device is that of the arrays by their library.
    let (x, mut y) = unsafe {
        let x = DeviceVec::<T>::from_known(op.device(), product.x.0, product.x.1)?;
        (x, DeviceVec::<T>::from_known(op.device(), product.y.0, product.y.1)?)
    };
    match product.vectors {
        None if plain => op.apply_device(stream, &x, &mut y)?,
        None => op.apply_device_with(stream, alpha, &x, beta, &mut y)?,
        Some((count, layout)) => {
            let (x, y) =
                (Multivector::new(&x, count, layout), Multivector::new(&mut y, count, layout));
            op.apply_multi_device_with(stream, alpha, x, beta, y)?;
        }
    }
    if product.waits { stream.synchronize() } else { Ok(()) }
}
