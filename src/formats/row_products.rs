//! Products of formats whose kernels store every row sum once, with or without the axpby epilogue.

/// Defines `spmv` and `spmv_scaled` of `DeviceMatrix` by `self.multiply(queue, x, out)`, which
/// enqueues the product into either output.
macro_rules! row_products {
    () => {
        unsafe fn spmv(&self, queue: &Queue, x: Ptr<T>, y: Ptr<T>) -> Result<(), Error> {
            // SAFETY: the caller's promise.
            unsafe { self.multiply(queue, x, Out::over(y)) }
        }

        unsafe fn spmv_scaled(
            &self,
            queue: &Queue,
            x: Ptr<T>,
            y: Ptr<T>,
            by: crate::device::Scaling<'_, T>,
        ) -> Result<bool, Error> {
            // SAFETY: the caller's promise.
            unsafe { self.multiply(queue, x, Out::scaled(y, by)).map(|()| true) }
        }
    };
}
pub(crate) use row_products;
