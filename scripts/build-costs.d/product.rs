use sparseop::matrix::gallery;
use sparseop::{Device, SparseOpBuilder, Tuning};
use std::time::Instant;

/// Prints the milliseconds of a product, the median of many, on the CPU.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let a = "poisson2d,n=1000".parse::<gallery::Spec>()?.generate::<f32>()?;
    let tuning = Tuning::Fixed("csr(scalar)".parse()?);
    let op = SparseOpBuilder::new().device(Device::Cpu).tuning(tuning).build(&a)?;
    let (x, mut y) = (vec![1.0; a.ncols()], op.zeros_y());
    let mut times = Vec::new();
    for _ in 0..300 {
        let start = Instant::now();
        op.apply(&x, &mut y)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    println!("{:.3}", times[times.len() / 2]);
    Ok(())
}
