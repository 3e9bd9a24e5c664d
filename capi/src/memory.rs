//! Access to memory of the caller.

use crate::failure::Failure;
use crate::types::sparseop_status::{InvalidArgument, InvalidPointer};
use std::ffi::{CStr, c_char, c_void};

/// Reference to the value behind a pointer.
///
/// # Safety
///
/// The pointer is null, or its value is not modified while the reference is used.
pub(crate) unsafe fn reference<'a, T>(what: &str, pointer: *const T) -> Result<&'a T, Failure> {
    check_aligned(what, pointer)?;
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::null(what))
}

/// Writes a value through a pointer.
///
/// # Safety
///
/// The pointer is null, or there is room for a value.
pub(crate) unsafe fn give<T>(what: &str, pointer: *mut T, value: T) -> Result<(), Failure> {
    check_place(what, pointer)?;
    // SAFETY: the caller's promise.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Checks that a value can be written through a pointer.
pub(crate) fn check_place<T>(what: &str, pointer: *const T) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::null(what));
    }
    check_aligned(what, pointer)
}

/// Slice of elements to read.
///
/// # Safety
///
/// There are `len` elements, and they are not modified while the slice is used.
pub(crate) unsafe fn input<'a, T>(
    what: &str,
    pointer: *const c_void,
    len: usize,
) -> Result<&'a [T], Failure> {
    check_elements::<T>(what, pointer, len)?;
    let none = std::ptr::dangling();
    // SAFETY: the caller's promise; alignment and size are checked.
    Ok(unsafe { std::slice::from_raw_parts(if len == 0 { none } else { pointer.cast() }, len) })
}

/// Slice of elements to write.
///
/// # Safety
///
/// There are `len` elements, and they are not used elsewhere while the slice is used.
pub(crate) unsafe fn output<'a, T>(
    what: &str,
    pointer: *mut c_void,
    len: usize,
) -> Result<&'a mut [T], Failure> {
    check_elements::<T>(what, pointer, len)?;
    let none = std::ptr::dangling_mut();
    // SAFETY: as in `input`.
    Ok(unsafe { std::slice::from_raw_parts_mut(if len == 0 { none } else { pointer.cast() }, len) })
}

/// A NUL-terminated text.
///
/// # Safety
///
/// The text ends in NUL.
pub(crate) unsafe fn text<'a>(what: &str, pointer: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::new(InvalidArgument, format!("`{what}` is not UTF-8")))
}

/// Copies a text to a buffer, truncated to its capacity and NUL-terminated. Returns the length of
/// the whole text without the NUL.
///
/// # Safety
///
/// The buffer has room for `capacity` bytes, or is null.
pub(crate) unsafe fn copy_text(text: &str, buffer: *mut c_char, capacity: usize) -> usize {
    if buffer.is_null() || capacity == 0 {
        return text.len();
    }
    let most = text.len().min(capacity - 1);
    // Half a character is none.
    let end = (0..=most).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    // SAFETY: the caller's promise; one byte of the capacity is left.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), end);
        buffer.add(end).write(0);
    }
    text.len()
}

/// Checks that an input vector and an output vector do not overlap.
pub(crate) fn check_apart<T>(
    x: *const c_void,
    x_len: usize,
    y: *const c_void,
    y_len: usize,
) -> Result<(), Failure> {
    let range = |start: *const c_void, len: usize| {
        let start = start.addr();
        start..start.saturating_add(len.saturating_mul(size_of::<T>()))
    };
    let (x, y) = (range(x, x_len), range(y, y_len));
    if x.start < y.end && y.start < x.end {
        return Err(Failure::new(InvalidArgument, "`x` and `y` have memory in common"));
    }
    Ok(())
}

fn check_aligned<T>(what: &str, pointer: *const T) -> Result<(), Failure> {
    if pointer.is_aligned() {
        return Ok(());
    }
    let message =
        format!("`{what}` is no multiple of {}, as its address has to be", align_of::<T>());
    Err(Failure::new(InvalidPointer, message))
}

fn check_elements<T>(what: &str, pointer: *const c_void, len: usize) -> Result<(), Failure> {
    if len == 0 {
        return Ok(());
    }
    check_place(what, pointer.cast::<T>())?;
    match len.checked_mul(size_of::<T>()).map(isize::try_from) {
        Some(Ok(_)) => Ok(()),
        _ => {
            let message = format!("{len} elements of `{what}` do not fit into an address space");
            Err(Failure::new(InvalidArgument, message))
        }
    }
}
