//! Learned correction factors of kernels, for effects that a sum of work terms cannot express.
//!
//! The time of a product is not only a sum: loads overlap, short launches do not fill a device, and
//! the efficiency of a kernel depends on the row lengths. The residual logarithm of the time is
//! fitted by ridge regression on a few features of the matrix and the plan, each on a scale on
//! which a step is a doubling. A profile has such a factor only if it lowers the held-out regret.

use super::features::MatrixFeatures;
use crate::ScalarKind;
use crate::formats::Work;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A feature of the correction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// Number of rows.
    Rows,
    /// Mean number of entries per row.
    Mean,
    /// Coefficient of variation of the row lengths.
    Variation,
    /// Length of the longest row over the mean.
    Longest,
    /// Bytes of a product over the size of the last-level cache.
    Bytes,
    /// Bytes of `x` and `y` over the size of the last-level cache.
    Vectors,
    /// Share of the gathers whose group of columns was touched within 2⁶ entries.
    Within64,
    /// The same for 2¹⁰ entries.
    Within1k,
    /// The same for 2¹³ entries.
    Within8k,
    /// The same for 2¹⁶ entries.
    Within64k,
    /// The same for 2²⁰ entries.
    Within1M,
    /// Share of entries whose column is that of the row above, shifted by one.
    Affine,
    /// Share of entries whose column follows that of the entry before.
    Runs,
    /// Rows whose length differs from that of the row before, over rows.
    Changes,
    /// Rows without entries, over rows.
    Empty,
    /// Gini coefficient of the row lengths.
    Gini,
    /// Stored slots over entries.
    Padding,
    /// Largest number of slots of one thread.
    CriticalPath,
    /// Slots with an addition that depends on the slot before, over entries.
    DependentAdd,
    /// Entries of the COO part, over entries.
    Tail,
    /// Slices, sections and diagonals, over entries.
    Groups,
    /// Distance between the places of consecutive row sums, over rows.
    Scattered,
}

/// Values of all features, in the order of [`Feature::ALL`].
pub type Features = [f64; Feature::COUNT];

impl Feature {
    /// Number of features.
    pub const COUNT: usize = 22;

    /// All features.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Rows,
        Self::Mean,
        Self::Variation,
        Self::Longest,
        Self::Bytes,
        Self::Vectors,
        Self::Within64,
        Self::Within1k,
        Self::Within8k,
        Self::Within64k,
        Self::Within1M,
        Self::Affine,
        Self::Runs,
        Self::Changes,
        Self::Empty,
        Self::Gini,
        Self::Padding,
        Self::CriticalPath,
        Self::DependentAdd,
        Self::Tail,
        Self::Groups,
        Self::Scattered,
    ];
}

/// Computes the features of a plan's product on a device with a last-level cache of `cache_bytes`.
pub fn correction_features(work: &Work, features: &MatrixFeatures, cache_bytes: f64) -> Features {
    /// Number of parts of the cache in which bytes are counted. Sizes below one part are not
    /// distinguished.
    const PARTS: f64 = 64.0;
    let steps = |number: f64| (number + 1.0).log2();
    let (rows, entries) = (features.nrows.max(1) as f64, features.nnz.max(1) as f64);
    let within = |entries| features.reuse.share_within(entries);
    let bytes = |bytes: u64| steps(bytes as f64 / cache_bytes * PARTS);
    [
        steps(features.nrows as f64),
        steps(features.mean),
        steps(features.cv),
        steps(f64::from(features.max) / features.mean.max(f64::MIN_POSITIVE).max(1.0 / rows)),
        bytes(work.bytes()),
        bytes(work.vector_bytes),
        within(64.0),
        within(1024.0),
        within(8192.0),
        within(65_536.0),
        within(1_048_576.0),
        features.shifted,
        features.runs,
        features.changes as f64 / rows,
        features.empty_rows as f64 / rows,
        features.gini,
        steps(work.padding_ratio(features.nnz)),
        steps(work.critical_path as f64),
        work.dependent_adds as f64 / entries,
        work.tail as f64 / entries,
        work.groups as f64 / entries,
        steps(work.scattered as f64 / rows),
    ]
}

/// Learned correction factors of a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Correction {
    /// The features, in the order of the weights.
    pub features: Vec<Feature>,
    /// Least and largest measured value of each feature. Values outside are clamped to this range.
    pub ranges: Vec<(f32, f32)>,
    /// Largest absolute natural logarithm of a factor.
    pub limit: f32,
    /// For each kernel, the logarithm of the factor at features of 0, and its slope for each
    /// feature.
    pub weights: BTreeMap<ScalarKind, BTreeMap<String, (f32, Vec<f32>)>>,
}

impl Correction {
    /// Factor for the sum of a kernel's terms; 1 for a kernel with too few measurements.
    pub fn factor(&self, scalar: ScalarKind, kernel: &str, values: &Features) -> f64 {
        let Some((bias, weights)) =
            self.weights.get(&scalar).and_then(|kernels| kernels.get(kernel))
        else {
            return 1.0;
        };
        let value = |(feature, (low, high)): (&Feature, &(f32, f32))| {
            values[*feature as usize].clamp(f64::from(*low), f64::from(*high))
        };
        let values = self.features.iter().zip(&self.ranges).map(value);
        let sum: f64 =
            weights.iter().zip(values).map(|(weight, value)| f64::from(*weight) * value).sum();
        let limit = f64::from(self.limit);
        (f64::from(*bias) + sum).clamp(-limit, limit).exp()
    }

    /// True if all factors are finite and above 0.
    pub fn is_valid(&self) -> bool {
        /// No factor above e¹⁰ is known.
        const MOST: f32 = 10.0;
        let ranges = self
            .ranges
            .iter()
            .all(|(low, high)| low.is_finite() && high.is_finite() && low <= high);
        let weights = self.weights.values().flatten().all(|(_, (bias, weights))| {
            weights.len() == self.features.len()
                && weights.iter().chain([bias]).all(|w| w.is_finite())
        });
        ranges
            && weights
            && self.ranges.len() == self.features.len()
            && (0.0..=MOST).contains(&self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn correction() -> Correction {
        let weights = BTreeMap::from([("ell".to_owned(), (0.5, vec![1.0, -2.0]))]);
        Correction {
            features: vec![Feature::Gini, Feature::Rows],
            ranges: vec![(0.0, 1.0), (2.0, 3.0)],
            limit: 4.0,
            weights: BTreeMap::from([(ScalarKind::F32, weights)]),
        }
    }

    #[test]
    fn factors_stay_within_the_measured_range() {
        let correction = correction();
        let at = |gini: f64, rows: f64| {
            let mut values = [0.0; Feature::COUNT];
            values[Feature::Gini as usize] = gini;
            values[Feature::Rows as usize] = rows;
            correction.factor(ScalarKind::F32, "ell", &values).ln()
        };
        assert!((at(0.5, 2.5) + 4.0).abs() < 1e-9 && (at(1.0, 2.0) + 2.5).abs() < 1e-9);
        assert_eq!((at(7.0, -100.0), at(0.0, 100.0)), (at(1.0, 2.0), -4.0));
        assert_eq!(correction.factor(ScalarKind::F64, "ell", &[1.0; Feature::COUNT]), 1.0);
        assert_eq!(correction.factor(ScalarKind::F32, "coo", &[1.0; Feature::COUNT]), 1.0);
    }

    #[test]
    fn corrections_without_a_factor_are_invalid() {
        let change = |f: &dyn Fn(&mut Correction)| {
            let mut changed = correction();
            f(&mut changed);
            changed.is_valid()
        };
        assert!(change(&|_| ()));
        assert!(!change(&|c| c.ranges[0].1 = f32::NAN));
        assert!(!change(&|c| c.ranges[0] = (1.0, 0.0)));
        assert!(!change(&|c| c.limit = f32::INFINITY));
        assert!(!change(&|c| c.ranges.truncate(1)));
        let weights = |c: &mut Correction, weights| {
            c.weights.get_mut(&ScalarKind::F32).unwrap().get_mut("ell").unwrap().1 = weights;
        };
        assert!(!change(&|c| weights(c, vec![1.0])));
        assert!(!change(&|c| weights(c, vec![1.0, f32::NAN])));
    }

    #[test]
    fn features_of_nothing_are_numbers() {
        let values = correction_features(&Work::default(), &MatrixFeatures::default(), 1e6);
        assert!(values.iter().all(|v| v.is_finite()), "{values:?}");
        assert!(Feature::ALL.iter().enumerate().all(|(i, f)| *f as usize == i));
    }
}
