//! Builder of distributed operators.

use crate::Link;
use crate::balance::{Balance, by_predicted_time, rounded_rows, rows_by_predicted_time};
use crate::choice::SlicedPlan;
use crate::comm::{Communicator, reported};
use crate::devices::Devices;
use crate::equality::{check_equal_words, version};
use crate::links::link_rows;
use crate::market;
use crate::operator::DistributedOp;
use crate::part::{PartOp, PartSettings};
use crate::partition::Partition;
use crate::processes::group_of_ranks;
use crate::rows::RowSelection;
use crate::threads::{ThreadRank, on_threads};
use sparseop::device::peers::PeerGroup;
use sparseop::matrix::{CsrMatrix, CsrView};
use sparseop::{Device, Error, Scalar, SparseOpBuilder, ToCsr, filled, listed};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time after which a rank no longer waits for the others, unless another one is set.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// Builder of a [`DistributedOp`].
#[derive(Debug, Clone)]
pub struct DistributedBuilder {
    devices: Devices,
    part_of_row: Option<Vec<u32>>,
    balance: Balance,
    settings: PartSettings,
    time_limit: Duration,
    link: Link,
    rank_device: Device,
    nccl: bool,
}

impl DistributedBuilder {
    /// Creates a builder of an operator with a part on each of the devices, or with the given
    /// number of parts on the CPU.
    pub fn new(devices: impl Into<Devices>) -> Self {
        let devices = devices.into();
        let settings = PartSettings::new(SparseOpBuilder::new());
        let link = if devices.has_gpu() { Link::NVLINK } else { Link::MEMORY };
        let (part_of_row, balance) = (None, Balance::default());
        let (time_limit, rank_device, nccl) = (TIME_LIMIT, Device::Cpu, false);
        Self { devices, part_of_row, balance, settings, time_limit, link, rank_device, nccl }
    }

    /// Sets the part of every row, from 0. The bits of sums, of solutions, and of products with the
    /// transposed matrix then depend on the partition; those of other products do not, but may
    /// differ from those without a given partition on GPUs. By default parts are consecutive rows
    /// with about equally many entries.
    #[must_use]
    pub fn partition(mut self, part_of_row: Vec<u32>) -> Self {
        self.part_of_row = Some(part_of_row);
        self
    }

    /// Sets the quantity that is balanced between parts, unless a
    /// [partition](Self::partition) is given.
    #[must_use]
    pub fn balance(mut self, balance: Balance) -> Self {
        self.balance = balance;
        self
    }

    /// Sets the builder of the operators of each part. They run on the device of the part.
    #[must_use]
    pub fn operator(mut self, builder: SparseOpBuilder) -> Self {
        self.settings.builder = builder;
        self
    }

    /// Restricts the choice to plans whose products have the same bits with any number of parts:
    /// by prediction, among those whose sum of a row does not depend on the other rows. The default
    /// is true. With false every part has the plan that the [builder](Self::operator) chooses.
    #[must_use]
    pub fn same_bits(mut self, same_bits: bool) -> Self {
        self.settings.same_bits = same_bits;
        self
    }

    /// Sets the time after which a part no longer waits for the others. The default is ten minutes,
    /// since failures of threads are reported at once.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Sets the device of the part of this rank, if every rank builds its own; the default is the
    /// CPU. All ranks are on the CPU, or each has a GPU of its own, such as
    /// [`gpu_of_rank`](crate::gpu_of_rank) selects. If all GPUs can access each other's memory,
    /// they do; otherwise NCCL transfers the elements between all of them.
    #[must_use]
    pub fn rank_device(mut self, device: Device) -> Self {
        self.rank_device = device;
        self
    }

    /// Sets that NCCL transfers elements also between GPUs of ranks that can access each other's
    /// memory. The default is false, which is faster.
    #[must_use]
    pub fn nccl(mut self, nccl: bool) -> Self {
        self.nccl = nccl;
        self
    }

    /// Partitions the matrix and builds its parts.
    ///
    /// # Errors
    ///
    /// [`Error::Partition`] if there is no part or the given partition is not one of the rows;
    /// [`Error::DeviceUnavailable`] for a GPU that has two parts or cannot access the memory of the
    /// others, and for parts on GPUs and on the CPU; [`Error::InvalidMatrix`] if the matrix cannot
    /// be read as CSR; otherwise as [`SparseOpBuilder::build`].
    pub fn build<T: Scalar>(&self, a: &impl ToCsr<T>) -> Result<DistributedOp<T>, Error> {
        let a = a.to_csr()?;
        let a = a.view();
        let (row_ptr, count) = (a.row_ptr(), self.devices.len());
        let mut settings = self.settings.clone();
        if self.devices.has_gpu() {
            settings.group = Some(PeerGroup::new(self.devices.as_slice(), self.time_limit)?);
        }
        let (device, balanced) = (settings.device(0), self.part_of_row.is_none());
        if balanced {
            settings.sliced = self.sliced_plan(&device, a)?;
        }
        let partition = match &self.part_of_row {
            None if self.balance == Balance::PredictedTime => {
                by_predicted_time(a, count, &settings.builder, &device, settings.sliced.as_ref())?
            }
            None => Partition::of_rows(row_ptr, count)?,
            Some(parts) if parts.len() == a.nrows() => Partition::given(parts, count)?,
            Some(parts) => {
                let message = format!(
                    "there are parts of {} rows, but the matrix has {}",
                    parts.len(),
                    a.nrows()
                );
                return Err(Error::Partition { message });
            }
        };
        let on_gpus = settings.group.is_some();
        let partition = if on_gpus && balanced { partition.for_gpus() } else { partition };
        let rows: Arc<[usize]> = partition.offsets().into();
        let columns = partition.columns(a.ncols())?;
        let ranks = ThreadRank::group(count, self.time_limit, settings.group.clone());
        let order = partition.order().filter(|_| a.nrows() == a.ncols());
        let places = order.map(inverse).transpose()?;
        let build = |rank: Arc<ThreadRank>| {
            let own = rows_of(a, &partition, rank.rank(), places.as_deref())?;
            let (rows, columns) = (rows.clone(), columns.clone());
            PartOp::build(rank, &settings, rows, columns, own.view()?)
        };
        let parts = on_threads(&ranks, ranks.clone(), build)?;
        let (row_ptr, link) = (listed(row_ptr.iter().copied())?, self.link);
        Ok(DistributedOp { ranks, parts, partition, row_ptr, link, lock: Mutex::default() })
    }

    /// Packed SELL for the parts of a whole matrix, if it is admitted and predicted to be the
    /// fastest.
    fn sliced_plan<T: Scalar>(
        &self,
        device: &Device,
        a: CsrView<'_, T>,
    ) -> Result<Option<SlicedPlan>, Error> {
        match self.settings.same_bits {
            true => SlicedPlan::of(&self.settings.builder, device, a),
            false => Ok(None),
        }
    }

    /// Builds the part of a rank from its rows, with the columns of the whole matrix. All ranks
    /// have the same partition and the same settings. On GPUs sums have the same bits with any
    /// number of ranks if the partition is one [for GPUs](Partition::for_gpus).
    ///
    /// # Errors
    ///
    /// [`Error::Partition`] if the partition reorders rows or is not one for these ranks, or if the
    /// builder has GPUs; [`Error::DeviceUnavailable`] if GPUs of ranks cannot access each other's
    /// memory; [`Error::RanksDiffer`], [`Error::RankFailed`] and [`Error::Communication`];
    /// otherwise as [`SparseOpBuilder::build`].
    pub fn build_part<T: Scalar>(
        &self,
        comm: Arc<dyn Communicator>,
        partition: &Partition,
        own: CsrView<'_, T>,
    ) -> Result<PartOp<T>, Error> {
        let group = self.group_of_ranks(&*comm)?;
        self.build_in_group(comm, partition, own, group, None)
    }

    /// The GPUs of all ranks; `None` if they are on the CPU.
    fn group_of_ranks(&self, comm: &dyn Communicator) -> Result<Option<Arc<PeerGroup>>, Error> {
        group_of_ranks(comm, &self.rank_device, self.time_limit, self.nccl)
    }

    /// Builds the part of a rank, on a GPU of the group if there is one.
    fn build_in_group<T: Scalar>(
        &self,
        comm: Arc<dyn Communicator>,
        partition: &Partition,
        own: CsrView<'_, T>,
        group: Option<Arc<PeerGroup>>,
        sliced: Option<SlicedPlan>,
    ) -> Result<PartOp<T>, Error> {
        let (parts, ranks, wanted) = (partition.parts(), comm.size(), self.devices.len());
        let refused = if self.devices.has_gpu() {
            "it has devices of parts; the part of a rank has its rank_device".to_owned()
        } else if parts != ranks || wanted != ranks {
            format!("it has {parts} parts, and the builder {wanted}, for {ranks} ranks")
        } else if partition.order().is_some() {
            "it reorders rows; reorder the matrix, and give the part of each of its rows".to_owned()
        } else {
            let (rows, columns) = (partition.offsets().into(), partition.columns(own.ncols())?);
            let settings = PartSettings { group, sliced, ..self.settings.clone() };
            return PartOp::build(comm, &settings, rows, columns, own);
        };
        reported(&*comm, Err(Error::Partition { message: refused }))
    }

    /// Builds the part of a rank from a matrix that every rank has whole. Parts are consecutive
    /// rows, [balanced](Self::balance).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidMatrix`] if the matrix cannot be read as CSR; otherwise as
    /// [`build_part`](Self::build_part).
    pub fn build_part_of<T: Scalar>(
        &self,
        comm: Arc<dyn Communicator>,
        a: &impl ToCsr<T>,
    ) -> Result<PartOp<T>, Error> {
        let cut = || {
            let a = a.to_csr()?;
            let partition = Partition::of_rows(a.view().row_ptr(), comm.size())?;
            let own = rows_of(a.view(), &partition, comm.rank(), None)?.into_owned()?;
            Ok(((partition, own), self.sliced_plan(&self.rank_device, a.view())?))
        };
        let (rows, sliced) = reported(&*comm, cut())?;
        let sliced = SlicedPlan::of_first(&*comm, sliced)?;
        self.build_balanced(comm, rows, sliced)
    }

    /// Reads a `coordinate` file of the Matrix Market in parallel, every rank a range of its bytes,
    /// and builds the part of this rank. No rank has the whole matrix.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] and [`Error::Market`], for a compressed file or an `array`, too; otherwise as
    /// [`build_part`](Self::build_part).
    pub fn read_part<T: Scalar>(
        &self,
        comm: Arc<dyn Communicator>,
        path: impl AsRef<Path>,
    ) -> Result<PartOp<T>, Error> {
        let (partition, own, findings) = market::read(&*comm, path.as_ref())?;
        let mut part = self.build_balanced(comm, (partition, own), None)?;
        part.findings = findings;
        Ok(part)
    }

    /// Reads a graph as [`read_part`](Self::read_part) reads a matrix, and builds the part of its
    /// [link matrix](sparseop_solvers::link_matrix), for [`PartOp::rank_pages`].
    ///
    /// # Errors
    ///
    /// [`Error::NotSquare`]; [`Error::SolverSetting`] for an invalid weight; otherwise as
    /// [`read_part`](Self::read_part).
    pub fn read_links<T: Scalar>(
        &self,
        comm: Arc<dyn Communicator>,
        path: impl AsRef<Path>,
    ) -> Result<PartOp<T>, Error> {
        let (partition, own, findings) = market::read(&*comm, path.as_ref())?;
        let rows = link_rows(&*comm, &partition, own)?;
        let mut part = self.build_balanced(comm, rows, None)?;
        part.findings = findings;
        Ok(part)
    }

    /// Builds the part of a rank from rows with equally many entries, after the ranks have
    /// exchanged rows as [`balance`](Self::balance) says.
    fn build_balanced<T: Scalar>(
        &self,
        comm: Arc<dyn Communicator>,
        (even, own): (Partition, CsrMatrix<T>),
        sliced: Option<SlicedPlan>,
    ) -> Result<PartOp<T>, Error> {
        check_equal_words(
            &*comm,
            &[
                version(),
                ("bytes of a number", size_of::<T>() as u64),
                ("rows of the matrix", even.offsets()[even.parts()] as u64),
                ("columns of the matrix", own.ncols() as u64),
                ("balances of the parts", self.balance as u64),
            ],
        )?;
        let group = self.group_of_ranks(&*comm)?;
        let (partition, own) = match self.balance {
            Balance::Entries => (even, own),
            Balance::PredictedTime => {
                let (builder, device) = (&self.settings.builder, &self.rank_device);
                rows_by_predicted_time(&*comm, even, own, builder, device, sliced.as_ref())?
            }
        };
        let (partition, own) = match group {
            None => (partition, own),
            Some(_) => rounded_rows(&*comm, partition, own)?,
        };
        self.build_in_group(comm, &partition, own.view(), group, sliced)
    }
}

impl<T: Scalar> DistributedOp<T> {
    /// Builds the operator of a matrix with a part on each of the [`Devices`], or with the given
    /// number of parts on the CPU. Each has a thread of its own. Parts are consecutive rows with
    /// about equally many entries.
    ///
    /// # Errors
    ///
    /// As [`DistributedBuilder::build`].
    pub fn auto(a: &impl ToCsr<T>, devices: impl Into<Devices>) -> Result<Self, Error> {
        DistributedBuilder::new(devices).build(a)
    }
}

/// Place of each row in an order.
fn inverse(order: &[u32]) -> Result<Vec<u32>, Error> {
    let mut places = filled(order.len(), 0)?;
    order.iter().enumerate().for_each(|(place, &row)| places[row as usize] = place as u32);
    Ok(places)
}

/// Rows of a part, with their columns renumbered by `places`.
fn rows_of<'a, T: Scalar>(
    a: CsrView<'a, T>,
    partition: &Partition,
    part: usize,
    places: Option<&[u32]>,
) -> Result<RowSelection<'a, T>, Error> {
    let own = partition.rows(part);
    let rows = match partition.order() {
        None => listed(own.map(|row| row as u32)),
        Some(order) => listed(order[own].iter().copied()),
    }?;
    match places {
        None => RowSelection::unchanged(a, &rows),
        Some(places) => {
            RowSelection::new(a, &rows, a.ncols(), Some(|column| places[column as usize]))
        }
    }
}
