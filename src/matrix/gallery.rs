//! Generated matrices.
