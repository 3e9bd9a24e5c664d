//! What the plans are compared with.

use clap::ValueEnum;
use sparseop::Scalar;
use sparseop::matrix::CsrView;
use sprs::CsMatViewI;
use sprs::prod::mul_acc_mat_vec_csr;

/// What the plans are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Baseline {
    /// The product of the crate sprs, on one thread
    Sprs,
    /// Nothing
    None,
}

impl Baseline {
    /// The engine's name in reports.
    pub(super) fn engine(self) -> &'static str {
        match self {
            Self::Sprs => "sprs",
            Self::None => "none",
        }
    }
}

/// A product with one matrix: `multiply(x, y)`.
pub(super) type Product<'a, T> = Box<dyn Fn(&[T], &mut [T]) + 'a>;

/// A scalar that sprs can multiply.
pub(super) trait Sprs: Scalar {
    /// The product of sprs, with 32-bit columns: no index type of its own is faster.
    fn sprs<'a>(a: CsrView<'a, Self>) -> Result<Product<'a, Self>, String>;
}

macro_rules! sprs {
    ($($type:ty),+) => {$(
        impl Sprs for $type {
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

sprs!(f32, f64);
