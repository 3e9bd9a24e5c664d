//! Plans of cache blocks and their spelling.

use crate::formats::PlanArgs;
use crate::{Error, ScalarKind};
use std::fmt::{self, Display};

/// Plan `blocked(kib:K)` or `blocked(hot:K)`, each optionally with `values:packed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockedPlan {
    /// Columns of a tile, whose `x` is in shared memory.
    pub(super) x: TileColumns,
    /// KiB of shared memory for `x`, from 1 to 256.
    pub(super) kib: u32,
    /// `values:packed`: if all values have the same bits, only one is stored.
    pub(super) packed: bool,
}

/// Columns of a tile: a GPU block stages their `x` in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TileColumns {
    /// `kib:K`: the `x` of consecutive columns, one window after the other.
    Windows,
    /// `hot:K`: the `x` of the columns with the most entries.
    Hot,
}

/// Maximum KiB of `x`: in `f32` as many columns as 16 bits distinguish. No GPU has that much shared
/// memory.
pub(super) const MAX_KIB: u32 = 256;

/// Default KiB of `x`, the fastest on an H200, whose blocks can have 227.
pub(super) const KIB: u32 = 192;

impl BlockedPlan {
    /// Parses the arguments between the parentheses.
    pub(super) fn parse(args: &mut PlanArgs<'_>) -> Result<Self, Error> {
        let mut number = |key| match args.number(key)? {
            Some(n) if n > MAX_KIB => {
                Err(args.error(format!("`{key}` may be 1 to {MAX_KIB}, in KiB, not {n}")))
            }
            number => Ok(number),
        };
        let (x, kib) = match (number("kib")?, number("hot")?) {
            (Some(_), Some(_)) => {
                return Err(args.error("it takes `kib` or `hot`, not both".to_owned()));
            }
            (None, Some(kib)) => (TileColumns::Hot, kib),
            (kib, None) => (TileColumns::Windows, kib.unwrap_or(KIB)),
        };
        let packed = args.word("values", &[("plain", false), ("packed", true)])?.unwrap_or(false);
        Ok(Self { x, kib, packed })
    }

    /// Number of columns whose `x` fits.
    pub(super) const fn columns(&self, scalar: ScalarKind) -> u32 {
        (self.kib << 10) / scalar.size() as u32
    }
}

impl Display for BlockedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = match self.x {
            TileColumns::Windows => "kib",
            TileColumns::Hot => "hot",
        };
        let packed = if self.packed { ",values:packed" } else { "" };
        write!(f, "({key}:{}{packed})", self.kib)
    }
}
