//! Epilogue `y = alpha A x + beta y`: the two factors, and the kernels that store row sums through
//! it.

use super::{DeviceVec, Gpu, Kernel, Launch, Module, Ptr, Queue, Residency};
use crate::{Error, Scalar};
use std::sync::OnceLock;

/// A factor of a product: a number, or an element in device memory that is read during the product.
///
/// ```
/// # use sparseop::{Device, DeviceVec, Factor, SparseOp, Stream, matrix::Triplets};
/// # let mut t = Triplets::new(2, 2)?;
/// # t.push(0, 0, 2.0f64)?;
/// let device = Device::auto();
/// let op = SparseOp::auto(&t)?;
/// # let device = Device::Cpu;
/// # let op = sparseop::SparseOpBuilder::new().device(Device::Cpu).build(&t)?;
/// let stream = Stream::new(&device)?;
/// let scalars = DeviceVec::from_slice(&device, &[0.0, 5.0])?;
/// let x = DeviceVec::from_slice(&device, &[1.0, 1.0])?;
/// let mut y = DeviceVec::from_slice(&device, &[1.0, 1.0])?;
/// // y = 5 A x - y
/// op.apply_device_with(&stream, Factor::Element(&scalars, 1), &x, -1.0, &mut y)?;
/// assert_eq!(y.to_vec()?, [9.0, -1.0]);
/// # Ok::<(), sparseop::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub enum Factor<'a, T: Scalar> {
    /// The number itself.
    Number(T),
    /// An element of a vector on the operator's device. A vector alone stands for its first
    /// element. It is read when the product runs, not earlier.
    Element(&'a DeviceVec<T>, usize),
}

impl<T: Scalar> From<T> for Factor<'_, T> {
    fn from(number: T) -> Self {
        Self::Number(number)
    }
}

impl<'a, T: Scalar> From<&'a DeviceVec<T>> for Factor<'a, T> {
    fn from(vector: &'a DeviceVec<T>) -> Self {
        Self::Element(vector, 0)
    }
}

impl<'a, T: Scalar> Factor<'a, T> {
    /// The vector that holds the factor, if any.
    pub(crate) fn vector(self) -> Option<&'a DeviceVec<T>> {
        match self {
            Self::Number(_) => None,
            Self::Element(vector, _) => Some(vector),
        }
    }

    /// The number, if the host knows it.
    pub(crate) fn known(self) -> Option<T> {
        match self {
            Self::Number(number) => Some(number),
            Self::Element(vector, at) if vector.share().is_none() => Some(vector.host()[at]),
            Self::Element(..) => None,
        }
    }

    /// The number, for a product on the CPU.
    pub(crate) fn on_host(self) -> T {
        self.known().expect("vectors of the CPU are in host memory")
    }

    /// Adds the kernel parameters: the address, or null and the number.
    fn to(self, launch: Launch) -> Launch {
        match self {
            Self::Number(number) => launch.arg(Ptr::<T>::NULL).arg(number.bits()),
            Self::Element(vector, at) => launch.arg(vector.ptr().add(at)).arg(T::ZERO.bits()),
        }
    }
}

/// The factors `alpha` and `beta`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scaling<'a, T: Scalar> {
    pub(crate) alpha: Factor<'a, T>,
    pub(crate) beta: Factor<'a, T>,
}

/// Output of a product: overwrites `y`, or combines with its content.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Out<'a, T: Scalar> {
    y: Ptr<T>,
    scaling: Option<Scaling<'a, T>>,
}

impl<'a, T: Scalar> Out<'a, T> {
    /// `y = A x`.
    pub(crate) const fn over(y: Ptr<T>) -> Self {
        Self { y, scaling: None }
    }

    /// `y = alpha A x + beta y`.
    pub(crate) const fn scaled(y: Ptr<T>, by: Scaling<'a, T>) -> Self {
        Self { y, scaling: Some(by) }
    }

    /// Adds its kernel parameters, `EPILOGUE_PARAMETERS` in `kernels/epilogue.cuh`.
    pub(crate) fn to(self, launch: Launch) -> Launch {
        let launch = launch.arg(self.y);
        match self.scaling {
            None => launch,
            Some(Scaling { alpha, beta }) => beta.to(alpha.to(launch)),
        }
    }
}

/// A kernel that stores every row sum once. Its variant for scaled products is loaded on first use.
#[derive(Debug)]
pub(crate) struct RowKernel {
    gpu: Gpu,
    module: Module,
    residency: Residency,
    name: String,
    plain: Kernel,
    scaled: OnceLock<Kernel>,
}

impl RowKernel {
    /// Loads kernel `name` of a module, for a matrix with this residency.
    pub(crate) fn new(
        gpu: Gpu,
        module: Module,
        residency: Residency,
        name: String,
    ) -> Result<Self, Error> {
        let plain = gpu.kernel(module, &name)?;
        Ok(Self { gpu, module, residency, name, plain, scaled: OnceLock::new() })
    }

    /// Residency of the matrix in the L2 cache.
    pub(crate) const fn residency(&self) -> Residency {
        self.residency
    }

    /// Enqueues a launch.
    ///
    /// # Errors
    ///
    /// Errors of kernel compilation and of the GPU.
    ///
    /// # Safety
    ///
    /// As for [`Kernel::launch`], for the kernel that stores row sums to `out`.
    pub(crate) unsafe fn launch<T: Scalar>(
        &self,
        queue: &Queue,
        out: &Out<'_, T>,
        launch: Launch,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.of(out)?.launch(queue, launch) }
    }

    /// Returns the kernel that stores row sums to `out`.
    fn of<T: Scalar>(&self, out: &Out<'_, T>) -> Result<Kernel, Error> {
        match (out.scaling, self.scaled.get()) {
            (None, _) => Ok(self.plain),
            (Some(_), Some(kernel)) => Ok(*kernel),
            (Some(_), None) => {
                let kernel = self.gpu.kernel(self.module.scaled(), &self.name)?;
                Ok(*self.scaled.get_or_init(|| kernel))
            }
        }
    }
}
