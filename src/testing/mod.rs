//! Conformance tests of every format, and helpers of unit tests.

mod abilities;
mod access;
mod bits;
mod changes;
#[allow(unreachable_pub)]
#[path = "../../testkit/src/chapter.rs"]
pub(crate) mod chapter;
mod child;
mod cliffs;
mod conformance;
mod device_analysis;
#[allow(unreachable_pub)]
#[path = "../../testkit/src/devices.rs"]
mod devices;
mod enqueued;
mod epilogue;
mod few;
mod foreign;
mod gpu;
#[cfg(feature = "cuda")]
mod kernels;
#[allow(unreachable_pub)]
#[path = "../../testkit/src/oracle.rs"]
mod oracle;
mod overlap;
mod precision;
mod refusals;
mod residency;
mod scaled;
mod second_packing;
mod side_stream;
mod spmm;
mod update;

pub(crate) use conformance::{
    any_example, awkward, check_format, format_suite, of_rows, product, scattered, small_gallery,
};
pub(crate) use devices::{devices, few_cases, gpu};
pub(crate) use few::check_few;
pub(crate) use oracle::{Oracle, x_vector};
pub(crate) use spmm::check_spmm;
