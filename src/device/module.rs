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
    /// Compiled with `UNCACHED` in addition: for a matrix of which no part stays there.
    uncached: bool,
    /// Compiled with `SHARING`: for a matrix of few slices, each shared by several warps.
    shared: bool,
}

impl From<&'static str> for Module {
    fn from(file: &'static str) -> Self {
        Self { file, scaled: false, streamed: false, uncached: false, shared: false }
    }
}

impl Module {
    /// Module of a file for a matrix with this residency.
    pub(crate) fn of(file: &'static str, residency: Residency) -> Self {
        Self { streamed: residency.streams(), ..Self::from(file) }
    }

    /// The same module without loads that stay in the cache, if the residency needs none. The
    /// kernel file has the variant.
    pub(crate) const fn without_unused_loads(self, residency: Residency) -> Self {
        Self { uncached: self.streamed && residency.shares() == 0, ..self }
    }

    /// The same module for slices shared by several warps. No such module also streams.
    pub(crate) const fn shared(self) -> Self {
        assert!(!self.streamed);
        Self { shared: true, ..self }
    }

    /// The same module for scaled products. No such module is uncached.
    pub(crate) const fn scaled(self) -> Self {
        Self { scaled: true, uncached: false, ..self }
    }
}

impl Display for Module {
    /// Name of the module, as `build.rs` defines it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, scaled, uncached, shared, .. } = *self;
        let streamed = self.streamed && !uncached;
        let endings = [
            (scaled, "_scaled"),
            (streamed, "_streamed"),
            (uncached, "_uncached"),
            (shared, "_shared"),
        ];
        f.write_str(file)?;
        endings.iter().filter(|(is, _)| *is).try_for_each(|(_, ending)| f.write_str(ending))
    }
}
