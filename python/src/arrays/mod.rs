//! Descriptions of arrays of other libraries, by address and shape: nothing is copied.

mod cupy;
mod dlpack;
mod numpy;
mod torch;

pub(crate) use dlpack::borrowed_on;
pub(crate) use numpy::new_host;

use crate::error::{Exception, raised};
use crate::stream;
use dlpack::{DeferredWork, PyDeviceArray, Tensor};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyType;
use sparseop::{Layout, Stream};
use std::fmt::{self, Display};
use std::sync::{Mutex, PoisonError};

/// Library of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArrayLibrary {
    NumPy,
    CuPy,
    Torch,
    Jax,
    /// Any other with `__dlpack__`.
    Standard,
}

/// Type of the elements of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ElementType {
    F32,
    F64,
    I32,
    I64,
    U32,
    U64,
    /// A type that takes no part in products.
    Other,
}

impl ElementType {
    /// Type of a kind, spelled as NumPy's `dtype.kind`, and a size in bytes.
    pub(crate) fn new(kind: u8, bytes: usize) -> Self {
        match (kind, bytes) {
            (b'f', 4) => Self::F32,
            (b'f', 8) => Self::F64,
            (b'i', 4) => Self::I32,
            (b'i', 8) => Self::I64,
            (b'u', 4) => Self::U32,
            (b'u', 8) => Self::U64,
            _ => Self::Other,
        }
    }

    /// Size of an element; 0 for other types.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::Other => 0,
        }
    }

    /// Name of the type in Python.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
            Self::Other => "another type",
        }
    }
}

/// Memory of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArrayPlace {
    Host,
    Cuda(usize),
}

impl Display for ArrayPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("the CPU"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// An array of the caller, which keeps it alive.
#[derive(Debug)]
pub(crate) struct ArrayRef {
    pub(crate) library: ArrayLibrary,
    pub(crate) address: u64,
    pub(crate) elements: ElementType,
    /// Number of dimensions; `dims` has at most 2 of them.
    pub(crate) ndim: usize,
    pub(crate) dims: [usize; 2],
    /// True if the last index is contiguous.
    pub(crate) row_major: bool,
    /// True if the first index is contiguous.
    pub(crate) column_major: bool,
    pub(crate) place: ArrayPlace,
    pub(crate) writable: bool,
    /// Owner of memory that was borrowed by DLPack.
    tensor: Option<Tensor>,
}

impl ArrayRef {
    /// Number of elements, of one or two dimensions.
    pub(crate) fn len(&self) -> usize {
        self.dims[..self.ndim.min(2)].iter().product()
    }

    /// Number of vectors, if there are two dimensions.
    pub(crate) fn vectors(&self) -> Option<usize> {
        (self.ndim == 2).then_some(self.dims[1])
    }

    /// Layout of the vectors: that of `other` if the array has both layouts, None if it has
    /// neither.
    pub(crate) fn layout(&self, other: Option<&ArrayRef>) -> Option<Layout> {
        let prefers_columns = other.is_some_and(|other| !other.row_major);
        match (self.row_major, self.column_major) {
            (true, true) if prefers_columns => Some(Layout::ColumnMajor),
            (true, _) => Some(Layout::RowMajor),
            (false, true) => Some(Layout::ColumnMajor),
            (false, false) => None,
        }
    }

    /// True if the memory was borrowed by DLPack, until this is dropped.
    pub(crate) fn is_borrowed(&self) -> bool {
        self.tensor.is_some()
    }

    /// Bytes of all elements.
    pub(crate) fn bytes(&self) -> usize {
        self.len() * self.elements.bytes()
    }

    /// True if both have bytes in common.
    pub(crate) fn overlaps(&self, other: &ArrayRef) -> bool {
        let range = |array: &ArrayRef| {
            let bytes = array.bytes() as u64;
            array.address..array.address.saturating_add(bytes)
        };
        let (one, two) = (range(self), range(other));
        self.place == other.place && one.start < two.end && two.start < one.end
    }

    /// True if each element begins at a multiple of its size.
    pub(crate) fn is_aligned(&self) -> bool {
        // Sizes are powers of two.
        let size = self.elements.bytes().max(1) as u64;
        self.address & (size - 1) == 0 || self.len() == 0
    }

    /// The elements, which are in host memory.
    ///
    /// # Safety
    ///
    /// The array is alive, contiguous, has this element type, and is not modified meanwhile.
    pub(crate) unsafe fn slice<'a, T>(&self) -> &'a [T] {
        // SAFETY: the caller's promise; every bit pattern is a number.
        unsafe { host_slice(self.address, self.len()) }
    }
}

/// Elements in host memory.
///
/// # Safety
///
/// There are `len` elements, and they are not modified while the slice is used.
pub(crate) unsafe fn host_slice<'a, T>(address: u64, len: usize) -> &'a [T] {
    let none = std::ptr::dangling();
    let start = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(if len == 0 { none } else { start }, len) }
}

/// Elements in host memory, to be written.
///
/// # Safety
///
/// There are `len` elements, and they are not used elsewhere while the slice is used.
pub(crate) unsafe fn host_slice_mut<'a, T>(address: u64, len: usize) -> &'a mut [T] {
    let none = std::ptr::dangling_mut();
    let start = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(if len == 0 { none } else { start }, len) }
}

/// Array classes and their libraries, the latest last.
static CLASSES: Mutex<Vec<(Py<PyType>, ArrayLibrary)>> = Mutex::new(Vec::new());

/// Number of array classes that are remembered.
const REMEMBERED: usize = 32;

/// Library of an array.
pub(crate) fn library_of(array: &Bound<'_, PyAny>, name: &str) -> PyResult<ArrayLibrary> {
    let class = array.get_type_ptr();
    let known = |classes: &Vec<(Py<PyType>, ArrayLibrary)>| {
        classes.iter().find(|(known, _)| known.as_ptr() == class.cast()).map(|found| found.1)
    };
    if let Some(library) = known(&CLASSES.lock().unwrap_or_else(PoisonError::into_inner)) {
        return Ok(library);
    }
    let library = classify(array, name)?;
    let class = array.get_type().unbind();
    let mut classes = CLASSES.lock().unwrap_or_else(PoisonError::into_inner);
    if classes.len() < REMEMBERED {
        classes.push((class, library));
    }
    Ok(library)
}

/// True if an object of JAX stands for arrays in a transformation of functions.
fn is_traced(thing: &Bound<'_, PyAny>) -> PyResult<bool> {
    for class in thing.get_type().mro() {
        if class.getattr("__name__")?.eq("Tracer")? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn classify(array: &Bound<'_, PyAny>, name: &str) -> PyResult<ArrayLibrary> {
    for class in array.get_type().mro() {
        let module: String = class.getattr("__module__")?.extract().unwrap_or_default();
        let class: String = class.getattr("__name__")?.extract().unwrap_or_default();
        let root = module.split('.').next().unwrap_or_default();
        match (root, class.as_str()) {
            ("numpy", "ndarray") => return Ok(ArrayLibrary::NumPy),
            ("cupy", "ndarray" | "_ndarray_base") => return Ok(ArrayLibrary::CuPy),
            ("torch", "Tensor") => return Ok(ArrayLibrary::Torch),
            ("jax" | "jaxlib", _) if is_traced(array)? => {
                let message = format!(
                    "`{name}` is traced by jax.jit or another transformation of JAX, which cannot \
                     follow the product; call the operator in jax.pure_callback"
                );
                return Err(Exception::Unsupported.error(array.py(), message));
            }
            ("jax" | "jaxlib", _) if array.hasattr("__dlpack__")? => return Ok(ArrayLibrary::Jax),
            _ => {}
        }
    }
    if array.hasattr("__dlpack__")? {
        return Ok(ArrayLibrary::Standard);
    }
    let class = array.get_type().name()?;
    let message = format!(
        "`{name}` is of type {class}, which is no array; pass one of NumPy, CuPy, PyTorch or JAX, \
         or any with __dlpack__"
    );
    Err(Exception::Dtype.error(array.py(), message))
}

/// Describes an array. Work on the [stream](stream_of) of its library runs after the work that the
/// library has enqueued on the array.
pub(crate) fn describe(array: &Bound<'_, PyAny>, name: &str) -> PyResult<ArrayRef> {
    match library_of(array, name)? {
        ArrayLibrary::NumPy => numpy::describe(array),
        ArrayLibrary::CuPy => cupy::describe(array),
        ArrayLibrary::Torch => torch::describe(array, name),
        library => dlpack::describe(array, name, library, None),
    }
}

/// True if the array is a tensor of PyTorch whose operations autograd records.
pub(crate) fn is_recorded(array: &Bound<'_, PyAny>, library: ArrayLibrary) -> PyResult<bool> {
    Ok(library == ArrayLibrary::Torch && torch::is_recorded(array)?)
}

/// True if the array is a tensor of PyTorch in a transform of functions, which has no memory.
pub(crate) fn is_transformed(array: &Bound<'_, PyAny>, library: ArrayLibrary) -> bool {
    library == ArrayLibrary::Torch && torch::is_transformed(array)
}

/// Refuses a tensor of PyTorch that autograd follows, for work that it does not see.
#[pyfunction]
pub(crate) fn check_unrecorded(array: &Bound<'_, PyAny>, name: &str) -> PyResult<()> {
    match library_of(array, name) {
        Ok(ArrayLibrary::Torch) => torch::check_unrecorded(array, name),
        _ => Ok(()),
    }
}

/// Tells the library of an array that its elements have changed.
pub(crate) fn mark_written(array: &Bound<'_, PyAny>, library: ArrayLibrary) -> PyResult<()> {
    if library == ArrayLibrary::Torch { torch::mark_written(array) } else { Ok(()) }
}

/// Stream of a product with arrays of a library: the current stream of the library if it has one.
pub(crate) fn stream_of(
    py: Python<'_>,
    library: ArrayLibrary,
    ordinal: usize,
    device: &sparseop::Device,
) -> PyResult<Stream> {
    match library {
        ArrayLibrary::CuPy => {
            let current = cupy::current_stream(py)?;
            let raw = current.getattr(intern!(py, "ptr"))?.extract::<u64>()?;
            stream::wrapped(py, device, ordinal, raw, Some(&current))
        }
        ArrayLibrary::Torch => {
            let raw = torch::current_stream(py, ordinal)?;
            stream::wrapped(py, device, ordinal, raw, None)
        }
        _ => stream::own(py, device, ordinal),
    }
}

/// An array for the result of a product.
pub(crate) struct NewArray<'py> {
    object: Bound<'py, PyAny>,
    pub(crate) array: ArrayRef,
    /// Namespace of the library that imports the object by DLPack.
    namespace: Option<Bound<'py, PyAny>>,
}

impl<'py> NewArray<'py> {
    /// A new array of the library of `like`, of its number of dimensions, element type and layout,
    /// with `rows` rows. Its contents are undefined.
    pub(crate) fn like(
        like: &Bound<'py, PyAny>,
        of: &ArrayRef,
        rows: usize,
        device: &sparseop::Device,
    ) -> PyResult<Self> {
        let py = like.py();
        let (object, address) = match (of.library, of.place) {
            (ArrayLibrary::NumPy, _) => {
                let object = new_host(py, of, rows)?;
                let address = numpy::describe(&object)?.address;
                (object, address)
            }
            (ArrayLibrary::CuPy, _) => cupy::new(like, of, rows)?,
            (ArrayLibrary::Torch, _) => torch::new(like, of, rows)?,
            (_, place) => {
                let namespace = like.call_method0("__array_namespace__").map_err(|_| {
                    let class = like.get_type();
                    let message = format!(
                        "`x` is of {class}, which cannot make an array for the result: it lacks \
                         __array_namespace__; pass `out`, or numpy.from_dlpack(x)"
                    );
                    Exception::Unsupported.error(py, message)
                })?;
                let object = match place {
                    ArrayPlace::Host => numpy::new_aligned(py, of, rows)?,
                    ArrayPlace::Cuda(ordinal) => {
                        let dims = [rows, of.vectors().unwrap_or(1)];
                        let (ndim, layout) = (of.ndim, of.layout(None));
                        PyDeviceArray::zeros(py, device, ordinal, of.elements, ndim, dims, layout)?
                    }
                };
                let array = describe(&object, "out")?;
                return Ok(Self { object, array, namespace: Some(namespace) });
            }
        };
        // The other fields are known. Describing the array takes longer than many products.
        let array = ArrayRef {
            library: of.library,
            address,
            elements: of.elements,
            ndim: of.ndim,
            dims: [rows, of.dims[1]],
            row_major: of.row_major,
            column_major: !of.row_major || of.ndim == 1,
            place: of.place,
            writable: true,
            tensor: None,
        };
        Ok(Self { object, array, namespace: None })
    }

    /// True if the product is enqueued when the library of the caller imports the array.
    pub(crate) fn is_deferred(&self) -> bool {
        self.object.is_instance_of::<PyDeviceArray>()
    }

    /// Sets the work that computes the array, to be enqueued when the array is imported.
    pub(crate) fn defer(&self, work: DeferredWork) -> PyResult<()> {
        self.object.cast::<PyDeviceArray>()?.get().defer(work);
        Ok(())
    }

    /// The array of the caller's library.
    pub(crate) fn finish(self) -> PyResult<Bound<'py, PyAny>> {
        match self.namespace {
            None => Ok(self.object),
            Some(namespace) => namespace.call_method1("from_dlpack", (self.object,)),
        }
    }
}

/// Zeros of the shape, type and device of an array, for another library to import by DLPack.
#[pyfunction]
pub(crate) fn device_zeros<'py>(like: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let (py, of) = (like.py(), describe(like, "like")?);
    let ArrayPlace::Cuda(ordinal) = of.place else {
        return new_host(py, &of, of.dims[0]);
    };
    let device = sparseop::Device::cuda(ordinal).map_err(|error| raised(py, error))?;
    PyDeviceArray::zeros(py, &device, ordinal, of.elements, of.ndim, of.dims, of.layout(None))
}
