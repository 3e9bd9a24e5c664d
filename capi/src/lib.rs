//! C interface of `sparseop`: the functions declared in `include/sparseop.h`.
//!
//! Functions that can fail return a [`sparseop_status`] and keep a message for
//! [`sparseop_last_error`]. Null or misaligned pointers, wrong lengths and invalid matrices are
//! reported; that the memory behind a pointer exists is up to the caller. Panics are caught.
#![allow(non_camel_case_types)]

mod failure;
mod memory;
mod operator;
mod product;
mod stream;
mod types;

pub use failure::{sparseop_last_error, sparseop_version};
pub use operator::{
    sparseop_create, sparseop_create_from_device, sparseop_destroy, sparseop_explain,
    sparseop_memory_bytes, sparseop_operator, sparseop_plan, sparseop_shape,
};
pub use product::{
    sparseop_apply, sparseop_apply_device, sparseop_apply_multi, sparseop_apply_multi_device,
    sparseop_apply_transpose, sparseop_apply_transpose_device, sparseop_apply_with,
    sparseop_apply_with_device, sparseop_update_values, sparseop_update_values_device,
};
pub use stream::{sparseop_stream, sparseop_stream_destroy, sparseop_stream_wrap};
pub use types::*;

/// Memory that ends is an error, also where an allocation is small.
#[global_allocator]
static ALLOCATOR: sparseop::Reserve<std::alloc::System> =
    sparseop::Reserve::new(std::alloc::System);

#[cfg(test)]
mod tests;
