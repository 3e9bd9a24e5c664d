//! Failures of calls: statuses and messages.

use crate::types::sparseop_status;
use sparseop::{Error, ErrorKind};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Message of the last failed call of this thread.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Reason of a failed call.
#[derive(Debug)]
pub(crate) struct Failure {
    status: sparseop_status,
    message: String,
}

impl Failure {
    pub(crate) fn new(status: sparseop_status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(crate) fn null(what: &str) -> Self {
        Self::new(sparseop_status::InvalidPointer, format!("`{what}` is NULL"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        use sparseop_status as Status;
        let status = match error.kind() {
            ErrorKind::InvalidMatrix => Status::InvalidMatrix,
            ErrorKind::WrongLength => Status::WrongLength,
            ErrorKind::InvalidArgument => Status::InvalidArgument,
            ErrorKind::InvalidPointer => Status::InvalidPointer,
            ErrorKind::DeviceUnavailable => Status::DeviceUnavailable,
            ErrorKind::WrongDevice => Status::WrongDevice,
            ErrorKind::OutOfMemory => Status::OutOfMemory,
            ErrorKind::Gpu => Status::GpuFailed,
            ErrorKind::Unsupported => Status::NotPossible,
            _ => Status::Failed,
        };
        Self::new(status, error.to_string())
    }
}

/// Runs the body of a call. Failures and panics become statuses; their message is kept for this
/// thread.
pub(crate) fn catch_panics(call: impl FnOnce() -> Result<(), Failure>) -> sparseop_status {
    let Failure { status, message } = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return sparseop_status::Ok,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Failure::new(sparseop_status::Panicked, format!("a defect of sparseop: {text}"))
        }
    };
    // The thread-local storage of an ending thread is gone; the message is dropped.
    let _ = LAST.try_with(|last| *last.borrow_mut() = c_string(message));
    status
}

/// Converts a text; NUL characters become spaces.
pub(crate) fn c_string(text: String) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// Message of the last failed call of this thread, one line of UTF-8; empty if no call has
/// failed. Valid until the next failed call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn sparseop_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn sparseop_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
