//! The oracle every kernel is compared with, the small matrices of the literature, and what other libraries need to take part in a
//! comparison. Not part of the stable API.

#[cfg(test)]
mod abilities;
#[cfg(test)]
mod access;
#[cfg(test)]
mod bits;
#[cfg(test)]
mod changes;
pub mod chapter;
#[cfg(test)]
mod conformance;
mod device_array;
#[cfg(test)]
mod foreign;
#[cfg(test)]
mod gpu;
#[cfg(feature = "cuda")]
pub mod kernels;
mod oracle;
#[cfg(test)]
mod overlap;
#[cfg(test)]
mod precision;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod scaled;
#[cfg(test)]
mod several;
#[cfg(test)]
mod update;

#[cfg(test)]
pub(crate) use changes::keep_busy;
#[cfg(test)]
pub(crate) use conformance::{awkward, check_format, devices, format_suite, product};
pub use device_array::DeviceArray;
pub use oracle::{Oracle, x_vector};
#[cfg(test)]
pub(crate) use several::check_several;
