//! NVIDIA GPUs.
#![allow(dead_code)]

mod cache;
pub(crate) mod compiler;
mod embedded;
mod nvrtc;
