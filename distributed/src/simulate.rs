//! Simulation: the parts, messages and predicted times of a matrix on many ranks.

use crate::balance::RowTimes;
use crate::choice::{RowLengths, SlicedPlan, SummationOrder};
use crate::explain::{Link, imbalance, longest, product_seconds};
use crate::gpu::overlaps;
use crate::part::interior_and_boundary;
use crate::partition::{Partition, owner};
use crate::rows::RowSelection;
use sparseop::analysis::Analysis;
use sparseop::matrix::{CsrMatrix, CsrView};
use sparseop::{Device, Error, ErrorKind, Scalar, SparseOpBuilder, Tuning, filled, listed};

/// Vectors that an iteration of CG reads and writes besides the product, and its launches.
const CG_VECTORS: f64 = 11.0;
const CG_LAUNCHES: f64 = 3.0;

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
    /// True if the largest part fits the memory of a device. Otherwise the times of the rows and
    /// of a product are NaN, as they are if the profile does not predict them.
    pub fits: bool,
    /// Predicted seconds of the rows of the largest part.
    pub compute_seconds: f64,
    /// Predicted seconds of the messages of a product.
    pub exchange_seconds: f64,
    /// Predicted seconds of a product: interior rows and messages, at the same time on CPUs and if
    /// a GPU has many interior rows, and boundary rows.
    pub product_seconds: f64,
    /// Predicted seconds of a sum over all ranks, of which an iteration of CG has two.
    pub sum_seconds: f64,
    /// Predicted seconds of the vector operations of an iteration of CG, at the speed of a copy.
    pub vector_seconds: f64,
}

impl ScalingStep {
    /// Predicted seconds of an iteration of CG: a product, two sums, and vector operations.
    pub fn iteration_seconds(&self) -> f64 {
        self.product_seconds + 2.0 * self.sum_seconds + self.vector_seconds
    }
}

/// Times of the vector operations of an iteration of CG: `launches + rows × row`, in seconds.
#[derive(Clone, Copy)]
struct VectorTimes {
    launches: f64,
    row: f64,
}

impl VectorTimes {
    fn of<T: Scalar>(builder: &SparseOpBuilder, device: &Device) -> Result<Self, Error> {
        let one = Analysis::of(CsrMatrix::<T>::zeros(1, 1)?.view());
        let builder = builder.clone().device(device.clone()).tuning(Tuning::Predict);
        let ceilings = builder.decide(&one, T::KIND)?.profile.ceilings;
        let bandwidth = device.copy_bandwidth()?.or(ceilings.copy_bandwidth);
        Ok(Self {
            launches: CG_LAUNCHES * ceilings.launch_us.unwrap_or_default() * 1e-6,
            row: CG_VECTORS * size_of::<T>() as f64 / bandwidth.unwrap_or(f64::NAN),
        })
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
    let sliced = SlicedPlan::of(builder, device, a)?;
    let times = RowTimes { builder, device, order, sliced: sliced.as_ref() };
    let vectors = VectorTimes::of::<T>(builder, device)?;
    ranks.iter().map(|&ranks| step(a, ranks, times, vectors, link)).collect()
}

fn step<T: Scalar>(
    a: CsrView<'_, T>,
    ranks: usize,
    times: RowTimes<'_>,
    vectors: VectorTimes,
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
    let (interior, boundary) = interior_and_boundary(own.view()?, &own_columns, slice_rows)?;
    let seconds = || -> Result<[f64; 2], Error> {
        Ok([times.of(own.view()?, &interior)?, times.of(own.view()?, &boundary)?])
    };
    let (rows, fits) = match seconds() {
        Err(error) if error.kind() == ErrorKind::OutOfMemory => ([f64::NAN; 2], false),
        seconds => (seconds?, true),
    };
    let interior_entries = entries(largest) - exchanged[largest].boundary_entries;
    let bytes = |part: &Exchanged| part.received.max(part.sent) * size_of::<T>() as u64;
    let messages = |part: &Exchanged| link.exchange(part.neighbours as usize, bytes(part));
    let exchange_seconds = longest(exchanged.iter().map(messages));
    let overlap = overlaps(device, interior_entries);
    let product_seconds = product_seconds(rows, exchange_seconds, overlap);
    let sum = |of: fn(&Exchanged) -> u64| exchanged.iter().map(of).sum::<u64>();
    let most_rows = parts().map(|part| partition.rows(part).len()).max().unwrap_or_default();
    Ok(ScalingStep {
        ranks,
        empty: parts().filter(|&part| partition.rows(part).is_empty()).count(),
        rows: most_rows as u64,
        nnz: parts().map(entries).max().unwrap_or_default(),
        imbalance: imbalance(parts().map(work)),
        halo_bytes: exchanged.iter().map(bytes).max().unwrap_or_default(),
        total_bytes: sum(|part| part.received) * size_of::<T>() as u64,
        neighbours: exchanged.iter().map(|part| part.neighbours).max().unwrap_or_default(),
        boundary_share: sum(|part| part.boundary_entries) as f64 / a.nnz().max(1) as f64,
        fits,
        compute_seconds: rows[0] + rows[1],
        exchange_seconds,
        product_seconds,
        sum_seconds: link.sum(ranks),
        vector_seconds: vectors.launches + vectors.row * most_rows as f64,
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
    let mut exchanged = filled(parts, Exchanged::default())?;
    // The last part that uses a column, and the last that has a part as a neighbour.
    let (mut used_by, mut met_by) = (filled(a.ncols(), u32::MAX)?, filled(parts, u32::MAX)?);
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
                if std::mem::replace(&mut met_by[from], part as u32) != part as u32 {
                    pairs.push([part.min(from) as u32, part.max(from) as u32]);
                }
            }
            if is_boundary {
                exchanged[part].boundary_entries += entries.len() as u64;
            }
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    for part in pairs.into_iter().flatten() {
        exchanged[part as usize].neighbours += 1;
    }
    Ok(exchanged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DistributedOp;
    use sparseop::matrix::gallery;

    /// Compares simulations with operators on 1 to 3 of the devices.
    fn parts_are_those_of_operators(devices: &[Device], link: Link, specs: &[&str]) {
        for spec in specs {
            let a = spec.parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
            let builder = SparseOpBuilder::new();
            let ranks: Vec<usize> = (1..=devices.len()).collect();
            let steps = simulate(a.view(), &ranks, &builder, &devices[0], link).unwrap();
            for step in steps {
                let op = DistributedOp::auto(&a, devices[..step.ranks].to_vec()).unwrap();
                let explained = op.explain();
                let ratio = step.product_seconds / explained.product_seconds();
                assert!((0.8..1.25).contains(&ratio), "{spec}: {ratio} {step:?}\n{explained}");
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
                assert!(step.fits && step.iteration_seconds() > step.product_seconds);
            }
        }
    }

    #[test]
    fn parts_and_messages_are_those_of_operators() {
        let cpus = vec![Device::Cpu; 7];
        let specs = ["poisson2d,n=40", "webbase,rows=2k", "lp,rows=40", "small"];
        parts_are_those_of_operators(&cpus, Link::MEMORY, &specs);
    }

    /// Packed SELL with and without overlap, and rows summed by themselves.
    #[test]
    fn parts_on_gpus_are_those_of_operators() {
        if sparseop_testkit::gpu().is_some() {
            let gpus = Device::gpus();
            let specs = ["poisson3d,n=90,values=laplacian", "fem3d,n=12", "webbase,rows=20k"];
            parts_are_those_of_operators(&gpus[..gpus.len().min(3)], Link::NVLINK, &specs);
        }
    }

    #[test]
    fn boundary_entries_are_those_of_groups_of_rows() {
        let a = "webbase,rows=2k".parse::<gallery::Spec>().unwrap().generate::<f32>().unwrap();
        let partition = Partition::of_rows(a.row_ptr(), 3).unwrap();
        let columns = partition.columns(a.ncols()).unwrap();
        for slice_rows in [1, 32, 512] {
            let found = exchanged(a.view(), &partition, &columns, slice_rows).unwrap();
            for (part, found) in found.iter().enumerate() {
                let rows: Vec<u32> = partition.rows(part).map(|row| row as u32).collect();
                let rows = RowSelection::unchanged(a.view(), &rows).unwrap();
                let own = columns[part] as u32..columns[part + 1] as u32;
                let rows = rows.view().unwrap();
                let (_, boundary) = interior_and_boundary(rows, &own, slice_rows).unwrap();
                let entries = boundary.iter().map(|&row| rows.row_len(row as usize) as u64);
                assert_eq!(found.boundary_entries, entries.sum::<u64>());
            }
        }
    }

    #[test]
    fn parts_that_do_not_fit_have_no_times() {
        let a = "poisson2d,n=40".parse::<gallery::Spec>().unwrap().generate::<f64>().unwrap();
        let builder = SparseOpBuilder::new().memory_limit(60_000);
        let steps = simulate(a.view(), &[1, 8], &builder, &Device::Cpu, Link::MEMORY).unwrap();
        assert!(!steps[0].fits && steps[0].product_seconds.is_nan(), "{:?}", steps[0]);
        assert!(steps[1].fits && steps[1].product_seconds > 0.0, "{:?}", steps[1]);
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
