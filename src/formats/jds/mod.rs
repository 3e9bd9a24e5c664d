//! JDS, jagged diagonals: rows sorted by length, longest first, and stored slot by slot.
//!
//! ```text
//! 3 . 1 .     perm     2 0 3 1         (_ is padding)
//! . . . .
//! . 2 4 1     diagonals: unpadded      sections: of 1, 2 and 1 rows
//! 1 . . 1     jd_ptr   0 3 6 7         starts   0 3 7
//!             col_idx  1 0 0  2 2 3  3   1 2 3   0 0 2 3
//!             values   2 3 1  4 1 1  1   2 4 1   3 1 1 1
//! ```
//!
//! Invariants: `perm` lists the rows, longest first, rows of equal length in their order.
//! *Diagonals*: diagonal `k` holds the `k`-th entry of every row longer than `k`, in the order of
//! `perm`; nothing is padded ("transposed JDS-CSR"). *Sections*: consecutive rows of `perm`, each
//! section an ELL of its own, as wide as its first row; a section of empty rows holds nothing. With
//! a `tail` the entries past a length are stored in COO by their own row.
//!
//! A GPU multiplies all sections in one launch or, with `launch:each`, every section in one of its
//! own, as Kirk & Hwu do. On the CPU both are the same.
//!
//! With a `tail` the working memory on a GPU is that of the COO part, and there is no kernel with
//! the axpby epilogue.
//!
//! Source: Saad, SIAM J. Sci. Stat. Comput. 10 (1989), §3; Kirk & Hwu, *Programming Massively
//! Parallel Processors*, chapter "Sparse Matrix Computation" (sections). The section boundaries are
//! described in [`Sectioning`].
#![doc = include_str!("operations.md")]

mod access;
mod cpu;
mod cuda;
mod plan;
mod sections;

pub use plan::{JdsLayout, JdsPlan, Launches, TailLength};
pub use sections::{BoundaryMethod, Sectioning};

use super::{
    Access, Costs, DeviceMatrix, Format, HostMatrix, HostValueArrays, PlanArgs, PlanProperties,
    Target, ValueArrays, Work,
    coo::{self, HostCoo},
    critical_path_us, device_rows, megabytes, millions, rows_by_length, short_rows, slot_bytes,
    vector_bytes,
};
use crate::analysis::{Analysis, Histogram};
use crate::device::cpu::{Output, PADDING, for_each_task, partition};
use crate::device::{CsrSource, Gpu, Module};
use crate::matrix::{CsrMatrix, CsrView};
use crate::memory::{listed, reserved, try_zeroed};
use crate::{Error, Scalar, ScalarKind};
use plan::STRIP_ROWS;
use sections::Section;
use std::sync::Arc;

/// The JDS format.
pub(crate) struct Jds;

/// Mean row length beyond which no candidates are made: a diagonal then costs more to begin than it
/// saves.
const CANDIDATE_WIDTH: u32 = 4096;

impl Format for Jds {
    type Plan = JdsPlan;
    type Host<T: Scalar> = HostJds<T>;

    const EXAMPLES: &'static [&'static str] = &[
        "jds(diagonals)",
        "jds(sections:auto)",
        "jds(sections:3)",
        "jds(sections:auto,cost:4)",
        "jds(sections:3,bounds:rows)",
        "jds(sections:3,bounds:lengths)",
        "jds(diagonals,tail:2)",
        "jds(sections:auto,tail:auto)",
        "jds(sections:auto,launch:each)",
        "jds(sections:3,launch:each,tail:2)",
    ];

    #[cfg(test)]
    fn any_plan() -> proptest::strategy::BoxedStrategy<String> {
        use proptest::prelude::*;
        let tail = prop_oneof![Just(String::new()), (1u32..40).prop_map(|n| format!(",tail:{n}"))];
        let sectioning = prop::sample::select(vec!["", ",bounds:rows", ",bounds:lengths"]);
        let each = prop::sample::select(vec!["", ",launch:each"]);
        let sections =
            (1u32..12, sectioning, each, tail.clone()).prop_map(|(n, sectioning, each, tail)| {
                format!("jds(sections:{n}{sectioning}{each}{tail})")
            });
        prop_oneof![sections, tail.prop_map(|tail| format!("jds(diagonals{tail})"))].boxed()
    }

    fn parse(args: &mut PlanArgs<'_>) -> Result<JdsPlan, Error> {
        JdsPlan::parse(args)
    }

    fn candidates(analysis: &Analysis, costs: Costs<'_>, _: Target) -> Vec<JdsPlan> {
        let sectioning = Sectioning::by_costs(costs);
        let layouts = [JdsLayout::Diagonals, JdsLayout::Sections(sectioning, Launches::Fused)];
        let cut = TailLength::Auto.resolve(&analysis.rows.histogram);
        let whole = (analysis.rows.max <= CANDIDATE_WIDTH).then_some(None);
        let tail = (cut > 0 && cut < analysis.rows.max).then_some(Some(TailLength::Fixed(cut)));
        let tails = whole.into_iter().chain(tail);
        tails.flat_map(|tail| layouts.iter().map(move |&layout| JdsPlan { layout, tail })).collect()
    }

    fn work(plan: &JdsPlan, analysis: &Analysis, scalar: ScalarKind) -> Work {
        let nrows = analysis.rows.nrows as u64;
        let (histogram, cut) = plan.cut(&analysis.rows.histogram);
        let tail = analysis.rows.histogram.entries_beyond(cut);
        let width = histogram.classes().last().map_or(0, |c| c.0);
        let (slots, masked_slots, starts, table) = match plan.layout {
            JdsLayout::Diagonals => {
                (histogram.entries_beyond(0), 0, u64::from(width), (u64::from(width) + 1) * 8)
            }
            JdsLayout::Sections(sectioning, _) => {
                let sections = sectioning.sections(&histogram);
                let masked_slots =
                    |s: &Section| ((s.width - s.full) as u64).saturating_mul(s.rows as u64);
                let table = size_of_val(&*sections) as u64;
                let slots = sections.last().map_or(0, Section::slots_end);
                (slots, sections.iter().map(masked_slots).sum(), sections.len() as u64, table)
            }
        };
        let sections = match plan.layout {
            JdsLayout::Sections(_, Launches::Each) => starts.saturating_sub(1),
            _ => 0,
        };
        Work {
            matrix_bytes: (nrows * 4 + table + tail * coo::entry_bytes(scalar))
                .saturating_add(slots.saturating_mul(slot_bytes(scalar))),
            vector_bytes: vector_bytes(analysis, scalar),
            slots,
            gathered: super::gathered(slots, analysis.structure.shifted),
            masked_slots,
            strided_slots: histogram.entries_beyond(super::STREAMS),
            outside: tail,
            rows: nrows,
            scattered: super::scattered(nrows, nrows),
            starts: starts + analysis.rows.histogram.rows_longer(cut),
            serial_slots: u64::from(width) * STRIP_ROWS.min(nrows),
            critical_path: u64::from(width),
            short_rows: plan.layout == JdsLayout::Diagonals
                && short_rows::are_short(analysis.rows.nrows, width as usize),
            relaunches: sections + coo::launches(tail),
            ..Work::default()
        }
    }

    fn properties(plan: &JdsPlan) -> PlanProperties {
        PlanProperties {
            eligible_on_gpu: !matches!(plan.layout, JdsLayout::Sections(_, Launches::Each)),
            packs_on_device: device_rows::SUPPORTED,
            ..PlanProperties::default()
        }
    }

    fn cost_key(plan: &JdsPlan, on: Target) -> &'static str {
        match (plan.layout, on) {
            (JdsLayout::Diagonals, _) => "jds.diagonals",
            (JdsLayout::Sections(_, Launches::Each), Target::Gpu) => "jds.launches",
            (JdsLayout::Sections(..), _) => sections::KERNEL,
        }
    }

    fn cost_key_of(plan: &JdsPlan, on: Target, work: &Work) -> &'static str {
        match (plan.layout, on, work.short_rows) {
            (JdsLayout::Diagonals, Target::Gpu, true) => "jds.diagonals.short",
            _ => Self::cost_key(plan, on),
        }
    }

    fn fallback_cost_keys(key: &str) -> Vec<String> {
        short_rows::without_short(key)
    }

    fn estimate_us(plan: &JdsPlan, analysis: &Analysis, work: &Work) -> f64 {
        let (step, section) = match plan.layout {
            JdsLayout::Diagonals => (0.13, 0.01),
            _ => (0.06, 0.1),
        };
        let path = critical_path_us(work, step, 0.03) + section * work.starts as f64;
        let rows = 3.0 * millions(analysis.rows.nrows as u64);
        // The COO part is a second launch.
        let tail = if plan.tail.is_some() { 4.0 + 25.0 * millions(work.outside) } else { 0.0 };
        2.6 + 0.13 * megabytes(work) + path + rows + tail
    }

    fn pack<T: Scalar>(plan: &JdsPlan, a: CsrView<'_, T>) -> Result<Self::Host<T>, Error> {
        HostJds::new(plan, a)
    }

    fn gpu_kernels<T: Scalar>(_: &JdsPlan, _: &Analysis, _: u64, _: Gpu) -> Vec<(Module, String)> {
        device_rows::kernels()
    }

    fn pack_on_device<T: Scalar>(
        plan: &JdsPlan,
        source: &CsrSource<T>,
    ) -> Result<Option<Arc<dyn DeviceMatrix<T>>>, Error> {
        Ok(Some(Arc::new(cuda::DeviceJds::pack(plan, source)?)))
    }
}

/// A JDS matrix.
#[derive(Debug)]
pub(crate) struct HostJds<T> {
    plan: JdsPlan,
    ncols: usize,
    perm: Vec<u32>,
    table: SlotPositions,
    col_idx: Vec<u32>,
    values: Vec<T>,
    consecutive: bool,
    tail: Option<HostCoo<T>>,
    /// Bounds of the tasks, in sorted rows.
    tasks: Box<[usize]>,
}

/// Positions of the slots.
#[derive(Debug)]
enum SlotPositions {
    /// Beginning of each diagonal, and the end of the last one.
    Diagonals(Vec<usize>),
    /// The sections, in order.
    Sections(Vec<Section>),
}

impl<T: Scalar> HostJds<T> {
    fn new(plan: &JdsPlan, a: CsrView<'_, T>) -> Result<Self, Error> {
        let lengths = (0..a.nrows()).map(|row| a.row_len(row) as u32);
        let perm = rows_by_length(lengths.clone())?;
        let whole = Histogram::of(&listed(lengths)?);
        let (histogram, cut) = plan.cut(&whole);
        let len = |row: u32| a.row_len(row as usize).min(cut as usize);
        let table = SlotPositions::of(plan.layout, &histogram);
        let mut before = reserved(perm.len() + 1)?;
        before.push(0u64);
        for &row in &perm {
            before.push(before[before.len() - 1] + len(row) as u64 + 1);
        }
        let tasks = partition(perm.len(), STRIP_ROWS as usize, |rows| before[rows]);
        let mut col_idx = try_zeroed::<u32>(table.slots())?;
        let mut values = try_zeroed::<T>(table.slots())?;
        let (cols, vals) = (Output::new(&mut col_idx), Output::new(&mut values));
        for_each_task(&tasks, |range| {
            for i in range {
                let (row_cols, row_vals) = a.row(perm[i] as usize);
                let filled = len(perm[i]);
                for (k, at) in table.slots_of(i).enumerate() {
                    // SAFETY: the slots of a row belong to the task that has the row.
                    unsafe {
                        cols.set(at, if k < filled { row_cols[k] } else { PADDING });
                        if k < filled {
                            vals.set(at, row_vals[k]);
                        }
                    }
                }
            }
        });
        let tail = plan.tail.map(|_| HostCoo::beyond(a, cut as usize)).transpose()?;
        let consecutive = super::follow_across_lanes(&col_idx);
        Ok(Self {
            plan: *plan,
            ncols: a.ncols(),
            perm,
            table,
            col_idx,
            values,
            consecutive,
            tail,
            tasks,
        })
    }

    /// Columns and values of the `i`-th sorted row, without its tail.
    fn row(&self, i: usize) -> impl Iterator<Item = (u32, T)> + '_ {
        let slots = self.table.slots_of(i).map(|at| (self.col_idx[at], self.values[at]));
        slots.take_while(|&(col, _)| col != PADDING)
    }
}

impl SlotPositions {
    /// Positions for rows of these lengths.
    fn of(layout: JdsLayout, histogram: &Histogram) -> Self {
        if let JdsLayout::Sections(sectioning, _) = layout {
            return Self::Sections(sectioning.sections(histogram));
        }
        let (mut jd_ptr, mut end, mut rows_left) = (vec![0], 0, histogram.nrows() as usize);
        for &(length, rows) in histogram.classes() {
            while jd_ptr.len() <= length as usize {
                end += rows_left;
                jd_ptr.push(end);
            }
            rows_left -= rows as usize;
        }
        Self::Diagonals(jd_ptr)
    }

    /// Number of stored slots.
    fn slots(&self) -> usize {
        match self {
            Self::Diagonals(jd_ptr) => jd_ptr[jd_ptr.len() - 1],
            Self::Sections(sections) => sections.last().map_or(0, |s| s.start + s.rows * s.width),
        }
    }

    /// Positions of the slots of sorted row `i`, in order.
    fn slots_of(&self, i: usize) -> impl Iterator<Item = usize> + '_ {
        let (jd_ptr, section) = match self {
            Self::Diagonals(jd_ptr) => (&**jd_ptr, (0..0).step_by(1)),
            Self::Sections(sections) => {
                let s = &sections[sections.partition_point(|s| s.first_row + s.rows <= i)];
                let first = s.start + (i - s.first_row);
                (&[][..], (first..first + s.width * s.rows).step_by(s.rows))
            }
        };
        let diagonals =
            jd_ptr.windows(2).take_while(move |w| i < w[1] - w[0]).map(move |w| w[0] + i);
        diagonals.chain(section)
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Diagonals(jd_ptr) => size_of_val(&**jd_ptr),
            Self::Sections(sections) => size_of_val(&**sections),
        }
    }
}

impl<T: Scalar> HostMatrix<T> for HostJds<T> {
    fn spmv(&self, x: &[T], y: &mut [T]) {
        cpu::spmv(self, x, y);
        if let Some(tail) = &self.tail {
            tail.spmv_add(x, y);
        }
    }

    fn unpack(&self) -> Result<CsrMatrix<T>, Error> {
        let mut place = try_zeroed::<usize>(self.perm.len())?;
        for (i, &row) in self.perm.iter().enumerate() {
            place[row as usize] = i;
        }
        let mut tail = self.tail.iter().flat_map(|t| t.entries()).peekable();
        super::from_rows(self.perm.len(), self.ncols, |row, push| {
            self.row(place[row]).for_each(|(col, value)| push(col, value));
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
        let [tail, _] = match &mut self.tail {
            Some(tail) => tail.values_mut()?.plain()?,
            None => Default::default(),
        };
        Ok(ValueArrays::Plain([&mut self.values, tail]))
    }

    fn matrix_bytes(&self) -> u64 {
        let slots = size_of_val(&*self.col_idx) + size_of_val(&*self.values);
        let tail = self.tail.as_ref().map_or(0, HostMatrix::matrix_bytes);
        (size_of_val(&*self.perm) + self.table.bytes() + slots) as u64 + tail
    }

    fn upload(&self, gpu: Gpu) -> Result<Box<dyn DeviceMatrix<T>>, Error> {
        Ok(Box::new(cuda::DeviceJds::new(self, gpu)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::chapter;

    fn pack(text: &str) -> HostJds<f32> {
        let super::super::Plan::Jds(plan) = text.parse().unwrap() else {
            panic!("{text} is not JDS")
        };
        HostJds::new(&plan, chapter::matrix::<f32>().view()).unwrap()
    }

    #[test]
    fn the_chapters_matrix_in_diagonals() {
        let packed = pack("jds(diagonals)");
        assert_eq!(packed.perm, [2, 0, 3, 1]);
        assert!(matches!(&packed.table, SlotPositions::Diagonals(p) if p == &[0, 3, 6, 7]));
        assert_eq!(packed.col_idx, [1, 0, 0, 2, 2, 3, 3]);
        assert_eq!(packed.values, [2., 3., 1., 4., 1., 1., 1.]);
    }

    #[test]
    fn the_chapters_matrix_in_sections() {
        let packed = pack("jds(sections:auto,cost:1)");
        assert_eq!(packed.perm, [2, 0, 3, 1]);
        let SlotPositions::Sections(sections) = &packed.table else { panic!("no sections") };
        assert_eq!(sections.iter().map(|s| s.rows).collect::<Vec<_>>(), [1, 2, 1]);
        assert_eq!(sections.iter().map(|s| s.start).collect::<Vec<_>>(), [0, 3, 7]);
        assert_eq!(packed.col_idx, [1, 2, 3, 0, 0, 2, 3]);
        assert_eq!(packed.values, [2., 4., 1., 3., 1., 1., 1.]);
    }

    #[test]
    fn sections_are_as_wide_as_their_longest_row_and_the_tail_is_cut_off() {
        let histogram = Histogram::of(&[2, 0, 3, 2]);
        for (text, expected) in [
            ("jds(sections:auto,cost:1)", vec![3, 2, 0]),
            ("jds(sections:auto,cost:1,tail:2)", vec![2, 0]),
            ("jds(sections:1)", vec![3]),
            ("jds(diagonals)", vec![]),
        ] {
            let super::super::Plan::Jds(plan) = text.parse().unwrap() else {
                panic!("{text} is not JDS")
            };
            assert_eq!(plan.section_widths(&histogram), expected, "{text}");
        }
    }

    #[test]
    fn launches_are_spelled_between_sections_and_tail() {
        let spelled = |text: &str| text.parse::<super::super::Plan>().map(|plan| plan.to_string());
        assert_eq!(
            spelled("jds(tail:4,launch:each)").unwrap(),
            "jds(sections:auto,launch:each,tail:4)"
        );
        assert_eq!(spelled("jds(sections:3,launch:fused)").unwrap(), "jds(sections:3)");
        assert!(spelled("jds(diagonals,launch:each)").is_err());
        assert!(spelled("jds(index:packed)").is_err());
    }

    #[test]
    fn overlong_rows_leave_their_rest_in_coo() {
        let packed = pack("jds(diagonals,tail:2)");
        assert_eq!(packed.col_idx, [1, 0, 0, 2, 2, 3]);
        assert_eq!(packed.tail.unwrap().entries().collect::<Vec<_>>(), [(2, 3, 1.0)]);
    }
}
