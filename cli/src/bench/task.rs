//! The task: number of vectors, their layout, and the state of the caches.

use clap::ValueEnum;
use serde::Serialize;
use sparseop::matrix::CsrView;
use sparseop::tuning::caches::CacheState;
use sparseop::{Device, DeviceVec, Error, Layout, Scalar};
use sparseop_testkit::{Oracle, x_vector};
use std::cell::RefCell;
use std::rc::Rc;

/// Layout of several vectors in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LayoutArg {
    /// Row-major: element i of all vectors, then element i + 1
    Row,
    /// Column-major: one vector after the other
    Column,
}

impl From<LayoutArg> for Layout {
    fn from(layout: LayoutArg) -> Self {
        match layout {
            LayoutArg::Row => Self::RowMajor,
            LayoutArg::Column => Self::ColumnMajor,
        }
    }
}

/// State of the last-level cache before timed products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CacheArg {
    /// As the product itself leaves it: batches of products after at least 3 warm-up products
    Warm,
    /// Filled with other data before each batch, as between two steps of a solver
    Company,
    /// Filled with other data before each product; products are timed one by one
    Cold,
}

impl From<CacheArg> for CacheState {
    fn from(cache: CacheArg) -> Self {
        match cache {
            CacheArg::Warm => Self::Warm,
            CacheArg::Company => Self::Company,
            CacheArg::Cold => Self::Cold,
        }
    }
}

/// Number of vectors and their layout. The layout of one vector does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MultivectorShape {
    pub(super) count: usize,
    pub(super) layout: Layout,
}

impl MultivectorShape {
    /// One vector.
    pub(super) const ONE: Self = Self { count: 1, layout: Layout::ColumnMajor };
}

/// Input vectors and the oracle's results.
pub(super) struct TestVectors<T: Scalar> {
    len: usize,
    /// The vectors in column-major order.
    columns: Vec<T>,
    oracles: Vec<Oracle>,
    /// Vectors already on the device, by number and layout.
    on_device: RefCell<Vec<(MultivectorShape, Rc<DeviceVec<T>>)>>,
}

impl<T: Scalar> TestVectors<T> {
    /// `count` vectors for a matrix, the first of them [`x_vector`].
    pub(super) fn new(a: CsrView<'_, T>, count: usize) -> Self {
        /// Offset between vectors, far from any stride of a matrix.
        const SHIFT: usize = 7919;
        let len = a.ncols();
        let mut columns = Vec::with_capacity(len * count);
        for v in 0..count {
            let mut x = x_vector(len);
            x.rotate_left(v * SHIFT % len.max(1));
            columns.append(&mut x);
        }
        Self::of(a, columns, count)
    }

    /// Makes `count` vectors from `columns`, which holds them in column-major order.
    pub(super) fn of(a: CsrView<'_, T>, columns: Vec<T>, count: usize) -> Self {
        let len = a.ncols();
        let oracles = (0..count).map(|v| Oracle::of(a, &columns[v * len..(v + 1) * len])).collect();
        Self { len, columns, oracles, on_device: RefCell::default() }
    }

    /// The first vector.
    pub(super) fn first(&self) -> &[T] {
        &self.columns[..self.len]
    }

    /// Copies vectors to a device.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub(super) fn on(
        &self,
        device: &Device,
        shape: MultivectorShape,
    ) -> Result<Rc<DeviceVec<T>>, Error> {
        let mut known = self.on_device.borrow_mut();
        if let Some((_, x)) = known.iter().find(|known| known.0 == shape) {
            return Ok(x.clone());
        }
        let columns = &self.columns[..self.len * shape.count];
        let x = Rc::new(match shape.layout {
            Layout::RowMajor => {
                DeviceVec::from_slice(device, &rows(columns, self.len, shape.count))?
            }
            _ => DeviceVec::from_slice(device, columns)?,
        });
        known.push((shape, x.clone()));
        Ok(x)
    }

    /// The largest relative error of the products.
    pub(super) fn check(&self, y: &[T], shape: MultivectorShape) -> Result<f64, String> {
        let MultivectorShape { count, layout } = shape;
        let nrows = y.len() / count;
        let mut largest = 0.0f64;
        for (v, oracle) in self.oracles[..count].iter().enumerate() {
            let one: Vec<T> = match layout {
                Layout::RowMajor => y.iter().skip(v).step_by(count).copied().collect(),
                _ => y[v * nrows..(v + 1) * nrows].to_vec(),
            };
            oracle.check(&one).map_err(|wrong| {
                if count > 1 { format!("vector {v}: {wrong}") } else { wrong.to_string() }
            })?;
            largest = largest.max(oracle.rel_error(&one));
        }
        Ok(largest)
    }
}

/// Converts vectors from column-major to row-major order.
fn rows<T: Scalar>(columns: &[T], len: usize, count: usize) -> Vec<T> {
    let mut rows = vec![T::ZERO; len * count];
    for (v, column) in columns.chunks_exact(len.max(1)).enumerate() {
        rows.iter_mut().skip(v).step_by(count).zip(column).for_each(|(to, &x)| *to = x);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparseop::matrix::CsrMatrix;

    #[test]
    fn both_layouts_hold_the_same_and_a_wrong_vector_is_named() {
        let a = CsrMatrix::try_new(2, 2, vec![0, 1, 2], vec![1, 0], vec![1.0f64, 1.0]).unwrap();
        let vectors = TestVectors::of(a.view(), vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3);
        let shape = |layout| MultivectorShape { count: 3, layout };
        let (row, column) = (shape(Layout::RowMajor), shape(Layout::ColumnMajor));
        let x = |shape| vectors.on(&Device::Cpu, shape).unwrap().to_vec().unwrap();
        assert_eq!(
            (x(row), x(column)),
            (vec![1., 3., 5., 2., 4., 6.], vec![1., 2., 3., 4., 5., 6.])
        );
        assert_eq!(x(MultivectorShape::ONE), vectors.first());
        assert_eq!(vectors.check(&[2.0, 1.0, 4.0, 3.0, 6.0, 5.0], column), Ok(0.0));
        assert_eq!(vectors.check(&[2.0, 4.0, 6.0, 1.0, 3.0, 5.0], row), Ok(0.0));
        assert_eq!(vectors.check(&[2.0, 1.0], MultivectorShape::ONE), Ok(0.0));
        let wrong = vectors.check(&[2.0, 1.0, 4.0, 3.5, 6.0, 5.0], column).unwrap_err();
        assert!(wrong.starts_with("vector 1: row 1 is 3.5"), "{wrong}");
    }
}
