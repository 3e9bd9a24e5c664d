//! What the plans are compared with.

use super::contest::Failure;
use super::cusparse::{self, Algorithm, Shared};
use super::engine::{Engine, OnHost};
use crate::cli::console::Console;
use clap::ValueEnum;
use sparseop::matrix::CsrView;
use sparseop::{Device, Scalar};
use sprs::CsMatViewI;
use sprs::prod::mul_acc_mat_vec_csr;

/// What the plans are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Baseline {
    /// The product of the crate sprs, on one thread of the CPU
    Sprs,
    /// NVIDIA's cuSPARSE, every algorithm it has for the product, on the GPU
    Cusparse,
    /// Nothing
    None,
}

/// One way in which a baseline multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    Sprs,
    Cusparse(Algorithm),
}

impl Baseline {
    /// What is compared with when nothing else is asked for.
    pub(super) fn default_of(device: &Device, console: &Console) -> Self {
        match (device, cusparse::missing()) {
            (Device::Cuda(_), None) => Self::Cusparse,
            (Device::Cuda(_), Some(reason)) => {
                console.warn(&format!("compared with nothing: {reason}"));
                Self::None
            }
            _ => Self::Sprs,
        }
    }

    /// Every way in which it multiplies on this machine.
    pub(super) fn peers(self, device: &Device, console: &Console) -> Vec<Peer> {
        match self {
            Self::Sprs => vec![Peer::Sprs],
            Self::Cusparse => Algorithm::on(device, console).into_iter().map(Peer::Cusparse).collect(),
            Self::None => Vec::new(),
        }
    }
}

impl Peer {
    /// Engine and plan, as reports name them.
    pub(super) fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::Sprs => ("sprs", "csr"),
            Self::Cusparse(algorithm) => ("cusparse", algorithm.name()),
        }
    }

    /// Prepares the matrix; `x` is what it is multiplied with, `shared` what those in this contest have in common.
    ///
    /// # Errors
    ///
    /// Why it cannot take part, in one line.
    pub(super) fn enter<'a, T: Peers>(
        self,
        a: CsrView<'a, T>,
        x: &'a [T],
        device: &Device,
        shared: &Shared,
    ) -> Result<Box<dyn Engine<T> + 'a>, Failure> {
        match self {
            Self::Sprs => Ok(Box::new(OnHost::new(T::sprs(a).map_err(Failure::Broken)?, x, a.nrows()))),
            Self::Cusparse(algorithm) => algorithm.enter(a, x, device, shared),
        }
    }
}

/// A product with one matrix: `multiply(x, y)`.
pub(super) type Product<'a, T> = Box<dyn Fn(&[T], &mut [T]) + 'a>;

/// A scalar that every peer can multiply.
pub(super) trait Peers: Scalar {
    /// The product of sprs, with 32-bit columns: no index type of its own is faster.
    fn sprs<'a>(a: CsrView<'a, Self>) -> Result<Product<'a, Self>, String>;
}

macro_rules! peers {
    ($($type:ty),+) => {$(
        impl Peers for $type {
            fn sprs<'a>(a: CsrView<'a, Self>) -> Result<Product<'a, Self>, String> {
                let shape = (a.nrows(), a.ncols());
                let matrix = CsMatViewI::<$type, u32, usize>::try_new(shape, a.row_ptr(), a.col_idx(), a.values());
                let matrix = matrix.map_err(|(_, _, _, error)| format!("sprs does not take the matrix: {error}"))?;
                Ok(Box::new(move |x, y| {
                    y.fill(0.0);
                    mul_acc_mat_vec_csr(matrix, x, y);
                }))
            }
        }
    )+};
}

peers!(f32, f64);
