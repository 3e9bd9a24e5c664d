//! The functions of the CUDA driver, looked up once.
//!
//! `cudarc` panics if a function is missing, and makes each result an enum, which the code of a
//! newer driver is no value of. Here results remain numbers.

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUgraph, CUgraphExec, CUmodule, CUpointer_attribute, CUstream, culib,
};
use std::ffi::{c_char, c_uint, c_void};
use std::sync::OnceLock;

/// An error of the driver: its result code, a `CUresult`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DriverError(pub(super) u32);

impl DriverError {
    /// True if the driver refuses an image: `CUDA_ERROR_INVALID_IMAGE`, `NO_BINARY_FOR_GPU`,
    /// `INVALID_PTX`, `UNSUPPORTED_PTX_VERSION`, `INVALID_SOURCE`.
    pub(super) fn is_refusal(self) -> bool {
        matches!(self.0, 200 | 209 | 218 | 222 | 300)
    }
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: DriverError = DriverError(2);

/// A function of the driver's library, if it exists.
pub(super) fn symbol<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: the library is present; the caller vouches for the type.
    unsafe { culib().get::<F>(name.as_bytes()).ok().map(|symbol| *symbol) }
}

/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: DriverError = DriverError(801);

/// A function that not every driver has.
pub(super) fn optional<F: Copy>(name: &str) -> Result<F, DriverError> {
    symbol(name).ok_or(NOT_SUPPORTED)
}

/// The result of a function with code `code`.
pub(super) fn result(code: u32) -> Result<(), DriverError> {
    if code == 0 { Ok(()) } else { Err(DriverError(code)) }
}

/// The value that a function writes, `initial` if it writes none.
pub(super) fn value<R>(
    initial: R,
    call: impl FnOnce(&mut R) -> Result<(), DriverError>,
) -> Result<R, DriverError> {
    let mut value = initial;
    call(&mut value).map(|()| value)
}

/// Declares functions by their names in the driver's library, and loads them.
macro_rules! functions {
    ($($name:ident = $symbol:ident($($argument:ident: $type:ty),*);)*) => {
        struct DriverFunctions {
            $($name: unsafe extern "C" fn($($type),*) -> u32,)*
        }

        /// Loads all functions, or returns the name of one that is missing. The driver's library
        /// is present.
        fn load() -> Result<DriverFunctions, &'static str> {
            Ok(DriverFunctions {
                $($name: symbol(stringify!($symbol)).ok_or(stringify!($symbol))?,)*
            })
        }

        $(
            #[doc = concat!("`", stringify!($symbol), "`.")]
            ///
            /// # Safety
            ///
            /// As the driver's manual says.
            #[allow(clippy::too_many_arguments)]
            pub(super) unsafe fn $name($($argument: $type),*) -> Result<(), DriverError> {
                // SAFETY: the caller's promise.
                result(unsafe { (functions().$name)($($argument),*) })
            }
        )*
    };
}

functions! {
    ctx_get_current = cuCtxGetCurrent(context: &mut CUcontext);
    ctx_set_current = cuCtxSetCurrent(context: CUcontext);
    device_get = cuDeviceGet(device: &mut CUdevice, ordinal: i32);
    device_get_attribute =
        cuDeviceGetAttribute(value: &mut i32, which: CUdevice_attribute, device: CUdevice);
    device_get_count = cuDeviceGetCount(count: &mut i32);
    device_get_name = cuDeviceGetName(name: *mut c_char, bytes: i32, device: CUdevice);
    device_total_mem = cuDeviceTotalMem_v2(bytes: &mut usize, device: CUdevice);
    event_create = cuEventCreate(event: &mut CUevent, flags: c_uint);
    event_destroy = cuEventDestroy_v2(event: CUevent);
    // Old drivers have this name alone.
    event_elapsed_time = cuEventElapsedTime(ms: &mut f32, start: CUevent, end: CUevent);
    event_query = cuEventQuery(event: CUevent);
    event_record = cuEventRecord(event: CUevent, stream: CUstream);
    event_synchronize = cuEventSynchronize(event: CUevent);
    func_get_attribute =
        cuFuncGetAttribute(value: &mut i32, which: CUfunction_attribute, function: CUfunction);
    func_set_attribute =
        cuFuncSetAttribute(function: CUfunction, which: CUfunction_attribute, value: i32);
    get_error_name = cuGetErrorName(code: u32, name: &mut *const c_char);
    get_error_string = cuGetErrorString(code: u32, words: &mut *const c_char);
    graph_destroy = cuGraphDestroy(graph: CUgraph);
    graph_exec_destroy = cuGraphExecDestroy(executable: CUgraphExec);
    graph_instantiate =
        cuGraphInstantiateWithFlags(executable: &mut CUgraphExec, graph: CUgraph, flags: u64);
    graph_launch = cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
    launch_kernel = cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CUstream,
        arguments: *mut *mut c_void, extra: *mut *mut c_void
    );
    mem_alloc = cuMemAlloc_v2(address: &mut CUdeviceptr, bytes: usize);
    mem_free = cuMemFree_v2(address: CUdeviceptr);
    mem_free_host = cuMemFreeHost(start: *mut c_void);
    mem_get_info = cuMemGetInfo_v2(free: &mut usize, total: &mut usize);
    mem_host_alloc = cuMemHostAlloc(start: &mut *mut c_void, bytes: usize, flags: c_uint);
    memcpy_dtod_async =
        cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    memcpy_dtoh_async =
        cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    memcpy_htod_async =
        cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    memset_d8_async =
        cuMemsetD8Async(start: CUdeviceptr, value: u8, bytes: usize, stream: CUstream);
    module_get_function =
        cuModuleGetFunction(function: &mut CUfunction, module: CUmodule, name: *const c_char);
    module_load_data = cuModuleLoadData(module: &mut CUmodule, image: *const c_void);
    occupancy_max_active_blocks = cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: &mut i32, function: CUfunction, threads: i32, shared: usize
    );
    pointer_get_attribute = cuPointerGetAttribute(
        value: *mut c_void, which: CUpointer_attribute, address: CUdeviceptr
    );
    primary_ctx_release = cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    primary_ctx_retain = cuDevicePrimaryCtxRetain(context: &mut CUcontext, device: CUdevice);
    stream_begin_capture = cuStreamBeginCapture_v2(stream: CUstream, mode: u32);
    stream_create = cuStreamCreate(stream: &mut CUstream, flags: c_uint);
    stream_destroy = cuStreamDestroy_v2(stream: CUstream);
    stream_end_capture = cuStreamEndCapture(stream: CUstream, graph: &mut CUgraph);
    stream_is_capturing = cuStreamIsCapturing(stream: CUstream, status: &mut u32);
    stream_synchronize = cuStreamSynchronize(stream: CUstream);
    stream_wait_event = cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    thread_exchange_capture_mode = cuThreadExchangeStreamCaptureMode(mode: &mut u32);
}

static FUNCTIONS: OnceLock<Result<DriverFunctions, &'static str>> = OnceLock::new();

/// Looks all functions up. Returns the name of one that is missing. The driver's library is
/// present.
pub(super) fn look_up() -> Result<(), &'static str> {
    FUNCTIONS.get_or_init(load).as_ref().map(|_| ()).map_err(|name| *name)
}

fn functions() -> &'static DriverFunctions {
    let found = FUNCTIONS.get().and_then(|functions| functions.as_ref().ok());
    found.expect("every function of the driver is looked up before the first call")
}
