//! Vectors of products with several at a time.

use sparseop::{Error, Multivector, Scalar};

/// Transposed copy of a matrix of `rows` rows in row-major order.
pub(crate) fn transposed_copy<T: Scalar>(elements: &[T], rows: usize) -> Vec<T> {
    let columns = elements.len() / rows.max(1);
    (0..elements.len()).map(|i| elements[i % rows * columns + i / rows]).collect()
}

/// The elements of the multivectors of an SpMM, after a check of their numbers, layouts and
/// lengths: those of each vector of `x` and of `y`. The numbers of rows and columns are those of
/// the whole matrix.
pub(crate) fn checked_vectors<'a, T>(
    x: Multivector<&'a [T]>,
    y: Multivector<&'a mut [T]>,
    lengths: [usize; 2],
    (nrows, ncols): (usize, usize),
) -> Result<(&'a [T], &'a mut [T]), Error> {
    let (of_x, of_y) = ((x.count(), x.layout()), (y.count(), y.layout()));
    if of_x != of_y {
        let text = |(count, layout)| format!("{count} vectors in {layout:?} layout");
        return Err(Error::MultivectorMismatch { x: text(of_x), y: text(of_y) });
    }
    let (count, x, y) = (x.count(), x.into_data(), y.into_data());
    for ((vectors, found), len) in [("x", x.len()), ("y", y.len())].into_iter().zip(lengths) {
        if count.checked_mul(len) != Some(found) {
            return Err(Error::VectorsLength { vectors, count, len, found, nrows, ncols });
        }
    }
    Ok((x, y))
}
