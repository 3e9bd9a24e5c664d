//! Solvers on the parts of an operator.

use crate::comm::agree;
use crate::equality::check_equal;
use crate::part::PartOp;
use sparseop::{Error, Scalar};
use sparseop_solvers::{
    Ranking, Report, Settings, SolverBuilder, check_square, check_vector, rank,
};
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
        let check =
            |vector, elements| check_vector(vector, elements, self.own_rows(), self.shape());
        agree(&*self.comm, check("b", b).and_then(|()| check("x", &*x)))?;
        check_equal(&*self.comm, "settings of the solver", &format!("{solver:?}"))?;
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
        check_square("pagerank", self.shape())?;
        check_equal(&*self.comm, "settings of pagerank", &format!("{damping} {settings:?}"))?;
        self.checked(rank(self, damping, settings, |_| ControlFlow::Continue(())))
    }
}
