//! Where products run.

pub(crate) mod cpu;
