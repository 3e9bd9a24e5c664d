//! Messages among GPUs of several hosts by NCCL, whose library is looked for at run time.

use super::{Gpu, Queue};
use crate::Error;
use cudarc::driver::sys::CUstream;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

/// Names of the library.
const LIBRARIES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// Bytes of an identifier: `NCCL_UNIQUE_ID_BYTES`.
pub const ID_BYTES: usize = 128;

/// Oldest supported version. Messages between two ranks in graphs came with 2.9; a communicator can
/// be aborted while another thread is in it since 2.19.
const OLDEST: c_int = 21900;

/// `ncclUint8`.
const BYTE: c_int = 1;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; ID_BYTES]);

/// `ncclComm_t`.
type RawComm = *mut c_void;

/// Functions of the library, as declared in `nccl.h`.
struct NcclFunctions {
    get_id: unsafe extern "C" fn(&mut UniqueId) -> c_int,
    init_rank: unsafe extern "C" fn(&mut RawComm, c_int, UniqueId, c_int) -> c_int,
    abort: unsafe extern "C" fn(RawComm) -> c_int,
    async_error: unsafe extern "C" fn(RawComm, &mut c_int) -> c_int,
    text: unsafe extern "C" fn(c_int) -> *const c_char,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    send: unsafe extern "C" fn(*const c_void, usize, c_int, c_int, RawComm, CUstream) -> c_int,
    receive: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, RawComm, CUstream) -> c_int,
}

/// This process as a rank of a communicator of NCCL, with a GPU. It lives as long as the process:
/// its end would have to wait for all other ranks.
#[derive(Debug)]
pub(crate) struct Nccl {
    gpu: Gpu,
    comm: Comm,
    /// First failure.
    failure: OnceLock<String>,
    /// Held while a group of messages is enqueued.
    order: Mutex<()>,
    /// Held while NCCL is asked for failures or aborted; true when it has been aborted.
    is_aborted: Mutex<bool>,
}

#[derive(Debug, Clone, Copy)]
struct Comm(RawComm);

// SAFETY: a communicator can be used from any thread, by one at a time, and be aborted while
// another one waits in it.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

/// The functions of the library.
fn functions() -> Result<&'static NcclFunctions, Error> {
    static FUNCTIONS: OnceLock<Option<NcclFunctions>> = OnceLock::new();
    let found = FUNCTIONS.get_or_init(|| LIBRARIES.iter().find_map(|name| load(name)));
    found.as_ref().ok_or_else(|| Error::Communication {
        message: format!(
            "there is no {} of version 2.19 or later, through which GPUs of several hosts exchange \
             elements; install NCCL, or add its folder to LD_LIBRARY_PATH",
            LIBRARIES[0]
        ),
    })
}

/// The functions of a library, unless it is too old.
fn load(name: &str) -> Option<NcclFunctions> {
    // SAFETY: the initialisers of a library of this name only prepare its use.
    let library = unsafe { Library::new(name) }.ok()?;
    // SAFETY: the types are those of the declarations in `nccl.h`; the function writes a number.
    let functions = unsafe {
        let get_version: unsafe extern "C" fn(&mut c_int) -> c_int =
            *library.get(b"ncclGetVersion\0").ok()?;
        let mut version = 0;
        if get_version(&mut version) != 0 || version < OLDEST {
            return None;
        }
        NcclFunctions {
            get_id: *library.get(b"ncclGetUniqueId\0").ok()?,
            init_rank: *library.get(b"ncclCommInitRank\0").ok()?,
            abort: *library.get(b"ncclCommAbort\0").ok()?,
            async_error: *library.get(b"ncclCommGetAsyncError\0").ok()?,
            text: *library.get(b"ncclGetErrorString\0").ok()?,
            group_start: *library.get(b"ncclGroupStart\0").ok()?,
            group_end: *library.get(b"ncclGroupEnd\0").ok()?,
            send: *library.get(b"ncclSend\0").ok()?,
            receive: *library.get(b"ncclRecv\0").ok()?,
        }
    };
    // The library stays loaded as long as the process runs.
    std::mem::forget(library);
    Some(functions)
}

/// Returns an error for a result code other than `ncclSuccess`.
fn result(functions: &NcclFunctions, action: &str, code: c_int) -> Result<(), Error> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the function returns a string that is never freed, for any code.
    let text = unsafe { CStr::from_ptr((functions.text)(code)) }.to_string_lossy();
    let message = format!("NCCL cannot {action}: {text}; NCCL_DEBUG=WARN prints why");
    Err(Error::Communication { message })
}

impl Nccl {
    /// True if the library is found.
    pub(crate) fn is_found() -> bool {
        functions().is_ok()
    }

    /// Identifier of a new communicator, for all its ranks.
    pub(crate) fn new_id() -> Result<[u8; ID_BYTES], Error> {
        let (functions, mut id) = (functions()?, UniqueId([0; ID_BYTES]));
        // SAFETY: the function writes the identifier.
        result(functions, "begin", unsafe { (functions.get_id)(&mut id) })?;
        Ok(id.0)
    }

    /// Joins a communicator of `ranks` ranks, all of which call it.
    pub(crate) fn join(
        gpu: Gpu,
        [rank, ranks]: [usize; 2],
        id: [u8; ID_BYTES],
        limit: Duration,
    ) -> Result<Self, Error> {
        let functions = functions()?;
        let (sender, receiver) = mpsc::channel();
        // Without another rank the call does not return.
        thread::spawn(move || {
            let joined = || {
                let _current = gpu.bind()?;
                let mut comm = ptr::null_mut();
                // SAFETY: the function writes the communicator.
                let code = unsafe {
                    (functions.init_rank)(&mut comm, ranks as c_int, UniqueId(id), rank as c_int)
                };
                result(functions, "connect the GPUs", code).map(|()| Comm(comm))
            };
            // The receiver ends at the time limit.
            let _ = sender.send(joined());
        });
        let comm = receiver.recv_timeout(limit).map_err(|_| Error::Communication {
            message: format!("NCCL has not connected the GPUs within {limit:?}"),
        })??;
        let (order, is_aborted) = (Mutex::new(()), Mutex::new(false));
        Ok(Self { gpu, comm, failure: OnceLock::new(), order, is_aborted })
    }

    /// Enqueues messages: the bytes at some addresses to other ranks, and from them. All ranks
    /// call it with messages that match.
    ///
    /// # Safety
    ///
    /// The addresses are memory of the GPU that lives until the messages are there.
    pub(crate) unsafe fn exchange(
        &self,
        queue: &Queue,
        sends: &[(usize, Range<u64>)],
        receives: &[(usize, Range<u64>)],
    ) -> Result<(), Error> {
        let (functions, stream) = (functions()?, queue.stream());
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        let _current = self.gpu.bind()?;
        let Comm(comm) = self.comm;
        let len = |bytes: &Range<u64>| (bytes.end - bytes.start) as usize;
        let enqueue = || {
            for (rank, bytes) in sends {
                let (from, rank) = (bytes.start as *const c_void, *rank as c_int);
                // SAFETY: the caller's promise.
                let code = unsafe { (functions.send)(from, len(bytes), BYTE, rank, comm, stream) };
                result(functions, "send", code)?;
            }
            for (rank, bytes) in receives {
                let (to, rank) = (bytes.start as *mut c_void, *rank as c_int);
                // SAFETY: the caller's promise.
                let code = unsafe { (functions.receive)(to, len(bytes), BYTE, rank, comm, stream) };
                result(functions, "receive", code)?;
            }
            Ok(())
        };
        // SAFETY: every group that is begun ends, also after an error.
        result(functions, "begin messages", unsafe { (functions.group_start)() })?;
        let enqueued = enqueue();
        // SAFETY: as above.
        let ended = result(functions, "transfer messages", unsafe { (functions.group_end)() });
        enqueued.and(ended).inspect_err(|error| self.fail(error))
    }

    /// Keeps the first failure.
    fn fail(&self, error: &Error) {
        self.failure.get_or_init(|| match error {
            Error::Communication { message } => message.clone(),
            error => error.to_string(),
        });
    }

    /// Returns the first failure of a message.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let first = || match self.failure.get() {
            None => Ok(()),
            Some(message) => Err(Error::Communication { message: message.clone() }),
        };
        // Not locked: an abort waits until graphs with messages are dropped.
        first()?;
        let _not_aborted = self.is_aborted.lock().unwrap_or_else(PoisonError::into_inner);
        first()?;
        let (functions, mut code) = (functions()?, 0);
        // SAFETY: the communicator has not been aborted; the function writes a number.
        let asked = unsafe { (functions.async_error)(self.comm.0, &mut code) };
        result(functions, "exchange elements", if asked == 0 { code } else { asked })
            .inspect_err(|error| self.fail(error))
    }

    /// Ends all present messages, and makes later ones errors. Waits until graphs that contain
    /// messages are dropped.
    pub(crate) fn abort(&self, failure: &Error) {
        self.fail(failure);
        let mut is_aborted = self.is_aborted.lock().unwrap_or_else(PoisonError::into_inner);
        if let (false, Ok(functions)) = (*is_aborted, functions()) {
            *is_aborted = true;
            // SAFETY: the communicator has not been aborted.
            unsafe { (functions.abort)(self.comm.0) };
        }
    }
}
