//! HYB, a hybrid: the first `ell_width` entries of every row in ELL, the rest in COO.
//!
//! ```text
//! 3 . 1 .     ell_width  2             (_ is padding)
//! . . . .     ELL col_idx  0 _ 1 0   2 _ 2 3      COO row_idx  2
//! . 2 4 1         values   3 _ 2 1   1 _ 4 1          col_idx  3
//! 1 . . 1                                             values   1
//! ```
//!
//! Invariants: those of ELL and of COO; a row has entries in the COO part only if its ELL slots are
//! full, and they are its last.
//!
//! With `tail:host` a GPU multiplies the ELL part while the host multiplies the COO part, which
//! stays in host memory; its sums are added afterwards. Such an SpMV waits for `x` to be copied to
//! the host and for the end. It is not enqueued like others: it cannot be captured in a graph, and
//! blocks until it is done, so that one is done at a time. It is never chosen automatically, only
//! used on request. On the CPU `tail:host` has no effect.
//!
//! The working memory on a GPU is that of the COO part. There is no kernel with the axpby epilogue.
//!
//! Source: Bell & Garland, SC'09, §4.4; Kirk & Hwu, *Programming Massively Parallel Processors*,
//! chapter "Sparse Matrix Computation" (the tail on the host). The rules for the width are in
//! [`Width`].
#![doc = include_str!("operations.md")]

mod access;
mod cuda;
mod width;

pub use width::{Rule, Width, fastest};

use super::{
    Access, Costs, DeviceMatrix, Format, HostMatrix, HostValueArrays, PlanArgs, PlanProperties,
    Target, ValueArrays, Work,
    coo::{self, HostCoo},
    critical_path_us,
    ell::{self, HostEll},
    megabytes, millions,
};
use crate::analysis::{Analysis, Histogram};
use crate::device::Gpu;
use crate::matrix::{CsrMatrix, CsrView};
use crate::memory::listed;
use crate::{Error, Scalar, ScalarKind};
use std::fmt::{self, Display};

/// Kernel whose two parts are on one device.
const KERNEL: &str = "hyb";

/// The HYB format.
pub(crate) struct Hyb;

/// Plan `hyb(width:N)` or `hyb(width:RULE)`, each optionally with `tail:host`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HybPlan {
    /// Number of entries of a row in the ELL part.
    pub width: Width,
    /// Processor that multiplies the rest.
    pub tail: TailProcessor,
}

/// Processor that multiplies the COO part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TailProcessor {
    /// The device that multiplies the ELL part.
    #[default]
    Device,
    /// `tail:host`: the host, on every device.
    Host,
}

/// Values of `tail`.
const TAILS: &[(&str, TailProcessor)] =
    &[("device", TailProcessor::Device), ("host", TailProcessor::Host)];

impl HybPlan {
    /// Returns a plan whose parts are both multiplied on the device.
    pub const fn new(width: Width) -> Self {
        Self { width, tail: TailProcessor::Device }
    }
}

impl Display for HybPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tail = if self.tail == TailProcessor::Host { ",tail:host" } else { "" };
        write!(f, "(width:{}{tail})", self.width)
    }
}

impl Format for Hyb {
    type Plan = HybPlan;
    type Host<T: Scalar> = HostHyb<T>;

    const EXAMPLES: &'static [&'static str] = &[
        "hyb(width:2)",
        "hyb(width:auto)",
        "hyb(width:bell-garland)",
        "hyb(width:ginkgo-imbalance)",
        "hyb(width:ginkgo-bounded)",
        "hyb(width:ginkgo-storage)",
        "hyb(width:ginkgo-auto)",
        "hyb(width:rocsparse-mean)",
        "hyb(width:2,tail:host)",
    ];

    #[cfg(test)]
    fn any_plan() -> proptest::strategy::BoxedStrategy<String> {
        use proptest::prelude::*;
        let tail = prop::sample::select(vec!["", ",tail:host"]);
        (1u32..40, tail).prop_map(|(width, tail)| format!("hyb(width:{width}{tail})")).boxed()
    }

    fn parse(args: &mut PlanArgs<'_>) -> Result<HybPlan, Error> {
        let width = match args.value("width")? {
            None => Width::Rule(Rule::Auto),
            Some(text) if text.starts_with(|c: char| c.is_ascii_digit()) => {
                Width::Fixed(args.to_number("width", text)?)
            }
            Some(text) => Width::Rule(args.to_word("width", text, Rule::WORDS)?),
        };
        Ok(HybPlan { width, tail: args.word("tail", TAILS)?.unwrap_or_default() })
    }

    fn candidates(analysis: &Analysis, costs: Costs<'_>, on: Target) -> Vec<HybPlan> {
        let histogram = &analysis.rows.histogram;
        let published = [Rule::BellGarland, Rule::GinkgoAuto, Rule::RocsparseMean];
        let mut widths = vec![fastest(histogram, costs)];
        widths.extend(published.iter().map(|rule| rule.width(histogram, ScalarKind::F64)));
        widths.sort_unstable();
        widths.dedup();
        // Without a tail it is ELL, without slots it is COO: both are candidates of their own.
        widths.retain(|&w| w > 0 && w < analysis.rows.max);
        let tails = match on {
            Target::Cpu => &[TailProcessor::Device][..],
            Target::Gpu => &[TailProcessor::Device, TailProcessor::Host],
        };
        let of_width = |w| tails.iter().map(move |&tail| HybPlan { width: Width::Fixed(w), tail });
        widths.into_iter().flat_map(of_width).collect()
    }

    fn estimate_us(_: &HybPlan, analysis: &Analysis, work: &Work) -> f64 {
        let rows = 8.2 * millions(analysis.rows.nrows as u64) + 12.7 * millions(work.starts);
        let path = critical_path_us(work, 0.055, 0.063);
        // The COO part is a second launch.
        8.5 + 0.125 * megabytes(work) + path + rows + 2.5 * millions(work.outside)
    }

    fn properties(_: &HybPlan) -> PlanProperties {
        // Not eligible on a GPU: on an H200 it is the fastest plan by 3 % on none of 2,125 matrices
        // (docs/adr/028-plans-that-stay.md).
        PlanProperties { eligible_on_gpu: false, ..PlanProperties::default() }
    }

    fn work(plan: &HybPlan, analysis: &Analysis, scalar: ScalarKind) -> Work {
        let histogram = &analysis.rows.histogram;
        let width = plan.width.resolve(histogram, scalar).min(analysis.rows.max);
        let tail = histogram.entries_beyond(width);
        let ell = ell::work_of_width(analysis, scalar, width);
        Work {
            matrix_bytes: ell.matrix_bytes.saturating_add(tail * coo::entry_bytes(scalar)),
            outside: tail,
            starts: histogram.rows_longer(width),
            relaunches: coo::launches(tail),
            ..ell
        }
    }

    fn cost_key(plan: &HybPlan, on: Target) -> &'static str {
        match (plan.tail, on) {
            (TailProcessor::Host, Target::Gpu) => "hyb.host",
            _ => KERNEL,
        }
    }

    fn pack<T: Scalar>(plan: &HybPlan, a: CsrView<'_, T>) -> Result<HostHyb<T>, Error> {
        let lengths: Vec<u32> = listed((0..a.nrows()).map(|row| a.row_len(row) as u32))?;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        // No row fills more slots than its length.
        let width = plan.width.resolve(&Histogram::of(&lengths), T::KIND).min(longest) as usize;
        Ok(HostHyb {
            plan: *plan,
            ell: HostEll::of_width(a, width, false)?,
            coo: HostCoo::beyond(a, width)?,
        })
    }
}

/// A HYB matrix.
#[derive(Debug)]
pub(crate) struct HostHyb<T> {
    plan: HybPlan,
    ell: HostEll<T>,
    coo: HostCoo<T>,
}

impl<T: Scalar> HostMatrix<T> for HostHyb<T> {
    fn spmv(&self, x: &[T], y: &mut [T]) {
        self.ell.spmv(x, y);
        self.coo.spmv_add(x, y);
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        let (nrows, ncols) = self.ell.shape();
        let mut tail = self.coo.entries().peekable();
        super::from_rows(nrows, ncols, |row, push| {
            self.ell.row(row).for_each(|(col, value)| push(col, value));
            while let Some((_, col, value)) = tail.next_if(|entry| entry.0 as usize == row) {
                push(col, value);
            }
        })
    }

    fn access(&self) -> Option<&dyn Access<T>> {
        Some(self)
    }

    fn access_mut(&mut self) -> Option<&mut dyn Access<T>> {
        Some(self)
    }

    fn values_mut(&mut self) -> HostValueArrays<'_, T> {
        let [ell, _] = self.ell.values_mut()?.plain()?;
        let [coo, _] = self.coo.values_mut()?.plain()?;
        Ok(ValueArrays::Plain([ell, coo]))
    }

    fn matrix_bytes(&self) -> u64 {
        self.ell.matrix_bytes() + self.coo.matrix_bytes()
    }

    fn upload(&self, gpu: Gpu) -> Result<Box<dyn DeviceMatrix<T>>, Error> {
        Ok(Box::new(cuda::DeviceHyb::new(self, gpu)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::PADDING;
    use crate::testing::chapter;

    #[test]
    fn the_chapters_matrix_with_width_2() {
        let a = chapter::matrix::<f32>();
        let packed = Hyb::pack(&HybPlan::new(Width::Fixed(2)), a.view()).unwrap();
        assert_eq!(packed.coo.entries().collect::<Vec<_>>(), [(2, 3, 1.0)], "one element in COO");
        assert_eq!(packed.ell.slots().0, [0, PADDING, 1, 0, 2, PADDING, 2, 3]);
        assert_eq!(packed.ell.slots().1, [3.0, 0.0, 2.0, 1.0, 1.0, 0.0, 4.0, 1.0]);
        let padded = packed.ell.slots().0.iter().filter(|&&c| c == PADDING).count();
        assert_eq!(padded, 2, "two padded slots");
    }

    #[test]
    fn the_device_is_not_spelled_and_the_host_is() {
        let spelled = |text: &str| text.parse::<super::super::Plan>().unwrap().to_string();
        assert_eq!(spelled("hyb(width:8,tail:device)"), "hyb(width:8)");
        assert_eq!(spelled("hyb(tail:host)"), "hyb(width:auto,tail:host)");
    }
}
