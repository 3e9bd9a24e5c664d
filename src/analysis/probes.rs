//! Measurements that storage formats make of a matrix.

use super::{RowStats, Sampler, Structure};
use crate::Error;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// Measurements of the storage formats, one value of a type of its own for each format that has
/// any. The analysis passes them on to the format without knowing it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Probes(Vec<Arc<dyn Probe>>);

/// A measurement of one format.
pub(crate) trait Probe: Any + Debug + Send + Sync {
    /// True if the other one is of the same type and equal.
    fn equals(&self, other: &dyn Any) -> bool;
}

impl<P: Any + Debug + PartialEq + Send + Sync> Probe for P {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}

/// Function that measures what all storage formats need of a matrix, without its structure while
/// that is measured, and with it.
pub(crate) struct FormatProbes {
    pub(crate) probe:
        fn(Sampler<'_>, &RowStats, Option<&Structure>, &mut Probes) -> Result<(), Error>,
}

impl Probes {
    /// Adds the measurement of a format.
    pub(crate) fn add(&mut self, probe: impl Probe) {
        self.0.push(Arc::new(probe));
    }

    /// The measurement of this type.
    pub(crate) fn get<P: Any>(&self) -> Option<&P> {
        self.0.iter().find_map(|probe| (&**probe as &dyn Any).downcast_ref())
    }
}

impl PartialEq for Probes {
    fn eq(&self, other: &Self) -> bool {
        let pairs = || self.0.iter().zip(&other.0);
        self.0.len() == other.0.len() && pairs().all(|(a, b)| a.equals(&**b as &dyn Any))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_found_by_its_type_and_compared_by_its_value() {
        let probes = |a: u8, b: f32| {
            let mut probes = Probes::default();
            probes.add(a);
            probes.add(b);
            probes
        };
        assert_eq!((probes(1, 2.0).get(), probes(1, 2.0).get()), (Some(&1u8), Some(&2f32)));
        assert_eq!(probes(1, 2.0).get::<u32>(), None);
        assert_eq!(probes(1, 2.0), probes(1, 2.0));
        assert_ne!(probes(1, 2.0), probes(1, 3.0));
        assert_ne!(probes(1, 2.0), Probes::default());
    }
}
