//! State of the caches in which products are timed.

use crate::Error;
use serde::Serialize;
use std::fmt::{self, Display};

/// State of the caches in which products are timed.
///
/// The cache is the last level before memory: the L2 of a GPU, the last-level cache of a CPU. Other
/// data are the data that [`Caches`](super::caches::Caches) reads and writes. Filling the cache is
/// never timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheState {
    /// Repeated products: a batch after warm-up products that are not recorded. The cache is as the
    /// product itself leaves it.
    #[default]
    Warm,
    /// A batch as long as in [`Warm`](Self::Warm), without warm-up products, after a filling of the
    /// cache with other data, as between two steps of a solver.
    Company,
    /// Single products, each after a filling of the cache with other data; a sample is one product.
    Cold,
}

impl CacheState {
    /// Seconds of `products` products in this state. `fill` fills the cache; `time` runs a given
    /// number of products and returns their seconds.
    pub(super) fn batch(
        self,
        products: u32,
        mut fill: impl FnMut() -> Result<(), Error>,
        mut time: impl FnMut(u32) -> Result<f64, Error>,
    ) -> Result<f64, Error> {
        match self {
            Self::Warm => time(products),
            Self::Company => {
                fill()?;
                time(products)
            }
            Self::Cold => (0..products).try_fold(0.0, |seconds, _| {
                fill()?;
                Ok(seconds + time(1)?)
            }),
        }
    }
}

impl Display for CacheState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warm => "warm",
            Self::Company => "company",
            Self::Cold => "cold",
        })
    }
}
