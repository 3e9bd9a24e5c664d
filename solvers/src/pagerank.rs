//! PageRank.

use super::checks::{check_square, invalid};
use super::driver::{Ended, OWN, RR, TARGET, Workspace, counted};
use super::report::{require, seconds};
use super::system::scaled;
use super::{Outcome, Progress, Settings, SystemOperator};
use sparseop::device::fused::{Coefficient, Combine, Dots, Instruction, ONE, Partner};
use sparseop::matrix::{CsrMatrix, CsrView};
use sparseop::{DeviceVec, Error, Scalar, SparseOp, SparseOpBuilder, filled};
use std::fmt::{self, Display};
use std::ops::ControlFlow;

const METHOD: &str = "pagerank";

/// Rank passed along links, before and after damping.
const PASSED: u16 = OWN;
const JUMPS: u16 = OWN + 1;
const DAMPING: u16 = OWN + 2;

/// Stationary distribution of a random walk that follows a link with probability `damping` and
/// otherwise jumps to any page. From pages without links it always jumps.
#[derive(Debug)]
pub struct PageRank<T: Scalar> {
    op: SparseOp<T>,
}

/// Ranks, with the history of their computation.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranking<T> {
    /// Rank of every page; their sum is 1.
    pub ranks: Vec<T>,
    /// Outcome of the iteration.
    pub outcome: Outcome,
    /// Number of iterations.
    pub iterations: usize,
    /// Change of the ranks in each iteration: Σ |new − old|.
    pub history: Vec<f64>,
    /// Wall-clock seconds of the iterations.
    pub seconds: f64,
}

impl<T> Display for Ranking<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, outcome, iterations, history, .. } = self;
        let moved = history.last().copied().unwrap_or(0.0);
        write!(f, "PageRank of {} pages: {outcome} after {iterations} iterations, ", ranks.len())?;
        write!(f, "{moved:.2e} of the rank moved in the last, {}", seconds(self.seconds))
    }
}

impl<T: Scalar> Ranking<T> {
    /// The `count` pages of highest rank, in descending order; of equal ones the lower number
    /// first.
    pub fn top(&self, count: usize) -> Vec<(usize, T)> {
        /// Least number of pages that are compared at a time.
        const PAGES: usize = 1 << 12;
        let rank = |page: &usize| self.ranks[*page].to_f64();
        let higher_first = |a: &usize, b: &usize| rank(b).total_cmp(&rank(a)).then(a.cmp(b));
        // Memory for twice as many pages as are returned, not for all.
        let room = count.saturating_mul(2).max(PAGES);
        let mut order: Vec<usize> = Vec::new();
        for page in 0..self.ranks.len() {
            order.push(page);
            if count < order.len() && (order.len() == room || page + 1 == self.ranks.len()) {
                order.select_nth_unstable_by(count, higher_first);
                order.truncate(count);
            }
        }
        order.sort_unstable_by(higher_first);
        order.into_iter().map(|page| (page, self.ranks[page])).collect()
    }

    /// Returns the ranking if the iteration has converged.
    ///
    /// # Errors
    ///
    /// [`Error::NotConverged`] with the reason, otherwise.
    pub fn converged(self) -> Result<Self, Error> {
        let (outcome, residual) = (self.outcome, self.history.last().copied().unwrap_or(f64::NAN));
        require(outcome, METHOD, self.iterations, residual, outcome.advice())?;
        Ok(self)
    }
}

/// Builds the matrix whose product passes rank along links: the transposed graph with columns that
/// sum to 1, or to 0 for pages without links. Entry (i, j) of the graph is a link from page i to
/// page j, and its value the weight of the link. Repeated links are added; links of weight 0 are
/// ignored.
///
/// # Errors
///
/// [`Error::NotSquare`]; [`Error::SolverSetting`] if a weight is negative or not finite, or if the
/// weights of a page add up to an infinite sum; [`Error::HostMemory`].
pub fn link_matrix<T: Scalar>(graph: CsrView<'_, T>) -> Result<CsrMatrix<T>, Error> {
    check_square(METHOD, (graph.nrows(), graph.ncols()))?;
    let mut scaled = graph.try_to_owned()?;
    for row in 0..graph.nrows() {
        let range = graph.row_range(row);
        scale_links(row, &mut scaled.values_mut()[range])?;
    }
    scaled.view().try_transpose()
}

/// Divides the weights of the links of a page, counted from 0, by their sum, unless that is 0.
///
/// # Errors
///
/// [`Error::SolverSetting`], as [`link_matrix`].
pub fn scale_links<T: Scalar>(row: usize, weights: &mut [T]) -> Result<(), Error> {
    if let Some(weight) =
        weights.iter().find(|weight| !(weight.to_f64() >= 0.0 && weight.to_f64().is_finite()))
    {
        let message = format!(
            "the weight of a link is a finite number from 0 on, but page {row}, counted from \
                 0, has one of {weight}"
        );
        return Err(invalid(METHOD, message));
    }
    let sum: f64 = weights.iter().map(|weight| weight.to_f64()).sum();
    if sum.is_infinite() {
        let message = format!(
            "the weights of the links of page {row}, counted from 0, add up to more than a \
                 number can hold; scale them"
        );
        return Err(invalid(METHOD, message));
    }
    if sum > 0.0 {
        weights.iter_mut().for_each(|weight| *weight = T::from_f64(weight.to_f64() / sum));
    }
    Ok(())
}

impl<T: Scalar> PageRank<T> {
    /// Prepares the [link matrix](link_matrix) of a graph with the settings of `builder`.
    ///
    /// # Errors
    ///
    /// Those of [`link_matrix`] and [`SparseOpBuilder::build`].
    pub fn new(graph: CsrView<'_, T>, builder: &SparseOpBuilder) -> Result<Self, Error> {
        Ok(Self { op: builder.build(&link_matrix(graph)?)? })
    }

    /// The operator of the link matrix.
    pub fn op(&self) -> &SparseOp<T> {
        &self.op
    }

    /// Computes the ranks of the pages. `damping` is in [0, 1), usually 0.85. The observer is
    /// called at every check, and may end the iteration.
    ///
    /// # Errors
    ///
    /// [`Error::SolverSetting`]; [`Error::Gpu`] and the other errors of the device.
    pub fn rank<'a>(
        &self,
        damping: f64,
        settings: Settings,
        observer: impl FnMut(Progress) -> ControlFlow<()> + 'a,
    ) -> Result<Ranking<T>, Error> {
        rank(&self.op, damping, settings, observer)
    }
}

/// Ranks of the pages whose rows of a [link matrix](link_matrix) the operator has; see
/// [`PageRank::rank`].
///
/// # Errors
///
/// As [`PageRank::rank`].
pub fn rank<'a, T: Scalar>(
    op: &impl SystemOperator<T>,
    damping: f64,
    settings: Settings,
    observer: impl FnMut(Progress) -> ControlFlow<()> + 'a,
) -> Result<Ranking<T>, Error> {
    settings.check(METHOD)?;
    if !(0.0..1.0).contains(&damping) {
        return Err(invalid(METHOD, format!("damping is from 0 on and below 1, not {damping}")));
    }
    let pages = op.shape().0;
    if pages == 0 {
        let (ranks, outcome) = (Vec::new(), Outcome::Converged);
        return Ok(Ranking { ranks, outcome, iterations: 0, history: Vec::new(), seconds: 0.0 });
    }
    let mut workspace = Workspace::new(op, false);
    // Rank that is not passed along links is distributed by jumps. This includes the rank of
    // pages without links, which need no separate treatment.
    let jump = workspace
        .code
        .add(&[Instruction::Mul(PASSED, DAMPING, PASSED), Instruction::Sub(JUMPS, ONE, PASSED)]);
    let conclude = workspace.code.add(&counted(RR));
    let even = filled(workspace.n, T::from_f64(1.0 / pages as f64))?;
    let uniform = DeviceVec::from_slice(op.device(), &even)?;
    let mut ranks = DeviceVec::from_slice(op.device(), &even)?;
    drop(even);
    let mut passed = workspace.zeros()?;
    let values = [(DAMPING, damping), (TARGET, settings.tolerance)];
    let ended = workspace.run(
        &settings,
        observer,
        &values,
        |change| change,
        |passes| {
            op.apply_device(passes.stream(), &ranks, &mut passed)?;
            let (of, then) = (&passed, jump);
            passes.dots(Dots { of, with: None, and: None, at: PASSED, then, backward: true })?;
            let next = Combine {
                and: Some((Coefficient::plus(JUMPS), &uniform)),
                sums: [Partner::Change, Partner::Absent],
                at: RR,
                then: conclude,
                ..scaled(Coefficient::plus(DAMPING), &passed, None)
            };
            passes.combine(&mut ranks, next)
        },
    )?;
    let Ended { outcome, iterations, history, seconds, .. } = ended;
    Ok(Ranking { ranks: ranks.to_vec()?, outcome, iterations, history, seconds })
}
