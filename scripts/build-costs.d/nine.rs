use sparseop::{SparseOp, matrix::CsrMatrix};
fn main() -> Result<(), sparseop::Error> {
    let a = CsrMatrix::try_new(2, 3, vec![0, 2, 3], vec![0, 2, 1], vec![3.0f32, 1.0, 3.0])?;
    let op = SparseOp::auto(&a)?;
    let mut y = [0.0; 2];
    op.apply(&[1.0, 2.0, 3.0], &mut y)?;
    println!("{y:?}");
    Ok(())
}
