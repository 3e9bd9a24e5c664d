//! Restarted GMRES (generalised minimal residuals).

use super::Method;
use super::checks::invalid;
use super::driver::{
    BREAKDOWN, CONVERGED, HISTORY, ITERATIONS, LIMIT, NOT_FINITE, OWN, REGISTERS, RR, TARGET,
    Workspace, ring,
};
use super::system::{BatchResults, Iteration, System, axpy, scaled};
use sparseop::device::fused::{Coefficient, Combine, Dots, Instruction, ONE, Partner, Program};
use sparseop::{DeviceVec, Error, Scalar};

/// ‖w‖² after orthogonalisation against the basis, its root, and the inverse of the root.
const WW: u16 = OWN;
const NORM: u16 = OWN + 1;
const INVERSE: u16 = OWN + 2;
/// Number of finished columns of the Hessenberg matrix.
const COLUMN: u16 = OWN + 3;
/// 1 / ‖r‖
const START: u16 = OWN + 4;

/// Tolerance of linear dependence, in epsilons times the longest column: rounding may leave as much
/// of a column in the span of the others. Division by it would ruin `x`.
const NOTHING: f64 = 16.0;

/// GMRES. The basis is computed on the device, where no iteration waits for the host. The small
/// least-squares problem is solved on the host, whenever it reads the registers. Element (i, j) of
/// the Hessenberg matrix is in register `element(i, j)`, except the last element of a column, which
/// is in the ring buffer.
#[derive(Debug)]
pub(super) struct Gmres<T: Scalar> {
    restart: usize,
    basis: Vec<DeviceVec<T>>,
    /// The newest vector after preconditioning, if there is a preconditioner.
    scaled: Option<DeviceVec<T>>,
    conclude: Program,
    problem: LeastSquares,
}

/// min ‖β e₁ − H y‖, a column at a time, by Givens rotations.
#[derive(Debug, Default)]
struct LeastSquares {
    /// Processed columns.
    columns: Vec<Vec<f64>>,
    rotations: Vec<(f64, f64)>,
    right: Vec<f64>,
    /// Norm of the longest column, of this problem or of those before.
    longest: f64,
    /// Tolerance of linear dependence, relative to the longest column.
    nothing: f64,
}

impl LeastSquares {
    fn new(norm: f64, longest: f64, nothing: f64) -> Self {
        Self { right: vec![norm], longest, nothing, ..Self::default() }
    }

    /// Adds a column and returns the norm of the residual; `None` if, up to rounding, the column is
    /// in the span of those before.
    fn push(&mut self, mut column: Vec<f64>) -> Option<f64> {
        let j = self.columns.len();
        self.longest = column.iter().map(|h| h * h).sum::<f64>().sqrt().max(self.longest);
        for (i, (c, s)) in self.rotations.iter().enumerate() {
            let (upper, lower) = (column[i], column[i + 1]);
            column[i] = c * upper + s * lower;
            column[i + 1] = c * lower - s * upper;
        }
        let length = column[j].hypot(column[j + 1]);
        if length <= self.nothing * self.longest {
            return None;
        }
        let (c, s) = (column[j] / length, column[j + 1] / length);
        column[j] = length;
        column.truncate(j + 1);
        let last = self.right[j];
        self.right[j] = c * last;
        self.right.push(-s * last);
        self.rotations.push((c, s));
        self.columns.push(column);
        Some((s * last).abs())
    }

    /// Returns the minimiser, by back substitution with the triangle that the rotations give.
    fn solution(&self) -> Vec<f64> {
        let mut y = self.right[..self.columns.len()].to_vec();
        for j in (0..y.len()).rev() {
            y[j] /= self.columns[j][j];
            let solved = y[j];
            y[..j].iter_mut().zip(&self.columns[j]).for_each(|(y, h)| *y -= solved * h);
        }
        y
    }
}

impl<T: Scalar> Gmres<T> {
    pub(super) fn new(workspace: &mut Workspace<'_, T>, restart: usize) -> Result<Self, Error> {
        if !(1..=Method::MAX_RESTART).contains(&restart) {
            let message = format!(
                "it is restarted after 1 to {} iterations, not {restart}",
                Method::MAX_RESTART
            );
            return Err(invalid("gmres", message));
        }
        let conclude = workspace.code.add(&[
            Instruction::Sqrt(NORM, WW),
            Instruction::Push(HISTORY, NORM, COLUMN),
            Instruction::Add(COLUMN, COLUMN, ONE),
            Instruction::Div(INVERSE, ONE, NORM),
        ]);
        Ok(Self {
            restart,
            basis: (0..=restart).map(|_| workspace.zeros()).collect::<Result<_, _>>()?,
            scaled: workspace.preconditioned.then(|| workspace.zeros()).transpose()?,
            conclude,
            problem: LeastSquares::default(),
        })
    }

    /// Register of element (i, j) of the Hessenberg matrix.
    fn element(&self, i: usize, j: usize) -> u16 {
        // Within MAX_REGISTERS, because the restart length is at most 100.
        REGISTERS + (j * self.restart + i) as u16
    }
}

impl<T: Scalar> Iteration<T> for Gmres<T> {
    fn registers(&self) -> usize {
        usize::from(REGISTERS) + self.restart * self.restart
    }

    fn restart(&self) -> Option<usize> {
        Some(self.restart)
    }

    fn start(&mut self, system: &mut System<'_, T>, registers: &mut [f64]) -> Result<(), Error> {
        let norm = registers[usize::from(RR)].sqrt();
        // The longest column of another solution must not affect this one.
        let longest =
            if registers[usize::from(ITERATIONS)] > 0.0 { self.problem.longest } else { 0.0 };
        self.problem = LeastSquares::new(norm, longest, NOTHING * T::EPSILON);
        system.set(registers, &[(START, 1.0 / norm), (COLUMN, 0.0)])?;
        let first = scaled(Coefficient::plus(START), &system.r, None);
        system.passes.combine(&mut self.basis[0], first)
    }

    /// Extends the basis by one vector.
    fn iterate(&mut self, system: &mut System<'_, T>, j: usize) -> Result<(), Error> {
        let System { op, passes, diagonal, .. } = system;
        let elements: Vec<u16> = (0..=j).map(|i| self.element(i, j)).collect();
        let (basis, rest) = self.basis.split_at_mut(j + 1);
        let w = &mut rest[0];
        let newest = match &mut self.scaled {
            Some(newest) => {
                passes.combine(newest, scaled(Coefficient::ONE, &basis[j], diagonal.as_ref()))?;
                &*newest
            }
            None => &basis[j],
        };
        op.apply_device(passes.stream(), newest, w)?;
        let (with, at, then) = (Some(&basis[0]), elements[0], Program::default());
        passes.dots(Dots { of: w, with, and: None, at, then, backward: true })?;
        for (i, &element) in elements.iter().enumerate() {
            let next = basis.get(i + 1);
            let pass = Combine {
                with: next,
                sums: [
                    if next.is_some() { Partner::Other } else { Partner::Itself },
                    Partner::Absent,
                ],
                at: elements.get(i + 1).copied().unwrap_or(WW),
                then: if next.is_some() { Program::default() } else { self.conclude },
                backward: i % 2 == 1,
                ..axpy(Coefficient::minus(element), &basis[i])
            };
            passes.combine(w, pass)?;
        }
        let (keep, backward) = (Some(Coefficient::plus(INVERSE)), j.is_multiple_of(2));
        passes.combine(w, Combine { keep, backward, ..Combine::new() })
    }

    fn observe(&mut self, registers: &[f64], before: usize) -> BatchResults {
        let [target, limit] = [TARGET, LIMIT].map(|register| registers[usize::from(register)]);
        let (done, from) = (registers[usize::from(COLUMN)] as usize, self.problem.columns.len());
        let mut found = BatchResults { residuals: Vec::new(), status: 0 };
        for (j, last) in (from..done).zip(ring(registers, HISTORY, from, done)) {
            let first = usize::from(self.element(0, j));
            let column: Vec<f64> =
                registers[first..=first + j].iter().copied().chain([last]).collect();
            if !column.iter().all(|element| element.is_finite()) {
                found.status = NOT_FINITE;
                break;
            }
            let Some(residual) = self.problem.push(column) else {
                found.status = BREAKDOWN;
                break;
            };
            found.residuals.push(residual);
            if residual * residual <= target {
                found.status = CONVERGED;
                break;
            }
            if (before + found.residuals.len()) as f64 >= limit {
                break;
            }
        }
        found
    }

    fn finish(&mut self, system: &mut System<'_, T>, _: u16) -> Result<(), Error> {
        let System { passes, registers, diagonal, x, .. } = system;
        let y = self.problem.solution();
        registers[usize::from(REGISTERS)..][..y.len()].copy_from_slice(&y);
        passes.write(registers)?;
        for (v, register) in self.basis[..y.len()].iter().zip(REGISTERS..) {
            let add = scaled(Coefficient::plus(register), v, diagonal.as_ref());
            passes.combine(x, Combine { keep: Some(Coefficient::ONE), ..add })?;
        }
        Ok(())
    }

    /// A ratio close to 1: the residual never grows and may decrease slowly, but a cycle with next
    /// to no progress is followed by similar ones.
    fn progress(&self) -> f64 {
        1.0 - 1e-4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_squares_problem_is_solved() {
        // H = [2 1; 1 3; 0 1], β = 5, computed by hand from the normal equations [5 5; 5 11] y =
        // [10; 5].
        let mut problem = LeastSquares::new(5.0, 0.0, 0.0);
        let first = problem.push(vec![2.0, 1.0]).unwrap();
        assert!((first - 5.0f64.sqrt()).abs() < 1e-14);
        problem.push(vec![1.0, 3.0, 1.0]).unwrap();
        let y = problem.solution();
        assert!((y[0] - 17.0 / 6.0).abs() < 1e-14 && (y[1] + 5.0 / 6.0).abs() < 1e-14, "{y:?}");
        assert!(LeastSquares::new(1.0, 0.0, 0.0).push(vec![0.0, 0.0]).is_none());
        assert!(LeastSquares::new(1.0, 2.0, 1e-15).push(vec![1e-15, 1e-15]).is_none(), "rounding");
    }
}
