//! Operator with several parts in one process.

use crate::explain::{HOST_MEMORY, PartSummary};
use crate::multivectors::{checked_vectors, transposed_copy};
use crate::part::PartOp;
use crate::partition::Partition;
use crate::threads::{ThreadRank, on_threads};
use crate::{DistributedExplanation, Link};
use sparseop::device::peers::PeerGroup;
use sparseop::{Error, Layout, Multivector, Scalar, try_zeroed};
use sparseop_solvers::{Method, Ranking, Report, Settings, SolverBuilder, check_length};
use std::sync::{Arc, Mutex, PoisonError};

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
    pub(crate) ranks: Vec<Arc<ThreadRank>>,
    pub(crate) parts: Vec<PartOp<T>>,
    pub(crate) partition: Partition,
    /// Row offsets of the given matrix.
    pub(crate) row_ptr: Vec<usize>,
    pub(crate) link: Link,
    /// Locked by the thread whose call runs on the parts.
    pub(crate) lock: Mutex<()>,
}

impl<T: Scalar> DistributedOp<T> {
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

    /// `y = A x`. With plans of the [same bits](crate::DistributedBuilder::same_bits) the bits of
    /// `y` do not depend on the number of parts.
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
    /// As [`apply`](Self::apply), and those of
    /// [`SparseOpBuilder::build`](sparseop::SparseOpBuilder::build).
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
        let (count, layout) = (x.count(), x.layout());
        let (x, y) = checked_vectors(x, y, [ncols, nrows], (nrows, ncols))?;
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
        multiply(&transposed_copy(x, count), &mut products)?;
        y.copy_from_slice(&transposed_copy(&products, nrows));
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
        let reports = self.run(self.own_elements(&mut solution, 1, true), |part, x| {
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
        let mut page_ranks = try_zeroed(ranking.ranks.len())?;
        self.scatter(&ranking.ranks, &mut page_ranks, 1, true);
        Ok(Ranking { ranks: page_ranks, ..ranking })
    }

    /// Explanation: rows, plans, messages and predicted times of every part.
    pub fn explain(&self) -> DistributedExplanation {
        let parts = self.parts.iter().map(PartSummary::of).collect();
        let transport = self.parts.first().map_or(HOST_MEMORY, |part| part.settings.transport());
        DistributedExplanation::new((self.nrows(), self.ncols()), parts, self.link, transport)
    }

    /// Calls `body` for every part on a thread of its own, with its item.
    fn run<I: Send, R: Send>(
        &self,
        items: Vec<I>,
        body: impl Fn(&PartOp<T>, I) -> Result<R, Error> + Sync,
    ) -> Result<Vec<R>, Error> {
        let _lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let call = self.ranks[0].gpus().map(PeerGroup::call);
        let items = self.parts.iter().zip(items).collect();
        on_threads(&self.ranks, items, |(part, item)| match &call {
            Some(call) => call.run(|| body(part, item)),
            None => body(part, item),
        })
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
        self.run(self.own_elements(to, count, by_rows), |part, y| {
            let own = if by_rows { part.own_columns() } else { part.own_rows() };
            multiply(part, &x[own.start * count..own.end * count], y)
        })?;
        if reordered {
            self.scatter(&products, y, count, by_rows);
        }
        Ok(())
    }

    /// Divides a vector into the own elements of each part, by its rows or its columns.
    fn own_elements<'a>(
        &self,
        mut rest: &'a mut [T],
        count: usize,
        by_rows: bool,
    ) -> Vec<&'a mut [T]> {
        let own = |part: &PartOp<T>| if by_rows { part.own_rows() } else { part.own_columns() };
        let cut = self.parts.iter().map(|part| {
            let (elements, others) =
                std::mem::take(&mut rest).split_at_mut(own(part).len() * count);
            rest = others;
            elements
        });
        cut.collect()
    }

    /// Order of the elements of a vector of rows or columns, if the partition reorders the matrix.
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

    /// Writes elements in the order of the parts to their positions in the given matrix.
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
        check_length(vector, expected, found, (self.nrows(), self.ncols()))
    }
}
