//! DLPack, with capsules of version 0, which every library has: arrays borrowed from others, and
//! vectors in GPU memory handed to them. The crates for it have a device layer of their own.

use super::{ArrayLibrary, ArrayPlace, ArrayRef, ElementType};
use crate::error::{Exception, raised};
use crate::stream;
use pyo3::exceptions::{PyBufferError, PyException, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sparseop::{Device, DeviceVec, Error, Layout, Scalar, Stream};
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

const NAME: &CStr = c"dltensor";
const USED: &CStr = c"used_dltensor";
const EXCHANGE: &CStr = c"dlpack_exchange_api";

/// Kinds of devices.
const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

/// Kinds of elements.
const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;

/// Numbers of the default streams in the protocol of Python.
const LEGACY_STREAM: u64 = 1;
const PER_THREAD_STREAM: u64 = 2;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct RawTensor {
    data: *mut c_void,
    device_kind: i32,
    device_ordinal: i32,
    ndim: i32,
    kind: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct ManagedTensor {
    tensor: RawTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

/// A borrowed array, which its owner frees after the drop.
#[derive(Debug)]
pub(super) struct Tensor(NonNull<ManagedTensor>);

// SAFETY: DLPack lets a tensor be released on any thread.
unsafe impl Send for Tensor {}
// SAFETY: shared access reads fields that do not change.
unsafe impl Sync for Tensor {}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: the tensor was taken from its capsule, and is released once.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.0.as_ptr());
            }
        }
    }
}

/// As [`describe`], for work on a stream, which waits for the array.
pub(crate) fn borrowed_on(
    array: &Bound<'_, PyAny>,
    library: ArrayLibrary,
    stream: &Stream,
) -> PyResult<ArrayRef> {
    describe(array, "x", library, Some(stream))
}

/// Borrows an array. On a GPU the given stream waits for it, or that of this library.
pub(super) fn describe(
    array: &Bound<'_, PyAny>,
    name: &str,
    library: ArrayLibrary,
    stream: Option<&Stream>,
) -> PyResult<ArrayRef> {
    let py = array.py();
    let place = array.call_method0(intern!(py, "__dlpack_device__"));
    let place = place.and_then(|place| place.extract::<(i32, i32)>());
    let (kind, ordinal) = place.map_err(|error| refused(array, name, library, error))?;
    let place = place_of(kind, ordinal).ok_or_else(|| {
        let message = format!(
            "`{name}` is on a device of kind {kind} of DLPack; move it to the CPU or to an NVIDIA \
             GPU"
        );
        Exception::Device.error(py, message)
    })?;
    let options = PyDict::new(py);
    if let ArrayPlace::Cuda(ordinal) = place {
        let stream = match stream {
            Some(stream) => stream.clone(),
            None => {
                let device = Device::cuda(ordinal).map_err(|error| raised(py, error))?;
                stream::own(py, &device, ordinal)?
            }
        };
        let stream = stream.raw().expose_provenance() as u64;
        options.set_item("stream", if stream == 0 { LEGACY_STREAM } else { stream })?;
    }
    let capsule = array.call_method(intern!(py, "__dlpack__"), (), Some(&options));
    let capsule = capsule.map_err(|error| refused(array, name, library, error))?;
    // SAFETY: a capsule of this name contains such a tensor, which is taken by renaming it.
    let tensor = unsafe {
        let managed = ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME.as_ptr());
        let Some(managed) = NonNull::new(managed.cast::<ManagedTensor>()) else {
            return Err(PyErr::fetch(py));
        };
        if ffi::PyCapsule_SetName(capsule.as_ptr(), USED.as_ptr()) != 0 {
            return Err(PyErr::fetch(py));
        }
        Tensor(managed)
    };
    // SAFETY: the tensor is alive.
    let array = unsafe { tensor.0.as_ref().tensor.array(library, place) };
    Ok(ArrayRef { tensor: Some(tensor), ..array })
}

fn place_of(kind: i32, ordinal: i32) -> Option<ArrayPlace> {
    match kind {
        CPU | CUDA_HOST => Some(ArrayPlace::Host),
        CUDA | CUDA_MANAGED => Some(ArrayPlace::Cuda(ordinal as usize)),
        _ => None,
    }
}

/// True if elements are adjacent, given sizes and strides of the dimensions from the index that
/// varies fastest. The stride of a dimension of one element does not matter.
fn are_contiguous<'a>(mut dimensions: impl Iterator<Item = (&'a i64, &'a i64)>) -> bool {
    let mut stride = 1;
    dimensions.all(|(&size, &found)| {
        let wanted = stride;
        stride *= size;
        size == 1 || found == wanted
    })
}

impl RawTensor {
    /// Description of an array whose owner keeps it alive.
    ///
    /// # Safety
    ///
    /// `shape`, and `strides` unless it is null, have `ndim` elements.
    unsafe fn array(&self, library: ArrayLibrary, place: ArrayPlace) -> ArrayRef {
        let ndim = self.ndim as usize;
        let listed = |from: *mut i64| match ndim {
            0 => &[][..],
            // SAFETY: the caller's promise.
            _ => unsafe { std::slice::from_raw_parts(from, ndim) },
        };
        let shape = listed(self.shape);
        let mut dims = [1; 2];
        dims.iter_mut().zip(shape).for_each(|(dim, &size)| *dim = size as usize);
        let (row_major, column_major) = if shape.contains(&0) {
            (true, true)
        } else if self.strides.is_null() {
            (true, shape.iter().filter(|size| **size > 1).count() <= 1)
        } else {
            let stored = shape.iter().zip(listed(self.strides));
            let row_major = are_contiguous(stored.clone().rev());
            (row_major, if ndim > 2 { row_major } else { are_contiguous(stored) })
        };
        let kind = match self.kind {
            INT => b'i',
            UINT => b'u',
            FLOAT => b'f',
            _ => b'?',
        };
        let elements = match self.lanes {
            1 => ElementType::new(kind, usize::from(self.bits) / 8),
            _ => ElementType::Other,
        };
        ArrayRef {
            library,
            address: self.data.expose_provenance() as u64 + self.byte_offset,
            elements,
            ndim,
            dims,
            row_major,
            column_major,
            place,
            // Arrays of JAX never change; others cannot say here that they are read-only.
            writable: library != ArrayLibrary::Jax,
            tensor: None,
        }
    }
}

/// Functions of a library for its arrays, since DLPack 1.3: `DLPackExchangeAPI`. Of an array of its
/// class, `view` describes the memory, which the array keeps; it returns 0, or raises an exception.
#[repr(C)]
struct ExchangeApi {
    version: [u32; 2],
    previous: *const c_void,
    conversions: [*const c_void; 3],
    view: Option<View>,
    current_stream: *const c_void,
}

type View = unsafe extern "C" fn(*mut ffi::PyObject, *mut RawTensor) -> c_int;

/// Describes arrays of one class in C, faster than by the methods of Python.
pub(super) struct ArrayViews(View);

impl ArrayViews {
    /// None if the class has no such function.
    pub(super) fn of(class: &Bound<'_, PyAny>) -> Option<Self> {
        let capsule = class.getattr("__dlpack_c_exchange_api__").ok()?;
        // SAFETY: a capsule of this name contains such functions, which live as long as the
        // process. Those of another major version may have other fields.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule.as_ptr(), EXCHANGE.as_ptr()) == 0 {
                return None;
            }
            let api = ffi::PyCapsule_GetPointer(capsule.as_ptr(), EXCHANGE.as_ptr());
            let api = api.cast::<ExchangeApi>();
            if (*api).version[0] == 1 { (*api).view.map(Self) } else { None }
        }
    }

    /// An array of the class; None if it has no memory on such a device.
    pub(super) fn array(
        &self,
        array: &Bound<'_, PyAny>,
        library: ArrayLibrary,
    ) -> Option<ArrayRef> {
        let mut raw = MaybeUninit::<RawTensor>::uninit();
        // SAFETY: the array is of the class; the function fills the structure if it returns 0.
        if unsafe { (self.0)(array.as_ptr(), raw.as_mut_ptr()) } != 0 {
            drop(PyErr::take(array.py()));
            return None;
        }
        // SAFETY: as above; the array is alive.
        unsafe {
            let raw = raw.assume_init();
            Some(raw.array(library, place_of(raw.device_kind, raw.device_ordinal)?))
        }
    }
}

/// The exception for an array that its library does not hand over.
fn refused(array: &Bound<'_, PyAny>, name: &str, library: ArrayLibrary, error: PyErr) -> PyErr {
    let py = array.py();
    // Interrupts are none of it.
    if !error.is_instance_of::<PyException>(py) {
        return error;
    }
    let deleted = array.call_method0("is_deleted").and_then(|deleted| deleted.is_truthy());
    if library == ArrayLibrary::Jax && deleted.unwrap_or(false) {
        let message = format!("`{name}` was deleted or donated; pass an array that is in use");
        return Exception::Unsupported.error(py, message);
    }
    let message = format!(
        "`{name}` is not handed over by its library: {}; pass numpy.array({name}), or copy=True",
        error.value(py)
    );
    Exception::Dtype.error(py, message)
}

/// Elements that this library has allocated on a GPU.
#[derive(Debug, Clone)]
enum Owned {
    F32(Arc<DeviceVec<f32>>),
    F64(Arc<DeviceVec<f64>>),
}

/// Work that computes an array. It is enqueued on a `CUstream` of a GPU, or waited for without one.
pub(crate) type DeferredWork =
    Box<dyn FnOnce(Python<'_>, usize, Option<u64>) -> PyResult<()> + Send>;

/// A result in GPU memory that another library takes over by DLPack.
#[pyclass(frozen, module = "sparseop")]
pub(crate) struct PyDeviceArray {
    /// Work that is not enqueued yet.
    deferred: Mutex<Option<DeferredWork>>,
    owned: Owned,
    ordinal: usize,
    ndim: usize,
    dims: [usize; 2],
    row_major: bool,
}

/// Memory and metadata of an exported tensor.
struct ExportedTensor {
    tensor: ManagedTensor,
    shape: [i64; 2],
    strides: [i64; 2],
    _owned: Owned,
}

unsafe extern "C" fn free_exported(tensor: *mut ManagedTensor) {
    // SAFETY: `context` is the box of the export, and a consumer calls this once.
    drop(unsafe { Box::from_raw((*tensor).context.cast::<ExportedTensor>()) });
}

unsafe extern "C" fn free_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule that still has the first name was not taken by a consumer.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            free_exported(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}

impl PyDeviceArray {
    /// An array of zeros on a GPU.
    pub(super) fn zeros<'py>(
        py: Python<'py>,
        device: &Device,
        ordinal: usize,
        elements: ElementType,
        ndim: usize,
        dims: [usize; 2],
        layout: Option<Layout>,
    ) -> PyResult<Bound<'py, PyAny>> {
        fn zeros<T: Scalar>(device: &Device, len: usize) -> Result<Arc<DeviceVec<T>>, Error> {
            DeviceVec::zeros(device, len).map(Arc::new)
        }
        let len = dims.iter().product();
        let owned = match elements {
            ElementType::F32 => zeros(device, len).map(Owned::F32),
            _ => zeros(device, len).map(Owned::F64),
        };
        let owned = owned.map_err(|error| raised(py, error))?;
        let row_major = layout != Some(Layout::ColumnMajor);
        let deferred = Mutex::default();
        let new = Self { deferred, owned, ordinal, ndim, dims, row_major };
        Ok(Bound::new(py, new)?.into_any())
    }

    /// Enqueues work that computes the array at its next export.
    pub(super) fn defer(&self, work: DeferredWork) {
        *self.deferred.lock().unwrap_or_else(PoisonError::into_inner) = Some(work);
    }
}

#[pymethods]
impl PyDeviceArray {
    fn __dlpack_device__(&self) -> (i32, usize) {
        (CUDA, self.ordinal)
    }

    /// Enqueues work that is not enqueued yet on the stream of the consumer. Otherwise the contents
    /// are complete.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<Bound<'py, PyAny>>,
        dl_device: Option<(i32, usize)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = max_version;
        if dl_device.is_some_and(|device| device != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err("the array is on a GPU"));
        }
        if copy == Some(true) {
            return Err(PyValueError::new_err("the array is not copied"));
        }
        let stream = stream.and_then(|stream| stream.extract::<u64>().ok());
        let raw = match stream {
            // The driver's number of the default stream.
            Some(LEGACY_STREAM) => Some(0),
            Some(PER_THREAD_STREAM) => None,
            stream => stream,
        };
        let deferred = self.deferred.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(enqueue) = deferred {
            enqueue(py, self.ordinal, raw)?;
        }
        let (address, bits) = match &self.owned {
            Owned::F32(vector) => (vector.address(), 32),
            Owned::F64(vector) => (vector.address(), 64),
        };
        let dims = self.dims.map(|dim| dim as i64);
        let strides = if self.row_major { [dims[1], 1] } else { [1, dims[0]] };
        let tensor = RawTensor {
            data: std::ptr::with_exposed_provenance_mut(address as usize),
            device_kind: CUDA,
            device_ordinal: self.ordinal as i32,
            ndim: self.ndim as i32,
            kind: FLOAT,
            bits,
            lanes: 1,
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        let managed =
            ManagedTensor { tensor, context: std::ptr::null_mut(), deleter: Some(free_exported) };
        let strides = if self.ndim == 1 { [1, 1] } else { strides };
        let _owned = self.owned.clone();
        let exported = Box::into_raw(Box::new(ExportedTensor {
            tensor: managed,
            shape: dims,
            strides,
            _owned,
        }));
        // SAFETY: the box lives until the deleter is called, by the consumer or the capsule.
        unsafe {
            (*exported).tensor.context = exported.cast();
            (*exported).tensor.tensor.shape = (&raw mut (*exported).shape).cast();
            (*exported).tensor.tensor.strides = (&raw mut (*exported).strides).cast();
            let managed = (&raw mut (*exported).tensor).cast::<c_void>();
            let capsule = ffi::PyCapsule_New(managed, NAME.as_ptr(), Some(free_capsule));
            Bound::from_owned_ptr_or_err(py, capsule)
        }
    }
}
