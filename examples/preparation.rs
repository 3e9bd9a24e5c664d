//! Time from a CSR matrix in host memory to an operator, and its parts.
//!
//! ```text
//! cargo run --release --example preparation -- gallery:fem3d,n=30 gallery:poisson3d,n=100
//! ```
//!
//! Every matrix is built three times, of which the last counts: the first loads the kernels.

use sparseop::matrix::{gallery, market};
use sparseop::{Error, SparseOp, SparseOpBuilder, Tuning};
use std::time::Instant;

fn main() -> Result<(), Error> {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    if names.is_empty() {
        names.push("gallery:fem3d,n=12".to_owned());
    }
    println!("milliseconds: total = analysis + choice + check + packing + copy to the device");
    for name in names {
        let a = match name.strip_prefix("gallery:") {
            Some(spec) => spec.parse::<gallery::Spec>()?.generate::<f32>()?,
            None => market::read::<f32>(&name)?,
        };
        println!("{name}, {} entries", a.nnz());
        for (tuning, title) in [(Tuning::Predict, "predicted"), (Tuning::Check, "checked")] {
            let builder = SparseOpBuilder::new().tuning(tuning).expected_calls(1000);
            let build = || -> Result<(f64, SparseOp<f32>), Error> {
                let start = Instant::now();
                let op = builder.build(&a)?;
                Ok((start.elapsed().as_secs_f64(), op))
            };
            build()?;
            build()?;
            let (total, op) = build()?;
            let parts = op.preparation();
            let parts = [parts.analyze, parts.select, parts.check, parts.pack, parts.upload];
            let parts = parts.map(|seconds| format!("{:.2}", seconds * 1e3)).join(" + ");
            println!("  {title}: {:.2} = {parts}; {}", total * 1e3, op.plan());
        }
    }
    Ok(())
}
