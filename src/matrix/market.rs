//! Matrix Market files.
