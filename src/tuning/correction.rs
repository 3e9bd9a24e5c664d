//! Learned corrections of predicted times, for effects that a sum of work terms cannot express, and
//! the uncertainty that is left.
//!
//! The time of a product is not only a sum: loads overlap, short launches do not fill a device, and
//! the efficiency of a kernel depends on the row lengths. For every kernel the logarithm of
//! measured over predicted time is a sum of curves, one for each feature of the matrix and the
//! plan, linear between a few points and constant outside the measured range. The features are on a
//! scale on which a step is a doubling, except for shares.

use super::features::MatrixFeatures;
use crate::ScalarKind;
use crate::formats::Work;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display};

/// A feature of the correction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// Number of rows.
    Rows,
    /// Mean number of entries per row.
    Mean,
    /// Length of the longest row over the mean.
    Longest,
    /// Bytes of a product over the size of the last-level cache.
    Bytes,
    /// Bytes of `x` and `y` over the size of the last-level cache.
    Vectors,
    /// Share of the gathers whose group of columns was touched within 2¹⁰ entries.
    Within1k,
    /// Share of the gathers whose group of columns was touched within 2¹⁶ entries.
    Within64k,
    /// Share of entries whose column follows that of the entry before.
    Contiguous,
    /// Rows whose length differs from that of the row before, over rows.
    Changes,
    /// Rows without entries, over rows.
    Empty,
    /// Stored slots over entries.
    Padding,
    /// Largest number of slots of one thread.
    CriticalPath,
}

/// Values of all features, in the order of [`Feature::ALL`].
pub type Features = [f64; Feature::COUNT];

impl Feature {
    /// Number of features.
    pub const COUNT: usize = 12;

    /// All features.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Rows,
        Self::Mean,
        Self::Longest,
        Self::Bytes,
        Self::Vectors,
        Self::Within1k,
        Self::Within64k,
        Self::Contiguous,
        Self::Changes,
        Self::Empty,
        Self::Padding,
        Self::CriticalPath,
    ];
}

impl Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rows => "the number of rows",
            Self::Mean => "the mean row length",
            Self::Longest => "the longest row over the mean",
            Self::Bytes => "the bytes of a product",
            Self::Vectors => "the bytes of the vectors",
            Self::Within1k => "the share of columns used again within 2^10 entries",
            Self::Within64k => "the share of columns used again within 2^16 entries",
            Self::Contiguous => "the share of contiguous columns",
            Self::Changes => "the share of rows unlike the row before",
            Self::Empty => "the share of empty rows",
            Self::Padding => "the padding ratio",
            Self::CriticalPath => "the slots of one thread",
        })
    }
}

/// Computes the features of a plan's product on a device with a last-level cache of `cache_bytes`.
pub fn correction_features(work: &Work, features: &MatrixFeatures, cache_bytes: f64) -> Features {
    /// Number of parts of the cache in which bytes are counted. Sizes below one part are not
    /// distinguished.
    const PARTS: f64 = 64.0;
    let steps = |number: f64| (number + 1.0).log2();
    let rows = features.nrows.max(1) as f64;
    let bytes = |bytes: u64| steps(bytes as f64 / cache_bytes * PARTS);
    [
        steps(features.nrows as f64),
        steps(features.mean),
        steps(f64::from(features.max) / features.mean.max(f64::MIN_POSITIVE).max(1.0 / rows)),
        bytes(work.bytes()),
        bytes(work.vector_bytes),
        features.reuse.share_within(1024.0),
        features.reuse.share_within(65_536.0),
        features.contiguous,
        features.changes as f64 / rows,
        features.empty_rows as f64 / rows,
        steps(work.padding_ratio(features.nnz)),
        steps(work.critical_path as f64),
    ]
}

/// Learned corrections of a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Correction {
    /// Largest absolute natural logarithm of a factor.
    pub limit: f32,
    /// Correction of every kernel with enough measurements.
    pub kernels: BTreeMap<ScalarKind, BTreeMap<String, KernelCorrection>>,
}

/// Correction of a kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelCorrection {
    /// Standard deviation of the logarithm of measured over predicted time, of predictions for
    /// matrices that were held out.
    pub spread: f32,
    /// Logarithm of the factor where every curve is 0.
    pub bias: f32,
    /// For each feature that varies: its values, ascending, with the logarithms to be added.
    pub curves: BTreeMap<Feature, Vec<(f32, f32)>>,
}

impl Correction {
    /// Correction of a kernel, if it has one.
    pub fn of(&self, scalar: ScalarKind, kernel: &str) -> Option<&KernelCorrection> {
        self.kernels.get(&scalar)?.get(kernel)
    }

    /// The largest uncertainty of a kernel.
    pub(super) fn largest_spread(&self, scalar: ScalarKind) -> f64 {
        let kernels = self.kernels.get(&scalar).into_iter().flat_map(BTreeMap::values);
        kernels.map(|kernel| f64::from(kernel.spread)).fold(0.0, f64::max)
    }

    /// True if all factors are finite and above 0.
    pub fn is_valid(&self) -> bool {
        /// Largest logarithm of a factor; no factor above e¹⁰ is known.
        const MAX: f32 = 10.0;
        let is_valid = |kernel: &KernelCorrection| {
            let points = kernel.curves.values().flatten();
            let mut numbers = points.flat_map(|&(value, log)| [value, log]);
            let ascends = |curve: &Vec<(f32, f32)>| curve.is_sorted_by(|a, b| a.0 < b.0);
            numbers.all(f32::is_finite)
                && kernel.bias.is_finite()
                && (0.0..=KernelCorrection::MAX_SPREAD).contains(&kernel.spread)
                && kernel.curves.values().all(|curve| !curve.is_empty() && ascends(curve))
        };
        (0.0..=MAX).contains(&self.limit)
            && self.kernels.values().flat_map(BTreeMap::values).all(is_valid)
    }
}

impl KernelCorrection {
    /// Upper limit of an uncertainty: nothing is known of a time that may be seven times as long.
    pub const MAX_SPREAD: f32 = 2.0;

    /// Logarithm of the factor for the sum of a kernel's terms.
    pub fn log(&self, values: &Features) -> f64 {
        let curves = self.curves.iter();
        let logs = curves.map(|(feature, curve)| on_curve(curve, values[*feature as usize]));
        f64::from(self.bias) + logs.sum::<f64>()
    }

    /// The feature that is farthest outside the measured range, relative to its size; `None` if
    /// all are inside.
    pub fn outside(&self, values: &Features) -> Option<Feature> {
        /// Relative distance that is not worth mentioning.
        const NEAR: f64 = 0.05;
        let distance = |(feature, curve): (&Feature, &Vec<(f32, f32)>)| {
            let (low, high) = (f64::from(curve.first()?.0), f64::from(curve.last()?.0));
            let value = values[*feature as usize];
            let beyond =
                (low - value).max(value - high) / (high - low).max(f64::from(f32::EPSILON));
            (beyond > NEAR).then_some((beyond, *feature))
        };
        let farthest = self.curves.iter().filter_map(distance).max_by(|a, b| a.0.total_cmp(&b.0));
        farthest.map(|(_, feature)| feature)
    }
}

/// Value of a curve: linear between its points and constant outside.
fn on_curve(curve: &[(f32, f32)], at: f64) -> f64 {
    let above = curve.partition_point(|point| f64::from(point.0) <= at);
    let point = |i: usize| (f64::from(curve[i].0), f64::from(curve[i].1));
    match above {
        0 => curve.first().map_or(0.0, |first| f64::from(first.1)),
        above if above == curve.len() => point(above - 1).1,
        above => {
            let ((x0, y0), (x1, y1)) = (point(above - 1), point(above));
            y0 + (y1 - y0) * (at - x0) / (x1 - x0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn correction() -> Correction {
        let curves = BTreeMap::from([
            (Feature::Empty, vec![(0.0, 0.5), (0.5, 1.0), (1.0, -1.0)]),
            (Feature::Rows, vec![(2.0, -2.0), (3.0, -3.0)]),
        ]);
        let kernel = KernelCorrection { spread: 0.1, bias: 0.5, curves };
        let kernels = BTreeMap::from([("ell".to_owned(), kernel)]);
        Correction { limit: 4.0, kernels: BTreeMap::from([(ScalarKind::F32, kernels)]) }
    }

    fn values(empty: f64, rows: f64) -> Features {
        let mut values = [0.0; Feature::COUNT];
        values[Feature::Empty as usize] = empty;
        values[Feature::Rows as usize] = rows;
        values
    }

    #[test]
    fn curves_are_linear_between_their_points_and_constant_outside() {
        let correction = correction();
        let kernel = correction.of(ScalarKind::F32, "ell").unwrap();
        let at = |empty: f64, rows: f64| kernel.log(&values(empty, rows));
        assert!((at(0.5, 2.5) + 1.0).abs() < 1e-6 && (at(0.25, 2.0) + 0.75).abs() < 1e-6);
        assert_eq!((at(7.0, -100.0), at(-1.0, 100.0)), (at(1.0, 2.0), at(0.0, 3.0)));
        assert_eq!(correction.of(ScalarKind::F64, "ell"), None);
        assert_eq!(correction.of(ScalarKind::F32, "coo"), None);
    }

    #[test]
    fn the_feature_farthest_outside_is_named() {
        let correction = correction();
        let kernel = correction.of(ScalarKind::F32, "ell").unwrap();
        let outside = |empty: f64, rows: f64| kernel.outside(&values(empty, rows));
        assert_eq!((outside(0.0, 3.0), outside(1.04, 2.0)), (None, None));
        assert_eq!(outside(1.2, 2.5), Some(Feature::Empty));
        assert_eq!(outside(1.2, 1.5), Some(Feature::Rows));
    }

    #[test]
    fn corrections_without_a_factor_are_invalid() {
        let change = |f: &dyn Fn(&mut Correction, &mut KernelCorrection)| {
            let mut changed = correction();
            let mut kernel = changed.of(ScalarKind::F32, "ell").unwrap().clone();
            f(&mut changed, &mut kernel);
            changed.kernels.get_mut(&ScalarKind::F32).unwrap().insert("ell".to_owned(), kernel);
            changed.is_valid()
        };
        assert!(change(&|_, _| ()));
        assert!(!change(&|c, _| c.limit = f32::INFINITY));
        assert!(!change(&|_, kernel| kernel.bias = f32::NAN));
        assert!(!change(&|_, kernel| kernel.spread = -0.1));
        assert!(!change(&|_, kernel| kernel.spread = 2.1));
        let rows = |points: &[(f32, f32)]| {
            change(&|_, kernel| drop(kernel.curves.insert(Feature::Rows, points.to_vec())))
        };
        assert!(rows(&[(1.0, 1.0)]));
        assert!(!rows(&[]));
        assert!(!rows(&[(1.0, 0.0), (1.0, 0.5)]));
        assert!(!rows(&[(1.0, 0.0), (2.0, f32::NAN)]));
        assert!(!rows(&[(1.0, 0.0), (f32::INFINITY, 0.0)]));
    }

    #[test]
    fn features_of_nothing_are_numbers() {
        let values = correction_features(&Work::default(), &MatrixFeatures::default(), 1e6);
        assert!(values.iter().all(|v| v.is_finite()), "{values:?}");
        assert!(Feature::ALL.iter().enumerate().all(|(i, f)| *f as usize == i));
    }
}
