//! Plans of parts: the fastest of those whose sum of a row does not depend on the other rows.

use crate::blocks::gpu_part_rows;
use crate::comm::{Communicator, agree, gather_bytes, sum_words};
use sparseop::analysis::Analysis;
use sparseop::formats::csr::CsrPlan;
use sparseop::formats::jds::{JdsLayout, JdsPlan};
use sparseop::formats::psell::PsellPlan;
use sparseop::matrix::CsrView;
use sparseop::{
    Device, Error, ErrorKind, Plan, Scalar, ScalarKind, SparseOp, SparseOpBuilder, Tuning,
};

/// Row-length CV up to which rows are summed one entry after the other.
const EVEN: f64 = 0.5;

/// Mean row length up to which rows are summed one entry after the other.
const SHORT: f64 = 64.0;

/// Order in which the entries of a row are summed. The plans of an order give a row the same bits,
/// whatever the other rows are. Other plans divide rows, reorder their entries, or round
/// differently at the edge of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SummationOrder {
    /// One entry after the other, with fused multiplication and addition where the machine has it.
    Sequential,
    /// Several running sums; their number.
    Lanes(u32),
}

/// Moments of the row lengths of the whole matrix, from which the order is chosen: the same for
/// every partition.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowLengths {
    pub(crate) rows: u64,
    pub(crate) entries: u64,
    /// Σ length².
    pub(crate) squares: u64,
}

impl RowLengths {
    /// Moments of the lengths of some rows.
    pub(crate) fn of(row_ptr: &[usize]) -> Self {
        let lengths = row_ptr.windows(2).map(|at| (at[1] - at[0]) as u64);
        lengths.fold(Self::default(), |Self { rows, entries, squares }, length| Self {
            rows: rows + 1,
            entries: entries + length,
            squares: squares.saturating_add(length.saturating_mul(length)),
        })
    }

    /// Moments of the lengths of the rows of all ranks.
    pub(crate) fn of_ranks(comm: &dyn Communicator, row_ptr: &[usize]) -> Result<Self, Error> {
        let Self { rows, entries, squares } = Self::of(row_ptr);
        let whole = sum_words(comm, &[rows, entries, squares])?;
        Ok(Self { rows: whole[0], entries: whole[1], squares: whole[2] })
    }
}

impl SummationOrder {
    /// The order for a matrix on a device. On a GPU a thread for a row gives no order: where slots
    /// are padded depends on the other rows.
    pub(crate) fn of(lengths: RowLengths, device: &Device) -> Self {
        let rows = lengths.rows.max(1) as f64;
        let mean = lengths.entries as f64 / rows;
        let variance = lengths.squares as f64 / rows - mean * mean;
        if *device == Device::Cpu && mean <= SHORT && variance <= (EVEN * mean).powi(2) {
            return Self::Sequential;
        }
        // About four entries for each running sum, of a row whose length is between the mean over
        // the rows and the mean over the entries.
        let length = (mean * lengths.squares as f64 / lengths.entries.max(1) as f64).sqrt();
        Self::Lanes((length as u32 / 4).next_power_of_two().clamp(2, 32))
    }

    /// True if a plan sums the entries of a row in this order.
    pub(crate) fn admits(self, plan: &Plan) -> bool {
        match (self, plan) {
            // Slices of whole vectors, which have at most 16 lanes.
            (Self::Sequential, Plan::Sell(plan)) => plan.c().is_multiple_of(16),
            (Self::Sequential, Plan::Jds(plan)) => *plan == Self::JDS,
            (Self::Lanes(lanes), Plan::Csr(CsrPlan::Vector(width))) => lanes == *width,
            _ => false,
        }
    }

    const JDS: JdsPlan = JdsPlan { layout: JdsLayout::Diagonals, tail: None };

    /// A plan for any rows: its packed matrix has no padding.
    fn any(self) -> Plan {
        match self {
            Self::Sequential => Plan::Jds(Self::JDS),
            Self::Lanes(lanes) => Plan::Csr(CsrPlan::Vector(lanes)),
        }
    }

    /// The plan of this order that is predicted to be the fastest, and its predicted seconds if the
    /// profile predicts it.
    pub(crate) fn choose(
        self,
        builder: &SparseOpBuilder,
        device: &Device,
        analysis: &Analysis,
        scalar: ScalarKind,
    ) -> Result<(Plan, Option<f64>), Error> {
        let builder = builder.clone().device(device.clone()).deterministic(true);
        let predicted = builder.tuning(Tuning::Predict).decide(analysis, scalar)?;
        let limit = predicted.request.memory_limit;
        let admitted = predicted.candidates.iter().filter(|candidate| {
            self.admits(&candidate.plan) && candidate.work.matrix_bytes <= limit
        });
        let timed = admitted
            .filter_map(|candidate| Some((candidate.prediction?.product(), &candidate.plan)));
        let fastest = timed.min_by(|a, b| a.0.total_cmp(&b.0));
        Ok(match fastest {
            Some((nanoseconds, plan)) => (plan.clone(), Some(nanoseconds * 1e-9)),
            None => (self.any(), None),
        })
    }

    /// Builds an operator with the plan of this order that is predicted to be the fastest.
    pub(crate) fn build<T: Scalar>(
        self,
        builder: &SparseOpBuilder,
        device: &Device,
        a: CsrView<'_, T>,
    ) -> Result<SparseOp<T>, Error> {
        Analysis::check_memory(a)?;
        let analysis = Analysis::of(a);
        let (plan, _) = self.choose(builder, device, &analysis, T::KIND)?;
        let builder = builder.clone().device(device.clone()).deterministic(true);
        builder.tuning(Tuning::Fixed(plan)).build_analyzed(&a, &analysis)
    }
}

/// Packed SELL for all parts on GPUs. The bits of a row depend on the other rows of its slice, so
/// that interior and boundary rows consist of groups of rows that have whole slices.
#[derive(Debug, Clone)]
pub(crate) struct SlicedPlan {
    plan: Plan,
    /// Number of rows of such a group: those of a window, or of a slice.
    pub(crate) slice_rows: usize,
}

impl SlicedPlan {
    /// Rows per slice.
    const SLICE: usize = 32;

    /// The plan for a matrix whose parts are those of a partition for GPUs, if one is predicted to
    /// be faster than every plan that sums rows by themselves. The whole matrix decides, so that
    /// the plan does not depend on the number of parts. `None` on the CPU, and for a matrix of
    /// which no plan fits a GPU.
    pub(crate) fn of<T: Scalar>(
        builder: &SparseOpBuilder,
        device: &Device,
        a: CsrView<'_, T>,
    ) -> Result<Option<Self>, Error> {
        // A lane without an entry in a slot reads `x` at its own row.
        if *device == Device::Cpu || a.nrows() != a.ncols() {
            return Ok(None);
        }
        Analysis::check_memory(a)?;
        let analysis = Analysis::of(a);
        let order = SummationOrder::of(RowLengths::of(a.row_ptr()), device);
        let builder = builder.clone().device(device.clone()).deterministic(true);
        let predicted = match builder.tuning(Tuning::Predict).decide(&analysis, T::KIND) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => return Ok(None),
            predicted => predicted?,
        };
        let (longest, block) = (analysis.rows.max as usize, gpu_part_rows(a.nrows()));
        let timed = predicted.candidates.iter().filter_map(|candidate| {
            let sliced = Self::with(&candidate.plan, longest, block);
            let usable = sliced.is_some() || order.admits(&candidate.plan);
            Some((candidate.prediction.as_ref().filter(|_| usable)?.product(), sliced))
        });
        Ok(timed.min_by(|a, b| a.0.total_cmp(&b.0)).and_then(|(_, sliced)| sliced))
    }

    /// The plan of rank 0, for all ranks: their profiles may differ.
    pub(crate) fn of_first(
        comm: &dyn Communicator,
        own: Option<Self>,
    ) -> Result<Option<Self>, Error> {
        let text = own.map_or_else(String::new, |own| own.plan.to_string());
        let all = gather_bytes(comm, text.as_bytes())?;
        if all[0].is_empty() {
            return Ok(None);
        }
        let plan: Plan = agree(comm, String::from_utf8_lossy(&all[0]).parse())?;
        let Plan::Psell(psell) = &plan else { return Ok(None) };
        let slice_rows = Self::rows_of_group(psell);
        Ok(Some(Self { plan, slice_rows }))
    }

    /// Number of rows that have whole slices.
    fn rows_of_group(plan: &PsellPlan) -> usize {
        Self::SLICE.max(plan.sigma() as usize)
    }

    /// A plan of packed SELL without long rows whose windows are whole in every block.
    fn with(plan: &Plan, longest: usize, block: usize) -> Option<Self> {
        let Plan::Psell(psell) = plan else { return None };
        let slice_rows = Self::rows_of_group(psell);
        let whole = psell.sigma() == 1 || slice_rows.is_multiple_of(Self::SLICE);
        let kept = whole && block.is_multiple_of(slice_rows) && longest <= psell.split() as usize;
        kept.then(|| Self { plan: Plan::Psell(psell.with_one_warp()), slice_rows })
    }

    /// Builds the operator of some groups of rows.
    pub(crate) fn build<T: Scalar>(
        &self,
        builder: &SparseOpBuilder,
        a: CsrView<'_, T>,
    ) -> Result<SparseOp<T>, Error> {
        self.fixed(builder).build(&a)
    }

    /// Predicted seconds of a product with this plan. `None` if the profile does not predict it.
    pub(crate) fn predicted(
        &self,
        builder: &SparseOpBuilder,
        device: &Device,
        analysis: &Analysis,
        scalar: ScalarKind,
    ) -> Result<Option<f64>, Error> {
        let decision = self.fixed(builder).device(device.clone()).decide(analysis, scalar)?;
        let prediction = decision.chosen().and_then(|chosen| chosen.prediction.as_ref());
        Ok(prediction.map(|prediction| prediction.product() * 1e-9))
    }

    fn fixed(&self, builder: &SparseOpBuilder) -> SparseOpBuilder {
        builder.clone().deterministic(true).tuning(Tuning::Fixed(self.plan.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::RowSelection;
    use sparseop::FormatKind;
    use sparseop::matrix::{CsrMatrix, gallery};

    #[test]
    fn even_short_rows_are_summed_in_order() {
        let of = |lengths: &[usize]| {
            let mut row_ptr = vec![0];
            lengths.iter().for_each(|length| row_ptr.push(row_ptr[row_ptr.len() - 1] + length));
            SummationOrder::of(RowLengths::of(&row_ptr), &Device::Cpu)
        };
        assert_eq!(of(&[5, 4, 3, 5]), SummationOrder::Sequential);
        assert_eq!(of(&[]), SummationOrder::Sequential);
        assert_eq!(of(&[1, 1, 1, 40]), SummationOrder::Lanes(8));
        assert_eq!(of(&[100; 9]), SummationOrder::Lanes(32));
        for order in [SummationOrder::Sequential, SummationOrder::Lanes(8)] {
            assert!(order.admits(&order.any()));
        }
    }

    /// Products of some rows by an operator of their own.
    fn product<T: Scalar>(
        plan: &Plan,
        device: &Device,
        a: &CsrMatrix<T>,
        rows: &[u32],
        x: &[T],
    ) -> Option<Vec<u64>> {
        let a = RowSelection::unchanged(a.view(), rows).unwrap();
        let builder = SparseOpBuilder::new().device(device.clone());
        // Some plans cannot hold some matrices.
        let op = builder.tuning(Tuning::Fixed(plan.clone())).build(&a.view().unwrap()).ok()?;
        let mut y = vec![T::ZERO; rows.len()];
        op.apply(x, &mut y).unwrap();
        Some(y.into_iter().map(Scalar::bits).collect())
    }

    fn rows_keep_their_bits<T: Scalar>() {
        for device in [Device::Cpu].into_iter().chain(Device::gpus().into_iter().take(1)) {
            rows_keep_their_bits_on::<T>(&device);
        }
    }

    fn rows_keep_their_bits_on<T: Scalar>(device: &Device) {
        let orders = [2, 4, 8, 16, 32]
            .map(SummationOrder::Lanes)
            .into_iter()
            .chain([SummationOrder::Sequential]);
        let orders: Vec<SummationOrder> = orders.collect();
        let examples = FormatKind::ALL.iter().flat_map(|kind| kind.examples()).copied();
        let sells = ["sell(c:16,sigma:128)", "sell(c:32,sigma:1)", "sell(c:32,sigma:4096)"];
        let plans: Vec<Plan> = examples.chain(sells).map(|text| text.parse().unwrap()).collect();
        for spec in ["webbase,rows=2k", "fem3d,n=5", "poisson2d,n=40", "lp,rows=30"] {
            let a = spec.parse::<gallery::Spec>().unwrap().generate::<T>().unwrap();
            let x = sparseop_testkit::x_vector::<T>(a.ncols());
            let all: Vec<u32> = (0..a.nrows() as u32).collect();
            // Ranges that begin and end inside of a slice, and scattered rows.
            let third = all.len() / 3;
            let mut parts: Vec<Vec<u32>> =
                [0..third, third..all.len() - 5, all.len() - 5..all.len()]
                    .map(|range| all[range].to_vec())
                    .into();
            parts.push(all.iter().copied().filter(|row| row * 7 % 5 < 2).collect());
            let mut of_order: Vec<Option<Vec<u64>>> = vec![None; orders.len()];
            for plan in &plans {
                let Some(whole) = product(plan, device, &a, &all, &x) else { continue };
                let kept = parts.iter().all(|rows| {
                    let expected: Vec<u64> = rows.iter().map(|&row| whole[row as usize]).collect();
                    product(plan, device, &a, rows, &x).is_none_or(|found| found == expected)
                });
                for (order, first) in orders.iter().zip(&mut of_order) {
                    // The order of a GPU is never sequential.
                    let used = *device == Device::Cpu || *order != SummationOrder::Sequential;
                    if used && order.admits(plan) {
                        assert!(kept, "{plan} on {spec} in {}", T::KIND);
                        let first = first.get_or_insert_with(|| whole.clone());
                        assert!(*first == whole, "{plan} on {spec} in {}, {order:?}", T::KIND);
                    }
                }
                eprintln!(
                    "{device}: {spec} in {}: {plan} {}",
                    T::KIND,
                    if kept { "keeps" } else { "changes" }
                );
            }
            let missing = orders.iter().zip(&of_order).find(|(order, found)| {
                found.is_none() && (*device == Device::Cpu || **order != SummationOrder::Sequential)
            });
            assert!(missing.is_none(), "{missing:?}");
        }
    }

    /// Product of some rows as boundary rows: with columns from the first to the last one.
    fn boundary_product<T: Scalar>(
        sliced: &SlicedPlan,
        device: &Device,
        a: &CsrMatrix<T>,
        rows: &[u32],
        x: &[T],
    ) -> Vec<u64> {
        let columns = || rows.iter().flat_map(|&row| a.view().row(row as usize).0);
        let first = columns().min().copied().unwrap_or(0);
        let end = columns().max().map_or(0, |&last| last + 1).max(first + rows.len() as u32);
        let width = (end - first) as usize;
        let part = RowSelection::new(a.view(), rows, width, Some(|column| column - first)).unwrap();
        let builder = SparseOpBuilder::new().device(device.clone());
        let op = sliced.build(&builder, part.view().unwrap()).unwrap();
        let mut own = x[first as usize..x.len().min(end as usize)].to_vec();
        own.resize(width, T::ZERO);
        let mut y = vec![T::ZERO; rows.len()];
        op.apply(&own, &mut y).unwrap();
        y.into_iter().map(Scalar::bits).collect()
    }

    fn whole_slices_keep_their_bits<T: Scalar>(device: &Device) {
        let plans = [
            "psell(sigma:1)",
            "psell(sigma:1,group:4)",
            "psell(sigma:1,values:packed,group:4)",
            "psell(sigma:64,group:4)",
            "psell(sigma:512)",
        ];
        // Diagonal slices, slices with 8-, 16- and 32-bit indices, rows of many lengths.
        let specs = [
            "poisson3d,n=16",
            "stencil27,n=14",
            "fem3d,n=9",
            "uniform,rows=70k",
            "webbase,rows=4k",
            "lognormal,rows=5k",
        ];
        for spec in specs {
            let a = spec.parse::<gallery::Spec>().unwrap().generate::<T>().unwrap();
            let x = sparseop_testkit::x_vector::<T>(a.ncols());
            let longest = Analysis::of(a.view()).rows.max as usize;
            let all: Vec<u32> = (0..a.nrows() as u32).collect();
            for text in plans {
                let plan = text.parse().unwrap();
                let Some(sliced) = SlicedPlan::with(&plan, longest, 512) else { continue };
                let whole = product(&sliced.plan, device, &a, &all, &x).unwrap();
                for modulus in [2, 3] {
                    let groups = all.chunks(sliced.slice_rows).step_by(modulus);
                    let rows: Vec<u32> = groups.flatten().copied().collect();
                    let found = boundary_product(&sliced, device, &a, &rows, &x);
                    let expected = rows.iter().map(|&row| whole[row as usize]);
                    assert!(expected.eq(found), "{device}: {spec} in {}, {text}", T::KIND);
                }
            }
        }
    }

    #[test]
    fn whole_slices_of_packed_sell_keep_their_bits() {
        for device in [Device::Cpu].into_iter().chain(Device::gpus().into_iter().take(1)) {
            whole_slices_keep_their_bits::<f32>(&device);
            whole_slices_keep_their_bits::<f64>(&device);
        }
    }

    #[test]
    fn packed_sell_is_for_whole_windows_without_long_rows() {
        let slice_rows = |text: &str, longest, block| {
            let sliced = SlicedPlan::with(&text.parse().unwrap(), longest, block);
            sliced.map(|sliced| (sliced.slice_rows, sliced.plan.to_string()))
        };
        let one = |slice_rows, plan: &str| Some((slice_rows, plan.to_owned()));
        assert_eq!(slice_rows("psell(sigma:1)", 9, 64), one(32, "psell(sigma:1,warps:1)"));
        assert_eq!(slice_rows("psell(sigma:512)", 9, 1024), one(512, "psell(sigma:512,warps:1)"));
        assert_eq!(slice_rows("psell(sigma:512)", 9, 256), None);
        assert_eq!(slice_rows("psell(sigma:48)", 9, 1024), None);
        assert_eq!(slice_rows("psell(sigma:1)", 9, 16), None);
        assert_eq!(slice_rows("psell(sigma:1,split:8)", 9, 64), None);
        assert_eq!(slice_rows("csr(vector:8)", 9, 64), None);
    }

    #[test]
    fn admitted_plans_give_a_row_the_same_bits_whatever_is_beside_it_in_f32() {
        rows_keep_their_bits::<f32>();
    }

    #[test]
    fn admitted_plans_give_a_row_the_same_bits_whatever_is_beside_it_in_f64() {
        rows_keep_their_bits::<f64>();
    }
}
