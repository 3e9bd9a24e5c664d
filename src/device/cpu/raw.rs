//! Memory accesses of the kernels.
//!
//! With debug assertions a dereference, `get_unchecked`, `add` and `read_unaligned` check their
//! pointers, which quadruples the code of a kernel and the time that it takes to compile. These do
//! not: a kernel is checked as a whole, by the bounds of its ranges, and under Miri. Without debug
//! assertions they are `add`, `read_unaligned` and `write_unaligned`.

/// A value at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<V>(V);

/// Reads element `i` of an array.
///
/// # Safety
///
/// The array has the element.
#[inline(always)]
pub(crate) unsafe fn element<T: Copy>(array: *const T, i: usize) -> T {
    // SAFETY: the caller's promise.
    unsafe { element_at(array, i).read() }
}

/// Returns the address of element `i` of an array.
///
/// # Safety
///
/// The array has the element, or ends before it.
#[inline(always)]
pub(crate) unsafe fn element_at<T>(array: *const T, i: usize) -> *const T {
    if cfg!(debug_assertions) {
        array.wrapping_add(i)
    } else {
        // SAFETY: the caller's promise.
        unsafe { array.add(i) }
    }
}

/// Reads a value of another type, such as a vector, at any address.
///
/// # Safety
///
/// The memory at `p` holds such a value.
#[inline(always)]
pub(crate) unsafe fn read<V: Copy>(p: *const impl Sized) -> V {
    // SAFETY: the caller's promise; the type has no alignment.
    unsafe {
        if cfg!(debug_assertions) {
            p.cast::<Unaligned<V>>().read().0
        } else {
            p.cast::<V>().read_unaligned()
        }
    }
}

/// Writes a value of another type at any address.
///
/// # Safety
///
/// The memory at `p` has room for the value and is not used by another thread.
#[inline(always)]
pub(crate) unsafe fn write<V: Copy>(p: *mut impl Sized, value: V) {
    // SAFETY: the caller's promise; the type has no alignment.
    unsafe {
        if cfg!(debug_assertions) {
            p.cast::<Unaligned<V>>().write(Unaligned(value));
        } else {
            p.cast::<V>().write_unaligned(value);
        }
    }
}
