//! Simulation: the parts, messages and predicted times of a matrix on many ranks.

use crate::choice::{RowLengths, SummationOrder};
use crate::explain::Link;
use crate::partition::{Partition, owner};
use crate::rows::RowSet;
use sparseop::analysis::Analysis;
use sparseop::matrix::CsrView;
use sparseop::{Error, Scalar, SparseOpBuilder, filled, listed};

/// Prediction for a number of ranks, each a machine like that of the profile.
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
    /// Share of the entries that are in rows which use elements of other parts.
    pub boundary_share: f64,
    /// Predicted seconds of the rows of the largest part.
    pub compute_seconds: f64,
    /// Predicted seconds of the messages of a product.
    pub exchange_seconds: f64,
    /// Predicted seconds of a product: messages while interior rows are multiplied, and then
    /// boundary rows.
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
/// The parts and their messages are those of a [`DistributedOp`](crate::DistributedOp). The time of
/// the rows is that of the part with the most work, from an analysis of its rows and the profile of
/// the builder.
///
/// # Errors
///
/// [`Error::Partition`] for a number of 0; otherwise as
/// [`SparseOpBuilder::build`].
pub fn simulate<T: Scalar>(
    a: CsrView<'_, T>,
    ranks: &[usize],
    builder: &SparseOpBuilder,
    link: Link,
) -> Result<Vec<ScalingStep>, Error> {
    let order = SummationOrder::of(RowLengths::of(a.row_ptr()));
    ranks.iter().map(|&ranks| step(a, ranks, order, builder, link)).collect()
}

fn step<T: Scalar>(
    a: CsrView<'_, T>,
    ranks: usize,
    order: SummationOrder,
    builder: &SparseOpBuilder,
    link: Link,
) -> Result<ScalingStep, Error> {
    let row_ptr = a.row_ptr();
    let partition = Partition::of_rows(row_ptr, ranks)?;
    let columns = partition.columns(a.ncols())?;
    let exchanged = exchanged(a, &partition, &columns)?;
    let entries = |part: usize| {
        let rows = partition.rows(part);
        (row_ptr[rows.end] - row_ptr[rows.start]) as u64
    };
    let work = |part: usize| entries(part) + partition.rows(part).len() as u64;
    let parts = || 0..ranks;
    let largest = parts().max_by_key(|&part| work(part)).unwrap_or_default();
    let total = (a.nnz() + a.nrows()) as f64;
    let compute_seconds = compute(a, &partition, largest, order, builder)?;
    let bytes = |part: &Exchanged| part.received.max(part.sent) * size_of::<T>() as u64;
    let messages = |part: &Exchanged| link.seconds(part.neighbours as usize, bytes(part));
    let exchange_seconds = exchanged.iter().map(messages).fold(0.0, f64::max);
    let boundary = exchanged[largest].boundary_entries as f64 / entries(largest).max(1) as f64;
    let product_seconds =
        exchange_seconds.max(compute_seconds * (1.0 - boundary)) + compute_seconds * boundary;
    let sum = |of: fn(&Exchanged) -> u64| exchanged.iter().map(of).sum::<u64>();
    Ok(ScalingStep {
        ranks,
        empty: parts().filter(|&part| partition.rows(part).is_empty()).count(),
        rows: parts().map(|part| partition.rows(part).len()).max().unwrap_or_default() as u64,
        nnz: parts().map(entries).max().unwrap_or_default(),
        imbalance: if total == 0.0 { 1.0 } else { work(largest) as f64 * ranks as f64 / total },
        halo_bytes: exchanged.iter().map(bytes).max().unwrap_or_default(),
        total_bytes: sum(|part| part.received) * size_of::<T>() as u64,
        neighbours: exchanged.iter().map(|part| part.neighbours).max().unwrap_or_default(),
        boundary_share: sum(|part| part.boundary_entries) as f64 / a.nnz().max(1) as f64,
        compute_seconds,
        exchange_seconds,
        product_seconds,
        // A tree of messages.
        sum_seconds: f64::from(ranks.next_power_of_two().trailing_zeros()) * link.latency,
    })
}

/// Partition into parts of about equal predicted time: parts of equally many entries are divided
/// again by their predicted times. As [`Partition::of_rows`] if the profile does not predict them.
pub(crate) fn by_predicted_time<T: Scalar>(
    a: CsrView<'_, T>,
    parts: usize,
    builder: &SparseOpBuilder,
) -> Result<Partition, Error> {
    let (row_ptr, order) = (a.row_ptr(), SummationOrder::of(RowLengths::of(a.row_ptr())));
    let even = Partition::of_rows(row_ptr, parts)?;
    let seconds = (0..parts).map(|part| match even.rows(part).is_empty() {
        true => Ok(0.0),
        false => compute(a, &even, part, order, builder),
    });
    let seconds = seconds.collect::<Result<Vec<f64>, Error>>()?;
    let total: f64 = seconds.iter().sum();
    if !(total.is_finite() && total > 0.0) {
        return Ok(even);
    }
    let mut before = vec![0.0];
    seconds.iter().for_each(|seconds| before.push(before[before.len() - 1] + seconds));
    let work = |row: usize| (row_ptr[row] + row) as f64;
    // Integer units: 2⁴⁰ in all.
    let unit = (1u64 << 40) as f64 / total;
    Partition::balanced(a.nrows(), parts, |row| {
        let part = if row == a.nrows() { parts - 1 } else { owner(even.offsets(), row) };
        let rows = even.rows(part);
        let share = (work(row) - work(rows.start)) / (work(rows.end) - work(rows.start)).max(1.0);
        ((before[part] + share * seconds[part]) * unit) as u64
    })
}

/// Predicted seconds of the rows of a part.
fn compute<T: Scalar>(
    a: CsrView<'_, T>,
    partition: &Partition,
    part: usize,
    order: SummationOrder,
    builder: &SparseOpBuilder,
) -> Result<f64, Error> {
    let rows = listed(partition.rows(part).map(|row| row as u32))?;
    // The elements of x that the part uses.
    let mut place = filled(a.ncols() + 1, 0u32)?;
    for &row in &rows {
        a.row(row as usize).0.iter().for_each(|&column| place[column as usize + 1] = 1);
    }
    for column in 0..a.ncols() {
        place[column + 1] += place[column];
    }
    let used = place[a.ncols()] as usize;
    let own = RowSet::copy(a, &rows, used, |column| place[column as usize])?;
    Analysis::check_memory(own.view())?;
    let (_, seconds) = order.choose(builder, &Analysis::of(own.view()), T::KIND)?;
    Ok(seconds.unwrap_or(f64::NAN))
}

/// Elements that each part exchanges with the others.
fn exchanged<T: Scalar>(
    a: CsrView<'_, T>,
    partition: &Partition,
    columns: &[usize],
) -> Result<Vec<Exchanged>, Error> {
    let parts = partition.parts();
    let mut exchanged = vec![Exchanged::default(); parts];
    // The last part that uses a column, and the last that has a part as a neighbour.
    let (mut used_by, mut met_by) = (filled(a.ncols(), u32::MAX)?, vec![usize::MAX; parts]);
    let mut pairs = Vec::new();
    for part in 0..parts {
        let own = columns[part]..columns[part + 1];
        for row in partition.rows(part) {
            let mut is_boundary = false;
            for &column in a.row(row).0 {
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
                exchanged[part].boundary_entries += a.row_len(row) as u64;
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
            let steps = simulate(a.view(), &[1, 2, 3, 7], &builder, Link::NETWORK).unwrap();
            for step in steps {
                let parts = DistributedOp::auto(&a, step.ranks).unwrap().explain().parts;
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
        let link = Link { latency: 1e-6, bandwidth: 1e9 };
        let steps = simulate(a.view(), &ranks, &SparseOpBuilder::new(), link).unwrap();
        assert!(steps[1].product_seconds < steps[0].product_seconds, "{steps:?}");
        assert_eq!(steps[0].exchange_seconds, 0.0);
        let [first, last] = [&steps[1], &steps[12]];
        assert!(last.iteration_seconds() > first.compute_seconds / 2000.0);
        assert!(last.exchange_seconds > last.compute_seconds, "{last:?}");
    }

    #[test]
    fn slower_rows_make_smaller_parts() {
        // Rows whose entries are near the diagonal, and as many with scattered ones.
        let rows = 60_000u32;
        let column = |row: u32, k: u32| match row < rows / 2 {
            true => (row + k) % rows,
            false => (row.wrapping_mul(2_654_435_761).wrapping_add(k * 7919)) % rows,
        };
        let columns = (0..rows).flat_map(|row| (0..8).map(move |k| column(row, k))).collect();
        let ends = (0..=rows as usize).map(|row| 8 * row).collect();
        let (n, values) = (rows as usize, vec![1.0f64; 8 * rows as usize]);
        let a = sparseop::CsrMatrix::try_new(n, n, ends, columns, values).unwrap();
        let builder = SparseOpBuilder::new();
        let timed = by_predicted_time(a.view(), 2, &builder).unwrap();
        let even = Partition::of_rows(a.row_ptr(), 2).unwrap();
        let order = SummationOrder::of(RowLengths::of(a.row_ptr()));
        let slowest = |partition: &Partition| {
            let seconds = |part| compute(a.view(), partition, part, order, &builder).unwrap();
            f64::max(seconds(0), seconds(1))
        };
        assert!(slowest(&timed) <= slowest(&even), "{timed:?}");
        assert!(timed.rows(0).len() >= even.rows(0).len(), "{timed:?}");
        for (nrows, parts) in [(0, 3), (1, 1), (2, 5)] {
            let zeros = sparseop::CsrMatrix::<f64>::zeros(nrows, nrows).unwrap();
            let partition = by_predicted_time(zeros.view(), parts, &builder).unwrap();
            assert_eq!((partition.parts(), partition.offsets()[parts]), (parts, nrows));
        }
    }

    #[test]
    fn a_matrix_without_rows_has_a_simulation() {
        let a = sparseop::CsrMatrix::<f32>::zeros(0, 0).unwrap();
        let steps = simulate(a.view(), &[1, 8], &SparseOpBuilder::new(), Link::NETWORK).unwrap();
        assert_eq!((steps[1].empty, steps[1].imbalance), (8, 1.0));
        assert!(simulate(a.view(), &[0], &SparseOpBuilder::new(), Link::NETWORK).is_err());
    }
}
