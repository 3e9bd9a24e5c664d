//! Probes: what storage formats measure of a matrix themselves.

use super::{RowStats, Sampler, Structure};
use crate::Error;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// Results of the probes of the storage formats, one value of a type of its own for each format
/// that has any. The analysis passes them on to the format without knowing it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Probes(Vec<Arc<dyn Probe>>);

/// Result of a format's probe.
pub(crate) trait Probe: Any + Debug + Send + Sync {
    /// True if the other one is of the same type and equal.
    fn equals(&self, other: &dyn Any) -> bool;
}

impl<P: Any + Debug + PartialEq + Send + Sync> Probe for P {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}

/// Function with which a format measures a matrix.
pub(crate) struct FormatProbe {
    pub(crate) measure: Measure,
    /// Kernels, by file and name, that measure a matrix in the memory of a GPU.
    pub(crate) kernels: &'static [(&'static str, &'static str)],
}

/// Function that measures a matrix, and when. Its errors are those of a GPU that has the matrix in
/// its memory.
pub(crate) enum Measure {
    /// Without the structure of columns and values, while that is measured.
    BeforeStructure(BeginProbe),
    /// With this structure, afterwards.
    AfterStructure(fn(Sampler<'_>, &RowStats, &Structure, &mut Probes) -> Result<(), Error>),
}

/// Function that takes samples of a matrix, and lets a GPU that has it in its memory begin. Returns
/// what measures the samples, so that the GPU does other work meanwhile.
pub(crate) type BeginProbe = for<'a> fn(Sampler<'a>, &'a RowStats) -> Result<EndProbe<'a>, Error>;

/// Function that ends what [`BeginProbe`] has begun.
pub(crate) type EndProbe<'a> = Box<dyn FnOnce(&mut Probes) -> Result<(), Error> + 'a>;

/// Begins what formats measure while the structure is not known.
///
/// # Errors
///
/// Errors of a GPU that has the matrix in its memory.
pub(super) fn begin<'a>(
    formats: &[Option<FormatProbe>],
    a: Sampler<'a>,
    rows: &'a RowStats,
) -> Result<Vec<EndProbe<'a>>, Error> {
    let begins = formats.iter().flatten().filter_map(|format| match format.measure {
        Measure::BeforeStructure(begin) => Some(begin),
        Measure::AfterStructure(_) => None,
    });
    begins.map(|begin| begin(a, rows)).collect()
}

impl Probes {
    /// The probes that were begun.
    ///
    /// # Errors
    ///
    /// Errors of a GPU that has the matrix in its memory.
    pub(super) fn of(begun: Vec<EndProbe<'_>>) -> Result<Self, Error> {
        let mut probes = Self::default();
        begun.into_iter().try_for_each(|rest| rest(&mut probes))?;
        Ok(probes)
    }

    /// Adds what formats measure once the structure is known.
    ///
    /// # Errors
    ///
    /// Errors of a GPU that has the matrix in its memory.
    pub(super) fn measure(
        &mut self,
        formats: &[Option<FormatProbe>],
        a: Sampler<'_>,
        rows: &RowStats,
        structure: &Structure,
    ) -> Result<(), Error> {
        for format in formats.iter().flatten() {
            if let Measure::AfterStructure(measure) = format.measure {
                measure(a, rows, structure, self)?;
            }
        }
        Ok(())
    }

    /// Adds the result of a format's probe.
    pub(crate) fn add(&mut self, probe: impl Probe) {
        self.0.push(Arc::new(probe));
    }

    /// The result of this type.
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
