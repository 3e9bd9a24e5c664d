//! Simulation: the parts, messages and predicted times of a matrix on many ranks.

use crate::balance::RowTimes;
use crate::blocks::gpu_part_rows;
use crate::choice::{RowLengths, SlicedPlan, SummationOrder};
use crate::explain::{Link, imbalance, product_seconds};
use crate::gpu::overlaps;
use crate::part::interior_and_boundary;
use crate::partition::{Partition, owner};
use crate::rows::RowSelection;
use sparseop::matrix::CsrView;
use sparseop::{Device, Error, Scalar, SparseOpBuilder, filled, listed};

/// Prediction for a number of ranks, each with a device like that of the profile.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ScalingStep {
    /// Number of ranks.
    pub ranks: usize,
    /// Parts without rows.
    pub empty: usize,
    /// Largest number of rows of a part.
    pub rows: u64,
    /// Largest number of entries of a part.
    pub nnz: u64,
    /// Imbalance: work of the largest part, entries and rows, over the mean.
    pub imbalance: f64,
    /// Largest number of bytes that a part receives or sends.
    pub halo_bytes: u64,
    /// Bytes that all parts receive.
    pub total_bytes: u64,
    /// Largest number of neighbours of a part.
    pub neighbours: u64,
    /// Share of the entries that are in boundary rows.
    pub boundary_share: f64,
    /// Predicted seconds of the rows of the largest part.
    pub compute_seconds: f64,
    /// Predicted seconds of the messages of a product.
    pub exchange_seconds: f64,
    /// Predicted seconds of a product: interior rows and messages, at the same time on CPUs and if
    /// a GPU has many interior rows, then boundary rows.
    pub product_seconds: f64,
    /// Predicted seconds of a sum over all ranks, of which an iteration of CG has two.
    pub sum_seconds: f64,
}

impl ScalingStep {
    /// Predicted seconds of a product and two sums, as an iteration of CG has them.
    pub fn iteration_seconds(&self) -> f64 {
        self.product_seconds + 2.0 * self.sum_seconds
    }
}

/// Elements that a part exchanges, and the entries of its boundary rows.
#[derive(Debug, Clone, Copy, Default)]
struct Exchanged {
    received: u64,
    sent: u64,
    neighbours: u64,
    boundary_entries: u64,
}

/// Predicts products for each number of ranks, in the given order.
///
/// The parts and their messages are those of a [`DistributedOp`](crate::DistributedOp) on such
/// devices. The time of the rows is that of the part with the most work, from an analysis of its
/// rows and the profile of the builder.
///
/// # Errors
///
/// [`Error::Partition`] for a number of 0; otherwise as
/// [`SparseOpBuilder::build`].
pub fn simulate<T: Scalar>(
    a: CsrView<'_, T>,
    ranks: &[usize],
    builder: &SparseOpBuilder,
    device: &Device,
    link: Link,
) -> Result<Vec<ScalingStep>, Error> {
    let order = SummationOrder::of(RowLengths::of(a.row_ptr()), device);
    let sliced = match device {
        Device::Cpu => None,
        _ => SlicedPlan::of(builder, device, a, gpu_part_rows(a.nrows()))?,
    };
    let times = RowTimes { builder, device, order, sliced: sliced.as_ref() };
    ranks.iter().map(|&ranks| step(a, ranks, times, link)).collect()
}

fn step<T: Scalar>(
    a: CsrView<'_, T>,
    ranks: usize,
    times: RowTimes<'_>,
    link: Link,
) -> Result<ScalingStep, Error> {
    let (row_ptr, device) = (a.row_ptr(), times.device);
    let partition = Partition::of_rows(row_ptr, ranks)?;
    let partition = if *device == Device::Cpu { partition } else { partition.for_gpus() };
    let columns = partition.columns(a.ncols())?;
    let slice_rows = times.sliced.map_or(1, |sliced| sliced.slice_rows);
    let exchanged = exchanged(a, &partition, &columns, slice_rows)?;
    let entries = |part: usize| {
        let rows = partition.rows(part);
        (row_ptr[rows.end] - row_ptr[rows.start]) as u64
    };
    let work = |part: usize| entries(part) + partition.rows(part).len() as u64;
    let parts = || 0..ranks;
    let largest = parts().max_by_key(|&part| work(part)).unwrap_or_default();
    let own = listed(partition.rows(largest).map(|row| row as u32))?;
    let own = RowSelection::unchanged(a, &own)?;
    let own_columns = columns[largest] as u32..columns[largest + 1] as u32;
    let (interior, boundary) = interior_and_boundary(own.view()?, &own_columns, slice_rows);
    let rows = [times.of(own.view()?, &interior)?, times.of(own.view()?, &boundary)?];
    let interior_entries = entries(largest) - exchanged[largest].boundary_entries;
    let bytes = |part: &Exchanged| part.received.max(part.sent) * size_of::<T>() as u64;
    let messages = |part: &Exchanged| link.exchange(part.neighbours as usize, bytes(part));
    let exchange_seconds = exchanged.iter().map(messages).fold(0.0, f64::max);
    let overlap = overlaps(device, interior_entries);
    let product_seconds = product_seconds(rows, exchange_seconds, overlap);
    let sum = |of: fn(&Exchanged) -> u64| exchanged.iter().map(of).sum::<u64>();
    Ok(ScalingStep {
        ranks,
        empty: parts().filter(|&part| partition.rows(part).is_empty()).count(),
        rows: parts().map(|part| partition.rows(part).len()).max().unwrap_or_default() as u64,
        nnz: parts().map(entries).max().unwrap_or_default(),
        imbalance: imbalance(parts().map(work)),
        halo_bytes: exchanged.iter().map(bytes).max().unwrap_or_default(),
        total_bytes: sum(|part| part.received) * size_of::<T>() as u64,
        neighbours: exchanged.iter().map(|part| part.neighbours).max().unwrap_or_default(),
        boundary_share: sum(|part| part.boundary_entries) as f64 / a.nnz().max(1) as f64,
        compute_seconds: rows[0] + rows[1],
        exchange_seconds,
        product_seconds,
        sum_seconds: link.sum(ranks),
    })
}

/// Elements that each part exchanges with the others, whose boundary rows are groups of
/// `slice_rows`.
fn exchanged<T: Scalar>(
    a: CsrView<'_, T>,
    partition: &Partition,
    columns: &[usize],
    slice_rows: usize,
) -> Result<Vec<Exchanged>, Error> {
    let (row_ptr, parts) = (a.row_ptr(), partition.parts());
    let mut exchanged = vec![Exchanged::default(); parts];
    // The last part that uses a column, and the last that has a part as a neighbour.
    let (mut used_by, mut met_by) = (filled(a.ncols(), u32::MAX)?, vec![usize::MAX; parts]);
    let mut pairs = Vec::new();
    for part in 0..parts {
        let own = columns[part]..columns[part + 1];
        let rows = partition.rows(part);
        for first in rows.clone().step_by(slice_rows) {
            let entries = row_ptr[first]..row_ptr[rows.end.min(first + slice_rows)];
            let mut is_boundary = false;
            for &column in &a.col_idx()[entries.clone()] {
                let column = column as usize;
                if own.contains(&column) {
                    continue;
                }
                is_boundary = true;
                if std::mem::replace(&mut used_by[column], part as u32) == part as u32 {
                    continue;
                }
                let from = owner(columns, column);
                exchanged[part].received += 1;
                exchanged[from].sent += 1;
                if std::mem::replace(&mut met_by[from], part) != part {
                    pairs.push((part.min(from), part.max(from)));
                }
            }
            if is_boundary {
                exchanged[part].boundary_entries += entries.len() as u64;
            }
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    for (one, other) in pairs {
        exchanged[one].neighbours += 1;
        exchanged[other].neighbours += 1;
    }
    Ok(exchanged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DistributedOp;
    use sparseop::matrix::gallery;

    #[test]
    fn parts_and_messages_are_those_of_operators() {
        for spec in ["poisson2d,n=40", "webbase,rows=2k", "lp,rows=40", "small"] {
            let a = spec.parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
            let builder = SparseOpBuilder::new();
            let cpu = Device::Cpu;
            let steps = simulate(a.view(), &[1, 2, 3, 7], &builder, &cpu, Link::MEMORY).unwrap();
            for step in steps {
                let explained = DistributedOp::auto(&a, step.ranks).unwrap().explain();
                let ratio = step.product_seconds / explained.product_seconds();
                assert!((0.8..1.25).contains(&ratio), "{spec}: {ratio} {step:?}");
                assert!((step.imbalance - explained.imbalance()).abs() < 1e-9, "{spec}");
                let parts = explained.parts;
                let most = |of: fn(&crate::PartSummary) -> u64| parts.iter().map(of).max().unwrap();
                assert_eq!(step.rows, most(|part| part.rows), "{spec}");
                assert_eq!(step.nnz, most(|part| part.nnz), "{spec}");
                assert_eq!(step.neighbours, most(|part| part.neighbours), "{spec}");
                let halo = most(|part| part.halo_bytes.max(part.sent_bytes));
                assert_eq!(step.halo_bytes, halo, "{spec}");
                let total: u64 = parts.iter().map(|part| part.halo_bytes).sum();
                assert_eq!(step.total_bytes, total, "{spec}");
                assert!(step.imbalance >= 1.0 && step.product_seconds >= step.exchange_seconds);
            }
        }
    }

    #[test]
    fn more_ranks_take_less_until_messages_take_more() {
        let a = "poisson2d,n=300".parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
        let ranks: Vec<usize> = (0..=12).map(|power| 1 << power).collect();
        let link = Link { latency: 1e-6, bandwidth: 1e9, at_once: false };
        let builder = SparseOpBuilder::new();
        let steps = simulate(a.view(), &ranks, &builder, &Device::Cpu, link).unwrap();
        assert!(steps[1].product_seconds < steps[0].product_seconds, "{steps:?}");
        assert_eq!(steps[0].exchange_seconds, 0.0);
        let [first, last] = [&steps[1], &steps[12]];
        assert!(last.iteration_seconds() > first.compute_seconds / 2000.0);
        assert!(last.exchange_seconds > last.compute_seconds, "{last:?}");
    }

    #[test]
    fn a_matrix_without_rows_has_a_simulation() {
        let a = sparseop::CsrMatrix::<f32>::zeros(0, 0).unwrap();
        let steps = |ranks: &[usize]| {
            let builder = SparseOpBuilder::new();
            simulate(a.view(), ranks, &builder, &Device::Cpu, Link::NETWORK)
        };
        let two = steps(&[1, 8]).unwrap();
        assert_eq!((two[1].empty, two[1].imbalance), (8, 1.0));
        assert!(steps(&[0]).is_err());
    }
}
