use sparseop::matrix::{Triplets, gallery, market};
use sparseop::{Multivector, SparseOp, SparseOpBuilder, Tuning};
use sparseop_solvers::{Jacobi, Method, SolverBuilder};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Triplets, and their product.
fn small() -> Result<()> {
    let mut t = Triplets::new(3, 2)?;
    for (row, col, value) in [(0, 0, 1.0f32), (1, 1, 2.0), (2, 0, 3.0)] {
        t.push(row, col, value)?;
    }
    let mut op = SparseOp::auto(&t)?;
    let mut y = op.zeros_y();
    op.apply(&[1.0, 10.0], &mut y)?;
    println!("{y:?}");
    op.update_values(&[4.0, 5.0, 6.0])?;
    op.apply_with(2.0, &[1.0, 10.0], 1.0, &mut y)?;
    println!("{y:?} {}", op.plan());
    Ok(())
}

/// A stencil: a system, transposed products, several vectors.
fn large() -> Result<()> {
    let a = "poisson2d,n=300,values=laplacian".parse::<gallery::Spec>()?.generate::<f64>()?;
    let op = SparseOpBuilder::new().tuning(Tuning::Calibrate).transpose(true).build(&a)?;
    println!("{}", op.explain());
    let b = vec![1.0; a.nrows()];
    let mut x = vec![0.0; a.ncols()];
    let mut solver = SolverBuilder::new(Method::Cg).jacobi(Jacobi::of(a.view())?).build(&op)?;
    let report = solver.solve(&b, &mut x)?.converged()?;
    println!("{} iterations, residual {:.1e}", report.iterations, report.residual);
    let mut y = vec![0.0; a.ncols()];
    op.apply_transpose(&b, &mut y)?;
    let k = 8;
    let xs = vec![1.0; k * a.ncols()];
    let mut ys = vec![0.0; k * a.nrows()];
    op.apply_multi(Multivector::row_major(&xs, k), Multivector::row_major(&mut ys, k))?;
    println!("{} {}", y[0], ys[0]);
    Ok(())
}

fn main() -> Result<()> {
    if let Some(path) = std::env::args().nth(1) {
        let a = market::read::<f64>(&path)?;
        println!("{} x {}", a.nrows(), a.ncols());
        market::write("copy.mtx", a.view())?;
    }
    small()?;
    large()
}
