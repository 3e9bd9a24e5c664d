//! Memory accesses of the kernels.
//!
//! With debug assertions a dereference, `get_unchecked`, `add` and `read_unaligned` check their
//! pointers, which quadruples the code of a kernel and the time that it takes to compile. These do
//! not: a kernel is checked as a whole, by the bounds of its ranges, and under Miri.

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
    unsafe { array.wrapping_add(i).read() }
}

/// Reads a value of another type, such as a vector, at any address.
///
/// # Safety
///
/// The memory at `p` holds such a value.
#[inline(always)]
pub(crate) unsafe fn read<V: Copy>(p: *const impl Sized) -> V {
    // SAFETY: the caller's promise; the type has no alignment.
    unsafe { p.cast::<Unaligned<V>>().read().0 }
}

/// Writes a value of another type at any address.
///
/// # Safety
///
/// The memory at `p` has room for the value and is not used by another thread.
#[inline(always)]
pub(crate) unsafe fn write<V: Copy>(p: *mut impl Sized, value: V) {
    // SAFETY: the caller's promise; the type has no alignment.
    unsafe { p.cast::<Unaligned<V>>().write(Unaligned(value)) };
}
