//! NVIDIA's cuSPARSE: all of its algorithms for the product.

mod ffi;
mod layout;
mod matrix;
mod session;
mod spmm;

pub(super) use matrix::SharedArrays;
pub(super) use spmm::SpMm;

use super::engine::Engine;
use super::failure::RunFailure;
use crate::console::Console;
use ffi::{Cusparse, Enum, NON_TRANSPOSE, Raw, TRANSPOSE};
use matrix::{MatrixArrays, MatrixShape, StorageLayout};
use session::{Object, Session, data_type, number};
use sparseop::device::DeviceArray;
use sparseop::matrix::CsrView;
use sparseop::tuning::caches::Caches;
use sparseop::{Device, DeviceVec, Error, Scalar};
use std::rc::Rc;

/// An algorithm of cuSPARSE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    CsrAlg1,
    CsrAlg2,
    CooAlg1,
    /// As `CooAlg1`, but deterministic.
    CooAlg2,
    Sell,
    /// CSR, with a plan made ahead of the products.
    SpMvOpAlg1,
    SpMvOpAlg2,
}

/// Name of the engine in reports.
pub(super) const ENGINE: &str = "cusparse";

/// The reason why cuSPARSE is not available, in one line. None if it is.
pub(super) fn missing() -> Option<&'static str> {
    Cusparse::get().err()
}

/// Version in the library's own numbering. None if there is no library.
pub(super) fn version() -> Option<String> {
    Cusparse::get().ok().map(Cusparse::version)
}

impl Algorithm {
    const ALL: [Self; 7] = [
        Self::CsrAlg1,
        Self::CsrAlg2,
        Self::CooAlg1,
        Self::CooAlg2,
        Self::Sell,
        Self::SpMvOpAlg1,
        Self::SpMvOpAlg2,
    ];

    /// Algorithms available on `device`. Only the first one, which then reports the reason, if
    /// there is no cuSPARSE.
    pub(super) fn on(device: &Device, console: &Console) -> Vec<Self> {
        let (Device::Cuda(_), Ok(library)) = (device, Cusparse::get()) else {
            return vec![Self::ALL[0]];
        };
        console.detail(|| format!("cuSPARSE {}", library.version()));
        if library.spmvop.is_none() {
            console.detail(|| format!("this cuSPARSE ({}) has no SpMVOp", library.version()));
        }
        Self::ALL
            .into_iter()
            .filter(|algorithm| !algorithm.is_planned() || library.spmvop.is_some())
            .collect()
    }

    /// Name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::CsrAlg1 => "csr_alg1",
            Self::CsrAlg2 => "csr_alg2",
            Self::CooAlg1 => "coo_alg1",
            Self::CooAlg2 => "coo_alg2",
            Self::Sell => "sell",
            Self::SpMvOpAlg1 => "spmvop_alg1",
            Self::SpMvOpAlg2 => "spmvop_alg2",
        }
    }

    /// Number in cuSPARSE's enumerations.
    fn number(self) -> Enum {
        match self {
            // cusparseSpMVAlg_t
            Self::CooAlg1 => 1,
            Self::CsrAlg1 => 2,
            Self::CsrAlg2 => 3,
            Self::CooAlg2 => 4,
            Self::Sell => 5,
            // cusparseSpMVOpAlg_t
            Self::SpMvOpAlg1 => 1,
            Self::SpMvOpAlg2 => 2,
        }
    }

    fn layout(self) -> StorageLayout {
        match self {
            Self::CsrAlg1 | Self::CsrAlg2 | Self::SpMvOpAlg1 | Self::SpMvOpAlg2 => {
                StorageLayout::Csr
            }
            Self::CooAlg1 | Self::CooAlg2 => StorageLayout::Coo,
            Self::Sell => StorageLayout::SlicedEll,
        }
    }

    /// True for the algorithms of SpMVOp.
    fn is_planned(self) -> bool {
        matches!(self, Self::SpMvOpAlg1 | Self::SpMvOpAlg2)
    }

    /// Algorithms that multiply with the transposed matrix.
    pub(super) fn transposing() -> [Self; 3] {
        [Self::CsrAlg1, Self::CsrAlg2, Self::CooAlg1]
    }

    /// Name of the transposed product in reports.
    pub(super) fn transposed_name(self) -> &'static str {
        match self {
            Self::CsrAlg1 => "csr_alg1 transposed",
            Self::CsrAlg2 => "csr_alg2 transposed",
            _ => "coo_alg1 transposed",
        }
    }

    /// Copies the matrix to the device of `x` and prepares many products with the matrix, or with
    /// its transpose.
    pub(super) fn enter<'a, T: Scalar>(
        self,
        a: CsrView<'_, T>,
        transposed: bool,
        x: Rc<DeviceVec<T>>,
        caches: &Rc<Caches>,
        shared: &SharedArrays,
    ) -> Result<Box<dyn Engine<T> + 'a>, RunFailure> {
        let broken = |text: &str| RunFailure::Broken(text.to_owned());
        let device = &x.device();
        if *device == Device::Cpu {
            return Err(broken("it needs an NVIDIA GPU, and the device is the CPU"));
        }
        let library = Cusparse::get().map_err(broken)?;
        let arrays = MatrixArrays::of(a, self.layout(), device, shared)?;
        let (operation, len) =
            if transposed { (TRANSPOSE, a.ncols()) } else { (NON_TRANSPOSE, a.nrows()) };
        let y = DeviceVec::zeros(device, len)?;
        let session = Session::new(library, caches.clone())?;
        Ok(Box::new(PreparedSpmv::new(self, operation, MatrixShape::of(a), arrays, x, y, session)?))
    }
}

/// State of one algorithm. Objects come before those that they refer to, so that they are dropped
/// first.
struct PreparedSpmv<T: Scalar> {
    call: Call<T>,
    matrix: Object,
    x: Object,
    y: Object,
    session: Session,
    memory: CusparseMemory<T>,
}

/// The function that multiplies, and its own arguments.
enum Call<T: Scalar> {
    SpMv { operation: Enum, algorithm: Enum },
    SpMvOp { plan: Object, _descriptor: Object, addend: Object, _zeros: DeviceVec<T> },
}

/// Memory that the descriptors and the plan point to.
struct CusparseMemory<T: Scalar> {
    _arrays: MatrixArrays,
    _x: Rc<DeviceVec<T>>,
    y: DeviceVec<T>,
    buffer: DeviceArray,
}

impl<T: Scalar> PreparedSpmv<T> {
    fn new(
        algorithm: Algorithm,
        operation: Enum,
        shape: MatrixShape,
        arrays: MatrixArrays,
        x: Rc<DeviceVec<T>>,
        y: DeviceVec<T>,
        session: Session,
    ) -> Result<Self, Error> {
        let objects =
            [session.matrix::<T>(shape, &arrays)?, session.vector(&x)?, session.vector(&y)?];
        let (call, buffer) = if algorithm.is_planned() {
            Call::spmvop(algorithm.number(), &objects, y.len(), &session)?
        } else {
            Call::spmv(operation, algorithm.number(), &objects, &session)?
        };
        let [matrix, x_object, y_object] = objects;
        let memory = CusparseMemory { _arrays: arrays, _x: x, y, buffer };
        Ok(Self { call, matrix, x: x_object, y: y_object, session, memory })
    }
}

impl<T: Scalar> Call<T> {
    /// Prepares SpMV: returns the call and its buffer.
    fn spmv(
        op: Enum,
        algorithm: Enum,
        [a, x, y]: &[Object; 3],
        session: &Session,
    ) -> Result<(Self, DeviceArray), Error> {
        let (one, zero) = (T::ONE, T::ZERO);
        let (alpha, beta, kind) = (number(&one), number(&zero), data_type::<T>());
        let (h, a, x, y) = (session.handle(), a.raw(), x.raw(), y.raw());
        let (f, mut bytes) = (&session.library.functions, 0);
        // SAFETY: all objects are alive; one size is written.
        let status =
            unsafe { (f.buffer_size)(h, op, alpha, a, x, beta, y, kind, algorithm, &mut bytes) };
        session.done("ask cuSPARSE for the size of its buffer", status)?;
        let buffer = DeviceArray::zeroed(&session.stream().device(), bytes)?;
        if let Some(f) = &session.library.preprocess {
            let memory = buffer.address() as Raw;
            // SAFETY: as above, with a buffer of the size that was asked for. The matrix keeps its
            // address, and is dropped first.
            let status = unsafe { (f.run)(h, op, alpha, a, x, beta, y, kind, algorithm, memory) };
            session.done("let cuSPARSE look at the matrix", status)?;
        }
        Ok((Self::SpMv { operation: op, algorithm }, buffer))
    }

    /// As [`Call::spmv`], for SpMVOp.
    fn spmvop(
        algorithm: Enum,
        [a, x, y]: &[Object; 3],
        nrows: usize,
        session: &Session,
    ) -> Result<(Self, DeviceArray), Error> {
        let f = session.library.spmvop.as_ref().expect("without it, its algorithms are left out");
        let device = session.stream().device();
        // The addend is a vector of its own: it may be read although beta is 0, and y may hold NaN.
        let zeros = DeviceVec::zeros(&device, nrows)?;
        let addend = session.vector(&zeros)?;
        let (h, a, x, y, z) = (session.handle(), a.raw(), x.raw(), addend.raw(), y.raw());
        let mut bytes = 0;
        // SAFETY: all objects are alive; one size is written.
        let status = unsafe {
            (f.buffer_size)(h, NON_TRANSPOSE, a, x, y, z, data_type::<T>(), algorithm, &mut bytes)
        };
        session.done("ask SpMVOp for the size of its buffer", status)?;
        let buffer = DeviceArray::zeroed(&device, bytes)?;
        let memory = buffer.address() as Raw;
        // SAFETY: as above, with a buffer of the size that was asked for.
        let create = |out| unsafe {
            (f.create_descriptor)(
                h,
                out,
                NON_TRANSPOSE,
                a,
                x,
                y,
                z,
                data_type::<T>(),
                algorithm,
                memory,
            )
        };
        // SAFETY: it creates a descriptor of a product.
        let descriptor = unsafe {
            session.make("describe the product to SpMVOp", create, f.destroy_descriptor)?
        };
        // SAFETY: the descriptor is alive; a null pointer selects the epilogue that only scales and
        // adds.
        let create =
            |out| unsafe { (f.create_plan)(h, descriptor.raw(), out, std::ptr::null(), 0) };
        // SAFETY: it creates a plan.
        let plan = unsafe { session.make("plan the product with SpMVOp", create, f.destroy_plan)? };
        Ok((Self::SpMvOp { plan, _descriptor: descriptor, addend, _zeros: zeros }, buffer))
    }
}

impl<T: Scalar> Engine<T> for PreparedSpmv<T> {
    fn answer(&mut self, y: &mut [T]) -> Result<(), Error> {
        self.memory.y.copy_from(y)?;
        self.multiply()?;
        self.memory.y.copy_to(y)
    }

    fn multiply(&mut self) -> Result<(), Error> {
        let (one, zero) = (T::ONE, T::ZERO);
        let (alpha, beta) = (number(&one), number(&zero));
        let Self { session, .. } = self;
        let (h, a, x, y) = (session.handle(), self.matrix.raw(), self.x.raw(), self.y.raw());
        let status = match &self.call {
            Call::SpMv { operation: op, algorithm } => {
                let (f, buffer) = (&session.library.functions, self.memory.buffer.address() as Raw);
                // SAFETY: all objects are alive; the buffer has the size that was asked for with
                // the same arguments.
                unsafe {
                    (f.multiply)(h, *op, alpha, a, x, beta, y, data_type::<T>(), *algorithm, buffer)
                }
            }
            Call::SpMvOp { plan, addend, .. } => {
                let f = session.library.spmvop.as_ref().expect("a plan comes from these functions");
                // SAFETY: all objects are alive, and the vectors are those that the plan was made
                // with.
                unsafe { (f.multiply)(h, plan.raw(), alpha, beta, x, addend.raw(), y) }
            }
        };
        session.done("multiply with cuSPARSE", status)
    }

    fn caches(&self) -> &Rc<Caches> {
        self.session.caches()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparseop::Stream;
    use sparseop::tuning::caches::CacheState;
    use sparseop_testkit::chapter;

    #[test]
    fn on_the_cpu_it_says_what_it_needs() {
        let a = chapter::matrix::<f32>();
        let x = Rc::new(DeviceVec::from_slice(&Device::Cpu, &[1.0; 4]).unwrap());
        let caches = Caches::new(&Stream::new(&Device::Cpu).unwrap(), CacheState::Warm).unwrap();
        let caches = Rc::new(caches);
        for algorithm in Algorithm::ALL {
            match algorithm.enter(a.view(), false, x.clone(), &caches, &SharedArrays::default()) {
                Err(RunFailure::Broken(text)) => {
                    assert!(text.contains("needs an NVIDIA GPU"), "{text}")
                }
                _ => panic!("{} multiplies on the CPU", algorithm.name()),
            }
        }
    }
}
