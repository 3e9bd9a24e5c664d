//! Chebyshev iteration, and estimates of its eigenvalue bounds.

use super::cg::finish_step;
use super::checks::invalid;
use super::driver::{DIVERGED, OWN, Observer, RR, SECOND, THIRD, Workspace, ZERO, counted, ring};
use super::system::{Iteration, System, axpy, scaled};
use super::{Jacobi, Method, Outcome, Progress, Settings, SolverBuilder, SystemOperator};
use sparseop::device::fused::{Coefficient, Combine, Instruction, ONE, Partner, Program, Step};
use sparseop::{DeviceVec, Error, Scalar};

const RHO: u16 = OWN;
const BETA: u16 = OWN + 1;
const GAMMA: u16 = OWN + 2;
const TWO_SIGMA: u16 = OWN + 3;
const TWO_OVER_DELTA: u16 = OWN + 4;
const INVERSE_CENTRE: u16 = OWN + 5;
const DIVERGENCE: u16 = OWN + 6;
const A: u16 = OWN + 7;

/// Growth of ‖r‖² at which the iteration is stopped.
const DIVERGENCE_RATIO: f64 = 1e16;

/// Chebyshev iteration: like conjugate gradients, with step lengths computed from the bounds.
#[derive(Debug)]
pub(super) struct Chebyshev<T: Scalar> {
    bounds: (f64, f64),
    p: DeviceVec<T>,
    q: DeviceVec<T>,
    conclude: Program,
}

impl<T: Scalar> Chebyshev<T> {
    pub(super) fn new(workspace: &mut Workspace<'_, T>, bounds: (f64, f64)) -> Result<Self, Error> {
        let (low, high) = bounds;
        if !(low > 0.0 && high > low && high.is_finite()) {
            let message = format!(
                "bounds of eigenvalues are two finite numbers above 0, the lower one first, not \
                 {low} and {high}"
            );
            return Err(invalid("chebyshev", message));
        }
        let mut conclude = counted(RR).to_vec();
        conclude.extend([
            Instruction::StopAtMost(DIVERGED, DIVERGENCE, RR),
            Instruction::Sub(A, TWO_SIGMA, RHO),
            Instruction::Div(A, ONE, A),
            Instruction::Mul(BETA, A, RHO),
            Instruction::Mul(GAMMA, A, TWO_OVER_DELTA),
            Instruction::Add(RHO, A, ZERO),
        ]);
        let conclude = workspace.code.add(&conclude);
        Ok(Self { bounds, p: workspace.zeros()?, q: workspace.zeros()?, conclude })
    }
}

impl<T: Scalar> Iteration<T> for Chebyshev<T> {
    fn start(&mut self, system: &mut System<'_, T>, registers: &mut [f64]) -> Result<(), Error> {
        let (low, high) = self.bounds;
        let (centre, delta) = ((high + low) / 2.0, (high - low) / 2.0);
        let values = [
            (RHO, delta / centre),
            (TWO_SIGMA, 2.0 * centre / delta),
            (TWO_OVER_DELTA, 2.0 / delta),
            (INVERSE_CENTRE, 1.0 / centre),
            (DIVERGENCE, DIVERGENCE_RATIO * registers[usize::from(RR)]),
        ];
        system.set(registers, &values)?;
        let inverse = Coefficient::plus(INVERSE_CENTRE);
        let first = scaled(inverse, &system.r, system.diagonal.as_ref());
        system.passes.combine(&mut self.p, first)
    }

    fn iterate(&mut self, system: &mut System<'_, T>, _: usize) -> Result<(), Error> {
        let System { op, passes, diagonal, x, r, .. } = system;
        let (diagonal, Self { p, q, conclude, .. }) = (diagonal.as_ref(), self);
        op.apply_device(passes.stream(), p, q)?;
        let shorter = Combine {
            sums: [Partner::Itself, Partner::Absent],
            at: RR,
            then: *conclude,
            backward: true,
            ..axpy(Coefficient::minus(ONE), q)
        };
        passes.combine(r, shorter)?;
        let (along, [with, keep]) = (Coefficient::ONE, [GAMMA, BETA].map(Coefficient::plus));
        passes.step(x, p, Step { along, with, r, diagonal, keep, backward: false })
    }

    fn finish(&mut self, system: &mut System<'_, T>, status: u16) -> Result<(), Error> {
        finish_step(system, Coefficient::ONE, &self.p, status)
    }
}

/// Estimates bounds of the eigenvalues of a symmetric positive definite matrix, with or without a
/// preconditioner, for [`Method::Chebyshev`].
///
/// The estimate uses forty steps of conjugate gradients, which are equivalent to Lanczos steps: the
/// eigenvalues of the tridiagonal matrix of their step lengths lie between those of the matrix, and
/// the outermost ones converge fast. The upper bound is raised by 5 %, because Chebyshev iterations
/// diverge for eigenvalues above it. The lower one is lowered by as much; for eigenvalues below it
/// they only converge more slowly.
///
/// # Errors
///
/// [`Error::NotSquare`]; [`Error::NotConverged`] if the matrix is found not to be positive
/// definite; [`Error::Gpu`] and the other errors of the device.
pub fn estimate_bounds<T: Scalar>(
    op: &impl SystemOperator<T>,
    jacobi: Option<&Jacobi<T>>,
) -> Result<(f64, f64), Error> {
    bounds_of(op, jacobi, None)
}

/// As [`estimate_bounds`], with an observer that may end it.
pub(super) fn bounds_of<T: Scalar>(
    op: &impl SystemOperator<T>,
    jacobi: Option<&Jacobi<T>>,
    observer: Option<&mut Observer<'_>>,
) -> Result<(f64, f64), Error> {
    const STEPS: usize = 40;
    const MARGIN: f64 = 0.05;
    let settings =
        Settings { tolerance: T::EPSILON.sqrt(), max_iterations: STEPS, check_every: None };
    let builder = SolverBuilder::new(Method::Cg).settings(settings);
    let builder = match jacobi {
        Some(jacobi) => builder.jacobi(jacobi.clone()),
        None => builder,
    };
    let builder = match observer {
        Some(observer) => builder.progress(|_| observer(Progress { iterations: 0, residual: 1.0 })),
        None => builder,
    };
    let mut solver = builder.build(op)?;
    // The vector has a component in the direction of every eigenvector.
    let b: Vec<T> = op.own_rows().map(|i| T::from_f64(scattered(i as u64))).collect();
    let report = solver.solve(&b, &mut vec![T::ZERO; b.len()])?;
    let steps = report.iterations;
    let failed = [Outcome::NotPositiveDefinite, Outcome::NotFinite, Outcome::Interrupted];
    if failed.contains(&report.outcome) {
        report.converged()?;
    }
    if steps == 0 {
        // An empty matrix: any bounds are valid.
        return Ok((1.0, 2.0));
    }
    let registers = solver.registers();
    let [alpha, beta] =
        [SECOND, THIRD].map(|base| ring(registers, base, 0, steps).collect::<Vec<f64>>());
    let before = |k: usize| if k == 0 { 0.0 } else { beta[k - 1] / alpha[k - 1] };
    let diagonal: Vec<f64> = (0..steps).map(|k| 1.0 / alpha[k] + before(k)).collect();
    let beside: Vec<f64> = (1..steps).map(|k| beta[k - 1].sqrt() / alpha[k - 1]).collect();
    let (low, high) = outermost(&diagonal, &beside);
    Ok((low * (1.0 - MARGIN), high * (1.0 + MARGIN)))
}

/// A number in ±[0.5, 1.5], without a pattern over the indices.
fn scattered(index: u64) -> f64 {
    let mut bits = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits ^= bits >> 32;
    let magnitude = 0.5 + (bits >> 11) as f64 / (1u64 << 53) as f64;
    if bits & 1 == 0 { magnitude } else { -magnitude }
}

/// The least and the largest eigenvalue of a symmetric tridiagonal matrix, by bisection: the number
/// of negative pivots of its factorisation is the number of eigenvalues below the shift (Sturm).
fn outermost(diagonal: &[f64], beside: &[f64]) -> (f64, f64) {
    let radius = |k: usize| {
        beside.get(k).map_or(0.0, |e| e.abs()) + if k == 0 { 0.0 } else { beside[k - 1].abs() }
    };
    let discs = || diagonal.iter().enumerate().map(|(k, d)| (d - radius(k), d + radius(k)));
    let least = discs().map(|disc| disc.0).fold(f64::INFINITY, f64::min);
    let largest = discs().map(|disc| disc.1).fold(f64::NEG_INFINITY, f64::max);
    let below = |shift: f64| {
        let mut pivot = 1.0;
        (0..diagonal.len())
            .filter(|&k| {
                let coupling = if k == 0 { 0.0 } else { beside[k - 1] * beside[k - 1] / pivot };
                pivot = diagonal[k] - shift - coupling;
                // A zero pivot is replaced by the least positive number.
                if pivot == 0.0 {
                    pivot = f64::MIN_POSITIVE;
                }
                pivot < 0.0
            })
            .count()
    };
    let bisect = |wanted: usize| {
        let (mut low, mut high) = (least, largest);
        for _ in 0..100 {
            let middle = low + (high - low) / 2.0;
            if below(middle) >= wanted { high = middle } else { low = middle }
        }
        high
    };
    (bisect(1), bisect(diagonal.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_eigenvalues_of_a_chain_are_known() {
        let n = 20;
        let (low, high) = outermost(&vec![2.0; n], &vec![-1.0; n - 1]);
        let exact = |k: usize| 2.0 - 2.0 * (k as f64 * std::f64::consts::PI / (n + 1) as f64).cos();
        assert!((low - exact(1)).abs() < 1e-12 && (high - exact(n)).abs() < 1e-12, "{low} {high}");
        assert_eq!(outermost(&[3.0], &[]), (3.0, 3.0));
    }
}
