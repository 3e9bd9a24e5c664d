//! SystemOperator with several parts in one process.

use crate::comm::{Communicator, reported};
use crate::explain::PartSummary;
use crate::links::link_rows;
use crate::market;
use crate::part::{PartOp, PartSettings};
use crate::partition::Partition;
use crate::threads::{ThreadRank, on_threads};
use crate::{DistributedExplanation, Link};
use sparseop::matrix::{CsrMatrix, CsrView};
use sparseop::{Error, Layout, Multivector, Scalar, SparseOpBuilder, ToCsr, try_zeroed};
use sparseop_solvers::{Method, Ranking, Report, Settings, SolverBuilder};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time after which a rank no longer waits for the others, unless another one is set.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Row-partitioned operator: every part is an ordinary [`SparseOp`](sparseop::SparseOp) for its
/// interior rows and one for its boundary rows, each with a plan that suits them. The parts run on
/// threads of this process.
///
/// ```
/// use sparseop::matrix::gallery;
/// use sparseop_distributed::DistributedOp;
///
/// let a = "poisson2d,n=50".parse::<gallery::Spec>()?.generate::<f64>()?;
/// let op = DistributedOp::auto(&a, 4)?;
/// let (x, mut y) = (vec![1.0; a.ncols()], vec![0.0; a.nrows()]);
/// op.apply(&x, &mut y)?;
/// println!("{}", op.explain());
/// # Ok::<(), sparseop::Error>(())
/// ```
#[derive(Debug)]
pub struct DistributedOp<T: Scalar> {
    ranks: Vec<Arc<ThreadRank>>,
    parts: Vec<PartOp<T>>,
    partition: Partition,
    /// First entry of each row, in the order of the given matrix.
    row_ptr: Vec<usize>,
    link: Link,
    /// Held by the thread that makes the parts work.
    turn: Mutex<()>,
}

/// Builder of a [`DistributedOp`].
#[derive(Debug, Clone)]
pub struct DistributedBuilder {
    parts: usize,
    part_of_row: Option<Vec<u32>>,
    settings: PartSettings,
    time_limit: Duration,
    link: Link,
}

impl DistributedBuilder {
    /// Creates a builder of an operator with so many parts.
    pub fn new(parts: usize) -> Self {
        let settings = PartSettings { builder: SparseOpBuilder::new(), same_bits: true };
        let (part_of_row, link) = (None, Link::MEMORY);
        Self { parts, part_of_row, settings, time_limit: TIME_LIMIT, link }
    }

    /// Sets the part of every row, from 0. By default parts are consecutive rows with about as many
    /// entries. The bits of sums, and therefore of solutions, then depend on the partition.
    #[must_use]
    pub fn partition(mut self, part_of_row: Vec<u32>) -> Self {
        self.part_of_row = Some(part_of_row);
        self
    }

    /// Sets the builder of the operators of each part, which run on the CPU.
    #[must_use]
    pub fn operator(mut self, builder: SparseOpBuilder) -> Self {
        self.settings.builder = builder;
        self
    }

    /// If true, which is the default, products have the same bits with any number of parts: plans
    /// are chosen by prediction among those that give a row the same bits whichever rows are
    /// beside it. If false, every part has the plan that the [builder](Self::operator) chooses.
    #[must_use]
    pub fn same_bits(mut self, same_bits: bool) -> Self {
        self.settings.same_bits = same_bits;
        self
    }

    /// Sets the time after which a part no longer waits for the others. The default is 60 s.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Partitions the matrix and builds its parts.
    ///
    /// # Errors
    ///
    /// [`Error::Partition`] if there is no part or the given partition is not one of the rows;
    /// [`Error::InvalidMatrix`] if the matrix cannot be read as CSR; otherwise as
    /// [`SparseOpBuilder::build`].
    pub fn build<T: Scalar>(&self, a: &impl ToCsr<T>) -> Result<DistributedOp<T>, Error> {
        let a = a.to_csr()?;
        let a = a.view();
        let row_ptr = a.row_ptr();
        let partition = match &self.part_of_row {
            None => Partition::of_rows(row_ptr, self.parts)?,
            Some(parts) if parts.len() == a.nrows() => Partition::given(parts, self.parts)?,
            Some(parts) => {
                let message = format!(
                    "there are parts of {} rows, but the matrix has {}",
                    parts.len(),
                    a.nrows()
                );
                return Err(Error::Partition { message });
            }
        };
        let rows: Arc<[usize]> = partition.offsets().into();
        let columns = partition.columns(a.ncols())?;
        let ranks = ThreadRank::group(self.parts, self.time_limit);
        let places = partition.order().filter(|_| a.nrows() == a.ncols()).map(inverse);
        let build = |rank: Arc<ThreadRank>| {
            let own = rows_of(a, &partition, rank.rank(), places.as_deref())?;
            let (rows, columns) = (rows.clone(), columns.clone());
            PartOp::build(rank, &self.settings, rows, columns, own.view())
        };
        let parts = on_threads(&ranks, ranks.clone(), build)?;
        let (row_ptr, link) = (row_ptr.to_vec(), self.link);
        Ok(DistributedOp { ranks, parts, partition, row_ptr, link, turn: Mutex::default() })
    }

    /// Builds the part of a rank from its rows, with the columns of the whole matrix. All ranks
    /// have the same partition and the same settings.
    ///
    /// # Errors
    ///
    /// [`Error::Partition`] if the partition reorders rows or is not one for these ranks;
    /// [`Error::RanksDiffer`], [`Error::RankFailed`], [`Error::Communication`]; otherwise as
    /// [`SparseOpBuilder::build`].
    pub fn build_part<T: Scalar>(
        &self,
        comm: Arc<dyn Communicator>,
        partition: &Partition,
        own: CsrView<'_, T>,
    ) -> Result<PartOp<T>, Error> {
        let (parts, ranks, wanted) = (partition.parts(), comm.size(), self.parts);
        let refused = if parts != ranks || wanted != ranks {
            format!("it has {parts} parts, and the builder {wanted}, for {ranks} ranks")
        } else if partition.order().is_some() {
            "it reorders rows; reorder the matrix, and give the part of each of its rows".to_owned()
        } else {
            let (rows, columns) = (partition.offsets().into(), partition.columns(own.ncols())?);
            return PartOp::build(comm, &self.settings, rows, columns, own);
        };
        reported(&*comm, Err(Error::Partition { message: refused }))
    }

    /// Reads a `coordinate` file of the Matrix Market in parallel, every rank a range of its bytes,
    /// and builds the part of this rank. No rank ever has all of the matrix.
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
        let (partition, own) = market::read(&*comm, path.as_ref())?;
        self.build_part(comm, &partition, own.view())
    }

    /// Reads a graph as [`read_part`](Self::read_part) reads a matrix, and builds the part of its
    /// [link matrix](sparseop_solvers::link_matrix), for [`PartOp::rank_pages`].
    ///
    /// # Errors
    ///
    /// [`Error::NotSquare`]; [`Error::SolverSetting`] for a weight that is none; otherwise as
    /// [`read_part`](Self::read_part).
    pub fn read_links<T: Scalar>(
        &self,
        comm: Arc<dyn Communicator>,
        path: impl AsRef<Path>,
    ) -> Result<PartOp<T>, Error> {
        let (partition, own) = market::read(&*comm, path.as_ref())?;
        let (partition, own) = link_rows(&*comm, &partition, own)?;
        self.build_part(comm, &partition, own.view())
    }
}

impl<T: Scalar> DistributedOp<T> {
    /// Builds the operator of a matrix with so many parts of consecutive rows and about as many
    /// entries, each on a thread of its own.
    ///
    /// # Errors
    ///
    /// As [`DistributedBuilder::build`].
    pub fn auto(a: &impl ToCsr<T>, parts: usize) -> Result<Self, Error> {
        DistributedBuilder::new(parts).build(a)
    }

    /// Number of rows.
    pub fn nrows(&self) -> usize {
        self.parts[0].shape().0
    }

    /// Number of columns.
    pub fn ncols(&self) -> usize {
        self.parts[0].shape().1
    }

    /// Number of stored entries.
    pub fn nnz(&self) -> u64 {
        self.parts.iter().map(PartOp::nnz).sum()
    }

    /// The parts.
    pub fn parts(&self) -> &[PartOp<T>] {
        &self.parts
    }

    /// The partition of the rows.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// `y = A x`. With plans of the [same bits](DistributedBuilder::same_bits) the bits of `y` do
    /// not depend on the number of parts.
    ///
    /// # Errors
    ///
    /// [`Error::VectorLength`] if a vector has the wrong length; `y` is then untouched.
    pub fn apply(&self, x: &[T], y: &mut [T]) -> Result<(), Error> {
        let (nrows, ncols) = (self.nrows(), self.ncols());
        self.check("x", ncols, x.len())?;
        self.check("y", nrows, y.len())?;
        let (x, by_rows) = (self.gathered(x, 1, nrows == ncols)?, true);
        self.products(1, &x, y, by_rows, |part, x, y| part.apply(x, y))
    }

    /// `y = Aᵀ x`. The transposed matrix is distributed at the first such product.
    ///
    /// # Errors
    ///
    /// As [`apply`](Self::apply), and those of [`SparseOpBuilder::build`].
    pub fn apply_transpose(&self, x: &[T], y: &mut [T]) -> Result<(), Error> {
        let (nrows, ncols) = (self.nrows(), self.ncols());
        self.check("x", nrows, x.len())?;
        self.check("y", ncols, y.len())?;
        let (x, by_rows) = (self.gathered(x, 1, true)?, false);
        self.products(1, &x, y, by_rows, |part, x, y| part.apply_transpose(x, y))
    }

    /// `Y = A X` for several vectors (SpMM), otherwise as [`apply`](Self::apply).
    ///
    /// # Errors
    ///
    /// [`Error::MultivectorMismatch`], [`Error::VectorsLength`].
    pub fn apply_multi(&self, x: Multivector<&[T]>, y: Multivector<&mut [T]>) -> Result<(), Error> {
        let (nrows, ncols) = (self.nrows(), self.ncols());
        let (of_x, of_y) = ((x.count(), x.layout()), (y.count(), y.layout()));
        if of_x != of_y {
            let text = |(count, layout)| format!("{count} vectors in {layout:?} layout");
            return Err(Error::MultivectorMismatch { x: text(of_x), y: text(of_y) });
        }
        let ((count, layout), x, y) = (of_x, x.into_data(), y.into_data());
        for (vectors, len, found) in [("x", ncols, x.len()), ("y", nrows, y.len())] {
            if count.checked_mul(len) != Some(found) {
                return Err(Error::VectorsLength { vectors, count, len, found, nrows, ncols });
            }
        }
        let multiply = |x: &[T], y: &mut [T]| {
            let x = self.gathered(x, count, nrows == ncols)?;
            self.products(count, &x, y, true, |part, x, y| {
                part.apply_multi(Multivector::row_major(x, count), Multivector::row_major(y, count))
            })
        };
        if layout == Layout::RowMajor {
            return multiply(x, y);
        }
        let mut products = try_zeroed(y.len())?;
        multiply(&crate::part::interleaved(x, count), &mut products)?;
        y.copy_from_slice(&crate::part::interleaved(&products, nrows));
        Ok(())
    }

    /// Replaces the values, in the order of the entries of the matrix that the operator was built
    /// from.
    ///
    /// # Errors
    ///
    /// [`Error::ValuesLength`], and nothing has changed; otherwise as [`PartOp::update_values`].
    pub fn update_values(&mut self, values: &[T]) -> Result<(), Error> {
        let expected = self.row_ptr[self.row_ptr.len() - 1];
        if values.len() != expected {
            return Err(Error::ValuesLength { expected, found: values.len() });
        }
        let (row_ptr, partition) = (&self.row_ptr, &self.partition);
        let update = |part: &mut PartOp<T>| {
            let rows = partition.rows(part.rank());
            match partition.order() {
                None => part.update_values(&values[row_ptr[rows.start]..row_ptr[rows.end]]),
                Some(order) => {
                    let entries = order[rows].iter().flat_map(|&row| {
                        let row = row as usize;
                        &values[row_ptr[row]..row_ptr[row + 1]]
                    });
                    part.update_values(&entries.copied().collect::<Vec<T>>())
                }
            }
        };
        on_threads(&self.ranks, self.parts.iter_mut().collect(), update).map(|_| ())
    }

    /// Solves A x = b from the given `x`, with a Jacobi preconditioner if `jacobi` is true.
    ///
    /// # Errors
    ///
    /// Those of [`SolverBuilder::build`] and
    /// [`Solver::solve`](sparseop_solvers::Solver::solve).
    pub fn solve(
        &self,
        method: Method,
        settings: Settings,
        jacobi: bool,
        b: &[T],
        x: &mut [T],
    ) -> Result<Report, Error> {
        let n = self.nrows();
        self.check("b", n, b.len())?;
        self.check("x", n, x.len())?;
        let mut solution = self.gathered(x, 1, true)?.into_owned();
        let b = self.gathered(b, 1, true)?;
        let reports = self.run(self.own_chunks(&mut solution, 1, true), |part, x| {
            let solver = SolverBuilder::new(method).settings(settings);
            let solver = if jacobi { solver.jacobi(part.jacobi()?) } else { solver };
            part.solve(solver, &b[part.own_rows()], x)
        })?;
        self.scatter(&solution, x, 1, true);
        Ok(reports.into_iter().next().expect("there is a part"))
    }

    /// Ranks of the pages, for the operator of a [link matrix](sparseop_solvers::link_matrix); see
    /// [`PageRank::rank`](sparseop_solvers::PageRank::rank).
    ///
    /// # Errors
    ///
    /// [`Error::NotSquare`], and those of
    /// [`PageRank::rank`](sparseop_solvers::PageRank::rank).
    pub fn rank_pages(&self, damping: f64, settings: Settings) -> Result<Ranking<T>, Error> {
        let parts =
            self.run(vec![(); self.parts.len()], |part, ()| part.rank_pages(damping, settings))?;
        let mut all = parts.into_iter();
        let mut ranking = all.next().expect("there is a part");
        all.for_each(|other| ranking.ranks.extend(other.ranks));
        let mut ranks = vec![T::ZERO; ranking.ranks.len()];
        self.scatter(&ranking.ranks, &mut ranks, 1, true);
        Ok(Ranking { ranks, ..ranking })
    }

    /// Explanation: rows, plans, messages and predicted times of every part.
    pub fn explain(&self) -> DistributedExplanation {
        let parts = self.parts.iter().map(PartSummary::of).collect();
        DistributedExplanation::new((self.nrows(), self.ncols()), parts, self.link)
    }

    /// Calls `body` for every part on a thread of its own, with its item.
    fn run<I: Send, R: Send>(
        &self,
        items: Vec<I>,
        body: impl Fn(&PartOp<T>, I) -> Result<R, Error> + Sync,
    ) -> Result<Vec<R>, Error> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let items = self.parts.iter().zip(items).collect();
        on_threads(&self.ranks, items, |(part, item)| body(part, item))
    }

    /// Multiplies on all parts, and writes the products in the order of the given matrix.
    fn products(
        &self,
        count: usize,
        x: &[T],
        y: &mut [T],
        by_rows: bool,
        multiply: impl Fn(&PartOp<T>, &[T], &mut [T]) -> Result<(), Error> + Sync,
    ) -> Result<(), Error> {
        let reordered = self.reorders(by_rows).is_some();
        let mut products = if reordered { try_zeroed(y.len())? } else { Vec::new() };
        let to = if reordered { &mut products[..] } else { &mut *y };
        self.run(self.own_chunks(to, count, by_rows), |part, y| {
            let own = if by_rows { part.own_columns() } else { part.own_rows() };
            multiply(part, &x[own.start * count..own.end * count], y)
        })?;
        if reordered {
            self.scatter(&products, y, count, by_rows);
        }
        Ok(())
    }

    /// Pieces of a vector for each part, of its rows or of its columns.
    fn own_chunks<'a>(
        &self,
        mut elements: &'a mut [T],
        count: usize,
        by_rows: bool,
    ) -> Vec<&'a mut [T]> {
        let own = |part: &PartOp<T>| if by_rows { part.own_rows() } else { part.own_columns() };
        let cut = self.parts.iter().map(|part| {
            let all = std::mem::take(&mut elements);
            let (chunk, rest) = all.split_at_mut(own(part).len() * count);
            elements = rest;
            chunk
        });
        cut.collect()
    }

    /// Order of the elements of a vector of rows or columns, if it differs from that of the given
    /// matrix.
    fn reorders(&self, by_rows: bool) -> Option<&[u32]> {
        self.partition.order().filter(|_| by_rows || self.nrows() == self.ncols())
    }

    /// The elements in the order of the parts.
    fn gathered<'a>(
        &self,
        elements: &'a [T],
        count: usize,
        reordered: bool,
    ) -> Result<std::borrow::Cow<'a, [T]>, Error> {
        let Some(order) = self.partition.order().filter(|_| reordered) else {
            return Ok(elements.into());
        };
        let mut gathered = try_zeroed(elements.len())?;
        for (to, &row) in gathered.chunks_exact_mut(count.max(1)).zip(order) {
            to.copy_from_slice(&elements[row as usize * count..][..count]);
        }
        Ok(gathered.into())
    }

    /// Writes elements in the order of the parts to their places.
    fn scatter(&self, elements: &[T], to: &mut [T], count: usize, by_rows: bool) {
        match self.reorders(by_rows) {
            None => to.copy_from_slice(elements),
            Some(order) => {
                for (from, &row) in elements.chunks_exact(count.max(1)).zip(order) {
                    to[row as usize * count..][..count].copy_from_slice(from);
                }
            }
        }
    }

    fn check(&self, vector: &'static str, expected: usize, found: usize) -> Result<(), Error> {
        let (nrows, ncols) = (self.nrows(), self.ncols());
        if expected == found {
            return Ok(());
        }
        Err(Error::VectorLength { vector, expected, found, nrows, ncols })
    }
}

/// Place of each row in an order.
fn inverse(order: &[u32]) -> Vec<u32> {
    let mut places = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, &row)| places[row as usize] = place as u32);
    places
}

/// Rows of a part, with their columns renumbered by `places`.
fn rows_of<T: Scalar>(
    a: CsrView<'_, T>,
    partition: &Partition,
    part: usize,
    places: Option<&[u32]>,
) -> Result<CsrMatrix<T>, Error> {
    let own = partition.rows(part);
    let rows: Vec<u32> = match partition.order() {
        None => own.map(|row| row as u32).collect(),
        Some(order) => order[own].to_vec(),
    };
    crate::rows::RowSet::copy(a, &rows, a.ncols(), |column| {
        places.map_or(column, |places| places[column as usize])
    })
}
