//! PageRank of a graph.
//!
//! ```text
//! cargo run --release -p sparseop-solvers --example pagerank                # a generated graph
//! cargo run --release -p sparseop-solvers --example pagerank -- web.mtx     # a Matrix Market file
//! ```
//!
//! Entry (i, j) is a link from page i to page j.

use sparseop::matrix::{gallery, market};
use sparseop::{Error, SparseOpBuilder, Tuning};
use sparseop_solvers::{PageRank, Settings};
use std::ops::ControlFlow;

fn main() -> Result<(), Error> {
    let name = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "gallery:rmat,scale=16,values=pattern".to_owned());
    let graph = match name.strip_prefix("gallery:") {
        Some(spec) => spec.parse::<gallery::Spec>()?.generate::<f64>()?,
        None => market::read::<f64>(&name)?,
    };

    let pagerank = PageRank::new(graph.view(), &SparseOpBuilder::new())?;
    let ranking =
        pagerank.rank(0.85, Settings::default(), |_| ControlFlow::Continue(()))?.converged()?;
    println!("{name}: {} pages, {} links", graph.nrows(), graph.nnz());
    for (page, rank) in ranking.top(5) {
        println!("{rank:>12.3e}  page {}", page + 1);
    }

    // Effect of the tuning: the same with plain CSR.
    let csr = SparseOpBuilder::new().tuning(Tuning::Fixed("csr".parse()?));
    let plain = PageRank::new(graph.view(), &csr)?
        .rank(0.85, Settings::default(), |_| ControlFlow::Continue(()))?;
    let op = pagerank.op();
    println!("auto chose {} on {}", op.plan(), op.device());
    println!(
        "{} iterations, {:.1} µs each, {:.1} µs with plain CSR: {:.2} times as fast, vectors \
         included",
        ranking.iterations,
        ranking.seconds / ranking.iterations as f64 * 1e6,
        plain.seconds / plain.iterations as f64 * 1e6,
        plain.seconds / plain.iterations as f64 * ranking.iterations as f64 / ranking.seconds
    );
    Ok(())
}
