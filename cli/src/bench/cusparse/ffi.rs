//! Bindings of cuSPARSE, loaded at the first use.
//!
//! The library is not needed to build. A machine without it only lacks a baseline.

use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

/// Environment variable with the library to open, in place of the default candidates.
const VARIABLE: &str = "SPARSEOP_CUSPARSE";

/// File names of the library, the most specific first.
const NAMES: [&str; 3] = ["libcusparse.so.12", "libcusparse.so.13", "libcusparse.so"];

/// First version whose SpMVOp takes both precisions and an algorithm. Earlier ones, of CUDA 13.1
/// and 13.2, have functions of the same names with other parameters.
const SPMVOP_SINCE: (c_int, c_int) = (12, 8);

/// Address of a handle, a descriptor, a plan, a stream or GPU memory.
pub(super) type Raw = *mut c_void;
/// Address where a new object is stored.
pub(super) type RawOut = *mut Raw;
/// Address in host memory of a number of the compute type.
pub(super) type Number = *const c_void;
/// A value of one of cuSPARSE's enumerations, or of CUDA's `cudaDataType`.
pub(super) type Enum = c_int;
/// `cusparseStatus_t`.
pub(super) type CusparseStatus = c_int;

/// `CUSPARSE_OPERATION_NON_TRANSPOSE`.
pub(super) const NON_TRANSPOSE: Enum = 0;
/// `CUSPARSE_OPERATION_TRANSPOSE`.
pub(super) const TRANSPOSE: Enum = 1;
/// `CUSPARSE_ORDER_COL`.
pub(super) const COLUMN_MAJOR: Enum = 1;
/// `CUSPARSE_ORDER_ROW`.
pub(super) const ROW_MAJOR: Enum = 2;
/// `CUSPARSE_INDEX_BASE_ZERO`.
pub(super) const BASE_ZERO: Enum = 0;
/// `CUSPARSE_INDEX_32I`.
pub(super) const INDEX_32: Enum = 2;
/// `CUSPARSE_INDEX_64I`.
pub(super) const INDEX_64: Enum = 3;
/// `CUDA_R_32F`.
pub(super) const REAL_32: Enum = 0;
/// `CUDA_R_64F`.
pub(super) const REAL_64: Enum = 1;

/// Declares a table of functions with their symbols and parameters, and binds it.
macro_rules! functions {
    ($(#[$doc:meta])* $name:ident {
        $($field:ident = $symbol:ident($($arg:ty),*) -> $out:ty;)+
    }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> $out,)+
        }

        impl $name {
            /// Looks up all functions.
            ///
            /// # Safety
            ///
            /// The library is a cuSPARSE whose functions have these parameters, and is never
            /// unloaded.
            unsafe fn bind(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the caller's promise.
                Ok(unsafe { Self { $($field: *library.get(stringify!($symbol))?,)+ } })
            }
        }
    };
}

functions! {
    /// Functions of every version from CUDA 12.1 on.
    Functions {
        create = cusparseCreate(RawOut) -> CusparseStatus;
        destroy = cusparseDestroy(Raw) -> CusparseStatus;
        set_stream = cusparseSetStream(Raw, Raw) -> CusparseStatus;
        get_property = cusparseGetProperty(Enum, *mut c_int) -> CusparseStatus;
        error_string = cusparseGetErrorString(CusparseStatus) -> *const c_char;
        // size, values, type
        create_vector = cusparseCreateDnVec(RawOut, i64, Raw, Enum) -> CusparseStatus;
        destroy_vector = cusparseDestroyDnVec(Raw) -> CusparseStatus;
        // rows, columns, entries; offsets, columns, values; type of offsets, of columns; base; type
        // of values
        create_csr = cusparseCreateCsr(RawOut, i64, i64, i64, Raw, Raw, Raw, Enum, Enum, Enum, Enum)
            -> CusparseStatus;
        // rows, columns, entries; rows, columns, values; type of indices; base; type of values
        create_coo = cusparseCreateCoo(RawOut, i64, i64, i64, Raw, Raw, Raw, Enum, Enum, Enum)
            -> CusparseStatus;
        // rows, columns, entries, slots, rows of a slice; then as CSR
        create_sliced_ell = cusparseCreateSlicedEll(
            RawOut, i64, i64, i64, i64, i64, Raw, Raw, Raw, Enum, Enum, Enum, Enum
        ) -> CusparseStatus;
        destroy_matrix = cusparseDestroySpMat(Raw) -> CusparseStatus;
        // handle, operation, alpha, A, x, beta, y, type, algorithm, size of the buffer
        buffer_size = cusparseSpMV_bufferSize(
            Raw, Enum, Number, Raw, Raw, Number, Raw, Enum, Enum, *mut usize
        ) -> CusparseStatus;
        // as above, then the buffer
        multiply = cusparseSpMV(Raw, Enum, Number, Raw, Raw, Number, Raw, Enum, Enum, Raw)
            -> CusparseStatus;
    }
}

functions! {
    /// Products with several vectors, in every version from CUDA 12.1 on.
    SpMm {
        // rows, columns, elements from one row or column to the next, values, type, order
        create_dense = cusparseCreateDnMat(
            RawOut, i64, i64, i64, Raw, Enum, Enum
        ) -> CusparseStatus;
        destroy_dense = cusparseDestroyDnMat(Raw) -> CusparseStatus;
        // handle, operations, alpha, A, B, beta, C, type, algorithm, size of the buffer
        buffer_size = cusparseSpMM_bufferSize(
            Raw, Enum, Enum, Number, Raw, Raw, Number, Raw, Enum, Enum, *mut usize
        ) -> CusparseStatus;
        // as above, then the buffer
        preprocess = cusparseSpMM_preprocess(
            Raw, Enum, Enum, Number, Raw, Raw, Number, Raw, Enum, Enum, Raw
        ) -> CusparseStatus;
        multiply = cusparseSpMM(Raw, Enum, Enum, Number, Raw, Raw, Number, Raw, Enum, Enum, Raw)
            -> CusparseStatus;
    }
}

functions! {
    /// Analysis of a matrix ahead of many products, from CUDA 12.4 on.
    Preprocess {
        run = cusparseSpMV_preprocess(Raw, Enum, Number, Raw, Raw, Number, Raw, Enum, Enum, Raw)
            -> CusparseStatus;
    }
}

functions! {
    /// z = alpha A x + beta y, planned ahead of the products; from version 12.8 on.
    SpMvOp {
        // handle, operation, A, x, y, z, type, algorithm, size of the buffer
        buffer_size = cusparseSpMVOp_bufferSize(
            Raw, Enum, Raw, Raw, Raw, Raw, Enum, Enum, *mut usize
        ) -> CusparseStatus;
        // handle, the new one, operation, A, x, y, z, type, algorithm, buffer
        create_descriptor = cusparseSpMVOp_createDescr(
            Raw, RawOut, Enum, Raw, Raw, Raw, Raw, Enum, Enum, Raw
        ) -> CusparseStatus;
        destroy_descriptor = cusparseSpMVOp_destroyDescr(Raw) -> CusparseStatus;
        // handle, descriptor, the new one, code of an epilogue and its size
        create_plan = cusparseSpMVOp_createPlan(
            Raw, Raw, RawOut, *const c_void, usize
        ) -> CusparseStatus;
        destroy_plan = cusparseSpMVOp_destroyPlan(Raw) -> CusparseStatus;
        // handle, plan, alpha, beta, x, y, z
        multiply = cusparseSpMVOp(Raw, Raw, Number, Number, Raw, Raw, Raw) -> CusparseStatus;
    }
}

/// The loaded cuSPARSE.
#[derive(Debug)]
pub(super) struct Cusparse {
    pub(super) functions: Functions,
    pub(super) spmm: SpMm,
    pub(super) preprocess: Option<Preprocess>,
    pub(super) spmvop: Option<SpMvOp>,
    version: [c_int; 3],
    /// The library of the functions, which stays loaded.
    _library: Library,
}

impl Cusparse {
    /// Returns the library of this machine, loaded at the first call.
    ///
    /// # Errors
    ///
    /// The message of the loader, in one line.
    pub(super) fn get() -> Result<&'static Self, &'static str> {
        static LOADED: OnceLock<Result<Cusparse, String>> = OnceLock::new();
        let load = || match std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => load_named(path.into()),
            None => Self::bind(open(&candidates())?),
        };
        LOADED.get_or_init(load).as_ref().map_err(String::as_str)
    }

    fn bind(library: Library) -> Result<Self, String> {
        let text = |error: libloading::Error| one_line(&error);
        // SAFETY: a library of that name has these functions, and it is never unloaded.
        let functions = unsafe { Functions::bind(&library) }.map_err(text)?;
        // SAFETY: as above.
        let spmm = unsafe { SpMm::bind(&library) }.map_err(text)?;
        let property = |which| {
            let mut value = 0;
            // SAFETY: it writes one int; 0, 1 and 2 select the parts of the version.
            unsafe { (functions.get_property)(which, &mut value) };
            value
        };
        let version = [0, 1, 2].map(property);
        // SAFETY: as above; the parameters of these functions are the same in all versions.
        let preprocess = unsafe { Preprocess::bind(&library) }.ok();
        // SAFETY: as above; from this version on the parameters are these.
        let spmvop =
            ((version[0], version[1]) >= SPMVOP_SINCE).then(|| unsafe { SpMvOp::bind(&library) });
        let spmvop = spmvop.and_then(Result::ok);
        Ok(Self { functions, spmm, preprocess, spmvop, version, _library: library })
    }

    /// The version in the library's own numbering.
    pub(super) fn version(&self) -> String {
        self.version.map(|part| part.to_string()).join(".")
    }

    /// Description of a status.
    pub(super) fn text(&self, status: CusparseStatus) -> String {
        // SAFETY: it takes any number and returns a constant text.
        let text = unsafe { (self.functions.error_string)(status) };
        if text.is_null() {
            return format!("cuSPARSE error {status}");
        }
        // SAFETY: not null, hence a text that ends in NUL.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        format!("{text} (cuSPARSE error {status})")
    }
}

/// Loads the library that [`VARIABLE`] names, without a fallback to others.
fn load_named(path: PathBuf) -> Result<Cusparse, String> {
    open(&[path]).and_then(Cusparse::bind).map_err(|text| {
        format!("{text}; {VARIABLE} names it: set it to a libcusparse.so.12, or unset it")
    })
}

/// Candidate paths: the loader's search path first, then the installation folders of CUDA.
fn candidates() -> Vec<PathBuf> {
    let homes =
        ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let folders = homes.chain([PathBuf::from("/usr/local/cuda")]).map(|home| home.join("lib64"));
    [PathBuf::new()]
        .into_iter()
        .chain(folders)
        .flat_map(|folder| NAMES.map(|name| folder.join(name)))
        .collect()
}

/// Opens the first candidate that loads, or returns the message of the loader.
fn open(candidates: &[PathBuf]) -> Result<Library, String> {
    let mut said = Vec::new();
    for path in candidates {
        // SAFETY: loading it runs its initialisers, which is what they are for.
        match unsafe { Library::new(path) } {
            Ok(library) => return Ok(library),
            Err(error) => said.push((path, one_line(&error))),
        }
    }
    // A message about another file means that this one is found but lacks a dependency.
    let other = said.iter().find(|(path, text)| !text.starts_with(&*path.to_string_lossy()));
    Err(other.or(said.first()).map_or_else(String::new, |(_, text)| text.clone()))
}

/// The loader's own message in one line.
fn one_line(error: &libloading::Error) -> String {
    let cause =
        std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    cause.lines().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_named_as_the_loader_names_it() {
        let paths = ["libsparseop-lacks-this.so", "libsparseop-lacks-that.so"].map(PathBuf::from);
        let text = open(&paths).unwrap_err();
        assert!(
            text.starts_with("libsparseop-lacks-this.so: cannot open shared object file"),
            "{text}"
        );
    }

    #[test]
    fn a_library_that_is_named_and_not_there_is_not_replaced() {
        let text = load_named("/nowhere/libcusparse.so.12".into()).unwrap_err();
        let expected = "/nowhere/libcusparse.so.12: cannot open shared object file";
        assert!(
            text.starts_with(expected) && text.contains("SPARSEOP_CUSPARSE names it"),
            "{text}"
        );
        // Any library of the system: it loads but has none of the functions.
        let text = load_named("libc.so.6".into()).unwrap_err();
        assert!(text.contains("cusparseCreate") && text.contains(VARIABLE), "{text}");
    }

    #[test]
    fn the_library_is_there_or_the_loader_says_why_not() {
        match Cusparse::get() {
            Ok(library) => {
                assert!(library.version[0] >= 12, "{}", library.version());
                assert!(library.text(3).contains("cuSPARSE error 3"), "{}", library.text(3));
            }
            Err(text) => assert!(text.contains(".so") && !text.contains('\n'), "{text}"),
        }
    }
}
