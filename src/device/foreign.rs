//! Memory allocated by other libraries: vectors and matrices that are used in place.
// Without GPU support, code that has a GPU is unreachable.
#![cfg_attr(not(feature = "cuda"), allow(unreachable_code))]

use super::{Buffer, Device, DeviceVec, Stream};
use crate::matrix::CsrMatrix;
use crate::{Error, Scalar, memory};
use std::marker::PhantomData;
use std::ops::Deref;

/// Address of the last byte of `len` elements from `address`.
///
/// # Errors
///
/// The reason why there cannot be `len` elements, in words that complete [`Error::ForeignMemory`].
pub(super) fn last_byte<T>(address: u64, len: usize) -> Result<u64, String> {
    let align = align_of::<T>() as u64;
    if address == 0 {
        return Err(format!("it is null, and there are to be {len} elements"));
    }
    if !address.is_multiple_of(align) {
        return Err(format!("it is no multiple of {align}, as an element's address has to be"));
    }
    let bytes = (len as u64).checked_mul(size_of::<T>() as u64);
    let last = bytes.and_then(|bytes| address.checked_add(bytes - 1));
    last.ok_or_else(|| format!("{len} elements do not fit into an address space"))
}

/// Elements in device memory, allocated by another library.
#[derive(Debug)]
pub(super) enum Foreign<T> {
    Host(ForeignHost<T>),
    Gpu(Buffer<T>),
}

impl<T: Copy> Foreign<T> {
    /// Wraps `len` elements from `address`. Messages call them `what`.
    ///
    /// # Safety
    ///
    /// The elements have this type, are in the memory of the device, and live as long as this value
    /// and all work enqueued with it.
    pub(super) unsafe fn new(
        device: &Device,
        what: &'static str,
        address: u64,
        len: usize,
    ) -> Result<Self, Error> {
        match device {
            Device::Cpu => {
                let checked = if len == 0 { Ok(0) } else { last_byte::<T>(address, len) };
                let bytes =
                    len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
                let too_many = || format!("{len} elements do not fit into an address space");
                match checked.and_then(|_| bytes.ok_or_else(too_many)) {
                    Ok(_) => Ok(Self::Host(ForeignHost { address, len, _elements: PhantomData })),
                    Err(message) => Err(Error::ForeignMemory {
                        what,
                        address,
                        device: device.to_string(),
                        message,
                    }),
                }
            }
            // SAFETY: the caller's promise.
            Device::Cuda(gpu) => Ok(Self::Gpu(unsafe { gpu.foreign(what, address, len)? })),
        }
    }

    /// As [`new`](Self::new), without asking the driver of a GPU.
    ///
    /// # Safety
    ///
    /// As of [`new`](Self::new), and there are `len` elements in the memory of the device.
    pub(super) unsafe fn known(
        device: &Device,
        what: &'static str,
        address: u64,
        len: usize,
    ) -> Result<Self, Error> {
        match device {
            // SAFETY: the caller's promise.
            Device::Cpu => unsafe { Self::new(device, what, address, len) },
            // SAFETY: as above.
            Device::Cuda(gpu) => Ok(Self::Gpu(unsafe { gpu.known(address, len) })),
        }
    }

    /// Copies the elements to host memory, after everything enqueued on the default queue of the
    /// GPU.
    fn to_vec(&self) -> Result<Vec<T>, Error> {
        match self {
            Self::Host(elements) => memory::listed(elements.as_slice().iter().copied()),
            Self::Gpu(buffer) => buffer.to_vec(),
        }
    }
}

/// Elements in host memory, allocated by another library.
#[derive(Debug)]
pub(super) struct ForeignHost<T> {
    address: u64,
    len: usize,
    _elements: PhantomData<T>,
}

impl<T> ForeignHost<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    fn start(&self) -> *mut T {
        let none = std::ptr::dangling_mut();
        if self.len == 0 {
            none
        } else {
            std::ptr::with_exposed_provenance_mut(self.address as usize)
        }
    }

    pub(super) fn as_slice(&self) -> &[T] {
        // SAFETY: the creator has promised `len` elements that live as long as this value.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

/// A read-only vector in foreign memory: the `x` of a product. Dereferences to a shared
/// [`DeviceVec`].
#[derive(Debug)]
pub struct DeviceView<T: Scalar>(DeviceVec<T>);

impl<T: Scalar> DeviceView<T> {
    /// Wraps `len` elements from `address`; see [`DeviceVec::from_raw`].
    ///
    /// # Safety
    ///
    /// As for [`DeviceVec::from_raw`], but other libraries may read the elements at the same time,
    /// and products that only read them need not be finished.
    ///
    /// # Errors
    ///
    /// As [`DeviceVec::from_raw`].
    pub unsafe fn from_raw(device: &Device, address: u64, len: usize) -> Result<Self, Error> {
        // SAFETY: the caller's promise; the vector is never written.
        unsafe { DeviceVec::from_raw(device, address, len) }.map(Self)
    }
}

impl<T: Scalar> Deref for DeviceView<T> {
    type Target = DeviceVec<T>;

    fn deref(&self) -> &DeviceVec<T> {
        &self.0
    }
}

/// Row offsets in foreign memory: the address of the first of `nrows + 1` offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offsets {
    /// 32-bit integers, signed or unsigned.
    Bits32(u64),
    /// 64-bit integers, signed or unsigned.
    Bits64(u64),
}

#[derive(Debug)]
enum RowPtr {
    Bits32(Foreign<u32>),
    Bits64(Foreign<u64>),
}

/// A CSR matrix whose arrays another library has allocated in device memory. The input of
/// [`SparseOpBuilder::build_from_device`](crate::SparseOpBuilder::build_from_device).
#[derive(Debug)]
pub struct ForeignCsr<T: Scalar> {
    device: Device,
    nrows: usize,
    ncols: usize,
    row_ptr: RowPtr,
    col_idx: Foreign<u32>,
    values: Foreign<T>,
}

impl<T: Scalar> ForeignCsr<T> {
    /// Wraps a matrix of `shape` (rows, columns) with `nnz` entries. Rows and columns are counted
    /// from 0, and columns are 32-bit integers, signed or unsigned. The addresses are
    /// `CUdeviceptr`s, or on the CPU addresses of host memory.
    ///
    /// Nothing is read here: the contents of the arrays are checked when an operator is built.
    ///
    /// ```
    /// # use sparseop::{Device, SparseOpBuilder, Stream, device::{ForeignCsr, Offsets}};
    /// // 3 0 1
    /// // 0 0 2
    /// let (row_ptr, col_idx, values) = ([0i32, 2, 3], [0i32, 2, 2], [3.0f32, 1.0, 2.0]);
    /// let address = |array: *const i32| array.expose_provenance() as u64;
    /// let offsets = Offsets::Bits32(address(row_ptr.as_ptr()));
    /// let values = values.as_ptr().expose_provenance() as u64;
    /// // SAFETY: the arrays have these lengths, and live until the operator is built.
    /// let a = unsafe {
    ///     let columns = address(col_idx.as_ptr());
    ///     ForeignCsr::<f32>::from_raw(&Device::Cpu, (2, 3), 3, offsets, columns, values)?
    /// };
    /// let op = SparseOpBuilder::new().build_from_device(&Stream::new(&Device::Cpu)?, &a)?;
    /// let mut y = [0.0; 2];
    /// op.apply(&[1.0, 10.0, 100.0], &mut y)?;
    /// assert_eq!(y, [103.0, 200.0]);
    /// # Ok::<(), sparseop::Error>(())
    /// ```
    ///
    /// # Safety
    ///
    /// There are `nrows + 1` offsets, `nnz` columns and `nnz` values of these types at these
    /// addresses, and they stay there unchanged as long as the matrix.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignMemory`] if an address is null or not aligned, or if the driver reports that
    /// an array is not on the GPU.
    pub unsafe fn from_raw(
        device: &Device,
        shape: (usize, usize),
        nnz: usize,
        row_ptr: Offsets,
        col_idx: u64,
        values: u64,
    ) -> Result<Self, Error> {
        let offsets = shape.0.saturating_add(1);
        // SAFETY: the caller's promise, for all three arrays.
        let (row_ptr, col_idx, values) = unsafe {
            let row_ptr = match row_ptr {
                Offsets::Bits32(address) => {
                    RowPtr::Bits32(Foreign::new(device, "row_ptr", address, offsets)?)
                }
                Offsets::Bits64(address) => {
                    RowPtr::Bits64(Foreign::new(device, "row_ptr", address, offsets)?)
                }
            };
            let col_idx = Foreign::new(device, "col_idx", col_idx, nnz)?;
            (row_ptr, col_idx, Foreign::new(device, "values", values, nnz)?)
        };
        Ok(Self {
            device: device.clone(),
            nrows: shape.0,
            ncols: shape.1,
            row_ptr,
            col_idx,
            values,
        })
    }

    /// Device of the memory.
    #[doc(hidden)]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Copies the matrix to host memory and checks it, after everything enqueued on `stream`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidMatrix`] if the arrays are not those of a matrix, [`Error::WrongDevice`] if
    /// the stream belongs to another device, and errors of the GPU.
    #[doc(hidden)]
    pub fn to_csr(&self, stream: &Stream) -> Result<CsrMatrix<T>, Error> {
        T::foreign_to_csr(self, stream)
    }

    /// Number of entries.
    pub(crate) fn nnz(&self) -> usize {
        match &self.col_idx {
            Foreign::Host(columns) => columns.len(),
            Foreign::Gpu(columns) => columns.len(),
        }
    }

    /// Waits for everything enqueued on a stream of the device.
    ///
    /// # Errors
    ///
    /// As [`to_csr`](Self::to_csr).
    pub(crate) fn wait_for(&self, stream: &Stream) -> Result<(), Error> {
        if stream.device() != self.device {
            let (expected, found) = (self.device.to_string(), stream.device().to_string());
            return Err(Error::WrongDevice { what: "stream", expected, found });
        }
        stream.synchronize()
    }

    pub(crate) fn to_csr_impl(&self, stream: &Stream) -> Result<CsrMatrix<T>, Error> {
        self.wait_for(stream)?;
        // A negative or too large number becomes an offset out of range, which the check finds.
        let row_ptr = match &self.row_ptr {
            RowPtr::Bits32(offsets) => {
                let offsets = offsets.to_vec()?;
                memory::collected(offsets.len(), |i| offsets[i] as usize)?
            }
            RowPtr::Bits64(offsets) => {
                let offsets = offsets.to_vec()?;
                let offset = |i: usize| usize::try_from(offsets[i]).unwrap_or(usize::MAX);
                memory::collected(offsets.len(), offset)?
            }
        };
        CsrMatrix::try_new_on_threads(
            self.nrows,
            self.ncols,
            row_ptr,
            self.col_idx.to_vec()?,
            self.values.to_vec()?,
        )
    }

    /// Numbers of rows and columns.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.nrows, self.ncols)
    }

    /// The arrays in GPU memory. `None` on the CPU.
    pub(crate) fn on_gpu(&self) -> Option<ForeignArrays<'_, T>> {
        let (Foreign::Gpu(col_idx), Foreign::Gpu(values)) = (&self.col_idx, &self.values) else {
            return None;
        };
        let (narrow, wide) = match &self.row_ptr {
            RowPtr::Bits32(Foreign::Gpu(offsets)) => (Some(offsets), None),
            RowPtr::Bits64(Foreign::Gpu(offsets)) => (None, Some(offsets)),
            _ => return None,
        };
        Some(ForeignArrays { narrow, wide, col_idx, values })
    }
}

/// The arrays of a [`ForeignCsr`] in GPU memory, with row offsets of one width.
pub(crate) struct ForeignArrays<'a, T> {
    pub(crate) narrow: Option<&'a Buffer<u32>>,
    pub(crate) wide: Option<&'a Buffer<u64>>,
    pub(crate) col_idx: &'a Buffer<u32>,
    pub(crate) values: &'a Buffer<T>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address<T>(data: &[T]) -> u64 {
        data.as_ptr().expose_provenance() as u64
    }

    #[test]
    fn vectors_in_host_memory_are_used_where_they_lie() {
        let mut data = [1.0f64, 2.0, 3.0];
        let at = data.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the array lives until the end and is used only through the vector in the
        // meantime.
        let mut v = unsafe { DeviceVec::<f64>::from_raw(&Device::Cpu, at, 3) }.unwrap();
        assert_eq!(
            (v.len(), v.device(), v.address(), v.to_vec().unwrap()),
            (3, Device::Cpu, at, vec![1.0, 2.0, 3.0])
        );
        v.copy_from(&[4.0, 5.0, 6.0]).unwrap();
        v.host_mut()[0] = 7.0;
        drop(v);
        assert_eq!(data, [7.0, 5.0, 6.0]);
        // SAFETY: there are no elements.
        let empty = unsafe { DeviceView::<f32>::from_raw(&Device::Cpu, 0, 0) }.unwrap();
        assert!(empty.is_empty() && empty.to_vec().unwrap().is_empty());
    }

    #[test]
    fn invalid_addresses_are_refused() {
        let refused = |at: u64, len: usize| {
            // SAFETY: the call fails before anything is read.
            unsafe { DeviceVec::<f64>::from_raw(&Device::Cpu, at, len) }.unwrap_err().to_string()
        };
        assert!(refused(0, 1).contains("null"));
        assert!(refused(0x1004, 1).contains("no multiple of 8"));
        for len in [usize::MAX, usize::MAX / 8, 1 << 60] {
            assert!(refused(0x1000, len).contains("do not fit"), "{len}");
        }
    }

    #[test]
    fn a_matrix_of_either_offsets_is_checked_when_it_is_read() {
        let stream = Stream::new(&Device::Cpu).unwrap();
        let read = |offsets: [i64; 3], col_idx: [i32; 3]| {
            let narrow = offsets.map(|offset| offset as i32);
            let values = [1.0f32, 2.0, 3.0];
            let both = [Offsets::Bits64(address(&offsets)), Offsets::Bits32(address(&narrow))];
            let [wide, narrow] = both.map(|row_ptr| {
                // SAFETY: the arrays have these lengths and outlive the matrix.
                let a = unsafe {
                    ForeignCsr::<f32>::from_raw(
                        &Device::Cpu,
                        (2, 4),
                        3,
                        row_ptr,
                        address(&col_idx),
                        address(&values),
                    )
                };
                a.unwrap().to_csr(&stream).map_err(|error| error.to_string())
            });
            assert_eq!(wide.is_ok(), narrow.is_ok());
            wide
        };
        let a = read([0, 2, 3], [1, 3, 0]).unwrap();
        assert_eq!(
            (a.row_ptr(), a.col_idx(), a.values()),
            (&[0, 2, 3][..], &[1, 3, 0][..], &[1.0, 2.0, 3.0][..])
        );
        assert!(read([0, -1, 3], [1, 3, 0]).unwrap_err().contains("row_ptr falls"));
        assert!(read([0, 2, 4], [1, 3, 0]).unwrap_err().contains("row_ptr ends at 4"));
        assert!(read([0, 2, 3], [1, -1, 0]).unwrap_err().contains("col_idx[1]"));
    }
}
