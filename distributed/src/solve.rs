//! Solvers on the parts of an operator.

use crate::comm::agree;
use crate::part::PartOp;
use sparseop::{Error, Scalar};
use sparseop_solvers::{Ranking, Report, Settings, SolverBuilder, rank};
use std::ops::ControlFlow;

impl<T: Scalar> PartOp<T> {
    /// Solves A x = b from the given `x`, with the own elements of both. All ranks have the same
    /// settings, and receive the same report.
    ///
    /// Inner products are summed in fixed blocks of rows and a fixed tree of blocks: with plans of
    /// the same bits, so are the iterations and the solution, whatever the number of ranks.
    ///
    /// # Errors
    ///
    /// Those of [`SolverBuilder::build`] and
    /// [`Solver::solve`](sparseop_solvers::Solver::solve), [`Error::RankFailed`] and
    /// [`Error::Communication`].
    pub fn solve(
        &self,
        solver: SolverBuilder<'_, T>,
        b: &[T],
        x: &mut [T],
    ) -> Result<Report, Error> {
        let expected = self.own_rows().len();
        let (nrows, ncols) = self.shape();
        let checked = [("b", b), ("x", &*x)].into_iter().try_for_each(|(vector, elements)| {
            let not_finite = |element: &T| !element.to_f64().is_finite();
            let found = elements.len();
            if found != expected {
                return Err(Error::VectorLength { vector, expected, found, nrows, ncols });
            }
            elements.iter().position(not_finite).map_or(Ok(()), |at| {
                let (index, value) = (self.own_rows().start + at, elements[at].to_f64());
                Err(Error::NotFinite { vector, index, value })
            })
        });
        agree(&*self.comm, checked)?;
        let mut solver = agree(&*self.comm, solver.build(self))?;
        self.checked(solver.solve(b, x))
    }

    /// Ranks of the own pages, for the operator of a
    /// [link matrix](sparseop_solvers::link_matrix); see
    /// [`PageRank::rank`](sparseop_solvers::PageRank::rank).
    ///
    /// # Errors
    ///
    /// [`Error::NotSquare`], those of
    /// [`PageRank::rank`](sparseop_solvers::PageRank::rank), [`Error::RankFailed`] and
    /// [`Error::Communication`].
    pub fn rank_pages(&self, damping: f64, settings: Settings) -> Result<Ranking<T>, Error> {
        let (nrows, ncols) = self.shape();
        if nrows != ncols {
            return Err(Error::NotSquare { method: "pagerank", nrows, ncols });
        }
        self.checked(rank(self, damping, settings, |_| ControlFlow::Continue(())))
    }
}
