//! Plans of packed SELL: their spelling, their kernels, and the candidate encodings.

use super::{Order, SliceProbe};
use crate::analysis::{Analysis, Distinct};
use crate::formats::{PlanArgs, Target, ValueEncoding};
use crate::{Error, Precision};
use std::fmt::{self, Display};

/// Plan `psell(sigma:S)`, with `values`, `group`, `split` and `warps` unless they are the defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PsellPlan {
    /// Number of rows per window sorted by length; 1 sorts nothing.
    sigma: u32,
    packing: Packing,
}

/// Encoding of the slots, and their division among the warps of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packing {
    /// Encoding of the values.
    pub(crate) values: ValueEncoding,
    /// Slots of a row that are stored adjacently if every row of the slice has them: 1 or 4.
    pub(crate) group: u32,
    /// Rows with more entries are long rows, stored outside of the slices; at most
    /// [`Packing::MAX_SPLIT`].
    pub(crate) split: u32,
    pub(crate) warps: SliceWarps,
}

/// Number of warps of a GPU that multiply a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SliceWarps {
    /// Several if there are few slices.
    Auto,
    /// One: the bits of a row depend on the rows of its slice alone.
    One,
}

/// Suffix of the names of kernels that also multiply separate long rows.
const SPLIT_ROWS: &str = ".split";

/// Values of `warps`.
const WARPS: &[(&str, SliceWarps)] = &[("auto", SliceWarps::Auto), ("1", SliceWarps::One)];

impl Packing {
    /// Length of the longest rows that slices can hold.
    pub(crate) const MAX_SPLIT: u32 = super::index::MAX_WIDTH;

    /// Allowed values of [`group`](Self::group).
    pub(crate) const GROUPS: [u32; 2] = [1, 4];
}

impl Default for Packing {
    /// Plain values, one slot at a time, all rows in slices that slices can hold.
    fn default() -> Self {
        let (values, warps) = (ValueEncoding::Plain, SliceWarps::Auto);
        Self { values, group: 1, split: Self::MAX_SPLIT, warps }
    }
}

/// Error of a matrix that needs more than `limit` bytes of `what`, whose positions are 32-bit
/// numbers.
pub(super) fn too_large(what: &str, limit: u64) -> Error {
    let message = format!("it would have more than {limit} bytes of {what}; choose another format");
    Error::PlanLimit { plan: "psell".to_owned(), message }
}

impl PsellPlan {
    /// Window of [`PsellPlan::default`].
    const SIGMA: u32 = 512;

    /// Creates a plan.
    ///
    /// # Errors
    ///
    /// [`Error::PlanText`] if `sigma` is 0, `group` is not 1 or 4, or `split` is more than a slice
    /// can hold.
    #[doc(hidden)]
    pub fn new(sigma: u32, values: ValueEncoding, group: u32, split: u32) -> Result<Self, Error> {
        // The spelling has the checks.
        let plan = Self::of(sigma, Packing { values, group, split, ..Packing::default() });
        match format!("psell{plan}").parse()? {
            super::super::Plan::Psell(plan) => Ok(plan),
            _ => unreachable!("its spelling names its format"),
        }
    }

    /// Plan with a packing whose parameters are admissible.
    pub(super) fn of(sigma: u32, packing: Packing) -> Self {
        Self { sigma, packing }
    }

    /// The same plan with one warp per slice.
    #[doc(hidden)]
    #[must_use]
    pub fn with_one_warp(self) -> Self {
        Self { packing: Packing { warps: SliceWarps::One, ..self.packing }, ..self }
    }

    /// Plan for SpMM with an analysed matrix, like the fastest one for SpMV, with four slots stored
    /// together.
    pub(crate) fn for_spmm(analysis: &Analysis, fastest: Option<&Self>) -> Self {
        let packing = Packing { split: SliceProbe::of(analysis).split, ..Packing::default() };
        let fastest = *fastest.unwrap_or(&Self { sigma: Self::SIGMA, packing });
        Self { packing: Packing { group: 4, ..fastest.packing }, ..fastest }
    }

    /// Number of units of vectors of one launch of SpMM. For more, CSR reads the matrix fewer
    /// times, and is faster for 16 units: docs/history/2026-11-30-spmm-by-rows.md.
    pub(crate) const SPMM_UNITS: usize = 8;

    /// True if SpMM is slower with packed SELL than with CSR: there are too few slices for all
    /// warps, rows are so short that most of the time goes to results, or many slots are masked,
    /// which cost every vector. Measured on an H200 with 8 and 32 vectors:
    /// docs/history/2026-11-30-spmm-by-groups.md.
    pub(crate) fn is_slow_for_spmm(analysis: &Analysis) -> bool {
        /// Least number of entries, and least mean row length.
        const ENTRIES: u64 = 1 << 21;
        const MEAN: f64 = 6.0;
        /// Largest number of masked slots per entry.
        const MASKED: f64 = 0.05;
        let rows = &analysis.rows;
        if rows.nnz < ENTRIES || rows.mean < MEAN {
            return true;
        }
        let probe = SliceProbe::of(analysis);
        let order = Order::Windows(Self::SIGMA as usize);
        let sizes = probe.sizes(rows, order, probe.split);
        sizes.masked_slots as f64 > MASKED * sizes.entries as f64
    }

    /// True if SpMM with up to [`SPMM_UNITS`](Self::SPMM_UNITS) is faster with packed SELL than
    /// with CSR: rows that a warp multiplies together also share elements of `x`, but are no
    /// [i-nodes](Self::has_inodes). Measured with [`is_slow_for_spmm`](Self::is_slow_for_spmm).
    pub(crate) fn is_fast_for_spmm(analysis: &Analysis) -> bool {
        /// Reuse distance, in entries, below which the L1 has an element, and least share of such
        /// gathers.
        const NEAR: f64 = 256.0;
        const SHARED: f64 = 0.7;
        let shared = analysis.structure.reuse.share_within(NEAR);
        shared >= SHARED && !Self::has_inodes(analysis) && !Self::is_slow_for_spmm(analysis)
    }

    /// True if consecutive rows seem to have the same columns, those of dense blocks, so that CSR
    /// is faster with several units of vectors: docs/history/2026-11-30-spmm-by-rows.md.
    pub(crate) fn has_inodes(analysis: &Analysis) -> bool {
        /// Least share of contiguous entries, and largest share of shifted ones. Finite elements
        /// with three unknowns per node have at least 0.67 and 0, stencils 0.66 and 0.9.
        const CONTIGUOUS: f64 = 0.6;
        const SHIFTED: f64 = 0.1;
        let structure = &analysis.structure;
        structure.contiguous >= CONTIGUOUS && structure.shifted <= SHIFTED
    }

    /// Number of rows per window sorted by length; 1 sorts nothing.
    #[doc(hidden)]
    pub fn sigma(&self) -> u32 {
        self.sigma
    }

    /// Encoding of the values.
    #[doc(hidden)]
    pub fn values(&self) -> ValueEncoding {
        self.packing.values
    }

    /// Slots of a row that are stored adjacently if every row of the slice has them: 1 or 4.
    #[doc(hidden)]
    pub fn group(&self) -> u32 {
        self.packing.group
    }

    /// Length beyond which rows are stored outside of the slices.
    #[doc(hidden)]
    pub fn split(&self) -> u32 {
        self.packing.split
    }

    /// Encoding of the slots.
    pub(super) fn packing(&self) -> Packing {
        self.packing
    }

    /// Order of the rows.
    pub(super) fn order(&self) -> Order {
        if self.sigma > 1 { Order::Windows(self.sigma as usize) } else { Order::Natural }
    }

    /// Parses the arguments between the parentheses.
    pub(super) fn parse(args: &mut PlanArgs<'_>) -> Result<Self, Error> {
        let default = Packing::default();
        let sigma = args.number("sigma")?.unwrap_or(Self::SIGMA);
        let values = args.word("values", ValueEncoding::WORDS)?.unwrap_or(default.values);
        let group = args.number("group")?.unwrap_or(default.group);
        let split = args.number("split")?.unwrap_or(default.split);
        let warps = args.word("warps", WARPS)?.unwrap_or(default.warps);
        if !Packing::GROUPS.contains(&group) {
            return Err(args.error(format!("`group` may be 1 or 4, not {group}")));
        }
        if split > Packing::MAX_SPLIT {
            let most = Packing::MAX_SPLIT;
            return Err(args.error(format!("`split` may be at most {most}, not {split}")));
        }
        Ok(Self { sigma, packing: Packing { values, group, split, warps } })
    }

    /// Cost key, by the order of the rows, the encoding of the values and the group; with the
    /// suffix [`SPLIT_ROWS`] if long rows that a slice could hold are stored separately.
    pub(super) fn cost_key(&self) -> &'static str {
        /// Names of an encoding: for natural order and sorted rows, groups of 1 and of 4, without
        /// and with separate long rows.
        macro_rules! names {
            ($encoding:literal) => {
                names!(@orders "psell", "psell.sorted", $encoding)
            };
            (@orders $natural:literal, $sorted:literal, $encoding:literal) => {
                [names!(@groups $natural, $encoding), names!(@groups $sorted, $encoding)]
            };
            (@groups $order:literal, $encoding:literal) => {
                [
                    [concat!($order, $encoding), concat!($order, $encoding, ".split")],
                    [concat!($order, $encoding, ".v4"), concat!($order, $encoding, ".v4.split")],
                ]
            };
        }
        let Packing { values, group, split, .. } = self.packing;
        let names = match values {
            ValueEncoding::Plain => names!(""),
            ValueEncoding::Packed => names!(".dict"),
            ValueEncoding::Narrow(Precision::Bf16) => names!(".bf16"),
            ValueEncoding::Narrow(Precision::F16) => names!(".f16"),
            ValueEncoding::Narrow(Precision::F32) => names!(".f32"),
        };
        let sorted = usize::from(self.order() != Order::Natural);
        names[sorted][usize::from(group != 1)][usize::from(split < Packing::MAX_SPLIT)]
    }

    /// Kernel that is packed like the plan on a GPU: values of fewer bytes are packed by the host
    /// and uploaded like those of plain SELL.
    pub(super) fn packing_like(&self) -> Option<&'static str> {
        let is_narrow = matches!(self.packing.values, ValueEncoding::Narrow(_));
        is_narrow.then_some(if self.order() == Order::Natural { "sell" } else { "sell.sorted" })
    }
}

impl Default for PsellPlan {
    /// `psell(sigma:512)`.
    fn default() -> Self {
        Self { sigma: Self::SIGMA, packing: Packing::default() }
    }
}

impl Display for PsellPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Packing { values, group, split, warps }, default) = (self.packing, Packing::default());
        write!(f, "(sigma:{}", self.sigma)?;
        if values != default.values {
            write!(f, ",values:{values}")?;
        }
        if group != default.group {
            write!(f, ",group:{group}")?;
        }
        if split != default.split {
            write!(f, ",split:{split}")?;
        }
        if warps == SliceWarps::One {
            f.write_str(",warps:1")?;
        }
        f.write_str(")")
    }
}

/// Cost keys of the fallback kernels of one that was not measured, the nearest first: without
/// separate long rows, with unchanged values, which differ only in bytes, and with neither.
pub(super) fn fallback_cost_keys(key: &str) -> Vec<String> {
    let full_width = Precision::ALL.iter().find_map(|precision| {
        let (order, rest) = key.split_once(&format!(".{precision}"))?;
        Some(format!("{order}{rest}"))
    });
    let unsplit = |key: &str| key.strip_suffix(SPLIT_ROWS).map(str::to_owned);
    let full_width_unsplit = full_width.as_deref().and_then(unsplit);
    unsplit(key).into_iter().chain(full_width).chain(full_width_unsplit).collect()
}

/// Candidate encodings: on the CPU single slots, which are vectors; on a GPU also four consecutive
/// slots of a row, which a thread loads together, and codes only in this form. Values are packed if
/// there are few distinct ones; if there are many and a type of fewer bytes holds them, that type
/// is a candidate too. Rows that are much longer than others are stored separately.
pub(super) fn candidates(analysis: &Analysis, on: Target) -> Vec<Packing> {
    let (plain, packed): (&[u32], &[u32]) = match on {
        Target::Cpu => (&[1], &[1]),
        Target::Gpu => (&[1, 4], &[4]),
    };
    let few = analysis.structure.distinct_values != Distinct::Many;
    let packed = if few { packed } else { &[] };
    let narrowest = if few { None } else { analysis.structure.exact_in.narrowest() };
    let with = |values| plain.iter().map(move |&group| (values, group));
    let all = with(ValueEncoding::Plain)
        .chain(packed.iter().map(|&group| (ValueEncoding::Packed, group)));
    let all = all.chain(narrowest.map(ValueEncoding::Narrow).into_iter().flat_map(with));
    let split = SliceProbe::of(analysis).split;
    let default = Packing::default();
    all.map(|(values, group)| Packing { values, group, split, ..default }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::Plan;
    use crate::matrix::gallery;

    #[test]
    fn defaults_are_left_out_but_for_the_window() {
        let spelled = |text: &str| text.parse::<Plan>().map(|p| p.to_string());
        assert_eq!(spelled("psell").unwrap(), "psell(sigma:512)");
        let all = "psell(sigma:1,values:packed,group:4,split:60,warps:1)";
        assert_eq!(spelled(all).unwrap(), all);
        let most = Packing::MAX_SPLIT;
        let default = format!("psell(sigma:7,values:plain,group:1,split:{most},warps:auto)");
        assert_eq!(spelled(&default).unwrap(), "psell(sigma:7)");
        for wrong in [
            "psell(group:2)",
            "psell(warps:2)",
            "psell(sigma:0)",
            "psell(c:32)",
            "psell(index:packed)",
        ] {
            assert!(spelled(wrong).is_err(), "{wrong}");
        }
        assert!(spelled(&format!("psell(split:{})", most + 1)).is_err());
    }

    #[test]
    fn several_vectors_have_packed_sell_where_large_rows_share_columns() {
        let plan_for = |units: usize, spec: &str, fastest: Option<&str>| {
            let a = spec.parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
            let fastest = fastest.map(|text| text.parse().unwrap());
            let analysis = Analysis::of(a.view());
            Plan::for_spmm(&analysis, Target::Gpu, units, fastest.as_ref()).to_string()
        };
        let plan = |spec: &str, fastest: Option<&str>| plan_for(1, spec, fastest);
        let narrow = Some("psell(sigma:1,values:bf16)");
        assert_eq!(plan("webbase,rows=20k", None), "csr(balanced)");
        let narrower = "psell(sigma:1,values:bf16,group:4)";
        assert_eq!(plan("webbase,rows=20k", narrow), narrower, "if CSR does not fit");
        let grid = "stencil27,n=45";
        assert_eq!(plan(grid, None), "psell(sigma:512,group:4)");
        assert_eq!(plan(grid, narrow), narrower);
        let csr = Some("csr(vector:4)");
        for (spec, expected) in [
            (grid, "psell(sigma:512,group:4)"),
            ("stencil27,n=20", "csr(balanced)"),
            ("poisson2d,n=700", "csr(balanced)"),
            ("uniform,rows=200k", "csr(balanced)"),
            ("webbase,rows=20k", "csr(balanced)"),
        ] {
            assert_eq!(plan(spec, csr), expected, "{spec}");
            assert_eq!(plan_for(9, spec, csr), "csr(balanced)", "{spec}");
        }
    }

    #[test]
    fn packed_sell_multiplies_as_many_vectors_as_it_is_fast_for() {
        let most = |spec: &str| {
            let a = spec.parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
            let plan: Plan = "psell".parse().unwrap();
            plan.most_own_vectors::<f64>(&Analysis::of(a.view()), Target::Gpu)
        };
        assert_eq!(most("stencil27,n=45"), 16);
        assert_eq!(most("fem3d,n=22"), 4, "rows with the same columns");
        assert_eq!(most("uniform,rows=200k"), 16, "no shared columns");
        assert_eq!(most("stencil27,n=20"), 4, "few slices");
    }

    #[test]
    fn plans_are_checked_when_they_are_made() {
        let new = |sigma, group, split| PsellPlan::new(sigma, ValueEncoding::Packed, group, split);
        assert_eq!(new(3, 4, 9).unwrap().to_string(), "(sigma:3,values:packed,group:4,split:9)");
        assert!([new(0, 4, 9), new(3, 2, 9), new(3, 4, 1 << 20)].iter().all(Result::is_err));
    }

    #[test]
    fn fallback_cost_keys_split_no_rows_and_have_values_of_full_width() {
        assert_eq!(
            fallback_cost_keys("psell.bf16.v4.split"),
            ["psell.bf16.v4", "psell.v4.split", "psell.v4"]
        );
        assert!(fallback_cost_keys("psell.dict").is_empty());
    }

    #[test]
    fn kernels_are_named_after_order_values_group_and_split() {
        let kernel = |text: &str| text.parse::<Plan>().unwrap().cost_key(Target::Gpu);
        assert_eq!(kernel("psell(sigma:1)"), "psell");
        assert_eq!(kernel("psell(sigma:2,split:9)"), "psell.sorted.split");
        assert_eq!(
            kernel("psell(sigma:2,values:packed,group:4,split:9)"),
            "psell.sorted.dict.v4.split"
        );
        assert_eq!(kernel("psell(sigma:1,values:bf16,group:4)"), "psell.bf16.v4");
    }
}
