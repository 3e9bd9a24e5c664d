//! A build without GPU support: there is no GPU, and the type says so.

use super::DeviceSpec;
use crate::Error;
use std::fmt::{self, Display};

/// Why no GPU is used.
pub(super) const REASON: &str = "this build of sparseop has no GPU support";

/// A GPU; in this build there can be none.
#[derive(Debug, Clone, PartialEq)]
pub enum Gpu {}

/// GPU number `n`.
pub(super) fn open(n: usize) -> Result<Gpu, Error> {
    Err(Error::DeviceUnavailable { device: format!("cuda:{n}"), reason: REASON.to_owned() })
}

impl Gpu {
    pub(super) fn spec(&self) -> DeviceSpec {
        match *self {}
    }
}

impl Display for Gpu {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}
