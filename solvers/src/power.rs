//! Power iteration.

use super::checks::{check_square, check_vector, invalid};
use super::driver::{BREAKDOWN, Ended, NOT_FINITE, OWN, RR, TARGET, Workspace, ZERO, counted};
use super::report::{require, seconds};
use super::system::{copy, scaled};
use super::{Outcome, Progress, Settings};
use sparseop::device::fused::{Coefficient, Combine, Dots, Instruction, ONE, Partner};
use sparseop::{DeviceVec, Error, Scalar, SparseOp};
use std::fmt::{self, Display};
use std::ops::ControlFlow;

const METHOD: &str = "power iteration";

/// p·q and q·q, with q = A p: the current estimate of the eigenvalue.
const LAMBDA: u16 = OWN;
const QQ: u16 = OWN + 1;
const INVERSE: u16 = OWN + 2;
const NORM: u16 = OWN + 3;
/// [`MIN`], and its product with q·q.
const FLOOR: u16 = OWN + 4;
const SHARE: u16 = OWN + 5;

/// Lower bound of λ² in units of ‖A v‖²: an estimate of 0, far from any eigenvalue, must not
/// count as exact.
const MIN: f64 = 1e-30;

/// Eigenvalue of largest magnitude and its eigenvector, with the history of their computation.
#[derive(Debug, Clone, PartialEq)]
pub struct Eigenpair<T> {
    /// Eigenvalue: the Rayleigh quotient of the vector.
    pub value: f64,
    /// Eigenvector, of norm 1.
    pub vector: Vec<T>,
    /// Outcome of the iteration.
    pub outcome: Outcome,
    /// Number of iterations.
    pub iterations: usize,
    /// ‖A v − λ v‖ / |λ| of each iteration, with |λ| replaced by 10⁻¹⁵ ‖A v‖ if
    /// it is smaller.
    pub history: Vec<f64>,
    /// Wall-clock seconds of the iterations.
    pub seconds: f64,
}

impl<T> Display for Eigenpair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, outcome, iterations, .. } = self;
        write!(f, "eigenvalue {value}: {outcome} after {iterations} iterations, ")?;
        write!(f, "relative residual {:.2e}, {}", self.residual(), seconds(self.seconds))
    }
}

impl<T> Eigenpair<T> {
    /// ‖A v − λ v‖ / |λ|; for a symmetric matrix, a bound of the relative error of the
    /// eigenvalue. NaN if the first product is not finite.
    pub fn residual(&self) -> f64 {
        let none = if self.outcome == Outcome::NotFinite { f64::NAN } else { 0.0 };
        self.history.last().copied().unwrap_or(none)
    }

    /// Returns the pair if the iteration has converged.
    ///
    /// # Errors
    ///
    /// [`Error::NotConverged`] with the reason, otherwise.
    pub fn converged(self) -> Result<Self, Error> {
        let reason = match self.outcome {
            Outcome::MaxIterations => {
                "allow more iterations; it never ends where several eigenvalues are of the largest \
                 magnitude"
            }
            Outcome::Breakdown => {
                "the product is 0: the vector it began with has no share in any eigenvector, or \
                 all eigenvalues are 0"
            }
            outcome => outcome.advice(),
        };
        require(self.outcome, METHOD, self.iterations, self.residual(), reason)?;
        Ok(self)
    }
}

/// Power iteration: computes the eigenvalue of largest magnitude of a square matrix, if it is real
/// and unique, from a start vector, which should have a component in the direction of the
/// eigenvector. The observer is called at every check, and may end the iteration.
///
/// # Errors
///
/// [`Error::NotSquare`], [`Error::SolverSetting`]; [`Error::VectorLength`] and [`Error::NotFinite`]
/// for an invalid `start`, and [`Error::SolverSetting`] if it is zero; [`Error::Gpu`] and the other
/// errors of the device.
pub fn power<'a, T: Scalar>(
    op: &SparseOp<T>,
    start: &[T],
    settings: Settings,
    observer: impl FnMut(Progress) -> ControlFlow<()> + 'a,
) -> Result<Eigenpair<T>, Error> {
    let (n, shape) = (op.nrows(), (op.nrows(), op.ncols()));
    check_square(METHOD, shape)?;
    settings.check(METHOD)?;
    check_vector("start", start, 0..n, shape)?;
    // Divided by its largest element first: squares of very small or large elements are not
    // representable.
    let largest = start.iter().map(|x| x.to_f64().abs()).fold(0.0, f64::max);
    if largest == 0.0 {
        return Err(invalid(METHOD, "the vector to begin with is zero; take another"));
    }
    let mut workspace = Workspace::new(op, false);
    let scale = workspace.code.add(&[
        Instruction::StopUnlessFinite(NOT_FINITE, QQ),
        Instruction::StopAtMost(BREAKDOWN, QQ, ZERO),
        Instruction::Sqrt(NORM, QQ),
        Instruction::Div(INVERSE, ONE, NORM),
    ]);
    // The stored value is the residual relative to the eigenvalue.
    let mut relative = vec![
        Instruction::StopUnlessFinite(NOT_FINITE, RR),
        Instruction::Mul(NORM, LAMBDA, LAMBDA),
        Instruction::Mul(SHARE, QQ, FLOOR),
        Instruction::Add(NORM, NORM, SHARE),
        Instruction::Div(RR, RR, NORM),
    ];
    relative.extend(counted(RR));
    let conclude = workspace.code.add(&relative);
    let norm = start.iter().map(|x| (x.to_f64() / largest).powi(2)).sum::<f64>().sqrt();
    let unit: Vec<T> = start.iter().map(|x| T::from_f64(x.to_f64() / largest / norm)).collect();
    // Another stream may still be copying values of the operator.
    op.device().synchronize()?;
    let mut p = DeviceVec::from_slice(op.device(), &unit)?;
    let (mut q, mut difference) = (workspace.zeros()?, workspace.zeros()?);
    let values = [(TARGET, settings.tolerance.powi(2)), (FLOOR, MIN)];
    let ended = workspace.run(&settings, observer, &values, f64::sqrt, |passes| {
        op.apply_device(passes.stream(), &p, &mut q)?;
        let (with, and) = (Some(&p), Some(&q));
        passes.dots(Dots { of: &q, with, and, at: LAMBDA, then: scale, backward: true })?;
        let residual = Combine {
            and: Some((Coefficient::minus(LAMBDA), &p)),
            sums: [Partner::Itself, Partner::Absent],
            at: RR,
            then: conclude,
            ..copy(&q)
        };
        passes.combine(&mut difference, residual)?;
        let inverse = Coefficient::plus(INVERSE);
        passes.combine(&mut p, Combine { backward: true, ..scaled(inverse, &q, None) })
    })?;
    let Ended { registers, outcome, iterations, history, seconds } = ended;
    let (value, vector) = (registers[usize::from(LAMBDA)], p.to_vec()?);
    Ok(Eigenpair { value, vector, outcome, iterations, history, seconds })
}
