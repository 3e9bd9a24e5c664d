//! Several right-hand sides at once: `Y = A X`.
//!
//! ```text
//! cargo run --release --example many_vectors                # a built-in matrix, 8 vectors
//! cargo run --release --example many_vectors -- cant.mtx 16
//! ```

mod common;

use common::medians;
use sparseop::matrix::{gallery, market};
use sparseop::{DeviceVec, Error, Multivector, SparseOp, SparseOpBuilder, Stream, Tuning};

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "gallery:fem3d,n=32".to_owned());
    let k: usize = args.next().and_then(|k| k.parse().ok()).unwrap_or(8);
    let a = match name.strip_prefix("gallery:") {
        Some(spec) => spec.parse::<gallery::Spec>()?.generate::<f32>()?,
        None => market::read::<f32>(&name)?,
    };
    let op = SparseOp::auto(&a)?;

    // Row-major: element i of vector v is at i · k + v. The matrix is read once for all of them.
    let x: Vec<f32> = (0..k * a.ncols()).map(|i| (i % 17) as f32 - 8.0).collect();
    let mut y = vec![0.0; k * a.nrows()];
    op.apply_multi(Multivector::row_major(&x, k), Multivector::row_major(&mut y, k))?;

    // The same with one vector at a time, and with plain CSR.
    let csr = SparseOpBuilder::new().tuning(Tuning::Fixed("csr".parse()?)).build(&a)?;
    let mut difference = 0.0f32;
    let (mut column, mut product) = (op.zeros_x(), op.zeros_y());
    for v in 0..k {
        column.iter_mut().enumerate().for_each(|(i, x_i)| *x_i = x[i * k + v]);
        op.apply(&column, &mut product)?;
        let error = |(i, y_i): (usize, &f32)| (y[i * k + v] - y_i).abs() / (1.0 + y_i.abs());
        difference = product.iter().enumerate().map(error).fold(difference, f32::max);
    }
    println!("{name}\n{}", op.explain());

    // Timed in turn, on vectors that stay on the device.
    let (device, stream) = (op.device(), Stream::new(op.device())?);
    let (one, all) = (DeviceVec::from_slice(device, &column)?, DeviceVec::from_slice(device, &x)?);
    let mut products = DeviceVec::zeros(device, k * a.nrows())?;
    let (mut y, mut plain) =
        (DeviceVec::zeros(device, a.nrows())?, DeviceVec::zeros(device, a.nrows())?);
    let [together, single, textbook] = medians(
        &stream,
        [
            &mut || {
                let of_products = Multivector::row_major(&mut products, k);
                op.apply_multi_device(&stream, Multivector::row_major(&all, k), of_products)
            },
            &mut || op.apply_device(&stream, &one, &mut y),
            &mut || csr.apply_device(&stream, &one, &mut plain),
        ],
    )?;
    println!(
        "measured {together:.1} µs for {k} vectors at once on {device}, {single:.1} µs for one, \
         {textbook:.1} with CSR"
    );
    println!(
        "         {:.2} times as fast as one at a time, {:.2} times as fast as CSR; the answers \
         differ by at most {difference:.1e}",
        single * k as f64 / together,
        textbook * k as f64 / together
    );
    Ok(())
}
