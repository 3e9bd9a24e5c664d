//! Analyse, choose, multiply, compare with plain CSR, explain.
//!
//! ```text
//! cargo run --release --example quickstart                  # a built-in matrix
//! cargo run --release --example quickstart -- cant.mtx      # .mtx, .mtx.gz, .mtx.zst or .tar.gz
//! cargo run --release --example quickstart -- gallery:webbase,rows=500k
//! ```

mod common;

use common::medians;
use sparseop::matrix::{gallery, market};
use sparseop::{DeviceVec, Error, SparseOp, SparseOpBuilder, Stream, Tuning};

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

    // Speed-up of the choice: the same product with plain CSR, timed in turn on vectors that stay
    // on the device.
    let csr = SparseOpBuilder::new().tuning(Tuning::Fixed("csr".parse()?)).build(&a)?;
    let mut plain = vec![0.0; a.nrows()];
    csr.apply(&x, &mut plain)?;
    let difference = y.iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let (device, stream) = (op.device(), Stream::new(op.device())?);
    let x = DeviceVec::from_slice(device, &x)?;
    let (mut y, mut plain) =
        (DeviceVec::zeros(device, a.nrows())?, DeviceVec::zeros(device, a.nrows())?);
    let [chosen, textbook] = medians(
        &stream,
        [&mut || op.apply_device(&stream, &x, &mut y), &mut || {
            csr.apply_device(&stream, &x, &mut plain)
        }],
    )?;
    println!(
        "measured {chosen:.1} µs a product with {} on {device}, {textbook:.1} µs with plain CSR",
        op.plan()
    );
    println!(
        "         {:.2} times as fast; the answers differ by at most {difference:.1e}",
        textbook / chosen
    );
    Ok(())
}
