//! Parameters of the GPU kernels: a struct for every signature in `kernels/`, made by the build. A
//! launch that lacks a parameter, or has one of another type, does not compile.

// Without GPU support nothing is timed on one.
#![cfg_attr(not(feature = "cuda"), allow(dead_code))]

use super::launch::Params;
use super::{Launch, Out, Ptr, VectorUnits};
use crate::Scalar;

include!(concat!(env!("OUT_DIR"), "/params.rs"));
