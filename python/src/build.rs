//! Operators from arrays of CSR.

use crate::arrays::{ArrayLibrary, ArrayPlace, ArrayRef, ElementType, describe, stream_of};
use crate::error::{Exception, raised};
use crate::interrupt::interruptible;
use crate::library::{PyProfile, device};
use crate::shared::{EntryOrder, PyOperator, ScalarOp, SharedOp};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sparseop::matrix::Index;
use sparseop::{
    CsrCow, CsrView, Device, Error, ForeignCsr, Offsets, Plan, Precision, Scalar, SparseOp,
    SparseOpBuilder, Stream, Tuning,
};
use std::path::PathBuf;
use std::sync::Arc;

/// Number of entries below which reading or packing a matrix on the CPU ends soon enough after an
/// interrupt.
const SHORT: usize = 1 << 20;

/// A view of a matrix of either scalar type.
pub(crate) enum AnyView<'a> {
    F32(CsrView<'a, f32>),
    F64(CsrView<'a, f64>),
}

/// The arrays of a matrix, described and kept alive.
struct PythonCsr {
    shape: (usize, usize),
    offsets: ArrayRef,
    columns: ArrayRef,
    values: ArrayRef,
    _arrays: [Py<PyAny>; 3],
}

impl PythonCsr {
    fn new(py: Python<'_>, shape: (usize, usize), arrays: [Bound<'_, PyAny>; 3]) -> PyResult<Self> {
        let [offsets, columns, values] = &arrays;
        let offsets = describe(offsets, "row offsets")?;
        let columns = describe(columns, "column indices")?;
        let values = describe(values, "values")?;
        for (name, array) in
            [("row offsets", &offsets), ("column indices", &columns), ("values", &values)]
        {
            if !array.is_aligned() {
                let message = format!("the {name} are not aligned; copy them");
                return Err(Exception::Contiguity.error(py, message));
            }
            if array.ndim != 1 || !array.row_major {
                let message = format!("the {name} are not contiguous in one dimension; copy them");
                return Err(Exception::Contiguity.error(py, message));
            }
            if array.place != values.place {
                let message = format!(
                    "the {name} are on {}, the values on {}; move them to one device",
                    array.place, values.place
                );
                return Err(Exception::Device.error(py, message));
            }
        }
        if !matches!(values.elements, ElementType::F32 | ElementType::F64) {
            let message = "the values of the matrix are neither float32 nor float64; pass \
                           dtype=\"float64\", or convert the matrix";
            return Err(Exception::Dtype.error(py, message));
        }
        if offsets.len() != shape.0 + 1 || columns.len() != values.len() {
            let message = format!(
                "{} row offsets, {} column indices and {} values are no matrix of {} rows",
                offsets.len(),
                columns.len(),
                values.len(),
                shape.0
            );
            return Err(Exception::Matrix.error(py, message));
        }
        let _arrays = arrays.map(Bound::unbind);
        Ok(Self { shape, offsets, columns, values, _arrays })
    }

    /// The matrix, in host memory.
    ///
    /// # Safety
    ///
    /// The arrays are not modified meanwhile.
    unsafe fn view<T: Scalar>(&self) -> Result<CsrCow<'_, T>, Error> {
        // SAFETY: the caller's promise, and the element types are checked.
        unsafe {
            match self.offsets.elements {
                ElementType::I32 => self.with_columns::<i32, T>(self.offsets.slice()),
                ElementType::I64 => self.with_columns::<i64, T>(self.offsets.slice()),
                ElementType::U32 => self.with_columns::<u32, T>(self.offsets.slice()),
                ElementType::U64 => self.with_columns::<u64, T>(self.offsets.slice()),
                _ => Err(no_integers("row offsets")),
            }
        }
    }

    /// # Safety
    ///
    /// As for `view`.
    unsafe fn with_columns<'a, O: Index, T: Scalar>(
        &'a self,
        offsets: &'a [O],
    ) -> Result<CsrCow<'a, T>, Error> {
        let (nrows, ncols) = self.shape;
        // SAFETY: as for `view`.
        unsafe {
            let values = self.values.slice::<T>();
            match self.columns.elements {
                ElementType::I32 => {
                    CsrCow::try_new(nrows, ncols, offsets, self.columns.slice::<i32>(), values)
                }
                ElementType::I64 => {
                    CsrCow::try_new(nrows, ncols, offsets, self.columns.slice::<i64>(), values)
                }
                ElementType::U32 => {
                    CsrCow::try_new(nrows, ncols, offsets, self.columns.slice::<u32>(), values)
                }
                ElementType::U64 => {
                    CsrCow::try_new(nrows, ncols, offsets, self.columns.slice::<u64>(), values)
                }
                _ => Err(no_integers("column indices")),
            }
        }
    }

    /// The matrix, in the memory of a GPU.
    ///
    /// # Safety
    ///
    /// As for `view`.
    unsafe fn foreign<T: Scalar>(&self, device: &Device) -> Result<ForeignCsr<T>, Error> {
        let offsets = match self.offsets.elements.bytes() {
            4 => Offsets::Bits32(self.offsets.address),
            8 => Offsets::Bits64(self.offsets.address),
            _ => return Err(no_integers("row offsets")),
        };
        if self.columns.elements.bytes() != 4 {
            return Err(no_integers("column indices"));
        }
        let (columns, values) = (self.columns.address, self.values.address);
        // SAFETY: the caller's promise.
        unsafe {
            ForeignCsr::from_raw(device, self.shape, self.values.len(), offsets, columns, values)
        }
    }

    /// # Safety
    ///
    /// As for `view`.
    unsafe fn build<T: Scalar>(
        &self,
        builder: &SparseOpBuilder,
        stream: Option<&Stream>,
    ) -> Result<SparseOp<T>, Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match stream {
                None => builder.build(&self.view::<T>()?),
                Some(stream) => {
                    builder.build_from_device(stream, &self.foreign::<T>(&stream.device())?)
                }
            }
        }
    }
}

fn no_integers(what: &str) -> Error {
    let message = format!("the {what} are not integers of 32 bits, or on the CPU of 64");
    Error::InvalidMatrix { format: "CSR", message }
}

/// Calls a function with a matrix in host memory, without the GIL. An interrupt ends the call
/// before the function returns.
pub(crate) fn with_csr<R: Send + 'static>(
    py: Python<'_>,
    shape: (usize, usize),
    arrays: [Bound<'_, PyAny>; 3],
    work: impl FnOnce(AnyView<'_>) -> Result<R, Error> + Send + 'static,
) -> PyResult<R> {
    let a = PythonCsr::new(py, shape, arrays)?;
    if a.values.place != ArrayPlace::Host {
        let message = "the matrix is on a GPU; copy it to the host";
        return Err(Exception::Device.error(py, message));
    }
    let is_short = a.values.len() < SHORT;
    let done = interruptible(py, is_short, move || {
        // SAFETY: the arrays are those of the matrix that was described.
        unsafe {
            match a.values.elements {
                ElementType::F32 => work(AnyView::F32(a.view()?.view())),
                _ => work(AnyView::F64(a.view()?.view())),
            }
        }
    })?;
    done.map_err(|error| raised(py, error))
}

/// Builds an operator from the arrays of CSR. `order` has the positions of the entries in the
/// caller's array of values, and the number of its elements.
#[pyfunction]
#[pyo3(signature = (shape, arrays, order, settings, copy))]
pub(crate) fn build(
    py: Python<'_>,
    shape: (usize, usize),
    arrays: [Bound<'_, PyAny>; 3],
    order: Option<(Py<PyAny>, u64)>,
    settings: &Bound<'_, PyDict>,
    copy: bool,
) -> PyResult<PyOperator> {
    let a = PythonCsr::new(py, shape, arrays)?;
    let mut builder = builder(py, settings)?;
    let asked: Option<String> = optional(settings, "device")?;
    let here = match a.values.place {
        ArrayPlace::Host => Device::Cpu,
        ArrayPlace::Cuda(ordinal) => device(py, &format!("cuda:{ordinal}"))?,
    };
    let target = match asked.as_deref() {
        None => here.clone(),
        Some(name) => device(py, name)?,
    };
    builder = builder.device(target);
    let stream = match a.values.place {
        ArrayPlace::Host => None,
        ArrayPlace::Cuda(ordinal) => Some(stream_of(py, a.values.library, ordinal, &here)?),
    };
    let library = a.values.library;
    debug_assert!(library != ArrayLibrary::Standard || stream.is_none());
    // Elsewhere kernels may have to be compiled.
    let on_cpu = asked.as_deref().map_or(stream.is_none(), |name| name == "cpu");
    let calibrates = optional::<String>(settings, "tuning")?.as_deref() == Some("calibrate");
    let is_short = on_cpu && !calibrates && a.values.len() < SHORT;
    let built = interruptible(py, is_short, move || {
        // SAFETY: the arrays are kept alive, and were checked.
        unsafe {
            Ok(match a.values.elements {
                ElementType::F32 => ScalarOp::F32(a.build(&builder, stream.as_ref())?),
                _ => ScalarOp::F64(a.build(&builder, stream.as_ref())?),
            })
        }
    })?;
    let op = built.map_err(|error| raised(py, error))?;
    sparseop::print_file_warnings();
    let place = place_of(&op);
    let order = order.map(|(positions, given)| EntryOrder { positions, given });
    Ok(PyOperator { shared: Arc::new(SharedOp::new(op, place, order, copy)), transposed: false })
}

/// Memory of an operator's vectors.
fn place_of(op: &ScalarOp) -> ArrayPlace {
    let device = crate::shared::either!(op, op => op.device().to_string());
    let ordinal = device.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok());
    ordinal.map_or(ArrayPlace::Host, ArrayPlace::Cuda)
}

/// The values that a setting takes.
fn taken(key: &str) -> &'static str {
    match key {
        "device" => "a name such as \"cpu\" or \"cuda:0\"",
        "plan" => "the spelling of a plan, such as \"csr(balanced)\"",
        "tuning" => "\"check\", \"predict\" or \"calibrate\"",
        "value_precision" => "\"f32\", \"f16\" or \"bf16\"",
        "expected_calls" => "a number of products",
        "memory_limit" => "a number of bytes",
        "profile" => "a Profile, or the path of one",
        _ => "True or False",
    }
}

pub(crate) fn optional<'py, T>(settings: &Bound<'py, PyDict>, key: &str) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let Some(value) = settings.get_item(key)?.filter(|value| !value.is_none()) else {
        return Ok(None);
    };
    match value.extract() {
        Ok(found) => Ok(Some(found)),
        Err(_) => {
            let message = format!("`{key}` is {}, not {}", taken(key), value.repr()?);
            Err(Exception::Setting.error(settings.py(), message))
        }
    }
}

/// Builder with the given settings.
pub(crate) fn builder(py: Python<'_>, settings: &Bound<'_, PyDict>) -> PyResult<SparseOpBuilder> {
    let mut builder = SparseOpBuilder::new();
    let flag = |key| Ok::<_, PyErr>(optional::<bool>(settings, key)?.unwrap_or(false));
    builder = builder.deterministic(flag("deterministic")?).updatable(flag("updatable")?);
    builder = builder.transpose(flag("transpose")?).remember(flag("remember")?);
    if let Some(calls) = optional(settings, "expected_calls")? {
        builder = builder.expected_calls(calls);
    }
    if let Some(bytes) = optional(settings, "memory_limit")? {
        builder = builder.memory_limit(bytes);
    }
    if let Some(name) = optional::<String>(settings, "value_precision")? {
        let found = Precision::ALL.into_iter().find(|precision| precision.name() == name);
        let Some(precision) = found else {
            let names = Precision::ALL.map(Precision::name).join(", ");
            let message = format!("value_precision is one of {names}, not {name}");
            return Err(Exception::Setting.error(py, message));
        };
        builder = builder.value_precision(precision);
    }
    let plan: Option<String> = optional(settings, "plan")?;
    let tuning: Option<String> = optional(settings, "tuning")?;
    builder = match (plan, tuning.as_deref()) {
        (Some(plan), None) => {
            builder.tuning(Tuning::Fixed(plan.parse::<Plan>().map_err(|error| raised(py, error))?))
        }
        (Some(_), Some(_)) => {
            return Err(Exception::Setting.error(py, "`plan` is given: `tuning` has no effect"));
        }
        (None, None | Some("check")) => builder,
        (None, Some("predict")) => builder.tuning(Tuning::Predict),
        (None, Some("calibrate")) => builder.tuning(Tuning::Calibrate),
        (None, Some(other)) => {
            let message = format!("tuning is check, predict or calibrate, not {other}");
            return Err(Exception::Setting.error(py, message));
        }
    };
    let profile = settings.get_item("profile")?;
    if let Some(Ok(profile)) = profile.as_ref().map(|profile| profile.cast::<PyProfile>()) {
        return Ok(builder.profile(profile.get().0.clone()));
    }
    Ok(match optional::<PathBuf>(settings, "profile")? {
        Some(path) => builder.profile(path),
        None => builder,
    })
}
