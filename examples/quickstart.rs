//! Analyse, choose, multiply, compare with plain CSR, explain.
//!
//! ```text
//! cargo run --release --example quickstart                  # a built-in matrix
//! cargo run --release --example quickstart -- cant.mtx      # yours: .mtx, .mtx.gz, .mtx.zst, SuiteSparse .tar.gz
//! cargo run --release --example quickstart -- gallery:webbase,rows=500k
//! ```

use sparseop::matrix::{gallery, market};
use sparseop::tuning::stopwatch::{Policy, race};
use sparseop::{Error, SparseOp, SparseOpBuilder, Tuning};

fn main() -> Result<(), Error> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "gallery:fem3d,n=32".to_owned());
    let a = match name.strip_prefix("gallery:") {
        Some(spec) => spec.parse::<gallery::Spec>()?.generate::<f32>()?,
        None => market::read::<f32>(&name)?,
    };

    // One line: the matrix is analysed, a format chosen, the matrix packed.
    let op = SparseOp::auto(&a)?;

    // One line: y = A x.
    let x = vec![1.0; a.ncols()];
    let mut y = vec![0.0; a.nrows()];
    op.apply(&x, &mut y)?;

    println!("{name}\n{}", op.explain());

    // What the choice gained: the same product with plain CSR, timed in turns.
    let csr = SparseOpBuilder::new().tuning(Tuning::Fixed("csr".parse()?)).build(&a)?;
    let mut plain = vec![0.0; a.nrows()];
    csr.apply(&x, &mut plain)?;
    let difference = y.iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let mut chosen = || op.apply(&x, &mut y).expect("the lengths fit");
    let mut textbook = || csr.apply(&x, &mut plain).expect("the lengths fit");
    let times = race(&mut [&mut chosen, &mut textbook], Policy::default());
    let (chosen, textbook) = (times[0].median() * 1e6, times[1].median() * 1e6);
    println!("measured {chosen:.1} µs a product with {}, {textbook:.1} µs with plain CSR", op.plan());
    println!(
        "         {:.2} times as fast; the answers differ by at most {difference:.1e}",
        textbook / chosen
    );
    Ok(())
}
