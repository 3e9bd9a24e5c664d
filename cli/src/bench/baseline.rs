//! Baselines of the comparison.

use super::cusparse::{self, Algorithm, SharedArrays, SpMm};
use super::engine::{Engine, HostProduct, OnHost, OperatorEngine, ProductKind};
use super::failure::RunFailure;
use super::task::{MultivectorShape, TestVectors};
use crate::console::Console;
use clap::ValueEnum;
use sparseop::matrix::CsrView;
use sparseop::tuning::caches::Caches;
use sparseop::{Device, Error, Scalar, SparseOpBuilder, Stream};
use sprs::CsMatViewI;
use sprs::prod::mul_acc_mat_vec_csr;
use std::rc::Rc;

/// Baseline of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Baseline {
    /// The product of the crate sprs, on one thread of the CPU
    Sprs,
    /// NVIDIA's cuSPARSE, every algorithm it has for the product, on the GPU
    Cusparse,
    /// Nothing
    None,
}

/// Product other than a plan of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    Sprs,
    Cusparse(Algorithm),
    /// cuSPARSE's transposed product with the original matrix.
    CusparseTransposed(Algorithm),
    SpMm(SpMm),
    /// Transposed product of our own operator with the original matrix.
    Transposed,
    /// Product of our own operator with one vector, as a baseline of SpMM.
    OneVector,
}

/// Task of a comparison.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    /// The vectors.
    pub(super) vectors_shape: MultivectorShape,
    /// True if the matrix is the transpose of the original one.
    pub(super) transposed: bool,
}

/// Inputs that all engines of a comparison share.
pub(super) struct Context<'a, T: Scalar> {
    pub(super) a: CsrView<'a, T>,
    /// The matrix before transposition, if products with the transpose are compared.
    pub(super) original: Option<CsrView<'a, T>>,
    pub(super) task: MultivectorShape,
    pub(super) vectors: &'a TestVectors<T>,
    pub(super) builder: &'a SparseOpBuilder,
    pub(super) device: &'a Device,
    /// The stream of all engines on the device, and the data that fill its caches.
    pub(super) caches: Rc<Caches>,
    /// Device arrays that engines with the matrix share, and those that engines with the original
    /// one share.
    pub(super) shared: SharedArrays,
    pub(super) shared_original: SharedArrays,
}

impl Baseline {
    /// Baseline if none is given.
    pub(super) fn default_of(device: &Device, console: &Console) -> Self {
        match (device, cusparse::missing()) {
            (Device::Cuda(_), None) => Self::Cusparse,
            (Device::Cuda(_), Some(reason)) => {
                console.warn(&format!("no baseline: {reason}"));
                Self::None
            }
            _ => Self::Sprs,
        }
    }

    /// All algorithms of the baseline on this machine.
    pub(super) fn peers(self, task: Task, device: &Device, console: &Console) -> Vec<Peer> {
        let spmm = task.vectors_shape != MultivectorShape::ONE;
        match self {
            Self::Sprs if spmm => {
                console.warn("sprs is left out: it is compared with one vector at a time");
                Vec::new()
            }
            Self::Sprs => vec![Peer::Sprs],
            Self::Cusparse if spmm => SpMm::all().into_iter().map(Peer::SpMm).collect(),
            Self::Cusparse => {
                let transposing =
                    if task.transposed { Algorithm::transposing().to_vec() } else { Vec::new() };
                let plain = Algorithm::on(device, console).into_iter().map(Peer::Cusparse);
                plain.chain(transposing.into_iter().map(Peer::CusparseTransposed)).collect()
            }
            Self::None => Vec::new(),
        }
    }
}

impl Peer {
    /// Baselines of our own that are not plans of the matrix.
    pub(super) fn own(task: Task) -> Vec<Self> {
        let one_vector = (task.vectors_shape != MultivectorShape::ONE).then_some(Self::OneVector);
        task.transposed.then_some(Self::Transposed).into_iter().chain(one_vector).collect()
    }

    /// Engine and plan, as in reports.
    pub(super) fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::Sprs => ("sprs", "csr"),
            Self::Cusparse(algorithm) => (cusparse::ENGINE, algorithm.name()),
            Self::CusparseTransposed(algorithm) => (cusparse::ENGINE, algorithm.transposed_name()),
            Self::SpMm(spmm) => (cusparse::ENGINE, spmm.name()),
            Self::Transposed => ("sparseop", "apply_transpose"),
            Self::OneVector => ("sparseop", "one vector"),
        }
    }

    /// Prepares the matrix.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be timed, in one line.
    pub(super) fn enter<'a, T: Peers>(
        self,
        context: &'a Context<'a, T>,
    ) -> Result<Box<dyn Engine<T> + 'a>, RunFailure> {
        let Context { a, vectors, builder, device, .. } = *context;
        let (caches, shared) = (&context.caches, &context.shared);
        let one = || vectors.on(device, MultivectorShape::ONE);
        let original = || {
            context.original.ok_or(RunFailure::Broken("the original matrix is missing".to_owned()))
        };
        match self {
            Self::Sprs => {
                let (multiply, x) = (T::sprs(a).map_err(RunFailure::Broken)?, vectors.first());
                Ok(Box::new(OnHost::new(multiply, x, a.nrows(), context.host_caches()?)?))
            }
            Self::Cusparse(algorithm) => algorithm.enter(a, false, one()?, caches, shared),
            Self::CusparseTransposed(algorithm) => {
                algorithm.enter(original()?, true, one()?, caches, &context.shared_original)
            }
            Self::SpMm(spmm) => spmm.enter(context),
            Self::Transposed => {
                let op = builder.clone().transpose(true).build(&original()?)?;
                Ok(Box::new(OperatorEngine::new(
                    op,
                    ProductKind::Transposed,
                    one()?,
                    caches.clone(),
                )?))
            }
            Self::OneVector => {
                let product = ProductKind::Plain(MultivectorShape::ONE);
                Ok(Box::new(OperatorEngine::new(
                    builder.build(&a)?,
                    product,
                    one()?,
                    caches.clone(),
                )?))
            }
        }
    }
}

impl<T: Scalar> Context<'_, T> {
    /// The caches of the CPU, whatever the device, in the state of this comparison.
    fn host_caches(&self) -> Result<Rc<Caches>, Error> {
        if *self.device == Device::Cpu {
            return Ok(self.caches.clone());
        }
        Caches::new(&Stream::new(&Device::Cpu)?, self.caches.state()).map(Rc::new)
    }
}

/// A scalar type that every baseline supports.
pub(super) trait Peers: Scalar {
    /// The product of sprs, with 32-bit columns: none of its index types is faster.
    fn sprs<'a>(a: CsrView<'a, Self>) -> Result<HostProduct<'a, Self>, String>;
}

macro_rules! peers {
    ($($type:ty),+) => {$(
        impl Peers for $type {
            fn sprs<'a>(a: CsrView<'a, Self>) -> Result<HostProduct<'a, Self>, String> {
                let shape = (a.nrows(), a.ncols());
                let (row_ptr, col_idx) = (a.row_ptr(), a.col_idx());
                let matrix =
                    CsMatViewI::<$type, u32, usize>::try_new(shape, row_ptr, col_idx, a.values());
                let matrix = matrix.map_err(|(_, _, _, error)| {
                    format!("sprs does not accept the matrix: {error}")
                })?;
                Ok(Box::new(move |x, y| {
                    y.fill(0.0);
                    mul_acc_mat_vec_csr(matrix, x, y);
                }))
            }
        }
    )+};
}

peers!(f32, f64);
