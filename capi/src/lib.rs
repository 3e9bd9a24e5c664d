//! `sparseop` for C: `include/sparseop.h` has what is exported here.
//!
//! Functions that can fail give a [`sparseop_status`] and leave a message for [`sparseop_last_error`]. Whatever they are given, pointers that
//! are null or not aligned, lengths that do not fit, arrays that are no matrix, they do not crash; what they cannot know is whether memory
//! that is pointed to is there. Panics end here.
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

#[cfg(test)]
mod tests;
