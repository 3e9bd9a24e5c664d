//! Oddities of files that ranks read in parallel.

/// Oddities of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileFindings {
    /// Number of listed entries above the diagonal of a symmetric file, which lists the lower
    /// triangle: they are mirrored, and values listed in both triangles are added.
    pub above_diagonal: u64,
    /// Number of values of the matrix that are NaN, and of those that are infinite.
    pub nan: u64,
    /// As `nan`.
    pub infinite: u64,
}
