//! The compiled part of the Python package `sparseop`: operators and their products, solvers,
//! files, and generated matrices.
//!
//! Documentation of public classes and functions is for users of Python: it becomes their
//! docstrings, whose examples are run. An array of another library is described by an
//! [`arrays::ArrayRef`], and multiplied where it is.

mod arrays;
mod build;
mod checked;
mod deferred;
mod error;
mod interrupt;
mod library;
mod linear;
mod operator;
mod order;
mod product;
mod shared;
mod solve;
mod stream;
mod view;

use pyo3::prelude::*;

/// Memory that ends is an error, also where an allocation is small.
#[global_allocator]
static ALLOCATOR: sparseop::Reserve<std::alloc::System> =
    sparseop::Reserve::new(std::alloc::System);

/// The module `sparseop._sparseop`.
#[pymodule]
mod _sparseop {
    #[pymodule_export]
    use super::arrays::{check_unrecorded, device_zeros};
    #[pymodule_export]
    use super::build::build;
    #[pymodule_export]
    use super::library::PyProfile;
    #[pymodule_export]
    use super::library::{
        devices, embedded_kernels, gallery_names, generate, main, read, why_no_gpu, write,
    };
    #[pymodule_export]
    use super::order::row_order;
    #[pymodule_export]
    use super::shared::PyOperator;
    #[pymodule_export]
    use super::shared::numbered;
    #[pymodule_export]
    use super::solve::{pagerank, solve};
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
