//! Memory: its limits, allocations that can fail, and packed arrays in huge pages on systems where
//! they must be requested.
//!
//! A product reads its arrays once from beginning to end. With pages of 4 KiB the hardware
//! prefetchers stop at the end of every page, and a virtual machine walks two page tables for each.
//! Measured on Zen 4, two cores of a virtual machine, reading 120 MB: 40 to 54 GB/s in small pages,
//! 86 to 97 GB/s in huge pages.

mod limit;
mod reserve;

pub(crate) use limit::limit;
pub use reserve::Reserve;

use crate::{Error, parallel};
use bytemuck::Zeroable;
use std::alloc::Layout;

/// Elements that one thread copies at a time.
const TASK: usize = 1 << 16;

/// A vector of `len` zeros, in huge pages if it is large.
pub fn zeroed<T: Copy + Default>(len: usize) -> Vec<T> {
    // The allocator returns large blocks untouched, so pages are only mapped at the first write.
    let zeros = vec![T::default(); len];
    ask_for_huge_pages(zeros.as_ptr(), len);
    zeros
}

/// A vector of `len` zeros, in huge pages if it is large.
///
/// # Errors
///
/// As [`filled`].
pub fn try_zeroed<T: Zeroable>(len: usize) -> Result<Vec<T>, Error> {
    let bytes = check::<T>(len)?;
    // Untouched, as in `zeroed`.
    let zeros = bytemuck::allocation::try_zeroed_vec(len).map_err(|()| refused(bytes))?;
    ask_for_huge_pages(zeros.as_ptr(), len);
    Ok(zeros)
}

/// A copy of the elements, in huge pages if it is large.
///
/// # Errors
///
/// As [`reserved`].
pub(crate) fn try_copied<T: Zeroable + Copy + Send + Sync>(source: &[T]) -> Result<Vec<T>, Error> {
    let mut copy = try_zeroed(source.len())?;
    let tasks = copy.chunks_mut(TASK).zip(source.chunks(TASK));
    parallel::for_each_item(tasks, |(to, from)| to.copy_from_slice(from));
    Ok(copy)
}

/// An empty vector with room for `len` elements, in huge pages if it is large.
///
/// # Errors
///
/// [`Error::HostMemory`] if they take more than the memory that the process may use, or the system
/// refuses them.
pub fn reserved<T>(len: usize) -> Result<Vec<T>, Error> {
    let bytes = check::<T>(len)?;
    let mut empty = Vec::new();
    empty.try_reserve_exact(len).map_err(|_| refused(bytes))?;
    ask_for_huge_pages(empty.as_ptr(), len);
    Ok(empty)
}

/// Makes room for more elements.
///
/// # Errors
///
/// [`Error::HostMemory`] if the system refuses the memory.
pub(crate) fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<(), Error> {
    if list.capacity() - list.len() >= more {
        return Ok(());
    }
    let bytes = (list.len().saturating_add(more) as u64).saturating_mul(size_of::<T>() as u64);
    if reserve::is_low() {
        return Err(refused(bytes));
    }
    list.try_reserve(more).map_err(|_| refused(bytes))
}

/// The elements of all lists, one after the other.
///
/// # Errors
///
/// As [`reserved`].
pub(crate) fn joined<T: Copy>(lists: &[Vec<T>]) -> Result<Vec<T>, Error> {
    let mut all = reserved(lists.iter().map(Vec::len).sum())?;
    lists.iter().for_each(|list| all.extend_from_slice(list));
    Ok(all)
}

/// Appends an element; a full vector grows to twice its length.
///
/// # Errors
///
/// [`Error::HostMemory`] if the system refuses the memory.
#[inline]
pub(crate) fn push<T>(list: &mut Vec<T>, element: T) -> Result<(), Error> {
    if list.len() == list.capacity() {
        reserve(list, 1)?;
    }
    list.push(element);
    Ok(())
}

/// A vector of `len` equal elements.
///
/// # Errors
///
/// As [`reserved`].
pub fn filled<T: Clone>(len: usize, value: T) -> Result<Vec<T>, Error> {
    let mut elements = reserved(len)?;
    elements.resize(len, value);
    Ok(elements)
}

/// The elements of an iterator that knows their number.
///
/// # Errors
///
/// As [`reserved`].
pub fn listed<T>(elements: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, Error> {
    let mut list = reserved(elements.len())?;
    list.extend(elements);
    Ok(list)
}

/// `of(i)` for every number below `count`, each of which takes some nanoseconds.
///
/// # Errors
///
/// As [`reserved`].
pub(crate) fn collected<T: Send>(
    count: usize,
    of: impl Fn(usize) -> T + Sync,
) -> Result<Vec<T>, Error> {
    let mut list = reserved(count)?;
    parallel::extend_each(&mut list, count, of);
    Ok(list)
}

/// Checks that `bytes` bytes can be allocated now, at once: for work that allocates about as
/// much in many places.
///
/// # Errors
///
/// As [`reserved`].
pub fn check_room(bytes: usize) -> Result<(), Error> {
    // An allocation that is not used may be optimised away.
    reserved::<u8>(bytes).map(|room| drop(std::hint::black_box(room)))
}

/// Ends the process as a failed allocation of a vector does: for functions that return no error.
pub(crate) fn exhausted(error: Error) -> ! {
    let bytes = match error {
        Error::HostMemory { needed, .. } => usize::try_from(needed).unwrap_or(usize::MAX),
        _ => 0,
    };
    let layout = Layout::array::<u8>(bytes).unwrap_or(Layout::new::<u8>());
    std::alloc::handle_alloc_error(layout)
}

/// Bytes that data of unknown size may take: the limit, less an eighth for all else.
pub(crate) fn budget() -> u64 {
    limit() / 8 * 7
}

/// Checks the size that growing data have reached, in many allocations.
///
/// # Errors
///
/// [`Error::HostMemory`] if they take more than the [`budget`].
pub(crate) fn check_growth(bytes: u64) -> Result<(), Error> {
    let limit = budget();
    if bytes > limit { Err(Error::HostMemory { needed: bytes, limit }) } else { Ok(()) }
}

/// Bytes below which an allocation is not compared with the limit.
const SMALL: u64 = 1 << 20;

/// Size of `len` elements in bytes, if it is not above the limit.
fn check<T>(len: usize) -> Result<u64, Error> {
    let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
    // Small allocations are left to the allocator: the limit is a system call.
    if reserve::is_low() || bytes > SMALL && bytes > limit() {
        return Err(refused(bytes));
    }
    Ok(bytes)
}

fn refused(needed: u64) -> Error {
    Error::HostMemory { needed, limit: limit() }
}

/// Requests huge pages for the memory of `len` elements; the system may decline.
#[cfg(all(target_os = "linux", not(miri)))]
fn ask_for_huge_pages<T>(from: *const T, len: usize) {
    /// Page size that divides that of every Linux with huge pages.
    const PAGE: usize = 4096;
    /// Size of a huge page on x86-64 and most of ARM: smaller arrays cannot hold one.
    const HUGE_PAGE: usize = 2 << 20;
    let bytes = len * size_of::<T>();
    if bytes < 2 * HUGE_PAGE {
        return;
    }
    let address = from.addr();
    let start = address.next_multiple_of(PAGE);
    let len = (address + bytes - start) / PAGE * PAGE;
    // SAFETY: the range lies inside an allocation, and the advice changes the pages of the memory,
    // not its content.
    unsafe { libc::madvise(start as *mut libc::c_void, len, libc::MADV_HUGEPAGE) };
}

#[cfg(any(not(target_os = "linux"), miri))]
fn ask_for_huge_pages<T>(_: *const T, _: usize) {}

/// Returns the whole pages behind the elements of a vector to the system; the vector keeps its
/// capacity. The system may decline.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn release_spare<T>(list: &mut Vec<T>) {
    // SAFETY: a query of the system, with a valid argument.
    let Ok(page @ 1..) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else {
        return;
    };
    let spare = list.spare_capacity_mut().as_mut_ptr_range();
    let (start, end) = (spare.start.addr().next_multiple_of(page), spare.end.addr() / page * page);
    if start < end {
        let at = spare.start.wrapping_byte_add(start - spare.start.addr());
        // SAFETY: the pages lie inside an allocation that is borrowed exclusively, and have no
        // initialised element, so that their content does not matter.
        unsafe { libc::madvise(at.cast(), end - start, libc::MADV_DONTNEED) };
    }
}

#[cfg(any(not(target_os = "linux"), miri))]
pub(crate) fn release_spare<T>(_: &mut Vec<T>) {}

/// Returns memory to the system that has been freed and that the allocator keeps for later
/// allocations.
pub(crate) fn return_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    // SAFETY: any thread may call it at any time; no allocation in use changes.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Size of the last-level cache available to one thread, in bytes; a typical size if the system
/// does not report it.
pub(crate) fn last_cache() -> u64 {
    /// Typical size for a group of cores of current servers.
    const USUAL: u64 = 32 << 20;
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    {
        // SAFETY: a query of the system, with a valid argument.
        let bytes = unsafe { libc::sysconf(libc::_SC_LEVEL3_CACHE_SIZE) };
        if let Ok(bytes @ 1..) = u64::try_from(bytes) {
            return bytes;
        }
    }
    USUAL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_and_small_copies_are_copies() {
        for len in [0, 1, 1000, 3 << 20] {
            let source: Vec<u32> = (0..len).collect();
            assert_eq!(try_copied(&source).unwrap(), source);
            assert_eq!(listed(source.iter().copied()).unwrap(), source);
            assert_eq!(collected(source.len(), |i| source[i]).unwrap(), source);
            assert!(zeroed::<f64>(len as usize).iter().all(|v| *v == 0.0));
            assert_eq!(try_zeroed::<f64>(len as usize).unwrap(), zeroed::<f64>(len as usize));
        }
    }

    #[test]
    fn what_no_machine_has_is_refused_and_named() {
        let long = usize::MAX / 16;
        let refused = [
            reserved::<u8>(long).map(drop),
            filled(long, 1.0).map(drop),
            try_zeroed::<u64>(long).map(drop),
            try_zeroed::<u64>(usize::MAX).map(drop),
            listed((0..long).map(|i| i as u8)).map(drop),
            collected(long, |i| i).map(drop),
            check_room(long),
        ];
        for error in refused.map(Result::unwrap_err) {
            assert_eq!(error.kind(), crate::ErrorKind::OutOfMemory);
            assert!(error.to_string().contains("bytes of memory"), "{error}");
        }
    }
}
