//! The Poisson equation on a square grid, solved by CG on MPI ranks, each of which makes its own
//! rows of the matrix:
//!
//! ```sh
//! cargo build --release -p sparseop-distributed --features mpi --example poisson
//! mpirun -n 4 target/release/examples/poisson 1000
//! ```

use sparseop::Error;
use sparseop::matrix::CsrMatrix;
use sparseop_distributed::{Communicator, DistributedBuilder, MpiRank, Partition};
use sparseop_solvers::{Method, Settings, SolverBuilder};
use std::ops::Range;
use std::time::Duration;

fn main() -> Result<(), Error> {
    let n = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(300);
    let comm = MpiRank::world(Duration::from_secs(60))?;
    let partition = Partition::balanced(n * n, comm.size(), |row| row as u64)?;
    let own = rows(n, partition.rows(comm.rank()))?;
    let builder = DistributedBuilder::new(comm.size());
    let op = builder.build_part(comm.clone(), &partition, own.view())?;
    drop(own);

    // A source in every point, and the boundary at zero.
    let b = vec![1.0; op.own_rows().len()];
    let mut x = vec![0.0; b.len()];
    let settings = Settings { tolerance: 1e-6, ..Settings::default() };
    let solver = SolverBuilder::new(Method::Cg).settings(settings).jacobi(op.jacobi()?);
    let report = op.solve(solver, &b, &mut x)?;

    let explanation = op.explain(op.link())?;
    if comm.rank() == 0 {
        println!("{explanation}{report}");
    }
    Ok(())
}

/// Some rows of the five-point stencil on a grid of n × n points.
fn rows(n: usize, range: Range<usize>) -> Result<CsrMatrix<f64>, Error> {
    let (mut ends, mut columns, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in range.clone() {
        let (line, point) = (row / n, row % n);
        let mut push = |exists: bool, column: usize, value: f64| {
            if exists {
                columns.push(column as u32);
                values.push(value);
            }
        };
        push(line > 0, row.wrapping_sub(n), -1.0);
        push(point > 0, row.wrapping_sub(1), -1.0);
        push(true, row, 4.0);
        push(point + 1 < n, row + 1, -1.0);
        push(line + 1 < n, row + n, -1.0);
        ends.push(columns.len());
    }
    CsrMatrix::try_new(range.len(), n * n, ends, columns, values)
}
