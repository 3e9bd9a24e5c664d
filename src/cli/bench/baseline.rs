//! What the plans are compared with.

use super::engine::{Engine, OnHost};
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
    /// Nothing
    None,
}

/// One way in which a baseline multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    Sprs,
}

impl Baseline {
    /// What is compared with when nothing else is asked for.
    pub(super) fn default_of(device: &Device) -> Self {
        match device {
            Device::Cuda(_) => Self::None,
            _ => Self::Sprs,
        }
    }

    /// Every way in which it multiplies.
    pub(super) fn peers(self) -> Vec<Peer> {
        match self {
            Self::Sprs => vec![Peer::Sprs],
            Self::None => Vec::new(),
        }
    }
}

impl Peer {
    /// Engine and plan, as reports name them.
    pub(super) fn name(self) -> (&'static str, &'static str) {
        match self {
            Self::Sprs => ("sprs", "csr"),
        }
    }

    /// Prepares the matrix; `x` is what it is multiplied with.
    ///
    /// # Errors
    ///
    /// Why it cannot take part, in one line.
    pub(super) fn enter<'a, T: Peers>(
        self,
        a: CsrView<'a, T>,
        x: &'a [T],
        _: &Device,
    ) -> Result<Box<dyn Engine<T> + 'a>, String> {
        match self {
            Self::Sprs => Ok(Box::new(OnHost::new(T::sprs(a)?, x, a.nrows()))),
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
