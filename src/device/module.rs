//! Modules of GPU kernels: kernel files, each compiled with some definitions.

use super::Residency;
use std::fmt::{self, Display};

/// A kernel file and the definitions it is compiled with. `build.rs` lists the existing modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Module {
    /// Name of the file, without its extension.
    pub(crate) file: &'static str,
    /// Compiled with `SCALED`: `y = alpha A x + beta y` instead of `y = A x`.
    scaled: bool,
    /// Compiled with `STREAMED`: for a matrix that does not fit the L2 cache.
    streamed: bool,
    /// Compiled with `EVICT_FIRST` in addition: for a matrix of which no part stays there.
    evict_first: bool,
    /// Compiled with `SHARING`: for a matrix of few slices, each shared by several warps.
    shared: bool,
}

impl From<&'static str> for Module {
    fn from(file: &'static str) -> Self {
        Self { file, scaled: false, streamed: false, evict_first: false, shared: false }
    }
}

impl Module {
    /// Module of a file for a matrix with this residency.
    pub(crate) fn of(file: &'static str, residency: Residency) -> Self {
        Self { streamed: residency.streams(), ..Self::from(file) }
    }

    /// The same module with evict-first loads alone, if no part of the matrix stays. The kernel
    /// file has the variant.
    pub(crate) const fn with_needed_loads(self, residency: Residency) -> Self {
        Self { evict_first: self.streamed && residency.shares() == 0, ..self }
    }

    /// The same module for slices shared by several warps. No such module also streams.
    pub(crate) const fn shared(self) -> Self {
        assert!(!self.streamed);
        Self { shared: true, ..self }
    }

    /// The same module for scaled products. None has evict-first loads alone.
    pub(crate) const fn scaled(self) -> Self {
        Self { scaled: true, evict_first: false, ..self }
    }
}

impl Display for Module {
    /// Name of the module, as `build.rs` defines it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, scaled, evict_first, shared, .. } = *self;
        let streamed = self.streamed && !evict_first;
        let endings = [
            (scaled, "_scaled"),
            (streamed, "_streamed"),
            (evict_first, "_evict_first"),
            (shared, "_shared"),
        ];
        f.write_str(file)?;
        endings.iter().filter(|(is, _)| *is).try_for_each(|(_, ending)| f.write_str(ending))
    }
}
